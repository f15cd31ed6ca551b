"""A table of memories with its labels laid over it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from cmp.errors import GranularityError
from cmp.evaluation.placing import place_labels
from cmp.evaluation.qrels import Qrels

__all__ = ["MarkedTable", "mark_table", "row_codes"]


class MarkedTable(NamedTuple):
    """A table and what labels say of its rows."""

    frame: pl.DataFrame
    """The table with ``key``, in its own order."""
    strata: npt.NDArray[np.int64]
    """Shape (n,), which rows are compared with one another."""
    unknown: tuple[str, ...]
    """Labelled ids that the table does not hold, sorted."""
    n_elsewhere: int
    """Labels of queries or scopes that the table does not hold at all."""


def mark_table(frame: pl.DataFrame, qrels: Qrels, *, within: str) -> MarkedTable:
    """Mark the key memories of a table; its ``group`` is the labels' ``query_id``.

    Raises
    ------
    GranularityError
        Where no label names any memory of the table, or scopes do not tell which.
    ValueError
        For a table without ``memory_id``, or another ``within``.
    """
    if "memory_id" not in frame.columns:
        raise ValueError(f"the table has no column memory_id; it has {frame.columns}")
    if within not in ("query", "scope"):
        raise ValueError(f"within={within!r}; use 'query' or 'scope'")
    frame = frame.with_columns(pl.col("memory_id", *_names(frame)).cast(pl.String))
    units = frame.rename({"group": "query_id"} if "group" in frame.columns else {})
    where: list[str] = [name for name in ("scope", "query_id") if name in units.columns]
    units = units.select(*where, "memory_id").unique()
    placed = place_labels(qrels.key_memories, units.select(where).unique(), units)
    if not placed.found.height:
        raise GranularityError(_no_match(units, qrels.key_memories, placed.n_placed, where))
    key = placed.found.with_columns(pl.lit(True).alias("key"))
    on = [*_names(frame), "memory_id"]
    marked = frame.drop("key", strict=False).join(
        key.rename({"query_id": "group"}, strict=False), on=on, how="left", maintain_order="left"
    )
    names = [name for name in _names(frame) if name == "scope" or within == "query"] or _names(frame)
    return MarkedTable(
        marked.with_columns(pl.col("key").fill_null(False)),
        row_codes(frame, names),
        tuple(placed.strays["memory_id"].unique().sort().to_list()),
        placed.n_elsewhere,
    )


def row_codes(frame: pl.DataFrame, columns: list[str]) -> npt.NDArray[np.int64]:
    """Number the rows by what they hold in these columns."""
    if not columns:
        return np.zeros(frame.height, dtype=np.int64)
    return frame.select(pl.struct(columns).rank("dense").cast(pl.Int64)).to_series().to_numpy()


def _names(frame: pl.DataFrame) -> list[str]:
    return [name for name in ("scope", "group") if name in frame.columns]


def _no_match(units: pl.DataFrame, labels: pl.DataFrame, n_placed: int, where: list[str]) -> str:
    def some(ids: pl.Series) -> str:
        return ", ".join(map(repr, ids.drop_nulls().unique().sort().head(3))) or "nothing"

    name = "memory_id" if n_placed or not where else where[-1]
    column = {"query_id": "group"}.get(name, name)
    return (
        f"none of {labels.height} labels names a memory of the table: {column} is {some(labels[name])} "
        f"there, and {some(units[name])} here. Label the unit that is retrieved (turns, say, not sessions)"
    )
