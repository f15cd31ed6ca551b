"""Do the intervals cover? ``python -m experiments.intervals`` writes ``results/intervals.*``.

Ours against Neyman's, Welch's, the pooled t and the bootstrap of fixed self-normalized weights, on logs whose truth
is known in closed form. A cell, one kind of outcome at one size, is kept under ``.cache/`` once done, so that an
interrupted run goes on where it was.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import polars as pl
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from cmp.estimation import estimate
from experiments.intervals_page import render
from experiments.records import ROOT, Run, plain_endings
from experiments.rivals import bootstrap_fixed_weights
from experiments.worlds import KINDS, Size, World, make_world

SEED = 20_261_201
SIZES = (Size(90, 32, 2), Size(60, 20, 2), Size(200, 100, 3))
MAIN = ("binary", "rare", "continuous", "heavy")
#: Further kinds, at the first size: where a prior for variances may go wrong.
FURTHER = ("rare-null", "lognormal", "rating", "zero-inflated")
METHODS = ("auto", "neyman", "welch", "pooled", "bootstrap")
RESAMPLES = 1000
#: What a cell depends on: cached cells lie in a folder named for the hash of these files.
SOURCES = (
    "cmp/estimation",
    "cmp/design/tables.py",
    "experiments/intervals.py",
    "experiments/worlds.py",
    "experiments/rivals.py",
)

FloatArray = npt.NDArray[np.float64]
Limits = tuple[FloatArray, FloatArray]


def main(
    smoke: Annotated[bool, typer.Option(help="A few draws of every cell, in seconds.")] = False,
    draws: Annotated[int, typer.Option(min=2, help="Logs a cell.")] = 2000,
    results: Annotated[Path, typer.Option(help="Where to write.")] = Path("results"),
    cache: Annotated[Path, typer.Option(help="Cells already done.")] = ROOT / ".cache" / "intervals",
    allow_dirty: Annotated[bool, typer.Option(help="Run on a changed tree; marks the record.")] = False,
) -> None:
    """Measure coverage and width of intervals; write results/intervals.{csv,json,md}."""
    console = Console(stderr=True)
    draws = 20 if smoke else draws
    parameters = {
        "smoke": smoke, "draws": draws, "level": 0.95, "bootstrap_resamples": RESAMPLES,
        "sizes": [str(size) for size in SIZES], "kinds": {kind: KINDS[kind][0] for kind in (*MAIN, *FURTHER)},
    }  # fmt: skip
    cells = [(kind, size) for size in SIZES for kind in MAIN] + [(kind, SIZES[0]) for kind in FURTHER]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with plain_endings(console, "cells so far are kept, run again to go on"):
        run = Run.start(
            "intervals", parameters=parameters, seeds={"worlds_and_logs": SEED}, allow_dirty=allow_dirty
        )
        sources = source_hash()
        with Progress(*columns, console=console) as progress:
            task = progress.add_task("", total=draws * len(cells))
            rows = []
            for kind, size in cells:
                progress.update(task, description=f"{kind}, {size}")
                rows += cached_cell(kind, size, draws, cache / sources, lambda n: progress.advance(task, n))
        frame = pl.DataFrame(rows)
        run.write(frame, render(frame, draws=draws), results_dir=results)
    console.print(f"Wrote {results}/intervals.md and its table.")


def cached_cell(
    kind: str, size: Size, draws: int, cache: Path, advance: Callable[[int], None]
) -> list[dict[str, Any]]:
    """Return a cell's rows, from the cache where they are there."""
    wanted = json.dumps([kind, str(size), draws, SEED, RESAMPLES, np.__version__])
    path = cache / f"{hashlib.sha256(wanted.encode()).hexdigest()[:24]}.json"
    if path.is_file():
        advance(draws)
        kept: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
        return kept
    rows = measure_cell(kind, size, draws, advance)
    cache.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}")
    partial.write_text(json.dumps(rows), encoding="utf-8")
    partial.replace(path)
    return rows


def source_hash() -> str:
    """Return one hash of the files that a cell's numbers depend on, as they are when the run begins."""
    digest = hashlib.sha256()
    for name in SOURCES:
        place = ROOT / name
        for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def measure_cell(kind: str, size: Size, draws: int, advance: Callable[[int], None]) -> list[dict[str, Any]]:
    """Log a world ``draws`` times and put every method's intervals against the truth."""
    world = make_world(kind, size, SEED)
    limits: dict[str, list[Limits]] = {method: [] for method in METHODS}
    seconds = dict.fromkeys(METHODS, 0.0)
    estimates = []
    for draw in range(draws):
        seed = [SEED, size.rounds, size.memories, list(KINDS).index(kind), draw]
        assigned, outcomes = world.draw(seed)
        for method in METHODS:
            begun = time.perf_counter()
            limits[method].append(interval(method, assigned, outcomes, seed))
            seconds[method] += time.perf_counter() - begun
        estimates.append(outcomes @ (assigned / assigned.sum(0) - ~assigned / (~assigned).sum(0)))
        advance(1)
    return [
        row(world, kind, method, limits[method], np.array(estimates), seconds[method]) for method in METHODS
    ]


def interval(method: str, assigned: npt.NDArray[np.bool_], outcomes: FloatArray, seed: list[int]) -> Limits:
    """Return limits, each (N,); NaN where the method has none."""
    if method == "bootstrap":
        rng = np.random.default_rng([*seed, 2])
        return bootstrap_fixed_weights(assigned, outcomes, assigned.mean(axis=0), rng, resamples=RESAMPLES)
    frame = estimate(assigned, outcomes, interval=method).frame
    low, high = (frame[name].fill_null(np.nan).to_numpy() for name in ("ci_low", "ci_high"))
    return low, high


def row(
    world: World, kind: str, method: str, limits: list[Limits], estimates: FloatArray, seconds: float
) -> dict[str, Any]:
    """Return one row of the table. An undefined interval does not cover, and is not in the mean half width."""
    low, high = (np.array(side) for side in zip(*limits, strict=True))
    covered = ((low <= world.truth) & (world.truth <= high)).mean(axis=0)
    half = (high - low) / 2
    gap = (estimates.mean(axis=0) - world.truth) / (estimates.std(axis=0, ddof=1) / np.sqrt(len(estimates)))
    return {
        "kind": kind, "rounds": world.size.rounds, "memories": world.size.memories, "k": world.size.k,
        "least_exposures": world.size.rounds * world.size.k // world.size.memories, "method": method,
        "draws": len(limits), "mean_coverage": float(covered.mean()), "worst_coverage": float(covered.min()),
        "mean_half_width": float(np.nanmean(half)), "undefined_share": float(np.isnan(half).mean()),
        "milliseconds_a_log": 1000 * seconds / len(limits), "largest_z_against_truth": float(np.abs(gap).max()),
    }  # fmt: skip


if __name__ == "__main__":
    typer.run(main)
