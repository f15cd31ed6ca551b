from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import hypergeom

from cmp.estimation import convolution
from cmp.estimation.convolution import masses_by_transform, masses_of_sums, portions_by_size, range_of_sums

#: A transform's error, of a whole of 1.
OF_A_WHOLE = 1e-12

MARGINS = np.array([[10, 3, 4], [7, 2, 6], [30, 5, 1], [4, 2, 2]])


def by_scipy(margins: np.ndarray) -> np.ndarray:
    """Masses of the sum from its least value on, one stratum after the other."""
    masses = np.ones(1)
    for n, n1, k in margins:
        x = np.arange(max(0, n1 + k - n), min(n1, k) + 1)
        masses = np.convolve(masses, hypergeom(n, k, n1).pmf(x))
    return masses


def test_ranges_are_those_of_the_masses():
    low, high = range_of_sums(MARGINS)
    assert low.tolist() == [0, 1, 0, 0]
    assert high.tolist() == [3, 2, 1, 2]


def test_both_ways_give_the_masses_of_the_sum():
    n_strata = np.array([3, 1, 4])
    margins = np.concatenate([MARGINS[:3], MARGINS[3:], MARGINS])
    want = [by_scipy(MARGINS[:3]), by_scipy(MARGINS[3:]), by_scipy(MARGINS)]
    size = np.array([len(masses) - 1 for masses in want])
    term_by_term = masses_of_sums(margins, n_strata, int(size.max()))
    for found, masses in zip(term_by_term, want, strict=True):
        np.testing.assert_allclose(found[: len(masses)], masses, rtol=1e-12)
        assert not found[len(masses) :].any()
    seen = []
    for rows, found in masses_by_transform(margins, np.ones(8, dtype=int), n_strata, size):
        for row, each in zip(rows.tolist(), found, strict=True):
            np.testing.assert_allclose(each[: len(want[row])], want[row], atol=OF_A_WHOLE)
            assert np.abs(each[len(want[row]) :]).max(initial=0.0) < OF_A_WHOLE
            seen.append(row)
    assert sorted(seen) == [0, 1, 2]


def test_strata_that_are_alike_are_one_kind_with_a_count():
    margins, count = MARGINS[:2], np.array([3, 2])
    want = by_scipy(np.repeat(margins, count, axis=0))
    ((rows, found),) = masses_by_transform(margins, count, np.array([2]), np.array([len(want) - 1]))
    assert rows.tolist() == [0]
    np.testing.assert_allclose(found[0, : len(want)], want, atol=OF_A_WHOLE)


@pytest.mark.parametrize("constant", ["_AT_ONCE", "_TERMS_AT_ONCE"])
def test_doing_less_at_once_changes_nothing(constant, monkeypatch):
    margins, n_kinds = np.concatenate([MARGINS, MARGINS[::-1][:2]]), np.array([4, 2])
    size = np.array([8, 3])
    count = np.array([1, 2, 1, 1, 1, 1])

    def masses() -> dict[int, list[float]]:
        found = masses_by_transform(margins, count, n_kinds, size)
        return {
            row: each.tolist() for rows, some in found for row, each in zip(rows.tolist(), some, strict=True)
        }

    whole = masses()
    monkeypatch.setattr(convolution, constant, 1)
    for row, each in masses().items():
        np.testing.assert_allclose(each, whole[row], atol=OF_A_WHOLE)


def test_portions_hold_every_row_once_and_no_more_than_was_said(monkeypatch):
    monkeypatch.setattr(convolution, "_AT_ONCE", 12)
    size = np.array([5, 1, 2, 30, 1, 5, 0])
    portions = list(portions_by_size(np.array([0, 1, 2, 3, 5, 6]), size))
    assert sorted(np.concatenate(portions).tolist()) == [0, 1, 2, 3, 5, 6]
    assert all(len(rows) == 1 or len(rows) * (size[rows].max() + 1) <= 12 for rows in portions)
    assert [rows.tolist() for rows in portions] == [[3], [0, 5], [6, 1, 2]]
