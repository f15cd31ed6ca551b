"""A log for people with a pipeline of their own: what a sink is given is enough, torn or doubled as it may come."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import product

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

import cmp
from cmp.design import plan_block
from cmp.log.gathering import read_records
from cmp.log.jsonl import JsonlSink, read_jsonl
from cmp.log.records import LogStore
from cmp.log.schema import TABLES
from cmp.log.sinks import Sink, SinkLog
from tests.serving.stores import Document, Store, documents, store, wrapped


@dataclass
class Kept:
    """A sink in memory, as somebody's pipeline: everything goes through JSON."""

    records: list[dict] = field(default_factory=list)
    full: bool = False
    seconds: float = 0.0
    closed: bool = False

    def write(self, record):
        time.sleep(self.seconds)
        if self.full:
            raise OSError("no space left")
        self.records.append(json.loads(json.dumps(record)))

    def close(self):
        self.closed = True


def served(sink, retriever=None, **settings):
    return wrapped(
        ".", retriever or store(12, ["m1", "m2", "m3"]), log=sink, allocation="uniform", **settings
    )


def test_a_sink_needs_one_method_and_makes_a_whole_store():
    assert isinstance(Kept(), Sink)
    assert isinstance(SinkLog(Kept()), LogStore)
    assert isinstance(JsonlSink("x"), Sink)


@pytest.mark.parametrize(
    "settings", [{}, {"slots": 3, "random_slots": 2, "reference_cards": 2, "withhold": 1}]
)
def test_the_log_gathered_from_a_sink_is_the_one_sqlite_would_hold(tmp_path, settings):
    """Draws depend on seed, scope and round alone, so the same rounds draw the same memories in either."""
    sink = Kept()
    frames = []
    for memory in (
        served(sink, **settings),
        wrapped(tmp_path, store(12, ["m1", "m2", "m3"]), allocation="uniform", **settings),
    ):
        for i in range(40):
            context = memory.retrieve("q", scope="s", round_id=f"r{i:02}", episode_id="e", group="g")
            memory.record(context.round_id, i / 8)
        memory.retrieve("q", scope="s", round_id="r00")
        memory.flush()
        log = read_records(sink.records) if isinstance(memory.log, SinkLog) else memory.log
        assert cmp.validate_log(log) == []
        frames.append([log.scan(table).collect() for table in TABLES])
        memory.close()
    for table, gathered, stored in zip(TABLES, *frames, strict=True):
        assert gathered.schema == pl.Schema(table.frame_schema)
        alike = [name for name in table.names if not name.endswith("_at") and name != "block_id"]
        assert_frame_equal(gathered.select(alike), stored.select(alike))


def test_an_export_of_a_gathered_log_reads_back(tmp_path):
    memory = served(JsonlSink(tmp_path / "x.jsonl"))
    for _ in range(20):
        memory.record(memory.retrieve("q", scope="s").round_id, 1.0)
    memory.close()
    log = cmp.open_log(tmp_path / "x.jsonl")
    back = cmp.open_log(log.export(tmp_path / "out"))
    for table in TABLES:
        assert_frame_equal(back.scan(table).collect(), log.scan(table).collect())
    assert back.meta() == log.meta()


def test_a_balanced_design_is_refused_saying_why():
    for make in (
        lambda: wrapped(".", store(), log=Kept()),
        lambda: served(Kept()).with_policy(allocation="balanced"),
    ):
        with pytest.raises(ValueError, match="no counter to share"):
            make()
    memory = wrapped(".", store(), log=Kept(), random_slots=0)
    assert memory.retrieve("q", scope="s").fallback_reason == "no_random_slots"
    memory.close()


def test_a_sink_is_not_read():
    memory = served(Kept())

    def rounds():
        cmp.run_rounds(memory, [("q", "s", "g")], lambda task, context: 1.0)

    for reading in (memory.log.rounds, memory.log.meta, lambda: cmp.validate_log(memory.log), rounds):
        with pytest.raises(TypeError, match="written only"):
            reading()


def test_a_sink_that_fails_serves_the_base_ranking_and_then_goes_on():
    sink = Kept()
    memory = served(sink, store(12, ["m1", "m2", "m3", "m4"]))
    assert memory.retrieve("q", scope="s").randomized
    sink.full = True
    context = memory.retrieve("q", scope="s", round_id="r")
    assert (context.randomized, context.fallback_reason) == (False, "log_failed")
    assert [document.id for document in context] == ["m1", "m2", "m3", "m4"]
    sink.full = False
    assert memory.retrieve("q", scope="s", round_id="r").randomized
    memory.close()
    assert cmp.validate_log(read_records(sink.records)) == []


def test_a_sink_that_is_closed_amid_requests_is_never_closed_and_written_to_at_once():
    class Exclusive(Kept):
        times = 0

        def write(self, record):
            assert at_work.acquire(blocking=False)
            time.sleep(0.001)
            super().write(record)
            at_work.release()

        def close(self):
            assert at_work.acquire(blocking=False)
            time.sleep(0.005)
            self.times += 1
            at_work.release()

    at_work, sink, stop = threading.Lock(), Exclusive(), threading.Event()
    memory = served(sink, on_error="raise", log_timeout=60)

    def ask():
        told = []
        while not stop.is_set():
            told.append(memory.retrieve("q", scope="s").round_id)
        return told

    with ThreadPoolExecutor(3) as pool:
        askers = [pool.submit(ask) for _ in range(3)]
        for _ in range(20):
            time.sleep(0.005)
            memory.close()
        stop.set()
        told = [round_id for asker in askers for round_id in asker.result()]
    memory.close()
    assert sink.times == 21
    assert sorted(told) == sorted(r["round_id"] for r in sink.records if r["type"] == "round")


def test_a_round_written_too_late_is_withdrawn_and_delivered_by_a_retry():
    sink = Kept()
    memory = served(sink, log_timeout=0.1)
    assert memory.retrieve("q", scope="s", round_id="first").randomized
    memory.flush()
    sink.seconds = 0.3
    assert memory.retrieve("q", scope="s", round_id="r").fallback_reason == "log_timeout"
    sink.seconds = 0.0
    for _ in range(2):
        memory.flush()  # the round, then its withdrawal
    late = read_records(sink.records).exposures().filter(pl.col("round_id") == "r").collect()
    assert late.height
    assert set(late["reason"]) == {"timeout"}
    assert not late["delivered"].any()
    assert memory.retrieve("q", scope="s", round_id="r").randomized
    memory.close()
    assert sink.closed
    log = read_records(sink.records)
    assert log.exposures().collect()["delivered"].all()
    assert cmp.validate_log(log) == []


def test_a_process_remembers_so_many_rounds_and_no_more(monkeypatch):
    monkeypatch.setattr("cmp.log.sinks.ROUNDS_KEPT", 3)
    memory = served(Kept())
    for i in range(5):
        memory.retrieve("q", scope="s", round_id=f"r{i}")
    memory.retrieve("q", scope="s", round_id="r0")
    assert list(memory.log._rounds) == ["r3", "r4", "r0"]
    assert "attempts_repeated" not in memory.stats()


def test_a_table_is_dealt_through_no_sink():
    log = SinkLog(Kept())
    staged = log.stage("stream", ["a", "b", "c"], 1, counted=False)
    block = plan_block(3, 1, 3, np.random.default_rng(0))
    with pytest.raises(ValueError, match="no counter to share"):
        log.open_block(staged, "stream", "s", None, block)


def test_a_retry_draws_the_same_in_this_process_and_in_any_other():
    sinks = [Kept(), Kept()]
    held = Store({"s": documents(12), "t": documents(9)})
    memories = [served(sink, held) for sink in sinks]
    drawn = {
        tuple(item.id for item in memory.retrieve("q", scope="s", round_id="r").items)
        for memory in memories * 2
    }
    assert len(drawn) == 1
    assert memories[0].stats()["attempts_repeated"] == 1
    log = read_records(sinks[0].records + sinks[1].records)
    assert log.rounds().collect()["attempts"].to_list() == [4]
    assert log.blocks().collect().height == 1
    assert log.conflicts == 0
    with pytest.raises(cmp.ScopeError, match="another scope"):
        memories[0].retrieve("q", scope="t", round_id="r")


def test_deleted_and_trimmed_memories_are_amended():
    sink, held = Kept(), store(5)
    memory = served(sink, held, slots=1)
    while len({r["exposures"][0]["memory_id"] for r in sink.records if r["type"] == "round"}) < 3:
        memory.retrieve("q", scope="s")
    del held.scopes["s"]["m4"]
    contexts = [memory.retrieve("q", scope="s") for _ in range(40)]
    trimmed = next(context for context in contexts if len(context))
    memory.mark_undelivered(trimmed.round_id, [trimmed.items[0].id])
    with pytest.raises(cmp.UnknownRoundError, match="this process"):
        memory.mark_undelivered("never", ["m1"])
    memory.forget_ids(["m4"], scope="s")
    assert memory.retrieve("q", scope="s").randomized
    memory.close()
    log = read_records(sink.records)
    lost = log.exposures().filter(~pl.col("delivered")).collect()
    assert set(lost["reason"]) == {"deleted", "trimmed"}
    # when its rounds end must not depend on when it was drawn
    assert log.rosters().collect()["removed_row"].null_count() == 9
    assert sorted(log.blocks().collect()["length"]) == [4, 5]
    assert log.exposures().collect()["content_hash"].null_count() == lost.filter(reason="deleted").height
    assert cmp.validate_log(log) == []


def test_a_deletion_that_a_draw_found_biases_nothing():
    """Every draw of six rounds from two memories; nothing has an effect, levels rise, m1 is gone after two rounds."""
    sink = Kept()
    memory = served(sink, store(2), slots=1)
    context = memory.retrieve("q", scope="s", round_id="r")
    memory.record(context.round_id, 0.0)
    memory.close()
    templates = {record["type"]: record for record in sink.records}
    found = []
    for draws in product(["m0", "m1"], repeat=6):
        records = [templates["block"]]
        for t, drawn in enumerate(draws):
            (exposure,) = templates["round"]["exposures"]
            exposure = exposure | {"memory_id": drawn}
            if drawn == "m1" and t >= 2:
                exposure |= {"delivered": False, "reason": "deleted", "content_hash": None}
            asked = f"2026-01-01T00:00:0{t}+00:00"
            records += [
                templates["round"] | {"round_id": f"r{t}", "asked_at": asked, "exposures": [exposure]},
                templates["outcome"] | {"round_id": f"r{t}", "value": float(t)},
            ]
        found += (
            cmp.utilities(read_records(records))
            .frame.filter(memory_id="m1")["utility"]
            .drop_nulls()
            .to_list()
        )
    assert len(found) == 2**6 - 2
    assert np.mean(found) == pytest.approx(0.0, abs=1e-12)


def test_new_memories_join_when_the_roster_is_refreshed():
    sink, held = Kept(), store(5)
    memory = served(sink, held, slots=1)
    memory.retrieve("q", scope="s")
    held.scopes["s"]["new"] = Document("new", "text")
    assert memory.refresh("s") == (1, 0)
    assert "new" in {memory.retrieve("q", scope="s").items[0].id for _ in range(60)}
    memory.close()


def outcome(value, at, correct=False):
    fields = {"type": "outcome", "schema_version": 1, "round_id": "r", "metric": "m"}
    return {**fields, "value": value, "recorded_at": f"2026-01-01T00:00:0{at}+00:00", "correct": correct}


def test_the_first_outcome_counts_unless_one_corrects_it_in_whatever_order_they_come():
    records = [outcome(1.0, 0), outcome(1.0, 1), outcome(0.0, 2), outcome(0.5, 3, True), outcome(0.5, 4)]
    for order in (records, records[::-1], records * 2):
        log = read_records(order)
        assert log.outcomes().select("value", "revision").collect().rows() == [(1.0, 0), (0.5, 1)]
        assert log.conflicts == order.count(records[2])


def test_records_of_a_newer_version_or_of_nothing_known_are_refused():
    with pytest.raises(cmp.LogVersionError, match="version 99"):
        read_records([{**outcome(1.0, 0), "schema_version": 99}])
    with pytest.raises(cmp.LogCorruptedError, match="of type 'dream'"):
        read_records([{"type": "dream", "schema_version": 1}])
    with pytest.raises(cmp.LogCorruptedError, match="no field 'metric'"):
        read_records([{name: value for name, value in outcome(1.0, 0).items() if name != "metric"}])


def test_a_file_of_records_is_opened_to_read_and_written_through_its_sink(tmp_path):
    path = tmp_path / "x.jsonl"
    with pytest.raises(FileNotFoundError):
        cmp.open_log(path)
    with pytest.raises(ValueError, match="JsonlSink"):
        served(path)
    path.touch()
    with pytest.raises(TypeError, match="read only"):
        served(path)


# -- lines -------------------------------------------------------------------------------------------------------------


def lines_of(path, n):
    sink = JsonlSink(path)
    for i in range(n):
        sink.write({**outcome(1.0, 0), "round_id": f"r{i}"})
    return path.read_bytes().splitlines(keepends=True)


def found(path):
    log = read_jsonl(path)
    return log.outcomes().collect()["round_id"].to_list(), log.torn


def test_every_cut_of_a_file_loses_the_cut_record_alone(tmp_path):
    """The last of three records is cut at every byte, and a fourth is appended to what is left."""
    path = tmp_path / "x.jsonl"
    first, second, third, fourth = lines_of(path, 4)
    for cut in range(len(third) + 1):
        path.write_bytes(first + second + third[:cut])
        assert found(path) == (
            ["r0", "r1", "r2"] if cut >= len(third) - 1 else ["r0", "r1"],
            0 < cut < len(third) - 1,
        )
        path.write_bytes(first + second + third[:cut] + fourth)
        whole = cut >= len(third) - 1
        assert found(path) == (
            ["r0", "r1", "r2", "r3"] if whole else ["r0", "r1", "r3"],
            not whole and cut > 0,
        )


@given(place=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_a_flipped_bit_costs_one_record_and_is_counted(tmp_path_factory, place, bit):
    path = tmp_path_factory.mktemp("flip") / "x.jsonl"
    whole = bytearray(b"".join(lines_of(path, 3)))
    whole[place % len(whole)] ^= 1 << bit
    path.write_bytes(whole)
    rounds, torn = found(path)
    if len(rounds) == 3:  # the line's end became a blank, or an insignificant brace stayed one
        assert torn <= 1
    else:
        assert (len(rounds), torn >= 1) == (2, True)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_goes_through_a_line_even_one_that_looks_like_a_line(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("text") / "x.jsonl"
    name = text + '{"crc32":"00000000","length":1,"record":' + "\n"
    JsonlSink(path).write({**outcome(1.0, 0), "round_id": name})
    assert found(path) == ([name], 0)
    assert json.loads(path.read_bytes())["record"]["round_id"] == name


def test_a_write_that_is_cut_short_is_an_error_and_costs_itself_alone(tmp_path, monkeypatch):
    path, write = tmp_path / "x.jsonl", os.write
    sink = JsonlSink(path, fsync=True)
    sink.write({**outcome(1.0, 0), "round_id": "r0"})
    monkeypatch.setattr(os, "write", lambda file, line: write(file, line[:50]))
    with pytest.raises(OSError, match="50 of"):
        sink.write({**outcome(1.0, 0), "round_id": "r1"})
    monkeypatch.undo()
    sink.write({**outcome(1.0, 0), "round_id": "r2"})
    assert found(path) == (["r0", "r2"], 1)


APPENDER = textwrap.dedent("""
    import sys
    from concurrent.futures import ThreadPoolExecutor
    from cmp.log.jsonl import JsonlSink
    from tests.serving.stores import store, wrapped
    memory = wrapped(".", store(2000), slots=6, random_slots=2, log=JsonlSink(sys.argv[1]), allocation="uniform")
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda i: memory.retrieve("q", scope="s", round_id=f"{sys.argv[2]}-{i}"), range(150)))
    memory.close()
""")


def test_four_processes_append_to_one_file_and_no_record_is_torn(tmp_path):
    """Blocks of 2,000 ids make lines far longer than a page."""
    path = tmp_path / "x.jsonl"
    workers = [subprocess.Popen([sys.executable, "-c", APPENDER, path, f"w{i}"]) for i in range(4)]
    assert [worker.wait(60) for worker in workers] == [0] * 4
    log = read_jsonl(path)
    assert log.torn == 0
    assert log.rounds().filter("randomized").collect().height == 600
    assert log.blocks().collect().height == 1
    assert cmp.validate_log(log) == []


def test_files_of_several_hosts_are_one_log(tmp_path):
    paths = [tmp_path / f"{host}.jsonl" for host in "ab"]
    for path in paths:
        memory = served(JsonlSink(path))
        for i in range(10):
            memory.retrieve("q", scope="s", round_id=f"{path.stem}{i}")
        memory.close()
    log = read_jsonl(*paths)
    assert sorted(log.rounds().collect()["block_row"]) == list(range(20))
    assert cmp.validate_log(log) == []


def asks(memory, name):
    for i in range(20):
        assert memory.retrieve("q", scope="s", round_id=f"{name}{i}").randomized
    memory.flush()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
def test_forks_and_pickles_go_on_by_themselves(tmp_path):
    path = tmp_path / "x.jsonl"
    memory = served(JsonlSink(path))
    asks(memory, "parent")
    child = os.fork()
    if child == 0:
        try:
            asks(memory, "child")
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    copy = served(pickle.loads(pickle.dumps(memory.log)))
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda name: asks(copy, name), "abcd"))
    memory.close()
    copy.close()
    log = read_jsonl(path)
    assert (log.rounds().collect().height, log.torn) == (120, 0)
    assert cmp.validate_log(log) == []
