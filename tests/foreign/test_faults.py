"""Each way in which other people's rows went wrong is refused, by name of row and with what to do."""

from __future__ import annotations

import copy
import json
import pickle

import numpy as np
import pandas as pd
import polars as pl
import pytest

import cmp
from cmp.estimation.from_rows import utilities_of_rows
from cmp.foreign import ForeignLogError, from_frame
from tests.foreign.rows import small

M = pl.col("memory_id")
R = pl.col("round_id")


def at(round_id: str, memory_id: str) -> pl.Expr:
    return (round_id == R) & (memory_id == M)


def test_probabilities_of_a_slot_are_not_those_of_the_context():
    """Three of ten, logged as 1/10: a Horvitz-Thompson mean would be three times the truth."""
    frame = small(n=10, k=3)
    assert len(from_frame(frame, k=3)) == 12
    slot = frame.with_columns(propensity=pl.lit(0.1))
    with pytest.raises(
        cmp.PositivityError, match=r"12 of 12 rounds do not add up to the k = 3.*probabilities of one slot"
    ):
        from_frame(slot)
    with pytest.raises(cmp.PositivityError, match=r"'r4': 3.6"):
        from_frame(frame.with_columns(propensity=pl.when(R == "r4").then(0.36).otherwise("propensity")), k=3)
    assert len(from_frame(frame.with_columns(pl.col("propensity").round(2)), sums_within=0.01)) == 12


def test_slot_probabilities_show_where_the_number_drawn_varies_too():
    """Each of ten is drawn or not by itself; a third of the probability was logged."""
    rng = np.random.default_rng(5)
    frame = small(n=10, rounds=400).with_columns(assigned=pl.Series(rng.random(4000) < 0.3))
    assert len(from_frame(frame.with_columns(propensity=pl.lit(0.3)))) == 400
    with pytest.raises(cmp.PositivityError, match="assigned where propensities add up to 400"):
        from_frame(frame.with_columns(propensity=pl.lit(0.1)))


def test_a_column_of_k_is_held_to_each_round():
    frame = small(rounds=6).with_columns(k=pl.lit(1))
    assert len(from_frame(frame, k="k")) == 6
    with pytest.raises(cmp.PositivityError, match=r"1 of 6 rounds do not add up.*'r2': 1; from row"):
        from_frame(frame.with_columns(k=pl.when(R == "r2").then(2).otherwise("k")), k="k")
    with pytest.raises(ForeignLogError, match="several values of k"):
        from_frame(frame.with_columns(k=pl.when(at("r2", "m1")).then(2).otherwise("k")), k="k")
    with pytest.raises(ForeignLogError, match="k=0"):
        from_frame(frame, k=0)


def test_a_round_whose_k_is_not_said_is_refused_or_its_sum_would_be_compared_with_nothing():
    """Three of ten logged as 1/10, and k null: the sums are 1, and no number says what they should be."""
    slot = small(n=10, k=3).with_columns(propensity=pl.lit(0.1))
    for unsaid in (None, float("nan")):
        frame = slot.with_columns(k=pl.lit(unsaid, pl.Float64))
        with pytest.raises(
            ForeignLogError, match=r"120 rows have no k.*rows 0, 1, 2.*round 'r0'.*or leave k out"
        ):
            from_frame(frame, k="k")
        one = small(rounds=6).with_columns(k=pl.when(R == "r2").then(unsaid).otherwise(1.0))
        with pytest.raises(ForeignLogError, match=r"4 rows have no k.*rows 8, 9, 10, 11; round 'r2'"):
            from_frame(one, k="k")
        roster = one.select("memory_id").unique()
        with pytest.raises(ForeignLogError, match="1 rows have no k"):
            from_frame(one.filter("assigned"), k="k", roster=roster)


@pytest.mark.parametrize("k", [2.5, -1.0])
def test_a_k_that_is_no_count_is_refused(k):
    with pytest.raises(ForeignLogError, match=rf"24 rows have a k that is no count .*round 'r0': {k:g}"):
        from_frame(small(rounds=6).with_columns(k=pl.lit(k)), k="k")


def test_lines_whose_k_is_null_are_refused_as_rows_are(tmp_path):
    rows = small(n=10, k=3).with_columns(propensity=pl.lit(0.1), k=pl.lit(None, pl.Int64))
    (tmp_path / "x.jsonl").write_text("\n".join(map(json.dumps, rows.to_dicts())), "utf-8")
    with pytest.raises(ForeignLogError, match=r"120 rows have no k.*lines 1, 2"):
        cmp.read_jsonl(tmp_path / "x.jsonl", k="k")


@pytest.mark.parametrize("slack", [float("nan"), float("inf"), -1, 1, "x", None, True])
def test_a_slack_that_would_take_any_sum_is_refused_by_every_reader(tmp_path, slack):
    wrong = small().with_columns(propensity=pl.lit(0.1))
    (tmp_path / "x.jsonl").write_text("\n".join(map(json.dumps, wrong.to_dicts())), "utf-8")
    for read, source in (
        (from_frame, wrong),
        (cmp.read_jsonl, tmp_path / "x.jsonl"),
        (cmp.read_dsjson, tmp_path / "x.jsonl"),
    ):
        with pytest.raises(ForeignLogError, match=r"sums_within=.*from 0 to below 1"):
            read(source, sums_within=slack)


@pytest.mark.parametrize("roster", [["a", "b"], {"memory_id": ["a"]}, 3])
def test_a_roster_that_is_no_frame_is_refused_by_its_name(roster):
    with pytest.raises(ForeignLogError, match=f"the roster is a {type(roster).__name__}; give a dataframe"):
        from_frame(small(), roster=roster)


@pytest.mark.parametrize(
    "use",
    [cmp.validate_log, lambda log: log.export("x"), lambda log: log.rounds()],
    ids=["validate_log", "export", "rounds"],
)
def test_what_takes_a_log_refuses_rows_and_says_what_takes_them(use):
    log = from_frame(small())
    with pytest.raises(
        ForeignLogError, match=r"takes a log that cmp.wrap wrote. cmp.utilities and cmp.diagnose"
    ):
        use(log)
    assert not hasattr(log, "rounds")


def test_rows_are_copied_and_sent_to_other_processes():
    log = from_frame(small())
    for other in (copy.deepcopy(log), pickle.loads(pickle.dumps(log))):
        assert utilities_of_rows(other).frame.equals(utilities_of_rows(log).frame)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (-0.1, "outside 0 to 1"),
        (1.1, "outside 0 to 1"),
        (float("nan"), "null or NaN,"),
        (None, "null or NaN,"),
    ],
)
def test_a_propensity_that_is_no_probability_names_its_row(value, said):
    frame = small().with_columns(
        propensity=pl.when(at("r1", "m2")).then(pl.lit(value, pl.Float64)).otherwise("propensity")
    )
    with pytest.raises(cmp.PositivityError, match=rf"1 rows have .*{said} \(row 6; round 'r1', memory 'm2'"):
        from_frame(frame)


def test_what_was_drawn_had_a_chance_and_what_was_certain_was_drawn():
    drawn = small().filter("assigned").row(0, named=True)
    impossible = small().with_columns(
        propensity=pl.when(at(drawn["round_id"], drawn["memory_id"])).then(0.0).otherwise("propensity")
    )
    with pytest.raises(cmp.PositivityError, match="1 rows were drawn at propensity 0"):
        from_frame(impossible)
    left = small().filter(~pl.col("assigned")).row(0, named=True)
    certain = small().with_columns(
        propensity=pl.when(at(left["round_id"], left["memory_id"])).then(1.0).otherwise("propensity")
    )
    with pytest.raises(cmp.PositivityError, match="1 rows were not drawn at propensity 1"):
        from_frame(certain)


def test_certain_rows_are_counted_and_left_out():
    """m9 is drawn in every round beside the random one: it has no contrast, and takes none from the others."""
    frame = small()
    always = frame.unique("round_id").with_columns(
        memory_id=pl.lit("m9"), assigned=True, propensity=pl.lit(1.0)
    )
    log = from_frame(pl.concat([frame, always]), k=2)
    assert log.notes["rows at propensity 0 or 1"] == 12
    table = utilities_of_rows(log).frame
    last = table.row(-1, named=True)
    assert (last["memory_id"], last["state"], last["n_certain"], last["utility"]) == (
        "m9",
        "UNDEREXPOSED",
        12,
        None,
    )
    plain = utilities_of_rows(from_frame(frame)).frame
    assert table["utility"].to_list()[:4] == plain["utility"].to_list()


def test_joining_an_outcome_to_several_rows_is_refused_not_counted_five_times():
    frame = small()
    with pytest.raises(
        ForeignLogError, match=r"240 rows share their round and memory.*a join that multiplied rows"
    ):
        from_frame(pl.concat([frame] * 5))


def test_a_round_has_one_outcome():
    frame = small()
    torn = frame.with_columns(outcome=pl.when(at("r3", "m0")).then(7.0).otherwise("outcome"))
    with pytest.raises(
        cmp.ConflictingOutcomeError, match=r"1 rounds have several outcomes \(round 'r3': 7.0"
    ):
        from_frame(torn)


def test_an_outcome_given_to_drawn_rows_alone_is_refused():
    """The controls' outcomes would be missing, or worse, filled with 0."""
    with pytest.raises(
        cmp.ConflictingOutcomeError, match="give the round's one outcome in each of its rows, drawn or not"
    ):
        from_frame(small().with_columns(outcome=pl.when("assigned").then("outcome")))


def test_a_round_is_of_one_scope_stratum_query_and_episode():
    frame = small().with_columns(a=pl.lit("x"))
    torn = frame.with_columns(a=pl.when(at("r3", "m0")).then(pl.lit("y")).otherwise("a"))
    for name, said, kind in (
        ("scope", "scopes", cmp.ScopeError), ("stratum", "strata", ForeignLogError),
        ("query", "queries", ForeignLogError), ("episode", "episodes", ForeignLogError),
    ):  # fmt: skip
        assert len(from_frame(frame, **{name: "a"})) == 12
        with pytest.raises(kind, match=f"1 rounds have several {said}"):
            from_frame(torn, **{name: "a"})


def test_drawn_rows_alone_do_not_say_what_the_controls_were():
    drawn = small().filter("assigned")
    with pytest.raises(ForeignLogError, match=r"every row is assigned.*pass roster="):
        from_frame(drawn)
    roster = small().select("memory_id").unique()
    assert len(from_frame(drawn, roster=roster)) == 12


def test_a_roster_says_who_might_have_been_drawn_and_nothing_else_was():
    drawn, roster = small(rounds=40).filter("assigned"), small().select("memory_id").unique()
    for wrong, said in (
        (roster.filter(M != "m1"), "outside their stratum's roster"),
        (pl.concat([roster, roster]), "repeat a memory"),
        (pl.concat([roster, pl.DataFrame({"memory_id": ["m8"]})]), "another propensity than the roster"),
        (roster.with_columns(propensity=pl.lit(0.2)), "another propensity than the roster"),
        (roster.with_columns(propensity=pl.lit(1.5)), "no probabilities"),
        (roster.with_columns(propensity=pl.lit(None, pl.Float64)), "no probabilities"),
        (
            pl.concat([roster, pl.DataFrame({"memory_id": ["m8"]})], how="diagonal").with_columns(
                propensity=0.25
            ),
            "add up",
        ),
    ):
        with pytest.raises(ValueError, match=said):
            from_frame(drawn, roster=wrong)


def test_with_a_roster_every_round_has_its_k_rows():
    """A round that drew fewer may be one of many, of which those that drew none are not in the file."""
    frame, roster = small(n=5, k=2, rounds=30), small(n=5).select("memory_id").unique()
    drawn = frame.filter("assigned")
    assert len(from_frame(drawn, roster=roster)) == 30
    with pytest.raises(ForeignLogError, match="1 rounds do not have the same number of rows drawn"):
        from_frame(drawn.slice(1), roster=roster)


@pytest.mark.parametrize(
    ("column", "values", "kind", "said"),
    [
        ("memory_id", [None, "b"], cmp.InvalidIdError, "null or empty"),
        ("memory_id", ["", "b"], cmp.InvalidIdError, "null or empty"),
        ("round_id", [1.0, 1.0], cmp.InvalidIdError, "Float64; ids are strings or integers"),
        ("memory_id", [True, False], cmp.InvalidIdError, "Boolean; ids are"),
        ("assigned", ["yes", "no"], ForeignLogError, "String; give True and False"),
        ("assigned", [2, 0], ForeignLogError, "neither True nor False"),
        ("assigned", [None, True], ForeignLogError, "neither True nor False"),
        ("outcome", ["1", "1"], ForeignLogError, "String; give numbers"),
        ("outcome", [float("inf")] * 2, ForeignLogError, r"infinite \(rows 0, 1\)"),
        ("propensity", ["0.5", "0.5"], ForeignLogError, "String; give numbers"),
    ],
)  # fmt: skip
def test_columns_are_what_they_should_be(column, values, kind, said):
    frame = pl.DataFrame(
        {
            "round_id": ["r", "r"],
            "memory_id": ["a", "b"],
            "assigned": [True, False],
            "propensity": 0.5,
            "outcome": 1.0,
        }
    )
    assert len(from_frame(frame)) == 1
    with pytest.raises(kind, match=said):
        from_frame(frame.with_columns(pl.Series(column, values)))


@pytest.mark.parametrize(
    ("column", "values", "kind", "said"),
    [
        ("memory_id", [1, "1"], cmp.InvalidIdError, "would be one id"),
        ("memory_id", ["a", b"b"], cmp.InvalidIdError, "row 1.*bytes"),
        ("memory_id", ["a", "\ud800"], cmp.InvalidIdError, "row 1.*surrogate"),
        ("memory_id", [1, True], cmp.InvalidIdError, "row 1"),
        ("assigned", [True, "True"], ForeignLogError, "row 1.*neither True nor False"),
        ("outcome", [1.0, "1"], ForeignLogError, "row 1.*no number"),
    ],
)  # fmt: skip
def test_columns_of_python_objects_are_read_value_by_value(column, values, kind, said):
    frame = pd.DataFrame(
        {
            "round_id": ["r", "r"],
            "memory_id": ["a", "b"],
            "assigned": [True, False],
            "propensity": 0.5,
            "outcome": 1.0,
        }
    )
    frame[column] = pd.Series(values, dtype=object)
    with pytest.raises(kind, match=said):
        from_frame(frame)


def test_integers_are_ids_and_true_is_an_outcome_of_one():
    frame = small(n=3).with_columns(memory_id=M.str.slice(1).cast(pl.UInt8), outcome=pl.col("outcome") == 1.0)
    log = from_frame(frame)
    assert log.memories.to_list() == ["0", "1", "2"]
    assert set(log.per_round["outcome"]) == {0.0, 1.0}


def test_missing_outcomes_are_missing_by_arm_and_never_zero():
    """The case of record: drawn 1, 1, missing, 0; control 0, missing, missing, 1."""
    y = [1.0, 1.0, None, 0.0, 0.0, None, None, 1.0]
    rounds = pl.DataFrame({"round_id": range(8), "outcome": y, "first": [True] * 4 + [False] * 4})
    frame = pl.concat(
        [
            rounds.with_columns(memory_id=pl.lit("m"), assigned=pl.col("first")),
            rounds.with_columns(memory_id=pl.lit("other"), assigned=~pl.col("first")),
        ]
    ).with_columns(propensity=0.5)
    row = utilities_of_rows(from_frame(frame), outcome_range=(0.0, 1.0), interval="neyman").frame.row(
        0, named=True
    )
    assert row["utility"] == pytest.approx(1 / 6, abs=1e-12)
    assert (row["n_exposed"], row["n_control"], row["n_missing_exposed"], row["n_missing_control"]) == (
        3,
        2,
        1,
        2,
    )
    assert row["std_error"] == pytest.approx(0.361111**0.5, abs=1e-6)  # given to six places
    assert (row["bound_low"], row["bound_high"]) == (pytest.approx(-0.25), pytest.approx(0.5))


def test_scopes_follow_the_rules_of_scopes():
    frame = small().with_columns(scope=pl.lit('{"user":"1"}'))
    with pytest.raises(cmp.ScopeError, match="mapping written as a string"):
        from_frame(frame, scope="scope")
    assert len(from_frame(frame.with_columns(scope=pl.lit("*")), scope="scope")) == 12


def test_columns_that_are_not_there_are_named_with_those_that_are():
    with pytest.raises(ForeignLogError, match=r"no column 'memory_id', 'outcome'; it has .*'doc'.*Say which"):
        from_frame(small().rename({"memory_id": "doc", "outcome": "y"}))
    with pytest.raises(ForeignLogError, match="is a list; give a dataframe"):
        from_frame([1, 2])
    with pytest.raises(ForeignLogError, match="no rows"):
        from_frame(small().clear())


def test_problems_of_several_kinds_are_told_at_once():
    frame = pl.concat([small(), small().head(1)]).with_columns(
        propensity=pl.when(at("r1", "m2")).then(1.5).otherwise("propensity")
    )
    with pytest.raises(ForeignLogError, match="2 problems") as caught:
        from_frame(frame)
    assert "share their round and memory" in str(caught.value)
    assert "outside 0 to 1" in str(caught.value)
    assert isinstance(caught.value, ValueError)


def test_a_memory_that_never_had_a_chance_is_not_one_that_was_always_drawn():
    frame = small()
    never = frame.unique("round_id").with_columns(
        memory_id=pl.lit("m9"), assigned=False, propensity=pl.lit(0.0)
    )
    last = utilities_of_rows(from_frame(pl.concat([frame, never]))).frame.row(-1, named=True)
    assert (last["state"], last["reason"]) == ("NEVER_EXPOSED", "propensity 0 in every eligible round")


def test_a_round_that_drew_again_is_refused_though_its_propensities_add_up():
    left = small().filter(~pl.col("assigned"), round_id="r5").row(0, named=True)
    twice = small().with_columns(assigned=pl.col("assigned") | at("r5", left["memory_id"]))
    with pytest.raises(
        ForeignLogError, match=r"1 rounds have more rows assigned than k \(round 'r5': 2 of 1"
    ):
        from_frame(twice, k=1)


def test_a_sum_is_held_to_single_precision():
    single = small(n=7).with_columns(pl.col("propensity").cast(pl.Float32))
    assert len(from_frame(single)) == 12
    with pytest.raises(cmp.PositivityError, match="do not add up"):
        from_frame(small(n=7).with_columns(propensity=pl.lit(0.14285)))


def test_a_memory_in_the_context_anyway_needs_no_propensity():
    frame = small()
    ranked = frame.unique("round_id").with_columns(
        memory_id=pl.lit("m9"), assigned=False, propensity=pl.lit(None, pl.Float64)
    )
    both = pl.concat([frame, ranked]).with_columns(eligible=pl.col("memory_id") != "m9")
    log = from_frame(both, eligible="eligible")
    assert log.notes["rows in the context anyway"] == 12
    table = utilities_of_rows(log).frame
    assert table.row(-1, named=True)["reason"] == "no eligible round"
    assert table["utility"].to_list()[:4] == utilities_of_rows(from_frame(frame)).frame["utility"].to_list()


def test_rounding_above_one_is_one():
    frame = small()
    always = frame.unique("round_id").with_columns(
        memory_id=pl.lit("m9"), assigned=True, propensity=pl.lit(1 + 5e-10)
    )
    assert from_frame(pl.concat([frame, always]), k=2).notes["rows at propensity 0 or 1"] == 12


def test_a_roster_of_a_stratum_has_one_k():
    """Rounds of one and of two draws, each with its own propensities: not what one roster says."""
    one, two = small(n=5, rounds=6), small(n=5, rounds=6, k=2).with_columns(round_id="s" + pl.col("round_id"))
    drawn = pl.concat([one.with_columns(k=1), two.with_columns(k=2)]).filter("assigned")
    with pytest.raises(
        ValueError, match="do not have the same number of rows drawn as their stratum's others"
    ):
        from_frame(drawn, k="k", roster=one.select("memory_id").unique())
    strata = drawn.with_columns(stratum=pl.col("k"))
    roster = pl.concat([one.select("memory_id").unique().with_columns(stratum=pl.lit(k)) for k in (1, 2)])
    assert len(from_frame(strata, k="k", stratum="stratum", roster=roster)) == 12


def test_missing_outcomes_among_python_objects_are_missing():
    frame = small(rounds=4).to_pandas()
    frame["outcome"] = pd.Series([1.0] * 4 + [None] * 4 + [pd.NA] * 4 + [True] * 4, dtype=object)
    assert from_frame(frame).per_round["outcome"].to_list() == [1.0, None, None, 1.0]


def test_lines_in_which_an_int_and_a_text_would_be_one_id_are_refused(tmp_path):
    row = {"round_id": "r", "assigned": True, "propensity": 0.5, "outcome": 1}
    lines = [row | {"memory_id": 1}, row | {"round_id": "s", "memory_id": "1"}]
    (tmp_path / "x.jsonl").write_text("\n".join(map(json.dumps, lines)), "utf-8")
    with pytest.raises(cmp.InvalidIdError, match="line 2: the int 1 and the string '1' would be one id"):
        cmp.read_jsonl(tmp_path / "x.jsonl")


@pytest.mark.parametrize("roster", [True, False])
def test_memories_that_are_certain_have_no_contrast_whatever_their_rounds_share(roster):
    rows = [
        {"round_id": f"r{t}", "memory_id": m, "assigned": m == "a", "propensity": float(m == "a"),
         "outcome": float(t % 2), "episode": "e"}
        for t in range(6) for m in "ab"
    ]  # fmt: skip
    frame, known = pl.DataFrame(rows), {}
    if roster:
        frame, known = frame.filter("assigned"), {"roster": pl.DataFrame({"memory_id": ["a"]})}
    states = cmp.utilities(cmp.from_frame(frame, episode="episode", k=1, **known)).frame["state"]
    assert states.to_list() == ["UNDEREXPOSED", "NEVER_EXPOSED"][: len(states)]
