"""A log that cannot be used now says so, in one error of the package's own, whatever the database."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing, contextmanager

import psycopg
import pytest

import cmp
from cmp.errors import CmpError, LogUnavailableError
from cmp.log.schema import EXPOSURES
from tests.serving.stores import store, wrapped


@contextmanager
def locked(memory):
    with closing(sqlite3.connect(memory.log.path, isolation_level=None)) as blocker:
        blocker.execute("BEGIN IMMEDIATE")
        yield


@contextmanager
def full(memory):
    memory.log._session.execute("PRAGMA max_page_count=1")
    while memory.retrieve("q", scope="s").randomized:  # what fits into the pages that are there
        pass
    yield
    memory.log._session.execute("PRAGMA max_page_count=100000")


@contextmanager
def read_only(memory):
    memory.log._session.execute("PRAGMA query_only=1")
    yield
    memory.log._session.execute("PRAGMA query_only=0")


@pytest.mark.parametrize(
    ("fault", "mend"),
    [(locked, "end its transaction"), (full, "free space"), (read_only, "write to the file")],
)
def test_a_file_that_cannot_be_written_is_named_with_what_to_do(tmp_path, monkeypatch, fault, mend):
    monkeypatch.setattr("cmp.log.sqlite.BUSY_SECONDS", 0.1)
    memory = wrapped(tmp_path, store(20, ["m1", "m2", "m3", "m4"]))
    round_id = memory.retrieve("q", scope="s").round_id
    memory.flush()
    calls = [lambda: memory.with_policy(on_error="raise").retrieve("q", scope="s")]
    if fault is not full:  # a small row may still find room
        calls += [lambda: memory.record(round_id, 1.0), lambda: memory.forget_ids(["m1"], scope="s")]
    with fault(memory):
        for call in calls:
            with pytest.raises(LogUnavailableError, match=rf"x\.db cannot be used now.*{mend}") as caught:
                call()
            assert isinstance(caught.value, OSError)
            assert isinstance(caught.value.__cause__, sqlite3.OperationalError)
        context = memory.retrieve("q", scope="s")
        assert (context.fallback_reason, len(context)) == ("log_failed", 4)
    assert memory.retrieve("q", scope="s").randomized
    memory.close()


def test_a_file_that_cannot_be_read_is_named_too(tmp_path, monkeypatch):
    memory = wrapped(tmp_path, store())
    memory.retrieve("q", scope="s")
    memory.close()
    monkeypatch.setattr("cmp.log.sqlite.BUSY_SECONDS", 0.1)
    with closing(sqlite3.connect(memory.log.path, isolation_level=None)) as hog:
        hog.execute("PRAGMA journal_mode=DELETE")
        hog.execute("BEGIN EXCLUSIVE")
        with pytest.raises(LogUnavailableError, match=r"x\.db cannot be used now"):
            cmp.open_log(memory.log.path)
        for checked in (cmp.validate_log, cmp.diagnose):
            with pytest.raises(LogUnavailableError, match=r"x\.db cannot be used now"):
                checked(memory.log)
    assert cmp.validate_log(memory.log) == []


@pytest.mark.parametrize("checked", [cmp.validate_log, cmp.diagnose])
def test_a_server_lost_between_two_tables_is_no_damage_to_the_log(postgres_url, monkeypatch, checked):
    memory = wrapped(postgres_url, store(20))
    memory.record(memory.retrieve("q", scope="s").round_id, 1.0)
    memory.close()
    read = memory.log._portions

    def cut(reader, table):
        if table is EXPOSURES:
            with psycopg.connect(**memory.log._options, autocommit=True) as other:
                other.execute("SELECT pg_terminate_backend(%s)", (reader.info.backend_pid,))
        return read(reader, table)

    with monkeypatch.context() as patched:
        patched.setattr(memory.log, "_portions", cut)
        with pytest.raises(LogUnavailableError, match="was lost"):
            checked(memory.log)
    assert cmp.validate_log(memory.log) == []


def test_a_closing_log_lets_go_even_where_it_cannot_write(tmp_path):
    memory = wrapped(tmp_path, store(12, ["m1"]))
    round_id = memory.retrieve("q", scope="s").round_id
    memory.log._session.execute("PRAGMA query_only=1")
    memory.log.note_contents(round_id, {"m1": "noted"})
    with pytest.raises(LogUnavailableError):
        memory.close()
    assert memory.log._session is None
    memory.close()
    exposures = memory.log.exposures().filter(memory_id="m1").collect()
    assert exposures["content_hash"].to_list() == ["noted"]


def test_a_server_that_is_away_or_holds_a_lock_is_named(postgres_url, monkeypatch):
    monkeypatch.setattr(
        "cmp.log.postgres.SETTINGS",
        "SET lock_timeout = '100ms'; SET idle_in_transaction_session_timeout = '5s'",
    )
    memory = wrapped(postgres_url, store(20))
    round_id = memory.retrieve("q", scope="s").round_id
    with cmp.open_log(postgres_url) as other:
        session = other._connect()
        other._begin(session)
        session.execute("UPDATE cursors SET used = used + 1")
        with pytest.raises(LogUnavailableError, match="lock timeout") as caught:
            memory.forget_ids(["m1"], scope="s")
        assert isinstance(caught.value, ConnectionError) and isinstance(caught.value, CmpError)
        other._disconnect(session)
    memory.close()
    memory.log._unreachable = (time.monotonic() + 60, "away")
    with pytest.raises(LogUnavailableError, match="away"):
        memory.record(round_id, 1.0)
