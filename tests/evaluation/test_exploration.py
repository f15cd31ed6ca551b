"""What exploring costs: enumerated, for every reason to fall back, whatever drifts and however the share changes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import combinations, product
from math import comb
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

import cmp
from cmp.evaluation.exploration import MOMENTS, NOTED, SHORTEST, STRETCH, exposure_cost
from tests.foreign.rows import small
from tests.serving.stores import Store, store, wrapped

#: Means of a few dozen differences of outcomes near 1: rounding only.
EXACT = 1e-12

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)

#: Why a round that was not held out may yet be served the base ranking.
FALLBACKS = ("roster_too_small", "block_preparing", "roster_failed", "log_failed", None)


def log_of(held, y, *, scope=None, reason=None, order=None):
    """Return the tables of rounds in order of time: held out, randomized, or fallen back for a reason."""
    n = len(held)
    reasons = [None] * n if reason is None else reason
    rounds = pl.DataFrame(
        {
            "round_id": [f"r{place}" for place in range(n)],
            "scope": ["s"] * n if scope is None else scope,
            "asked_at": [NOON + timedelta(seconds=place) for place in range(n)],
            "randomized": [not h and r is None for h, r in zip(held, reasons, strict=True)],
            "fallback_reason": ["holdout" if h else r for h, r in zip(held, reasons, strict=True)],
        }
    )
    outcomes = pl.DataFrame(
        {
            "round_id": [f"r{place}" for place in range(n)],
            "metric": ["reward"] * n,
            "value": np.asarray(y, dtype=float),
            "revision": [0] * n,
        }
    ).filter(pl.col("value").is_not_nan())
    rounds = rounds if order is None else rounds[order]
    return SimpleNamespace(rounds=rounds.lazy, outcomes=outcomes.lazy)


def chosen(n, *places):
    return np.isin(np.arange(n), places)


@pytest.mark.parametrize("n_held", [1, 2, 3, 5])
@pytest.mark.parametrize("reason", FALLBACKS)
def test_over_every_choice_of_holdout_rounds_the_mean_is_the_cost(n_held, reason):
    """Enumerated, 6 rounds, of which the first three fall back wherever they are not held out, and cost nothing."""
    base = np.array([0.1, 0.0, 0.4, 2.0, 1.7, 3.1])
    explored = base - np.array([0.0, 0.0, 0.0, 0.5, 0.1, 1.2])
    reasons = [reason or "other"] * 3 + [None] * 3
    found = []
    for places in combinations(range(6), n_held):
        held = chosen(6, *places)
        found.append(exposure_cost(log_of(held, np.where(held, base, explored), reason=reasons)))
    assert np.mean([cost.cost for cost in found]) == pytest.approx((explored - base).mean(), abs=EXACT)
    assert {cost.n_randomized + cost.n_fallback for cost in found} == {6 - n_held}
    assert all(
        cost.n_fallback == 3 - sum(p < 3 for p in places)
        for cost, places in zip(found, combinations(range(6), n_held), strict=True)
    )


@pytest.mark.parametrize("counts", [(1, 1), (0, 2)])
def test_levels_that_move_and_shares_that_change_between_stretches_bias_nothing(counts):
    """Enumerated: two stretches of 11 rounds, the second 5 higher, whatever number of each was held out."""
    n = STRETCH + 2
    half = n // 2
    base = np.r_[np.linspace(0, 1, half), 5 + np.linspace(1, 3, half) ** 2]
    cost = np.r_[np.full(half, -0.2), np.linspace(-1.0, 0.4, half)]
    found = []
    for first, second in product(
        combinations(range(half), counts[0]), combinations(range(half, n), counts[1])
    ):
        held = chosen(n, *first, *second)
        found.append(exposure_cost(log_of(held, np.where(held, base, base + cost))))
    weight = [count * (half - count) / half for count in counts]
    want = np.average([cost[:half].mean(), cost[half:].mean()], weights=weight)
    assert np.mean([one.cost for one in found]) == pytest.approx(want, abs=EXACT)
    assert {one.n_left_out for one in found} == {half * sum(count == 0 for count in counts)}


def test_scopes_are_never_compared_and_rows_may_come_in_any_order():
    held = chosen(12, 0, 3, 5, 7)
    scope = list("abbaab" * 2)
    y = np.where(held, 1.0, 0.25) + 100.0 * (np.array(scope) == "b")
    cost = exposure_cost(log_of(held, y, scope=scope))
    assert cost.cost == pytest.approx(-0.75, abs=EXACT)
    shuffled = np.random.default_rng(1).permutation(12)
    assert exposure_cost(log_of(held, y, scope=scope, order=shuffled)) == cost


def test_most_rounds_may_be_held_out_as_well_as_few():
    """Whichever arm is the rarer, the contrast is the same with its sign turned: estimate, interval and p-value."""
    rng = np.random.default_rng(3)
    held = rng.random(200) < 0.1
    y = rng.lognormal(size=200)
    few, most = exposure_cost(log_of(held, y)), exposure_cost(log_of(~held, y))
    assert few.std_error > 0
    assert (most.cost, most.ci_low, most.ci_high) == (-few.cost, -few.ci_high, -few.ci_low)
    assert (most.std_error, most.p_value, most.p_share) == (few.std_error, few.p_value, few.p_share)
    assert (most.n_holdout, most.n_randomized) == (few.n_randomized, few.n_holdout)


#: The scope of each of six rounds.
SHORT_SCOPES = {"one round each": "abcdef", "two rounds each": "abbcca", "one or two": "aabcde"}


@pytest.mark.parametrize("n_held", [1, 2, 3, 5])
@pytest.mark.parametrize("scopes", SHORT_SCOPES)
def test_over_every_choice_of_holdout_rounds_the_shortest_scopes_have_the_mean_cost(scopes, n_held):
    """Enumerated: each scope has a level and a cost of its own; a scope of four, 100 higher, has its own comparison."""
    scope = [*SHORT_SCOPES[scopes], *["long"] * 4]
    level = np.array([{"long": 100.0}.get(name, 3.0 * ord(name[0])) for name in scope])
    base = level + np.linspace(0, 1, 10) ** 2
    cost = np.array([-0.3, 0.1, -2.0, 0.7, -0.4, -0.1, -1.0, -1.5, 0.2, -0.3])
    found = []
    for places, long in product(combinations(range(6), n_held), range(6, 10)):
        held = chosen(10, *places, long)
        found.append(exposure_cost(log_of(held, np.where(held, base, base + cost), scope=scope)))
    weights = [n_held * (6 - n_held) / 6, 3 / 4]
    want = np.average([cost[:6].mean(), cost[6:].mean()], weights=weights)
    assert np.mean([one.cost for one in found]) == pytest.approx(want, abs=EXACT * level.max())
    assert {(one.n_across, one.n_left_out, one.note) for one in found} == {(6, 0, None)}


def test_services_that_hold_out_different_shares_of_the_shortest_scopes_are_told_apart():
    """150 scopes of two rounds at share .05 and 150 at .6 and 5 higher: compared across they would be off by 2.

    Some 80 scopes have a round of either arm, so that the standard error is below 0.02.
    """
    rng = np.random.default_rng(5)
    service = np.repeat(rng.permutation(np.repeat([0, 1], 150)), 2)
    held = rng.random(600) < np.where(service == 1, 0.6, 0.05)
    y = 5.0 * service + rng.normal(size=600) * 0.1 + np.where(held, 0.0, -0.1)
    cost = exposure_cost(log_of(held, y, scope=np.repeat(np.arange(300), 2).astype(str).tolist()))
    assert "scopes of two rounds hold out shares that differ (p = " in cost.note
    assert cost.n_across == 0
    assert abs(cost.cost + 0.1) < 4 * 0.02


@pytest.mark.parametrize("is_interleaved", [False, True])
def test_shares_that_move_in_time_are_not_taken_for_shares_that_differ_between_scopes(
    monkeypatch, is_interleaved
):
    """100 logs of 200 scopes of two rounds, at level .05: more than 12 that are noted have probability .0015."""
    monkeypatch.setattr("cmp.evaluation.exploration.NOTED", 0.05)
    rng = np.random.default_rng(2)
    scope = np.repeat(np.arange(200), 2).astype(str)
    noted = 0
    for _ in range(100):
        held = rng.random(400) < np.where(np.arange(400) < 210, 0.1, 0.4)
        order = rng.permutation(400) if is_interleaved else np.arange(400)
        cost = exposure_cost(log_of(held, rng.normal(size=400), scope=scope[order].tolist()))
        noted += "shares that differ" in (cost.note or "")
    assert noted <= 12


@pytest.mark.parametrize("share", [0.1, 0.9])
@pytest.mark.parametrize("size", [1, 2, 3, 300])
def test_intervals_of_skewed_outcomes_hold_however_short_the_scopes_and_whichever_arm_is_the_rarer(
    size, share
):
    """150 logs, lognormal: all have an interval, and fewer than 133 that hold have probability .0006 at .95."""
    rng = np.random.default_rng(0)
    scope = np.repeat(np.arange(300 // size), size).astype(str).tolist()
    found = []
    for _ in range(150):
        held = rng.random(300) < share
        y = rng.lognormal(0, 1.2, 300) + np.where(held, 0, -0.1)
        found.append(exposure_cost(log_of(held, y, scope=scope)))
    assert all(cost.std_error is not None for cost in found)
    assert sum(cost.ci_low <= -0.1 <= cost.ci_high for cost in found) >= 133
    assert {cost.n_across for cost in found} == {300 * (size < SHORTEST)}
    # what is left out says little of what is lost: two thirds are in scopes of three
    assert np.mean([cost.n_left_out for cost in found]) < (40 if size != 3 else 300 * 0.75)


@pytest.mark.parametrize("n", [1, 2, 3, 5, 20])
def test_a_stretch_of_n_costs_one_nth_of_the_information(n):
    """Summed over all numbers held out: n1 n0 / n is expected to be (n - 1) h (1 - h), against n h (1 - h)."""
    share = 0.3
    held = np.arange(n + 1)
    chance = np.array([comb(n, h) * share**h * (1 - share) ** (n - h) for h in range(n + 1)])
    expected = (chance * held * (n - held) / n).sum()
    assert expected == pytest.approx((1 - 1 / n) * n * share * (1 - share), abs=EXACT)


def test_rounds_without_random_slots_could_not_be_held_out_and_are_no_part_of_it():
    held, reason = chosen(12, 5, 9), ["no_random_slots"] * 4 + [None] * 8
    y = np.r_[np.full(4, 50.0), np.where(held[4:], 1.0, 0.5)]
    cost = exposure_cost(log_of(held, y, reason=reason))
    assert (cost.cost, cost.n_fallback, cost.n_randomized, cost.n_holdout) == (-0.5, 0, 6, 2)


def test_rounds_without_an_outcome_are_counted_and_left_out_of_both_arms():
    held = chosen(10, 2, 6, 7)
    y = np.where(held, 1.0, 0.5)
    y[[1, 2, 9]] = np.nan
    cost = exposure_cost(log_of(held, y))
    assert (cost.cost, cost.n_missing, cost.n_holdout, cost.n_randomized) == (-0.5, 3, 2, 5)


def test_outcomes_missing_from_one_arm_are_noted():
    """Half of 60 holdout rounds lack theirs, and none of the others: 2^-60 or so by chance."""
    held = np.arange(300) % 5 == 2
    y = np.where(held, 1.0, 0.5)
    assert exposure_cost(log_of(held, y)).note is None
    y[held & (np.arange(300) % 10 == 2)] = np.nan
    cost = exposure_cost(log_of(held, y))
    assert cost.note.startswith("50.0% of the rounds held out and 0.0% of the others lack an outcome (p = ")
    y[:] = np.nan
    empty = exposure_cost(log_of(held, y))
    assert (empty.cost, empty.n_missing, empty.n_holdout) == (None, 300, 0)
    assert empty.reason


def test_where_every_stretch_is_of_one_arm_nothing_is_known_and_it_says_why():
    held = np.arange(2 * STRETCH) < STRETCH
    cost = exposure_cost(log_of(held, held.astype(float)))
    assert (cost.cost, cost.ci_low, cost.p_value) == (None, None, None)
    assert cost.reason
    assert cost.n_left_out == 2 * STRETCH


def test_a_roster_that_grows_costs_nothing_by_itself(tmp_path):
    """Served: one memory for 500 rounds (success .2), six for 500 more (.8): the randomized are of better times alone.

    What is held out and what is not then has the same outcomes: the true cost is 0, and at a standard error of 0.04
    0.289 is what the randomized rounds alone give. |z| > 4 has probability 6e-5.
    """
    base = store(1, ["m0"])
    memory = wrapped(tmp_path, base, slots=2, random_slots=1, holdout=0.2)
    rng = np.random.default_rng(0)
    for number in range(1000):
        if number == 500:
            base.scopes["s"] |= store(6).scopes["s"]
            memory.refresh("s")
        context = memory.retrieve("q", scope="s", round_id=f"r{number}")
        memory.record(context.round_id, float(rng.random() < (0.2 if number < 500 else 0.8)))
    memory.flush()
    cost = exposure_cost(memory.log)
    assert cost.n_fallback > 350
    assert abs(cost.cost) < 4 * cost.std_error
    assert cost.std_error < 0.05
    assert cost.note is None
    memory.close()


@dataclass
class FailingStore(Store):
    """A store that searches all the time and at times cannot be listed."""

    is_away: bool = False

    def list_ids(self, *, scope):
        if self.is_away:
            raise OSError("the store is away")
        return super().list_ids(scope=scope)


def test_a_roster_that_cannot_be_listed_is_no_reason_to_leave_its_rounds_out(tmp_path):
    """Listing fails for 300 rounds of low outcomes; held-out rounds need no roster, and are logged all the while."""
    base = FailingStore(store(6).scopes, ["m0"])
    memory = wrapped(tmp_path, base, slots=2, random_slots=1, holdout=0.3, seed=4)
    rng = np.random.default_rng(0)
    for number in range(600):
        base.is_away = number < 300
        context = memory.retrieve("q", scope="s", round_id=f"r{number}")
        memory.record(context.round_id, 5.0 * (not base.is_away) + rng.normal())
    memory.flush()
    reasons = memory.log.rounds().collect()["fallback_reason"].to_list()
    cost = exposure_cost(memory.log)
    assert cost.n_fallback == reasons.count("roster_failed") > 150
    assert abs(cost.cost) < 4 * cost.std_error < 1.0
    memory.close()


def drifting(rng, shares, level, n=600, cost=-0.1):
    """Return a log whose share of holdout rounds and whose level move in time."""
    held = rng.random(n) < shares(np.arange(n) / n)
    y = level(np.arange(n) / n) + rng.normal(size=n) * 0.3 + np.where(held, 0.0, cost)
    return log_of(held, y)


#: How a share changes, with a level that jumps or climbs at the same time.
CHANGES = {
    "switched on": (lambda t: np.where(t < 0.51, 0.0, 0.3), lambda t: 1.0 * (t >= 0.51)),
    "switched off": (lambda t: np.where(t < 0.51, 0.3, 0.0), lambda t: 1.0 * (t >= 0.51)),
    "raised": (lambda t: np.where(t < 0.7, 0.05, 0.5), lambda t: 3 * t),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_share_that_changes_mid_log_is_noted_and_compares_a_stretch_at_most(change):
    """100 logs: a stretch of twenty, of some 15 with holdouts, moves the cost by less than 1/15 of the jump of 1.

    The mean of 100 costs has a standard error of 0.004; a comparison of all rounds would be off by 0.5 and more.
    """
    shares, level = CHANGES[change]
    rng = np.random.default_rng(7)
    found = [exposure_cost(drifting(rng, shares, level)) for _ in range(100)]
    assert abs(np.mean([cost.cost for cost in found]) + 0.1) < 1 / 15
    assert all(cost.note and "the share of rounds held out changed" in cost.note for cost in found)
    assert all(cost.p_share < NOTED for cost in found)


def test_intervals_hold_under_drift_and_a_constant_share_is_seldom_said_to_have_changed():
    """300 logs, level .95: fewer than 273 intervals that hold have probability .003 at .95; none is noted at .001.

    A test of level .05 that is exact gives more than 26 p-values below it with probability .003.
    """
    rng = np.random.default_rng(11)
    found = [
        exposure_cost(drifting(rng, lambda t: np.full_like(t, 0.15), lambda t: np.sin(20 * t), n=300))
        for _ in range(300)
    ]
    assert sum(cost.ci_low <= -0.1 <= cost.ci_high for cost in found) >= 273
    assert sum(cost.p_share <= 0.05 for cost in found) <= 26
    assert sum(cost.note is not None for cost in found) <= 3


def test_the_test_of_a_changed_share_is_exact_over_all_holdouts():
    """P(p <= a) <= a at every a that can occur: all sets of 3 of 10 rounds; Bonferroni over the moments."""
    p = []
    for places in combinations(range(10), 3):
        held = chosen(10, *places)
        p.append(exposure_cost(log_of(held, np.where(held, 1.0, 0.0))).p_share)
    p = np.array(p)
    assert MOMENTS == 9  # before each round but the first
    assert p.min() < 1.0
    for level in np.unique(p):
        assert np.mean(p <= level) <= level + EXACT


def test_rows_of_another_system_and_doubled_rounds_are_refused():
    with pytest.raises(TypeError, match="know no holdout"):
        exposure_cost(cmp.from_frame(small()))
    whole = log_of(chosen(8, 1, 4), np.zeros(8))
    doubled = SimpleNamespace(
        rounds=pl.concat([whole.rounds(), whole.rounds().head(2)]).lazy, outcomes=whole.outcomes
    )
    with pytest.raises(ValueError, match="share a round_id"):
        exposure_cost(doubled)
    with pytest.raises(ValueError, match="no holdout rounds"):
        exposure_cost(log_of(np.zeros(8, dtype=bool), np.zeros(8)))
