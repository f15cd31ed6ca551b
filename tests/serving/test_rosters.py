"""Rosters are renewed when they should be, beside the requests, once at a time."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

import cmp
from tests.serving.stores import Document, Store, documents, wrapped


class Revised(Store):
    """A store with a change token."""

    token = 0
    slow = 0.0

    def revision(self, *, scope):
        time.sleep(self.slow)
        return self.token


def until(condition, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def knows(memory, memory_id):
    memory.retrieve("q", scope="s")
    return memory_id in set(memory.log.rosters().collect()["memory_id"])


def test_a_changed_token_brings_new_memories_in(tmp_path):
    held = Revised({"s": documents(40)})
    memory = wrapped(tmp_path, held, exposures_per_block=50)
    for _ in range(3):
        memory.retrieve("q", scope="s")
    held.scopes["s"]["new"] = Document("new", "text")
    for _ in range(5):
        memory.retrieve("q", scope="s")
    assert not knows(memory, "new")
    held.token = 1
    until(lambda: knows(memory, "new"))


def test_a_listing_that_failed_is_tried_again(tmp_path):
    held = Revised({"s": documents(40)})
    memory = wrapped(tmp_path, held, exposures_per_block=50)
    memory.retrieve("q", scope="s")
    listing, held.list_ids = held.list_ids, None
    held.scopes["s"]["new"] = Document("new", "text")
    held.token = 1
    until(lambda: memory.retrieve("q", scope="s") and memory.stats().get("refresh_failed"))
    held.list_ids = listing
    until(lambda: knows(memory, "new"))


def test_what_changed_while_nobody_ran_is_found_on_first_sight(tmp_path):
    held = Revised({"s": documents(40)})
    first = wrapped(tmp_path, held, exposures_per_block=50)
    first.retrieve("q", scope="s")
    first.close()
    held.scopes["s"]["new"] = Document("new", "text")
    del held.scopes["s"]["m3"]
    held.token = 9
    second = wrapped(tmp_path, held, exposures_per_block=50)
    until(lambda: knows(second, "new"))
    assert "m3" not in second.log.open_rosters("s").result()


def test_a_slow_token_does_not_hold_the_loop_up(tmp_path):
    held = Revised({"s": documents(10)})
    held.slow = 0.3
    memory = wrapped(tmp_path, held)

    async def ask():
        longest, last = 0.0, time.monotonic()
        task = asyncio.create_task(memory.aretrieve("q", scope="s"))
        while not task.done():
            await asyncio.sleep(0.005)
            now = time.monotonic()
            longest, last = max(longest, now - last), now
        return longest

    assert asyncio.run(ask()) < 0.25


def test_an_asynchronous_token_is_awaited(tmp_path):
    class Awaited(Store):
        async def revision(self, *, scope):
            return 5

    held = Awaited({"s": documents(10)})
    memory = wrapped(tmp_path, held)

    async def ask():
        for _ in range(10):
            assert (await memory.aretrieve("q", scope="s")).randomized
        await asyncio.sleep(0.2)

    asyncio.run(ask())
    assert len(held.listed) <= 3


def test_one_listing_at_a_time_however_long_it_hangs(tmp_path):
    data, gate, calls = documents(9), threading.Event(), []

    def listing():
        calls.append(1)
        if len(calls) > 1:
            gate.wait(20)
        return data

    memory = wrapped(
        tmp_path,
        lambda query: [],
        list_ids=listing,
        get=lambda ids: [data[i] for i in ids],
        scope=cmp.EVERYTHING,
        roster_ttl=0.01,
        exposures_per_block=50_000,
    )
    started = time.monotonic()
    while time.monotonic() - started < 0.6:
        assert memory.retrieve("q").randomized
    assert len(calls) <= 2
    gate.set()


def test_a_large_block_is_opened_though_the_loop_that_asked_has_ended(tmp_path):
    data = {f"m{i}": i for i in range(30_000)}
    memory = cmp.wrap(
        lambda query: [],
        list_ids=lambda: data,
        get=lambda ids: list(ids),
        slots=1,
        random_slots=1,
        log=tmp_path / "x.db",
        scope=cmp.EVERYTHING,
    )
    assert asyncio.run(memory.aretrieve("q")).fallback_reason == "block_preparing"
    until(lambda: memory.retrieve("q").randomized, 60)
    assert "blocks_failed" not in memory.stats()


def test_a_refresh_brings_a_roster_up_to_date_on_the_loop_and_off_it(tmp_path):
    held = Store({"s": documents(10)})
    memory = wrapped(tmp_path, held, exposures_per_block=50)
    for ask in (memory.refresh, lambda scope: asyncio.run(memory.arefresh(scope))):
        memory.retrieve("q", scope="s")
        held.scopes["s"][f"new{len(held.listed)}"] = Document("new", "text")
        held.scopes["s"].pop(next(iter(held.scopes["s"])))
        assert ask("s") == (1, 1)
    assert memory.retrieve("q", scope="s").randomized


def test_a_refresh_passes_on_what_kept_it_from_listing(tmp_path):
    class Away(Store):
        def list_ids(self, *, scope):
            if self.listed:
                raise ConnectionError("away")
            return super().list_ids(scope=scope)

    memory = wrapped(tmp_path, Away({"s": documents(10)}))
    memory.retrieve("q", scope="s")
    for ask in (memory.refresh, lambda scope: asyncio.run(memory.arefresh(scope))):
        with pytest.raises(ConnectionError, match="away"):
            ask("s")
