"""Missing outcomes where propensities differ inside strata: bounds by filling in, p-values by every assignment."""

from __future__ import annotations

from itertools import product

import numpy as np
import polars as pl
import pytest

from cmp.estimation import estimate, utilities
from cmp.estimation.independent_draws import Draws, missingness_of_draws
from cmp.foreign import from_frame
from tests.estimation.logs import HandMadeLog
from tests.estimation.test_merging import OPTIONS, growing
from tests.estimation.test_weighted import every_draw

#: Sums of a few numbers of order 1 with weights up to 20, in two orders.
ARITHMETIC = 1e-12
#: The same of outcomes near 100 and differences near 1.
FAR_FROM_ZERO = 1e-11
#: Masses are sums of products of up to ten probabilities, tilted by a root.
EXACT = 1e-11

WAYS = [(estimator, weights) for estimator in ("hajek", "ht") for weights in ("precision", "rounds")]


def rows_of(z, y, pi, stratum) -> pl.DataFrame:
    """Return a row for every round and memory; z and pi have shape (T, N)."""
    t, n = z.shape
    return pl.DataFrame(
        {
            "round_id": np.repeat(np.arange(t), n),
            "memory_id": np.tile([f"m{m:03}" for m in range(n)], t),
            "assigned": z.ravel(),
            "propensity": pi.ravel(),
            "stratum": np.repeat(stratum, n).astype(str),
            "outcome": pl.Series(np.repeat(y, n)).fill_nan(None),
        }
    )


def bounded(z, y, pi, stratum, estimator, weights) -> pl.DataFrame:
    log = from_frame(rows_of(z, y, pi, stratum), stratum="stratum")
    return utilities(log, estimator=estimator, weights=weights, outcome_range=(0, 1)).frame


def uneven(seed: int, t: int = 30, n: int = 3):
    rng = np.random.default_rng(seed)
    pi = rng.choice([0.05, 0.35, 0.6], (t, n))
    z = rng.random((t, n)) < pi
    z[:2], z[-2:] = [[True], [False]], [[True], [False]]  # each of two strata holds both arms
    return z, rng.random(t), pi, np.repeat([0, 1], t // 2)


@pytest.mark.parametrize(("estimator", "weights"), WAYS)
@pytest.mark.parametrize("seed", range(4))
def test_with_nothing_missing_both_bounds_are_the_utility(seed, estimator, weights):
    frame = bounded(*uneven(seed), estimator, weights)
    assert frame["utility"].null_count() == 0
    for name in ("bound_low", "bound_high"):
        assert frame[name].to_list() == pytest.approx(frame["utility"].to_list(), abs=ARITHMETIC)


@pytest.mark.parametrize(("estimator", "weights"), WAYS)
@pytest.mark.parametrize("seed", range(4))
def test_bounds_are_the_extremes_over_every_filling_in(seed, estimator, weights):
    z, y, pi, stratum = uneven(seed)
    lost = np.random.default_rng([seed, 1]).choice(30, 4, replace=False)
    found = []
    for fill in product((0.0, 1.0), repeat=len(lost)):
        filled = y.copy()
        filled[lost] = fill
        found.append(bounded(z, filled, pi, stratum, estimator, weights)["utility"].to_numpy())
    y[lost] = np.nan
    frame = bounded(z, y, pi, stratum, estimator, weights)
    assert frame["n_missing_exposed"].sum() > 0
    assert frame["bound_low"].to_numpy() == pytest.approx(np.min(found, axis=0), abs=ARITHMETIC)
    assert frame["bound_high"].to_numpy() == pytest.approx(np.max(found, axis=0), abs=ARITHMETIC)


def with_outcomes(log: HandMadeLog, values: dict[str, float]) -> HandMadeLog:
    found = HandMadeLog.__new__(type(log))
    found.__dict__.update(log.__dict__)
    found.rows = {name: list(rows) for name, rows in log.rows.items()}
    for round_id, value in values.items():
        found.add("outcomes", round_id=round_id, metric="reward", value=value, revision=0)
    return found


@pytest.mark.parametrize("options", [OPTIONS, *({"estimator": way[0], "weights": way[1]} for way in WAYS)])
@pytest.mark.parametrize("seed", [0, 3])
def test_bounds_of_a_log_are_the_extremes_over_every_filling_in_whatever_the_strata(seed, options):
    """Rosters that grow, blocks merged or not, exposures other than the design expects."""
    log, _ = growing(seed, [3, 4, 5, 11, 2, 9, 3], missing=0.12)
    known = {entry["round_id"] for entry in log.rows["outcomes"]}
    lost = [entry["round_id"] for entry in log.rows["rounds"] if entry["round_id"] not in known]
    assert 2 <= len(lost) <= 7
    found = [
        utilities(with_outcomes(log, dict(zip(lost, fill, strict=True))), **options).frame["utility"]
        for fill in product((90.0, 120.0), repeat=len(lost))
    ]
    got = utilities(log, outcome_range=(90, 120), **options).frame
    want = np.array([column.to_numpy() for column in found])
    estimated = ~np.isnan(want).any(axis=0)
    assert estimated.sum() > 3
    for name, extreme in (("bound_low", want.min(axis=0)), ("bound_high", want.max(axis=0))):
        assert got[name].to_numpy()[estimated] == pytest.approx(extreme[estimated], rel=0, abs=FAR_FROM_ZERO)


@pytest.mark.parametrize("estimator", ["difference", "hajek", "ht"])
def test_bounds_of_sums_are_those_of_the_log(tmp_path, estimator):
    from cmp import utility_statistics
    from tests.estimation.test_additive import blocks_of

    log, _ = growing(4, [3, 4, 5, 11, 2, 9, 3], missing=0.2)
    one, two = (
        utility_statistics(blocks_of(log, names), estimator=estimator)
        for names in (("b00", "b02", "b03"), ("b01", "b04", "b05", "b06"))
    )
    added = (one + two).utilities(outcome_range=(-1e9, 1e9)).frame
    whole = utilities(log, estimator=estimator, outcome_range=(-1e9, 1e9)).frame
    for name in ("bound_low", "bound_high"):
        assert added[name].to_list() == pytest.approx(whole[name].to_list(), rel=ARITHMETIC)


PI = np.array([0.5, 0.5, 0.5, 0.4, 0.3, 0.1, 0.1, 0.05, 0.05])
LOST = np.array([0, 0, 1, 0, 0, 1, 0, 1, 1], bool)  # mostly where draws are rare, whatever was drawn


def conditional(z: np.ndarray, stratum: np.ndarray) -> float:
    """Return the p-value over every assignment with as many draws in each stratum."""
    masses: dict[int, float] = {}
    for other, chance in every_draw(PI):
        if (np.bincount(stratum, other) == np.bincount(stratum, z)).all():
            masses[int(LOST[other].sum())] = masses.get(int(LOST[other].sum()), 0.0) + chance
    own = masses[int(LOST[z].sum())]
    return sum(mass for mass in masses.values() if mass <= own * (1 + 1e-7)) / sum(masses.values())


@pytest.mark.parametrize("stratum", [np.zeros(9, int), np.array([0, 1, 0, 1, 0, 1, 0, 1, 0])])
@pytest.mark.parametrize("source", ["arrays", "rows"])
def test_p_missing_is_valid_over_every_assignment_under_uneven_draws(stratum, source):
    """Each assignment is a memory of its own, or one of two memories in a scope of its own: one of them is drawn."""
    draws = every_draw(PI)
    z, chance = np.array([draw for draw, _ in draws]).T, np.array([chance for _, chance in draws])
    y = np.where(LOST, np.nan, np.arange(9.0))
    if source == "arrays":
        pi = np.repeat(PI[:, None], len(draws), axis=1)
        frame = estimate(z, y, stratum, propensity=pi, estimator="hajek").frame
    else:
        two = np.stack([PI, 1 - PI], axis=1)
        scopes = [
            rows_of(np.stack([draw, ~draw], axis=1), y, two, stratum).with_columns(
                pl.format("{}-{}", pl.lit(f"{s:03}"), "round_id").alias("round_id"), scope=pl.lit(f"{s:03}")
            )
            for s, draw in enumerate(z.T)
        ]
        log = from_frame(pl.concat(scopes), stratum="stratum", scope="scope")
        frame = utilities(log, estimator="hajek").frame.filter(memory_id="m000").sort("scope")
    p = frame["p_missing"].to_numpy()
    exposed = np.array([np.bincount(stratum, draw, 2) for draw in z.T])
    size = np.bincount(stratum, minlength=2)
    tested = ((exposed > 0) & (exposed < size)).any(axis=1)
    assert np.isnan(p).tolist() == (~tested).tolist()
    for level in np.unique(p[tested]):
        assert chance[p <= level].sum() <= level + ARITHMETIC
    assert p[tested].min() < 0.05
    for m in np.flatnonzero(tested)[::37]:
        both = ((exposed[m] > 0) & (exposed[m] < size))[stratum]
        if both.all():
            assert p[m] == pytest.approx(conditional(z[:, m], stratum), rel=EXACT)


def test_rounds_that_lose_their_outcomes_whatever_was_drawn_are_no_difference_by_arm():
    """200 memories of one log; with p-values valid, more than 21 below .05 have a chance of 2e-4."""
    rng, late = np.random.default_rng(0), np.arange(400) >= 200
    pi = np.broadcast_to(np.where(late, 0.05, 0.5)[:, None], (400, 200))
    z, y = rng.random((400, 200)) < pi, rng.normal(size=400)
    y[rng.random(400) < np.where(late, 0.5, 0.02)] = np.nan
    p = estimate(z, y, propensity=pi, estimator="hajek").frame["p_missing"]
    assert (p < 0.05).sum() <= 21


def test_in_merged_strata_p_missing_is_that_of_the_blocks():
    log, _ = growing(2, [3] * 20, missing=0.3)
    merged, plain = utilities(log, **OPTIONS).frame, utilities(log, estimator="hajek").frame
    assert merged["p_missing"].to_list() == plain["p_missing"].to_list()
    assert (plain["p_missing"] < 1).any()


@pytest.mark.parametrize(("strata", "rounds", "support"), [(1, 600, 1), (150, 5, 5)])
def test_where_too_many_are_missing_to_go_through_p_missing_is_nearly_the_exact_one(
    monkeypatch, strata, rounds, support
):
    """Either a stratum is too large to go through, or there are too many to convolve them."""
    rng, t = np.random.default_rng(5), strata * rounds
    pi, stratum = rng.choice([0.1, 0.3, 0.6], t), np.repeat(np.arange(strata), rounds)
    lost = (rng.random(t) < 0.7 - pi) * 1.0
    zero, one = np.zeros(t, dtype=int), np.ones(t)
    for shift in (0.0, 0.05):
        z = (rng.random(t) < pi + shift * lost) * 1.0
        draws = Draws(zero, stratum, pi, one, z, lost, lost * z)
        exact = missingness_of_draws(draws, 1)[0]
        with monkeypatch.context() as patch:
            patch.setattr("cmp.estimation.independent_draws.MAX_EXACT_SUPPORT", support)
            # a normal distribution in place of one of some dozens of steps
            assert missingness_of_draws(draws, 1)[0] == pytest.approx(exact, abs=0.08)
