"""Small stores cut from large ones: the key memories of a few questions, and the hardest others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from cmp.errors import ScopeError
from cmp.protocols import Hit, Scope, ScopeLike
from cmp.retrievers.memories import ScoringBackend, StoredMemory

__all__ = ["Pool", "Pooled", "Pools", "cut_pools"]


@dataclass(frozen=True, slots=True)
class Pool:
    """A store cut from another: the scope it was cut from, and the ids kept."""

    scope: Scope
    ids: tuple[str, ...]


class Pools(NamedTuple):
    """Pools by name; the questions and labels that fit them, whose ``scope`` is the pool; questions left out."""

    pools: dict[str, Pool]
    questions: pl.DataFrame
    qrels: pl.DataFrame
    left_out: int


def cut_pools(
    base: ScoringBackend,
    questions: pl.DataFrame,
    qrels: pl.DataFrame,
    *,
    size: int,
    questions_per_pool: int = 5,
) -> Pools:
    """Cut pools of ``size`` memories, each for a few consecutive questions of one scope.

    A pool holds the key memories of its questions and, in turn for each of them, the best of the others by the
    base ranking. What the base retriever shows for a question from its whole store is then what it shows from the
    pool, so that a key memory it never reaches stays unreached.

    Parameters
    ----------
    base
        A retriever with scores, over the whole stores.
    questions
        ``query_id, scope, text``. Those without a key memory, or with more than a quarter of ``size``, are left out
        and counted.
    qrels
        ``query_id, memory_id``.
    size, questions_per_pool
        Memories in a pool (fewer where the store holds fewer), and questions that share it.

    Examples
    --------
    >>> from cmp.retrievers import BM25
    >>> base = BM25({"ann": {f"m{i}": f"word{i}" for i in range(9)}})
    >>> questions = pl.DataFrame({"query_id": ["q1"], "scope": ["ann"], "text": ["word3 word5"]})
    >>> cut = cut_pools(base, questions, pl.DataFrame({"query_id": ["q1"], "memory_id": ["m8"]}), size=4)
    >>> cut.pools["ann/00"].ids
    ('m0', 'm3', 'm5', 'm8')
    """
    keys = dict(qrels.group_by("query_id").agg("memory_id").iter_rows())
    usable = questions.filter(
        pl.Series(
            [0 < len(keys.get(query_id, ())) <= max(1, size // 4) for query_id in questions["query_id"]]
        )
    )
    pools: dict[str, Pool] = {}
    scope_of: dict[str, str] = {}
    for (scope,), asked in usable.group_by("scope", maintain_order=True):
        for number, part in enumerate(asked.iter_slices(questions_per_pool)):
            name = f"{scope}/{number:02}"
            pools[name] = Pool(Scope.of(str(scope)), _kept(base, part, keys, str(scope), size))
            scope_of.update(dict.fromkeys(part["query_id"], name))
    placed = pl.DataFrame(
        {"query_id": list(scope_of), "scope": list(scope_of.values())}, schema_overrides=_TEXT
    )
    return Pools(
        pools,
        usable.drop("scope").join(placed, on="query_id", how="left", maintain_order="left"),
        qrels.drop("scope", strict=False).join(placed, on="query_id", maintain_order="left"),
        questions.height - usable.height,
    )


_TEXT: dict[str, Any] = {"query_id": pl.String, "scope": pl.String}


def _kept(
    base: ScoringBackend, asked: pl.DataFrame, keys: Mapping[str, Sequence[str]], scope: str, size: int
) -> tuple[str, ...]:
    listed = base.list_ids(scope=scope)
    kept = {memory_id for query_id in asked["query_id"] for memory_id in keys[query_id]}
    for memory_id in _in_turn([_ranked(base, text, scope, listed) for text in asked["text"]]):
        if len(kept) >= size:
            break
        kept.add(memory_id)
    return tuple(memory_id for memory_id in listed if memory_id in kept)


def _ranked(base: ScoringBackend, text: str, scope: str, listed: Sequence[str]) -> list[str]:
    return [listed[place] for place in np.argsort(-base.scores(text, scope=scope), kind="stable")]


def _in_turn(rankings: Sequence[Sequence[str]]) -> Iterator[str]:
    for level in zip_longest(*rankings):
        yield from level


class Pooled:
    """A :class:`~cmp.protocols.MemoryBackend` over pools, ranked by the base retriever's scores.

    Its scopes are the names of the pools.

    Examples
    --------
    >>> from cmp.retrievers import BM25
    >>> base = BM25({"ann": {f"m{i}": f"word{i}" for i in range(9)}})
    >>> pooled = Pooled(base, {"small": Pool(Scope.of("ann"), ("m0", "m3"))})
    >>> [hit.id for hit in pooled.search("word3 word5", 6, scope="small")]
    ['m3', 'm0']
    """

    def __init__(self, base: ScoringBackend, pools: Mapping[str, Pool]) -> None:
        self._base = base
        self._pools = dict(pools)
        self._rankings: dict[tuple[str, str], tuple[tuple[str, float], ...]] = {}

    def search(self, query: str, n: int, *, scope: ScopeLike) -> list[Hit[StoredMemory]]:
        """Return the ``n`` best memories of the pool."""
        pool = self._in(scope)
        ranked = self._ranking(query, Scope.of(scope).key, pool)[:n]
        found = self._base.get([memory_id for memory_id, _ in ranked], scope=pool.scope)
        return [Hit(memory_id, found[memory_id].item, score) for memory_id, score in ranked]

    def list_ids(self, *, scope: ScopeLike) -> list[str]:
        """Return the ids of the pool, in the order of the whole store."""
        return list(self._in(scope).ids)

    def get(self, ids: Sequence[str], *, scope: ScopeLike) -> dict[str, Hit[StoredMemory]]:
        """Return the memories of the pool among ``ids``."""
        pool = self._in(scope)
        return self._base.get([memory_id for memory_id in ids if memory_id in pool.ids], scope=pool.scope)

    def scores(self, query: str, *, scope: ScopeLike) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Return the base retriever's scores, aligned with :meth:`list_ids`."""
        pool = self._in(scope)
        by_id = dict(self._ranking(query, Scope.of(scope).key, pool))
        return np.array([by_id[memory_id] for memory_id in pool.ids])

    def _ranking(self, query: str, key: str, pool: Pool) -> tuple[tuple[str, float], ...]:
        """Rank a pool; kept, since a question is asked many times."""
        found = self._rankings.get((key, query))
        if found is None:
            kept = set(pool.ids)
            listed = self._base.list_ids(scope=pool.scope)
            scores = self._base.scores(query, scope=pool.scope)
            order = np.argsort(-scores, kind="stable")
            found = tuple((listed[place], float(scores[place])) for place in order if listed[place] in kept)
            self._rankings[key, query] = found
        return found

    def _in(self, scope: ScopeLike) -> Pool:
        key = Scope.of(scope).key
        try:
            return self._pools[key]
        except KeyError:
            raise ScopeError(f"there is no pool {key!r}; the scopes are the names of the pools") from None
