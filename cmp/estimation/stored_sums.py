"""Sums as bytes: a zip of Arrow files and of what they are. No pickle: who reads sums may not trust who wrote them."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from typing import Any, Final, TypeAlias

import polars as pl

from cmp.estimation.cells import Tallies
from cmp.estimation.cluster_sums import ClusterSums
from cmp.estimation.margins import Margins
from cmp.estimation.moments import Moments
from cmp.estimation.summary import BoundSums, Counts, Summary

__all__ = [
    "arrays_of",
    "cluster_frames",
    "clusters_of_frames",
    "frame_of",
    "packed",
    "reading",
    "summary_frames",
    "summary_of_frames",
    "unpacked",
]

FORMAT: Final = 2

Frames: TypeAlias = Mapping[str, pl.DataFrame]


def packed(frames: Frames, meta: Mapping[str, Any]) -> bytes:
    """Return frames and what they are as bytes.

    Examples
    --------
    >>> frames, meta = unpacked(packed({"one": pl.DataFrame({"x": [1]})}, {"by": "memory"}))
    >>> frames["one"]["x"].to_list(), meta["by"]
    ([1], 'memory')
    """
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, frame in frames.items():
            part = io.BytesIO()
            frame.write_ipc(part)
            archive.writestr(f"{name}.arrow", part.getvalue())
        archive.writestr("meta.json", json.dumps({"format": FORMAT, **meta}))
    return buffer.getvalue()


def unpacked(content: bytes) -> tuple[dict[str, pl.DataFrame], dict[str, Any]]:
    """Return what :func:`packed` was given; see :func:`reading` for what goes wrong."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        meta = json.loads(archive.read("meta.json"))
        if meta.get("format") != FORMAT:
            raise ValueError(
                f"these sums are of format {meta.get('format')!r}, and this version reads format {FORMAT}: make them "
                "anew from the log with cmp.utility_statistics, or read them with the version that wrote them"
            )
        frames = {
            name.removesuffix(".arrow"): pl.read_ipc(io.BytesIO(archive.read(name)))
            for name in archive.namelist()
            if name.endswith(".arrow")
        }
    return frames, meta


@contextmanager
def reading() -> Iterator[None]:
    """Say of whatever goes wrong within that these bytes are no sums.

    Raises
    ------
    ValueError
        For bytes of something else, of another format, or that lack a part.
    """
    try:
        yield
    except (
        *(zipfile.BadZipFile, json.JSONDecodeError, pl.exceptions.PolarsError),
        *(KeyError, TypeError, AttributeError),  # of what should be in it, and is not
    ) as error:
        raise ValueError(
            f"these are no sums of utilities ({error}); pass what to_bytes() returned"
        ) from error


def summary_frames(summary: Summary) -> dict[str, pl.DataFrame]:
    """Return a summary as frames."""
    return {
        "moments": frame_of(summary.moments),
        "counts": frame_of(summary.counts),
        "tallies": frame_of(summary.tallies),
        "bounds": frame_of(summary.bounds),
        "margins": _strata_of(summary.margins),
        "missing": _strata_of(summary.missing),
        "summary": pl.DataFrame(
            {
                "has_margins": summary.has_margins,
                "with_arms": summary.with_arms,
                "exposed_successes": summary.margins.exposed_successes,
                "exposed_missing": summary.missing.exposed_successes,
            }
        ),
    }


def summary_of_frames(frames: Frames) -> Summary:
    """Return the summary that :func:`summary_frames` was given."""
    rows = arrays_of(frames["summary"])
    return Summary(
        Moments(**arrays_of(frames["moments"])),
        Counts(**arrays_of(frames["counts"])),
        Tallies(**arrays_of(frames["tallies"])),
        Margins(**arrays_of(frames["margins"]), exposed_successes=rows["exposed_successes"]),
        rows["has_margins"],
        Margins(**arrays_of(frames["missing"]), exposed_successes=rows["exposed_missing"]),
        rows["with_arms"],
        BoundSums(**arrays_of(frames["bounds"])),
    )


def cluster_frames(clusters: ClusterSums) -> dict[str, pl.DataFrame]:
    """Return sums of clusters as frames."""
    arrays = {field.name: getattr(clusters, field.name) for field in fields(clusters)}
    margins = arrays.pop("by_episode")
    rows = pl.DataFrame({**arrays, "exposed_successes": margins.exposed_successes})
    return {"clusters": rows, "by_episode": _strata_of(margins)}


def clusters_of_frames(frames: Frames) -> ClusterSums | None:
    """Return the sums that :func:`cluster_frames` was given; None where there were none."""
    if "clusters" not in frames:
        return None
    arrays = arrays_of(frames["clusters"])
    margins = Margins(**arrays_of(frames["by_episode"]), exposed_successes=arrays.pop("exposed_successes"))
    return ClusterSums(**arrays, by_episode=margins)


def frame_of(part: Any) -> pl.DataFrame:
    """Return a dataclass of arrays of one length as a frame."""
    return pl.DataFrame({field.name: getattr(part, field.name) for field in fields(part)})


def arrays_of(frame: pl.DataFrame) -> dict[str, Any]:
    """Return a frame's columns as arrays."""
    return {name: frame[name].to_numpy() for name in frame.columns}


def _strata_of(margins: Margins) -> pl.DataFrame:
    return pl.DataFrame(
        {name: getattr(margins, name) for name in ("memory", "n", "n1", "successes", "count")}
    )
