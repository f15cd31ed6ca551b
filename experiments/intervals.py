"""Do the intervals cover? ``python -m experiments.intervals`` writes ``results/intervals.*``.

Ours against Neyman's, Welch's, the pooled t and the bootstrap of fixed self-normalized weights, on logs whose truth
is known in closed form; then ours and Neyman's in every design a log can hold, in a second table,
``results/intervals_designs.csv``. A cell, one kind of outcome at one size or in one design, is kept under ``.cache/``
once done, so that an interrupted run goes on where it was.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import polars as pl
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from cmp.estimation import estimate
from experiments.cells import KeptCells
from experiments.designs import DESIGNS
from experiments.designs_measure import METHODS as DESIGN_METHODS
from experiments.designs_measure import measure_design
from experiments.designs_page import render_designs
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
#: What a cell depends on: kept cells lie in a folder named for the hash of these files.
SOURCES = (
    "cmp/estimation",
    "cmp/design/tables.py",
    "experiments/intervals.py",
    "experiments/worlds.py",
    "experiments/rivals.py",
)
#: The same for cells of the second table.
DESIGN_SOURCES = (
    "cmp/estimation",
    "cmp/design",
    "experiments/designs.py",
    "experiments/designs_draw.py",
    "experiments/designs_log.py",
    "experiments/designs_measure.py",
    "experiments/designs_withheld.py",
    "experiments/intervals.py",
    "experiments/worlds.py",
)
#: Logs a cell in a smoke run: of the first table, of the second.
SMOKE, SMOKE_DESIGNS = 10, 2

Row = dict[str, Any]
Measure = Callable[[Callable[[int], None]], list[Row]]

FloatArray = npt.NDArray[np.float64]
Limits = tuple[FloatArray, FloatArray]


def main(
    smoke: Annotated[bool, typer.Option(help="A few draws of every cell, in seconds.")] = False,
    draws: Annotated[int, typer.Option(min=2, help="Logs a cell.")] = 2000,
    results: Annotated[Path, typer.Option(help="Where to write.")] = Path("results"),
    cache: Annotated[Path, typer.Option(help="Cells already done.")] = ROOT / ".cache" / "intervals",
    allow_dirty: Annotated[bool, typer.Option(help="Run on a changed tree; marks the record.")] = False,
) -> None:
    """Measure coverage and width of intervals; write results/intervals.{csv,json,md} and _designs.csv."""
    console = Console(stderr=True)
    first, second = (SMOKE, SMOKE_DESIGNS) if smoke else (draws, draws)
    parameters = {
        "smoke": smoke, "draws": first, "level": 0.95, "bootstrap_resamples": RESAMPLES,
        "sizes": [str(size) for size in SIZES], "kinds": {kind: KINDS[kind][0] for kind in (*MAIN, *FURTHER)},
        "draws_of_designs": {design.key: design.draws(second) for design in DESIGNS},
    }  # fmt: skip
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with plain_endings(console, "cells so far are kept, run again to go on"):
        run = Run.start(
            "intervals", parameters=parameters, seeds={"worlds_and_logs": SEED}, allow_dirty=allow_dirty
        )
        kept, kept_designs = KeptCells.of(cache, SOURCES), KeptCells.of(cache, DESIGN_SOURCES)
        with Progress(*columns, console=console) as progress:
            frame = measure_all(sizes_to_measure(first), kept, progress)
            designs = measure_all(designs_to_measure(second), kept_designs, progress)
        page = "\n\n".join([render(frame, draws=first), render_designs(designs)])
        run.write(frame, page, more={"designs": designs}, results_dir=results)
    console.print(f"Wrote {results}/intervals.md and its tables.")


@dataclass(frozen=True, slots=True)
class Task:
    """A cell to be measured."""

    title: str
    draws: int
    key: list[Any]
    """What it depends on besides sources."""
    measure: Measure
    """Given what to call with the number of logs done, returns rows."""


def sizes_to_measure(draws: int) -> list[Task]:
    """Return the cells of the first table."""
    cells = [(kind, size) for size in SIZES for kind in MAIN] + [(kind, SIZES[0]) for kind in FURTHER]
    return [
        Task(
            f"{kind}, {size}",
            draws,
            [kind, str(size), draws, SEED, RESAMPLES],
            partial(measure_cell, kind, size, draws),
        )
        for kind, size in cells
    ]


def designs_to_measure(draws: int) -> list[Task]:
    """Return the cells of the second table."""
    return [
        Task(
            f"{kind}, {design.key}",
            design.draws(draws),
            [kind, design.key, design.draws(draws), SEED, list(DESIGN_METHODS)],
            partial(measure_design, design, kind, design.draws(draws), SEED),
        )
        for design in DESIGNS
        for kind in design.kinds
    ]


def measure_all(tasks: list[Task], cells: KeptCells, progress: Progress) -> pl.DataFrame:
    """Measure cells, or take them from where they are kept."""
    shown = progress.add_task("", total=sum(task.draws for task in tasks))
    rows: list[Row] = []
    for task in tasks:
        progress.update(shown, description=task.title)

        def advance(logs: int) -> None:
            progress.advance(shown, logs)

        rows += cells.rows(task.key, partial(task.measure, advance), skipped=partial(advance, task.draws))
    return pl.DataFrame(rows, infer_schema_length=None)


def measure_cell(kind: str, size: Size, draws: int, advance: Callable[[int], None]) -> list[Row]:
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
) -> Row:
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
