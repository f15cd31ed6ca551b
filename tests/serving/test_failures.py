"""Whatever fails around it, the caller's request does not, and no random memory goes without its row."""

from __future__ import annotations

import logging
import math
import sqlite3

import numpy as np
import pytest

import cmp
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


def test_a_roster_that_cannot_be_listed_serves_and_logs_the_base_ranking(tmp_path):
    data = documents(9)
    memory = wrapped(
        tmp_path,
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


def test_a_drawn_memory_that_cannot_be_fetched_is_logged_undelivered(tmp_path):
    data = documents(9)
    memory = wrapped(
        tmp_path,
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


def test_outcomes_are_recorded_once_and_corrected_on_request_only(tmp_path):
    memory = wrapped(tmp_path, store())
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


def test_an_outcome_of_an_unknown_round_is_kept_and_counted(tmp_path, caplog):
    memory = wrapped(tmp_path, store())
    with caplog.at_level(logging.WARNING, "cmp.serving"):
        memory.record("never-served", 1.0)
    assert memory.stats()["outcomes_orphaned"] == 1
    assert "orphan" in caplog.text
    assert [finding.problem for finding in cmp.validate_log(memory.log)] == [
        "it is an orphan: its round is not in the log"
    ]
