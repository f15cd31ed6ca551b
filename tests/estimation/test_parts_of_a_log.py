"""A log in parts is one log: what a part lacks another may hold, and no order or number of parts shows."""

from __future__ import annotations

import gc
import math
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise

import numpy as np
import polars as pl
import pytest

import cmp
from cmp.design.cards import CARD_PREFIX
from cmp.estimation import from_parts
from cmp.estimation.additive import UtilityStatistics
from tests.closeness import assert_tables_close
from tests.estimation.logs import HandMadeLog
from tests.estimation.test_additive import ROUNDING, blocks_of
from tests.serving.stores import Store, documents, wrapped

ENGINES = ["polars", "duckdb"]
ROUNDS = 90
CARD = f"{CARD_PREFIX}0"


def served(folder, *, rated=range(0), carded=range(0), episodes=False, kind="binary", rewarded=True):
    """Return a log of two scopes: its second metric and its cards stand in rounds of these numbers alone."""
    store = Store({scope: documents(9) for scope in ("s", "t")}, ["m1", "m2", "m3", "m4", "m5"])
    rng = np.random.default_rng(5)
    changes = sorted({0, carded.start, carded.stop, ROUNDS} if carded else {0, ROUNDS})
    for begin, end in pairwise(changes):
        cards = 3 if begin in carded else 0
        with wrapped(folder, store, random_slots=2, slots=4, reference_cards=cards) as memory:
            for number in range(begin, end):
                for scope in ("s", "t"):
                    context = memory.retrieve(
                        "q", scope=scope, group=f"q{number // 2 % 2}",
                        episode_id=f"e{number // 3}" if episodes else None,
                    )  # fmt: skip
                    values = rng.random(2) < 0.5 if kind == "binary" else rng.normal(size=2)
                    if rewarded and rng.random() > 0.1:
                        memory.record(context.round_id, float(values[0]))
                    if number in rated and rng.random() > 0.1:
                        memory.record(context.round_id, float(values[1]), metric="rating")
    return memory.log


def in_parts(log, folder, size=30):
    parts = cmp.open_log(log.export(folder / "parts", rounds_per_part=size))
    assert len(parts.parts()) > 3
    return parts


def metrics_of(part):
    return set(part.outcomes().collect()["metric"])


def has_cards(part):
    randomized = part.rounds().filter("randomized").collect()["block_id"]
    rosters = part.rosters().filter(pl.col("block_id").is_in(randomized.implode())).collect()
    return rosters["memory_id"].str.starts_with(CARD_PREFIX).any()


#: A kind of outcome, and an engine; that rows are read elsewhere is the same matter for both kinds.
KINDS = [("binary", "polars"), ("continuous", "polars"), ("binary", "duckdb")]


@pytest.mark.parametrize(("kind", "engine"), KINDS)
@pytest.mark.parametrize("rated", [range(60, 90), range(0, 30), range(40, 55)], ids=["last", "first", "amid"])
def test_a_metric_that_some_parts_lack_is_estimated_as_from_the_whole(tmp_path, kind, rated, engine):
    log = served(tmp_path, rated=rated, kind=kind)
    parts = in_parts(log, tmp_path)
    assert {"rating" in metrics_of(part) for part in parts.parts()} == {True, False}
    for by in ("memory", "query"):
        whole = cmp.utilities(log, by=by, metric="rating").frame
        assert whole["n_missing_exposed"].sum() > whole["n_exposed"].sum() > 0
        sums = cmp.utility_statistics(parts, by=by, metric="rating", engine=engine)
        assert_tables_close(sums.utilities().frame, whole, ROUNDING)


@pytest.mark.parametrize("estimator", ["difference", "hajek", "ht"])
def test_several_metrics_bounds_and_windows_are_those_of_the_whole_too(tmp_path, estimator):
    log = served(tmp_path, rated=range(50, 90))
    parts = in_parts(log, tmp_path)
    for asked in (
        {}, {"outcome_range": (-9.0, 9.0), "interval": "pooled"}, {"window": timedelta(days=1)},
        {"window": timedelta(microseconds=1)}, {"weights": "rounds", "adjust": "holm"},
    ):  # fmt: skip
        asked = {"metric": ["rating", "reward"], "estimator": estimator, **asked}
        found, whole = (cmp.utilities(each, **asked).frame for each in (parts, log))
        assert_tables_close(found, whole, ROUNDING)


@pytest.mark.parametrize(("kind", "engine"), KINDS)
@pytest.mark.parametrize(
    "carded", [range(60, 90), range(0, 30), range(30, 60)], ids=["last", "first", "amid"]
)
def test_cards_that_some_parts_lack_are_compared_with_as_in_the_whole(tmp_path, kind, carded, engine):
    log = served(tmp_path, carded=carded, kind=kind)
    parts = in_parts(log, tmp_path, size=20)
    assert {has_cards(part) for part in parts.parts()} == {True, False}
    for asked in ({"by": "memory", "interval": "pooled"}, {"by": "query"}):
        whole = cmp.utilities(log, reference="card", **asked).frame
        assert whole["utility"].null_count() < whole.height
        found = cmp.utilities(parts, reference="card", engine=engine, **asked).frame
        assert_tables_close(found, whole, ROUNDING)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("reference", ["pool", "card"])
def test_episodes_are_allowed_for_where_parts_lack_metric_and_cards(tmp_path, engine, reference):
    log = served(tmp_path, rated=range(45, 90), carded=range(30, 90), episodes=True)
    parts = in_parts(log, tmp_path, size=20)
    assert len({("rating" in metrics_of(part), has_cards(part)) for part in parts.parts()}) > 2
    # by query some parts hold no two rounds of an episode: then the sums say they may differ against cards
    for by in ("memory", "query") if reference == "pool" else ("memory",):
        asked = {"by": by, "reference": reference, "metric": "rating"}
        whole = cmp.utilities(log, **asked).frame
        assert whole["interval"].str.starts_with("clustered").any()
        assert_tables_close(cmp.utilities(parts, engine=engine, **asked).frame, whole, ROUNDING)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("answer", [cmp.utilities, cmp.utility_statistics])
def test_a_metric_that_no_part_has_is_refused_with_those_that_any_has(tmp_path, engine, answer):
    parts = in_parts(served(tmp_path, rated=range(60, 90)), tmp_path)
    assert metrics_of(parts.parts()[0]) == {"reward"}
    with pytest.raises(ValueError, match="no outcome of metric 'ratng'; it has 'rating', 'reward'"):
        answer(parts, metric="ratng", engine=engine)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("answer", [cmp.utilities, cmp.utility_statistics])
def test_a_log_no_part_of_which_has_cards_is_refused(tmp_path, engine, answer):
    parts = in_parts(served(tmp_path), tmp_path)
    with pytest.raises(ValueError, match="no reference cards"):
        answer(parts, reference="card", engine=engine)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_log_without_any_outcome_says_so_of_its_memories_in_parts_too(tmp_path, engine):
    log = served(tmp_path, rewarded=False)
    found = cmp.utilities(in_parts(log, tmp_path), engine=engine).frame
    assert_tables_close(found, cmp.utilities(log).frame, ROUNDING)
    assert "NO_OUTCOMES" in set(found["state"])


class ByBlock(HandMadeLog):
    """A log by hand in one part a block."""

    def parts(self):
        return [blocks_of(self, {row["block_id"]}) for row in self.rows["blocks"]]


@pytest.mark.parametrize("used", [False, True])
def test_cards_on_the_roster_of_one_part_are_cards_of_the_log(used):
    """Whether or not a round of that part was served."""
    log = ByBlock()
    for block in ("b0", "b1"):
        log.block(block, 6, {"a": 2, "b": 2, CARD if block == "b1" else "c": 2})
    for t in range(12):
        block, drawn = ("b0", "abc"[t % 3]) if t < 6 else ("b1", ["a", "b", CARD][t % 3])
        if block == "b0" or used:
            log.round(f"r{t}", block, t % 6, [drawn], float(t % 4 == 0))
    found, whole = (cmp.utilities(each, reference="card").frame for each in (log, HandMadeLog(log.rows)))
    assert_tables_close(found, whole, ROUNDING)
    assert whole["utility"].null_count() == (1 if used else 3)


def sums_of_parts(n, *, share_keys):
    """Yield sums of n parts: of the same memories, or each of a scope of its own."""
    log = HandMadeLog()
    log.block("b", 8, dict.fromkeys("abcd", 2))
    for t in range(8):
        log.round(f"r{t}", "b", t, ["abcd"[t % 4]], float(t % 3 == 0))
    one = cmp.utility_statistics(log)
    for number in range(n):
        scope = pl.lit("s" if share_keys else f"s{number:03}").alias("scope")
        keys, families = one.keys.with_columns(scope), one.families.with_columns(scope)
        yield replace(one, keys=keys, families=families, blocks=frozenset([f"b{number}"]))


@pytest.mark.parametrize("share_keys", [True, False])
def test_parts_are_held_by_no_more_sums_than_they_bring_new_rows(share_keys):
    """So many sums are alive when a part is asked for."""

    def alive():
        return sum(isinstance(thing, UtilityStatistics) for thing in gc.get_objects())

    n, held, before = 64, [], alive() + 1  # the one they are made of

    def watched():
        parts = sums_of_parts(n, share_keys=share_keys)
        for number in range(1, n + 1):
            yield next(parts)
            if number in (2, 3, 31, 63):  # before a carry through all places
                held.append(alive() - before)

    whole = from_parts._added_up(watched())
    assert len(whole.blocks) == n
    # the blocks' names grow in either case, and their sums wait for each other once these outnumber the memories
    assert max(held) <= math.log2(n) + 1
    if share_keys:
        assert held[:2] == [1, 1]


@pytest.mark.parametrize("share_keys", [True, False])
def test_adding_parts_is_no_more_than_their_rows_times_the_logarithm_of_their_number(monkeypatch, share_keys):
    rows, add = [], UtilityStatistics.__add__

    def counted(one, two):
        rows.append(one.keys.height + two.keys.height)
        return add(one, two)

    monkeypatch.setattr(UtilityStatistics, "__add__", counted)
    n = 64
    parts = list(sums_of_parts(n, share_keys=share_keys))
    whole = from_parts._added_up(iter(parts))
    assert sum(rows) <= sum(part.keys.height for part in parts) * (1 if share_keys else 0.5) * 2 * math.log2(
        n
    )
    one_by_one = parts[0]
    for part in parts[1:]:
        one_by_one = add(one_by_one, part)
    assert_tables_close(whole.utilities().frame, one_by_one.utilities().frame, ROUNDING)


@pytest.mark.parametrize("size", [1, 10, 25, 60])
def test_scopes_that_come_and_go_are_the_same_table_in_any_number_of_parts(tmp_path, size):
    scopes = [f"scope {number}" for number in range(9)]
    store = Store({scope: documents(6) for scope in scopes}, ["m1", "m2"])
    rng = np.random.default_rng(9)
    with wrapped(tmp_path, store, random_slots=2) as memory:
        for number in range(220):
            scope = scopes[min(number // 25 + int(rng.integers(2)), 8)] if number % 3 else scopes[0]
            memory.record(memory.retrieve("q", scope=scope).round_id, float(rng.random() < 0.5))
        parts = cmp.open_log(memory.log.export(tmp_path / "parts", rounds_per_part=size))
        assert len(parts.parts()) > 2
        assert_tables_close(cmp.utilities(parts).frame, cmp.utilities(memory.log).frame, ROUNDING)
