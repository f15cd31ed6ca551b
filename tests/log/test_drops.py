"""What the database can never keep is dropped and counted, by itself: nothing else waits behind it."""

from __future__ import annotations

import logging
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from uuid import UUID

import pytest

import cmp
from cmp.errors import InvalidIdError
from cmp.log.records import Exposure, Request
from tests.serving.stores import store, wrapped

BAD = {"a mapping": {"v": 1}, "a lone surrogate": "v\ud800", "an object": object()}
BAD_FOR_SQLITE = {"a UUID": UUID(int=7), "a list": ["v"], "a large number": 2**70}
BAD_FOR_POSTGRES = {"a NUL": "v\0", "a long text": "v" * 5000}


def opened(location, durability="process"):
    where = location if isinstance(location, str) else location / "x.db"
    return cmp.open_log(where, durability=durability, create=True)


def hashes(log, round_id):
    exposures = log.exposures().filter(round_id=round_id).collect()
    return dict(exposures.select("memory_id", "content_hash").iter_rows())


@pytest.mark.parametrize("bad", BAD)
def test_a_hash_that_cannot_be_written_costs_itself_alone(location, bad, caplog):
    memory = wrapped(location, store(12, ["m1", "m2", "m3"]), log=opened(location))
    context = memory.retrieve("q", scope="s")
    memory.flush()
    memory.log.note_contents(context.round_id, {"m1": BAD[bad], "m2": "good", "m3": "too"})
    with caplog.at_level(logging.WARNING, "cmp.log"):
        after = [memory.retrieve("q", scope="s") for _ in range(3)]
    assert all(later.randomized for later in after)
    memory.record(context.round_id, 1.0)
    memory.close()
    found = hashes(memory.log, context.round_id)
    assert (found["m2"], found["m3"]) == ("good", "too")
    assert memory.log.drops == {"content_hashes": 1}
    assert caplog.text.count("was dropped") == 1
    assert "'m1'" in caplog.text and context.round_id in caplog.text


@pytest.mark.parametrize("bad", BAD_FOR_SQLITE)
def test_a_hash_that_sqlite_cannot_keep_costs_itself_alone(tmp_path, bad):
    costs_itself_alone(tmp_path, BAD_FOR_SQLITE[bad])


@pytest.mark.parametrize("bad", BAD_FOR_POSTGRES)
def test_a_hash_that_postgres_cannot_keep_costs_itself_alone(postgres_url, bad):
    costs_itself_alone(postgres_url, BAD_FOR_POSTGRES[bad])


def costs_itself_alone(location, bad):
    memory = wrapped(location, store(12, ["m1", "m2", "m3"]))
    context = memory.retrieve("q", scope="s")
    memory.log.note_contents(context.round_id, {"m1": bad, "m2": "good"})
    assert all(memory.retrieve("q", scope="s").randomized for _ in range(3))
    memory.close()
    assert hashes(memory.log, context.round_id)["m2"] == "good"
    assert memory.log.drops == {"content_hashes": 1}


def a_round(round_id, stream, group):
    return Request(round_id, "s", stream, 0, group, None, None, datetime.now(UTC), None, True)


def stream_of(log):
    return next(iter(log._queue._leases))


def test_a_queued_round_that_cannot_be_written_costs_itself_alone(location):
    memory = wrapped(location, store(12, ["m1", "m2", "m3"]), log=opened(location, "queued"))
    log = memory.log
    told = [memory.retrieve("q", scope="s").round_id for _ in range(3)]
    request = a_round("bad", stream_of(log), {"no": "text"})
    rows = (Exposure("m1", "ranked", False, 0, 1.0, True),)
    assert log.assign(request, lambda drawn: rows).result().round_id == "bad"
    told += [memory.retrieve("q", scope="s").round_id for _ in range(5)]
    memory.close()
    assert log.drops["rounds"] == 1
    assert set(log.rounds().collect()["round_id"]) == set(told)
    assert cmp.validate_log(log) == []
    assert "bad" not in log._queue._recent


@pytest.mark.parametrize("group", ["g\0", "g" * 5000])
def test_a_round_that_postgres_cannot_keep_is_refused_before_it_is_queued(postgres_url, group):
    memory = wrapped(postgres_url, store(12, ["m1", "m2", "m3"]), log=opened(postgres_url, "queued"))
    memory.retrieve("q", scope="s")
    with pytest.raises(InvalidIdError):
        memory.retrieve("q", scope="s", group=group)
    ranked = (Exposure("m\0", "ranked", False, 0, 1.0, True),)
    with pytest.raises(InvalidIdError):
        memory.log.assign(a_round("r", stream_of(memory.log), None), lambda drawn: ranked).result()
    memory.close()
    assert memory.log.rounds().collect().height == 1
    assert memory.log.drops == {}


def test_what_waits_is_kept_where_not_the_data_is_at_fault(tmp_path):
    """A table that is away for a while, and another job's failure, drop nothing."""
    memory = wrapped(tmp_path, store(12, ["m1", "m2", "m3"]))
    context = memory.retrieve("q", scope="s")
    memory.flush()
    memory.log.note_contents(context.round_id, {"m1": UUID(int=7), "m2": "good"})
    with pytest.raises(cmp.UnknownRoundError):
        memory.mark_undelivered("nowhere", ["m1"])
    memory.log.note_contents(context.round_id, {"m3": "late"})
    with pytest.raises(cmp.UnknownRoundError):
        memory.mark_undelivered("nowhere", ["m1"])
    memory.flush()
    found = hashes(memory.log, context.round_id)
    assert (found["m2"], found["m3"]) == ("good", "late")
    assert memory.log.drops == {"content_hashes": 1}


def test_a_hash_that_a_sink_does_not_take_is_counted(tmp_path):
    sink = cmp.log.JsonlSink(tmp_path / "x.jsonl")
    memory = wrapped(None, store(12), log=sink, allocation="uniform")
    context = memory.retrieve("q", scope="s")
    memory.log.note_contents(context.round_id, {"m1": UUID(int=7), "m2": UUID(int=8)})
    memory.flush()
    assert memory.log.drops == {"content_hashes": 2}
    assert memory.retrieve("q", scope="s").randomized


def test_a_request_does_not_wait_for_a_lock_to_write_what_cannot_be_written_with_others(
    tmp_path, monkeypatch
):
    """The file is locked after the write that failed, when a worker thread's request goes on row by row."""
    memory = wrapped(tmp_path, store(12, ["m1", "m2", "m3"]), log_timeout=0.3)
    context = memory.retrieve("q", scope="s")
    memory.flush()
    memory.log.note_contents(context.round_id, {"m1": BAD["an object"], "m2": "good"})
    write_singly, other = (
        type(memory.log)._write_singly,
        sqlite3.connect(tmp_path / "x.db", check_same_thread=False),
    )

    def lock_first(log, *arguments):
        if not other.in_transaction:
            other.execute("BEGIN IMMEDIATE")
        write_singly(log, *arguments)

    monkeypatch.setattr(type(memory.log), "_write_singly", lock_first)
    with ThreadPoolExecutor(1) as worker:
        started = time.monotonic()
        late = worker.submit(memory.retrieve, "q", scope="s").result()
        assert time.monotonic() - started < 2
    assert late.fallback_reason == "log_timeout"
    monkeypatch.undo()
    other.rollback()
    other.close()
    memory.close()
    assert hashes(memory.log, context.round_id)["m2"] == "good"
    assert memory.log.drops == {"content_hashes": 1}
