"""A benchmark is consistent, or it is not made; a part of it is a benchmark."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest

from cmp.datasets import Benchmark, load_demo
from cmp.datasets.benchmark import require
from cmp.errors import DatasetError


@pytest.fixture(scope="module")
def demo() -> Benchmark:
    """Load it once."""
    return load_demo()


@pytest.mark.parametrize("table", ["memories", "questions", "qrels"])
def test_a_key_stands_once(demo: Benchmark, table: str) -> None:
    frame = getattr(demo, table)
    with pytest.raises(DatasetError, match=f"{table} repeats"):
        replace(demo, **{table: pl.concat([frame, frame.head(1)])})


@pytest.mark.parametrize("table", ["memories", "questions"])
def test_a_label_is_of_a_memory_and_a_question_that_exist(demo: Benchmark, table: str) -> None:
    with pytest.raises(DatasetError, match=f"labels are of no row of {table}"):
        replace(demo, **{table: getattr(demo, table).head(1)})


def test_a_label_of_another_scope_is_of_no_memory(demo: Benchmark) -> None:
    with pytest.raises(DatasetError, match="labels are of no row"):
        replace(demo, qrels=demo.qrels.with_columns(scope=pl.lit("elsewhere")))


def test_columns_have_their_types_and_no_nulls(demo: Benchmark) -> None:
    with pytest.raises(DatasetError, match="column 'relevance'"):
        replace(demo, qrels=demo.qrels.with_columns(pl.col("relevance").cast(pl.Float64)))
    with pytest.raises(DatasetError, match=r"memories\.text has 60 nulls"):
        replace(demo, memories=demo.memories.with_columns(text=pl.lit(None, dtype=pl.String)))


def test_a_selection_keeps_the_store_and_the_labels_of_its_questions(demo: Benchmark) -> None:
    part = demo.select(categories=["indirect", "direct"])
    assert part.memories.equals(demo.memories)
    assert part.questions["category"].unique().sort().to_list() == ["direct", "indirect"]
    assert set(part.qrels["query_id"]) == set(part.questions["query_id"])
    assert demo.select(answerable=False).questions.is_empty()
    assert demo.select(scope=["demo"]).qrels.equals(demo.qrels)


def test_selecting_what_is_not_there_is_an_error_that_says_what_is(demo: Benchmark) -> None:
    with pytest.raises(DatasetError, match="no category 'odd' in this benchmark; there are: direct, related"):
        demo.select(categories=["direct", "odd"])
    with pytest.raises(DatasetError, match="no scope 'x'"):
        demo.texts("x")


def test_the_summary_counts_everything(demo: Benchmark) -> None:
    noted = pl.DataFrame(
        {"kind": ["odd"] * 2, "where": ["a", "b"], "value": ["", ""], "action": ["kept"] * 2}
    )
    assert replace(demo, irregularities=noted).summary().splitlines() == [
        "demo: 60 memories in 1 scope(s), 30 questions",
        "labels: 32, of 30 questions, on 32 key memories",
        "irregular: odd x 2 (kept)",
    ]


def test_the_source_cannot_be_changed(demo: Benchmark) -> None:
    with pytest.raises(TypeError):
        demo.source["demo_store.json"] = ""  # type: ignore[index]


def test_a_required_field_is_there_and_of_its_kind() -> None:
    assert require({"a": None}, "a", (str, type(None)), "here") is None
    with pytest.raises(DatasetError, match="here: 'a' is int, not str or null"):
        require({"a": 1}, "a", (str, type(None)), "here")
