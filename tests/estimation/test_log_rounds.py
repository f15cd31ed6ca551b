from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from cmp.estimation import estimate, utilities
from cmp.estimation.statistics import statistics_of_log
from tests.estimation.logs import HandMadeLog, simulated
from tests.estimation.test_clustered import listed, random_log


@pytest.mark.parametrize("seed", range(3))
def test_the_rounds_listed_are_the_eligible_ones_with_an_outcome(seed):
    log = random_log(seed)
    found = statistics_of_log(log, metric="reward", by_query=False)
    for row, memory in enumerate(found.keys["memory_id"]):
        y, assigned, stratum = found.rounds_of(row)
        got = sorted(zip(stratum.tolist(), assigned.tolist(), y.tolist(), strict=True))
        want = [(int(block[1]), drawn, value) for block, _, drawn, value in listed(log, memory)]
        assert got == sorted(want)


@pytest.mark.parametrize("by", ["memory", "query"])
def test_a_log_and_its_arrays_give_one_randomization_interval(by):
    world = simulated(2)
    of_log = utilities(world.log, by=by, interval="randomization").frame
    of_arrays = estimate(
        world.assigned,
        world.outcomes,
        world.strata,
        world.eligible,
        world.propensity,
        interval="randomization",
    ).frame
    assert set(of_log["interval"]) == {"randomization"}
    for name in ("utility", "ci_low", "ci_high", "p_value"):
        assert of_log[name].to_list() == of_arrays[name].to_list(), name


def test_kept_and_withheld_rounds_are_a_stratum_of_their_own():
    log = HandMadeLog()
    log.block("b", 8, {"m": 3, "other": 5})
    for t in range(8):
        log.round(f"r{t}", "b", t, ["m" if t in (0, 1, 2) else "other"], float(t * t))
        if t > 4:
            arm = "ranked" if t == 5 else "withheld"
            log.add("exposures", round_id=f"r{t}", memory_id="m", arm=arm, assigned=False, propensity=0.5)
    found = statistics_of_log(log, metric="reward", by_query=False)
    y, assigned, stratum = found.rounds_of(0)
    assert sorted(zip(stratum.tolist(), assigned.tolist(), y.tolist(), strict=True)) == [
        (0, False, 9.0), (0, False, 16.0), (0, True, 0.0), (0, True, 1.0), (0, True, 4.0),
        (1, False, 36.0), (1, False, 49.0), (1, True, 25.0),
    ]  # fmt: skip
    got = utilities(log, interval="randomization").frame.row(0, named=True)
    assert got["p_value"] is not None


def test_blocks_take_their_place_by_when_they_were_made():
    log = random_log(0)
    plain = log.blocks
    log.blocks = lambda: plain().with_columns(created_at=pl.Series([3, 1, 2]))
    cells = statistics_of_log(log, metric="reward", by_query=False).cells
    assert cells.place[cells.memory == 0].tolist() == [2, 0, 1]
    assert np.unique(cells.place).tolist() == [0, 1, 2]
