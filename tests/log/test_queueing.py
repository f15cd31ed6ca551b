"""Queued rounds: at once for the caller, whole or not at all in the log, and the same assignment on a retry."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import polars as pl
import pytest

import cmp
from cmp.log import queueing, transactions
from tests.serving.stores import Store, documents, store, wrapped


@pytest.fixture
def memory(tmp_path):
    log = cmp.open_log(tmp_path / "x.db", durability="queued", create=True)
    memory = wrapped(tmp_path, store(20, ["m1"]), log=log)
    yield memory
    memory.close()


def test_everything_is_there_after_a_flush(memory):
    with ThreadPoolExecutor(8) as pool:
        contexts = list(pool.map(lambda i: memory.retrieve("q", scope="s"), range(400)))
    memory.flush()
    assert set(memory.log.rounds().collect()["round_id"]) == {context.round_id for context in contexts}
    assert cmp.validate_log(memory.log) == []
    drawn = memory.log.exposures().filter("assigned").collect()["memory_id"].value_counts()["count"]
    assert drawn.max() - drawn.min() <= 1
    assert memory.log.exposures().collect()["content_hash"].null_count() == 0


def test_an_outcome_finds_its_round_however_soon_it_comes(memory):
    for _ in range(50):
        memory.record(memory.retrieve("q", scope="s").round_id, 1.0)
    assert "outcomes_orphaned" not in memory.stats()
    assert memory.log.outcomes().collect().height == 50


def test_a_retry_gets_the_same_assignment(memory):
    named = memory.retrieve("q", scope="s", round_id="r")
    made_up = memory.retrieve("q", scope="s")
    for first in (named, made_up):
        again = memory.retrieve("q", scope="s", round_id=first.round_id)
        assert [item.id for item in again.items] == [item.id for item in first.items]
    memory.flush()
    attempts = memory.log.rounds().collect()["attempts"].to_list()
    assert attempts == [2, 2]
    with pytest.raises(cmp.ScopeError):
        wrapped(None, store(5, scope="t"), log=memory.log).retrieve("q", scope="t", round_id=made_up.round_id)


def test_deleted_memories_leave_the_leases_too(tmp_path):
    held = store(20, ["m1"])
    memory = wrapped(tmp_path, held, log=cmp.open_log(tmp_path / "x.db", durability="queued", create=True))
    for _ in range(3):
        memory.retrieve("q", scope="s")
    memory.forget_ids(["m7"], scope="s")
    del held.scopes["s"]["m7"]
    served = [document.id for _ in range(60) for document in memory.retrieve("q", scope="s")]
    assert "m7" not in served


def test_a_full_queue_serves_the_base_ranking_and_counts_it(memory, monkeypatch):
    memory.retrieve("q", scope="s")
    monkeypatch.setattr(queueing, "QUEUED_AT_MOST", 5)
    blocker = sqlite3.connect(memory.log.path, isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    contexts = [memory.retrieve("q", scope="s") for _ in range(12)]
    blocker.execute("ROLLBACK")
    blocker.close()
    randomized = [context.randomized for context in contexts]
    assert 5 <= sum(randomized) < 12
    assert memory.stats()["fallback.queue_full"] == randomized.count(False)
    memory.flush()
    rounds = memory.log.rounds().filter("randomized").collect()
    assert rounds.height == 1 + sum(randomized)
    assert cmp.validate_log(memory.log) == []


def test_rounds_of_a_transaction_that_failed_are_written_by_the_next(memory):
    memory.retrieve("q", scope="s")
    breaker = sqlite3.connect(memory.log.path)
    breaker.execute("ALTER TABLE exposures RENAME TO hidden")
    contexts = [memory.retrieve("q", scope="s") for _ in range(10)]
    time.sleep(0.1)
    breaker.execute("ALTER TABLE hidden RENAME TO exposures")
    breaker.close()
    memory.flush()
    logged = set(memory.log.rounds().collect()["round_id"])
    assert {context.round_id for context in contexts if context.randomized} <= logged
    assert cmp.validate_log(memory.log) == []


def test_a_full_queue_is_written_as_soon_as_the_database_answers_again(memory, monkeypatch):
    """Nobody records, flushes or retries: retrieving alone must get the queue going."""
    memory.retrieve("q", scope="s")
    monkeypatch.setattr(queueing, "QUEUED_AT_MOST", 3)
    with closing(sqlite3.connect(memory.log.path)) as breaker:
        breaker.execute("ALTER TABLE exposures RENAME TO hidden")
        while memory.retrieve("q", scope="s").randomized:
            pass
        memory.log._thread.submit(int).result()
        breaker.execute("ALTER TABLE hidden RENAME TO exposures")
    memory.retrieve("q", scope="s")
    memory.log._thread.submit(int).result()
    assert memory.retrieve("q", scope="s").randomized


def test_rounds_under_ids_of_the_callers_take_each_one_row(memory):
    """Nobody could deal the rows of a lease: each of these rounds asks the database."""
    for i in range(120):
        memory.retrieve("q", scope="s", round_id=f"r{i}")
    assert memory.log._queue._leases == {}
    assert memory.log.blocks().collect().height == 3
    assert memory.log.rounds().collect()["block_row"].to_list() == [*range(40)] * 3
    drawn = memory.log.exposures().filter("assigned").collect()["memory_id"].value_counts()["count"]
    assert set(drawn) == {6}


@pytest.fixture
def leases(monkeypatch):
    """The streams of which leases were taken, in order."""
    taken, lease = [], transactions.lease

    def noting(session, stream, rows, block_of):
        taken.append(stream)
        return lease(session, stream, rows, block_of)

    monkeypatch.setattr(transactions, "lease", noting)
    return taken


def test_one_lease_of_a_stream_is_taken_however_many_ask_at_once(memory, leases):
    patient = memory.with_policy(log_timeout=60, exposures_per_block=20)
    patient.retrieve("q", scope="s", round_id="opens the block")
    begin = threading.Event()
    memory.log._thread.submit(begin.wait)
    with ThreadPoolExecutor(16) as pool:
        asked = [pool.submit(patient.retrieve, "q", scope="s") for _ in range(30)]
        time.sleep(0.3)
        begin.set()
        assert all(future.result().randomized for future in asked)
    assert len(leases) == 1
    memory.flush()
    assert memory.log.rounds().collect()["block_row"].is_unique().all()


def test_a_lease_that_could_not_be_had_is_asked_for_by_the_next(memory, leases):
    memory.retrieve("q", scope="s", round_id="opens the block")
    with closing(sqlite3.connect(memory.log.path)) as breaker:
        breaker.execute("ALTER TABLE exposures RENAME TO hidden")
        assert not memory.retrieve("q", scope="s").randomized
        breaker.execute("ALTER TABLE hidden RENAME TO exposures")
    for _ in range(2):
        assert memory.retrieve("q", scope="s").randomized
    assert len(leases) == 1


def test_leases_of_streams_that_are_idle_are_let_go_of(tmp_path, monkeypatch, leases):
    monkeypatch.setattr(queueing, "STREAMS_LEASED", 3)
    held = Store({scope: documents(12) for scope in "abcdef"})
    log = cmp.open_log(tmp_path / "x.db", durability="queued", create=True)
    memory = wrapped(tmp_path, held, log=log)
    for scope in "abcdef":
        assert memory.retrieve("q", scope=scope).randomized
    assert len(log._queue._leases) == 3
    for scope in "dea":  # the first two are held; the last takes the place of the one idle longest
        assert memory.retrieve("q", scope=scope).randomized
    held_now = [lease.scope for lease in log._queue._leases.values()]
    assert held_now == ["d", "e", "a"]
    memory.close()
    assert log.rounds().collect().height == 9
    assert cmp.validate_log(log) == []


CHILD = textwrap.dedent("""
    import sys, cmp
    from pathlib import Path
    from tests.serving.stores import store, wrapped
    log = cmp.open_log(sys.argv[1] + "/x.db", durability="queued", create=True)
    memory = wrapped(Path(sys.argv[1]), store(40), slots=6, random_slots=2, log=log)
    while True:
        print(memory.retrieve("q", scope="s").round_id, flush=True)
""")


def test_a_killed_writer_loses_whole_rounds_only(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    timer = threading.Timer(3.0, process.kill)
    timer.start()
    acknowledged = process.communicate()[0].split()
    log = cmp.open_log(tmp_path / "x.db")
    logged = log.rounds().collect()
    assert logged.height > 100
    assert len(set(acknowledged) - set(logged["round_id"])) <= queueing.QUEUED_AT_MOST + 1
    sizes = log.exposures().filter("assigned").group_by("round_id").agg(pl.len()).collect()["len"]
    assert set(sizes) == {2}
    assert cmp.validate_log(log) == []
