"""Propensities that differ inside a stratum: uniform draws from rosters that grow, and other people's logs."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from scipy.stats import binom

from cmp.estimation import estimate
from cmp.estimation.arrays import _weighted_cells

#: Sums over all assignments of a few small numbers times their probabilities.
ARITHMETIC = 1e-12
#: A p-value is found by halving to 1e-16; its interval's limit is within this of 0 at that level.
HALVING = 1e-9


def every_draw(pi: np.ndarray) -> list[tuple[np.ndarray, float]]:
    """Return all assignments of rounds that are drawn apart, each with its probability."""
    return [
        (np.array(bits, bool), float(np.prod(np.where(bits, pi, 1 - pi))))
        for bits in product((0, 1), repeat=len(pi))
    ]


PI = 1.0 / np.array([2, 2, 3, 3, 4, 5, 5])
Y1, Y0 = np.array([3.0, 1, 2, 5, 0, 4, 2]), np.array([1.0, 1, 0, 2, 0, 3, 2])


def test_over_all_draws_weighted_arms_hold_every_round_and_every_outcome_once():
    """The weights of either arm add up to n in expectation, and its weighted outcomes to their potential sums."""
    weight, total = np.zeros(2), np.zeros(2)
    for z, chance in every_draw(PI):
        y = np.where(z, Y1, Y0)
        cells = _weighted_cells(z[:, None], y, np.zeros(7, int), 1, np.ones((7, 1), bool), PI[:, None])
        for i, arm in enumerate((cells.exposed, cells.control)):
            weight[i] += chance * arm.weight[0]
            total[i] += chance * (arm.total[0] + cells.offset[0] * arm.weight[0])
    np.testing.assert_allclose(weight, 7, atol=ARITHMETIC)
    np.testing.assert_allclose(total, [Y1.sum(), Y0.sum()], atol=10 * ARITHMETIC)


def test_over_all_draws_horvitz_thompson_is_unbiased_and_hajek_nearly_so():
    truth, means, chances = (Y1 - Y0).mean(), {"ht": 0.0, "hajek": 0.0}, 0.0
    for z, chance in every_draw(PI):
        y = np.where(z, Y1, Y0)
        both = z.any() and not z.all()
        for estimator in means:
            value = estimate(z, y, propensity=PI, estimator=estimator).frame["utility"][0]
            if estimator == "ht" or both:
                means[estimator] += chance * value
            else:
                assert value is None
        chances += chance * both
    assert means["ht"] == pytest.approx(truth, abs=ARITHMETIC)
    # a ratio of unbiased sums: its bias is of order 1/n, and far below a standard error (0.8 here)
    assert means["hajek"] / chances == pytest.approx(truth, abs=0.15)


def test_hajek_is_exact_in_every_draw_where_only_the_memory_matters():
    for z, _ in every_draw(PI):
        if z.any() and not z.all():
            u = estimate(z, 5.0 + 2.0 * z, propensity=PI, estimator="hajek").frame["utility"][0]
            assert u == pytest.approx(2.0, abs=ARITHMETIC)


def growing(kind: str, seed: int, effects: bool = True, rounds: int = 200) -> tuple:
    """Return a log whose roster grows from 20 to 40, two drawn a round, while the level drifts."""
    rng = np.random.default_rng([31, seed])
    size = np.linspace(20, 40, rounds).astype(int)
    z = np.zeros((rounds, 40), bool)
    for row, n in zip(z, size, strict=True):
        row[rng.choice(n, 2, replace=False)] = True
    eligible = np.arange(40) < size[:, None]
    effect = np.where((np.arange(40) % 5 == 0) & effects, 0.25, 0.0)
    drift = np.linspace(0, 0.15, rounds)
    mean = (0.2 if effects else 0.05) + (drift if effects else 0) + z @ effect
    y = (rng.random(rounds) < mean) * 1.0 if kind == "binary" else mean + rng.normal(0, 0.3, rounds)
    # the others that may have the slot, over the rounds in which the memory may
    others = (effect * eligible).sum(axis=1)[:, None] - effect
    truth = effect - np.array(
        [(others[:, m] / (size - 1))[eligible[:, m]].mean() if eligible[:, m].any() else 0 for m in range(40)]
    )
    return z, y, eligible, np.broadcast_to(2.0 / size[:, None], z.shape), truth


@pytest.mark.parametrize("kind", ["binary", "continuous"])
def test_intervals_cover_while_rosters_grow_and_levels_drift(kind):
    """120 logs of 40 memories (.945-.955 was measured); those that join last have one exposure or none.

    Were the true mean coverage .93 and a log one single event, 102 of 120 or fewer would be covered with probability
    below 2e-3; it is far from one event. A worst memory of true coverage .92 falls below .83 in 120 logs with
    probability below 2e-3.
    """
    hits, shown = np.zeros(40), np.zeros(40)
    for seed in range(120):
        z, y, eligible, pi, truth = growing(kind, seed)
        f = estimate(z, y, eligible=eligible, propensity=pi, estimator="hajek").frame
        low, high = (f[name].to_numpy().astype(float) for name in ("ci_low", "ci_high"))
        known = np.isfinite(low) & (f["state"] == "ESTIMATED").to_numpy()
        shown += known
        hits += known & (low <= truth) & (truth <= high)
        assert set(f["interval"]) == {"newcombe" if kind == "binary" else "moderated"}
    assert binom.cdf(101, 120, 0.93) < 2e-3
    assert binom.cdf(99, 120, 0.92) < 2e-3
    coverage = hits[:36] / shown[:36]
    assert (shown[:36] > 60).all()
    assert 0.90 < coverage.mean() < 0.985
    assert coverage.min() > 0.83


def test_without_an_exact_test_a_p_value_is_one_less_the_level_at_which_the_interval_touches_zero(
    monkeypatch,
):
    monkeypatch.setattr("cmp.estimation.independent_draws.MAX_EXACT_SUPPORT", -1)
    for seed in range(5):
        z, y, eligible, pi, _ = growing("binary", seed)
        arguments = {"eligible": eligible, "propensity": pi, "estimator": "hajek"}
        f = estimate(z, y, **arguments).frame
        known = f["ci_low"].is_not_null().to_numpy()
        out = (f["ci_low"] > 0) | (f["ci_high"] < 0)
        assert out.to_numpy()[known].tolist() == (f["p_value"] < 0.05).to_numpy()[known].tolist()
        for m in np.flatnonzero(known)[:6]:
            p = f["p_value"][int(m)]
            if 1e-6 < p < 0.9:
                row = estimate(z, y, level=1 - p, **arguments).frame.row(int(m), named=True)
                assert min(abs(row["ci_low"]), abs(row["ci_high"])) < HALVING


@pytest.mark.parametrize("kind", ["binary", "continuous"])
def test_weighted_p_values_reject_no_more_than_their_level_without_effects(kind):
    """60 logs x 30 memories. At a rate of .05 the mean has a standard error of .0051 were memories independent; with
    three times that variance .08 is 3.4 standard errors away, a chance of 4e-4. Exact tests of so few successes
    reject less often.
    """
    rejected = []
    for seed in range(60):
        z, y, eligible, pi, _ = growing(kind, 1000 + seed, effects=False)
        f = estimate(z, y, eligible=eligible, propensity=pi, estimator="hajek").frame[:30]
        rejected.append((f.filter(state="ESTIMATED")["p_value"] <= 0.05).mean())
    assert {"binary": 0.005, "continuous": 0.02}[kind] < np.mean(rejected) < 0.08
