"""Support: which memories the ranker ever reaches. Needs no outcome and no model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from cmp.estimation.one_moment import at_one_moment
from cmp.evaluation.qrels import Qrels, read_qrels
from cmp.evaluation.readings import Reading, read_log, read_retriever
from cmp.protocols import MemoryBackend

if TYPE_CHECKING:
    from cmp.log.reading import Log

__all__ = ["SupportReport", "support"]


@dataclass(frozen=True, slots=True)
class SupportReport:
    """What a ranker reaches.

    Attributes
    ----------
    overview : polars.DataFrame
        One row for all queries (``category = "all"``), then one a category. ``n_queries`` and, of these,
        ``n_labelled`` that have a key memory; ``n_keys``, the key memories of the row's queries, each
        counted once. ``never_own = n_never_own / n_keys``: in the top of none of the row's queries that
        need it. ``never_any = n_never_any / n_keys``: in the top of no query at all, whatever its category;
        it falls as queries are added, so read it beside ``n_queries_asked``, the queries of all categories.
        ``any_key_recall`` and ``all_key_recall``: shares of ``n_labelled`` with one, with every key in the
        top (``n_any_key``, ``n_all_key``). ``n_missed`` of ``n_pairs`` (query, key) pairs have the key
        outside the top; ``median_rank_missed``, ``median_share_missed`` (rank over pool size) and
        ``median_pool`` are over those. Ranks start at 1, equal scores share their mean rank, and a log
        knows none: null.
    memories : polars.DataFrame
        ``scope, memory_id, n_queries`` (that retrieved it), ``n_needing, n_own`` (that need it; that need it
        and retrieved it).
    pairs : polars.DataFrame
        ``query_id, scope, memory_id, category, retrieved, rank, pool``, one row a label.
    strays : polars.DataFrame
        ``query_id, scope, memory_id``: labels of asked queries whose memory is not in the pool. In no share.
    n_unasked : int
        Labels of queries that were not asked. In no share.
    cutoff : int or None
        How many results count as retrieved; None for a log, where it is what each round served.
    """

    overview: pl.DataFrame
    memories: pl.DataFrame
    pairs: pl.DataFrame
    strays: pl.DataFrame
    n_unasked: int
    cutoff: int | None

    @property
    def never_own(self) -> float | None:
        """Share of key memories that none of the queries needing them retrieves; None without labels."""
        value: float | None = self.overview["never_own"][0]
        return value

    @property
    def never_any(self) -> float | None:
        """Share of key memories that no query retrieves; None without labels."""
        value: float | None = self.overview["never_any"][0]
        return value

    @property
    def never_retrieved(self) -> float | None:
        """Share of all memories, key or not, that no query retrieves; None for an empty pool."""
        return _share(self._n_never_retrieved, self.memories.height)

    @property
    def _n_never_retrieved(self) -> int:
        return self.memories.filter(pl.col("n_queries") == 0).height

    def summary(self) -> str:
        """Return the report in a few lines, never own first, every share with its count and denominator."""
        row = self.overview.row(0, named=True)
        top = "the ranked part" if self.cutoff is None else f"the top {self.cutoff}"
        scopes = self.memories["scope"].n_unique()
        lines = [
            f"Support: {self.memories.height:,} memories in {scopes:,} scope(s), "
            f"{row['n_queries']:,} queries, {row['n_labelled']:,} of them with a key memory"
        ]
        if row["n_keys"]:
            lines += _label_lines(row, top)
            lines += [f"  {_category_line(other)}" for other in self.overview.rows(named=True)[1:]]
        lines.append(
            f"never retrieved {_percent(self.never_retrieved)}: {self._n_never_retrieved:,} of "
            f"{self.memories.height:,} memories, key or not, are in {top} of no query"
        )
        if self.strays.height or self.n_unasked:
            lines.append(
                f"left out: {self.strays.height:,} labels of memories not in the pool, "
                f"{self.n_unasked:,} labels of queries not asked"
            )
        return "\n".join(lines)


def support(
    source: MemoryBackend[Any] | Log,
    queries: pl.DataFrame | None = None,
    qrels: Any = None,
    *,
    cutoff: int | None = None,
    advance: Callable[[int], None] | None = None,
) -> SupportReport:
    """Report which memories a ranker reaches, and which of the memories that queries need it never does.

    What the ranker never shows has no contrast: its utility is unidentified, not zero. Random slots or
    withholding would have to show it.

    Parameters
    ----------
    source
        A :class:`~cmp.protocols.MemoryBackend`, asked every query here; or an exposure log, whose ranked
        (and withheld) rows say what was ranked. One that also has ``scores(query, *, scope)`` gets
        mid-ranks for ties.
    queries
        ``query_id, scope, text`` and perhaps ``category``. A log needs it only for the categories; its
        queries are the rounds' ``group``, or ``query_hash`` where there is none.
    qrels
        Key-memory labels, as :func:`~cmp.evaluation.read_qrels` reads them (a frame or a file too); a relevance of 0
        or less is no label, and a label of a scope alone is of each of its queries. None reports on the memories
        alone.
    cutoff
        Results that count as retrieved; 6 by default. A log has its own.
    advance
        Called with 1 after each query that a retriever has answered, for a progress bar.

    Raises
    ------
    GranularityError
        Where not one label names a memory of the pool, not one names a query, or labels without a scope fit
        memories of several.
    ValueError
        Where a retriever comes without queries, ``cutoff`` is not positive or comes with a log, or a frame
        lacks a column.

    Examples
    --------
    >>> import polars as pl
    >>> from cmp.retrievers import BM25
    >>> store = BM25({"ann": {"m1": "allergic to walnuts", "m2": "commutes by tram", "m3": "swims"}})
    >>> texts = ["Is there a tram to work?", "Which cake after she swims?"]
    >>> queries = pl.DataFrame({"query_id": ["q1", "q2"], "scope": "ann", "text": texts})
    >>> qrels = pl.DataFrame({"query_id": ["q1", "q2"], "memory_id": ["m2", "m1"]})
    >>> report = support(store, queries, qrels, cutoff=1)
    >>> report.never_own, report.never_any
    (0.5, 0.5)
    """
    labels = None if qrels is None else _labels(qrels)
    if isinstance(source, MemoryBackend):
        if queries is None:
            raise ValueError(
                "a retriever is asked queries: pass queries, a frame of query_id, scope and text"
            )
        size = 6 if cutoff is None else cutoff
        if size < 1:
            raise ValueError(f"cutoff is {size}; at least one result counts as retrieved")
        return _report(read_retriever(source, queries, labels, size, advance or (lambda _: None)), size)
    if not all(hasattr(source, table) for table in ("rounds", "exposures", "blocks", "rosters")):
        raise TypeError(
            f"support takes a memory backend (search, list_ids, get) or a log, not {type(source).__name__}"
        )
    if cutoff is not None:
        raise ValueError("a log holds what each round ranked, and no further: leave cutoff out")
    with at_one_moment(source) as now:
        return _report(read_log(now, queries, labels), None)


def _labels(qrels: Any) -> pl.DataFrame:
    known = qrels if isinstance(qrels, Qrels) else read_qrels(getattr(qrels, "frame", qrels))
    return known.key_memories


def _report(reading: Reading, cutoff: int | None) -> SupportReport:
    key = ["query_id", "scope", "memory_id"]
    pairs = reading.pairs.join(
        reading.retrieved.with_columns(retrieved=True), on=key, how="left", maintain_order="left"
    ).with_columns(pl.col("retrieved").fill_null(value=False))
    pool = reading.pool.group_by("scope").len("pool")
    pairs = pairs.join(pool, on="scope", how="left", maintain_order="left").select(
        *key, "category", "retrieved", "rank", "pool"
    )
    memories = _reached(reading, pairs)
    names = [name for name in reading.queries["category"].unique().sort().to_list() if name is not None]
    rows = [_row("all", reading.queries, pairs, memories)]
    for name in names:
        asked = reading.queries.filter(pl.col("category") == name)
        rows.append(_row(name, asked, pairs.filter(pl.col("category") == name), memories))
    overview = pl.DataFrame(rows, schema=_OVERVIEW).with_columns(
        n_queries_asked=pl.lit(reading.queries.height, dtype=pl.Int64)
    )
    return SupportReport(overview, memories, pairs, reading.strays, reading.n_unasked, cutoff)


def _reached(reading: Reading, pairs: pl.DataFrame) -> pl.DataFrame:
    key = ["scope", "memory_id"]
    hits = reading.retrieved.group_by(key).len("n_queries")
    needs = pairs.group_by(key).agg(pl.len().alias("n_needing"), pl.col("retrieved").sum().alias("n_own"))
    joined = reading.pool.join(hits, on=key, how="left", maintain_order="left")
    joined = joined.join(needs, on=key, how="left", maintain_order="left")
    return joined.with_columns(pl.col("n_queries", "n_needing", "n_own").cast(pl.Int64).fill_null(0))


_OVERVIEW: dict[str, Any] = {
    "category": pl.String,
    "n_queries": pl.Int64,
    "n_labelled": pl.Int64,
    "n_keys": pl.Int64,
    "n_never_own": pl.Int64,
    "never_own": pl.Float64,
    "n_never_any": pl.Int64,
    "never_any": pl.Float64,
    "n_any_key": pl.Int64,
    "any_key_recall": pl.Float64,
    "n_all_key": pl.Int64,
    "all_key_recall": pl.Float64,
    "n_pairs": pl.Int64,
    "n_missed": pl.Int64,
    "median_rank_missed": pl.Float64,
    "median_share_missed": pl.Float64,
    "median_pool": pl.Float64,
}


def _row(name: str, queries: pl.DataFrame, pairs: pl.DataFrame, memories: pl.DataFrame) -> dict[str, Any]:
    keys = (
        pairs.group_by("scope", "memory_id")
        .agg(pl.col("retrieved").any())
        .join(memories, on=["scope", "memory_id"])
    )
    labelled = pairs.group_by("query_id", "scope").agg(
        any=pl.col("retrieved").any(), all=pl.col("retrieved").all()
    )
    missed = pairs.filter(~pl.col("retrieved"))
    never_own = keys.filter(~pl.col("retrieved")).height
    never_any = keys.filter(pl.col("n_queries") == 0).height
    n_any, n_all = int(labelled["any"].sum()), int(labelled["all"].sum())
    return {
        "category": name,
        "n_queries": queries.height,
        "n_labelled": labelled.height,
        "n_keys": keys.height,
        "n_never_own": never_own,
        "never_own": _share(never_own, keys.height),
        "n_never_any": never_any,
        "never_any": _share(never_any, keys.height),
        "n_any_key": n_any,
        "any_key_recall": _share(n_any, labelled.height),
        "n_all_key": n_all,
        "all_key_recall": _share(n_all, labelled.height),
        "n_pairs": pairs.height,
        "n_missed": missed.height,
        "median_rank_missed": missed["rank"].median(),
        "median_share_missed": (missed["rank"] / missed["pool"]).median(),
        "median_pool": missed["pool"].median(),
    }


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _percent(share: float | None) -> str:
    return "undefined" if share is None else f"{100 * share:.1f} %"


def _label_lines(row: dict[str, Any], top: str) -> list[str]:
    keys, pool = f"{row['n_keys']:,}", row["median_pool"]
    where = "ranks unknown"
    if row["median_rank_missed"] is not None:
        share = _percent(row["median_share_missed"])
        where = f"median rank {row['median_rank_missed']:,g} of {pool:,g} ({share} of the pool)"
    return [
        f"never own {_percent(row['never_own'])}: {row['n_never_own']:,} of {keys} key memories are in "
        f"{top} of none of the queries that need them",
        f"never any {_percent(row['never_any'])}: {row['n_never_any']:,} of {keys} are in {top} of "
        f"none of all {row['n_queries_asked']:,} queries",
        f"missed evidence: {row['n_missed']:,} of {row['n_pairs']:,} (query, key) pairs, {where}",
        f"any key in {top}: {_percent(row['any_key_recall'])} of {row['n_labelled']:,} queries; every key: "
        f"{_percent(row['all_key_recall'])}",
    ]


def _category_line(row: dict[str, Any]) -> str:
    own, any_query, recall = (_percent(row[name]) for name in ("never_own", "never_any", "any_key_recall"))
    return (
        f"{row['category']}: never own {own} of {row['n_keys']:,}, never any {any_query}, "
        f"any key {recall} of {row['n_labelled']:,} queries"
    )
