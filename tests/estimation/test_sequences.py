from __future__ import annotations

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import binom, nct, norm, t

from cmp.estimation import estimate
from cmp.estimation.sequences import OPTIMAL_AT, confidence_sequence
from cmp.estimation.table import Analysis

#: Quadrature of a smooth density.
QUADRATURE = 1e-6
#: Sums of a few squares.
ARITHMETIC = 1e-12


def prior_variance(level: float, optimal_at: float = OPTIMAL_AT) -> float:
    nats = -2 * np.log(1 - level)
    return (nats + np.log(1 + nats)) / optimal_at


@pytest.mark.parametrize("n", [2, 6, 15, 80])
def test_the_p_value_is_the_inverse_of_the_mixture_of_t_likelihood_ratios(n):
    """By quadrature: the density of t under a standardized effect N(0, rho^2), over that under none."""
    x = np.random.default_rng(n).normal(0.6, 1, n)
    statistic = np.sqrt(n) * x.mean() / x.std(ddof=1)
    spread = np.sqrt(prior_variance(0.95))
    top = quad(
        lambda e: nct.pdf(statistic, n - 1, np.sqrt(n) * e) * norm.pdf(e, scale=spread), -4, 4, limit=200
    )[0]
    want = min(1.0, t.pdf(statistic, n - 1) / top)
    got = confidence_sequence(x).p_value[-1]
    assert np.isnan(got) if n == 2 else got == pytest.approx(want, rel=QUADRATURE)


def test_with_many_blocks_it_is_the_asymptotic_confidence_sequence():
    x = np.random.default_rng(1).normal(2, 3, 4000)
    n, rho2 = len(x), prior_variance(0.95)
    want = x.std(ddof=1) / np.sqrt(n) * np.sqrt((1 + 1 / (n * rho2)) * np.log((n * rho2 + 1) / 0.05**2))
    found = confidence_sequence(x)
    assert found.high[-1] - found.estimate[-1] == pytest.approx(want, rel=0.003)  # of order log(n) / n


def test_limits_leave_out_zero_just_when_the_p_value_is_below_the_level():
    found = confidence_sequence(np.random.default_rng(2).normal(0.3, 1, 300))
    known = np.isfinite(found.low)
    assert ((found.low > 0) | (found.high < 0))[known].tolist() == (found.p_value < 0.05)[known].tolist()
    assert (found.p_value < 0.05).any()
    assert (found.p_value[known] >= 0.05).any()


def sequences(kind: str, count: int, blocks: int, n1: int, n0: int) -> tuple[np.ndarray, np.ndarray]:
    """Return differences of block means without any effect, and their variances as the controls tell them."""
    rng = np.random.default_rng([3, len(kind), n1])
    shape = (count, blocks, n1 + n0)
    y = {
        "normal": rng.standard_normal,
        "heavy": lambda shape: rng.standard_t(3, shape),
        "binary 5 %": lambda shape: (rng.random(shape) < 0.05) * 1.0,
        "lognormal": lambda shape: rng.lognormal(size=shape),
    }[kind](shape)
    gap = y[..., :n1].mean(-1) - y[..., n1:].mean(-1)
    return gap, y[..., n1:].var(-1, ddof=1) * (1 / n1 + 1 / n0)


@pytest.mark.parametrize("kind", ["normal", "heavy", "binary 5 %", "lognormal"])
@pytest.mark.parametrize(("n1", "n0"), [(2, 30), (1, 15)])
def test_five_hundred_looks_leave_out_the_truth_in_at_most_their_share(kind, n1, n0):
    """600 sequences. At a true rate of .05, more than 52 cross with probability below 1e-4."""
    gaps, variances = sequences(kind, 600, 500, n1, n0)
    crossed = 0
    for gap, variance in zip(gaps, variances, strict=True):
        found = confidence_sequence(gap, variances=variance)
        crossed += bool(((found.low > 0) | (found.high < 0)).any())
    assert binom.sf(52, 600, 0.05) < 1e-4
    assert crossed <= 52


def test_normal_replicates_need_no_variances():
    """The t mixture is exact for them: 600 sequences, probability below 1e-4 of more than 52 at .05."""
    gaps, _ = sequences("normal", 600, 500, 1, 2)
    crossed = sum(bool((confidence_sequence(gap).p_value <= 0.05).any()) for gap in gaps)
    assert crossed <= 52


def test_a_real_effect_is_found_and_the_limits_close_in():
    found = confidence_sequence(np.random.default_rng(4).normal(1, 1, 500))
    width = found.high - found.low
    assert found.low[-1] > 0.7
    assert width[499] < width[99] < width[24]
    assert np.isnan(width[:3]).all()
    assert width[499] < 2 * 2 * 1.96 / np.sqrt(500)


def test_the_first_looks_have_no_limits_and_missing_blocks_repeat_the_last():
    x = np.random.default_rng(5).normal(size=30)
    full = confidence_sequence(x)
    holes = np.full(40, np.nan)
    places = np.sort(np.random.default_rng(6).choice(40, 30, replace=False))
    holes[places] = x
    found = confidence_sequence(holes)
    for name in ("estimate", "low", "high", "p_value"):
        np.testing.assert_allclose(getattr(found, name)[places], getattr(full, name), rtol=1e-12)
    gap = np.flatnonzero(np.isnan(holes))[-1]
    assert found.low[gap] == found.low[gap - 1]
    assert np.isnan(confidence_sequence([1.0, 2.0]).low).all()
    assert len(confidence_sequence([]).low) == 0


def test_weights_count_blocks_and_a_constant_and_a_scale_pass_through():
    rng = np.random.default_rng(7)
    x, w = rng.normal(size=50), rng.uniform(1, 2, 50)
    plain, moved = confidence_sequence(x, w), confidence_sequence(1e6 + 8 * x, 3 * w)
    assert plain.estimate[-1] == pytest.approx(np.average(x, weights=w), abs=ARITHMETIC)
    np.testing.assert_allclose((moved.high - moved.low)[10:], 8 * (plain.high - plain.low)[10:], rtol=1e-6)


def test_variances_are_a_floor():
    x = np.tile([0.1, -0.1], 30)
    plain, same, more = (confidence_sequence(x, variances=np.full(60, v)) for v in (0.0, 1e-4, 1.0))
    assert (plain.high[-1], plain.low[-1]) == (same.high[-1], same.low[-1])
    assert more.high[-1] > 5 * plain.high[-1]
    assert np.isnan(confidence_sequence(np.full(9, 0.3)).low).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([[1.0]],), "estimates have shape"),
        (([1.0, np.inf],), "are infinite"),
        (([1.0, 2.0], [1.0]), "weights are"),
        (([1.0, 2.0], [1.0, -1.0]), "weights are"),
        (([1.0, 2.0], None, [1.0, np.nan]), "variances are"),
    ],
)
def test_blocks_that_do_not_fit_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        confidence_sequence(*arguments)
    with pytest.raises(ValueError, match="level"):
        confidence_sequence([1.0], level=1.0)


# In the table


def blocks_of(count: int, seed: int, effect: float = 0.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng([8, seed])
    z = np.concatenate([rng.permutation(np.arange(16) < 2) for _ in range(count)])
    strata = np.repeat(np.arange(count), 16)
    return z, rng.normal(size=16 * count) + effect * z + np.sin(strata), strata


def test_a_table_shows_the_last_look_at_its_blocks():
    z, y, s = blocks_of(30, 0, effect=1.0)
    row = estimate(z, y, s, interval="sequence").frame.row(0, named=True)
    gaps = [y[z & (s == b)].mean() - y[~z & (s == b)].mean() for b in range(30)]
    within = np.mean([y[~z & (s == b)].var(ddof=1) for b in range(30)])
    want = confidence_sequence(gaps, variances=np.full(30, within * (1 / 2 + 1 / 14)))
    for name, value in (
        ("utility", want.estimate[-1]),
        ("ci_low", want.low[-1]),
        ("ci_high", want.high[-1]),
        ("p_value", want.p_value[-1]),
    ):
        assert row[name] == pytest.approx(value, rel=1e-9)
    assert (row["interval"], row["df"], row["state"]) == ("sequence", None, "ESTIMATED")
    plain = estimate(z, y, s).frame.row(0, named=True)
    assert row["ci_low"] < plain["ci_low"] < plain["ci_high"] < row["ci_high"]


def test_a_memory_with_too_few_blocks_has_no_limits_and_says_so():
    z, y, s = blocks_of(3, 1)
    row = estimate(z, y, s, interval="sequence").frame.row(0, named=True)
    assert row["ci_low"] is row["p_value"] is row["std_error"] is None
    assert "too few blocks" in row["reason"]
    assert row["utility"] is not None


def test_daily_looks_at_a_table_of_rare_successes_leave_out_the_truth_in_at_most_their_share():
    """Tables of 100 memories at 40 looks: 2 exposures in blocks of 16, 5 % successes, nothing has an effect.

    Memories share rounds and so are dependent; at a true .05 for each, more than 20 of 100 would take a chance below
    1e-4 even were they in ten groups that cross together.
    """
    rng = np.random.default_rng(9)
    z = np.concatenate([rng.permuted(np.tile(np.arange(16) < 2, (100, 1)), axis=1).T for _ in range(120)])
    y, s = (rng.random(len(z)) < 0.05) * 1.0, np.repeat(np.arange(120), 16)
    crossed = np.zeros(100, bool)
    for look in range(3, 123, 3):
        rows = s < look
        p = estimate(z[rows], y[rows], s[rows], interval="sequence").frame["p_value"].fill_null(1.0)
        crossed |= p.to_numpy() <= 0.05
    assert crossed.sum() <= 20


def test_horvitz_thompson_has_no_sequence():
    with pytest.raises(ValueError, match="difference of two means"):
        Analysis(estimator="ht", interval="sequence")
