"""What does a random slot cost? ``python -m experiments.benchmark_serving`` writes ``results/benchmark_serving.*``.

Wrapped against bare, in the same processes one after the other: one thread, four threads, four processes; pools of
100 to a million; every kind of log. The bare retriever does next to nothing, so that what is added stands out.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import polars as pl
import typer
from rich.console import Console

from experiments.benchmark_page import page
from experiments.benchmark_workers import Load, ask_and_time, prepare_block
from experiments.children import barrier, joined, started
from experiments.fault_postgres import server
from experiments.records import Run, plain_endings

LOGS = ("process", "power", "queued", "postgres off", "postgres on")
#: Processes, and threads of each.
WORKERS = {"1 thread": (1, 1), "4 threads": (1, 4), "4 processes": (4, 1)}


@dataclass(frozen=True, slots=True)
class Scale:
    """Pools, logs, the rate of paced requests of a worker, and the seconds of a measurement."""

    pools: tuple[int, ...]
    logs: tuple[str, ...]
    rate: float
    seconds: float
    prepared: int


FULL = Scale((100, 10_000, 1_000_000), LOGS, 25.0, 2.0, 1_000_000)
SMOKE = Scale((100, 2_000), ("process", "queued"), 50.0, 0.3, 30_000)


def main(
    smoke: Annotated[bool, typer.Option(help="Small pools and short runs, in seconds.")] = False,
    results: Annotated[Path, typer.Option(help="Where to write.")] = Path("results"),
    allow_dirty: Annotated[bool, typer.Option(help="Run on a changed tree; marks the record.")] = False,
) -> None:
    """Measure latency and throughput; write results/benchmark_serving.{csv,json,md}."""
    console = Console(stderr=True)
    scale = SMOKE if smoke else FULL
    machine = {"cpus": os.cpu_count(), "load_average": os.getloadavg()}
    with plain_endings(console):
        run = Run.start(
            "benchmark_serving",
            parameters={"smoke": smoke, "machine": machine} | asdict(scale),
            allow_dirty=allow_dirty,
        )
        rows: list[dict[str, Any]] = []
        skipped: list[str] = []
        for kind in scale.logs:
            with log_of(kind) as place:
                if place is None:
                    skipped.append(kind)
                    continue
                rows += measure(kind, *place, scale, console)
        frame, prepared = pl.DataFrame(rows), preparation(scale, console)
        run.write(
            frame, page(frame, prepared, skipped, smoke=smoke), more={"block": prepared}, results_dir=results
        )
    console.print(f"Wrote {results}/benchmark_serving.md and its tables.")


@contextmanager
def log_of(kind: str) -> Iterator[tuple[str, str] | None]:
    """Yield where a log of a kind may lie and its durability; None where this machine has no such log."""
    if kind.startswith("postgres"):
        with server() as found:
            durability = "power" if kind.endswith("on") else "process"
            yield None if found is None else (found.get_uri(), durability)
        return
    with tempfile.TemporaryDirectory(prefix="cmp-benchmark-") as folder:
        yield f"{folder}/x.db", kind


def measure(
    kind: str, location: str, durability: str, scale: Scale, console: Console
) -> Iterator[dict[str, Any]]:
    """Yield a row for every pool, number of workers, and pace; a pool has a log of its own."""
    for pool in scale.pools:
        log = f"{location}&schema=pool{pool}" if "?" in location else f"{location}{pool}"
        for workers, (processes, threads) in WORKERS.items():
            for rate in (scale.rate, None):
                load = Load(log, durability, pool, threads, rate, scale.seconds)
                row = together(load, processes)
                console.print(
                    f"{kind}, {pool:,} memories, {workers}, {'flat out' if rate is None else 'paced'}: "
                    f"p50 {row['added_p50_ms']:.3f} ms, {row['rounds_per_second']:,.0f} rounds/s"
                )
                yield {"log": kind, "pool": pool, "workers": workers, "rate": rate} | row


def together(load: Load, processes: int) -> dict[str, Any]:
    """Run a load in some processes at the same time; return the figures of all."""
    with tempfile.TemporaryDirectory(prefix="cmp-benchmark-") as folder:
        files = [Path(folder) / f"{number}.npz" for number in range(processes)]
        start = barrier(processes)
        joined([started(ask_and_time, load, start, file, number) for number, file in enumerate(files)])
        parts = [dict(np.load(file)) for file in files]
    asked, bare, plain = (
        np.concatenate([part[name] for part in parts]) for name in ("wrapped", "bare", "plain")
    )
    quantiles = {
        f"{name}_p{level}_ms": 1e3 * float(np.quantile(values, level / 100))
        for name, values in (("wrapped", asked), ("bare", bare))
        for level in (50, 99)
    }
    return {
        "requests": asked.size,
        "unrandomized": int(sum(part["unrandomized"] for part in parts)),
        **quantiles,
        "plain_p50_ms": 1e3 * float(np.median(plain)) if plain.size else None,
        "added_p50_ms": quantiles["wrapped_p50_ms"] - quantiles["bare_p50_ms"],
        "added_p99_ms": quantiles["wrapped_p99_ms"] - quantiles["bare_p99_ms"],
        "cpu_ms_per_round": 1e3 * float(sum(part["wrapped_cpu"] for part in parts)) / asked.size,
        "ratio_p50": quantiles["wrapped_p50_ms"] / quantiles["bare_p50_ms"],
        "rounds_per_second": float(sum(part["wrapped"].size / part["wrapped_seconds"] for part in parts)),
    }


def preparation(scale: Scale, console: Console) -> pl.DataFrame:
    """Measure how a large block is prepared while requests go on."""
    with tempfile.TemporaryDirectory(prefix="cmp-benchmark-") as folder:
        out = Path(folder) / "prepared.npz"
        joined([started(prepare_block, f"{folder}/x.db", scale.prepared, out)])
        read = dict(np.load(out))
    seconds, latencies = float(read["seconds"]), read["latencies"]
    meanwhile = latencies if latencies.size else np.array([np.nan])
    console.print(f"a block of {scale.prepared:,} memories in {seconds:.1f} s")
    return pl.DataFrame(
        {
            "pool": [scale.prepared],
            "seconds": [seconds],
            "requests_meanwhile": [latencies.size],
            "meanwhile_p50_ms": [1e3 * float(np.quantile(meanwhile, 0.5))],
            "meanwhile_p99_ms": [1e3 * float(np.quantile(meanwhile, 0.99))],
            "meanwhile_max_ms": [1e3 * float(meanwhile.max())],
            "peak_extra_mb": [int(read["peak_bytes"]) / 1e6],
        }
    ).fill_nan(None)


if __name__ == "__main__":
    typer.run(main)
