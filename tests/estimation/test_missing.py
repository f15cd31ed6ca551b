from __future__ import annotations

from itertools import product

import numpy as np
import polars as pl
import pytest
from scipy.stats import fisher_exact

from cmp.estimation import differential_missingness, estimate, missing_outcome_bounds, utilities
from tests.estimation.golden import golden
from tests.estimation.logs import HandMadeLog, two_arms


def missing_in(strata: list[tuple[int, int, int, int]]) -> HandMadeLog:
    """Return a log whose blocks have (missing, rounds) exposed and (missing, rounds) control."""
    log = HandMadeLog()
    for b, (x1, n1, x0, n0) in enumerate(strata):
        log.block(f"b{b}", n1 + n0, {"m": n1, "x": n0})
        for i in range(n1 + n0):
            is_missing = i < x1 if i < n1 else i - n1 < x0
            y = None if is_missing else float(i % 3)
            log.round(f"r{b}-{i}", f"b{b}", i, ["m" if i < n1 else "x"], y)
    return log


def p_value(log: HandMadeLog) -> float:
    return differential_missingness(utilities(log)).filter(pl.col("memory_id") == "m")["p_value"][0]


def test_with_one_stratum_it_is_fishers_test():
    assert p_value(missing_in([(3, 4, 1, 8)])) == pytest.approx(
        fisher_exact([[3, 1], [1, 7]]).pvalue, abs=1e-12
    )


def test_a_share_that_differs_by_stratum_is_no_difference_by_arm():
    strata = [(30, 50, 6, 10), (0, 10, 0, 50)]
    assert fisher_exact([[30, 30], [6, 54]]).pvalue < 1e-5
    assert p_value(missing_in(strata)) == pytest.approx(1.0, abs=1e-12)


def test_a_difference_in_every_stratum_is_seen_where_pooling_hides_it():
    strata = [(9, 10, 10, 20), (2, 20, 0, 10)]
    assert p_value(missing_in(strata)) < 0.05 < fisher_exact([[11, 19], [10, 20]]).pvalue


def test_an_exposure_whose_outcome_is_missing_counts_in_its_stratum():
    strata = [(1, 1, 0, 3), (1, 1, 0, 3), (1, 1, 0, 3)]
    assert p_value(missing_in(strata)) == pytest.approx(1 / 64, abs=1e-12)  # (1/4)^3, the least likely point


def test_none_missing_is_no_evidence_and_no_round_is_no_test():
    u = estimate([[1, 0], [0, 0], [1, 0], [0, 0]], [1.0, 0, 1, 0])
    assert differential_missingness(u)["p_value"].to_list() == [1.0, None]
    with pytest.raises(ValueError, match="lacks p_missing"):
        differential_missingness(u.frame.drop("p_missing"))


def test_the_bounds_of_a_log_are_those_of_every_filling_in():
    log = two_arms([1, None, 0, 1], [None, 0, 1, 0, None])
    frame = utilities(log, outcome_range=(0, 1)).frame.filter(pl.col("memory_id") == "m")
    values = [np.mean([1, a, 0, 1]) - np.mean([b, 0, 1, 0, c]) for a, b, c in product((0, 1), repeat=3)]
    assert frame.select("bound_low", "bound_high").row(0) == pytest.approx(
        (min(values), max(values)), abs=1e-12
    )


def test_bounds_combine_strata_as_if_nothing_were_missing():
    strata = [(1, 3, 2, 6), (0, 2, 1, 4)]
    log = missing_in(strata)
    got = utilities(log, outcome_range=(-1, 4)).frame.filter(pl.col("memory_id") == "m").row(0, named=True)
    weights = [n1 * n0 / (n1 + n0) for _, n1, _, n0 in strata]
    bounds = []
    for b, (_, n1, _, _) in enumerate(strata):
        entries = [r["round_id"] for r in log.rows["rounds"] if r["block_id"] == f"b{b}"]
        known = {r["round_id"]: r["value"] for r in log.rows["outcomes"]}
        y = [known.get(name, np.nan) for name in entries]
        bounds.append(missing_outcome_bounds(y, np.arange(len(y)) < n1, -1, 4))
    for name, i in (("bound_low", 0), ("bound_high", 1)):
        assert got[name] == pytest.approx(np.average([b[i] for b in bounds], weights=weights), abs=1e-12)


def test_golden_bounds_hold_in_a_log():
    case = golden("missing")
    frame = utilities(two_arms(case["assigned"], case["control"]), outcome_range=(0, 1)).frame
    assert frame.select("bound_low", "bound_high").row(0) == pytest.approx(tuple(case["bounds01"]), abs=1e-12)


@pytest.mark.parametrize("outcome_range", [(0, 0.5), (0.5, 1), (1, 0), (0, np.inf)])
def test_a_range_that_outcomes_leave_is_refused(outcome_range):
    with pytest.raises(ValueError, match="stated range"):
        utilities(two_arms([1.0, 0.0], [0.0, 1.0]), outcome_range=outcome_range)


def test_the_summary_says_how_many_are_missing_by_arm():
    said = utilities(missing_in([(4, 4, 0, 12)])).summary()
    assert (
        "2 memories have eligible rounds without an outcome: 25.0% of exposed, 25.0% of control rounds"
        in said
    )
    assert "2 differ by arm" in said
