from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cmp.estimation import estimate
from cmp.estimation.arrays import _counted_cells
from cmp.estimation.cells import Cells
from cmp.estimation.estimators import combine_strata
from cmp.estimation.intervals import _moderated, _pooled, _unpooled
from cmp.estimation.moments import Moments

#: Sums in another order, and a square root of what they differ by.
ORDER = 1e-12


def cells_of(seed: int, level: float = 0.0, strata: int = 6) -> Cells:
    rng = np.random.default_rng(seed)
    rounds = 12 * strata
    z, s = rng.random((rounds, 5)) < 0.25, rng.integers(0, strata, rounds)
    y = level * s + rng.normal(size=rounds) + 3.0 * z[:, 0]
    y[rng.random(rounds) < 0.05] = np.nan
    return _counted_cells(z, y, s, strata, None, np.full(5 * strata, 0.25))


def moments_of(cells: Cells, estimator: str, weights: str) -> Moments:
    return combine_strata(cells, 5, estimator=estimator, weights=weights).moments


def agree(one: np.ndarray, two: np.ndarray) -> None:
    known = np.isfinite(two)
    assert known.tolist() == np.isfinite(one).tolist()
    size = float(np.abs(two[known]).max(initial=1.0))
    np.testing.assert_allclose(one[known], two[known], rtol=ORDER, atol=ORDER * size)


@settings(max_examples=30, deadline=None)
@given(
    st.integers(0, 10_000),
    st.integers(0, 6),
    st.sampled_from(["difference", "ht"]),
    st.sampled_from(["precision", "rounds"]),
    st.sampled_from([0.0, 100.0]),
)
def test_strata_summed_apart_and_added_are_what_they_are_together(seed, cut, estimator, weights, level):
    cells = cells_of(seed, level)
    early = cells.place < cut
    whole = moments_of(cells, estimator, weights)
    first, second = (moments_of(cells.select(rows), estimator, weights) for rows in (early, ~early))
    for added in (first + second, second + first):
        for field in fields(Moments):
            agree(getattr(added, field.name), getattr(whole, field.name))
        agree(added.replicate_squares, whole.replicate_squares)
        agree(added.utility, whole.utility)
        with np.errstate(divide="ignore", invalid="ignore"):
            for variance in (
                lambda sums: _moderated(sums, np.zeros(5, int), np.full(5, 3.0)),
                _pooled,
                lambda sums: _unpooled(sums, normal=False),
            ):
                for got, want in zip(variance(added), variance(whole), strict=True):
                    agree(got, want)


def test_adding_nothing_changes_nothing():
    cells = cells_of(1, 100.0)
    whole = moments_of(cells, "difference", "precision")
    nothing = moments_of(cells.select(np.zeros(len(cells.memory), bool)), "difference", "precision")
    for added in (whole + nothing, nothing + whole):
        for field in fields(Moments):
            agree(getattr(added, field.name), getattr(whole, field.name))


def test_a_table_is_made_of_the_moments_alone():
    cells = cells_of(2)
    contrast = combine_strata(cells, 5, estimator="difference", weights="precision")
    assert contrast.utility.tolist() == contrast.moments.utility.tolist()
    assert contrast.n1.tolist() == contrast.moments.rounds1.tolist()
    assert (contrast.n_strata - contrast.n_strata_empty).tolist() == contrast.moments.n_paired.tolist()


def test_strata_with_one_gap_have_no_spread_between_them():
    """A spread of 1e-33 instead of 0 would untie variances that are tied, and change the prior that is fitted."""
    z, y = np.tile([1, 0, 0, 0], 7), np.tile([0.3, 0.1, 0.1, 0.1], 7) + np.repeat(np.arange(7) * 0.7, 4)
    cells = _counted_cells((z == 1)[:, None], y, np.repeat(np.arange(7), 4), 7, None, np.full(7, 0.25))
    sums = combine_strata(cells, 1, estimator="difference", weights="precision").moments
    assert (sums.between + sums.replicate_squares)[0] < 1e-29
    exact = _counted_cells(
        (z == 1)[:, None],
        np.tile([0.3, 0.1, 0.1, 0.1], 7),
        np.repeat(np.arange(7), 4),
        7,
        None,
        np.full(7, 0.25),
    )
    assert (
        combine_strata(exact, 1, estimator="difference", weights="precision").moments.replicate_squares[0]
        == 0.0
    )


@pytest.mark.parametrize("level", [1e9, -1e9])
def test_two_values_far_from_zero_have_the_limits_of_zero_and_one(level):
    rng = np.random.default_rng(3)
    z, y, s = rng.random((60, 4)) < 0.3, (rng.random(60) < 0.3) * 1.0, rng.integers(0, 4, 60)
    plain, far = estimate(z, y, s).frame, estimate(z, y + level, s).frame
    for name in ("utility", "ci_low", "ci_high", "std_error", "p_value"):
        np.testing.assert_allclose(far[name], plain[name], rtol=ORDER, atol=ORDER)
