from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from cmp.design import balanced_table
from cmp.errors import UndecidableError
from cmp.estimation import estimate
from cmp.estimation.shrinkage import shrink, shrink_arrays
from cmp.estimation.table import Analysis, Utilities

#: Sums and one root found to the last bit.
ARITHMETIC = 1e-12

# Efron and Morris (1975), table 1: hits in the first 45 at-bats of 1970, and the average over the rest of the season
HITS = np.array([18, 17, 16, 15, 14, 14, 13, 12, 11, 11, 10, 10, 10, 10, 10, 9, 8, 7])
REST = np.array(
    [346, 298, 276, 222, 273, 270, 263, 210, 269, 230, 264, 256, 303, 264, 226, 285, 316, 200]
) / 1000  # fmt: skip


def stabilized(share: np.ndarray) -> np.ndarray:
    return np.sqrt(45) * np.arcsin(2 * share - 1)


def test_eighteen_batters_are_shrunk_as_published():
    """Efron and Morris (1975): squares about the mean 18.96, factor .209, squared errors 17.56 and 5.01, ratio 3.50.

    Their errors are from averages rounded to three digits, hence 0.02.
    """
    x, truth = stabilized(HITS / 45), stabilized(REST)
    found = shrink_arrays(x, np.ones(18))
    assert ((x - x.mean()) ** 2).sum() == pytest.approx(18.96, abs=0.005)
    factor = (found.mean - x.mean()) / (x - x.mean())
    np.testing.assert_allclose(factor, 0.209, atol=0.0005)
    errors = [((value - truth) ** 2).sum() for value in (x, found.mean)]
    assert errors == pytest.approx([17.56, 5.01], abs=0.02)
    assert errors[0] / errors[1] == pytest.approx(3.50, abs=0.02)


def test_with_equal_variances_it_is_the_closed_form():
    """Morris (1983), section 2: factor (k - 3) V / S, variance V (1 - (k - 1) B / k) + 2 B^2 (x - mean)^2 / (k - 3)."""
    x, v = stabilized(HITS / 45), 0.7
    k, squares = 18, ((x - x.mean()) ** 2).sum()
    b = (k - 3) * v / squares
    found = shrink_arrays(x, np.full(k, np.sqrt(v)))
    np.testing.assert_allclose(found.mean, (1 - b) * x + b * x.mean(), atol=ARITHMETIC)
    want = v * (1 - (k - 1) / k * b) + 2 * b**2 / (k - 3) * (x - x.mean()) ** 2
    np.testing.assert_allclose(found.sd, np.sqrt(want), atol=ARITHMETIC)
    np.testing.assert_allclose(found.prior_sd, np.sqrt(squares / (k - 1) - v), atol=1e-9)


estimates = st.lists(st.tuples(st.floats(-5, 5), st.floats(0.1, 3)), min_size=4, max_size=12)


@given(estimates)
def test_the_prior_explains_just_what_noise_does_not(pairs):
    x, error = np.array(pairs).T
    found = shrink_arrays(x, error)
    weight = 1 / (error**2 + found.prior_sd**2)
    mean = np.average(x, weights=weight)
    spread = (weight * (x - mean) ** 2).sum()
    np.testing.assert_allclose(found.prior_mean, mean, atol=1e-9)
    if found.prior_sd[0] > 1e-6:
        assert spread == pytest.approx(len(x) - 1, rel=1e-6)
    else:
        assert spread <= len(x) - 1 + 1e-6


@given(estimates)
def test_a_posterior_mean_lies_between_the_estimate_and_the_family(pairs):
    x, error = np.array(pairs).T
    found = shrink_arrays(x, error)
    low, high = np.minimum(x, found.prior_mean), np.maximum(x, found.prior_mean)
    assert (found.mean >= low - 1e-9).all()
    assert (found.mean <= high + 1e-9).all()
    assert (found.sd > 0).all()


@pytest.mark.parametrize(("k", "variance"), [(4, 1.0), (6, 0.5), (20, 0.3), (20, 4.0)])
def test_over_the_prior_posteriors_cover_and_err_less(k, variance):
    """500 families. At a true coverage of .94, fewer than 452 of 500 families has a chance below 1e-3."""
    rng = np.random.default_rng([1, k])
    covered, raw, shrunk = [], 0.0, 0.0
    for _ in range(500):
        v = rng.uniform(0.5, 2, k)
        truth = rng.normal(3, np.sqrt(variance), k)
        x = truth + rng.normal(0, np.sqrt(v))
        found = shrink_arrays(x, np.sqrt(v))
        covered.append((np.abs(found.mean - truth) < 1.96 * found.sd).mean())
        raw += ((x - truth) ** 2).sum()
        shrunk += ((found.mean - truth) ** 2).sum()
    assert binom.cdf(451, 500, 0.94) < 1e-3
    assert np.mean(covered) > 0.904
    assert shrunk < 0.9 * raw


@pytest.mark.parametrize("kind", ["normal", "binary"])
def test_posteriors_of_memories_cover_over_the_prior_and_err_less(kind):
    """100 logs of 32 memories and 90 rounds (.940 and .945 were measured in 300, errors a third of the estimates').

    At a true mean coverage of .93 with a log one single event, fewer than 83 of 100 has a chance below 1e-3.
    """
    covered, raw, shrunk, n = [], 0.0, 0.0, 32
    for seed in range(100):
        rng = np.random.default_rng([5, seed])
        z = np.zeros((90, n), bool)
        z[np.arange(90)[:, None], balanced_table(n, 90, 2, rng)] = True
        effect = rng.normal(0, 0.3 if kind == "normal" else 0.08, n)
        truth = effect - (effect.sum() - effect) / (n - 1)
        noise = rng.normal(size=90)
        y = z @ effect + noise if kind == "normal" else (rng.random(90) < 0.3 + z @ effect) * 1.0
        f = shrink(estimate(z, y)).frame
        low, high = (f[name].to_numpy() for name in ("posterior_low", "posterior_high"))
        covered.append(((low <= truth) & (truth <= high)).mean())
        raw += ((f["utility"].to_numpy() - truth) ** 2).sum()
        shrunk += ((f["posterior_mean"].to_numpy() - truth) ** 2).sum()
    assert binom.cdf(82, 100, 0.93) < 1e-3
    assert np.mean(covered) > 0.90
    assert shrunk < 0.6 * raw


def test_families_are_shrunk_apart_and_small_ones_not_at_all():
    rng = np.random.default_rng(3)
    x, error = rng.normal(size=13), rng.uniform(0.5, 1, 13)
    family = np.r_[np.repeat("a", 6), np.repeat("b", 4), np.repeat("c", 3)]
    whole = shrink_arrays(x, error, family)
    for name in "ab":
        rows = family == name
        alone = shrink_arrays(x[rows], error[rows])
        for got, want in zip(whole, alone, strict=True):
            assert got[rows].tolist() == want.tolist()
    assert np.isnan(whole.mean[family == "c"]).all()


def test_reordering_changes_no_bit_and_moving_all_by_a_constant_only_the_mean():
    rng = np.random.default_rng(4)
    x, error, order = rng.normal(size=20), rng.uniform(0.5, 1, 20), rng.permutation(20)
    plain, moved = shrink_arrays(x, error), shrink_arrays(x[order], error[order])
    assert plain.mean[order].tolist() == moved.mean.tolist()
    far = shrink_arrays(x + 1e6, error)
    np.testing.assert_allclose(far.mean - 1e6, plain.mean, atol=1e-8)
    np.testing.assert_allclose(far.sd, plain.sd, atol=1e-8)


def test_what_has_no_estimate_has_no_posterior():
    found = shrink_arrays([1.0, 2.0, 4.0, 8.0, np.nan, 3.0], [1.0, 1, 1, 1, 1, np.nan])
    assert np.isnan(found.mean).tolist() == [False] * 4 + [True] * 2
    assert np.isnan(shrink_arrays([np.nan], [np.nan]).mean).all()
    assert len(shrink_arrays([], []).mean) == 0
    z = np.zeros((60, 6), bool)
    z[np.arange(50), np.arange(50) % 5] = True
    f = estimate(z, np.random.default_rng(5).normal(size=60)).shrunken().frame
    assert f["posterior_mean"].null_count() == f["posterior_high"].null_count() == 1
    assert f["state"][5] == "NEVER_EXPOSED"


def test_a_memory_that_is_not_shrunk_keeps_its_interval():
    frame = pl.DataFrame(
        {
            "scope": ["s"] * 5,
            "memory_id": list("abcde"),
            "utility": [-1e6, -2e3, 0.0, 5e5, 1e6],
            "std_error": [1.0] * 5,
            "df": [7.0, None, 30.0, 4.0, 9.0],
        }
    )
    f = Utilities(frame, Analysis(level=0.9)).shrunken().frame
    np.testing.assert_allclose(f["posterior_mean"], f["utility"], atol=1e-5)
    half = (f["posterior_high"] - f["posterior_low"]).to_numpy() / 2
    np.testing.assert_allclose(half, [1.8946, 1.6449, 1.6973, 2.1318, 1.8331], atol=1e-4)


def test_the_probability_of_being_useful_is_refused_relative_to_the_pool():
    z = np.random.default_rng(6).random((80, 6)) < 0.3
    u = estimate(z, z[:, 0] + np.random.default_rng(7).normal(size=80))
    with pytest.raises(UndecidableError, match="relative to the pool"):
        u.shrunken(probability=True)
    absolute = replace(u, analysis=replace(u.analysis, reference="card")).shrunken(probability=True).frame
    p = absolute["posterior_positive"].to_numpy()
    assert ((p > 0.5) == (absolute["posterior_mean"] > 0).to_numpy()).all()
    assert ((p > 0.975) == (absolute["posterior_low"] > 0).to_numpy()).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1.0], [1.0, 2.0]), "one of each"),
        (([np.inf, 1.0], [1.0, 1.0]), "estimates are finite"),
        (([1.0, 1.0], [1.0, 0.0]), "finite and positive"),
        (([1.0, 1.0], [1.0, 1.0], ["a"]), "families have shape"),
    ],
)
def test_estimates_that_do_not_fit_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        shrink_arrays(*arguments)
