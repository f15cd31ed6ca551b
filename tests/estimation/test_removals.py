"""What is summed as runs of rows equals what is listed round by round: removals, and windows of versions."""

from __future__ import annotations

import tracemalloc
from dataclasses import asdict, replace

import numpy as np
import pytest

from cmp.estimation.clusters import Clusters
from cmp.estimation.design_matrix import log_arrays
from cmp.estimation.episode_tests import margins_by_episode
from cmp.estimation.estimators import combine_strata
from cmp.estimation.from_parts import statistics_for
from cmp.estimation.inflation import clumping
from cmp.estimation.log_events import events_of
from cmp.estimation.statistics import LogStatistics, coded_log, statistics_of_log
from cmp.estimation.table import Analysis
from tests.estimation.listing import Listed, arms_of, listed, listed_by_version, random_log
from tests.estimation.logs import HandMadeLog

#: Every log removes memories, ranks some, lacks outcomes and has episodes across blocks.
SEEDS = range(25)

#: Sums of a few dozen doubles of order 1.
EXACT = 1e-12


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
        assert (found.clusters is not None and bool(found.clusters.marked().shared[row])) == mine.shares, key


@pytest.mark.parametrize("rows", [True, False], ids=["rows known", "some rows unknown"])
@pytest.mark.parametrize("by_query", [False, True])
@pytest.mark.parametrize("carryover", ["include", "exclude"])
def test_removals_take_off_the_rounds_that_a_listing_leaves_out(rows, by_query, carryover):
    for seed in SEEDS:
        log = random_log(seed, rows=rows)
        found = statistics_of_log(
            log, metric="reward", by_query=by_query, carryover=carryover, condense=False, in_both_arms=False
        )
        compare(found, listed(log, by_query=by_query, carryover=carryover == "exclude"))


@pytest.mark.parametrize("rows", [True, False], ids=["rows known", "some rows unknown"])
def test_windows_of_versions_hold_the_rounds_that_a_listing_finds(rows):
    several = 0
    for seed in SEEDS:
        log = random_log(seed, versions=True, rows=rows)
        found = statistics_for(log, "version", "reward", Analysis(), condense=False, in_both_arms=False)
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


def listed_by_part(clusters: Clusters) -> Clusters:
    """Return the same with every part that a cell lacks listed as away, and no rows that cells are bounded by."""
    lacking = [
        (cell, part, 0.0, clusters.part_rounds[part])
        for cell, stratum in enumerate(clusters.stratum)
        for part in np.flatnonzero(clusters.part_stratum == stratum)
        if not clusters.has(np.array([cell]), np.array([part]))[0]
    ]
    given = list(zip(clusters.cell, clusters.part, clusters.exposed, clusters.away, strict=True))
    assert len({pair[:2] for pair in given + lacking}) == len(given) + len(lacking)
    cell, part, exposed, away = (np.array(column) for column in zip(*sorted(given + lacking), strict=True))
    nowhere = np.full(len(clusters.memory), np.inf)
    return replace(
        clusters, begin=-nowhere, end=nowhere, cell=cell, part=part, exposed=exposed, away=away
    ).marked()


@pytest.mark.parametrize("rows", [True, False], ids=["rows known", "some rows unknown"])
@pytest.mark.parametrize("carryover", ["include", "exclude"])
@pytest.mark.parametrize("by", ["memory", "query", "version"])
def test_what_episodes_do_to_a_contrast_is_the_same_as_with_all_of_their_rounds_listed(by, carryover, rows):
    partial = 0
    for seed in SEEDS:
        log = random_log(seed, versions=by == "version", rows=rows)
        if by == "version":
            found = statistics_for(log, by, "reward", Analysis(), condense=False, in_both_arms=False)
        else:
            found = statistics_of_log(
                log,
                metric="reward",
                by_query=by == "query",
                carryover=carryover,
                condense=False,
                in_both_arms=False,
            )
        if found.clusters is None:
            continue
        clusters, cells = found.clusters.marked(), found.cells.joined(found.withholding)
        want = listed_by_part(clusters)
        contrast = combine_strata(cells, len(found.keys), estimator="difference", weights="precision")
        assert (clusters.shared == want.shared).all()
        for name, of in asdict(clumping(clusters, contrast)).items():
            listed_too = getattr(clumping(want, contrast), name)
            if name in ("runs_on", "across"):  # a part that is away is one for the listing
                assert (of <= listed_too).all()
            else:
                assert of == pytest.approx(listed_too, rel=EXACT, abs=EXACT), name
        outcomes = replace(found.outcomes, at_most_two=np.ones(len(found.keys), dtype=bool))
        counted, torn = margins_by_episode(clusters, contrast, outcomes)
        expected, also_torn = margins_by_episode(want, contrast, outcomes)
        assert (torn <= also_torn).all()  # nor is one whose outcomes differ there
        for name, of in asdict(counted).items():
            assert of.tolist() == getattr(expected, name).tolist(), name
        partial += int(clusters.runs.is_partial.sum())
    assert partial > len(SEEDS)


@pytest.mark.parametrize("versions", [False, True])
def test_of_episodes_only_those_that_an_edge_goes_through_are_listed(versions):
    """A block of 60 episodes of two rounds: every memory but one leaves, or is rewritten, somewhere."""
    log, n = HandMadeLog(), 6
    log.block("b", 120, dict.fromkeys((f"m{m}" for m in range(n)), 20), **{} if versions else {
        f"m{m}": 15 * m + 1 for m in range(1, n)
    })  # fmt: skip
    for i in range(120):
        log.round(f"r{i:03}", "b", i, [f"m{i % n}"], float(i // 2 % 2), episode_id=f"e{i // 2}",
                  content=f"v{i // 40}" if versions else None)  # fmt: skip
    found = statistics_for(
        log, "version" if versions else "memory", "reward", Analysis(), condense=False, in_both_arms=False
    )
    assert found.clusters is not None
    assert found.clusters.marked().shared.all()
    edges = np.isfinite(found.clusters.begin).sum() + np.isfinite(found.clusters.end).sum()
    assert edges >= n - 1
    assert len(found.clusters.cell) <= 120 + edges
    assert np.all(found.clusters.away <= found.clusters.part_rounds[found.clusters.part])


def test_episodes_that_run_across_blocks_are_told_once_a_pair_of_blocks_not_once_a_pair_of_cells():
    """Forty users, each with a round in every one of forty blocks that all memories leave half-way."""
    log, n = HandMadeLog(), 40
    for b in range(n):
        roster = {f"m{m:02}": 2 for m in range(n // 2)}
        log.block(f"b{b:02}", n, roster, **dict.fromkeys(roster, n // 2 + 1))
        for i in range(n):
            log.round(f"r{b:02}-{i:02}", f"b{b:02}", i, [f"m{i // 2:02}"], float(i % 3), episode_id=f"u{i}")
    found = statistics_of_log(log, metric="reward", by_query=False)
    assert found.clusters is not None
    tracemalloc.start()
    assert found.clusters.marked().shared.any()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    pairs_of_blocks, pairs_of_cells = n * (n - 1) / 2 * n, n * (n - 1) / 2 * n * n / 2
    assert peak < 8 * (20 * pairs_of_blocks + pairs_of_cells)


def test_nothing_is_listed_for_a_removal():
    log = random_log(0, episodes=False)
    for row in log.rows["rosters"]:
        row["removed_row"] = 0
    coded, bars = coded_log(log, metric="reward", by_query=False)
    assert not len(events_of(log, coded, bars).round)
    found = statistics_of_log(log, metric="reward", by_query=False)
    assert not found.cells.exposed.n.any()
    assert not found.cells.control.n.any()
