"""What is summed as runs of rows equals what is listed round by round: removals, and windows of versions."""

from __future__ import annotations

import pytest

from cmp.estimation.design_matrix import log_arrays
from cmp.estimation.from_parts import statistics_for
from cmp.estimation.log_events import events_of
from cmp.estimation.statistics import LogStatistics, coded_log, statistics_of_log
from cmp.estimation.table import Analysis
from tests.estimation.listing import Listed, arms_of, listed, listed_by_version, random_log

#: Every log removes memories, ranks some, lacks outcomes and has episodes across blocks.
SEEDS = range(25)


def compare(found: LogStatistics, want: dict[tuple[str, ...], Listed]) -> None:
    """Check every stratum's arms to the bit, the rounds that a test goes through, tallies, and shared episodes."""
    keys = [tuple(name or "" for name in row) for row in found.keys.rows()]
    assert set(keys) >= set(want)
    for row, key in enumerate(keys):
        mine = want.get(key, Listed())
        assert arms_of(found, row) == mine.arms(), key
        y, drawn, _ = found.rounds_of(row)
        assert sorted(zip(y.tolist(), drawn.tolist(), strict=True)) == mine.rounds(), key
        assert (found.tallies.ranked[row], found.tallies.ineligible[row]) == (mine.ranked, mine.ineligible), (
            key
        )
        assert (found.clusters is not None and bool(found.clusters.shared[row])) == mine.shares, key


@pytest.mark.parametrize("rows", [True, False], ids=["rows known", "some rows unknown"])
@pytest.mark.parametrize("by_query", [False, True])
@pytest.mark.parametrize("carryover", ["include", "exclude"])
def test_removals_take_off_the_rounds_that_a_listing_leaves_out(rows, by_query, carryover):
    for seed in SEEDS:
        log = random_log(seed, rows=rows)
        found = statistics_of_log(
            log, metric="reward", by_query=by_query, carryover=carryover, condense=False
        )
        compare(found, listed(log, by_query=by_query, carryover=carryover == "exclude"))


@pytest.mark.parametrize("rows", [True, False], ids=["rows known", "some rows unknown"])
def test_windows_of_versions_hold_the_rounds_that_a_listing_finds(rows):
    several = 0
    for seed in SEEDS:
        log = random_log(seed, versions=True, rows=rows)
        found = statistics_for(log, "version", "reward", Analysis(), condense=False)
        want = listed_by_version(log)
        several += len(want) - 6
        compare(found, want)
    assert several > len(SEEDS)


def test_arrays_mark_the_rounds_after_a_removal_as_a_listing_does():
    for seed in SEEDS:
        log = random_log(seed, episodes=False, rows=seed % 2 == 0)
        arrays, want = log_arrays(log), listed(log)
        planned = {(row["block_id"], row["memory_id"]): row["planned"] for row in log.rows["rosters"]}
        of_round = {row["round_id"]: row["block_id"] for row in log.rows["rounds"]}
        for column, memory in enumerate(arrays.memory_ids):
            chance = [0 < planned[of_round[name], memory] < 9 for name in arrays.round_ids]
            use = arrays.eligible[:, column] & chance
            assert use.sum() == sum(len(rounds) for rounds in want["s", memory].eligible.values())
            assert not (arrays.assigned[:, column] & ~arrays.eligible[:, column]).any()


def test_nothing_is_listed_for_a_removal():
    log = random_log(0, episodes=False)
    for row in log.rows["rosters"]:
        row["removed_row"] = 0
    coded, bars = coded_log(log, metric="reward", by_query=False)
    assert not len(events_of(log, coded, bars).round)
    found = statistics_of_log(log, metric="reward", by_query=False)
    assert not found.cells.exposed.n.any()
    assert not found.cells.control.n.any()
