"""The demonstration's store keeps its promises, above all that an indirect question gives nothing away."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import polars as pl
import pytest
import Stemmer

import cmp.datasets
from cmp.datasets import Benchmark, answer_support, load_demo

#: Lucene's English stop words, the ones BM25 leaves out by default.
_WORDS = """
a an and are as at be but by for if in into is it no not of on or such that the their then there these they
this to was will with
"""
_LUCENE = frozenset(_WORDS.split())


@pytest.fixture(scope="module")
def demo() -> Benchmark:
    """Load it once."""
    return load_demo()


def _stems(text: str) -> set[str]:
    words = [word for word in re.findall(r"\w\w+", text.lower()) if word not in _LUCENE]
    return set(Stemmer.Stemmer("english").stemWords(words))


def _keys(demo: Benchmark) -> Mapping[str, list[str]]:
    return dict(demo.qrels.group_by("query_id").agg("memory_id").iter_rows())


def test_there_are_60_memories_and_12_direct_8_related_10_indirect_questions(demo: Benchmark) -> None:
    assert demo.memories["memory_id"].to_list() == [f"d{number:02d}" for number in range(1, 61)]
    counts = dict(demo.questions["category"].value_counts().iter_rows())
    assert counts == {"direct": 12, "related": 8, "indirect": 10}


def test_every_memory_has_8_to_25_words_and_a_date_in_order(demo: Benchmark) -> None:
    lengths = [len(text.split()) for text in demo.texts("demo").values()]
    assert 8 <= min(lengths) <= max(lengths) <= 25
    assert demo.memories["date"].is_sorted()
    assert demo.memories["text"].is_unique().all()


def test_every_question_has_one_to_three_keys(demo: Benchmark) -> None:
    assert demo.qrels["query_id"].n_unique() == demo.questions.height
    assert demo.qrels.group_by("query_id").len()["len"].is_between(1, 3).all()


def test_indirect_questions_share_no_stem_with_the_memory_they_need(demo: Benchmark) -> None:
    texts, keys = demo.texts("demo"), _keys(demo)
    for query_id, text in demo.select(categories="indirect").questions.select("query_id", "text").iter_rows():
        for key in keys[query_id]:
            assert not _stems(text) & _stems(texts[key]), (query_id, key)


def test_direct_questions_share_at_least_three_stems_with_the_memory_they_need(demo: Benchmark) -> None:
    texts, keys = demo.texts("demo"), _keys(demo)
    for query_id, text in demo.select(categories="direct").questions.select("query_id", "text").iter_rows():
        assert max(len(_stems(text) & _stems(texts[key])) for key in keys[query_id]) >= 3, query_id


def test_the_key_memories_support_the_whole_answer_and_no_other_more_than_half(demo: Benchmark) -> None:
    texts, keys = demo.texts("demo"), _keys(demo)
    for query_id, answer in demo.questions.select("query_id", "answer").iter_rows():
        needed = keys[query_id]
        assert answer_support(answer, [texts[key] for key in needed]) == 1.0, query_id
        assert all(answer_support(answer, [texts[key]]) > 0 for key in needed), query_id
        others = [answer_support(answer, [text]) for memory, text in texts.items() if memory not in needed]
        assert max(others) <= 0.5, query_id


def test_a_question_does_not_contain_its_answer(demo: Benchmark) -> None:
    supports = demo.questions.select(
        pl.struct("answer", "text").map_elements(
            lambda row: answer_support(row["answer"], [row["text"]]), return_dtype=pl.Float64
        )
    )
    assert supports.to_series().max() <= 0.5  # type: ignore[operator]


def test_no_benchmark_is_shipped_with_the_package() -> None:
    folder = Path(cmp.datasets.__file__).parent
    others = {path.name for path in folder.iterdir() if path.is_file() and path.suffix not in (".py", ".pyc")}
    assert others == {"demo_store.json"}
