"""Margins of strata: counted alike, added up, they give the p-values of the strata themselves."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cmp.estimation.exact_tests import conditional_p_values
from cmp.estimation.margins import count_margins

N_MEMORIES = 3

strata = st.lists(
    st.tuples(
        st.integers(0, N_MEMORIES - 1),
        st.integers(0, 3),
        st.integers(0, 3),
        st.integers(0, 5),
        st.integers(0, 5),
    ),
    min_size=0,
    max_size=12,
)


def arrays(rows):
    table = np.array(rows, dtype=np.int64).reshape(-1, 5)
    memory, n1, x1, n0, x0 = table.T
    return memory, np.minimum(x1, n1), n1, np.minimum(x0, n0), n0


@given(strata, st.integers(0, 12))
def test_margins_give_the_p_values_of_their_strata_however_these_are_parted(rows, cut):
    whole = conditional_p_values(*arrays(rows), N_MEMORIES)
    parts = [count_margins(*arrays(part), N_MEMORIES) for part in (rows[:cut], rows[cut:])]
    np.testing.assert_array_equal((parts[0] + parts[1]).p_values(), whole)
    np.testing.assert_array_equal((parts[1] + parts[0]).p_values(), whole)


def test_moved_margins_give_the_same_p_values_in_other_rows():
    rows = [(0, 2, 1, 5, 3), (1, 1, 1, 4, 0), (1, 1, 1, 4, 0)]
    found = count_margins(*arrays(rows), N_MEMORIES)
    moved = found.moved(np.array([4, 1, 2]), 5)
    np.testing.assert_array_equal(moved.p_values()[[4, 1, 2]], found.p_values())
    assert np.isnan(moved.p_values()[[0, 3]]).all()
