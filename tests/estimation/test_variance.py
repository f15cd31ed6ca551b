from __future__ import annotations

import math
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cmp.estimation import neyman_variance_estimate, null_variance, randomization_variance
from tests.estimation.golden import golden

#: Sums of at most 70 assignments of numbers below 10 in doubles.
ENUMERATION = 1e-12


def enumerate_differences(
    y1: list[float], y0: list[float], n1: int
) -> tuple[list[float], list[float | None]]:
    differences, estimates = [], []
    for chosen in combinations(range(len(y1)), n1):
        z = np.isin(np.arange(len(y1)), chosen)
        y = np.where(z, y1, y0)
        differences.append(float(y[z].mean() - y[~z].mean()))
        estimates.append(neyman_variance_estimate(y, z))
    return differences, estimates


small = st.lists(st.tuples(*[st.integers(-5, 5)] * 2), min_size=2, max_size=8)


@given(small, st.data())
def test_the_exact_variance_is_that_of_every_assignment_listed(pairs, data):
    y1, y0 = [float(a) for a, _ in pairs], [float(b) for _, b in pairs]
    n1 = data.draw(st.integers(1, len(pairs) - 1))
    differences, _ = enumerate_differences(y1, y0, n1)
    assert math.isclose(np.mean(differences), np.mean(y1) - np.mean(y0), abs_tol=ENUMERATION)
    assert math.isclose(np.var(differences), randomization_variance(y1, y0, n1), abs_tol=10 * ENUMERATION)


@given(st.lists(st.integers(-5, 5), min_size=2, max_size=8), st.data())
def test_the_null_variance_is_exact_where_the_memory_does_nothing(y, data):
    n1 = data.draw(st.integers(1, len(y) - 1))
    differences, _ = enumerate_differences(y, y, n1)
    assert math.isclose(np.var(differences), null_variance(y, n1), abs_tol=10 * ENUMERATION)


def test_the_golden_design_has_its_variance_and_its_mean_estimate():
    case = golden("complete_randomization_enumerated")
    differences, estimates = enumerate_differences(case["y1"], case["y0"], case["n1"])
    assert len(differences) == 15
    assert math.isclose(np.mean(differences), Fraction(case["mean_difference"]), abs_tol=ENUMERATION)
    exact = Fraction(case["exact_variance"])
    assert math.isclose(randomization_variance(case["y1"], case["y0"], 2), exact, abs_tol=ENUMERATION)
    assert math.isclose(np.mean(estimates), Fraction(case["mean_neyman_estimate"]), abs_tol=ENUMERATION)


def test_the_golden_null_variance_is_met():
    case = golden("null")
    assert math.isclose(null_variance(case["outcome"], 3), case["null_variance"], abs_tol=ENUMERATION)


def test_a_single_outcome_in_an_arm_leaves_the_variance_undefined():
    assert neyman_variance_estimate([1, 0, 0, 1], [1, 0, 0, 0]) is None
    assert neyman_variance_estimate([1, np.nan, 0, 1], [1, 1, 0, 0]) is None


def test_missing_outcomes_leave_the_neyman_estimate_with_complete_cases():
    case = golden("missing")
    y = np.array([*case["assigned"], *case["control"]], dtype=float)
    assert math.isclose(neyman_variance_estimate(y, [1] * 4 + [0] * 4), case["neyman"], abs_tol=ENUMERATION)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: randomization_variance([1, 2], [1, 2, 3], 1), "both outcomes"),
        (lambda: randomization_variance([1, np.nan], [1, 2], 1), "finite"),
        (lambda: randomization_variance([1, 2], [1, 2], 2), "arm empty"),
        (lambda: null_variance([1, 2], 0), "arm empty"),
        (lambda: neyman_variance_estimate([1, 2], [1]), "one of each"),
        (lambda: neyman_variance_estimate([1, np.inf], [1, 0]), "infinite"),
        (lambda: neyman_variance_estimate([1, 2, 3, 4], [1, np.nan, 0, 0]), "other than True and False"),
        (lambda: null_variance([1, 2, 3], 1.5), "whole number"),
        (lambda: null_variance([1, 2, 3], np.nan), "whole number"),
        (lambda: randomization_variance([1, 2, 3], [1, 2, 3], 1.5), "whole number"),
    ],
)
def test_impossible_input_is_refused_with_the_reason(call, message):
    with pytest.raises(ValueError, match=message):
        call()
