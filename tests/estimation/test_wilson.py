from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm

from cmp.estimation import newcombe_interval
from cmp.estimation.intervals import normal_quantile
from cmp.estimation.wilson import combined_limits, p_values_of_limits
from tests.estimation.golden import golden

#: Published limits were recomputed in doubles.
DOUBLES = 1e-12


@pytest.mark.parametrize("case", range(5))
def test_the_limits_of_a_difference_are_the_published_method_10(case):
    want = golden("newcombe")[case]
    (x1, n1), (x0, n0) = want["exposed"], want["control"]
    limits = combined_limits(
        np.array([[x1 / n1], [x0 / n0]]), np.array([[n1], [n0]], dtype=float), (1.0, -1.0)
    )
    low, high = limits(np.array([normal_quantile(0.95)]))
    assert (low[0], high[0]) == pytest.approx((want["low"], want["high"]), abs=DOUBLES)


def test_a_sum_of_four_with_two_certain_is_the_difference_of_the_others():
    p, n = np.array([[0.3], [0.1], [1.0], [1.0]]), np.array([[20.0], [50.0], [np.inf], [np.inf]])
    four = combined_limits(p[:2], n[:2], (1.0, -1.0))(np.array([1.96]))
    large = combined_limits(p, np.minimum(n, 1e15), (1.0, -1.0, -1.0, 1.0))(np.array([1.96]))
    np.testing.assert_allclose(large, four, atol=1e-9)


def test_at_the_level_of_the_p_value_the_interval_ends_at_0():
    for x1, n1, x0, n0 in ((5, 6, 10, 84), (0, 6, 40, 84), (3, 5, 30, 85)):
        limits = combined_limits(
            np.array([[x1 / n1], [x0 / n0]]), np.array([[n1], [n0]], dtype=float), (1.0, -1.0)
        )
        p = float(p_values_of_limits(limits, 1)[0])
        _, low, high = newcombe_interval(x1, n1, x0, n0, level=1.0 - p)
        assert min(abs(low), abs(high)) == pytest.approx(0.0, abs=1e-6)


def test_normal_limits_give_the_normal_p_value():
    p = p_values_of_limits(lambda z: (2.5 - z, 2.5 + z), 1)
    assert p[0] == pytest.approx(2 * norm.sf(2.5), rel=1e-9)


def test_adjusted_proportions_past_the_ends_keep_their_distance():
    """An adjusted mean of 1.1 has the limits' distances of 1, about 1.1."""
    n = np.array([[10.0], [80.0]])
    past, at_end = (
        combined_limits(np.array([[p1], [0.2]]), n, (1.0, -1.0))(np.array([1.96])) for p1 in (1.1, 1.0)
    )
    np.testing.assert_allclose(np.array(past) - 0.1, at_end, atol=DOUBLES)
