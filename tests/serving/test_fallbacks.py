"""A fallback is the base ranking and nothing else; what is not ours to swallow is passed on."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import threading
import time
from collections import Counter

import polars as pl
import pytest

import cmp
from tests.serving.stores import Document, documents, store, wrapped

RANKED = [f"m{i}" for i in range(6)]


def served(context):
    return [document.id for document in context]


@pytest.mark.parametrize("reason", ["holdout", "roster_failed", "roster_too_small"])
def test_a_round_that_is_not_randomized_is_neither_shuffled_nor_withheld_from(tmp_path, reason):
    data = documents(12)

    def listing():
        if reason == "roster_failed":
            raise ConnectionError("away")
        return ["m0"] if reason == "roster_too_small" else data

    memory = wrapped(
        tmp_path,
        lambda query: [data[i] for i in RANKED],
        list_ids=listing,
        get=lambda ids: [data[i] for i in ids],
        scope=cmp.EVERYTHING,
        withhold=1,
        placement="shuffle",
        holdout=1.0 if reason == "holdout" else 0.0,
    )
    for _ in range(8):
        assert served(memory.retrieve("q")) == RANKED[:4]
    exposures = memory.log.exposures().collect()
    assert set(exposures["arm"]) == {"ranked"}
    assert set(exposures["propensity"]) == {1.0}
    assert set(memory.log.rounds().collect()["fallback_reason"]) == {reason}


def test_withholding_and_filled_cards_ask_for_results_enough_to_fill_every_slot(tmp_path):
    """The retriever gives as many as it is asked for; no context is shorter for what was drawn."""
    held = store(12, [f"m{i}" for i in range(12)])
    for settings in (
        {"withhold": 1},
        {"reference_cards": 6, "card": "ranked"},
        {"withhold": 2, "random_slots": 2},
    ):
        memory = wrapped(tmp_path, held, slots=4, log=tmp_path / f"{len(str(settings))}.db", **settings)
        sizes = Counter(len(memory.retrieve("q", scope="s")) for _ in range(60))
        assert sizes == {4: 60}, settings


def test_rollback_outlives_ids_that_cannot_be_read_and_a_log_that_is_locked(tmp_path):
    memory = wrapped(tmp_path, lambda query: ["a", "b"], random_slots=0, id_of=lambda item: item["id"])
    assert list(memory.retrieve("q", scope="s")) == ["a", "b"]
    memory.flush()
    assert memory.log.rounds().collect().height == 1
    blocker = sqlite3.connect(tmp_path / "x.db", isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    started = time.monotonic()
    for _ in range(10):
        assert list(memory.retrieve("q", scope="s")) == ["a", "b"]
    assert time.monotonic() - started < 3.0
    assert memory.stats()["log_late"] >= 1
    blocker.execute("ROLLBACK")
    blocker.close()


def test_a_hung_listing_costs_the_first_request_its_timeout_and_the_others_nothing(tmp_path):
    data, gate = documents(9), threading.Event()

    def listing():
        gate.wait(20)
        return data

    memory = wrapped(
        tmp_path,
        lambda query: [data["m0"]],
        list_ids=listing,
        get=lambda ids: [data[i] for i in ids],
        scope=cmp.EVERYTHING,
        log_timeout=0.3,
    )
    started = time.monotonic()
    assert served(memory.retrieve("q")) == ["m0"]
    first = time.monotonic() - started
    for _ in range(20):
        assert memory.retrieve("q").fallback_reason == "block_preparing"
    assert 0.25 < first < 5
    assert time.monotonic() - started - first < 2.5
    gate.set()
    deadline = time.monotonic() + 10
    while not memory.retrieve("q").randomized:
        assert time.monotonic() < deadline
        time.sleep(0.01)


class TimeLimitError(Exception):
    """What a task queue raises in a worker's thread."""


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers on this platform")
@pytest.mark.parametrize("error", [TimeLimitError, KeyboardInterrupt])
def test_what_interrupts_a_wait_is_passed_on_and_withdraws_the_round(tmp_path, error):
    memory = wrapped(tmp_path, store(9))
    memory.retrieve("q", scope="s")
    blocker = sqlite3.connect(tmp_path / "x.db", isolation_level=None, check_same_thread=False)
    blocker.execute("BEGIN IMMEDIATE")

    def interrupt(*_):
        raise error

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        with pytest.raises(error):
            memory.retrieve("q", scope="s", round_id="interrupted")
    finally:
        signal.signal(signal.SIGALRM, before)
        blocker.execute("ROLLBACK")
        blocker.close()
    rows = memory.log.exposures().filter(pl.col("round_id") == "interrupted")
    deadline = time.monotonic() + 10
    while rows.collect()["delivered"].any() or memory.flush():  # the withdrawal follows the commit
        assert time.monotonic() < deadline
        rows = memory.log.exposures().filter(pl.col("round_id") == "interrupted")
    again = memory.retrieve("q", scope="s", round_id="interrupted")
    assert again.randomized
    assert len(again) == len(again.items) == 1


def test_a_cancelled_retrieval_leaves_no_delivered_row(tmp_path):
    data = documents(8)

    async def get(ids, scope):
        await asyncio.sleep(30)

    async def search(query):
        return [data["m0"], data["m1"]]

    async def list_ids(scope):
        return data

    memory = wrapped(tmp_path, search, list_ids=list_ids, get=get)

    async def ask():
        task = asyncio.create_task(memory.aretrieve("q", scope="s"))
        while not memory.stats().get("rounds"):
            await asyncio.sleep(0.01)
        task.cancel()
        await task

    for _ in range(6):
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(ask())
    deadline = time.monotonic() + 10
    while memory.log.exposures().collect()["delivered"].any():
        assert time.monotonic() < deadline


def test_a_ranked_memory_of_another_scope_is_neither_served_nor_logged(tmp_path):
    data = {"a1": Document("a1", "A"), "a2": Document("a2", "A"), "b1": Document("b1", "B")}
    memory = wrapped(
        tmp_path,
        lambda query: [data["b1"], data["a1"], data["a2"]],
        list_ids=lambda scope: ["a1", "a2"],
        get=lambda ids, scope: [data[i] for i in ids],
        owner_of=lambda document: document.text,
    )
    for _ in range(8):
        assert "b1" not in served(memory.retrieve("q", scope="A"))
    assert "b1" not in set(memory.log.exposures().collect()["memory_id"])
    assert memory.stats()["fallback.foreign"] == 8
    with pytest.raises(cmp.ScopeError, match="another scope"):
        memory.with_policy(on_error="raise").retrieve("q", scope="A")


def test_versions_of_any_kind_are_hashed_and_harm_nothing(tmp_path):
    from uuid import uuid4

    from cmp.protocols import Hit

    held = store(6)
    odd = {"m0": uuid4(), "m1": "v\ud800", "m2": 7}

    class Odd(type(held)):
        def get(self, ids, *, scope):
            return {i: Hit(i, held.scopes["s"][i], version=odd.get(i)) for i in ids}

    memory = wrapped(tmp_path, Odd(held.scopes), slots=1)
    for _ in range(24):
        context = memory.retrieve("q", scope="s")
        assert context.randomized
        memory.record(context.round_id, 1.0)
    memory.flush()
    hashes = memory.log.exposures().collect()["content_hash"]
    assert set(hashes.str.len_chars()) == {32}
