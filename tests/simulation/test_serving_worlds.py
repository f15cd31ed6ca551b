"""Simulations: reproducible by stream, quick, joinable, and refused where they would mean nothing."""

from __future__ import annotations

import time
from itertools import pairwise

import polars as pl
import pytest

import cmp
from cmp.simulation import simulate
from cmp.simulation.plans import Plan


def tables(log):
    """The log's tables without the clock, and without names made up on the way."""
    rounds = log.rounds().drop("asked_at", "block_id").sort("round_id").collect()
    exposures = log.exposures().sort("round_id", "memory_id").collect()
    outcomes = log.outcomes().drop("recorded_at").sort("round_id").collect()
    return rounds, exposures, outcomes


def world(**settings):
    """The plan's world."""
    defaults = {
        **{"n_memories": 10, "rounds": 20, "scopes": 2, "queries": 2, "utilities": None, "helpful": 0.4},
        **{"harmful": 0.2, "effect": 0.3, "outcome": "binary", "base_rate": 0.2, "noise": 0.1, "drift": 0.0},
        **{"missing": 0.0, "reach": 0.6, "skill": 1.0, "additions": 0, "deletions": 0, "slots": 6},
        **{"random_slots": 2, "seed": 3, "design": {}},
    }
    return Plan(**(defaults | settings)).world()


def test_the_same_seed_gives_the_same_world_and_another_gives_another():
    settings = {"n_memories": 8, "rounds": 24, "queries": 2, "missing": 0.2, "additions": 1, "deletions": 1}
    first, second, other = (simulate(**settings, seed=seed) for seed in (4, 4, 5))
    for mine, same in zip(tables(first.log), tables(second.log), strict=True):
        assert mine.equals(same)
    assert first.by_query.equals(second.by_query)
    assert first.qrels.frame.equals(second.qrels.frame)
    for mine, theirs in zip(tables(first.log)[1:], tables(other.log)[1:], strict=True):
        assert not mine.equals(theirs)


def test_another_memory_changes_nothing_that_concerns_the_others():
    small, large = world(), world(n_memories=11)
    assert (large.utilities[:, :, :10] == small.utilities).all()
    for name, ranking in small.rankings.items():
        assert tuple(m for m in large.rankings[name] if m != "m010") == ranking


def test_another_scope_or_query_or_round_changes_nothing_that_concerns_the_others():
    small, large = world(), world(scopes=3, queries=3)
    assert (large.utilities[:2, :2] == small.utilities).all()
    assert small.rankings.items() <= large.rankings.items()
    short = simulate(6, rounds=12, balance_within="group", utilities=[0.0] * 6, seed=1)
    long = simulate(6, rounds=24, queries=2, balance_within="group", utilities=[0.0] * 6, seed=1)
    noise = dict(short.log.outcomes().select("round_id", "value").collect().iter_rows())
    assert (
        noise.items() <= dict(long.log.outcomes().select("round_id", "value").collect().iter_rows()).items()
    )


def test_outcomes_have_a_stream_apart_from_the_assignment():
    """No memory has an effect: other random slots, same outcomes."""
    first, second = (
        simulate(6, rounds=20, utilities=[0.0] * 6, random_slots=k, seed=9).log.outcomes().collect()
        for k in (1, 3)
    )
    columns = ["round_id", "value"]
    assert first.select(columns).sort("round_id").equals(second.select(columns).sort("round_id"))


def test_ninety_rounds_over_thirty_two_memories_take_half_a_second():
    """The best of three, on a machine that does other things as well."""
    taken = []
    for seed in range(3):
        begun = time.perf_counter()
        simulate(32, rounds=90, seed=seed)
        taken.append(time.perf_counter() - begun)
    assert min(taken) < 0.5


@pytest.mark.parametrize("by", ["memory", "query"])
@pytest.mark.parametrize("reference", ["pool", "card"])
def test_the_truth_joins_with_every_row_of_the_table(by, reference):
    simulated = simulate(8, rounds=40, scopes=2, queries=2, reference_cards=2, reach=0.3, skill=2.0)
    table = cmp.utilities(simulated.log, by=by, reference=reference)
    frame = simulated.truth_of(table)
    assert frame.height == table.frame.height == 16 * (2 if by == "query" else 1)
    assert frame["true_own"].null_count() == 0
    estimated = frame.filter(pl.col("state") == "ESTIMATED")
    assert estimated.height > 8
    assert estimated["truth"].null_count() == 0
    score = simulated.score(table)
    assert score.n_memories == frame.height
    assert score.n_estimated == frame.filter(pl.col("utility").is_not_null()).height
    assert score.auc.n_key + score.auc.left_out_key == int(frame["key"].sum())


def test_a_score_is_what_its_parts_say():
    simulated = simulate(10, rounds=50, outcome="continuous", reach=0.0, seed=8)
    table = cmp.utilities(simulated.log)
    frame = simulated.truth_of(table)
    error = (frame["utility"] - frame["truth"]).to_numpy()
    score = simulated.score(table)
    assert score.bias == pytest.approx(error.mean())
    assert score.rmse == pytest.approx((error**2).mean() ** 0.5)
    assert score.worst == pytest.approx((abs(error) / frame["std_error"].to_numpy()).max())
    assert score.width == pytest.approx((frame["ci_high"] - frame["ci_low"]).mean())
    inside = (frame["ci_low"] <= frame["truth"]) & (frame["truth"] <= frame["ci_high"])
    assert score.coverage == pytest.approx(inside.mean())
    assert score.auc == cmp.auc(table, simulated.qrels)


def test_where_nothing_is_recorded_nothing_is_scored():
    simulated = simulate(5, rounds=10, missing=1.0, utilities=[0.1, 0, 0, 0, 0])
    score = simulated.score(cmp.utilities(simulated.log))
    assert simulated.log.outcomes().collect().is_empty()
    assert (score.n_estimated, score.n_intervals, score.coverage, score.bias, score.worst) == (
        0,
        0,
        None,
        None,
        None,
    )
    assert score.auc.auc is None
    assert score.auc.left_out_key == 1
    nobody = simulate(5, rounds=10, utilities=[0.0] * 5)
    assert nobody.score(cmp.utilities(nobody.log)).auc is None


def test_outcomes_can_be_missing_where_a_key_memory_is_shown():
    simulated = simulate(8, rounds=60, utilities=[0.5, *[0.0] * 7], missing=(0.0, 1.0), reach=0.0, seed=2)
    shown = simulated.log.exposures().filter(pl.col("memory_id") == "m000").collect()["round_id"].to_list()
    recorded = set(simulated.log.outcomes().collect()["round_id"])
    assert 0 < len(shown) < 60
    assert recorded.isdisjoint(shown)
    assert len(recorded) + len(shown) == 60


def test_the_ranker_reaches_the_share_it_is_given_and_prefers_what_it_is_skilled_at():
    assert all(not ranking for ranking in world(reach=0.0).rankings.values())
    assert all(len(ranking) == 10 for ranking in world(reach=1.0).rankings.values())
    skilled = world(reach=1.0, skill=50.0)
    for s, scope in enumerate(skilled.scopes):
        for q, query in enumerate(skilled.queries):
            worth = skilled.utility_of(s, q)
            ranked = [worth[memory] > 0 for memory in skilled.rankings[scope, query]]
            assert all(before >= after for before, after in pairwise(ranked))
    reached = {m for (scope, _), ranking in world().rankings.items() for m in ranking if scope == "s0"}
    assert all(set(ranking) == reached for (scope, _), ranking in world().rankings.items() if scope == "s0")


def test_memories_come_and_go_when_they_should():
    simulated = simulate(8, rounds=120, additions=2, deletions=3, reach=0.0, seed=6)
    rows = simulated.log.rosters().collect()
    assert rows["memory_id"].n_unique() == 10
    first = rows.filter(
        pl.col("block_id") == simulated.log.blocks().sort("created_at").first().collect()["block_id"][0]
    )
    assert {"m008", "m009"}.isdisjoint(first["memory_id"])
    drawn = simulated.log.exposures().filter("assigned", "delivered").collect()
    drawn = drawn.with_columns(pl.col("round_id").str.split("/").list.last().cast(pl.Int64).alias("number"))
    came = drawn.group_by("memory_id").agg(
        pl.col("number").min().alias("first"), pl.col("number").max().alias("last")
    )
    spans = {memory: (low, high) for memory, low, high in came.iter_rows()}
    assert spans["m008"][0] >= 40
    assert spans["m009"][0] >= 80
    gone = sorted(high for memory, (_, high) in spans.items() if high < 100)
    assert len(gone) == 3
    assert all(last < left for last, left in zip(gone, (30, 60, 90), strict=True))
    assert cmp.validate_log(simulated.log) == []


def test_labels_are_the_memories_with_a_positive_utility():
    utilities = [[0.2, -0.2, 0.0], [0.0, 0.3, 0.1]]
    simulated = simulate(3, rounds=8, queries=2, random_slots=1, utilities=utilities)
    keys = simulated.qrels.key_memories.select("query_id", "memory_id").sort("query_id", "memory_id").rows()
    assert keys == [("q0", "m000"), ("q1", "m001"), ("q1", "m002")]
    assert len(simulated.qrels) == 6
    assert simulated.by_memory["true_own"].to_list() == pytest.approx([0.1, 0.05, 0.05])


def test_a_log_given_is_kept_and_never_added_to(tmp_path):
    place = tmp_path / "x.db"
    simulated = simulate(6, rounds=10, log=place)
    written = cmp.open_log(place)
    assert written.rounds().collect().height == 10
    assert cmp.validate_log(written) == []
    assert cmp.utilities(simulated.log).frame.equals(cmp.utilities(written).frame)
    with pytest.raises(FileExistsError, match="a log of its own"):
        simulate(6, rounds=10, log=place)


def test_held_out_rounds_are_in_no_contrast():
    simulated = simulate(6, rounds=80, holdout=0.25, reach=1.0, seed=3)
    held = simulated.log.rounds().filter(pl.col("fallback_reason") == "holdout").collect().height
    assert 5 < held < 40
    assert simulated.by_memory["eligible_rounds"].max() <= 80 - held
    assert cmp.exposure_cost(simulated.log).n_holdout == held


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_memories": 0}, "n_memories is 0"),
        ({"rounds": 1.5}, "rounds is 1.5"),
        ({"queries": True}, "queries is True"),
        ({"seed": -1}, "seed is -1"),
        ({"deletions": 32}, "leave one at least"),
        ({"helpful": 1.2}, "helpful is 1.2"),
        ({"helpful": 0.7, "harmful": 0.7}, r"helpful \+ harmful is 1.4"),
        ({"missing": (0.0, 2.0)}, "missing is 2.0"),
        ({"reach": -0.1}, "reach is -0.1"),
        ({"drift": float("nan")}, "drift is nan"),
        ({"outcome": "poisson"}, "outcome is 'poisson'"),
        ({"withhold": 1}, "without withhold"),
        ({"utilities": [0.1] * 31}, r"one for each of the 32 memories"),
        ({"utilities": [[0.1] * 32] * 2}, r"does not fit \(scopes, queries, memories\) = \(1, 1, 32\)"),
        ({"utilities": [float("inf")] * 32}, "NaN or infinite"),
        ({"slots": 2, "random_slots": 3}, "random_slots is 3 and slots is 2"),
    ],
)
def test_what_cannot_be_simulated_is_refused_by_name(settings, message):
    with pytest.raises(ValueError, match=message):
        simulate(**settings)


def test_utilities_by_version_have_no_truth():
    simulated = simulate(4, rounds=8, slots=2, random_slots=1)
    with pytest.raises(ValueError, match="by='memory' or by='query'"):
        simulated.score(cmp.utilities(simulated.log, by="version"))
