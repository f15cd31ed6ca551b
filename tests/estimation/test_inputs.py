from __future__ import annotations

import numpy as np
import pytest

from cmp.estimation import estimate, missing_outcome_bounds, neyman_variance_estimate

Y = [1.0, 0.0, 1.0, 0.0]
NO_BOOLEANS = [
    [1.0, np.nan, 0.0, 0.0],
    ["1", "0", "0", "0"],
    ["True", "False", "False", "False"],
    [1, None, 0, 0],
    [2, 0, 1, 0],
    np.ma.masked_array([1, 0, 1, 0], [0, 1, 0, 0]),
]


@pytest.mark.parametrize("bad", NO_BOOLEANS, ids=repr)
@pytest.mark.parametrize(
    "call",
    [
        lambda bad: estimate(bad, Y),
        lambda bad: estimate([1, 0, 1, 0], Y, eligible=bad),
        lambda bad: neyman_variance_estimate(Y, bad),
        lambda bad: missing_outcome_bounds(Y, bad, 0, 1),
    ],
)
def test_what_is_neither_true_nor_false_is_refused_everywhere(bad, call):
    with pytest.raises(ValueError, match=r"other than True and False|masked entries"):
        call(bad)


def test_ones_zeros_and_objects_are_booleans():
    want = estimate([True, False, True, False], Y).frame
    for same in ([1, 0, 1, 0], [1.0, 0.0, 1.0, 0.0], np.array([True, False, True, False], dtype=object)):
        assert estimate(same, Y).frame.equals(want)


def test_a_masked_outcome_is_missing():
    masked = np.ma.masked_array([1.0, 0.0, 99.0, 0.0, 1.0, 1.0], [0, 0, 1, 0, 0, 0])
    plain = [1.0, 0.0, np.nan, 0.0, 1.0, 1.0]
    z = [1, 0, 1, 0, 1, 0]
    assert estimate(z, masked).frame.equals(estimate(z, plain).frame)
    assert neyman_variance_estimate(masked, z) == neyman_variance_estimate(plain, z)
    assert missing_outcome_bounds(masked, z, 0, 1) == missing_outcome_bounds(plain, z, 0, 1)


@pytest.mark.parametrize("strata", [["a", None, "a", "a"], [0.0, np.nan, 0.0, 0.0]])
def test_a_round_without_a_stratum_is_refused(strata):
    with pytest.raises(ValueError, match="name the stratum of every round"):
        estimate([1, 0, 1, 0], Y, strata)


def test_outcomes_that_are_no_numbers_are_refused():
    with pytest.raises(ValueError, match="give numbers"):
        estimate([1, 0], np.array([{}, []], dtype=object))
