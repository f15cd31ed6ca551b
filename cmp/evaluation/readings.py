"""What support needs to know, read from a retriever by asking it or from a log by looking."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import polars as pl
from numpy.typing import NDArray

from cmp.design.cards import CARD_PREFIX
from cmp.errors import GranularityError
from cmp.estimation.settled import LogFrames
from cmp.evaluation.placing import place_labels
from cmp.protocols import EVERYTHING, MemoryBackend, Scope

__all__ = ["Reading", "read_log", "read_retriever", "scope_of", "top_ids"]

_PAIR = ["query_id", "scope", "memory_id"]


@dataclass(frozen=True, slots=True)
class Reading:
    """Which queries were asked of which pools, and what came back.

    Attributes
    ----------
    queries : polars.DataFrame
        ``query_id, scope, category``, one row a query; the category is null where there is none.
    pool : polars.DataFrame
        ``scope, memory_id``, one row a memory.
    retrieved : polars.DataFrame
        ``query_id, scope, memory_id``, one row a memory in a query's top.
    pairs : polars.DataFrame
        ``query_id, scope, memory_id, category, rank``, one row a label; the rank is null where unknown.
    strays : polars.DataFrame
        ``query_id, scope, memory_id``: labels of memories that the pool does not hold.
    n_unasked : int
        Labels of queries that were not asked.
    """

    queries: pl.DataFrame
    pool: pl.DataFrame
    retrieved: pl.DataFrame
    pairs: pl.DataFrame
    strays: pl.DataFrame
    n_unasked: int


@runtime_checkable
class _Scoring(Protocol):
    def scores(self, query: Any, *, scope: Scope) -> NDArray[np.float64]: ...


def read_retriever(
    backend: MemoryBackend[Any],
    queries: pl.DataFrame,
    labels: pl.DataFrame | None,
    cutoff: int,
    advance: Callable[[int], None],
) -> Reading:
    """Ask every query, once, and rank its key memories."""
    asked = _queries(queries, needs=("query_id", "scope", "text"))
    pools = {
        key: list(backend.list_ids(scope=scope_of(key))) for key in asked["scope"].unique(maintain_order=True)
    }
    pool = _frame(["scope", "memory_id"], [(key, id_) for key, ids in pools.items() for id_ in ids])
    pairs, strays, unasked = _match(labels, asked, pool)
    keys = pairs.group_by("query_id", "scope").agg("memory_id")
    keys_of = {(query_id, scope): ids for query_id, scope, ids in keys.iter_rows()}
    retrieved: list[tuple[str, str, str]] = []
    ranks: list[tuple[str, str, str, float]] = []
    for query_id, scope, text in asked.select("query_id", "scope", "text").iter_rows():
        wanted = keys_of.get((query_id, scope), [])
        top, found = _ranking(backend, text, scope_of(scope), pools[scope], wanted, cutoff)
        retrieved += [(query_id, scope, id_) for id_ in top]
        ranks += [(query_id, scope, id_, rank) for id_, rank in zip(wanted, found, strict=True)]
        advance(1)
    rank_of = _frame(_PAIR, ranks, rank=pl.Float64)
    return Reading(
        queries=asked.select("query_id", "scope", "category"),
        pool=pool,
        retrieved=_frame(_PAIR, retrieved),
        pairs=pairs.join(rank_of, on=_PAIR, how="left", maintain_order="left"),
        strays=strays,
        n_unasked=unasked,
    )


def read_log(log: LogFrames, queries: pl.DataFrame | None, labels: pl.DataFrame | None) -> Reading:
    """Read what the ranker returned, withheld results included, in any round of each query."""
    name = pl.coalesce("group", "query_hash").alias("query_id")
    rounds = log.rounds().select("round_id", "scope", name).collect()
    asked = (
        rounds.filter(pl.col("query_id").is_not_null())
        .select("query_id", "scope")
        .unique(maintain_order=True)
    )
    if queries is None:
        asked = asked.with_columns(category=pl.lit(None, dtype=pl.String))
    else:
        known = _queries(queries, needs=("query_id", "scope"))
        asked = asked.join(
            known.select("query_id", "scope", "category"), on=["query_id", "scope"], how="left"
        )
    shown = log.exposures().select("round_id", "memory_id", "arm").collect().join(rounds, on="round_id")
    ranked = shown.filter(pl.col("arm").is_in(["ranked", "withheld"])).select(_PAIR)
    planned = (
        log.rosters()
        .select("block_id", "memory_id")
        .join(log.blocks().select("block_id", "scope"), on="block_id")
    )
    key = ["scope", "memory_id"]
    is_card = pl.col("memory_id").str.starts_with(CARD_PREFIX)  # drawn yet or not
    pool = pl.concat([planned.select(key).collect(), ranked.select(key)]).filter(~is_card).unique().sort(key)
    pairs, strays, unasked = _match(labels, asked, pool)
    return Reading(
        queries=asked,
        pool=pool,
        retrieved=ranked.unique(),
        pairs=pairs.with_columns(rank=pl.lit(None, dtype=pl.Float64)),
        strays=strays,
        n_unasked=unasked,
    )


def top_ids(backend: MemoryBackend[Any], query: Any, cutoff: int, *, scope: Scope) -> list[str]:
    """Return the ids of the first ``cutoff`` results, duplicates dropped."""
    return list(dict.fromkeys(hit.id for hit in backend.search(query, cutoff, scope=scope)))[:cutoff]


def scope_of(key: str) -> Scope:
    """Return the scope that a log or a frame writes as ``key``."""
    if key == EVERYTHING.key:
        return EVERYTHING
    if key.startswith("{"):
        try:
            value = json.loads(key)
        except ValueError:
            return Scope.of(key)
        return Scope.of(value) if isinstance(value, dict) else Scope.of(key)
    return Scope.of(key)


def _ranking(
    backend: MemoryBackend[Any],
    query: Any,
    scope: Scope,
    pool: Sequence[str],
    wanted: Sequence[str],
    cutoff: int,
) -> tuple[list[str], list[float]]:
    """Return the top of a ranking and the ranks of the wanted memories, all of which are in the pool."""
    top = top_ids(backend, query, cutoff, scope=scope)
    if isinstance(backend, _Scoring):
        if not wanted:
            return top, []
        scores = np.asarray(backend.scores(query, scope=scope))
        score_of = dict(zip(pool, scores.tolist(), strict=True))
        return top, [_midrank(scores, score_of[id_]) for id_ in wanted]
    deeper = [] if set(wanted) <= set(top) else top_ids(backend, query, len(pool), scope=scope)
    hits = list(dict.fromkeys([*top, *deeper]))  # a deeper search may order its head otherwise
    rank_of = {id_: float(rank) for rank, id_ in enumerate(hits, start=1)}
    unlisted = (len(hits) + 1 + len(pool)) / 2  # what the list leaves out is tied behind it
    return top, [rank_of.get(id_, unlisted) for id_ in wanted]


def _midrank(scores: NDArray[np.float64], score: float) -> float:
    return float((scores > score).sum() + ((scores == score).sum() + 1) / 2)


def _queries(frame: pl.DataFrame, needs: Sequence[str]) -> pl.DataFrame:
    missing = set(needs) - set(frame.columns)
    if missing:
        raise ValueError(f"the queries lack {sorted(missing)}; they have {frame.columns}")
    if "category" not in frame.columns:
        frame = frame.with_columns(category=pl.lit(None, dtype=pl.String))
    twice = frame.filter(frame.select("query_id", "scope").is_duplicated())
    if twice.height:
        raise ValueError(
            f"{twice.height} rows of queries share a query_id, the first {twice['query_id'][0]!r}"
        )
    return frame.with_columns(pl.col("category").cast(pl.String))


def _match(
    labels: pl.DataFrame | None, asked: pl.DataFrame, pool: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame, int]:
    """Split the labels: pairs to look for, labels of no memory of the pool, number of labels of no query."""
    if labels is None:
        empty = _frame(_PAIR, [])
        return empty.with_columns(category=pl.lit(None, dtype=pl.String)), empty, 0
    places = asked.select("query_id", "scope")
    placed = place_labels(labels, places, pool)
    if labels.height and not placed.n_placed:
        name = "scope" if labels["query_id"].is_null().all() else "query_id"
        raise GranularityError(
            f"none of the {labels.height} labels names a query that was asked (the first {name} is "
            f"{labels[name].drop_nulls().first()!r} there and {places[name].first()!r} here); label the same query_id, "
            "and for a log give it to retrieve() as group"
        )
    if labels.height and not placed.found.height:
        raise GranularityError(
            f"none of the {placed.n_placed} labels names a memory of the pool (the first is of "
            f"{placed.strays['memory_id'][0]!r}, the pool has {pool['memory_id'].first()!r}): sessions against "
            "turns, perhaps? Label the unit that is stored"
        )
    category = asked.select("query_id", "scope", "category")
    pairs = placed.found.join(category, on=["query_id", "scope"], how="left", maintain_order="left")
    return pairs.select(*_PAIR, "category"), placed.strays.select(_PAIR), placed.n_elsewhere


def _frame(columns: Sequence[str], rows: Sequence[Sequence[Any]], **more: Any) -> pl.DataFrame:
    schema: Mapping[str, Any] = dict.fromkeys(columns, pl.String) | more
    return pl.DataFrame(list(rows), schema=schema, orient="row")
