from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest
from scipy.stats import binom

from cmp.design import balanced_table
from cmp.estimation import estimate
from cmp.estimation.adjustment import MAX_COMPANION_GAIN, adjusted_estimate, companion_part
from experiments.worlds import Size, make_world

#: Sums over every draw, in doubles.
EXACT = 1e-12
#: What a fit leaves: eigenvectors and a line search.
FITTED = 1e-7
#: What a log of each world is measured with: draws, and 1 in 1000 of a false alarm on either side.
DRAWS, FALSE_ALARM = 300, 1e-3


def drawn(table: np.ndarray, n: int) -> np.ndarray:
    assigned = np.zeros((len(table), n), dtype=bool)
    np.put_along_axis(assigned, table, values=True, axis=1)
    return assigned


def balanced_tables(rounds: int, n: int, k: int):
    """Every table in which each memory stands in as many rows."""
    rows = [np.isin(np.arange(n), members) for members in combinations(range(n), k)]
    for table in product(rows, repeat=rounds):
        assigned = np.array(table)
        if (assigned.sum(axis=0) == rounds * k // n).all():
            yield assigned


def contrast(assigned: np.ndarray, outcomes: np.ndarray) -> np.ndarray:
    return (outcomes * assigned).sum(0) / assigned.sum(0) - (outcomes * ~assigned).sum(0) / (~assigned).sum(0)


@pytest.mark.parametrize("barred", [0, 2])
@pytest.mark.parametrize(("n", "k"), [(5, 1), (5, 2), (6, 4)])
def test_a_companions_part_is_nothing_on_average_drawn_or_not(n, k, barred):
    """Nor has what could not be drawn any part in it, whatever its effect."""
    effects = np.random.default_rng(1).normal(size=n + barred)
    sets = np.array([np.isin(np.arange(n + barred), members) for members in combinations(range(n), k)])
    eligible = np.broadcast_to(np.arange(n + barred) < n, sets.shape)
    part = companion_part(np.tile(effects, (len(sets), 1)), sets, eligible)
    for arm in (sets, ~sets):
        np.testing.assert_allclose((part * arm)[:, :n].sum(axis=0), 0.0, atol=EXACT)


def test_with_effects_from_elsewhere_any_outcomes_are_estimated_without_bias():
    """Outcomes are arbitrary numbers for each round and set: nothing adds up."""
    rounds, n, k = 4, 4, 2
    rng = np.random.default_rng(2)
    effects = np.tile(rng.normal(size=n), (rounds, 1))
    outcome = {(t, m): rng.normal() for t in range(rounds) for m in combinations(range(n), k)}
    found = []
    for assigned in balanced_tables(rounds, n, k):
        y = np.array([outcome[t, tuple(np.flatnonzero(row))] for t, row in enumerate(assigned)])
        part = companion_part(effects, assigned, np.ones_like(assigned))
        found.append(contrast(assigned, y[:, None] - part))
    for m in range(n):
        means = [
            np.mean([y for (_, s), y in outcome.items() if (m in s) == shown]) for shown in (True, False)
        ]
        assert np.mean(found, axis=0)[m] == pytest.approx(means[0] - means[1], abs=EXACT)


@pytest.mark.parametrize(("rounds", "n", "k"), [(4, 4, 2), (6, 3, 1)])
def test_under_the_sharp_null_the_fitted_estimate_is_unbiased_too(rounds, n, k):
    y = np.random.default_rng(3).normal(size=rounds)
    found = [
        adjusted_estimate(assigned, y).frame["utility"].to_numpy()
        for assigned in balanced_tables(rounds, n, k)
    ]
    np.testing.assert_allclose(np.mean(found, axis=0), 0.0, atol=EXACT)
    assert np.std(found) > 0.1


def test_bias_by_the_logs_own_effects_is_far_below_the_standard_error():
    # 600 logs of T = 3 N rounds: the standard error of the regression of estimates on the truth is .002
    rng, n = np.random.default_rng(4), 10
    effects = rng.normal(size=n)
    truth = effects - (effects.sum() - effects) / (n - 1)
    slopes, errors = [], []
    for _ in range(600):
        assigned = drawn(balanced_table(n, 30, 2, rng), n)
        u = (
            adjusted_estimate(assigned, assigned @ effects + rng.normal(0, 0.3, 30))
            .frame["utility"]
            .to_numpy()
        )
        slopes.append(u @ truth / (truth @ truth))
        errors.append(u - truth)
    assert abs(np.mean(slopes) - 1.0) < 0.01
    assert np.abs(np.mean(errors, axis=0)).max() < 0.2 * np.std(errors)


@pytest.mark.parametrize("weights", ["precision"])
def test_strata_are_fixed_effects(weights):
    """The default combination of strata is the least-squares coefficient beside a dummy for each stratum."""
    rng = np.random.default_rng(5)
    strata, z = np.repeat(np.arange(5), 8), rng.random(40) < 0.4
    y = rng.normal(size=40) + strata
    dummies = np.eye(5)[strata]
    want = np.linalg.lstsq(np.column_stack([dummies, z]), y, rcond=None)[0][-1]
    assert estimate(z, y, strata, weights=weights).frame["utility"][0] == pytest.approx(want, abs=EXACT)


def test_without_anything_to_take_off_it_is_the_contrast():
    y = np.zeros(30)
    y[::3] = 1.0
    assigned = drawn(balanced_table(6, 30, 2, 6), 6)
    assigned[:, 1:] = False  # one memory drawn alone has no companions to learn from
    got = adjusted_estimate(assigned[:, :1], y).frame
    want = estimate(assigned[:, :1], y).frame
    for name in ("utility", "ci_low", "ci_high", "std_error"):
        assert got[name][0] == pytest.approx(want[name][0], abs=EXACT)


@pytest.mark.parametrize("kind", ["binary", "continuous"])
def test_units_and_the_order_of_rounds_and_names_of_memories_change_nothing(kind):
    assigned, y = make_world(kind, Size(60, 12, 2), 1).draw([1])
    x = np.random.default_rng(7).normal(size=60)
    plain = adjusted_estimate(assigned, y, x).frame
    for rounds, memories, scale, shift in (
        (np.arange(60)[::-1], np.arange(12), 1.0, 0.0),
        (np.arange(60), np.arange(12)[::-1], 1.0, 0.0),
        (np.arange(60), np.arange(12), 250.0, 1e6),
    ):
        moved = adjusted_estimate(assigned[rounds][:, memories], scale * y[rounds] + shift, x[rounds]).frame
        for name in ("utility", "ci_low", "ci_high"):
            want = scale * plain[name].to_numpy()[memories]
            np.testing.assert_allclose(moved[name].to_numpy(), want, atol=scale * FITTED, rtol=1e-5)
        np.testing.assert_allclose(moved["p_value"], plain["p_value"].to_numpy()[memories], atol=1e-5)


@pytest.mark.parametrize("kind", ["binary", "continuous"])
def test_a_p_value_is_below_5_percent_just_where_the_interval_leaves_0_out(kind):
    for draw in range(10):
        assigned, y = make_world(kind, Size(90, 32, 2), 2).draw([draw])
        frame = adjusted_estimate(assigned, y).frame
        outside = (frame["ci_low"] > 0) | (frame["ci_high"] < 0)
        assert (outside == (frame["p_value"] < 0.05)).all()


@pytest.mark.parametrize(
    ("kind", "size", "at_most"),
    [
        ("continuous", Size(90, 32, 2), 0.93),
        ("rare", Size(90, 32, 2), 0.97),
        ("rare", Size(300, 32, 4), 0.86),
        ("continuous", Size(300, 32, 4), 0.82),
    ],
)
def test_intervals_are_narrower_and_still_cover(kind, size, at_most):
    """Memories of a log depend on each other, so one of each log is counted, in turn."""
    world = make_world(kind, size, 5)
    truth, hits, widths = world.truth, 0, []
    for draw in range(DRAWS):
        assigned, y = world.draw([5, draw])
        ours, plain = adjusted_estimate(assigned, y).frame, estimate(assigned, y).frame
        m = draw % size.memories
        hits += ours["ci_low"][m] <= truth[m] <= ours["ci_high"][m]
        widths.append([float((f["ci_high"] - f["ci_low"]).mean()) for f in (ours, plain)])
    low = binom(DRAWS, 0.94).ppf(FALSE_ALARM)
    assert hits >= low
    ours, plain = np.mean(widths, axis=0)
    assert ours < at_most * plain


@pytest.mark.parametrize("kind", ["rare-null", "normal"])
def test_p_values_are_uniform_enough_under_the_sharp_null(kind):
    rng, rejected = np.random.default_rng(9), 0
    for _ in range(DRAWS):
        assigned = drawn(balanced_table(20, 60, 3, rng), 20)
        y = rng.normal(size=60) if kind == "normal" else (rng.random(60) < 0.2).astype(float)
        rejected += adjusted_estimate(assigned, y).frame["p_value"][0] < 0.05
    low, high = binom(DRAWS, 0.05).ppf([FALSE_ALARM, 1 - FALSE_ALARM])
    assert low <= rejected <= high


def test_blocks_that_drift_are_covered_too():
    rng = np.random.default_rng(10)
    n, blocks, hits, draws = 16, 4, 0, 200
    effects = np.where(np.arange(n) % 4 == 0, 0.4, 0.0)
    truth = effects - (effects.sum() - effects) / (n - 1)
    strata = np.repeat(np.arange(blocks), 16)
    for draw in range(draws):
        assigned = np.vstack([drawn(balanced_table(n, 16, 2, rng), n) for _ in range(blocks)])
        y = assigned @ effects + 0.5 * strata + rng.normal(0, 0.2, len(strata))
        row = adjusted_estimate(assigned, y, strata=strata).frame.row(draw % n, named=True)
        hits += row["ci_low"] <= truth[draw % n] <= row["ci_high"]
    assert hits >= binom(draws, 0.94).ppf(FALSE_ALARM)


def test_a_strong_covariate_pays_by_what_it_explains():
    rng = np.random.default_rng(11)
    assigned, x = drawn(balanced_table(32, 90, 2, rng), 32), rng.normal(size=90)
    y = x + rng.normal(0, 0.2, 90)
    with_it, without = (adjusted_estimate(assigned, y, c).frame["std_error"].mean() for c in (x, None))
    assert with_it < 0.3 * without


def test_companions_never_count_for_more_than_twice_the_rounds():
    """Two memories either of which answers: drawn together they add nothing, and no round of this log shows it.

    The additive model then explains every round, and its interval about .97 would leave out the truth, .94.
    """
    rng, n = np.random.default_rng(12), 32
    while (assigned := drawn(balanced_table(n, 90, 2, rng), n))[:, :2].all(axis=1).any():
        pass
    y = assigned[:, :2].any(axis=1).astype(float)
    truth = 1.0 - 2.0 / (n - 1)
    row, plain = (f(assigned, y).frame.row(0, named=True) for f in (adjusted_estimate, estimate))
    assert row["ci_low"] <= truth <= row["ci_high"]
    widths = [r["ci_high"] - r["ci_low"] for r in (row, plain)]
    assert widths[0] > widths[1] / (1.05 * MAX_COMPANION_GAIN)
    graded = adjusted_estimate(assigned, y + rng.choice([0.0, 1e-6, 2e-6], 90)).frame["std_error"]
    floor = estimate(assigned, y + rng.choice([0.0, 1e-6, 2e-6], 90), interval="moderated").frame["std_error"]
    assert (graded.to_numpy() >= floor.to_numpy() / np.sqrt(MAX_COMPANION_GAIN) - 1e-5).all()


def test_outcomes_that_one_memory_decides_keep_an_interval():
    rng, n = np.random.default_rng(13), 16
    assigned = drawn(balanced_table(n, 48, 2, rng), n)
    frame = adjusted_estimate(assigned, assigned[:, 0].astype(float)).frame
    assert frame["ci_low"].null_count() == 0
    assert frame["utility"][0] > 0.9
    assert np.isfinite(frame["ci_low"].to_numpy()).all()


def test_constant_outcomes_and_memories_never_drawn_are_said_to_be_so():
    assigned = drawn(balanced_table(6, 24, 2, 14), 6)
    assigned[:, 5] = False
    y = np.random.default_rng(14).normal(size=24)
    frame = adjusted_estimate(assigned, y).frame
    assert frame["state"].to_list() == ["ESTIMATED"] * 5 + ["NEVER_EXPOSED"]
    assert frame["utility"][5] is None
    constant = adjusted_estimate(assigned, np.ones(24)).frame
    assert constant["utility"].to_list()[:5] == [0.0] * 5


def test_missing_outcomes_leave_both_arms_and_are_counted():
    assigned, y = make_world("continuous", Size(60, 12, 2), 3).draw([3])
    y[[0, 7, 20]] = np.nan
    known = ~np.isnan(y)
    frame, without = adjusted_estimate(assigned, y).frame, adjusted_estimate(assigned[known], y[known]).frame
    np.testing.assert_allclose(frame["utility"], without["utility"], atol=FITTED)
    assert frame["n_missing_exposed"].sum() == assigned[~known].sum()


def test_draws_that_were_not_eligible_are_in_no_arm():
    assigned, y = make_world("continuous", Size(60, 12, 2), 4).draw([4])
    eligible = np.ones_like(assigned)
    eligible[:20, 0] = False
    eligible[:, 1] = False
    frame = adjusted_estimate(assigned, y, eligible=eligible).frame
    assert frame["n_exposed"][0] == assigned[20:, 0].sum()
    assert frame["state"][1] == "NEVER_EXPOSED"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"covariates": np.full(12, np.nan)}, "a covariate of round 0 is missing"),
        ({"covariates": np.zeros(11)}, "for 12 rounds"),
        ({"covariates": np.random.default_rng(0).normal(size=(12, 2))}, "at most one for every 10 rounds"),
        ({"outcomes": np.full(12, np.nan)}, "no round has an outcome"),
        ({"outcomes": np.zeros(11)}, "outcomes"),
        ({"eligible": np.ones((12, 2))}, "eligible has shape"),
        ({"level": 1.0}, "level=1.0"),
    ],
)
def test_wrong_input_is_refused_with_what_to_do(changes, said):
    given = {"assigned": drawn(balanced_table(6, 12, 2, 15), 6), "outcomes": np.arange(12.0)} | changes
    with pytest.raises(ValueError, match=said):
        adjusted_estimate(**given)
