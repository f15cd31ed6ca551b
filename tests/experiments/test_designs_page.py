"""What is counted of a cell, what is said of it, and how the page shows it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from scipy.stats import binom

from experiments.designs import DESIGNS
from experiments.designs_measure import LEAST_ESTIMATES, Found, cell_row, measure_design, worst_of
from experiments.designs_page import render_designs, verdict

#: What rounding leaves of a probability.
EXACT = 1e-12


def cell(**changes) -> dict:
    return {
        "mean_coverage": 0.95, "worst_coverage": 0.93, "worst_floor": 0.934, "share_estimated": 1.0,
        "estimated_coverage": 0.95, "estimated_worst": 0.93, "estimated_floor": 0.934, **changes,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "holds"),
        ({"mean_coverage": 0.94, "worst_coverage": 0.92}, "holds"),
        ({"mean_coverage": 0.9399}, "does not hold"),
        ({"worst_coverage": 0.9199}, "does not hold"),
        ({"worst_coverage": 0.90, "worst_floor": 0.898}, "holds"),
        ({"worst_coverage": 0.89, "worst_floor": 0.898}, "does not hold"),
        ({"mean_coverage": 0.971}, "conservative"),
        ({"mean_coverage": 0.971, "worst_coverage": 0.91}, "does not hold"),
        ({"mean_coverage": 0.90, "share_estimated": 0.9}, "holds where ESTIMATED"),
        (
            {"mean_coverage": 0.90, "share_estimated": 0.9, "estimated_coverage": 0.98},
            "conservative where ESTIMATED",
        ),
        ({"mean_coverage": 0.90, "share_estimated": 0.9, "estimated_worst": 0.91}, "does not hold"),
        ({"mean_coverage": 0.0, "share_estimated": 0.0, "estimated_coverage": None}, "does not hold"),
        # that the state vouches for nothing else is no excuse where it vouches for all
        ({"mean_coverage": 0.90, "estimated_coverage": 0.95}, "does not hold"),
    ],
)
def test_a_cells_verdict(changes, said):
    assert verdict(cell(**changes)) == said


@pytest.mark.parametrize(("memories", "draws"), [(1, 200), (32, 2000), (500, 500)])
def test_the_worst_of_so_many_lies_below_its_floor_in_one_cell_of_a_hundred(memories, draws):
    expected, floor = worst_of(memories, draws)
    below = 1 - (1 - binom.cdf(round(floor * draws) - 1, draws, 0.95)) ** memories
    at_most = 1 - (1 - binom.cdf(round(floor * draws), draws, 0.95)) ** memories
    assert below <= 0.01 + EXACT <= at_most + EXACT
    assert floor < expected <= 0.95 + 1 / draws


def test_an_undefined_interval_covers_nothing_and_states_are_counted():
    nan = np.nan
    found = Found(
        utility=np.array([[0.0, nan], [0.0, 0.1]]),
        low=np.array([[-1.0, nan], [0.5, -1.0]]),
        high=np.array([[1.0, nan], [1.5, 1.0]]),
        state=np.array([["ESTIMATED", "NEVER_EXPOSED"], ["ESTIMATED", "ESTIMATED"]], dtype=object),
    )
    row = cell_row(found, np.array([[0.0, nan], [0.0, 0.0]]), np.array([0.9, 0.0]))
    assert row["mean_coverage"] == 0.5
    assert row["worst_coverage"] == 0.5
    assert row["mean_half_width"] == pytest.approx((1 + 0.5 + 1) / 3)
    assert row["undefined_share"] == 0.25
    assert row["share_estimated"] == 0.75
    assert row["share_never_exposed"] == 0.25
    assert row["estimated_coverage"] == pytest.approx(2 / 3)
    assert row["estimated_worst"] == 0.5
    assert row["largest_z_against_truth"] is None  # of two logs
    assert row["coverage_of_mean_over_rounds"] == 0.75  # 0.9 lies in both of the first memory's, 0 in one


def test_a_bias_is_seen_in_standard_errors_and_only_with_estimates_enough():
    logs = 2 * LEAST_ESTIMATES
    utility = np.tile([[1.0, -1.0, 5.0], [-1.0, -3.0, 6.0]], (LEAST_ESTIMATES, 1))
    utility[LEAST_ESTIMATES - 1 :, 2] = np.nan
    found = Found(utility, utility - 1, utility + 1, np.full(utility.shape, "ESTIMATED", dtype=object))
    row = cell_row(found, np.zeros(utility.shape), np.zeros(3))
    assert row["largest_z_against_truth"] == pytest.approx(2.0 / np.sqrt(logs / (logs - 1) / logs))


def test_the_page_marks_cells_and_says_what_the_state_said_where_they_do_not_hold():
    design = replace(DESIGNS[0], kinds=("binary",))
    rows = measure_design(design, "binary", 4, 7, lambda n: None)
    good = {**rows[0], **cell(mean_coverage_se=0.001)}
    bad = {**good, "kind": "rare", "mean_coverage": 0.9, "share_estimated": 0.75, "share_never_exposed": 0.25}
    poor = {**good, "kind": "heavy", "mean_coverage": 0.8}
    wide = {**good, "kind": "continuous", "mean_coverage": 0.98}
    ours = [good, bad, poor, wide]
    page = render_designs(pl.DataFrame([*ours, *({**one, "method": "neyman"} for one in ours)]))
    assert "1 cells hold (no mark); 1 hold for what the table calls ESTIMATED" in page
    assert "1 are conservative" in page
    headings = [line for line in page.splitlines() if line.startswith("**")]
    assert headings == ["**Does not hold !**", "**Holds where ESTIMATED °**", "**Conservative +**"]
    listed = [line for line in page.splitlines() if line.startswith("* ")]
    assert [line.split(": mean ")[0].rsplit(", ", 1)[1] for line in listed] == ["t(3)", "5 %", "normal"]
    assert "75.0% ESTIMATED, 25.0% NEVER_EXPOSED; of those ESTIMATED 0.950 are covered" in page
