"""What a worker of the benchmark does, in a process of its own: ask wrapped and bare, and time each answer."""

from __future__ import annotations

import random
import sqlite3
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cmp.log import open_log
from cmp.log.sqlite import SYNCHRONOUS
from cmp.protocols import Scope
from cmp.serving import RandomizedRetriever
from cmp.serving.naming import RoundIds
from experiments.fault_writer import SLOTS, Store, wrapped

__all__ = ["Load", "Timed", "ask_and_time", "prepare_block"]

WARM_UP = 20
SCOPE = "pool"


@dataclass(frozen=True, slots=True)
class Load:
    """What is asked of one log: how large the pool is, by how many threads of a process, how fast and how long.

    ``rate`` is requests a second of each thread; None is flat out.
    """

    log: str
    durability: str
    pool: int
    threads: int
    rate: float | None
    seconds: float


@dataclass(frozen=True, slots=True)
class Timed:
    """Seconds each request took, shape (requests,), and seconds and processor seconds of all together."""

    latencies: npt.NDArray[np.float64]
    seconds: float
    cpu_seconds: float


def opened(load: Load) -> RandomizedRetriever:
    """Wrap a pool and have its first block ready."""
    log = open_log(load.log, durability=load.durability, create=True)
    memory = wrapped(Store({SCOPE: load.pool}), log, exposures_per_block=200 if load.pool < 1000 else 2)
    until = time.monotonic() + 120
    while not memory.retrieve("q", scope=SCOPE).randomized:
        if time.monotonic() > until:
            raise TimeoutError(f"the block of {load.pool} memories was not ready in time")
        time.sleep(0.05)
    return memory


def ask_and_time(load: Load, together: Any, out: Path, number: int) -> None:
    """Ask wrapped, then bare, then write plainly, each at the same time as the other workers; save the times."""
    with opened(load) as memory:
        store, scope = Store({SCOPE: load.pool}), Scope.of(SCOPE)
        for _ in range(WARM_UP):
            memory.retrieve("q", scope=SCOPE)
        write_plainly = plain_writer(load)
        before = memory.stats()
        together.wait()
        asked = timed(load, number, lambda: memory.retrieve("q", scope=SCOPE))
        after = memory.stats()
        together.wait()
        briefly = replace(load, seconds=load.seconds / 2)
        bare = timed(briefly, number, lambda: store.search("q", SLOTS, scope=scope))
        together.wait()
        plain = timed(briefly, number, write_plainly) if write_plainly is not None else None
    unrandomized = len(asked.latencies) - (after["rounds_randomized"] - before["rounds_randomized"])
    np.savez(
        out,
        wrapped=asked.latencies,
        wrapped_seconds=asked.seconds,
        wrapped_cpu=asked.cpu_seconds,
        bare=bare.latencies,
        plain=np.array([]) if plain is None else plain.latencies,
        unrandomized=unrandomized,
    )


def plain_writer(load: Load) -> Callable[[], None] | None:
    """Return what writes a round's rows to a file of its own by sqlite3 alone: nothing drawn, nothing checked.

    It is the least that a durable round costs on this machine. None for logs that are not a SQLite file written at
    once.
    """
    if load.durability == "queued" or "://" in load.log:
        return None
    ids, connections = RoundIds(), threading.local()

    def connection() -> sqlite3.Connection:
        if not hasattr(connections, "mine"):
            mine = sqlite3.connect(f"{load.log}.plain", timeout=60, isolation_level=None)
            mine.execute("PRAGMA journal_mode=WAL")
            mine.execute(f"PRAGMA synchronous={SYNCHRONOUS[load.durability]}")
            mine.execute("CREATE TABLE IF NOT EXISTS rounds (id TEXT PRIMARY KEY, scope TEXT) WITHOUT ROWID")
            mine.execute(
                "CREATE TABLE IF NOT EXISTS exposures (round_id TEXT, memory_id TEXT, propensity REAL, "
                "PRIMARY KEY (round_id, memory_id)) WITHOUT ROWID"
            )
            connections.mine = mine
        found: sqlite3.Connection = connections.mine
        return found

    def write() -> None:
        round_id, session = ids.make(), connection()
        session.execute("BEGIN IMMEDIATE")
        session.execute("INSERT INTO rounds VALUES (?, ?)", (round_id, SCOPE))
        session.executemany(
            "INSERT INTO exposures VALUES (?, ?, ?)", [(round_id, f"m{i}", 1.0) for i in range(SLOTS)]
        )
        session.execute("COMMIT")

    write()
    return write


def timed(load: Load, number: int, ask: Callable[[], object]) -> Timed:
    """Ask from some threads, and time each answer; paced requests arrive at random, as a Poisson process."""
    found: list[list[float]] = [[] for _ in range(load.threads)]
    start, cpu = time.perf_counter(), time.process_time()

    def run(thread: int, latencies: list[float]) -> None:
        end, arrivals = start + load.seconds, random.Random(f"{number}/{thread}")
        due = start + _gap(load, arrivals)
        while (began := time.perf_counter()) < end:
            if load.rate is not None and began < due:
                time.sleep(min(due, end) - began)
                began = time.perf_counter()
            ask()
            latencies.append(time.perf_counter() - began)
            due += _gap(load, arrivals)

    threads = [threading.Thread(target=run, args=part) for part in enumerate(found)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    latencies = np.concatenate([np.asarray(part) for part in found])
    return Timed(latencies, time.perf_counter() - start, time.process_time() - cpu)


def _gap(load: Load, arrivals: random.Random) -> float:
    return 0.0 if load.rate is None else arrivals.expovariate(load.rate)


def prepare_block(log: str, pool: int, out: Path) -> None:
    """Ask for a pool that nobody has asked for yet, until a request is randomized; save what that took.

    ``seconds`` from the first request for the pool to the first that was randomized, ``latencies`` of each request
    meanwhile (seconds), and ``peak_bytes``, peak resident memory of the process less what it held before.
    """
    memory = wrapped(Store({SCOPE: pool, "small": 100}), open_log(log, create=True))
    with memory:
        for _ in range(WARM_UP):
            memory.retrieve("q", scope="small")
        before = _memory("VmRSS")
        _forget_peak()
        latencies = []
        start = time.perf_counter()
        is_ready = False
        while not is_ready:
            began = time.perf_counter()
            is_ready = memory.retrieve("q", scope=SCOPE).randomized
            latencies.append(time.perf_counter() - began)
            time.sleep(0.01)
        seconds = time.perf_counter() - start
        peak = _memory("VmHWM") - before
    np.savez(out, seconds=seconds, latencies=np.asarray(latencies[:-1]), peak_bytes=peak)


def _memory(name: str) -> int:
    """Return a figure of this process's memory in bytes, as Linux keeps it."""
    for line in Path("/proc/self/status").read_text("utf-8").splitlines():
        if line.startswith(f"{name}:"):
            return 1024 * int(line.split()[1])
    raise OSError(f"/proc/self/status has no {name}")


def _forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5", "utf-8")
