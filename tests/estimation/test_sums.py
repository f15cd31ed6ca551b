from __future__ import annotations

from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cmp.estimation.sums import group_sums, limb_quanta, order_free_sums, split_into_limbs


def limb_sums(values: list[float], order: list[int]) -> list[float]:
    """Sum limbs up in an order, one limb at a time."""
    one = np.zeros(len(values), dtype=np.int64)
    return [
        float(group_sums(one, limb[order], 1)[0]) for limb in split_into_limbs(np.array(values), len(values))
    ]


finite = st.floats(-1e9, 1e9).filter(lambda x: x == 0 or abs(x) > 1e-200)


@given(st.lists(finite, min_size=1, max_size=40), st.randoms())
def test_sums_of_limbs_are_bit_equal_in_every_order(values, random):
    order = list(range(len(values)))
    random.shuffle(order)
    assert limb_sums(values, list(range(len(values)))) == limb_sums(values, order)


@given(st.lists(finite, min_size=1, max_size=40))
def test_limb_sums_are_the_rational_sum_to_the_last_bits(values):
    total = sum(map(Fraction, limb_sums(values, list(range(len(values))))))
    # the limbs drop what lies 80 bits and more below the largest term
    bound = len(values) * Fraction(max(map(abs, values))) / 2**78
    assert abs(total - sum(map(Fraction, values))) <= bound


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=20), st.randoms())
def test_ordered_sums_do_not_depend_on_the_order_given(values, random):
    shuffled = values.copy()
    random.shuffle(shuffled)
    group = np.zeros(len(values), dtype=np.int64)
    assert order_free_sums(group, np.array(values), 1) == order_free_sums(group, np.array(shuffled), 1)


def test_coarse_outcomes_need_one_limb_and_zeros_none_beyond():
    assert len(split_into_limbs(np.array([0.0, 1.0, 0.5, 3.0]), 4)) == 1
    assert len(split_into_limbs(np.zeros(3), 3)) == 1
    assert limb_quanta(0.0, 5) == [1.0]


def test_the_smallest_doubles_do_not_divide_by_zero():
    assert np.isfinite(split_into_limbs(np.array([1e-310, 0.0]), 2)).all()
