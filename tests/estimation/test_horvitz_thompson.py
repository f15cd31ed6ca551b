from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cmp.estimation import estimate, utilities
from tests.estimation.logs import HandMadeLog, two_arms
from tests.estimation.test_arrays import ARITHMETIC, first


def expectation(pi: np.ndarray, y1: np.ndarray, y0: np.ndarray, **options) -> tuple[float, int]:
    """Return the mean of what is reported over every Bernoulli assignment, and how often nothing is."""
    total, silent = 0.0, 0
    for code in range(2 ** len(pi)):
        z = np.array([code >> i & 1 for i in range(len(pi))], bool)
        row = first(estimate(z, np.where(z, y1, y0), propensity=pi[:, None], estimator="ht", **options))
        silent += row["utility"] is None
        total += np.prod(np.where(z, pi, 1 - pi)) * (row["utility"] or 0.0)
    return total, silent


def test_it_is_unbiased_over_every_bernoulli_assignment_as_reported():
    pi, y1, y0 = np.array([0.25, 0.5, 0.75, 0.5]), np.array([3.0, 1, 4, 1]), np.array([5.0, 9, 2, 6])
    mean, silent = expectation(pi, y1, y0, strata=np.zeros(4), weights="rounds")
    assert silent == 0
    assert mean == pytest.approx((y1 - y0).mean(), abs=ARITHMETIC)


@pytest.mark.parametrize("constant_within", [True, False])
@pytest.mark.parametrize("weights", ["rounds", "precision"])
def test_it_is_unbiased_over_several_strata_with_empty_arms(constant_within, weights):
    strata = np.array([0, 0, 0, 1, 1, 2])
    pi = np.array([0.2, 0.2, 0.2, 0.5, 0.5, 0.7] if constant_within else [0.2, 0.3, 0.6, 0.5, 0.1, 0.7])
    y1, y0 = np.array([3.0, 1, 4, 1, -5, 9]), np.array([5.0, 9, 2, 6, 5, 3])
    mean, silent = expectation(pi, y1, y0, strata=strata, weights=weights)
    worth = np.ones(6) if weights == "rounds" else pi * (1 - pi)
    shares = np.array([worth[strata == s].sum() for s in range(3)]) / worth.sum()
    effects = np.array([(y1 - y0)[strata == s].mean() for s in range(3)])
    assert silent == 0
    assert mean == pytest.approx(float(shares @ effects), abs=ARITHMETIC)


def test_an_offset_of_all_outcomes_leaves_it_unbiased():
    pi, y1, y0 = np.array([0.25, 0.5, 0.75]), np.array([3.0, 1, 4]) + 1e6, np.array([5.0, 9, 2]) + 1e6
    mean, _ = expectation(pi, y1, y0, strata=[0, 0, 1], weights="rounds")
    assert mean == pytest.approx((y1 - y0).mean(), abs=1e-8)  # totals near 1e6 / pi, 1e-10 of a unit each


@given(st.integers(0, 2**32 - 1), st.sampled_from(["precision", "rounds"]))
def test_under_fixed_counts_all_three_agree_in_strata_of_any_size(seed, weights):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(3, 9, 3)
    counts = [int(rng.integers(1, length)) for length in lengths]
    z = np.concatenate([rng.permutation(np.arange(n) < c) for n, c in zip(lengths, counts, strict=True)])
    pi = np.repeat(counts / lengths, lengths)[:, None]
    y, strata = rng.normal(size=len(z)), np.repeat(np.arange(3), lengths)
    values = [
        first(estimate(z, y, strata, propensity=pi, estimator=e, weights=weights))
        for e in ("difference", "hajek", "ht")
    ]
    for name in ("utility", "std_error", "ci_low", "mean_exposed"):
        for other in values[1:]:
            assert values[0][name] == pytest.approx(other[name], abs=ARITHMETIC)


def test_off_its_count_it_has_an_interval_that_names_itself():
    z = np.array([1, 1, 1, 0, 0, 0, 0, 0, 0, 0], bool)
    row = first(estimate(z, np.arange(10.0), propensity=0.2, estimator="ht"))
    assert row["interval"] == "horvitz_thompson"
    assert row["utility"] == pytest.approx((0 + 1 + 2) / 2 - sum(range(3, 10)) / 8, abs=ARITHMETIC)
    y, pi = np.arange(10.0), 0.2
    want = np.sqrt((y[z] ** 2).sum() / pi**2 + (y[~z] ** 2).sum() / (1 - pi) ** 2) / 10
    assert row["std_error"] == pytest.approx(want, abs=ARITHMETIC)


@pytest.mark.parametrize("exposed", [1, 2, 3])
def test_one_round_of_an_arm_says_nothing_of_its_variance(exposed):
    row = first(estimate(np.arange(4) < exposed, [3.0, 1.0, 4.0, 1.0], propensity=0.4, estimator="ht"))
    assert row["utility"] is not None
    assert (row["std_error"] is None, row["ci_low"] is None) == (exposed != 2, exposed != 2)


def test_a_memory_never_drawn_keeps_its_state_and_has_no_interval():
    row = first(estimate([0, 0, 0], [1.0, 2, 3], propensity=0.5, estimator="ht"))
    assert (row["state"], row["utility"], row["std_error"]) == ("NEVER_EXPOSED", -4.0, None)


def test_with_outcomes_missing_it_says_what_it_is_over():
    row = first(estimate([1, 1, 0, 0, 1, 0], [1.0, 0, 1, 0, None, 2], propensity=0.5, estimator="ht"))
    assert "does not depend on the draw" in row["reason"]
    assert row["utility"] == pytest.approx((1 - 1 - 2) / 0.5 / 5, abs=ARITHMETIC)
    assert first(estimate([1, 1, 0, 0], [1.0, 0, 1, 0], propensity=0.5, estimator="ht"))["reason"] is None


def test_a_log_keeps_the_strata_without_an_exposure():
    log = HandMadeLog()
    for block, drawn in (("b1", ["m", "m", "x", "x"]), ("b2", ["x", "x", "x", "y"]), ("b3", ["m", "x"])):
        log.block(block, 4, {"m": 1, "x": 2, "y": 1})
        for i, memory in enumerate(drawn):
            log.round(f"{block}{i}", block, i, [memory], float(i * len(block) + len(log.rows["rounds"])))
    z = np.array([r["memory_id"] == "m" for r in log.rows["exposures"]])
    y = np.array([r["value"] for r in log.rows["outcomes"]])
    want = np.where(z, y / 0.25, -y / 0.75).mean()
    got = utilities(log, estimator="ht", weights="rounds").frame.filter(pl.col("memory_id") == "m")
    assert got["utility"][0] == pytest.approx(want, abs=ARITHMETIC)


def test_complete_cases_are_said_where_both_arms_lack_as_many():
    log = two_arms([1.0, None, 0.0], [0.0, 1.0, None, 1.0, 0.0])
    row = utilities(log, estimator="ht").frame.filter(memory_id="m").row(0, named=True)
    assert (row["n_missing_exposed"], row["n_missing_control"]) == (1, 1)
    assert "over rounds with an outcome" in row["reason"]
