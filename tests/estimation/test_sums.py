from __future__ import annotations

from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cmp.estimation.sums import limb_quanta, limb_sums, order_free_sums, split_into_limbs

finite = st.floats(-1e9, 1e9).filter(lambda x: x == 0 or abs(x) > 1e-200)


@given(st.lists(finite, min_size=1, max_size=40), st.randoms())
def test_sums_of_limbs_are_bit_equal_in_every_order(values, random):
    order = list(range(len(values)))
    random.shuffle(order)
    limbs = split_into_limbs(np.array(values), len(values))
    group = np.zeros(len(values), dtype=np.int64)
    straight, shuffled = (limb_sums(group, limbs, np.array(rows), 1) for rows in (range(len(values)), order))
    assert (straight == shuffled).all()


@given(st.lists(finite, min_size=1, max_size=40))
def test_limb_sums_are_the_rational_sum_to_the_last_bits(values):
    limbs = split_into_limbs(np.array(values), len(values))
    group = np.zeros(len(values), dtype=np.int64)
    total = sum(Fraction(float(part)) for part in limb_sums(group, limbs, np.arange(len(values)), 1)[:, 0])
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
