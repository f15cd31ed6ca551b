"""A process may fork at any moment: parent and children go on with one log, and nothing acknowledged is lost."""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import signal
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import count
from typing import IO, Any

import polars as pl
import pytest

import cmp
from cmp.errors import LogUnavailableError
from tests.serving.stores import store, wrapped

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")

#: Long for a machine that does other things as well; a child that hangs is hung for ever.
PATIENCE_SECONDS = 60


@dataclass
class Child:
    pid: int
    pipe: int
    stacks: IO[str]

    def told(self) -> Any:
        """Return what the child's job returned; fail where it raised or hangs, and say where it does."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        with self.stacks, os.fdopen(self.pipe) as pipe:
            while os.waitpid(self.pid, os.WNOHANG) == (0, 0):
                if time.monotonic() > deadline:
                    os.kill(self.pid, signal.SIGABRT)
                    os.waitpid(self.pid, 0)
                    self.stacks.seek(0)
                    pytest.fail(f"the child hangs:\n{self.stacks.read()}")
                time.sleep(0.01)
            return json.loads(pipe.read() or pytest.fail("the child failed"))


def forked(job: Callable[[], Any]) -> Child:
    reading, writing = os.pipe()
    stacks = tempfile.TemporaryFile("w+")  # noqa: SIM115 (the child and who waits for it use it)
    pid = os.fork()
    if pid == 0:
        faulthandler.enable(stacks, all_threads=True)  # tells on SIGABRT
        try:
            os.write(writing, json.dumps(job()).encode())  # below the capacity of a pipe
        finally:
            os._exit(0)
    os.close(writing)
    return Child(pid, reading, stacks)


def asked(memory, rounds):
    contexts = [memory.retrieve("q", scope="s") for _ in range(rounds)]
    return [[context.round_id, context.fallback_reason] for context in contexts]


@contextmanager
def load(memory, threads=3):
    """Have threads retrieve meanwhile; yield what they were told."""
    told, stop = [], threading.Event()

    def ask():
        while not stop.is_set():
            told.extend(asked(memory, 1))

    askers = [threading.Thread(target=ask) for _ in range(threads)]
    for asker in askers:
        asker.start()
    try:
        yield told
    finally:
        stop.set()
        for asker in askers:
            asker.join()


def all_are_logged(told, log):
    """Whether all blocks but one are whole, everybody drawn as often as planned: no row was lost or dealt twice."""
    assert {reason for _, reason in told} == {None}
    assert {round_id for round_id, _ in told} == set(log.rounds().filter("randomized").collect()["round_id"])
    assert cmp.validate_log(log) == []
    blocks = log.blocks().select("block_id", "length").collect()
    placed = log.rounds().filter("randomized").select("round_id", "block_id").collect()
    used = blocks.join(placed.group_by("block_id").len(), on="block_id")
    whole = used.filter(pl.col("len") == pl.col("length"))
    drawn = (
        log.exposures()
        .filter("assigned")
        .select("round_id", "memory_id")
        .collect()
        .join(placed, on="round_id")
    )
    times = drawn.group_by("block_id", "memory_id").len()
    planned = log.rosters().collect().join(whole, on="block_id", how="semi")
    found = planned.join(times, on=["block_id", "memory_id"], how="left").fill_null(0)
    return used.height - whole.height <= 1 and found["len"].to_list() == found["planned"].to_list()


def test_a_parent_that_closes_takes_nothing_from_a_child_that_serves(location):
    memory = wrapped(location, store(12))
    told = asked(memory, 3)
    closed, close = os.pipe()

    def job():
        first = asked(memory, 1)
        os.read(closed, 1)
        return first + asked(memory, 20)

    child = forked(job)
    time.sleep(0.3)
    memory.close()
    os.write(close, b".")
    told += child.told()
    for end in (closed, close):
        os.close(end)
    assert all_are_logged(told, memory.log)


@pytest.mark.parametrize("durability", ["process", "queued"])
def test_forks_amid_requests_lose_no_acknowledged_round(location, durability):
    """Children begin while the parent writes, and go on while it closes; nobody waits for a lock nobody holds."""
    where = location if isinstance(location, str) else location / "x.db"
    log = cmp.open_log(where, durability=durability, create=True)
    memory = wrapped(location, store(20), log=log, log_timeout=PATIENCE_SECONDS, max_block_rounds=40)

    def job():
        first = asked(memory, 5)
        time.sleep(0.3)
        then = asked(memory, 5)
        memory.flush()
        return first + then

    asked(memory, 1)
    with load(memory) as told:
        time.sleep(0.1)
        children = []
        for _ in range(8):
            children.append(forked(job))
            time.sleep(0.02)
    memory.close()
    for child in children:
        told += child.told()
    told += asked(memory, 2)
    memory.close()
    logged = log.rounds().filter("randomized").collect()["round_id"]
    assert {reason for _, reason in told} == {None}
    assert {round_id for round_id, _ in told} <= set(logged)
    assert len(logged) == len(told) + 1
    assert cmp.validate_log(log) == []


def test_a_fork_during_a_scan_waits_for_it(tmp_path, monkeypatch):
    """A connection that reads is one that a child must not inherit either."""
    memory = wrapped(tmp_path, store(12))
    told = asked(memory, 2)
    connect = sqlite3.connect
    begun = threading.Event()

    def slow(*args, **kwargs):
        connection = connect(*args, **kwargs)
        begun.set()
        time.sleep(0.5)
        return connection

    reader = threading.Thread(target=lambda: memory.log.rounds().collect())
    with monkeypatch.context() as patched:
        patched.setattr(sqlite3, "connect", slow)
        reader.start()
        begun.wait()
    started = time.monotonic()
    child = forked(lambda: asked(memory, 3))
    assert time.monotonic() - started > 0.3
    reader.join()
    memory.close()
    told += child.told()
    assert all_are_logged(told, memory.log)


def test_a_fork_outlives_a_writer_that_hangs_and_the_child_serves_without_the_log(tmp_path, monkeypatch):
    monkeypatch.setattr("cmp.log.writing.REST_SECONDS", 0.2)
    memory = wrapped(tmp_path, store(12, ["m1", "m2", "m3", "m4"]), log_timeout=PATIENCE_SECONDS)
    told = asked(memory, 3)

    def failed_with(call):
        try:
            call()
        except LogUnavailableError as error:
            return str(error)
        return "nothing"

    def job():
        errors = [
            failed_with(lambda: memory.record(told[0][0], 1.0)),
            failed_with(memory.log.rounds),
            failed_with(lambda: memory.with_policy(on_error="raise").retrieve("q", scope="s")),
        ]
        context = memory.retrieve("q", scope="s")
        memory.close()
        return context.fallback_reason, [document.id for document in context], errors

    with closing(sqlite3.connect(tmp_path / "x.db", isolation_level=None)) as blocker:
        blocker.execute("BEGIN IMMEDIATE")
        with load(memory, threads=1) as later:
            time.sleep(0.2)
            started = time.monotonic()
            child = forked(job)
            assert time.monotonic() - started < 5
            reason, served, errors = child.told()
            blocker.execute("ROLLBACK")
    assert (reason, served) == ("log_failed", ["m1", "m2", "m3", "m4"])
    assert all("x.db" in error and "spawn" in error for error in errors)
    assert all_are_logged(told + later, memory.log)


def test_a_fork_gives_up_on_a_long_snapshot_while_rounds_go_on_and_the_child_serves_without_the_log(
    tmp_path, monkeypatch
):
    """The child writes nothing: SQLite would take the locks of the inherited connection for its own."""
    monkeypatch.setattr("cmp.log.writing.REST_SECONDS", 1.0)
    memory = wrapped(tmp_path, store(12), log_timeout=PATIENCE_SECONDS)
    told = asked(memory, 3)
    begun, end, counts = threading.Event(), threading.Event(), []

    def read():
        with memory.log.snapshot() as now:
            begun.set()
            counts.append(now.rounds().collect().height)
            end.wait()
            counts.append(now.rounds().collect().height)

    def job():
        return [reason for _, reason in asked(memory, 2)]

    reader = threading.Thread(target=read)
    reader.start()
    begun.wait()
    with load(memory) as later:
        before, started = len(later), time.monotonic()
        child = forked(job)
        took, meanwhile = time.monotonic() - started, len(later) - before
        assert child.told() == ["log_failed", "log_failed"]
    assert took >= 1.0
    assert meanwhile > 10, "no round is to wait for the snapshot"
    end.set()
    reader.join()
    assert counts[0] == counts[1] == 3
    told += later
    told += forked(lambda: asked(memory, 2)).told()
    memory.close()
    assert all_are_logged(told, memory.log)


def test_a_child_never_waits_for_a_connection_that_another_thread_was_closing_as_garbage(tmp_path):
    """A retriever that nobody closed goes whenever garbage is collected, in whatever thread."""
    stop, numbers = threading.Event(), count()

    def litter():
        while not stop.is_set():
            place = tmp_path / str(next(numbers))
            place.mkdir()
            ring = [wrapped(place, store(12))]
            asked(ring[0], 1)
            ring.append(ring)
            del ring
            gc.collect()

    def job():
        with closing(sqlite3.connect(":memory:")) as connection:
            return connection.execute("SELECT 1").fetchone()

    litterers = [threading.Thread(target=litter) for _ in range(2)]
    for litterer in litterers:
        litterer.start()
    try:
        for _ in range(50):  # one in 25 waited for ever where nobody took care
            time.sleep(0.003)
            assert forked(job).told() == [1]
    finally:
        stop.set()
        for litterer in litterers:
            litterer.join()


def test_a_sink_is_never_written_to_while_the_process_forks(tmp_path):
    """A sink has locks of its own, which a child would find held by nobody."""

    class LockedSink:
        def __init__(self):
            self.lock = threading.Lock()

        def write(self, record):
            with self.lock, (tmp_path / "records").open("a") as file:
                time.sleep(0.01)
                file.write(json.dumps(record) + "\n")

    memory = wrapped(
        None, store(12), log=LockedSink(), allocation="uniform", seed=1, log_timeout=PATIENCE_SECONDS
    )
    asked(memory, 1)
    with load(memory) as told:
        children = []
        for _ in range(5):
            time.sleep(0.03)
            children.append(forked(lambda: asked(memory, 3)))
    for child in children:
        told += child.told()
    memory.flush()
    records = [json.loads(line) for line in (tmp_path / "records").read_text().splitlines()]
    assert {reason for _, reason in told} == {None}
    assert {round_id for round_id, _ in told} <= {r["round_id"] for r in records if r["type"] == "round"}
