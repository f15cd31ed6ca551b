"""Pools cut from a store rank as the whole store does, and keep their scopes apart."""

from __future__ import annotations

import polars as pl
import pytest

from cmp.errors import ScopeError
from cmp.protocols import MemoryBackend
from cmp.retrievers import BM25, Pooled, cut_pools

TEXTS = {f"m{i:02}": f"word{i} common" for i in range(40)}
QUESTIONS = pl.DataFrame(
    {
        "query_id": ["q1", "q2", "q3", "q4", "q5"],
        "scope": ["a", "a", "a", "b", "a"],
        "text": ["word1 word2", "word3", "word4", "word5", "word6"],
    }
)
QRELS = pl.DataFrame(
    {
        "query_id": ["q1", "q2", "q4", *["q5"] * 9],
        "scope": ["a", "a", "b", *["a"] * 9],
        "memory_id": ["m30", "m03", "m05", *[f"m{i:02}" for i in range(9)]],
    }
)


@pytest.fixture(scope="module")
def base():
    return BM25({"a": TEXTS, "b": TEXTS})


def test_pools_hold_the_keys_and_the_best_of_the_others(base):
    cut = cut_pools(base, QUESTIONS, QRELS, size=8)
    assert cut.left_out == 2  # q3 has no key memory, q5 more than a quarter of a pool
    assert {name: len(pool.ids) for name, pool in cut.pools.items()} == {"a/00": 8, "b/00": 8}
    assert {"m30", "m03", "m01", "m02"} <= set(cut.pools["a/00"].ids)
    assert cut.questions["scope"].to_list() == ["a/00", "a/00", "b/00"]
    assert cut.qrels.filter(pl.col("scope") == "a/00")["memory_id"].to_list() == ["m30", "m03"]


def test_a_pool_ranks_as_the_whole_store_does(base):
    cut = cut_pools(base, QUESTIONS, QRELS, size=12)
    pooled = Pooled(base, cut.pools)
    assert isinstance(pooled, MemoryBackend)
    for query in ("word1 word2", "word3"):
        whole = [hit.id for hit in base.search(query, 40, scope="a") if hit.id in cut.pools["a/00"].ids]
        hits = pooled.search(query, 40, scope="a/00")
        assert [hit.id for hit in hits] == whole
        scores = dict(zip(pooled.list_ids(scope="a/00"), pooled.scores(query, scope="a/00"), strict=True))
        assert {hit.id: hit.score for hit in hits} == scores


def test_a_pool_gives_none_of_the_memories_outside_it(base):
    pooled = Pooled(base, cut_pools(base, QUESTIONS, QRELS, size=8).pools)
    outside = [memory_id for memory_id in TEXTS if memory_id not in pooled.list_ids(scope="a/00")]
    assert pooled.get([*outside, "m30"], scope="a/00").keys() == {"m30"}
    with pytest.raises(ScopeError, match="no pool 'a'"):
        pooled.search("word1", 3, scope="a")
