"""Deletions that change nothing: the formula by enumeration, the measurement by the formula."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from math import sqrt

import polars as pl
import pytest

from cmp.evaluation.deletions import measure_unchanged, unchanged_share
from cmp.protocols import Scope
from cmp.retrievers import BM25

WORDS = [
    "amber",
    "birch",
    "cedar",
    "delta",
    "ember",
    "fjord",
    "grove",
    "heath",
    "inlet",
    "jetty",
    "knoll",
    "ledge",
]
STORE = {"s": {f"m{i}": f"{word} {WORDS[i - 1]} {WORDS[i - 2]}" for i, word in enumerate(WORDS)}}
QUERIES = pl.DataFrame({"scope": ["s"] * 4, "text": ["amber", "cedar heath", "inlet", "ledge grove"]})


def test_the_formula_counts_the_deletions_that_miss_the_top() -> None:
    for pool in range(1, 9):
        for deleted in range(pool + 1):
            for cutoff in range(1, 10):
                top = set(range(min(cutoff, pool)))
                draws = list(combinations(range(pool), deleted))
                missed = sum(top.isdisjoint(draw) for draw in draws)
                assert unchanged_share(pool, deleted, cutoff) == pytest.approx(missed / len(draws), rel=1e-15)


def test_a_tenth_of_a_hundred_memories_explains_the_published_share() -> None:
    assert round(unchanged_share(100, 10, 6), 5) == 0.52230
    with pytest.raises(ValueError, match="cannot delete 4 of 3"):
        unchanged_share(3, 4, 1)


def test_with_statistics_fixed_the_measured_share_is_the_formula() -> None:
    """Four queries a deletion are one cluster, so the bound is 4.9 standard errors of the draws alone.

    A normal mean leaves that band with probability 1e-6.
    """
    measured = measure_unchanged(BM25(STORE), QUERIES, [0.25], cutoff=3, draws=1_500, seed=11)
    shares = (measured["n_unchanged"] / measured["n_queries"]).to_numpy()
    expected = unchanged_share(12, 3, 3)
    assert measured["expected"].unique().to_list() == [expected]
    assert abs(shares.mean() - expected) < 4.9 * shares.std(ddof=1) / sqrt(len(shares))


def test_indexing_again_can_only_lose_more() -> None:
    def again(scope: Scope, ids: Sequence[str]) -> BM25:
        return BM25({scope.key: {id_: STORE[scope.key][id_] for id_ in ids}})

    store = BM25(STORE)
    fixed = measure_unchanged(store, QUERIES, [0.0, 0.25], cutoff=3, draws=40)
    moved = measure_unchanged(store, QUERIES, [0.0, 0.25], cutoff=3, draws=40, rebuild=again)
    assert (moved["n_unchanged"] <= fixed["n_unchanged"]).all()
    assert moved.drop("n_unchanged").equals(fixed.drop("n_unchanged"))


def test_a_share_keeps_its_draws_when_others_are_added() -> None:
    done: list[int] = []
    store = BM25(STORE)
    alone = measure_unchanged(store, QUERIES, [0.25], cutoff=3, draws=9, advance=done.append)
    among = measure_unchanged(store, QUERIES, [0.0, 0.5, 0.25], cutoff=3, draws=9)
    assert among.filter(pl.col("share") == 0.25).equals(alone)
    assert among.filter(pl.col("share") == 0.0)["n_deleted"].unique().to_list() == [1]
    assert sum(done) == 9
