"""Fusion and best parts: the formulas by hand."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from cmp.errors import ScopeError
from cmp.protocols import MemoryBackend, ScopeLike
from cmp.retrievers import BestPart, Fused, ScoringBackend


class Fixed(ScoringBackend):
    """A retriever whose scores are given."""

    def __init__(self, scores: dict[str, float]) -> None:
        super().__init__({"s": dict.fromkeys(scores, "")})
        self.given = scores

    def scores(self, query: str, *, scope: ScopeLike) -> NDArray[np.float64]:
        return np.array([self.given[id_] for id_ in self.list_ids(scope=scope)])


def test_reciprocal_ranks_are_summed_over_full_rankings() -> None:
    fused = Fused([Fixed({"a": 3, "b": 2, "c": 1}), Fixed({"c": 9, "a": 5, "b": 1})], constant=60)
    expected = [1 / 61 + 1 / 62, 1 / 62 + 1 / 63, 1 / 63 + 1 / 61]
    assert fused.scores("", scope="s").tolist() == pytest.approx(expected, rel=1e-15)
    assert [hit.id for hit in fused.search("", 3, scope="s")] == ["a", "c", "b"]
    assert isinstance(fused, MemoryBackend)


def test_what_a_retriever_knows_nothing_of_is_tied_and_not_in_pool_order() -> None:
    fused = Fused([Fixed({"a": 0, "b": 0, "c": 7}), Fixed({"a": 1, "b": 2, "c": 0})])
    scores = fused.scores("", scope="s")
    assert scores[1] - scores[0] == pytest.approx(1 / 61 - 1 / 62)


def test_retrievers_over_different_memories_are_not_fused() -> None:
    with pytest.raises(ScopeError, match="1 are only in the first, 1 only in another"):
        Fused([Fixed({"a": 1, "b": 1}), Fixed({"a": 1, "c": 1})])
    with pytest.raises(ValueError, match="at least two"):
        Fused([Fixed({"a": 1})])
    with pytest.raises(ValueError, match="constant"):
        Fused([Fixed({"a": 1}), Fixed({"a": 1})], constant=float("nan"))


def test_a_memory_scores_as_its_best_part() -> None:
    parts = Fixed({"p1": 1, "p2": 5, "p3": 3})
    store = BestPart({"s": {"a": "", "b": "", "c": ""}}, parts, {"s": {"p1": "a", "p2": "b", "p3": "a"}})
    assert store.scores("", scope="s").tolist() == [3.0, 5.0, -np.inf]
    assert [hit.id for hit in store.search("", 3, scope="s")] == ["b", "a", "c"]
    assert store.rank_of("", ["c"], scope="s").tolist() == [3.0]


def test_a_part_of_no_memory_is_an_error() -> None:
    with pytest.raises(ScopeError, match=r"1 parts .*'p2'"):
        BestPart({"s": {"a": ""}}, Fixed({"p1": 1, "p2": 5}), {"s": {"p1": "a"}})
