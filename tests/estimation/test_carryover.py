from __future__ import annotations

from collections import defaultdict
from itertools import combinations

import numpy as np
import polars as pl
import pytest

from cmp.estimation import utilities
from cmp.estimation.statistics import statistics_of_log
from tests.estimation.logs import HandMadeLog

#: Sums of some dozen doubles of order 10.
EXACT = 1e-12


def row(log: HandMadeLog, memory: str = "m", **options) -> dict:
    return utilities(log, **options).frame.filter(pl.col("memory_id") == memory).row(0, named=True)


def with_draws(chosen: tuple[int, ...], ys: list[float], episodes: list[int], **more) -> HandMadeLog:
    """Return a log of one block whose chosen rounds draw ``m``, the others ``other``."""
    log = HandMadeLog()
    log.block("b", len(ys), {"m": len(chosen), "other": len(ys) - len(chosen)})
    for t, y in enumerate(ys):
        name = "m" if t in chosen else "other"
        log.round(f"r{t}", "b", t, [name], y, episode_id=f"e{episodes[t]}", **more)
    return log


def test_excluding_carry_over_is_unbiased_over_every_assignment_where_outcomes_trend_within_episodes():
    episodes, level, effect, left_behind = [0, 0, 1, 1, 2, 2, 3, 3], [0.0, 2.0, -1.0, 5.0], 1.5, 4.0
    by_counts, naive = defaultdict(list), []
    for chosen in combinations(range(8), 3):
        ys = []
        for t in range(8):
            first = t - t % 2
            carried = left_behind if t > first and first in chosen else 0.0
            ys.append(level[episodes[t]] + 7.0 * (t % 2) + effect * (t in chosen) + carried)
        got = row(with_draws(chosen, ys, episodes), carryover="exclude")
        naive.append(row(with_draws(chosen, ys, episodes))["utility"])
        firsts = sum(t % 2 == 0 for t in chosen)
        seconds = sum(t % 2 == 1 and t - 1 not in chosen for t in chosen)
        if got["utility"] is not None:
            by_counts[firsts, seconds].append(got["utility"])
    assert len(by_counts) > 3
    for estimates in by_counts.values():
        assert np.mean(estimates) == pytest.approx(effect, abs=EXACT)
    assert abs(np.mean(naive) - effect) > 0.1


def test_rounds_left_out_after_an_exposure_are_not_called_ranked():
    log = with_draws((0, 2), [1.0, 0.0, 1.0, 0.0], [0, 0, 1, 1])
    got = row(log, carryover="exclude")
    assert (got["n_exposed"], got["n_control"], got["state"]) == (2, 0, "UNDEREXPOSED")


def test_one_stratum_of_all_that_is_left_would_be_biased():
    episodes, chosen = [0, 0, 1, 1, 2, 2, 3, 3], (0, 2, 5)
    got = row(with_draws(chosen, [7.0 * (t % 2) for t in range(8)], episodes), carryover="exclude")
    assert (got["utility"], got["n_strata"], got["n_exposed"], got["n_control"]) == (0.0, 2, 3, 3)


def test_the_chance_to_be_drawn_given_that_one_was_not_is_what_every_assignment_says():
    episodes = [0, 0, 0, 1, 1, 2]
    drawn, eligible = np.zeros(3), np.zeros(3)
    propensity = {}
    for chosen in combinations(range(6), 2):
        log = with_draws(chosen, [0.0] * 6, episodes)
        found = statistics_of_log(log, metric="reward", by_query=False, carryover="exclude", condense=False)
        cells = found.cells.select(found.keys["memory_id"].to_numpy()[found.cells.memory] == "m")
        for nth, (n1, n0, pi) in enumerate(
            zip(cells.exposed.n, cells.control.n, cells.propensity, strict=True)
        ):
            drawn[nth] += n1
            eligible[nth] += n1 + n0
            propensity.setdefault(nth, pi)
            assert propensity[nth] == pi
    assert propensity == {e: pytest.approx(2 / (6 - e), abs=EXACT) for e in range(3)}
    assert drawn / eligible == pytest.approx([2 / (6 - e) for e in range(3)], abs=EXACT)


@pytest.mark.parametrize("route", ["ranked", "another block", "not randomized"])
def test_an_exposure_by_any_route_bars_what_follows_in_the_episode_and_nothing_else(route):
    log = HandMadeLog()
    log.block("a", 4, {"m": 2, "other": 2})
    log.block("b", 4, {"m": 2, "other": 2})
    for t in range(8):
        shown = {"ranked": 0, "another block": None, "not randomized": None}[route] == t
        log.round(
            f"r{t}", "ab"[t // 4], t % 4, ["m" if t % 2 == (route != "ranked") else "other"], float(t),
            episode_id="e" if t in (0, 3, 4, 6) else f"f{t}", ranked=["m"] if shown else [],
        )  # fmt: skip
    times = {f"r{t}": t + 1 for t in range(8)}
    if route == "not randomized":
        log.round("held out", None, None, [], 9.0, ranked=["m"], episode_id="e")
        times["held out"] = 0
        plain = log.rounds
        log.rounds = lambda: plain().with_columns(asked_at=pl.col("round_id").replace_strict(times))
    got = row(log, carryover="exclude")
    # r0, r3 are of block a, r4, r6 of block b; m is drawn in odd rounds (or even, and ranked in r0)
    want = {"ranked": 8 - 4, "another block": 8 - 2, "not randomized": 8 - 4}[route]
    assert got["n_exposed"] + got["n_control"] == want


def test_with_nothing_to_carry_over_nothing_changes():
    ys = [1.0, 0.5, 0.0, 2.0, 1.5, 0.25]
    log = with_draws((0, 2, 4), ys, list(range(6)))
    assert utilities(log, carryover="exclude").frame.equals(utilities(log).frame)


@pytest.mark.parametrize("option", [{"by": "version"}, {"estimator": "ht"}, {"interval": "randomization"}])
def test_what_has_no_meaning_without_the_rounds_after_an_exposure_is_refused(option):
    log = with_draws((0, 2), [0.0, 1.0, 1.0, 0.0], [0, 0, 1, 1])
    with pytest.raises(ValueError, match="carryover='exclude' does not go with"):
        utilities(log, carryover="exclude", **option)


def test_kept_and_withheld_rounds_after_an_exposure_are_excluded_too():
    log = HandMadeLog()
    log.block("b", 6, {"x": 3, "y": 3})
    for t in range(6):
        log.round(f"r{t}", "b", t, ["x" if t % 2 else "y"], float(t), episode_id=f"e{t // 2}")
        arm = "withheld" if t in (0, 3, 4) else "ranked"
        log.add(
            "exposures",
            round_id=f"r{t}",
            memory_id="m",
            arm=arm,
            assigned=False,
            propensity=0.5,
            delivered=True,
        )
    log.add("rosters", block_id="b", memory_id="m", planned=0)
    # kept in r1, r2, r5; r3 follows a round that showed it
    got = row(log, carryover="exclude")
    assert (got["n_exposed"], got["n_control"]) == (3, 2)
    assert row(log)["n_control"] == 3
