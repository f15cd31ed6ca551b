"""Which memories a query needs: qrels, in the sense of TREC."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path

import polars as pl

from cmp.errors import DatasetError

__all__ = ["Qrels", "read_qrels"]

_SCHEMA = {"query_id": pl.String, "scope": pl.String, "memory_id": pl.String, "relevance": pl.Int64}
_KEY = ["query_id", "scope", "memory_id"]


@dataclass(frozen=True, slots=True)
class Qrels:
    """Labels, one row per (query, scope, memory).

    Attributes
    ----------
    frame
        ``query_id`` (null where labels are by scope), ``scope`` (null where not given), ``memory_id``,
        ``relevance`` (0: judged, and not needed; above 0: needed). Sorted.
    source
        Where the labels are from: the file's name and the sha256 of its bytes, or ``"frame"``; then, for each
        override, the same of it.
    duplicates
        How many repeated lines were collapsed.
    overridden
        How many labels overrides changed, added or took out.

    Examples
    --------
    >>> judged = {"query_id": ["q", "q"], "memory_id": ["a", "b"], "relevance": [1, 0]}
    >>> read_qrels(pl.DataFrame(judged)).key_memories["memory_id"].to_list()
    ['a']
    """

    frame: pl.DataFrame
    source: tuple[str, ...] = ("frame",)
    duplicates: int = 0
    overridden: int = 0

    def __len__(self) -> int:
        return self.frame.height

    @property
    def key_memories(self) -> pl.DataFrame:
        """The rows with relevance above 0."""
        return self.frame.filter(pl.col("relevance") > 0)

    def with_overrides(self, corrections: pl.DataFrame | str | PathLike[str]) -> Qrels:
        """Return the labels with corrections laid over them.

        Parameters
        ----------
        corrections
            Qrels that win where they name the same query, scope and memory: relevance 0 takes a key away, a
            new row adds one. A frame or a file.

        Examples
        --------
        >>> labels = read_qrels(pl.DataFrame({"query_id": ["q"], "memory_id": ["a"], "relevance": [1]}))
        >>> moved = pl.DataFrame({"query_id": ["q", "q"], "memory_id": ["a", "b"], "relevance": [0, 1]})
        >>> labels.with_overrides(moved).key_memories["memory_id"].to_list()
        ['b']
        """
        new = read_qrels(corrections)
        kept = self.frame.join(new.frame, on=_KEY, how="anti", nulls_equal=True)
        same = self.frame.join(new.frame, on=[*_KEY, "relevance"], how="semi", nulls_equal=True).height
        return replace(
            self,
            frame=pl.concat([kept, new.frame]).sort(_KEY),
            source=self.source + new.source,
            overridden=self.overridden + new.frame.height - same,
        )


def read_qrels(source: str | PathLike[str] | pl.DataFrame) -> Qrels:
    """Read labels from a TREC qrels file or a frame.

    Parameters
    ----------
    source
        A file of lines ``query_id 0 memory_id relevance``, separated by blanks (or by tabs alone, where ids
        hold blanks); or a polars frame with ``memory_id``, ``query_id`` or ``scope`` or both, and
        ``relevance`` (1 where the column is absent).

    Returns
    -------
    Qrels
        Repeated lines are collapsed and counted.

    Raises
    ------
    DatasetError
        For a line or a frame that is no qrels, ids that are missing, or one label with two relevances.

    References
    ----------
    TREC's ``qrels`` format, as ``trec_eval`` reads it; relevances below 0 count as 0.

    Examples
    --------
    >>> labels = pl.DataFrame({"query_id": ["q1", "q1"], "memory_id": ["a", "a"]})
    >>> qrels = read_qrels(labels)
    >>> len(qrels), qrels.duplicates
    (1, 1)
    """
    if isinstance(source, pl.DataFrame):
        return _from_frame(source, "frame")
    path = Path(source)
    try:
        content = path.read_bytes()
        lines = content.decode("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DatasetError(f"cannot read qrels from {path.name}: {error}") from error
    rows = [_row(line, number, path.name) for number, line in enumerate(lines, 1) if line.strip()]
    frame = pl.DataFrame(
        rows, schema={"query_id": pl.String, "memory_id": pl.String, "relevance": pl.Int64}, orient="row"
    )
    return _from_frame(frame, f"{path.name} sha256:{hashlib.sha256(content).hexdigest()}")


def _row(line: str, number: int, name: str) -> tuple[str, str, int]:
    parts = line.split("\t") if line.count("\t") == 3 else line.split()
    try:
        query, _, memory, relevance = (part.strip() for part in parts)
        return query, memory, int(relevance)
    except ValueError:
        raise DatasetError(
            f"line {number} of {name} is {line!r}; a qrels line is 'query_id 0 memory_id relevance'"
        ) from None


def _from_frame(given: pl.DataFrame, source: str) -> Qrels:
    if "memory_id" not in given.columns or not {"query_id", "scope"} & set(given.columns):
        raise DatasetError(f"qrels have columns {given.columns}; they need memory_id, and query_id or scope")
    frame = given.select(
        *(
            pl.col(name).cast(dtype)
            if name in given.columns
            else pl.lit(1 if name == "relevance" else None, dtype).alias(name)
            for name, dtype in _SCHEMA.items()
        )
    ).with_columns(pl.col("relevance").clip(0))
    bare = frame.filter(
        pl.col("memory_id").is_null()
        | pl.col("relevance").is_null()
        | pl.all_horizontal(pl.col("query_id", "scope").is_null())
    )
    if bare.height:
        raise DatasetError(
            f"{bare.height} labels lack an id or a relevance; the first: {bare.row(0, named=True)}"
        )
    unique = frame.unique().sort(_KEY)
    torn = unique.filter(pl.struct(_KEY).is_duplicated())
    if torn.height:
        raise DatasetError(
            f"a label has two relevances, {torn['relevance'].to_list()[:2]}: {torn.row(0, named=True)}"
        )
    return Qrels(unique, (source,), frame.height - unique.height)
