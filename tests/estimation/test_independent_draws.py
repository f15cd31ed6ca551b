from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from cmp.estimation import estimate
from cmp.estimation.cells import Outcomes
from cmp.estimation.exact_tests import conditional_p_values
from cmp.estimation.independent_draws import Draws, p_values_of_draws

#: Transforms and a root of the tilt are right to this.
EXACT = 1e-11


def listed(pi, y, drawn, stratum=None) -> Draws:
    stratum = np.zeros(len(y), dtype=int) if stratum is None else stratum
    one, z = np.ones(len(y)), drawn.astype(float)
    return Draws(np.zeros(len(y), dtype=int), stratum, pi, one, z, y, y * z)


def of_bits(m: int = 1) -> Outcomes:
    return Outcomes(np.zeros(m), np.ones(m), np.ones(m, dtype=bool), np.full(m, 3.0), np.ones(m, dtype=bool))


def by_enumeration(pi, y, drawn, stratum) -> float:
    """Go through every assignment with as many draws in each stratum, weighted by what chance gives it."""
    n1 = np.bincount(stratum, drawn)
    masses: dict[int, float] = {}
    for z in product((False, True), repeat=len(y)):
        if (np.bincount(stratum, z) == n1).all():
            chance = np.prod(np.where(z, pi, 1 - pi))
            x = int(y[np.array(z)].sum())
            masses[x] = masses.get(x, 0.0) + chance
    own = masses[int(y[drawn].sum())]
    return sum(mass for mass in masses.values() if mass <= own * (1 + 1e-7)) / sum(masses.values())


@pytest.mark.parametrize("short", [0, 64])
@pytest.mark.parametrize("seed", range(12))
def test_p_values_are_those_of_every_assignment_with_as_many_draws(seed, short, monkeypatch):
    monkeypatch.setattr("cmp.estimation.independent_draws._SHORT", short)
    rng = np.random.default_rng(seed)
    t = 11
    stratum = rng.integers(0, 1 + seed % 3, t)
    pi, y, drawn = rng.uniform(0.02, 0.9, t), (rng.random(t) < 0.4) * 1.0, rng.random(t) < 0.4
    drawn[np.flatnonzero(stratum == 0)[:2]] = [True, False]  # one stratum at least has both arms
    found = p_values_of_draws(listed(pi, y, drawn, stratum), of_bits())
    both = [(drawn & (stratum == s)).any() and (~drawn & (stratum == s)).any() for s in stratum]
    known = np.array(both)
    want = by_enumeration(pi[known], y[known], drawn[known], stratum[known])
    assert found[0] == pytest.approx(want, rel=EXACT)


def test_rounds_of_one_propensity_may_come_together():
    rng = np.random.default_rng(5)
    pi = np.repeat([0.1, 0.3, 0.6], 30)
    y, drawn = (rng.random(90) < 0.3) * 1.0, rng.random(90) < pi
    zero, sums = (
        np.zeros(3, dtype=int),
        [np.add.reduceat(v * 1.0, [0, 30, 60]) for v in (drawn, y, y * drawn)],
    )
    together = Draws(zero, zero, np.array([0.1, 0.3, 0.6]), np.full(3, 30.0), *sums)
    one, apart = (p_values_of_draws(d, of_bits())[0] for d in (together, listed(pi, y, drawn)))
    assert one == pytest.approx(apart, rel=EXACT)


@pytest.mark.parametrize("chance", [0.001, 0.2, 0.97])
def test_with_one_propensity_it_is_the_conditional_test_whatever_the_propensity(chance):
    rng = np.random.default_rng(2)
    stratum, y, drawn = np.repeat([0, 1, 2], 40), (rng.random(120) < 0.3) * 1.0, rng.random(120) < 0.2
    found = p_values_of_draws(listed(np.full(120, chance), y, drawn, stratum), of_bits())
    arms = [np.bincount(stratum, values).astype(int) for values in (drawn * y, drawn, ~drawn * y, ~drawn)]
    want = conditional_p_values(np.zeros(3, dtype=int), *arms, 1)
    assert found[0] == pytest.approx(want[0], rel=1e-9)


def test_what_is_not_two_valued_or_has_one_arm_only_has_none():
    y, drawn = np.array([0.0, 1.0, 1.0]), np.array([True, False, True])
    pi = np.full(3, 0.5)
    counts = Outcomes(
        np.zeros(1), np.ones(1), np.zeros(1, dtype=bool), np.full(1, 3.0), np.zeros(1, dtype=bool)
    )
    assert np.isnan(p_values_of_draws(listed(pi, y, drawn), counts)).all()
    assert np.isnan(p_values_of_draws(listed(pi, y, drawn | True), of_bits())).all()


def test_two_values_need_not_be_0_and_1():
    rng = np.random.default_rng(8)
    pi, y = rng.uniform(0.1, 0.5, 80), (rng.random(80) < 0.3) * 1.0
    drawn = rng.random(80) < pi
    other = Outcomes(
        np.full(1, -3.0), np.full(1, 4.0), np.ones(1, dtype=bool), np.full(1, 3.0), np.ones(1, dtype=bool)
    )
    plain, scaled = (
        p_values_of_draws(listed(pi, values, drawn), of)[0]
        for values, of in ((y, of_bits()), (7 * y - 3, other))
    )
    assert plain == scaled


def test_where_successes_are_too_many_to_go_through_the_interval_decides(monkeypatch):
    rng = np.random.default_rng(3)
    pi, y = rng.uniform(0.1, 0.4, (60, 1)), (rng.random(60) < 0.3) * 1.0
    drawn = rng.random((60, 1)) < pi
    exact = estimate(drawn, y, propensity=pi, estimator="hajek").frame["p_value"][0]
    monkeypatch.setattr("cmp.estimation.independent_draws.MAX_EXACT_SUPPORT", 1)
    of_interval = estimate(drawn, y, propensity=pi, estimator="hajek").frame["p_value"][0]
    assert of_interval is not None
    assert exact != of_interval


def test_which_interval_was_asked_for_changes_no_exact_p_value():
    rng = np.random.default_rng(3)
    pi, y = rng.uniform(0.1, 0.4, (60, 1)), (rng.random(60) < 0.3) * 1.0
    drawn = rng.random((60, 1)) < pi
    found = {
        estimate(drawn, y, propensity=pi, estimator="hajek", interval=kind).frame["p_value"][0]
        for kind in ("auto", "neyman", "moderated")
    }
    assert len(found) == 1


@pytest.mark.parametrize("chance", [1e-300, 1e-12, 1 - 1e-12])
def test_propensities_at_the_edge_are_no_trouble(chance):
    rng = np.random.default_rng(6)
    pi = np.where(np.arange(40) % 2, chance, 0.3)
    y, drawn = (rng.random(40) < 0.4) * 1.0, np.where(np.arange(40) % 2, chance > 0.5, rng.random(40) < 0.3)
    drawn[1] = True
    found = p_values_of_draws(listed(pi, y, drawn), of_bits())[0]
    assert 0 < found <= 1


def test_the_smallest_p_values_are_right():
    """200 rounds of two propensities, all exposed successes and no control ones: one assignment is as unlikely."""
    pi, drawn = np.where(np.arange(200) % 2, 0.25, 0.24), np.arange(200) < 60
    found = p_values_of_draws(listed(pi, drawn * 1.0, drawn), of_bits())[0]
    from scipy.special import comb

    assert found == pytest.approx(1.0 / comb(200, 60), rel=0.5)


def test_more_propensities_than_are_told_apart_give_nearly_the_same(monkeypatch):
    rng = np.random.default_rng(11)
    pi, y = rng.uniform(0.02, 0.2, 900), (rng.random(900) < 0.1) * 1.0
    drawn = rng.random(900) < pi
    rough = p_values_of_draws(listed(pi, y, drawn), of_bits())[0]
    monkeypatch.setattr("cmp.estimation.independent_draws._MOST_GROUPS", 10**6)
    assert rough == pytest.approx(p_values_of_draws(listed(pi, y, drawn), of_bits())[0], rel=1e-3)


def test_rare_successes_are_not_called_surprising_too_often():
    """1,200 memories in logs of a growing store, nothing has an effect, 5 % successes.

    The interval's own p-values are at most .001 in .005 of them. A share of 1,200 memories of which one in a thousand
    is so exceeds .0035 with probability below .002, more were they correlated.
    """
    size = np.linspace(20, 40, 200).astype(int)
    eligible = np.arange(40) < size[:, None]
    pi, p = np.broadcast_to(2.0 / size[:, None], eligible.shape), []
    for seed in range(30):
        rng = np.random.default_rng([9, seed])
        keys = np.where(eligible, rng.random(eligible.shape), 2.0)
        drawn = np.zeros(eligible.shape, dtype=bool)
        np.put_along_axis(drawn, np.argsort(keys, axis=1)[:, :2], True, axis=1)
        y = (rng.random(200) < 0.05) * 1.0
        p += (
            estimate(drawn, y, eligible=eligible, propensity=pi, estimator="hajek").frame["p_value"].to_list()
        )
    shares = [np.mean([value is not None and value <= level for value in p]) for level in (0.001, 0.01, 0.05)]
    assert shares[0] <= 0.0035
    assert shares[1] <= 0.0200
    assert shares[2] <= 0.0650
