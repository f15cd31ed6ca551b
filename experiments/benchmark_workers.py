"""What a worker of the benchmark does, in a process of its own: ask wrapped and bare, and time each answer."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cmp.log import open_log
from cmp.protocols import Scope
from cmp.serving import RandomizedRetriever
from experiments.fault_writer import SLOTS, Store, wrapped

__all__ = ["Load", "Preparation", "Timed", "ask_and_time", "prepare_block"]

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


@dataclass(frozen=True, slots=True)
class Preparation:
    """How a block was prepared while requests went on.

    Attributes
    ----------
    seconds
        From the first request for the pool to the first that was randomized.
    latencies
        Shape (requests,), seconds each request took meanwhile.
    peak_bytes
        Peak resident memory of the process less what it held before.
    """

    seconds: float
    latencies: npt.NDArray[np.float64]
    peak_bytes: int


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
    """Ask wrapped and then bare, each at the same time as the other workers; save the times."""
    with opened(load) as memory:
        store, scope = Store({SCOPE: load.pool}), Scope.of(SCOPE)
        for _ in range(WARM_UP):
            memory.retrieve("q", scope=SCOPE)
        before = memory.stats()
        together.wait()
        asked = timed(load, number, lambda: memory.retrieve("q", scope=SCOPE))
        after = memory.stats()
        together.wait()
        bare = timed(
            replace(load, seconds=load.seconds / 2), number, lambda: store.search("q", SLOTS, scope=scope)
        )
    unrandomized = len(asked.latencies) - (after["rounds_randomized"] - before["rounds_randomized"])
    np.savez(
        out,
        wrapped=asked.latencies,
        wrapped_seconds=asked.seconds,
        wrapped_cpu=asked.cpu_seconds,
        bare=bare.latencies,
        unrandomized=unrandomized,
    )


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
    """Ask for a pool that nobody has asked for yet, until a request is randomized; save what that took."""
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
