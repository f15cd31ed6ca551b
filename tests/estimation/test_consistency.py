from __future__ import annotations

import pytest

from cmp.errors import PositivityError, ScopeError
from cmp.estimation import utilities
from tests.estimation.logs import two_arms


@pytest.mark.parametrize("planned", [-1, 5])
def test_planned_counts_that_make_no_probability_are_an_error(planned):
    log = two_arms([1.0, 0.0], [0.0, 1.0])
    log.rows["rosters"][0]["planned"] = planned
    with pytest.raises(PositivityError, match=f"block 'b', memory 'm': {planned} of 4 rows.*validate_log"):
        utilities(log)


def test_a_round_of_an_unknown_block_is_an_error():
    log = two_arms([1.0, 0.0], [0.0, 1.0])
    log.round("lost", "b9", 0, ["m"], 1.0)
    with pytest.raises(ValueError, match=r"round 'lost', block 'b9'.*validate_log"):
        utilities(log)


@pytest.mark.parametrize("scopes", [("s", "s"), ("s", "t")])
def test_blocks_that_stand_twice_cross_no_scope_unless_one_of_them_has_two(scopes):
    log = two_arms([1.0, 0.0], [0.0, 1.0])
    log.add("blocks", block_id="b2", scope="t", length=4)
    log.add("blocks", block_id="b2", scope="t", length=4)
    log.add("blocks", block_id="b", scope=scopes[1], length=4)
    error, said = (
        (ScopeError, "b.* is of two scopes") if scopes[1] == "t" else (ValueError, "4 rows of blocks stand")
    )
    with pytest.raises(error, match=said) as caught:
        utilities(log)
    assert isinstance(caught.value, ScopeError) == (scopes[1] == "t")


def test_a_draw_from_outside_the_roster_is_an_error():
    log = two_arms([1.0, 0.0], [0.0, 1.0])
    log.rows["exposures"][1]["memory_id"] = "stranger"
    with pytest.raises(PositivityError, match=r"memory 'stranger' in round 'r1'.*validate_log"):
        utilities(log)


def test_a_draw_at_propensity_zero_is_an_error():
    log = two_arms([1.0, 0.0], [0.0, 1.0])
    log.rows["rosters"][0]["planned"] = 0
    with pytest.raises(PositivityError, match="drawn without a chance"):
        utilities(log)


def test_ranked_results_need_no_place_in_the_roster():
    log = two_arms([1.0, 0.0], [0.0, 1.0], ranked=["stranger"])
    assert utilities(log).frame["memory_id"].to_list() == ["m", "other"]


def test_a_metric_that_is_not_there_is_an_error_naming_those_that_are():
    log = two_arms([1.0, 0.0], [0.0, 1.0])
    with pytest.raises(ValueError, match="no outcome of metric 'f1'; it has 'reward'"):
        utilities(log, metric="f1")
    log.rows["outcomes"].clear()
    assert set(utilities(log, metric="f1").frame["state"]) == {"NO_OUTCOMES"}


def test_a_round_without_a_draw_that_was_certain_is_an_error():
    log = two_arms([1.0, 0.0], [0.0, 1.0])
    log.rows["rosters"][0]["planned"] = 4
    with pytest.raises(PositivityError, match="memory 'm' was planned for every row of block 'b'"):
        utilities(log)
    for entry in log.rows["exposures"]:
        entry["memory_id"] = "m"
    log.rows["rosters"].pop()
    assert utilities(log).frame.select("state", "n_certain").row(0) == ("UNDEREXPOSED", 4)


def test_a_memory_is_said_to_be_ranked_in_every_round_only_where_it_is():
    log = two_arms([1.0, 0.0], [0.0, 0.0], ranked=["m"])
    assert utilities(log).frame["reason"][0] == "in the context by rank in every round"
    log.block("b2", 2, {"m": 0, "other": 2})
    for i in range(2):
        log.round(f"s{i}", "b2", i, ["other"], 1.0)
    row = utilities(log).frame.row(0, named=True)
    assert (row["state"], row["n_certain"]) == ("ALWAYS_RANKED", 2)
    assert row["reason"] == "in the context by rank in every round that might have been eligible"
