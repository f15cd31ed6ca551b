"""Sums of logs: merging two equals computing once, whatever is asked of them, and they survive being sent."""

from __future__ import annotations

import copy
import io
import zipfile
from dataclasses import fields
from datetime import timedelta
from functools import reduce
from itertools import permutations
from operator import add

import numpy as np
import polars as pl
import pytest

import cmp
from cmp.estimation.additive import UtilityStatistics
from tests.closeness import assert_tables_close
from tests.estimation.logs import HandMadeLog
from tests.estimation.test_clustered import random_log
from tests.serving.stores import Store, documents, wrapped

#: What summing in another order leaves of numbers near 1.
ROUNDING = 1e-11


def served(folder, kind, *, scopes=("s", "t"), rounds=70, seed=3, episode=None, **settings):
    """Return a log of several scopes and blocks, some of its outcomes missing; ``episode`` names a round's."""
    store = Store({scope: documents(9) for scope in scopes}, ["m1", "m2", "m3", "m4", "m5"])
    rng = np.random.default_rng(seed)
    with wrapped(folder, store, random_slots=2, slots=4, **settings) as memory:
        for number in range(rounds):
            for scope in scopes:
                context = memory.retrieve(
                    f"q{number // 2 % 3}", scope=scope, group=f"q{number // 2 % 3}",
                    episode_id=episode and episode(number),
                )  # fmt: skip
                helped = any(item.id == "m7" and item.arm == "random" for item in context.items)
                value = float(rng.random() < 0.3 + 0.4 * helped)
                if kind == "continuous":
                    value = value + float(rng.normal()) + 1e3 * (scope == "t")
                if rng.random() > 0.1:
                    memory.record(context.round_id, value)
        return memory.log


def assert_same(one, two):
    # a null log's own rounding decides which of two equal p-values comes first
    assert_tables_close(one.frame, two.frame, ROUNDING)


@pytest.mark.parametrize("kind", ["binary", "continuous"])
@pytest.mark.parametrize("by", ["memory", "query"])
def test_a_log_in_parts_gives_the_table_of_the_whole(tmp_path, kind, by):
    log = served(tmp_path, kind)
    parts = cmp.open_log(log.export(tmp_path / "parts", rounds_per_part=20))
    assert len(parts.parts()) > 3
    for estimator in ("difference", "hajek", "ht"):
        for weights in ("precision", "rounds"):
            asked = {"by": by, "estimator": estimator, "weights": weights}
            assert_same(cmp.utilities(parts, **asked), cmp.utilities(log, **asked))


@pytest.mark.parametrize("interval", ["auto", "moderated", "pooled", "neyman", "welch"])
def test_every_interval_and_the_bounds_come_from_sums(tmp_path, interval):
    log = served(tmp_path, "binary")
    parts = cmp.open_log(log.export(tmp_path / "parts", rounds_per_part=20))
    asked = {"interval": interval, "outcome_range": (-1.0, 2.0), "level": 0.9}
    assert_same(cmp.utilities(parts, **asked), cmp.utilities(log, **asked))


def test_cards_and_withheld_memories_come_from_sums(tmp_path):
    log = served(tmp_path, "continuous", reference_cards=3, withhold=1)
    parts = cmp.open_log(log.export(tmp_path / "parts", rounds_per_part=20))
    for reference in ("pool", "card"):
        assert_same(cmp.utilities(parts, reference=reference), cmp.utilities(log, reference=reference))


def test_logs_of_different_scopes_add_up_in_any_order_and_survive_being_sent(tmp_path):
    sums = []
    for number, kind in enumerate(("binary", "continuous", "binary")):
        (tmp_path / str(number)).mkdir()
        log = served(tmp_path / str(number), kind, scopes=(f"scope {number}",), rounds=40, seed=number)
        sums.append(cmp.utility_statistics(log))
    whole = (sums[0] + sums[1] + sums[2]).utilities()
    sent = [UtilityStatistics.from_bytes(part.to_bytes()) for part in sums]
    assert_same((sent[2] + (sent[0] + sent[1])).utilities(), whole)
    alone = pl.concat([part.utilities().frame for part in sums]).drop("q_value")
    assert_tables_close(whole.frame.drop("q_value"), alone, ROUNDING)


def test_a_log_without_a_value_of_another_log_has_no_exact_test_for_both(tmp_path):
    log = served(tmp_path, "binary", scopes=("s",))
    part = cmp.utility_statistics(log)
    (tmp_path / "other").mkdir()
    other = wrapped(tmp_path / "other", Store({"s": documents(9)}, ["m1"]), random_slots=2, seed=8)
    with other as memory:
        for _ in range(30):
            memory.record(memory.retrieve("q", scope="s").round_id, 1.0)
    both = part + cmp.utility_statistics(other.log)
    assert both.summary.has_margins.all(), "a constant 1 is a proportion of 0 and 1 too"
    with memory:
        memory.record(memory.retrieve("q", scope="s").round_id, 0.5)
    mixed = (part + cmp.utility_statistics(other.log)).utilities()
    assert set(mixed.frame["interval"]) == {"moderated"}


def test_a_block_in_both_and_different_questions_are_refused(tmp_path):
    log = served(tmp_path, "binary")
    sums = cmp.utility_statistics(log)
    with pytest.raises(ValueError, match="blocks have rounds in both"):
        sums + sums
    with pytest.raises(ValueError, match="different questions"):
        sums + cmp.utility_statistics(log, estimator="ht")
    for asked, why in (
        ({"reference": "Pool"}, "reference='Pool'"),
        ({"reference": "card", "estimator": "ht"}, "does not go with estimator='ht'"),
    ):
        with pytest.raises(ValueError, match=why):
            cmp.utility_statistics(log, **asked)
    with pytest.raises(ValueError, match="level=95 is no confidence level"):
        sums.utilities(level=95)
    with pytest.raises(ValueError, match="lists rounds or blocks"):
        sums.utilities(interval="randomization")


def test_sums_of_different_windows_are_refused_and_a_window_survives_being_sent(tmp_path):
    log = served(tmp_path, "binary", scopes=("s",), rounds=40)
    (tmp_path / "other").mkdir()
    other = served(tmp_path / "other", "binary", scopes=("t",), rounds=40)
    short, long = timedelta(microseconds=1), timedelta(days=36_500, microseconds=7)
    sums = {window: cmp.utility_statistics(log, window=window) for window in (None, short, long)}
    for window, part in sums.items():
        sent = UtilityStatistics.from_bytes(part.to_bytes())
        assert sent.window == window
        for another in {None, short, long} - {window}:
            with pytest.raises(ValueError, match=r"different questions: .*window"):
                sent + cmp.utility_statistics(other, window=another)
        both = sent + cmp.utility_statistics(other, window=window)
        assert both.window == window
        assert_same(both.utilities(), (cmp.utility_statistics(other, window=window) + part).utilities())


@pytest.mark.parametrize("values", [(-1.0, 1.0), (0.0, 1.0), (3.0, 5.0)])
@pytest.mark.parametrize("by", ["memory", "query"])
@pytest.mark.parametrize("episode", [None, lambda number: f"e{number // 2}"])
def test_where_parts_are_cut_changes_no_exact_p_value(tmp_path, values, by, episode):
    """Successes are rare: in most parts outcomes are constant, in some, of what is elsewhere a success."""
    store, rng = Store({"s": documents(9)}, ["m1", "m2", "m3"]), np.random.default_rng(1)
    with wrapped(tmp_path, store, random_slots=2, slots=4) as memory:
        for number in range(120):
            context = memory.retrieve(
                f"q{number % 3}", scope="s", group=f"q{number % 3}", episode_id=episode and episode(number)
            )
            success = 90 <= number < 100 or rng.random() < 0.08
            memory.record(context.round_id, values[int(success)])
    log = memory.log
    whole, sums, cut = cmp.utilities(log, by=by).frame, cmp.utility_statistics(log, by=by), []
    assert (whole["p_value"] < 1).any()
    for rounds in (10, 20, 50):
        parts = cmp.open_log(log.export(tmp_path / f"{rounds}", rounds_per_part=rounds))
        cut.append(len(parts.parts()))
        assert cmp.utilities(parts, by=by).frame["p_value"].to_list() == whole["p_value"].to_list()
        summed = cmp.utility_statistics(parts, by=by).summary
        assert summed.has_margins.all()
        for field in fields(summed.margins):
            one, two = (getattr(of.margins, field.name) for of in (summed, sums.summary))
            np.testing.assert_array_equal(one, two, field.name)
    assert len(set(cut)) == 3 or episode is not None


def test_a_third_value_in_another_part_ends_exactness_there_and_in_the_whole_alike(tmp_path):
    store, rng = Store({"s": documents(9)}, ["m1"]), np.random.default_rng(4)
    with wrapped(tmp_path, store, random_slots=2, slots=4) as memory:
        for number in range(120):
            value = 2.0 if number == 100 else float(rng.random() < 0.3)
            memory.record(memory.retrieve("q", scope="s").round_id, value)
    parts = cmp.open_log(memory.log.export(tmp_path / "parts", rounds_per_part=20))
    assert not cmp.utility_statistics(parts).summary.has_margins.any()
    assert_same(cmp.utilities(parts), cmp.utilities(memory.log))


#: Episodes of three rounds, that run through the ends of blocks too, and now and then a round on its own.
def in_threes(number):
    return None if number % 7 == 0 else f"e{number // 3 + 100 * (number >= 30)}"


@pytest.mark.parametrize("kind", ["binary", "continuous"])
@pytest.mark.parametrize("by", ["memory", "query"])
@pytest.mark.parametrize("engine", ["polars", "duckdb"])
def test_episodes_come_from_sums_too(tmp_path, kind, by, engine):
    log = served(tmp_path, kind, scopes=("s", "t", "u"), episode=in_threes)
    parts = cmp.open_log(log.export(tmp_path / "parts", rounds_per_part=20))
    assert len(parts.parts()) > 2
    for asked in (
        {}, {"interval": "pooled"}, {"interval": "welch"}, {"interval": "neyman"}, {"estimator": "ht"},
        {"weights": "rounds"}, {"outcome_range": (-9.0, 2e3), "adjust": "holm"},
    ):  # fmt: skip
        whole = cmp.utilities(log, by=by, **asked)
        assert_same(cmp.utilities(parts, by=by, engine=engine, **asked), whole)
        if "estimator" not in asked:
            assert whole.frame["interval"].str.starts_with("clustered").any()


def test_episodes_against_cards_come_from_sums_too(tmp_path):
    log = served(tmp_path, "binary", scopes=("s", "t", "u"), episode=in_threes, reference_cards=3)
    parts = cmp.open_log(log.export(tmp_path / "parts", rounds_per_part=20))
    whole = cmp.utilities(log, reference="card")
    assert "clustered_newcombe" in set(whole.frame["interval"])
    assert_same(cmp.utilities(parts, reference="card"), whole)


def episodes_of(log, name):
    """Return a log by hand with other names for the episodes of each block."""
    changed = copy.deepcopy(log)
    for entry in changed.rows["rounds"]:
        if entry["episode_id"] is not None:
            entry["episode_id"] = name(entry["block_id"], entry["episode_id"])
    return changed


def blocks_of(log, blocks):
    """Return the part of a log by hand that holds these blocks."""
    part = copy.deepcopy(log)
    part.rows["rounds"] = [entry for entry in log.rows["rounds"] if entry["block_id"] in blocks]
    rounds = {entry["round_id"] for entry in part.rows["rounds"]}
    for table in ("exposures", "outcomes"):
        part.rows[table] = [entry for entry in log.rows[table] if entry["round_id"] in rounds]
    for table in ("blocks", "rosters"):
        part.rows[table] = [entry for entry in log.rows[table] if entry["block_id"] in blocks]
    return part


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_logs_of_one_scope_whose_episodes_are_others_add_up(seed, alone, binary):
    """Of the second log every round may be on its own."""
    drawn = random_log(seed, binary=binary)
    log = episodes_of(drawn, lambda block, name: None if alone and block == "b1" else f"{block}-{name}")
    one, two = (cmp.utility_statistics(blocks_of(log, part)) for part in (("b0", "b2"), ("b1",)))
    sent = UtilityStatistics.from_bytes(one.to_bytes()), UtilityStatistics.from_bytes(two.to_bytes())
    assert one.clusters is not None
    assert two.clusters is None or not alone
    for both in (one + two, sent[1] + sent[0]):
        for interval in ("auto", "pooled", "welch"):
            assert_same(both.utilities(interval), cmp.utilities(log, interval=interval))


def add_whole_episodes(log, block, scope, rng, *, episodes, size, drawn, memories=("m", "other")):
    """Append a block of episodes drawn as wholes; those of one round have no name."""
    mine = set(rng.choice(episodes, drawn, replace=False).tolist())
    ys = [float(rng.random() < (0.8 if e in mine else 0.2)) for e in range(episodes)]
    counts = (drawn * size, (episodes - drawn) * size)
    log.block(block, episodes * size, dict(zip(memories, counts, strict=True)), scope)
    for t in range(episodes * size):
        e = t // size
        log.round(
            f"{block}-{t}", block, t, [memories[e not in mine]], ys[e], scope=scope,
            episode_id=None if size == 1 else f"{block}-{e}",
        )  # fmt: skip


@pytest.mark.parametrize("seed", range(5))
def test_tests_of_whole_episodes_add_up_with_rounds_on_their_own(seed):
    """In one log a scope's rounds are on their own, beside another scope's episodes."""
    rng, log = np.random.default_rng(seed), HandMadeLog()
    add_whole_episodes(log, "s0", "s", rng, episodes=10, size=3, drawn=4)
    add_whole_episodes(log, "t0", "t", rng, episodes=20, size=1, drawn=8)
    add_whole_episodes(log, "t1", "t", rng, episodes=10, size=3, drawn=4)
    one, two = (cmp.utility_statistics(blocks_of(log, part)) for part in (("s0", "t0"), ("t1",)))
    assert_same((one + two).utilities(), cmp.utilities(log))


def test_an_episode_through_blocks_of_other_memories_tells_nothing_of_these():
    rng, log = np.random.default_rng(2), HandMadeLog()
    for block, memories in (("b0", ("a", "c")), ("b1", ("p", "q"))):
        add_whole_episodes(log, block, "s", rng, episodes=8, size=1, drawn=4, memories=memories)
    for block in ("b0", "b1"):
        next(r for r in log.rows["rounds"] if r["block_id"] == block)["episode_id"] = "through"
    add_whole_episodes(log, "b2", "s", rng, episodes=10, size=3, drawn=4, memories=("a", "c"))
    one, two = (cmp.utility_statistics(blocks_of(log, part)) for part in (("b0", "b1"), ("b2",)))
    assert_same((one + two).utilities(), cmp.utilities(log))


def test_names_of_episodes_may_be_numbers_or_none():
    log = random_log(3)
    one, two = blocks_of(log, ("b0", "b2")), blocks_of(log, ("b1",))

    class Numbered(HandMadeLog):
        def rounds(self):
            return super().rounds().with_columns(pl.col("episode_id").str.slice(1).cast(pl.Int64))

    class Unnamed(HandMadeLog):
        def rounds(self):
            return super().rounds().with_columns(episode_id=pl.lit(None))

    sums = [cmp.utility_statistics(kind(part.rows)) for kind, part in ((Numbered, one), (Unnamed, two))]
    assert not (sums[0] + sums[1]).torn.any()
    assert (sums[0] + cmp.utility_statistics(Numbered(two.rows))).torn.any()


def test_logs_of_one_scope_may_come_in_any_order_though_only_one_brings_a_memory():
    log = random_log(3)
    one, two, other = (blocks_of(log, part) for part in (("b0", "b2"), ("b1",), ("b1",)))
    other = copy.deepcopy(other)
    for table in other.rows.values():
        for entry in table:
            named = {
                name: f"x{entry[name]}" for name in ("block_id", "round_id", "memory_id") if name in entry
            }
            entry.update(named)
            if "episode_id" in entry:
                entry["episode_id"] = None
    sums = [cmp.utility_statistics(part) for part in (one, two, other)]
    assert sums[2].utilities().frame["ci_low"].null_count() == 0
    whole = reduce(add, sums).utilities().frame
    assert whole["ci_low"].null_count() == whole.height
    for order in permutations(sums):
        assert_tables_close(reduce(add, order).utilities().frame, whole, ROUNDING)


def test_episodes_with_rounds_in_both_logs_leave_no_interval_in_their_scope():
    log = random_log(3)
    one, two = (cmp.utility_statistics(blocks_of(log, part)) for part in (("b0", "b2"), ("b1",)))
    elsewhere = copy.deepcopy(blocks_of(log, ("b1",)))
    for table in elsewhere.rows.values():
        for entry in table:
            entry.update({name: f"x{entry[name]}" for name in ("block_id", "round_id") if name in entry})
            if "scope" in entry:
                entry["scope"] = "elsewhere"
    apart = cmp.utility_statistics(elsewhere)
    frame = (one + two + apart).utilities().frame
    torn = frame.filter(scope="s")
    assert torn["ci_low"].null_count() == torn["p_value"].null_count() == torn.height
    assert torn["utility"].null_count() == 0
    assert torn["reason"].str.starts_with("rounds of one episode share an outcome").all()
    kept, alone = (
        part.drop("q_value") for part in (frame.filter(scope="elsewhere"), apart.utilities().frame)
    )
    assert_tables_close(kept, alone, ROUNDING)


def test_a_log_whose_parts_cut_episodes_is_read_as_one(tmp_path):
    log = served(tmp_path, "binary", scopes=("s", "t", "u"), episode=in_threes)

    class Cut:
        """Parts by scope and block, whatever runs through them."""

        def __init__(self, mine=None):
            self.mine = mine

        def parts(self):
            return [Cut([name]) for name in log.blocks().collect()["block_id"].sort()]

        def __getattr__(self, table):
            if table not in ("rounds", "exposures", "outcomes", "blocks", "rosters"):
                raise AttributeError(table)
            frame = getattr(log, table)()
            if self.mine is None:
                return lambda: frame
            mine = pl.col("block_id").is_in(self.mine)
            if table in ("exposures", "outcomes"):
                rounds = log.rounds().filter(mine).select("round_id").collect()["round_id"]
                mine = pl.col("round_id").is_in(rounds.implode())
            return lambda: frame.filter(mine)

    assert len(Cut().parts()) > 3
    assert_same(cmp.utilities(Cut()), cmp.utilities(log))


def zipped(meta):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("meta.json", meta)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "content",
    [b"", b"not a zip", b"PK\x05\x06" + bytes(18), zipped("[]"), zipped("not JSON"), zipped('{"format": 2}')],
    ids=[
        "nothing",
        "text",
        "empty zip",
        "list",
        "no JSON",
        "no frames",
    ],  # a zip holds the time, and would in its id
)
def test_bytes_that_are_no_sums_are_refused(content):
    with pytest.raises(ValueError, match="no sums of utilities"):
        UtilityStatistics.from_bytes(content)


def test_sums_of_an_earlier_format_are_refused_with_what_to_do():
    with pytest.raises(ValueError, match=r"of format 1, and this version reads format 2: make them anew"):
        UtilityStatistics.from_bytes(zipped('{"format": 1}'))
