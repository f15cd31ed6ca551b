from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom, ttest_ind

from cmp.design import balanced_table
from cmp.estimation import estimate, newcombe_interval
from tests.estimation.golden import golden

#: Published limits were recomputed in doubles.
DOUBLES = 1e-12


@pytest.mark.parametrize("case", range(5))
def test_newcombe_is_the_published_method_10(case):
    want = golden("newcombe")[case]
    got = newcombe_interval(*want["exposed"], *want["control"])
    assert got == pytest.approx((want["difference"], want["low"], want["high"]), abs=DOUBLES)


@pytest.mark.parametrize("case", range(5))
def test_with_one_stratum_the_weighted_interval_is_newcombes(case):
    want = golden("newcombe")[case]
    (x1, n1), (x0, n0) = want["exposed"], want["control"]
    y = [1] * x1 + [0] * (n1 - x1) + [1] * x0 + [0] * (n0 - x0)
    row = estimate([1] * n1 + [0] * n0, y).frame.row(0, named=True)
    assert (row["utility"], row["ci_low"], row["ci_high"]) == pytest.approx(
        (want["difference"], want["low"], want["high"]), abs=DOUBLES
    )


def test_strata_enter_newcombe_at_their_effective_size():
    case = golden("weighted_newcombe")
    z, y, s = [], [], []
    for i, stratum in enumerate(case["strata"]):
        for arm in ("exposed", "control"):
            successes, rounds = stratum[arm]
            z += [arm == "exposed"] * rounds
            y += [1] * successes + [0] * (rounds - successes)
            s += [i] * rounds
    row = estimate(z, y, s).frame.row(0, named=True)
    assert (row["utility"], row["ci_low"], row["ci_high"]) == pytest.approx(
        (case["difference"], case["low"], case["high"]), abs=DOUBLES
    )


@pytest.mark.parametrize(("interval", "equal"), [("pooled", True), ("welch", False)])
def test_student_and_welch_are_scipys(interval, equal):
    rng = np.random.default_rng(2)
    y, z = rng.normal(size=30), np.arange(30) < 9
    row = estimate(z, y, interval=interval).frame.row(0, named=True)
    want = ttest_ind(y[z], y[~z], equal_var=equal)
    low, high = want.confidence_interval()
    assert (row["p_value"], row["df"]) == pytest.approx((want.pvalue, want.df), rel=1e-9)
    assert (row["ci_low"], row["ci_high"]) == pytest.approx((low, high), rel=1e-9)


def test_one_query_is_one_unit_however_many_rows_it_logged():
    row = estimate([1] * 4 + [0] * 4, [1, 0, 1, 0, 0, 0, 1, 0], interval="neyman").frame.row(0, named=True)
    assert (row["utility"], row["n_exposed"], row["n_control"]) == (0.25, 4, 4)
    assert row["std_error"] == pytest.approx(0.3818813, abs=1e-7)


def test_neyman_is_undefined_where_a_stratum_has_one_round_in_an_arm():
    z, s = np.tile([1, 0, 0], 6), np.repeat(np.arange(6), 3)
    y = np.random.default_rng(3).normal(size=18)
    row = estimate(z, y, s, interval="neyman").frame.row(0, named=True)
    assert row["std_error"] is None
    assert "n=1 in an arm" in row["reason"]
    assert estimate(z, y, s).frame["std_error"][0] > 0


def test_two_values_anywhere_are_proportions():
    rng = np.random.default_rng(4)
    z, y = rng.random((40, 3)) < 0.3, rng.integers(0, 2, 40)
    plain, signed = estimate(z, y).frame, estimate(z, 2 * y - 1).frame
    assert signed["interval"].to_list() == ["newcombe"] * 3
    np.testing.assert_allclose(signed["ci_high"], 2 * plain["ci_high"], atol=DOUBLES)
    assert signed["p_value"].to_list() == plain["p_value"].to_list()


def test_newcombe_is_refused_for_other_outcomes():
    with pytest.raises(ValueError, match="use 'moderated' or 'auto'"):
        estimate([1, 0, 0], [0.0, 0.5, 1.0], interval="newcombe")


@pytest.mark.parametrize("arguments", [(3, 2, 0, 4), (0, 0, 1, 2), (1, 2, -1, 2)])
def test_impossible_counts_are_refused(arguments):
    with pytest.raises(ValueError, match="successes lie between"):
        newcombe_interval(*arguments)
    for endless in (np.inf, np.nan):
        with pytest.raises(ValueError, match="four finite numbers"):
            newcombe_interval(1, endless, 1, 2)
    with pytest.raises(ValueError, match="level"):
        newcombe_interval(1, 2, 1, 2, level=1.0)


def outcomes(kind: str, mean: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    if kind == "continuous":
        return mean + rng.normal(0, 0.3, len(mean))
    if kind == "ordinal":
        return rng.binomial(4, mean) / 4
    if kind == "half_zero":
        return 2 * mean * rng.gamma(2, 0.5, len(mean)) * (rng.random(len(mean)) < 0.5)
    return (rng.random(len(mean)) < mean).astype(float)


@pytest.mark.parametrize("kind", ["binary", "rare", "continuous", "ordinal", "half_zero"])
@pytest.mark.parametrize("blocks", [1, 3])
def test_intervals_cover_at_the_nominal_rate_with_five_exposures(kind, blocks):
    """200 logs of 32 memories with additive effects, for which the contrast's expectation is known exactly.

    Coverage of the 32 intervals of one log is averaged; the log is the unit. Were the true mean coverage .93 and
    each log's 32 intervals one single event, 200 logs would fall below .87 with probability under 0.002; they are far
    from one event. A false failure is thus rarer than 1 in 500 for each of the ten cases.
    """
    logs, rounds, n, k = 200, 90 // blocks, 32, 2
    world = np.random.default_rng(21)
    stratum = np.repeat(np.arange(blocks), rounds)
    level = world.uniform(0.15, 0.35, len(stratum)) + 0.05 * stratum
    effect = np.where(world.random(n) < 0.2, 0.25, 0.0) if kind != "rare" else np.zeros(n)
    truth = effect - (effect.sum() - effect) / (n - 1)
    hits = 0
    for seed in range(logs):
        rng = np.random.default_rng([22, seed])
        table = np.concatenate([balanced_table(n, rounds, k, rng) for _ in range(blocks)])
        z = np.zeros((len(stratum), n), bool)
        z[np.arange(len(stratum))[:, None], table] = True
        mean = (0.05 if kind == "rare" else level) + z @ effect
        y = outcomes(kind, mean, rng)
        frame = estimate(z, y, stratum).frame
        hits += int(((frame["ci_low"].to_numpy() <= truth) & (truth <= frame["ci_high"].to_numpy())).sum())
    assert binom.cdf(173, logs, 0.93) < 0.002
    assert hits / (logs * n) > 0.87
    assert hits / (logs * n) < 0.995
