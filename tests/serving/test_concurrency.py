"""Threads, processes, forks, pickles and the event loop share one log without losing or doubling a round."""

from __future__ import annotations

import asyncio
import contextvars
import multiprocessing
import os
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import polars as pl
import pytest

import cmp
from tests.serving.stores import AsyncStore, documents, store, wrapped


def random_counts(log) -> list[int]:
    return log.exposures().filter(pl.col("assigned")).collect()["memory_id"].value_counts()["count"].to_list()


def test_threads_share_one_wrapper(location):
    memory = wrapped(location, store(20))
    with ThreadPoolExecutor(16) as pool:
        contexts = list(pool.map(lambda i: memory.retrieve("q", scope="s", round_id=f"r{i}"), range(400)))
    assert len({context.round_id for context in contexts}) == 400
    assert memory.log.rounds().collect().height == 400
    assert random_counts(memory.log) == [20] * 20
    assert cmp.validate_log(memory.log) == []


def test_the_event_loop_serves_what_threads_serve(location):
    memory = wrapped(location, AsyncStore(store(20, ["m1"])))

    async def ask():
        contexts = await asyncio.gather(
            *(memory.aretrieve("q", scope="s", round_id=f"r{i}") for i in range(60))
        )
        await asyncio.gather(*(memory.arecord(context.round_id, 1.0) for context in contexts))
        return contexts

    contexts = asyncio.run(ask())
    assert all(context.randomized for context in contexts)
    assert memory.log.outcomes().collect().height == 60
    assert cmp.validate_log(memory.log) == []


def test_an_asynchronous_backend_is_refused_synchronously_with_the_way_out(tmp_path):
    with pytest.raises(TypeError, match="await aretrieve"):
        wrapped(tmp_path, AsyncStore(store())).retrieve("q", scope="s")


def test_asynchronous_callables_are_awaited(tmp_path):
    data = documents(8)

    async def search(query, n):
        await asyncio.sleep(0)
        return [data["m1"], data["m2"]][:n]

    async def list_ids(scope):
        return list(data)

    async def get(ids, scope):
        return {i: data[i] for i in ids}

    memory = wrapped(tmp_path, search, list_ids=list_ids, get=get)
    context = asyncio.run(memory.aretrieve("q", scope="s"))
    assert context.randomized
    assert {"m1", "m2"} <= {document.id for document in context}


def test_a_slow_synchronous_store_does_not_hold_the_loop_up_and_sees_context_variables(tmp_path):
    tenant = contextvars.ContextVar("tenant", default="nobody")
    data, seen = documents(8), set()

    def search(query):
        seen.add(tenant.get())
        time.sleep(0.2)
        return []

    memory = wrapped(
        tmp_path, search, list_ids=lambda scope: data, get=lambda ids, scope: [data[i] for i in ids]
    )

    async def ask():
        tenant.set("user-1")
        ticks = 0
        task = asyncio.create_task(memory.aretrieve("q", scope="s"))
        while not task.done():
            await asyncio.sleep(0.01)
            ticks += 1
        return ticks

    assert asyncio.run(ask()) >= 5
    assert seen == {"user-1"}


def test_a_cancelled_retrieval_raises_and_leaves_no_half_round(location):
    data = documents(8)

    async def get(ids, scope):
        await asyncio.sleep(30)

    async def search(query):
        return []

    async def list_ids(scope):
        return data

    memory = wrapped(location, search, list_ids=list_ids, get=get)

    async def ask():
        task = asyncio.create_task(memory.aretrieve("q", scope="s"))
        await asyncio.sleep(0.3)
        task.cancel()
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(ask())
    assert cmp.validate_log(memory.log) == []


def test_a_retry_of_a_cancelled_round_delivers_its_assignment(tmp_path):
    data = documents(8)
    answers = asyncio.Event()

    async def get(ids, scope):
        await answers.wait()
        return [data[i] for i in ids]

    async def search(query):
        return []

    async def list_ids(scope):
        return data

    memory = wrapped(tmp_path, search, list_ids=list_ids, get=get)

    async def ask():
        task = asyncio.create_task(memory.aretrieve("q", scope="s", round_id="r"))
        await asyncio.sleep(0.3)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await asyncio.to_thread(memory.flush)
        before = memory.log.exposures().collect()
        answers.set()
        return before, await memory.aretrieve("q", scope="s", round_id="r")

    before, context = asyncio.run(ask())
    assert before.select("delivered", "reason").rows() == [(False, "cancelled")]
    assert [item.id for item in context.items] == before["memory_id"].to_list()
    assert len(context) == 1
    assert memory.log.exposures().collect().select("delivered", "reason").rows() == [(True, None)]


CHILD = textwrap.dedent("""
    import sys
    from pathlib import Path
    from tests.serving.stores import store, wrapped
    memory = wrapped(Path(sys.argv[1]), store(40), slots=6, random_slots=2, seed=None)
    for i in range(int(sys.argv[3])):
        context = memory.retrieve("q", scope="s", round_id=f"{sys.argv[2]}-{i}")
        assert context.randomized
        print(context.round_id, *sorted(item.id for item in context.items if item.arm == "random"), flush=True)
""")


def start(folder, name, rounds):
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, str(folder), name, str(rounds)], stdout=subprocess.PIPE, text=True
    )


def acknowledged(output: str) -> dict[str, list[str]]:
    """Return what was told in whole lines: a process that is killed may be in the middle of one."""
    lines = [line.split() for line in output.splitlines(keepends=True) if line.endswith("\n")]
    return {round_id: memories for round_id, *memories in lines}


def test_a_killed_writer_loses_no_acknowledged_round(tmp_path):
    processes = [start(tmp_path, f"w{i}", 60 if i < 2 else 10**6) for i in range(4)]
    time.sleep(4)
    for process in processes[2:]:
        process.kill()
    outputs = [process.communicate(timeout=60)[0] for process in processes]
    assert [process.returncode for process in processes[:2]] == [0, 0]
    log = cmp.open_log(tmp_path / "x.db")
    drawn = log.exposures().filter("assigned").group_by("round_id").agg(pl.col("memory_id").sort()).collect()
    logged = dict(drawn.iter_rows())
    for output in outputs:
        told = acknowledged(output)
        assert told
        assert {round_id: logged.get(round_id) for round_id in told} == told
    assert {len(memories) for memories in logged.values()} == {2}
    counts = random_counts(log)
    assert len(counts) == 40
    assert max(counts) - min(counts) <= 2
    assert cmp.validate_log(log) == []


@pytest.mark.parametrize("durability", ["process", "queued"])
def test_a_log_that_closes_amid_requests_loses_and_doubles_nothing(location, durability):
    """Requests go on with the next connection, which nobody opens before the last one is let go of."""
    where = location if isinstance(location, str) else location / "x.db"
    log = cmp.open_log(where, durability=durability, create=True)
    memory = wrapped(location, store(20), log=log, log_timeout=60, max_block_rounds=40)
    told, stop = [], threading.Event()

    def ask():
        while not stop.is_set():
            context = memory.retrieve("q", scope="s")
            memory.record(context.round_id, 1.0)
            told.append((context.round_id, context.fallback_reason))

    with ThreadPoolExecutor(5) as pool:
        askers = [pool.submit(ask) for _ in range(4)]
        for _ in range(30):
            time.sleep(0.02)
            memory.close()
        stop.set()
        for asker in askers:
            asker.result()
    memory.close()
    assert log._session is None
    assert {reason for _, reason in told} == {None}
    rounds = log.rounds().collect()
    assert sorted(rounds["round_id"]) == sorted(round_id for round_id, _ in told)
    assert rounds.select("block_id", "block_row").is_unique().all()
    assert log.outcomes().collect().height == rounds.height
    assert "outcomes_orphaned" not in memory.stats()
    assert cmp.validate_log(log) == []


def ask_ten(memory, name):
    return [memory.retrieve("q", scope="s", round_id=f"{name}-{i}").items[0].id for i in range(10)]


def forked(memory, name, queue):
    queue.put(ask_ten(memory, name))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
def test_forked_workers_draw_different_memories_and_share_the_log(location):
    memory = wrapped(location, store(50), slots=1, seed=None)
    ask_ten(memory, "parent")
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    workers = [context.Process(target=forked, args=(memory, f"w{i}", queue)) for i in range(4)]
    for worker in workers:
        worker.start()
    sequences = {tuple(queue.get()) for _ in workers}
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    assert len(sequences) == 4
    ask_ten(memory, "after")
    assert memory.log.rounds().collect().height == 60
    counts = random_counts(memory.log)
    assert max(counts) - min(counts) <= 1
    assert cmp.validate_log(memory.log) == []


def test_a_reader_holding_a_transaction_does_not_stop_the_writers(tmp_path):
    import sqlite3

    memory = wrapped(tmp_path, store(10))
    memory.retrieve("q", scope="s")
    reader = sqlite3.connect(tmp_path / "x.db", isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM rounds").fetchall()
    threads = [threading.Thread(target=memory.retrieve, args=("q",), kwargs={"scope": "s"}) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    reader.close()
    assert memory.log.rounds().collect().height == 9
