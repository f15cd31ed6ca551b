"""Whatever fails around it, the caller's request does not, and no random memory goes without its row."""

from __future__ import annotations

import asyncio
import logging
import math
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

import numpy as np
import pytest

import cmp
from cmp.errors import LogTimeoutError
from tests.serving.stores import documents, store, wrapped


def failing(*_, **__):
    raise ConnectionError("the store is away")


def test_a_log_that_cannot_be_written_serves_the_base_ranking_with_a_warning(tmp_path, caplog):
    memory = wrapped(tmp_path, store(20, ["m1", "m2", "m3", "m4", "m5"]))
    memory.retrieve("q", scope="s")
    breaker = sqlite3.connect(tmp_path / "x.db")
    breaker.execute("ALTER TABLE exposures RENAME TO hidden")
    with caplog.at_level(logging.WARNING, "cmp.serving"):
        context = memory.retrieve("q", scope="s")
    assert [document.id for document in context] == ["m1", "m2", "m3", "m4"]
    assert (context.randomized, context.fallback_reason) == (False, "log_failed")
    assert memory.stats()["fallback.log_failed"] == 1
    assert "log_failed" in caplog.text
    with pytest.raises(sqlite3.OperationalError):
        memory.with_policy(on_error="raise").retrieve("q", scope="s")
    breaker.execute("ALTER TABLE hidden RENAME TO exposures")
    assert memory.retrieve("q", scope="s").randomized
    assert cmp.validate_log(memory.log) == []


def in_a_thread(ask):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(ask).result()


@contextmanager
def locked(path):
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield


@pytest.mark.parametrize("where", ["main thread", "worker thread", "event loop"])
def test_a_locked_log_holds_a_request_up_no_longer_than_the_timeout(tmp_path, where):
    memory = wrapped(tmp_path, store(20, ["m1", "m2", "m3", "m4"]), log_timeout=0.1)

    def retrieve():
        if where == "event loop":
            return asyncio.run(memory.aretrieve("q", scope="s"))
        if where == "worker thread":
            return in_a_thread(lambda: memory.retrieve("q", scope="s"))
        return memory.retrieve("q", scope="s")

    retrieve()
    with locked(tmp_path / "x.db"):
        started = time.monotonic()
        contexts = [retrieve() for _ in range(3)]
        assert time.monotonic() - started < 2
        with pytest.raises(LogTimeoutError, match=r"log_timeout = 0\.1 s"):
            memory.with_policy(on_error="raise").retrieve("q", scope="s")
    assert [[document.id for document in context] for context in contexts] == [["m1", "m2", "m3", "m4"]] * 3
    assert {(context.randomized, context.fallback_reason) for context in contexts} == {(False, "log_timeout")}
    memory.flush()
    assert memory.stats()["fallback.log_timeout"] == 3
    assert retrieve().randomized
    assert cmp.validate_log(memory.log) == []


def test_a_worker_thread_gets_its_turn_when_the_lock_is_let_go_of(tmp_path):
    memory = wrapped(tmp_path, store(20, ["m1", "m2", "m3", "m4"]))
    memory.retrieve("q", scope="s")
    for held in (0.0, 0.005, 0.1):
        with ThreadPoolExecutor(1) as pool, locked(tmp_path / "x.db"):
            asked = pool.submit(memory.retrieve, "q", scope="s")
            time.sleep(held)
            assert held == 0 or not asked.done()
        assert asked.result().randomized
    assert cmp.validate_log(memory.log) == []


def test_the_write_ahead_log_does_not_grow_with_the_rounds(tmp_path, monkeypatch):
    monkeypatch.setattr("cmp.log.sqlite.COMMITS_A_CHECKPOINT", 50)
    memory = wrapped(tmp_path, store(20, ["m1", "m2", "m3", "m4"]))

    def ask(n):
        for _ in range(n):
            memory.retrieve("q", scope="s")
        return (tmp_path / "x.db-wal").stat().st_size

    first = in_a_thread(lambda: ask(200))
    assert in_a_thread(lambda: ask(1000)) < 2 * first


def test_a_flush_with_nothing_left_to_write_does_not_need_the_database(tmp_path):
    memory = cmp.wrap(store(20), slots=2, random_slots=1, log=tmp_path / "x.db")
    memory.retrieve("q", scope="s")
    with locked(tmp_path / "x.db"):
        started = time.monotonic()
        memory.close()
        assert time.monotonic() - started < 2
    assert memory.log.rounds().collect().height == 1


def test_a_round_written_after_its_request_gave_up_is_undelivered_until_it_is_asked_again(tmp_path):
    memory = wrapped(tmp_path, store(20, ["m1", "m2", "m3", "m4"]), log_timeout=0.1)
    memory.retrieve("q", scope="s")
    with locked(tmp_path / "x.db"):
        assert not memory.retrieve("q", scope="s", round_id="late").randomized
        assert not memory.retrieve("q", scope="s", round_id="never begun").randomized
    memory.flush()
    memory.flush()  # the first flush may come before the withdrawal is handed over
    assert set(memory.log.rounds().collect()["round_id"]) & {"late", "never begun"} == {"late"}
    rows = memory.log.exposures().collect().filter(round_id="late")
    assert set(zip(rows["delivered"], rows["reason"], strict=True)) == {(False, "timeout")}
    again = memory.with_policy(log_timeout=5.0).retrieve("q", scope="s", round_id="late")
    assert [item.id for item in again.items] == rows["memory_id"].to_list()
    assert (again.randomized, len(again)) == (True, 4)
    rows = memory.log.exposures().collect().filter(round_id="late")
    assert set(zip(rows["delivered"], rows["reason"], strict=True)) == {(True, None)}
    assert cmp.validate_log(memory.log) == []


def test_a_roster_that_cannot_be_listed_serves_and_logs_the_base_ranking(location):
    data = documents(9)
    memory = wrapped(
        location,
        lambda query: list(data.values()),
        list_ids=failing,
        get=lambda ids, scope: [data[i] for i in ids],
    )
    context = memory.retrieve("q", scope=cmp.EVERYTHING)
    assert [document.id for document in context] == ["m0", "m1", "m2", "m3"]
    rounds = memory.log.rounds().collect()
    assert rounds["fallback_reason"].to_list() == ["roster_failed"]
    assert memory.stats()["fallback.roster_failed"] == 1
    with pytest.raises(ConnectionError, match="away"):
        memory.with_policy(on_error="raise").retrieve("q", scope=cmp.EVERYTHING)


@pytest.mark.parametrize("garbage", [None, 7, object()])
def test_a_listing_that_is_none_is_a_roster_that_failed(tmp_path, garbage):
    memory = wrapped(
        tmp_path, lambda query: ["a", "b"], list_ids=lambda: garbage, get=failing, scope=cmp.EVERYTHING
    )
    assert list(memory.retrieve("q")) == ["a", "b"]
    assert memory.log.rounds().collect()["fallback_reason"].to_list() == ["roster_failed"]


def test_a_drawn_memory_that_cannot_be_fetched_is_logged_undelivered(location):
    data = documents(9)
    memory = wrapped(
        location,
        lambda query: [data["m0"], data["m1"]],
        list_ids=lambda: data,
        get=failing,
        slots=2,
        scope=cmp.EVERYTHING,
    )
    for _ in range(18):
        assert [document.id for document in memory.retrieve("q")] == ["m0", "m1"]
    exposures = memory.log.exposures().collect()
    lost = exposures.filter(~exposures["delivered"])
    assert set(lost["reason"]) == {"fetch_failed"}
    assert lost["assigned"].all()
    assert lost["slot"].null_count() == lost.height
    assert cmp.validate_log(memory.log) == []
    with pytest.raises(ConnectionError):
        memory.with_policy(on_error="raise").retrieve("q", round_id="r")


def test_a_retriever_that_fails_is_the_callers_own_failure(tmp_path):
    data = documents(3)
    memory = wrapped(tmp_path, failing, list_ids=lambda scope: data, get=lambda ids, scope: [])
    with pytest.raises(ConnectionError, match="away"):
        memory.retrieve("q", scope="s")
    assert memory.log.rounds().collect().height == 0


def test_a_text_of_that_fails_costs_the_hash_only(tmp_path):
    memory = cmp.wrap(store(9), slots=2, random_slots=1, log=tmp_path / "x.db", text_of=failing)
    assert memory.retrieve("q", scope="s").randomized
    assert memory.stats()["text_of_failed"] >= 1


def test_rollback_serves_even_where_the_log_is_gone(tmp_path):
    memory = wrapped(tmp_path, lambda query: ["a", "b"], random_slots=0)
    memory.log.close()
    (tmp_path / "x.db").unlink()
    (tmp_path / "x.db").mkdir()
    assert list(memory.retrieve("q", scope="s")) == ["a", "b"]
    assert memory.stats()["fallback.log_failed"] == 1


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -math.inf, np.float64("nan")])
def test_an_outcome_that_is_not_finite_is_refused(tmp_path, bad):
    memory = wrapped(tmp_path, store())
    with pytest.raises(ValueError, match="finite"):
        memory.record(memory.retrieve("q", scope="s").round_id, bad)
    assert memory.log.outcomes().collect().height == 0


@pytest.mark.parametrize("bad", ["1", "", None, [1.0], 1j])
def test_an_outcome_that_is_no_number_is_refused(tmp_path, bad):
    memory = wrapped(tmp_path, store())
    with pytest.raises(TypeError, match="record a number"):
        memory.record(memory.retrieve("q", scope="s").round_id, bad)


def test_outcomes_are_recorded_once_and_corrected_on_request_only(location):
    memory = wrapped(location, store())
    round_id = memory.retrieve("q", scope="s").round_id
    memory.record(round_id, 0)
    memory.record(round_id, False)
    with pytest.raises(cmp.ConflictingOutcomeError, match="correct=True"):
        memory.record(round_id, 1.0)
    memory.record(round_id, 0.5, metric="other")
    memory.record(round_id, np.float32(1.0), correct=True)
    outcomes = memory.log.outcomes().sort("metric", "revision").collect()
    assert outcomes.select("metric", "value", "revision").rows() == [
        ("other", 0.5, 0),
        ("reward", 0.0, 0),
        ("reward", 1.0, 1),
    ]


def test_an_outcome_of_an_unknown_round_is_kept_and_counted(location, caplog):
    memory = wrapped(location, store())
    with caplog.at_level(logging.WARNING, "cmp.serving"):
        memory.record("never-served", 1.0)
    assert memory.stats()["outcomes_orphaned"] == 1
    assert "orphan" in caplog.text
    assert [finding.problem for finding in cmp.validate_log(memory.log)] == [
        "it is an orphan: its round is not in the log"
    ]
