"""Why ablating the store says little: most deletions never reach the retrieved set."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from math import comb
from typing import Any

import numpy as np
import polars as pl

from cmp.evaluation.readings import scope_of, top_ids
from cmp.protocols import MemoryBackend, Scope

__all__ = ["measure_unchanged", "unchanged_share"]


def unchanged_share(pool: int, deleted: int, cutoff: int) -> float:
    """Return the probability that random deletions leave a deterministic top-``cutoff`` as it was.

    The deletion must miss all of the top: ``C(N - m, k) / C(N, k)``, hypergeometric, whatever the retriever
    and the query. It carries no information about any memory's use.

    Parameters
    ----------
    pool, deleted, cutoff
        Memories in the store, how many of them are deleted, and how many results are retrieved.

    Raises
    ------
    ValueError
        Where one is negative or more are deleted than there are.

    Examples
    --------
    >>> round(unchanged_share(100, 10, 6), 5)
    0.5223
    """
    if not (0 <= deleted <= pool and cutoff >= 0):
        raise ValueError(f"cannot delete {deleted} of {pool} memories and retrieve {cutoff}")
    top = min(cutoff, pool)
    return comb(pool - deleted, top) / comb(pool, top)


def measure_unchanged(
    backend: MemoryBackend[Any],
    queries: pl.DataFrame,
    shares: Sequence[float],
    *,
    cutoff: int = 6,
    draws: int = 20,
    seed: int = 0,
    rebuild: Callable[[Scope, Sequence[str]], MemoryBackend[Any]] | None = None,
    advance: Callable[[int], None] | None = None,
) -> pl.DataFrame:
    """Delete memories at random and count the queries whose retrieved set stays as it was.

    With ``rebuild`` the survivors are ranked by the retriever that it makes of them, whose statistics may
    have moved (BM25's document frequencies and mean length). Without it their scores are held fixed, so
    that the set changes exactly where a retrieved memory was deleted.

    Parameters
    ----------
    backend
        The retriever over the whole store.
    queries
        ``scope, text``.
    shares
        Shares of each scope's memories to delete, rounded to whole memories, at least one.
    draws
        Deletions drawn for each scope and share.
    seed
        Seed; each (scope, number deleted) draws from a stream of its own, the same with and without
        ``rebuild``.
    rebuild
        ``rebuild(scope, survivors)`` returns a retriever over the surviving ids, in pool order.
    advance
        Called with 1 after each draw.

    Returns
    -------
    One row a deletion: ``scope, share, draw, pool, n_deleted, n_queries, n_unchanged, expected``, where
    ``n_unchanged`` counts the queries whose set stayed and ``expected`` is :func:`unchanged_share`. The
    queries of one row share its deletion: they are a cluster, not so many independent trials.

    Examples
    --------
    >>> import polars as pl
    >>> from cmp.retrievers import BM25
    >>> store = BM25({"s": {f"m{i}": f"word{i}" for i in range(20)}})
    >>> queries = pl.DataFrame({"scope": ["s"], "text": ["word3"]})
    >>> deletions = measure_unchanged(store, queries, [0.5], cutoff=1, draws=2000)
    >>> round(deletions["n_unchanged"].mean(), 1), deletions["expected"][0]
    (0.5, 0.5)
    """
    rows = []
    for key, asked in queries.group_by("scope", maintain_order=True):
        scope = scope_of(str(key[0]))
        ids = list(backend.list_ids(scope=scope))
        texts = asked["text"].to_list()
        tops = _tops(backend, texts, cutoff, scope)
        for share in shares:
            deleted = min(len(ids), max(1, round(share * len(ids))))
            stream = _stream(seed, scope.key, deleted)
            expected = unchanged_share(len(ids), deleted, cutoff)
            for draw in range(draws):
                gone = {ids[place] for place in stream.choice(len(ids), size=deleted, replace=False)}
                if rebuild is None:
                    unchanged = sum(top.isdisjoint(gone) for top in tops)
                else:
                    after = _tops(
                        rebuild(scope, [id_ for id_ in ids if id_ not in gone]), texts, cutoff, scope
                    )
                    unchanged = sum(before == now for before, now in zip(tops, after, strict=True))
                rows.append((scope.key, share, draw, len(ids), deleted, len(texts), unchanged, expected))
                if advance is not None:
                    advance(1)
    return pl.DataFrame(rows, schema=_SCHEMA, orient="row")


_SCHEMA: dict[str, Any] = {
    "scope": pl.String,
    "share": pl.Float64,
    "draw": pl.Int64,
    "pool": pl.Int64,
    "n_deleted": pl.Int64,
    "n_queries": pl.Int64,
    "n_unchanged": pl.Int64,
    "expected": pl.Float64,
}


def _tops(
    backend: MemoryBackend[Any], texts: Sequence[str], cutoff: int, scope: Scope
) -> list[frozenset[str]]:
    return [frozenset(top_ids(backend, text, cutoff, scope=scope)) for text in texts]


def _stream(seed: int, scope: str, deleted: int) -> np.random.Generator:
    digest = hashlib.sha256(f"{seed}\0{scope}\0{deleted}".encode()).digest()
    return np.random.default_rng(int.from_bytes(digest, "big"))
