"""Which memories a query needs: qrels, in the sense of TREC."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path

import polars as pl

from cmp.errors import DatasetError, InvalidIdError
from cmp.protocols import canonical_id

__all__ = ["Qrels", "read_qrels"]

_KEY = ["query_id", "scope", "memory_id"]
_SCHEMA = dict.fromkeys(_KEY, pl.String) | {"relevance": pl.Int64}


@dataclass(frozen=True, slots=True)
class Qrels:
    """Labels, one row per (query, scope, memory).

    Attributes
    ----------
    frame
        ``query_id`` (null where labels are by scope: then every query of it needs the memory), ``scope`` (null
        where not given), ``memory_id``, ``relevance`` (0: judged, and not needed; above 0: needed). Sorted.
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
            new row adds one. A frame or a file. One without a scope, as in a TREC file, is of the scope that its
            query's labels have.

        Raises
        ------
        DatasetError
            For a correction without a scope of a query that has labels in several.

        Examples
        --------
        >>> labels = read_qrels(pl.DataFrame({"query_id": ["q"], "memory_id": ["a"], "relevance": [1]}))
        >>> moved = pl.DataFrame({"query_id": ["q", "q"], "memory_id": ["a", "b"], "relevance": [0, 1]})
        >>> labels.with_overrides(moved).key_memories["memory_id"].to_list()
        ['b']
        """
        read = read_qrels(corrections)
        new = _in_the_scope_of_their_query(read.frame, self.frame)
        pair = ["query_id", "memory_id"]
        same_pair = self.frame.join(new.select(_KEY), on=pair, how="inner", nulls_equal=True)
        replaced = same_pair.filter(
            pl.col("scope").is_null() | pl.col("scope").eq_missing(pl.col("scope_right"))
        ).select(
            *pair, "scope", pl.col("scope_right").alias("new_scope"), pl.col("relevance").alias("before")
        )
        before = new.join(
            replaced.group_by(*pair, "new_scope").agg(pl.col("before").max()),
            left_on=_KEY,
            right_on=["query_id", "new_scope", "memory_id"],
            how="left",
            nulls_equal=True,
        )["before"].fill_null(0)
        kept = self.frame.join(replaced, on=_KEY, how="anti", nulls_equal=True)
        return replace(
            self,
            frame=pl.concat([kept, new]).sort(_KEY),
            source=self.source + read.source,
            overridden=self.overridden + int((before != new["relevance"]).sum()),
        )


def _in_the_scope_of_their_query(new: pl.DataFrame, old: pl.DataFrame) -> pl.DataFrame:
    """Give each correction without a scope the one scope of its query's labels."""
    homes = old.group_by("query_id").agg(pl.col("scope").drop_nulls().unique().sort().alias("homes"))
    found = new.join(homes, on="query_id", how="left", maintain_order="left")
    torn = found.filter(pl.col("scope").is_null() & (pl.col("homes").list.len() > 1))
    if torn.height:
        query, scopes = torn["query_id"][0], torn["homes"][0].head(2).to_list()
        raise DatasetError(
            f"{torn.height} corrections name no scope, and their queries have labels in several ({query!r} in "
            f"{', '.join(map(repr, scopes))}); give the corrections a scope column"
        )
    home = pl.col("homes").list.first()
    return found.with_columns(pl.coalesce("scope", home).alias("scope")).select(list(_SCHEMA))


def read_qrels(source: str | PathLike[str] | pl.DataFrame) -> Qrels:
    """Read labels from a TREC qrels file or a frame.

    Parameters
    ----------
    source
        A file of lines ``query_id 0 memory_id relevance``, separated by blanks (or by tabs alone, where ids
        hold blanks); or a polars frame with ``memory_id``, ``query_id`` or ``scope`` or both, and
        ``relevance`` (1 where the column is absent). Ids are strings or integers.

    Returns
    -------
    Qrels
        Repeated lines are collapsed and counted.

    Raises
    ------
    DatasetError
        For a line or a frame that is no qrels, ids that are missing or no ids, a relevance that is no whole
        number, or one label with two relevances.

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
        lines = content.decode("utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DatasetError(f"cannot read qrels from {path.name}: {error}") from error
    rows = [
        _row(line.rstrip("\r"), number, path.name) for number, line in enumerate(lines, 1) if line.strip()
    ]
    frame = pl.DataFrame(
        rows, schema={"query_id": pl.String, "memory_id": pl.String, "relevance": pl.Int64}, orient="row"
    )
    return _from_frame(frame, f"{path.name} sha256:{hashlib.sha256(content).hexdigest()}")


def _row(line: str, number: int, name: str) -> tuple[str, str, int]:
    try:
        query, _, memory, relevance = line.split("\t") if line.count("\t") == 3 else line.split()
        return canonical_id(query, "the query"), canonical_id(memory), _whole(relevance)
    except ValueError:
        raise DatasetError(
            f"line {number} of {name} is {line!r}; a qrels line is 'query_id 0 memory_id relevance', where the "
            "relevance is a whole number (of 64 bits) and no id is empty"
        ) from None


def _whole(text: str) -> int:
    number = int(text)
    if not -(2**63) <= number < 2**63:
        raise ValueError(text)
    return number


def _from_frame(given: pl.DataFrame, source: str) -> Qrels:
    if "memory_id" not in given.columns or not {"query_id", "scope"} & set(given.columns):
        raise DatasetError(f"qrels have columns {given.columns}; they need memory_id, and query_id or scope")
    frame = given.select(
        *(_ids(given, name) for name in _KEY),
        _relevances(given),
    )
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


def _ids(given: pl.DataFrame, name: str) -> pl.Series:
    """Return a column of ids as the log writes them, null where it is missing."""
    if name not in given.columns:
        return pl.Series(name, [None] * given.height, dtype=pl.String)
    column = given[name]
    if column.dtype == pl.String and not (column == "").any():
        return column
    try:
        ids = [
            None if value is None else canonical_id(value, f"label {row}") for row, value in enumerate(column)
        ]
    except InvalidIdError as error:
        raise DatasetError(f"the column {name} of the qrels holds no ids: {error}") from error
    return pl.Series(name, ids, dtype=pl.String)


def _relevances(given: pl.DataFrame) -> pl.Series:
    """Return whole relevances of at least 0, null where missing; 1 where there is no such column."""
    if "relevance" not in given.columns:
        return pl.Series("relevance", [1] * given.height, dtype=pl.Int64)
    column = given["relevance"]
    whole = column.cast(pl.Float64, strict=False).cast(pl.Int64, strict=False)
    exact = whole == column.cast(pl.Float64, strict=False)
    bad = (column.is_not_null() & ~exact.fill_null(False)).arg_true()
    if len(bad):
        raise DatasetError(
            f"the relevance of label {bad[0]} is {column[bad[0]]!r}; a relevance is a whole number: cut graded "
            "scores first"
        )
    return whole.clip(0).alias("relevance")
