"""BM25: the formula by hand, and what a small store may ask of it."""

from __future__ import annotations

from math import log

import numpy as np
import polars as pl
import pytest

from cmp.errors import InvalidIdError, ScopeError
from cmp.protocols import EVERYTHING, MemoryBackend, Scope
from cmp.retrievers import BM25

#: The index keeps scores in single precision.
SINGLE = 1e-5

STORE = {
    "ann": {
        "m1": "walnuts make ann ill",
        "m2": "ann commutes by tram tram tram",
        "m3": "the choir sings on monday evenings in town",
    },
    "bob": {"m1": "bob owns a tram ticket", "b2": "bob bakes"},
}


def by_hand(corpus: list[list[str]], query: list[str], k1: float, b: float) -> list[float]:
    """Robertson and Zaragoza (2009), eq. 3.15, with Lucene's idf ln(1 + (N - n + 0.5) / (n + 0.5))."""
    n_docs, mean = len(corpus), sum(map(len, corpus)) / len(corpus)
    scores = []
    for words in corpus:
        score = 0.0
        for word in query:
            n = sum(word in other for other in corpus)
            tf = words.count(word)
            idf = log(1 + (n_docs - n + 0.5) / (n + 0.5))
            score += idf * tf / (tf + k1 * (1 - b + b * len(words) / mean))
        scores.append(score)
    return scores


@pytest.mark.parametrize(("k1", "b"), [(1.5, 0.75), (1.2, 0.0), (0.01, 1.0)])
def test_scores_are_those_of_the_formula(k1: float, b: float) -> None:
    texts = {"a": "tram tram walnut", "b": "walnut choir monday evening", "c": "ticket"}
    store = BM25({"s": texts}, stem=False, k1=k1, b=b)
    expected = by_hand([text.split() for text in texts.values()], ["tram", "walnut"], k1, b)
    assert store.scores("walnut tram", scope="s") == pytest.approx(expected, abs=SINGLE)


def test_stemming_joins_the_forms_of_a_word() -> None:
    query = "singing"
    assert BM25(STORE).scores(query, scope="ann").argmax() == 2
    assert not BM25(STORE, stem=False).scores(query, scope="ann").any()


def test_a_query_without_a_known_word_falls_back_to_the_pool_order() -> None:
    store = BM25(STORE)
    for query in ("zebra", "", "the", "?!"):
        hits = store.search(query, 2, scope="ann")
        assert [(hit.id, hit.score) for hit in hits] == [("m1", 0.0), ("m2", 0.0)]


def test_equal_scores_keep_the_pool_order() -> None:
    store = BM25({"s": {f"m{i}": "tea" for i in (3, 1, 2)}})
    assert [hit.id for hit in store.search("tea", 3, scope="s")] == ["m3", "m1", "m2"]


def test_another_scope_is_neither_returned_nor_counted_in_the_statistics() -> None:
    alone = BM25({"ann": STORE["ann"]})
    both = BM25(STORE)
    assert np.array_equal(alone.scores("tram", scope="ann"), both.scores("tram", scope="ann"))
    assert [hit.item.scope for hit in both.search("tram", 9, scope="bob")] == ["bob", "bob"]
    assert list(both.get(["b2", "m1", "gone"], scope="ann")) == ["m1"]


def test_an_unknown_scope_is_an_error_that_says_what_is_there() -> None:
    with pytest.raises(ScopeError, match=r"no scope 'eve' .*'ann', 'bob'"):
        BM25(STORE).search("tram", 1, scope="eve")


def test_a_store_without_any_word_ranks_nothing_above_anything() -> None:
    store = BM25({"s": {"a": "", "b": "?"}, "empty": {}})
    assert store.scores("tea", scope="s").tolist() == [0.0, 0.0]
    assert store.search("tea", 3, scope="empty") == []


def test_it_is_a_memory_backend_under_every_kind_of_scope() -> None:
    tenant = {"app": "mail", "user": "7"}
    store = BM25({Scope.of(tenant).key: {"a": "tea"}, EVERYTHING.key: {"b": "tea"}})
    assert isinstance(store, MemoryBackend)
    assert store.list_ids(scope=tenant) == ["a"]
    assert store.search("tea", 1, scope=EVERYTHING)[0].item.text == "tea"


def test_a_frame_and_a_mapping_make_the_same_retriever() -> None:
    rows = [(scope, id_, text) for scope, texts in STORE.items() for id_, text in texts.items()]
    frame = pl.DataFrame(rows, schema=["scope", "memory_id", "text"], orient="row")
    store = BM25.from_frame(frame)
    assert store.scopes() == ["ann", "bob"]
    assert np.array_equal(store.scores("tram", scope="bob"), BM25(STORE).scores("tram", scope="bob"))


def test_bad_stores_and_settings_are_refused() -> None:
    twice = pl.DataFrame({"scope": ["s", "s"], "memory_id": ["a", "a"], "text": ["tea", "tea"]})
    with pytest.raises(InvalidIdError, match="two rows"):
        BM25.from_frame(twice)
    with pytest.raises(InvalidIdError):
        BM25({"s": {"": "tea"}})
    with pytest.raises(ValueError, match="k1 is -1"):
        BM25(STORE, k1=-1)


def test_ranks_share_their_mean_where_scores_are_equal() -> None:
    store = BM25(STORE)
    assert store.rank_of("walnuts", ["m3", "m1", "m2"], scope="ann").tolist() == [2.5, 1.0, 2.5]
    with pytest.raises(ScopeError, match="does not hold"):
        store.rank_of("walnuts", ["b2"], scope="ann")
