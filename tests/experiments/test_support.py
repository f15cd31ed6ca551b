"""What the page of the support experiment is made of."""

from __future__ import annotations

import polars as pl
import pytest

from experiments.markdown import percent, pipe_table, points, rank
from experiments.references import MEASURED, PUBLISHED
from experiments.support import agreement, beside_published, sample_by_scope
from experiments.support_page import QUANTITIES

QUESTIONS = pl.DataFrame({"query_id": [f"q{i}" for i in range(40)], "scope": ["a", "b"] * 20})


def test_a_sample_holds_as_many_questions_of_each_scope_and_grows_by_no_reshuffling() -> None:
    small, large = (sample_by_scope(QUESTIONS, size, "stream") for size in (5, 12))
    assert sorted(small["scope"]) == ["a"] * 5 + ["b"] * 5
    assert set(small["query_id"]) < set(large["query_id"])
    assert sample_by_scope(QUESTIONS, 99, "stream").height == 40
    assert set(sample_by_scope(QUESTIONS, 5, "other")["query_id"]) != set(small["query_id"])


def test_a_row_that_was_not_measured_has_no_difference() -> None:
    figure = next(figure for figure in MEASURED if figure.quantity == "never_own")
    overview = pl.DataFrame(
        {
            "pool": [figure.pool],
            "retriever": [figure.retriever],
            "category": [figure.category],
            **{quantity: [0.25] for quantity in QUANTITIES},
        }
    )
    compared = agreement(overview)
    assert compared.height == len(MEASURED)
    mine = compared.filter((pl.col("pool") == figure.pool) & (pl.col("retriever") == figure.retriever))
    assert mine.filter(pl.col("quantity") == "never_own")["difference"].to_list() == [0.25 - figure.value]
    others = compared.filter((pl.col("pool") != figure.pool) | (pl.col("retriever") != figure.retriever))
    assert others["difference"].null_count() == others.height


def test_every_published_figure_of_ours_is_a_column_of_the_overview() -> None:
    assert {claim.quantity for claim in PUBLISHED} <= set(QUANTITIES)
    rows = [(claim.pool, "BM25", "all", 266.0, 0.5, 0.5, 0.5, 53.0) for claim in PUBLISHED]
    names = ["pool", "retriever", "category", "median_pool", *QUANTITIES]
    ours = beside_published(pl.DataFrame(rows, schema=names, orient="row").unique())
    assert ours.height == len(PUBLISHED)
    assert ours.filter(pl.col("quantity") == "median_rank_missed")["median_pool"].to_list() == [266.0]


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (percent(0.5322), "53.2 %"),
        (percent(None), "–"),
        (points(-0.0001), "+0.0"),
        (points(0.012), "+1.2"),
        (rank(98.5), "98.5"),
        (rank(1_300.0), "1,300"),
        (rank(None), "–"),
        (pipe_table(["a", "b"], []), "| a | b |\n|:--|--:|"),
    ],
)
def test_numbers_are_rounded_for_people_only_here(written: str, expected: str) -> None:
    assert written == expected
