"""The log in Postgres, on a real server: many workers, races, crashes, and what it refuses."""

from __future__ import annotations

import logging
import os
import pickle
import socket
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from uuid import uuid4

import polars as pl
import pytest
from polars.testing import assert_frame_equal

import cmp
from cmp.log.schema import TABLES
from tests.servers import Server, running
from tests.serving.stores import Document, Store, documents, store, wrapped

psycopg = pytest.importorskip("psycopg", reason="psycopg (the extra postgres) is not installed")


def altered(url: str, *statements: str) -> None:
    """Do something to a log behind its back."""
    log = cmp.open_log(url)
    with log._reader() as connection:
        connection.rollback()
        connection.read_only = False
        for statement in statements:
            connection.execute(statement)
        connection.commit()


def alone(url: str) -> str:
    """Make the schema of a URL, as somebody else would."""
    base, _, schema = url.rpartition("schema=")
    with psycopg.connect(base.rstrip("?&"), autocommit=True) as connection:
        connection.execute(f'CREATE SCHEMA "{schema}"')
        connection.execute(f'CREATE TABLE "{schema}".people (name TEXT)')
    return schema


#: Columns that no two logs share.
TIMES = ("asked_at", "recorded_at", "created_at")

WORKER = textwrap.dedent("""
    import sys
    from concurrent.futures import ThreadPoolExecutor
    from tests.serving.stores import store, wrapped
    url, name, rounds, threads = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    sys.stdin.readline()
    memory = wrapped(url, store(40), slots=6, random_slots=2, seed=None)
    def ask(i):
        context = memory.retrieve("q", scope="s", round_id=f"{name}-{i // threads}")
        assert context.randomized, context.fallback_reason
        return " ".join([context.round_id, *sorted(item.id for item in context.items)])
    with ThreadPoolExecutor(threads) as pool:
        print(*pool.map(ask, range(rounds * threads)), sep="\\n")
""")


def at_once(*arguments: tuple[object, ...]) -> list[list[list[str]]]:
    """Run workers that start at the same moment; return the words of each line of each."""
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, *map(str, given)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for given in arguments
    ]
    time.sleep(0.5)
    for worker in workers:
        worker.stdin.write("\n")
        worker.stdin.flush()
    outputs = [worker.communicate(timeout=60)[0] for worker in workers]
    assert [worker.returncode for worker in workers] == [0] * len(workers)
    return [[line.split() for line in output.splitlines()] for output in outputs]


def test_eight_processes_start_on_an_empty_database_and_share_its_blocks(postgres_url):
    outputs = at_once(*((postgres_url, f"w{i}", 25, 1) for i in range(8)))
    log = cmp.open_log(postgres_url)
    drawn = log.exposures().filter("assigned").group_by("round_id").agg(pl.col("memory_id").sort()).collect()
    logged = dict(drawn.iter_rows())
    assert logged == {line[0]: line[1:] for output in outputs for line in output}
    assert len(logged) == 200
    counts = log.exposures().filter("assigned").collect()["memory_id"].value_counts()["count"]
    assert counts.to_list() == [10] * 40
    assert cmp.validate_log(log) == []


def test_a_round_id_asked_by_sixteen_threads_of_two_processes_is_one_round(postgres_url):
    outputs = at_once(*((postgres_url, "same", 6, 8) for _ in range(2)))
    told = {tuple(line) for output in outputs for line in output}
    assert len(told) == 6
    log = cmp.open_log(postgres_url)
    rounds = log.rounds().collect()
    assert sorted(rounds["round_id"]) == [f"same-{i}" for i in range(6)]
    assert rounds["attempts"].to_list() == [16] * 6
    assert sorted(rounds["block_row"]) == list(range(6))
    assert cmp.validate_log(log) == []


def test_an_outcome_recorded_by_many_at_once_is_kept_once(postgres_url):
    memory = wrapped(postgres_url, store())
    round_id = memory.retrieve("q", scope="s").round_id
    logs = [cmp.open_log(postgres_url) for _ in range(6)]
    with ThreadPoolExecutor(6) as pool:
        known = pool.map(lambda log: log.outcome(round_id, "m", 1.0, datetime.now(UTC), False).result(), logs)
        assert list(known) == [True] * 6
    assert memory.log.outcomes().collect().height == 1
    for log in [*logs, memory.log]:
        log.close()


def test_a_server_killed_between_rounds_costs_no_request_and_no_acknowledged_round():
    with running() as server:
        served_through_a_crash(server)


def served_through_a_crash(server: Server) -> None:
    postgres_url = server.schema_url()
    memory = wrapped(
        postgres_url, store(20, ["m1", "m2"]), log=cmp.open_log(postgres_url, durability="power", create=True)
    )
    before = [memory.retrieve("q", scope="s", round_id=f"before-{i}").round_id for i in range(30)]
    server.kill()
    try:
        started = time.monotonic()
        away = [memory.retrieve("q", scope="s", round_id=f"away-{i}") for i in range(10)]
        assert time.monotonic() - started < 5
    finally:
        server.restart()
    assert {(context.randomized, context.fallback_reason) for context in away} == {(False, "log_failed")}
    assert {tuple(document.id for document in context) for context in away} == {("m1", "m2")}
    assert memory.stats()["fallback.log_failed"] == 10
    deadline = time.monotonic() + 20
    while not memory.retrieve("q", scope="s").randomized:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    after = [memory.retrieve("q", scope="s", round_id=f"after-{i}").round_id for i in range(30)]
    assert {*before, *after} <= set(memory.log.rounds().filter("randomized").collect()["round_id"])
    assert cmp.validate_log(memory.log) == []
    memory.close()


def test_a_lost_connection_is_replaced_without_a_word(postgres_url):
    memory = wrapped(postgres_url, store(20))
    memory.retrieve("q", scope="s")
    for _ in range(3):
        pid = memory.log._session.connection.info.backend_pid
        altered(postgres_url, f"SELECT pg_terminate_backend({pid})")
        assert memory.retrieve("q", scope="s").randomized
    assert memory.log.rounds().collect()["block_row"].to_list() == [0, 1, 2, 3]
    memory.close()


def test_queued_rounds_are_all_written_once_whatever_becomes_of_the_connection(postgres_url):
    log = cmp.open_log(postgres_url, durability="queued", create=True)
    memories = [wrapped(postgres_url, store(20), log=log), wrapped(postgres_url, store(20))]
    asked = set()
    for i in range(300):
        asked.add(memories[i % 5 == 0].retrieve("q", scope="s").round_id)
        if i % 50 == 20:
            log.flush()
            altered(postgres_url, f"SELECT pg_terminate_backend({log._session.connection.info.backend_pid})")
    log.flush()
    assert set(log.rounds().filter("randomized").collect()["round_id"]) == asked
    assert cmp.validate_log(log) == []
    for memory in memories:
        memory.close()


def test_a_lease_is_held_once_and_only_when_its_transaction_is_committed(postgres_url, monkeypatch):
    log = cmp.open_log(postgres_url, durability="queued", create=True)
    memory = wrapped(postgres_url, store(20), log=log, exposures_per_block=20)
    memory.retrieve("q", scope="s")  # lays the block open and takes a lease
    log._queue.end_leases("s")
    commit, failures = log._commit, iter([True, True, False])

    def failing(session):
        if next(failures, False):
            raise psycopg.errors.SerializationFailure("tried again")
        commit(session)

    monkeypatch.setattr(log, "_commit", failing)
    for _ in range(80):
        assert memory.retrieve("q", scope="s").randomized
    memory.close()
    assert cmp.validate_log(log) == []


@pytest.mark.parametrize("reaches", [True, False])
def test_a_round_whose_commit_is_not_answered_is_logged_once_or_withdrawn(postgres_url, reaches, monkeypatch):
    """The connection breaks at the commit, before or after the server has it; then it cannot be had for a while."""
    memory = wrapped(postgres_url, store(20))
    memory.retrieve("q", scope="s", round_id="first")
    log, session = memory.log, memory.log._session
    execute = type(session).execute

    def breaking(self, query, parameters=()):
        if query == "COMMIT" and self is session:
            if reaches:
                execute(self, query)
            self.connection.close()
            raise psycopg.OperationalError("the connection was lost")
        return execute(self, query, parameters)

    monkeypatch.setattr(type(session), "execute", breaking)
    log._unreachable = (time.monotonic() + 0.2, "away")
    context = memory.retrieve("q", scope="s", round_id="doubtful")
    assert context.fallback_reason == "log_failed"
    time.sleep(0.3)
    memory.retrieve("q", scope="s", round_id="next")
    exposures = log.exposures().filter(pl.col("round_id") == "doubtful").collect()
    assert exposures.height == (len(context.items) + 1 if reaches else 0)
    assert not exposures["delivered"].any()
    again = memory.retrieve("q", scope="s", round_id="doubtful")
    assert again.randomized
    exposures = log.exposures().filter(pl.col("round_id") == "doubtful").collect()
    assert exposures["delivered"].all()
    assert cmp.validate_log(log) == []
    memory.close()


def test_a_worker_that_hangs_holds_the_others_up_for_a_moment_only(postgres_url, monkeypatch):
    monkeypatch.setattr(
        "cmp.log.postgres.SETTINGS", "SET lock_timeout = '5s'; SET idle_in_transaction_session_timeout = '1s'"
    )
    memory = wrapped(postgres_url, store(20), log_timeout=0.3)
    memory.retrieve("q", scope="s")
    with cmp.open_log(postgres_url) as hung:
        session = hung._connect()
        hung._begin(session)
        session.execute("UPDATE cursors SET used = used + 1")
        assert memory.retrieve("q", scope="s").fallback_reason == "log_timeout"
        time.sleep(1.2)
        assert memory.retrieve("q", scope="s").randomized
        hung._disconnect(session)
    memory.flush()
    rounds = memory.log.rounds().filter("randomized").collect()
    assert rounds["block_row"].to_list() == list(range(rounds.height))
    memory.close()


def test_a_memory_forgotten_while_others_are_served_leaves_at_one_row_for_all(postgres_url):
    """Whatever row it leaves at, it was delivered in each row before that drew it, and in none from there on."""
    memories = [wrapped(postgres_url, store(6), slots=1, exposures_per_block=200) for _ in range(3)]
    for gone in range(5):
        with ThreadPoolExecutor(9) as pool:
            asked = [pool.submit(memories[i % 2].retrieve, "q", scope="s") for i in range(24)]
            memories[2].forget_ids([f"m{gone}"], scope="s")
            assert all(future.result().randomized for future in asked)
    log = memories[0].log
    assert log.blocks().collect().height == 1
    drawn = (
        log.exposures()
        .filter("assigned")
        .join(log.rounds(), on="round_id")
        .join(log.rosters(), on=["block_id", "memory_id"])
    )
    late = pl.col("block_row") >= pl.col("removed_row").fill_null(2**40)
    told = drawn.select(late=late, delivered="delivered").collect()
    assert told.filter("late").height > 0
    assert (told["late"] != told["delivered"]).all()
    for memory in memories:
        memory.close()


def test_a_server_that_is_away_is_an_error_at_once_and_never_names_the_password(caplog):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"postgresql://ada:hunter2@127.0.0.1:{port}/log"
    with (
        caplog.at_level(logging.DEBUG),
        pytest.raises(ConnectionError, match=f"ada@127.0.0.1:{port}/log") as caught,
    ):
        cmp.open_log(url, create=True)
    assert "hunter2" not in str(caught.value) + repr(caught.value.__cause__) + caplog.text


@pytest.mark.parametrize(
    "url", ["postgresql://ada:hunter2%zz@host/db", "postgresql://ada:hunter2@host/db?color=red"]
)
def test_a_url_that_is_none_is_refused_without_repeating_it(url):
    with pytest.raises(ValueError, match="no URL of a Postgres database") as caught:
        cmp.open_log(url)
    assert "hunter2" not in str(caught.value)
    assert caught.value.__suppress_context__


def test_the_password_is_in_no_representation(postgres_url):
    log = cmp.open_log(postgres_url.replace("postgres:@", "postgres:hunter2@", 1), create=True)
    with pytest.raises(FileNotFoundError) as caught:
        cmp.open_log(log._url + "x")
    assert "hunter2" not in repr(log) + str(log) + str(caught.value)
    log.close()


@pytest.mark.parametrize("bad", ["a\0b", "é" * 700])
@pytest.mark.parametrize("place", ["ranking", "roster", "round", "group", "scope"])
def test_an_id_postgres_cannot_keep_is_refused_before_anything_is_drawn(postgres_url, bad, place):
    names = [*documents(4), bad] if place == "roster" else list(documents(4))
    data = {i: Document(i, "t") for i in names}
    scope = bad if place == "scope" else "s"
    ranked = [Document(bad, "t")] * (place == "ranking")
    memory = wrapped(
        postgres_url,
        lambda query: ranked,
        list_ids=lambda scope: data,
        get=lambda ids, scope: [data[i] for i in ids],
    )
    asked = {"round": {"round_id": bad}, "group": {"group": bad}}.get(place, {})
    with pytest.raises(cmp.InvalidIdError, match="Postgres can"):
        memory.retrieve("q", scope=scope, **asked)
    assert memory.log.rounds().collect().height == 0
    memory.close()


def test_the_longest_ids_allowed_fit_together(postgres_url):
    long = os.urandom(650).hex()
    data = {i + long[1:]: Document(i + long[1:], "t") for i in "abcdef"}
    memory = wrapped(postgres_url, Store({"s": data}, list(data)))
    context = memory.retrieve("q", scope="s", round_id=long)
    memory.record(long, 1.0, metric=long)
    assert context.randomized
    assert memory.log.outcomes().collect()["metric"].to_list() == [long]
    memory.close()


def test_a_log_of_a_newer_version_is_refused(postgres_url):
    cmp.open_log(postgres_url, create=True).close()
    altered(postgres_url, "UPDATE meta SET value = '99' WHERE key = 'schema_version'")
    for create in (True, False):
        with pytest.raises(cmp.LogVersionError, match="schema version 99"):
            cmp.open_log(postgres_url, create=create)


def test_a_database_that_keeps_no_utf8_is_refused(postgres):
    if postgres.own is None:
        pytest.skip("no databases are made on the server of $CMP_TEST_POSTGRES")
    name = f"ascii_{uuid4().hex}"
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(
            f"CREATE DATABASE {name} ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
        )
        try:
            with pytest.raises(ValueError, match="ENCODING 'UTF8'"):
                cmp.open_log(postgres.url_with(f"dbname={name}"), create=True)
        finally:
            connection.execute(f"DROP DATABASE {name} (FORCE)")


def test_without_psycopg_the_extra_is_named():
    code = (
        "import sys, cmp; sys.modules['psycopg'] = None\n"
        "try: cmp.open_log('postgresql://host/db')\n"
        "except cmp.MissingExtraError as error: print(error)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "causal-memory-policy[postgres]" in out


def test_a_schema_of_something_else_is_left_as_it_is(postgres_url):
    alone(postgres_url)
    for opening in (lambda: cmp.open_log(postgres_url), lambda: wrapped(postgres_url, store())):
        with pytest.raises(cmp.LogCorruptedError, match="something else"):
            opening()


def test_a_meta_table_of_something_else_is_no_log(postgres_url):
    cmp.open_log(postgres_url, create=True).close()
    altered(postgres_url, "ALTER TABLE meta RENAME COLUMN value TO worth")
    for create in (True, False):
        with pytest.raises(cmp.LogCorruptedError):
            cmp.open_log(postgres_url, create=create)


def test_a_missing_table_is_a_finding(postgres_url):
    memory = wrapped(postgres_url, store())
    memory.retrieve("q", scope="s")
    memory.close()
    altered(postgres_url, "DROP TABLE outcomes")
    findings = cmp.validate_log(cmp.open_log(postgres_url))
    assert [(finding.table, finding.problem[:17]) for finding in findings] == [
        ("outcomes", "it cannot be read")
    ]


def test_opening_what_is_not_there_is_an_error_and_creates_nothing(postgres_url):
    for _ in range(2):
        with pytest.raises(FileNotFoundError, match="no log at"):
            cmp.open_log(postgres_url)


@pytest.mark.parametrize(("durability", "setting"), [("process", "off"), ("power", "on"), ("queued", "off")])
def test_durability_is_how_commits_are_waited_for(postgres_url, durability, setting):
    with cmp.open_log(postgres_url, durability=durability, create=True) as log:
        log.flush()
        log._submit(lambda session: None).result()
        assert log._session.execute("SHOW synchronous_commit").fetchone() == (setting,)
    with pytest.raises(ValueError, match="durability"):
        cmp.open_log(postgres_url, durability="some")


def test_a_pickled_log_goes_on_with_the_same_one(postgres_url):
    memory = wrapped(postgres_url, store(9))
    memory.retrieve("q", scope="s")
    with pickle.loads(pickle.dumps(memory.log)) as log:
        assert log.rounds().collect().height == 1
        assert wrapped(postgres_url, store(9), log=log).retrieve("q", scope="s").randomized
    memory.close()


def test_what_sqlite_and_postgres_hold_after_the_same_rounds_is_the_same(postgres_url, tmp_path):
    """All but names drawn at random and times; an export of it reads back as it was, in the same order."""
    frames = []
    for place in (tmp_path, postgres_url):
        memory = wrapped(place, store(12, ["m1", "m2", "m3"]), slots=3, random_slots=2)
        for i in range(30):
            memory.retrieve("q", scope="s", round_id=f"r{i:02}", group="g" * (i % 2) or None)
            memory.record(f"r{i:02}", i / 7)
        memory.flush()
        exported = cmp.open_log(memory.log.export(tmp_path / f"out-{len(frames)}"))
        for table in TABLES:
            assert_frame_equal(exported.scan(table).collect(), memory.log.scan(table).collect())
        frames.append([memory.log.scan(table).collect() for table in TABLES])
        memory.close()
    for ours, theirs in zip(*frames, strict=True):
        alike = [name for name in ours.columns if name not in ("block_id", *TIMES)]
        keys = ["planned_before", "position"] if "position" in alike else []
        assert_frame_equal(
            *(frame.select(alike).sort(keys) if keys else frame.select(alike) for frame in (ours, theirs))
        )
