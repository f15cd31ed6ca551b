"""Checks of other people's rows: no more false alarms than stated, and each planted fault is seen."""

from __future__ import annotations

from itertools import product

import numpy as np
import polars as pl
import pytest

import cmp
from cmp.evaluation.row_checks import count_p_values, verdicts_of_rows
from cmp.foreign import ForeignLog, from_frame
from tests.foreign.rows import small


def found(log: ForeignLog) -> dict[str, object]:
    return {verdict.check: verdict for verdict in verdicts_of_rows(log)}


@pytest.mark.parametrize(
    "chances", [[0.1, 0.9, 0.5, 0.3, 0.3], [0.05] * 6, [0.5] * 7, [0.01, 0.02, 0.97, 0.5], [0.3, 0.8]]
)
def test_the_p_value_of_a_count_is_valid_over_all_draws(chances):
    """P(p <= a) <= a, at every a that can occur; equality up to ties where chances are equal."""
    pi = np.array(chances)
    weight = np.zeros(len(pi) + 1)
    for draw in product((0, 1), repeat=len(pi)):
        z = np.array(draw)
        weight[z.sum()] += np.prod(np.where(z == 1, pi, 1 - pi))
    counts = np.arange(len(pi) + 1.0)
    p = count_p_values(counts, np.full(len(counts), len(pi)), np.full(len(counts), pi.sum()))
    for level in p:
        assert weight[p <= level].sum() <= level + 1e-12  # rounding of the sum over draws


def test_where_chances_are_equal_the_p_value_is_the_binomial_one():
    from scipy.stats import binomtest

    assert count_p_values(np.array([9.0]), np.array([10.0]), np.array([5.0]))[0] == pytest.approx(
        binomtest(9, 10, 0.5).pvalue, abs=1e-12
    )


@pytest.mark.parametrize("listed", ["all rows", "a roster"])
def test_rounds_lost_by_what_they_drew_show_in_the_sample_ratio(listed):
    frame = small(rounds=300, seed=4)
    lost = frame.filter("assigned", memory_id="m1").head(45)["round_id"]
    damaged = frame.filter(~pl.col("round_id").is_in(lost.implode()))

    def log(rows: pl.DataFrame) -> ForeignLog:
        if listed == "all rows":
            return from_frame(rows)
        return from_frame(rows.filter("assigned"), roster=rows.select("memory_id").unique())

    assert found(log(frame))["sample ratio"].p_value > 0.01
    verdict = found(log(damaged))["sample ratio"]
    assert verdict.p_value < 1e-3
    assert "'m1'" in verdict.detail
    assert verdict.figure == pytest.approx(damaged.filter("assigned", memory_id="m1").height)


def test_false_alarms_of_the_sample_ratio_are_at_most_nominal():
    """400 logs of 60 rounds: P(p <= .05) <= .05. At .05 exactly, 37 or more alarms have probability .0003."""
    rng, alarms = np.random.default_rng(11), 0
    for _ in range(400):
        drawn = rng.integers(4, size=60)
        counts = np.bincount(drawn, minlength=4).astype(float)
        p = count_p_values(counts, np.full(4, 60.0), np.full(4, 15.0))
        alarms += min(1.0, 4 * p.min()) <= 0.05
    assert alarms < 37


def test_outcomes_lost_in_one_arm_alone_are_seen():
    frame = small(rounds=200, seed=2)
    lost = frame.filter("assigned", memory_id="m2")["round_id"].head(30)
    gone = frame.with_columns(outcome=pl.when(~pl.col("round_id").is_in(lost.implode())).then("outcome"))
    assert found(from_frame(frame))["missing outcomes do not depend on the draw"].p_value is None
    verdict = found(from_frame(gone))["missing outcomes do not depend on the draw"]
    assert verdict.p_value < 1e-6
    assert "'m2'" in verdict.detail


def test_what_is_not_testable_says_so():
    frame = small(rounds=40)
    none = from_frame(frame.with_columns(outcome=pl.lit(None, pl.Float64)))
    assert "no round has an outcome" in found(none)["missing outcomes do not depend on the draw"].detail
    rng = np.random.default_rng(1)
    uneven = frame.with_columns(
        propensity=pl.when(pl.col("memory_id").is_in(["m0", "m1"]))
        .then(pl.when(pl.col("round_id") < "r2").then(0.3).otherwise(0.2))
        .otherwise(pl.when(pl.col("round_id") < "r2").then(0.2).otherwise(0.3)),
        outcome=pl.when(pl.col("round_id") != f"r{rng.integers(40)}").then("outcome"),
    )
    verdict = found(from_frame(uneven))["missing outcomes do not depend on the draw"]
    assert (verdict.p_value, verdict.failed) == (None, None)
    assert "propensities differ inside" in verdict.detail


def always_there(frame: pl.DataFrame, memory_id: str = "m9") -> pl.DataFrame:
    return frame.unique("round_id").with_columns(
        memory_id=pl.lit(memory_id), assigned=True, propensity=pl.lit(1.0)
    )


def test_memories_without_a_chance_are_named_and_take_nothing_from_the_others():
    frame = small()
    assert found(from_frame(frame))["positivity"].failed is False
    verdict = found(from_frame(pl.concat([frame, always_there(frame)]), k=2))["positivity"]
    assert (verdict.failed, verdict.p_value, verdict.figure) == (None, None, 1 / 5)
    assert "1 of 5 memories have no other that is eligible ('m9'): these have no contrast" in verdict.detail


def test_memories_that_were_in_the_context_anyway_are_no_fault():
    """As the documentation suggests them: ``eligible=False`` in every round."""
    frame = small(rounds=60).with_columns(eligible=True)
    top = frame.unique("round_id").with_columns(
        memory_id=pl.lit("top"), assigned=False, eligible=False, propensity=pl.lit(None, pl.Float64)
    )
    log = from_frame(pl.concat([frame, top]), eligible="eligible")
    verdict = found(log)["positivity"]
    assert (verdict.failed, verdict.n) == (None, 5)
    assert "'top'" in verdict.detail
    assert cmp.diagnose(log).passed


def test_where_no_memory_has_a_chance_positivity_fails():
    """A service that never explored: the first is always taken, the second never."""
    taken = always_there(small(), "m8")
    passed_over = taken.with_columns(memory_id=pl.lit("m9"), assigned=False, propensity=pl.lit(0.0))
    log = from_frame(pl.concat([taken, passed_over]))
    verdict = found(log)["positivity"]
    assert (verdict.failed, verdict.figure) == (True, 1.0)
    assert "'m8'; 'm9'" in verdict.detail
    assert not cmp.diagnose(log).passed


def test_a_count_within_one_of_its_mean_is_no_evidence():
    assert count_p_values(np.array([2.0, 0.0]), np.array([4.0, 0.0]), np.array([1.3, 0.0])).tolist() == [
        1.0,
        1.0,
    ]


def test_rounds_that_barred_a_memory_are_not_among_those_it_might_have_been_drawn_in():
    """m0 stands in the context anyway in 150 of 200 rounds: its few draws in the other 50 are no finding."""
    frame = small(rounds=200, seed=6).with_columns(
        eligible=(pl.col("memory_id") != "m0") | (pl.col("round_id").str.slice(1).cast(pl.Int64) >= 150)
    )
    whole = from_frame(frame, eligible="eligible")
    part = frame.filter(pl.col("assigned") | ~pl.col("eligible"))
    implied = from_frame(part, eligible="eligible", roster=frame.select("memory_id").unique())
    one, two = (found(log)["sample ratio"] for log in (whole, implied))
    assert one == two
    assert "'m0'" not in two.detail
