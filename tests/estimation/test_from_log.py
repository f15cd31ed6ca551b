from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from cmp.errors import ConflictingOutcomeError
from cmp.estimation import differential_missingness, estimate, missing_outcome_bounds, utilities
from tests.estimation.golden import golden
from tests.estimation.logs import HandMadeLog, simulated, two_arms
from tests.estimation.test_clustered import random_log


def row(log: HandMadeLog, memory: str = "m", **options) -> dict:
    return utilities(log, **options).frame.filter(pl.col("memory_id") == memory).row(0, named=True)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("by", ["memory", "query"])
@pytest.mark.parametrize("estimator", ["difference", "ht"])
def test_a_log_and_its_arrays_give_bit_equal_tables(seed, by, estimator):
    world = simulated(seed)
    from_log = utilities(world.log, by=by, estimator=estimator).frame
    arrays = estimate(
        world.assigned, world.outcomes, world.strata, world.eligible, world.propensity, estimator
    ).frame
    for name in arrays.columns[2:]:
        assert from_log[name].to_list() == arrays[name].to_list(), name


def test_no_row_order_of_any_table_shows():
    world = simulated(5)
    straight = utilities(world.log).frame
    rng = np.random.default_rng(0)
    for rows in world.log.rows.values():
        rng.shuffle(rows)
    assert utilities(world.log).frame.equals(straight)


def test_renaming_memories_changes_no_number():
    world = simulated(6)
    straight = utilities(world.log).frame
    names = {f"m{i}": f"m{5 - i}" for i in range(6)}
    for table in ("exposures", "rosters"):
        for entry in world.log.rows[table]:
            entry["memory_id"] = names[entry["memory_id"]]
    renamed = utilities(world.log).frame.with_columns(pl.col("memory_id").replace(names)).sort("memory_id")
    assert renamed.equals(straight)


def test_by_query_compares_a_memory_within_its_query_only():
    log = HandMadeLog()
    for q, level in (("q1", 0.0), ("q2", 10.0)):
        log.block(f"b-{q}", 4, {"m": 2, "other": 2})
        for i, (memory, y) in enumerate([("m", 1.0), ("m", 2.0), ("other", 0.0), ("other", 3.0)]):
            log.round(f"{q}-{i}", f"b-{q}", i, [memory], y + level, group=q)
    frame = utilities(log, by="query").frame
    assert frame.select("group", "memory_id").rows() == [(q, m) for q in ("q1", "q2") for m in ("m", "other")]
    assert frame["utility"].to_list() == [0.0] * 4
    assert row(log)["utility"] == 0.0


def test_the_callers_group_names_the_query_where_given_and_the_query_itself_elsewhere():
    log = two_arms([1.0, 0.0], [0.0, 0.0])
    assert utilities(log, by="query").frame["group"].unique().to_list() == ["q"]
    for entry in log.rows["rounds"]:
        entry["group"], entry["query_hash"] = "task", None
    assert utilities(log, by="query").frame["group"].unique().to_list() == ["task"]
    log.rows["rounds"][0]["group"] = None
    with pytest.raises(ValueError, match="neither a group nor a query hash"):
        utilities(log, by="query")


def test_scopes_are_apart_even_with_equal_ids():
    log = HandMadeLog()
    for scope, gain in (("A", 1.0), ("B", -1.0)):
        log.block(scope, 4, {"m": 2, "other": 2}, scope=scope)
        for i, memory in enumerate(["m", "m", "other", "other"]):
            log.round(f"{scope}{i}", scope, i, [memory], gain * (memory == "m") + i % 2, scope=scope)
    frame = utilities(log).frame
    assert frame.filter(pl.col("memory_id") == "m").select("scope", "utility").rows() == [
        ("A", 1.0),
        ("B", -1.0),
    ]


def test_a_drawn_memory_that_was_ranked_is_not_eligible_in_that_round():
    log = HandMadeLog()
    log.block("b", 5, {"m": 3, "other": 2})
    for i, memory in enumerate(["m", "m", "m", "other", "other"]):
        log.round(f"r{i}", "b", i, [memory], float(i), ranked=["m"] if i == 2 else [])
    got = row(log)
    assert (got["n_exposed"], got["n_control"], got["utility"]) == (2, 2, 0.5 - 3.5)


def test_a_memory_ranked_in_every_round_has_no_contrast():
    log = two_arms([1.0, 0.0], [0.0, 0.0], ranked=["m"])
    assert (row(log)["state"], row(log)["utility"]) == ("ALWAYS_RANKED", None)


def test_withheld_rounds_are_no_controls():
    log = two_arms([1.0, 0.0], [0.0, 0.0, 9.0])
    log.add("exposures", round_id="r4", memory_id="m", arm="withheld", assigned=False, delivered=False)
    assert (row(log)["n_control"], row(log)["utility"]) == (2, 0.5)


def test_a_deleted_memorys_rounds_end_before_its_deletion():
    log = HandMadeLog()
    log.block("b", 6, {"m": 3, "other": 3}, m=4)
    for i, memory in enumerate(["m", "other", "m", "other", "m", "other"]):
        log.round(f"r{i}", "b", i, [memory], float(i), delivered=i != 4)
    got = row(log)
    assert (got["n_exposed"], got["n_control"], got["utility"]) == (2, 2, 1.0 - 2.0)
    log.rows["rosters"][0]["removed_row"] = 0
    assert (row(log)["state"], row(log)["n_control"]) == ("NEVER_EXPOSED", 0)


def test_assignment_counts_whether_delivered_or_not():
    log = two_arms([1.0, 1.0], [0.0, 0.0], delivered=False)
    assert row(log)["n_exposed"] == 2


def test_rounds_that_were_not_randomized_are_in_no_contrast():
    log = two_arms([1.0, 0.0], [0.0, 0.0])
    log.round("held-out", None, None, [], 99.0, ranked=["m"], fallback_reason="holdout")
    assert row(log)["n_control"] == 2


def test_blocks_without_a_draw_of_the_memory_are_not_eligible_for_it():
    log = two_arms([1.0, 0.0], [0.0, 0.0])
    log.block("b2", 2, {"m": 0, "other": 2})
    for i in range(2):
        log.round(f"s{i}", "b2", i, ["other"], 5.0)
    assert (row(log)["n_control"], row(log)["n_certain"]) == (2, 2)
    assert row(log, "other")["n_certain"] == 2


def test_every_memory_of_every_roster_has_a_row():
    log = two_arms([1.0, 0.0], [0.0, 0.0])
    log.block("unused", 2, {"new": 1, "newer": 1})
    frame = utilities(log).frame
    assert frame["memory_id"].to_list() == ["m", "new", "newer", "other"]
    assert row(log, "new")["state"] == "NEVER_EXPOSED"


def test_an_empty_log_is_an_empty_table():
    u = utilities(HandMadeLog())
    assert len(u) == 0
    assert u.summary().startswith("0 memories")


# Outcomes


def test_redelivered_rows_count_once():
    log = two_arms([1.0, 0.0], [0.0, 1.0])
    log.rows["exposures"] += [dict(log.rows["exposures"][0])] * 2
    log.rows["outcomes"] += [dict(log.rows["outcomes"][0])] * 2 + [dict(log.rows["outcomes"][3])]
    got = row(log)
    assert (got["n_exposed"] + got["n_control"], got["utility"]) == (4, 0.0)


def test_a_conflict_is_flagged_and_a_revision_wins():
    log = two_arms([1.0, 0.0], [0.0, 1.0])
    log.add("outcomes", round_id="r0", metric="reward", value=0.0, revision=0)
    with pytest.raises(ConflictingOutcomeError, match="'r0'"):
        utilities(log)
    log.rows["outcomes"][-1]["revision"] = 1
    assert row(log)["mean_exposed"] == 0.0


def test_other_metrics_and_orphans_are_left_alone():
    log = two_arms([1.0, 0.0], [0.0, 1.0])
    log.add("outcomes", round_id="r0", metric="cost", value=7.0, revision=3)
    log.add("outcomes", round_id="unknown", metric="reward", value=7.0, revision=0)
    assert row(log)["mean_exposed"] == 0.5
    assert row(log, metric="cost")["n_missing_exposed"] == 1


def test_missing_outcomes_are_counted_by_arm_and_tested():
    case = golden("missing")
    log = two_arms(case["assigned"], case["control"])
    got = row(log)
    assert got["utility"] == pytest.approx(case["difference"], abs=1e-12)
    assert (got["n_missing_exposed"], got["n_missing_control"]) == (1, 2)
    tested = differential_missingness(utilities(log)).filter(pl.col("memory_id") == "m")
    assert tested.select("share_exposed", "share_control").row(0) == (0.25, 0.5)


def test_worst_case_bounds_are_the_golden_ones():
    case = golden("missing")
    y = [*case["assigned"], *case["control"]]
    assert missing_outcome_bounds(y, [1] * 4 + [0] * 4, 0, 1) == tuple(case["bounds01"])
    assert missing_outcome_bounds([1.0], [1], 0, 1) is None
    with pytest.raises(ValueError, match="stated range"):
        missing_outcome_bounds([2.0, 0], [1, 0], 0, 1)
    with pytest.raises(ValueError, match="one of each"):
        missing_outcome_bounds([2.0, 0], [1], 0, 1)


def test_a_round_id_that_stands_twice_is_an_error():
    log = two_arms([1.0, 0.0], [0.0, 1.0])
    log.rows["rounds"].append(dict(log.rows["rounds"][0]))
    with pytest.raises(ValueError, match="'r0'"):
        utilities(log)


def test_a_randomized_round_without_a_block_is_an_error():
    log = two_arms([1.0, 0.0], [0.0, 1.0])
    log.round("bare", None, None, ["m"], 1.0, randomized=True)
    with pytest.raises(ValueError, match="'bare' names no block"):
        utilities(log)


def test_outcomes_that_are_not_finite_are_an_error():
    log = two_arms([1.0, 0.0], [0.0, float("nan")])
    with pytest.raises(ValueError, match="NaN or infinite"):
        utilities(log)


# Flags


def test_content_that_changed_under_one_id_is_flagged():
    log = HandMadeLog()
    ys = {"v1": ([1, 1, 1, 0], [1, 0, 1, 0]), "v2": ([0, 0, 1, 0], [0, 1, 1, 0])}
    for version, (exposed, control) in ys.items():
        log.block(version, 8, {"m": 4, "other": 4})
        for i, y in enumerate([*exposed, *control]):
            log.round(
                f"{version}-{i}",
                version,
                i,
                ["m" if i < 4 else "other"],
                y,
                content=version if i < 4 else "o",
            )
    got = row(log)
    assert (got["utility"], got["content_changed"]) == (0.0, True)
    assert not row(log, "other")["content_changed"]
    assert "changed content" in utilities(log).summary()
    for entry in log.rows["rounds"]:
        entry["group"] = entry["block_id"]
    versions = utilities(log, by="query").frame.filter(pl.col("memory_id") == "m")
    assert versions["utility"].to_list() == [0.25, -0.25]
    assert not versions["content_changed"].any()


@pytest.mark.parametrize(
    "option",
    [{"by": "scope"}, {"reference": "x"}, {"engine": "pandas"}, {"estimator": "x"}, {"adjust": "x"}],
)
def test_what_is_not_supported_is_refused_with_what_is(option):
    with pytest.raises(ValueError, match="use "):
        utilities(two_arms([1.0, 0.0], [0.0, 1.0]), **option)


def test_awkward_ids_survive_byte_for_byte():
    ids = ["\u00e9", "e\u0301", " m", "m ", "a'b\"c", "x" * 300]
    log = HandMadeLog()
    log.block("b", 12, dict.fromkeys(ids, 2))
    for i in range(12):
        log.round(f"r{i}", "b", i, [ids[i % 6]], float(i))
    assert sorted(utilities(log).frame["memory_id"]) == sorted(ids)


@pytest.mark.parametrize("by", ["memory", "query"])
@pytest.mark.parametrize(("portion", "many"), [(1, 0.0), (1, 2.0), (1_000_000, 0.0), (1_000_000, 2.0)])
def test_building_cells_in_portions_or_adding_up_idle_ones_changes_nothing(by, portion, many, monkeypatch):
    world = simulated(7)
    for i, entry in enumerate(world.log.rows["rounds"]):
        entry["group"] = f"q{i % 4}"
    whole = utilities(world.log, by=by).frame
    monkeypatch.setattr("cmp.estimation.log_cells._PORTION", portion)
    monkeypatch.setattr("cmp.estimation.log_cells._MANY", many)
    assert utilities(world.log, by=by).frame.equals(whole)


def test_a_served_log_and_its_export_give_one_table(tmp_path):
    import cmp

    ids = [f"m{i}" for i in range(6)]
    memory = cmp.wrap(
        lambda query: ids[:2], list_ids=lambda scope=None: ids, get=lambda wanted, scope=None: list(wanted),
        id_of=str, text_of=str, slots=3, random_slots=1, log=str(tmp_path / "x.db"), seed=1,
    )  # fmt: skip
    for i in range(36):
        context = memory.retrieve(f"q{i % 3}", scope="s", round_id=f"r{i}")
        memory.record(context.round_id, float(any(item.id == "m4" for item in context.items)))
    log = cmp.open_log(str(tmp_path / "x.db"))
    frame = utilities(log).frame
    assert frame["memory_id"].to_list() == ids
    assert frame["state"].to_list() == ["ALWAYS_RANKED"] * 2 + ["ESTIMATED"] * 4
    assert frame.filter(pl.col("memory_id") == "m4")["utility"].to_list() == [1.0]
    assert (frame["n_exposed"] + frame["n_control"]).to_list() == [0, 0, 36, 36, 36, 36]
    log.export(str(tmp_path / "shards"))
    assert utilities(cmp.open_log(str(tmp_path / "shards"))).frame.equals(frame)


def test_two_logs_merged_give_the_precision_weighted_mean_of_each():
    rng = np.random.default_rng(9)
    logs, values = [], []
    for name, n1, n0 in (("x", 3, 7), ("y", 5, 5)):
        log = HandMadeLog()
        log.block(name, n1 + n0, {"m": n1, "other": n0})
        for i in range(n1 + n0):
            log.round(f"{name}{i}", name, i, ["m" if i < n1 else "other"], float(rng.normal()))
        logs.append(log)
        values.append((row(log)["utility"], n1 * n0 / (n1 + n0)))
    merged = HandMadeLog({table: logs[0].rows[table] + logs[1].rows[table] for table in logs[0].rows})
    want = sum(u * w for u, w in values) / sum(w for _, w in values)
    assert row(merged)["utility"] == pytest.approx(want, abs=1e-12)
    assert row(merged)["n_strata"] == 2


@pytest.mark.parametrize("table", ["blocks", "rosters"])
def test_a_block_or_a_row_of_a_roster_that_stands_twice_is_refused(table):
    log = two_arms([1.0, 0.0], [0.0, 1.0])
    log.rows[table].append(dict(log.rows[table][0]))
    with pytest.raises(ValueError, match=f"of {table} stand in the log more than once"):
        utilities(log)


def test_a_drawn_round_of_an_unknown_row_is_no_control_where_the_memory_was_removed():
    log = HandMadeLog()
    log.block("b", 8, {"m": 4, "other": 4}, m=6)
    for t in range(8):
        drawn = "m" if t % 2 == 0 and t < 6 else "other"
        log.round(f"r{t}", "b", None if t in (0, 1) else t, [drawn], float(t % 2 == 0))
    row = utilities(log).frame.row(0, named=True)
    assert (row["memory_id"], row["n_exposed"], row["n_control"]) == ("m", 2, 2)


def test_removals_are_those_listed_one_by_one():
    rng = np.random.default_rng(4)
    log = HandMadeLog()
    removed = {"m1": 3, "m3": 9, "m4": 0}
    log.block("b", 12, {f"m{i}": 2 for i in range(6)}, **removed)
    rows = rng.permutation(12)
    rounds = []
    for t in rows:
        drawn = [f"m{i}" for i in (t % 6,) if t < removed.get(f"m{i}", 99)]
        rounds.append((int(t), drawn))
        log.round(f"r{t}", "b", int(t), drawn, float(t))
    for row in utilities(log).frame.iter_rows(named=True):
        eligible = [(t, d) for t, d in rounds if t < removed.get(row["memory_id"], 99)]
        exposed = sum(row["memory_id"] in d for _, d in eligible)
        assert (row["n_exposed"], row["n_control"]) == (exposed, len(eligible) - exposed)


@pytest.mark.parametrize("seed", range(4))
def test_condensing_changes_nothing_where_what_carries_over_is_left_out(seed, monkeypatch):
    log = random_log(seed)
    monkeypatch.setattr("cmp.estimation.log_cells._MANY", 0.0)
    frame = utilities(log, carryover="exclude").frame
    monkeypatch.setattr("cmp.estimation.from_log.condenses", lambda _: False)
    whole = utilities(log, carryover="exclude").frame
    for name in ("utility", "ci_low", "ci_high", "n_exposed", "n_control", "n_strata"):
        np.testing.assert_allclose(
            frame[name].cast(float).fill_null(np.nan), whole[name].cast(float).fill_null(np.nan), rtol=1e-12
        )
