"""A log that is being written to, read as of one moment."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
import psycopg
import pytest
from polars.testing import assert_frame_equal

import cmp
from cmp.errors import LogCorruptedError
from cmp.log.schema import EXPOSURES, TABLES
from cmp.log.snapshot import ROWS_READ_AT_ONCE
from tests.serving.stores import store, wrapped

#: Readings of one log; with each table read at its own moment nearly every one of them disagrees with itself.
READINGS = 4

ROUNDS_BEFORE = 400


def asked(memory, rounds):
    for number in range(rounds):
        memory.record(memory.retrieve("q", scope="s").round_id, float(number % 2))


@contextmanager
def written_to(memory) -> Iterator[None]:
    """Have a thread ask and record for as long as this is held, and fail where it stood still."""
    stop, asks = threading.Event(), []

    def go_on():
        while not stop.is_set():
            asked(memory, 1)
            asks.append(1)

    writer = threading.Thread(target=go_on)
    writer.start()
    try:
        yield
    finally:
        stop.set()
        writer.join()
    assert asks


def moments(log) -> dict[str, pl.DataFrame]:
    return {table.name: log.scan(table).collect() for table in TABLES}


@pytest.fixture(params=["process", "queued"])
def memory(request, location):
    log = location / "x.db" if isinstance(location, Path) else location
    log = cmp.open_log(log, durability=request.param, create=True)
    memory = wrapped(location, store(12), log=log, random_slots=2)
    asked(memory, ROUNDS_BEFORE)
    yield memory
    memory.close()


def test_a_healthy_log_has_no_findings_while_it_is_written_to(memory):
    with written_to(memory):
        for _ in range(READINGS):
            assert cmp.validate_log(memory.log) == []
            assert cmp.diagnose(memory.log).passed


def test_an_export_of_a_log_that_is_written_to_keeps_the_contract_and_gives_its_own_estimates(
    memory, tmp_path
):
    with written_to(memory):
        exported = cmp.open_log(memory.log.export(tmp_path / "out"))
    assert exported.rounds().collect().height >= ROUNDS_BEFORE
    assert cmp.validate_log(exported) == []
    assert cmp.diagnose(exported).passed


def test_arrays_of_a_log_that_is_written_to_lack_no_draw_and_one_outcome_at_most(memory):
    with written_to(memory):
        for _ in range(READINGS):
            arrays = cmp.log_arrays(memory.log)
            assert (arrays.assigned.sum(axis=1) == 2).all()
            assert np.isnan(arrays.outcomes).sum() <= 1  # of the round that is being asked


OPTIONS: list[dict[str, str]] = [
    {},
    {"by": "query"},
    {"by": "version"},
    {"strata": "query"},
    {"carryover": "exclude"},
    {"engine": "duckdb"},
]


def test_analyses_are_of_the_moment_they_began_whatever_is_written_between_their_readings(
    location, monkeypatch
):
    """More than a block of rounds comes before each table is read: no analysis sees any of them."""
    memory = wrapped(location, store(8), random_slots=2)
    asked(memory, 30)
    read, rounds = memory.log._portions, [30]

    def after_more(*given):
        asked(memory, 9)
        rounds.append(9)
        return read(*given)

    monkeypatch.setattr(memory.log, "_portions", after_more)

    def n_exposed(utilities):
        return utilities.frame["n_exposed"].sum()

    analyses = [
        *(partial(lambda log, **given: n_exposed(cmp.utilities(log, **given)), **some) for some in OPTIONS),
        lambda log: n_exposed(cmp.utility_statistics(log).utilities()),
        lambda log: cmp.log_arrays(log).assigned.sum(),
    ]
    for drawn in analyses:
        at_first = sum(rounds)
        assert drawn(memory.log) == 2 * at_first
        assert sum(rounds) > at_first
    memory.close()


def test_support_counts_what_was_there_when_it_was_asked(location, monkeypatch):
    memory = wrapped(location, store(8, ["m1", "m2"]))
    asked(memory, 5)
    read = memory.log._portions

    def after_more(*given):
        memory.record(memory.retrieve("another query", scope="s").round_id, 1.0)
        return read(*given)

    monkeypatch.setattr(memory.log, "_portions", after_more)
    assert cmp.support(memory.log).overview["n_queries"].to_list() == [1]
    assert cmp.support(memory.log).overview["n_queries"].to_list() == [2]
    memory.close()


def test_a_snapshot_stays_as_it_is_while_the_log_goes_on(memory):
    if memory.log.queues:
        memory.log.flush()
    with memory.log.snapshot() as now:
        asked(memory, 30)
        first = moments(now)
        asked(memory, 30)
        memory.log.flush()
        for name, frame in moments(now).items():
            assert_frame_equal(frame, first[name])
        assert now.meta() == memory.log.meta()
        with now.snapshot() as same:
            assert same is now
    assert first["rounds"].height == ROUNDS_BEFORE
    assert memory.log.rounds().collect().height == ROUNDS_BEFORE + 60
    with pytest.raises(ValueError, match="snapshot is over"):
        now.rounds()


def test_a_snapshot_lets_writers_go_on_and_keeps_no_hold_on_the_file_afterwards(tmp_path):
    """The write-ahead log is started afresh after a snapshot: nobody holds an old moment of it."""
    memory = wrapped(tmp_path, store(12))
    asked(memory, 50)
    with memory.log.snapshot() as now:
        now.rounds().collect()
        asked(memory, 50)
        busy, kept, moved = memory.log._session.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        assert (busy, moved < kept) == (0, True)
    assert cmp.utilities(memory.log).frame.height == 12
    busy, kept, moved = memory.log._session.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    assert (busy, kept, moved) == (0, 0, 0)
    memory.close()


def test_what_fails_within_a_snapshot_is_told_as_it_is_and_not_as_the_log(location):
    """The caller's own database may be away, or lack a table, while the log is read without fault."""
    memory = wrapped(location, store(12))
    asked(memory, 3)

    def fail_within(error):
        with memory.log.snapshot() as now:
            assert now.rounds().collect().height == 3
            raise error

    for mine in (
        psycopg.OperationalError("my own warehouse is away"),
        psycopg.errors.UndefinedTable("no my_results"),
        sqlite3.OperationalError("no such table: my_results"),
    ):
        with pytest.raises(type(mine)) as caught:
            fail_within(mine)
        assert caught.value is mine
    memory.close()


def test_a_half_read_table_may_be_left_and_is_never_taken_for_a_whole_one(location, monkeypatch):
    memory = wrapped(location, store(12))
    asked(memory, 10)
    monkeypatch.setattr(
        f"cmp.log.{'postgres' if isinstance(location, str) else 'sqlite'}.ROWS_READ_AT_ONCE", 4
    )
    with memory.log.snapshot() as now:
        half, begun = now.portions(EXPOSURES), now.portions(EXPOSURES)
        assert next(half).height == next(begun).height == 4
        begun.close()
        assert now.rounds().collect().height == 10
        assert now.exposures().collect().height > 4
    with pytest.raises(ValueError, match="snapshot is over"):
        next(half)
    assert cmp.validate_log(memory.log) == []
    memory.close()


def test_logs_that_nobody_writes_to_are_their_own_snapshots(tmp_path):
    memory = wrapped(tmp_path, store(12))
    asked(memory, 5)
    for log in (cmp.open_log(memory.log.export(tmp_path / "out")), cmp.log.read_records([])):
        with log.snapshot() as now:
            assert now is log
    memory.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
def test_a_fork_waits_for_the_end_of_a_snapshot_even_where_the_log_is_asked_within(tmp_path):
    memory = wrapped(tmp_path, store(12))
    asked(memory, 5)
    forked = threading.Event()
    children = []

    def fork():
        pid = os.fork()
        if pid == 0:
            try:
                asked(memory, 1)  # and reads nothing: the threads of polars are not there
            except BaseException:
                os._exit(1)
            os._exit(0)
        children.append(pid)
        forked.set()

    forker = threading.Thread(target=fork)
    with memory.log.snapshot() as now:
        forker.start()
        time.sleep(0.3)  # it is at the door by now
        assert not forked.is_set()
        assert now.rounds().collect().height == memory.log.rounds().collect().height == 5
    forker.join()
    assert os.waitpid(children[0], 0)[1] == 0
    assert memory.log.rounds().collect().height == 6
    memory.close()


def test_a_table_is_read_in_portions_that_are_the_table(location):
    memory = wrapped(location, store(12, ["m1", "m2", "m3"]), slots=3, random_slots=2)
    asked(memory, 3)
    block, ids = memory.log.blocks().collect()["block_id"][0], [f"x{n:06}" for n in range(ROWS_READ_AT_ONCE)]

    def more(session):
        rows = [(block, memory_id, 100 + n, 0, 0, None) for n, memory_id in enumerate(ids)]
        session.executemany("INSERT INTO rosters VALUES (?, ?, ?, ?, ?, ?)", rows)

    memory.log._submit(more).result()
    rosters = next(table for table in TABLES if table.name == "rosters")
    with memory.log.snapshot() as now:
        portions = list(now.portions(rosters))
        assert [portion.height for portion in portions] == [ROWS_READ_AT_ONCE, 12]
        assert_frame_equal(pl.concat(portions), memory.log.rosters().collect())
    memory.close()


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        ('ALTER TABLE rounds RENAME COLUMN "group" TO "grp"', "group"),
        ('ALTER TABLE rounds RENAME COLUMN "attempts" TO "tries"', "attempts"),
    ],
)
def test_a_column_that_is_not_there_is_named_and_not_read_as_a_text(location, damage, what):
    memory = wrapped(location, store(12))
    asked(memory, 3)
    memory.log._submit(lambda session: session.execute(damage)).result()
    with pytest.raises(LogCorruptedError, match=what):
        cmp.utilities(memory.log, by="query")
    findings = cmp.validate_log(memory.log)
    assert [(finding.table, finding.row) for finding in findings] == [("rounds", "all")]
    memory.close()


def test_a_value_of_another_type_is_said_to_be_one(tmp_path):
    memory = wrapped(tmp_path, store(12))
    asked(memory, 3)
    memory.log._submit(
        lambda session: session.execute("UPDATE exposures SET propensity = 'certain'")
    ).result()
    with pytest.raises(LogCorruptedError, match="a value in its exposures that is not of its column's type"):
        memory.log.scan(EXPOSURES)
    assert [finding.table for finding in cmp.validate_log(memory.log)] == ["exposures"]
    memory.close()
