from __future__ import annotations

import numpy as np
import polars as pl
import pytest

import cmp
from cmp.estimation import estimate, log_arrays, utilities
from tests.estimation.logs import HandMadeLog, simulated

COLUMNS = ["memory_id", "utility", "ci_low", "ci_high", "p_value", "n_exposed", "n_control", "state"]

#: Sums of one set of rounds in two orders of strata.
ROUNDING = 1e-12


def agree(one: pl.DataFrame, two: pl.DataFrame) -> None:
    assert (
        one.select("memory_id", "n_exposed", "n_control").rows()
        == two.select("memory_id", "n_exposed", "n_control").rows()
    )
    for name in ("utility", "ci_low", "ci_high", "p_value"):
        np.testing.assert_allclose(
            one[name].cast(float).fill_null(np.nan),
            two[name].cast(float).fill_null(np.nan),
            rtol=ROUNDING,
            atol=ROUNDING,
        )


def with_queries(seed: int):
    world = simulated(seed)
    groups = [f"q{i % 3}" for i in range(len(world.outcomes))]
    for entry, group in zip(world.log.rows["rounds"], groups, strict=True):
        entry["group"] = group
    return world, groups


@pytest.mark.parametrize("seed", range(4))
def test_arrays_are_the_log(seed):
    world = simulated(seed)
    arrays = log_arrays(world.log)
    order = [arrays.round_ids.index(entry["round_id"]) for entry in world.log.rows["rounds"]]
    assert (arrays.eligible[order] == world.eligible).all()
    assert (arrays.assigned[order] == (world.assigned & world.eligible)).all()
    np.testing.assert_array_equal(arrays.outcomes[order], world.outcomes)
    known = world.eligible & (world.propensity > 0)
    np.testing.assert_allclose(arrays.propensity[order][known], world.propensity[known], rtol=1e-15)


@pytest.mark.parametrize("strata", ["block", "query"])
@pytest.mark.parametrize("seed", range(3))
def test_estimates_from_arrays_are_those_from_the_log(seed, strata):
    world, _ = with_queries(seed)
    arrays = log_arrays(world.log, strata=strata)
    of_arrays = arrays.named(estimate(**arrays.design, propensity=arrays.propensity).frame)
    agree(of_arrays.sort("memory_id"), utilities(world.log, strata=strata).frame)


def test_strata_by_query_are_blocks_and_queries():
    """With queries as strata a difference between them enters no contrast, whoever was drawn for which."""
    world, groups = with_queries(0)
    plain = utilities(world.log, strata="query").frame
    for entry in world.log.rows["outcomes"]:
        entry["value"] += 1000.0 * int(groups[int(entry["round_id"][1:])][1])
    shifted = utilities(world.log, strata="query").frame
    np.testing.assert_allclose(plain["utility"].fill_null(0), shifted["utility"].fill_null(0), atol=1e-9)
    assert utilities(world.log).frame["utility"].abs().max() > 10


def test_strata_by_query_are_what_a_table_by_query_has_anyway():
    world, _ = with_queries(1)
    one, two = (utilities(world.log, by="query", strata=strata).frame for strata in ("block", "query"))
    assert one.equals(two)


def test_blocks_without_rounds_stay_in_the_table():
    log = HandMadeLog()
    log.block("b", 4, {"m": 2, "other": 2})
    for t in range(4):
        log.round(f"r{t}", "b", t, ["m" if t % 2 else "other"], float(t), group="q")
    log.block("idle", 4, {"late": 2, "other": 2})
    for strata in ("block", "query"):
        table = utilities(log, strata=strata).frame
        assert table["memory_id"].to_list() == ["late", "m", "other"]
        assert table["state"][0] == "NEVER_EXPOSED"


def test_scopes_are_read_one_at_a_time():
    log = HandMadeLog()
    for scope in "st":
        log.block(f"b{scope}", 4, {f"m{scope}": 2, "other": 2}, scope=scope)
        for t in range(4):
            log.round(
                f"{scope}{t}", f"b{scope}", t, [f"m{scope}" if t % 2 else "other"], float(t), scope=scope
            )
    with pytest.raises(ValueError, match=r"2 scopes .*'s', 't'"):
        log_arrays(log)
    with pytest.raises(ValueError, match="no randomized round of scope 'u'"):
        log_arrays(log, "u")
    arrays = log_arrays(log, "t")
    assert arrays.memory_ids == ["mt", "other"]
    assert arrays.round_ids == ["t0", "t1", "t2", "t3"]
    assert arrays.named(estimate(**arrays.design).frame)["scope"].to_list() == ["t", "t"]


def test_a_scope_whose_blocks_are_all_idle_has_no_randomized_round():
    log = HandMadeLog()
    log.block("b", 2, {"m": 1, "other": 1})
    log.block("idle", 2, {"m": 1, "other": 1}, scope="t")
    log.round("r0", "b", 0, ["m"], 1.0)
    log.round("r1", "b", 1, ["other"], 0.0)
    assert log_arrays(log).scope == "s"
    with pytest.raises(ValueError, match="no randomized round of scope 't'"):
        log_arrays(log, "t")


def test_rounds_that_share_an_outcome_make_no_arrays():
    log = HandMadeLog()
    log.block("b", 2, {"m": 1, "other": 1})
    for t, drawn in enumerate(("m", "other")):
        log.round(f"r{t}", "b", t, [drawn], 1.0, episode_id="e")
    with pytest.raises(ValueError, match="share an episode's outcome"):
        log_arrays(log)


def test_what_is_too_large_for_an_array_is_refused(monkeypatch):
    monkeypatch.setattr("cmp.estimation.design_matrix._MOST_ENTRIES", 10)
    with pytest.raises(ValueError, match="do not fit into an array"):
        log_arrays(simulated(0).log)


def test_arrays_go_to_the_estimators_that_take_them():
    world = simulated(2, n=8, length=24, blocks=2)
    arrays = log_arrays(world.log)
    for frame in (cmp.adjusted_estimate(**arrays.design).frame, cmp.joint_utilities(**arrays.design).frame):
        assert arrays.named(frame)["memory_id"].to_list() == arrays.memory_ids
    pairs = arrays.named(cmp.pair_utilities(**arrays.design))
    assert set(pairs["memory_a"]) | set(pairs["memory_b"]) == set(arrays.memory_ids)
