from __future__ import annotations

import numpy as np

from cmp.estimation.terms import Terms, least_outcomes


def test_sums_are_of_known_rounds_about_the_least_outcome_of_the_stratum():
    y = np.array([3.0, np.nan, 5.0, -1.0, 2.5, np.nan])
    stratum, scope = np.array([0, 0, 0, 1, 1, 2]), np.array([0, 0, 1])
    terms = Terms.of(y, stratum, scope)
    assert terms.offset.tolist() == [3.0, -1.0, 0.0]
    arm = terms.arm(terms.sums(stratum, np.arange(6), 3))
    assert arm.n.tolist() == [2, 2, 0]
    assert arm.missing.tolist() == [1, 0, 1]
    assert arm.total.tolist() == [2.0, 3.5, 0.0]
    assert arm.squares.tolist() == [4.0, 12.25, 0.0]


def test_sums_and_their_differences_do_not_depend_on_the_order_of_rounds():
    rng = np.random.default_rng(0)
    y = rng.normal(size=300) * 10.0 ** rng.integers(-8, 8, 300)
    stratum = rng.integers(0, 3, 300)
    order = rng.permutation(300)
    one, two = (Terms.of(y[rows], stratum[rows], np.zeros(3, dtype=int)) for rows in (np.arange(300), order))
    whole = [terms.sums(s, np.arange(300), 3) for terms, s in ((one, stratum), (two, stratum[order]))]
    assert (whole[0] == whole[1]).all()
    back = np.argsort(order)
    parts = one.sums(stratum[:100], np.arange(100), 3), two.sums(stratum[:100], back[:100], 3)
    assert (whole[0] - parts[0] == whole[1] - parts[1]).all()


def test_what_one_scope_holds_rounds_no_other():
    y, stratum = np.array([0.1, 0.2, 1e100, 2e100]), np.array([0, 0, 1, 1])
    apart = Terms.of(y, stratum, np.array([0, 1]))
    alone = Terms.of(y[:2], stratum[:2], np.array([0]))
    first = apart.arm(apart.sums(stratum, np.arange(4), 2)).total[0]
    assert first == alone.arm(alone.sums(stratum[:2], np.arange(2), 1)).total[0]


def test_the_least_outcome_is_that_of_its_stratum():
    assert least_outcomes(np.array([2.0, np.nan, 7.0]), np.array([1, 0, 1]), 3).tolist() == [0.0, 2.0, 0.0]
