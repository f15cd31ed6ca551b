from __future__ import annotations

from collections import Counter
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, fisher_exact

from cmp.design import balanced_table
from cmp.estimation import estimate, lattices, randomization
from cmp.estimation.randomization import MemoryRounds, randomization_test
from cmp.estimation.table import Analysis

#: Shares of whole numbers, and differences of means of a few small ones.
ARITHMETIC = 1e-12
#: The same through products of hypergeometric chances.
CHANCES = 1e-9

#: Sizes of strata and of their exposed arms: one, several, an arm that is larger than the other, one exposure each.
DESIGNS = [[(6, 2)], [(7, 4)], [(4, 2), (5, 1)], [(3, 2), (3, 1), (4, 3)], [(4, 1), (4, 1), (3, 1)]]


def assignments(design: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    """Return every assignment, a row each, and the stratum of each round."""
    sets = [[np.isin(np.arange(n), chosen) for chosen in combinations(range(n), n1)] for n, n1 in design]
    strata = np.repeat(np.arange(len(design)), [n for n, _ in design])
    return np.array([np.concatenate(parts) for parts in product(*sets)]), strata


def difference(y: np.ndarray, z: np.ndarray, strata: np.ndarray, weights: str) -> float:
    total, scale = 0.0, 0.0
    for s in np.unique(strata):
        here = strata == s
        n1, n0 = (here & z).sum(), (here & ~z).sum()
        weight = n1 * n0 / (n1 + n0) if weights == "precision" else n1 + n0
        total += weight * (y[here & z].mean() - y[here & ~z].mean())
        scale += weight
    return total / scale


def share_as_far(y, z, every, strata, weights) -> float:
    far = abs(difference(y, z, strata, weights))
    return float(np.mean([abs(difference(y, other, strata, weights)) >= far - 1e-10 for other in every]))


@pytest.mark.parametrize("weights", ["precision", "rounds"])
@pytest.mark.parametrize("design", DESIGNS)
def test_the_p_value_is_the_share_of_assignments_at_least_as_far_and_its_own_distribution(design, weights):
    """Under the sharp null P(p <= a) is a at every a that p can take, and below a elsewhere."""
    every, strata = assignments(design)
    for y in (np.random.default_rng(1).normal(size=len(strata)), np.arange(len(strata)) % 3.0):
        found = [randomization_test(y, z, strata, weights=weights) for z in every]
        p = np.array([test.p_value for test in found])
        for z, test in list(zip(every, found, strict=True))[::7]:
            assert test.difference == pytest.approx(difference(y, z, strata, weights), abs=ARITHMETIC)
            assert test.p_value == pytest.approx(share_as_far(y, z, every, strata, weights), abs=ARITHMETIC)
        for a in p:
            assert np.mean(p <= a + ARITHMETIC) == pytest.approx(a, abs=ARITHMETIC)
        assert {(test.method, test.monte_carlo_error) for test in found} == {("enumeration", 0.0)}


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(DESIGNS), st.data())
def test_on_a_lattice_the_exact_distribution_is_that_of_the_list(design, data):
    every, strata = assignments(design)
    y = np.array([data.draw(st.integers(0, 4)) for _ in strata]) / 4 + 10.0 * strata
    z = every[data.draw(st.integers(0, len(every) - 1))]
    listed = randomization_test(y, z, strata).p_value
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(randomization, "MAX_ENUMERATED", 0)
        found = randomization_test(y, z, strata)
    assert (found.method, found.monte_carlo_error) == ("lattice", 0.0)
    assert found.p_value == pytest.approx(listed, abs=CHANCES)


@given(st.integers(2, 30), st.data())
def test_with_arms_of_one_size_and_two_values_it_is_fishers_test(n1, data):
    x1, x0 = (data.draw(st.integers(0, n1)) for _ in range(2))
    y, z = np.r_[np.arange(n1) < x1, np.arange(n1) < x0], np.arange(2 * n1) < n1
    want = fisher_exact([[x1, n1 - x1], [x0, n1 - x0]]).pvalue
    assert randomization_test(y.astype(float), z).p_value == pytest.approx(want, abs=CHANCES)


@pytest.mark.parametrize("shape", [(90, 5), (40, 20), (36, 29)])
def test_drawing_assignments_agrees_with_the_exact_p_value(shape, monkeypatch):
    """Twelve logs, 99,999 draws each: 5 standard errors, so a false failure is rarer than 1 in 10^5."""
    n, n1 = shape
    strata = np.arange(n) % 2
    for seed in range(4):
        rng = np.random.default_rng([3, seed])
        z = rng.permutation(np.arange(n) < n1)
        y = rng.integers(0, 5, n) / 4 + 0.2 * z
        exact = randomization_test(y, z, strata)
        with monkeypatch.context() as patch:
            patch.setattr(lattices, "MAX_LATTICE_WORK", 0)
            drawn = randomization_test(y, z, strata, draws=99_999)
        assert (exact.method, drawn.method) == ("lattice", "monte_carlo")
        assert abs(drawn.p_value - exact.p_value) < 5 * drawn.monte_carlo_error + 1e-5


@pytest.mark.parametrize(("n", "m"), [(6, 2), (7, 3), (5, 5), (4, 4), (1, 1)])
def test_subsets_are_drawn_as_often_as_each_other(n, m):
    """Chance that a right sampler's largest deviation exceeds 5.5 standard errors: below 35 x 4e-8."""
    draws, ways = 20_000, len(list(combinations(range(n), m)))
    picks = np.sort(randomization._subsets(np.random.default_rng(4), (draws,), n, m), axis=-1)
    seen = Counter(map(tuple, picks.tolist()))
    assert len(seen) == ways
    error = np.sqrt(draws / ways * (1 - 1 / ways))
    assert max(abs(count - draws / ways) for count in seen.values()) <= 5.5 * error


def test_many_picks_of_few_rounds_are_drawn_as_often_as_each_other():
    """The other of the two algorithms: 40 of 80 rounds, each in half of 20,000 subsets, 5.5 standard errors."""
    picks = randomization._subsets(np.random.default_rng(5), (10_000, 2), 80, 40)
    assert (np.diff(np.sort(picks, axis=-1), axis=-1) > 0).all()
    assert np.abs(np.bincount(picks.ravel(), minlength=80) - 10_000).max() < 5.5 * np.sqrt(20_000 / 4)


@pytest.mark.parametrize("weights", ["precision", "rounds"])
@pytest.mark.parametrize("design", [[(7, 3)], [(4, 2), (5, 1)], [(4, 1), (3, 1), (3, 2)]])
def test_the_interval_holds_just_the_effects_that_the_test_does_not_reject(design, weights):
    every, strata = assignments(design)
    rng = np.random.default_rng(6)
    for level in (0.6, 0.8):
        y, z = rng.normal(size=len(strata)), every[rng.integers(len(every))]
        row = estimate(z, y, strata, interval="randomization", level=level, weights=weights).frame.row(
            0, named=True
        )
        assert row["p_value"] == pytest.approx(share_as_far(y, z, every, strata, weights), abs=ARITHMETIC)
        width = row["ci_high"] - row["ci_low"]
        for effect in np.linspace(row["ci_low"] - width / 2, row["ci_high"] + width / 2, 42):
            inside = row["ci_low"] < effect < row["ci_high"]
            assert inside == (share_as_far(y - effect * z, z, every, strata, weights) > 1 - level + 1e-10)


@pytest.mark.parametrize("level", [0.5, 0.8])
def test_intervals_cover_a_constant_effect_in_at_least_their_share_of_all_assignments(level):
    every, strata = assignments([(4, 2), (5, 2)])
    y0, effect = np.random.default_rng(7).exponential(size=9), 1.7
    covered = []
    for z in every:
        row = estimate(z, y0 + effect * z, strata, interval="randomization", level=level).frame.row(
            0, named=True
        )
        covered.append(row["ci_low"] - 1e-12 <= effect <= row["ci_high"] + 1e-12)
    assert level <= np.mean(covered) <= level + 2 / len(every) + ARITHMETIC


def world(kind: str, seed: int, rounds: int = 90, n: int = 32) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng([8, seed])
    z = np.zeros((rounds, n), bool)
    z[np.arange(rounds)[:, None], balanced_table(n, rounds, 2, rng)] = True
    effect = np.where(np.arange(n) < 6, 0.4, 0.0)
    noise = {"normal": rng.normal, "lognormal": rng.lognormal}[kind](size=rounds)
    return z, z @ effect + noise, effect - (effect.sum() - effect) / (n - 1)


@pytest.mark.parametrize("kind", ["normal", "lognormal"])
def test_randomization_intervals_cover_with_five_exposures(kind):
    """60 logs x 32 memories. Were the true mean coverage .94 and a log one single event, fewer than 49 of 60 would be
    covered with probability below 1e-3; it is far from one event, so coverage below 49/60 does not pass for chance.
    """
    hits = []
    for seed in range(60):
        z, y, truth = world(kind, seed)
        f = estimate(z, y, interval="randomization").frame
        hits.append(((f["ci_low"].to_numpy() <= truth) & (truth <= f["ci_high"].to_numpy())).mean())
        assert ((f["p_value"] <= 0.05) == ((f["ci_low"] > 0) | (f["ci_high"] < 0))).all()
    assert binom.cdf(48, 60, 0.94) < 1e-3
    assert 0.90 < np.mean(hits) < 0.985


def test_renaming_memories_and_strata_and_reordering_rounds_change_no_bit():
    z, y, _ = world("normal", 0)
    strata, order, memories = (
        np.arange(90) // 30,
        np.random.default_rng(9).permutation(90),
        np.arange(31, -1, -1),
    )
    plain = estimate(z, y, strata, interval="randomization").frame
    moved = estimate(
        z[order][:, memories], y[order], (5 - strata)[order], interval="randomization"
    ).frame.reverse()
    assert plain.drop("memory_id").equals(moved.drop("memory_id"))


def test_adding_a_constant_changes_no_draw():
    z, y, _ = world("normal", 1)
    plain, moved = (estimate(z, y + c, interval="randomization").frame for c in (0.0, 1024.0))
    assert plain["p_value"].equals(moved["p_value"])
    np.testing.assert_allclose(plain["ci_low"], moved["ci_low"], atol=1e-9)


def test_memories_with_equal_rounds_have_equal_p_values():
    y = np.r_[np.random.default_rng(10).normal(size=20), np.zeros(60)]
    z = np.zeros((80, 2), bool)
    z[[0, 3, 5, 60, 61], 0] = z[[0, 3, 5, 70, 71], 1] = True
    p = estimate(z, y, interval="randomization").frame["p_value"]
    assert p[0] == p[1]


def test_missing_outcomes_and_barred_rounds_are_in_no_assignment():
    rng = np.random.default_rng(11)
    z, y = rng.random((9, 2)) < 0.4, rng.normal(size=9)
    y[4], barred = np.nan, np.arange(9) == 7
    row = estimate(z, y, eligible=~barred, interval="randomization", level=0.6).frame.row(0, named=True)
    keep = ~np.isnan(y) & ~barred
    assert row["p_value"] == pytest.approx(randomization_test(y[keep], z[keep, 0]).p_value, abs=ARITHMETIC)


def test_too_few_assignments_have_a_p_value_and_no_limits():
    row = estimate([1, 1, 0, 0], [3.0, 4, 1, 2], interval="randomization").frame.row(0, named=True)
    assert (row["utility"], row["p_value"]) == (2.0, pytest.approx(1 / 3))
    assert row["ci_low"] is row["ci_high"] is row["std_error"] is None
    assert (row["state"], "too few assignments" in row["reason"]) == ("ESTIMATED", True)
    flat = estimate([1, 1, 0, 0], [7.0] * 4, interval="randomization", level=0.5).frame.row(0, named=True)
    assert (flat["p_value"], flat["ci_low"]) == (1.0, None)
    single = estimate(np.arange(40) < 1, np.arange(40.0), interval="randomization").frame.row(0, named=True)
    assert (single["state"], single["reason"], single["ci_low"]) == ("UNDEREXPOSED", "n1=1", None)


def test_without_both_arms_there_is_no_test():
    assert randomization_test([1.0, 2.0], [1, 1]) is None
    assert randomization_test([1.0, np.nan], [1, 0]) is None
    assert estimate([1, 1, 0], [1, 0, None], interval="randomization").frame["p_value"].to_list() == [None]


def test_what_cannot_be_randomized_is_refused():
    pi = np.array([0.5, 0.2, 0.4, 0.3, 0.3])
    with pytest.raises(ValueError, match="pass strata in which it is"):
        estimate(
            [1, 0, 1, 0, 0], [1.0, 0, 1, 2, 0], propensity=pi, estimator="hajek", interval="randomization"
        )
    with pytest.raises(ValueError, match="difference of two means"):
        estimate([1, 0], [1, 0], propensity=0.5, estimator="ht", interval="randomization")
    with pytest.raises(ValueError, match="with cards"):
        Analysis(interval="randomization", reference="card")
    for arguments, message in (
        (([1, 0], [1]), "give one of each"),
        (([1, 0], [1, 2]), "other than True"),
    ):
        with pytest.raises(ValueError, match=message):
            randomization_test(*arguments)
    with pytest.raises(ValueError, match="weights="):
        randomization_test([1, 0], [1, 0], weights="none")
    with pytest.raises(ValueError, match="at least 1"):
        randomization_test([1, 0], [1, 0], draws=0)


def test_rounds_that_are_not_those_of_the_statistics_are_refused():
    from cmp.estimation.arrays import _counted_cells
    from cmp.estimation.estimators import combine_strata

    y, z, s = np.arange(6.0), np.arange(6) < 2, np.zeros(6, int)
    cells = _counted_cells(z[:, None], y, s, 1, None, np.array([np.nan]))
    contrast = combine_strata(cells, 1, estimator="difference", weights="precision")
    with pytest.raises(ValueError, match="rounds given for row 0 have difference"):
        randomization.randomization_limits(
            contrast, lambda _: MemoryRounds(y + z, z, s), weights="precision", level=0.95
        )


def test_a_hundred_outcomes_off_a_lattice_are_drawn_and_a_constant_is_no_evidence():
    rng = np.random.default_rng(12)
    assert randomization_test(rng.normal(size=100), np.arange(100) < 10).method == "monte_carlo"
    assert randomization_test(np.ones(100), np.arange(100) < 10).p_value == 1.0
    assert lattices.lattice_p_value([rng.normal(size=100)], [np.arange(100) < 10]) is None


def test_thirty_two_memories_take_well_under_a_second_each():
    import time

    z, y, _ = world("normal", 2)
    start = time.perf_counter()
    estimate(z, y, interval="randomization")
    assert time.perf_counter() - start < 10  # 0.1 s on an idle machine
