"""What does a table of utilities cost? ``python -m experiments.benchmark_analysis`` writes ``results/*_analysis.*``.

The whole table, from Parquet files with ids of text to states, intervals and q-values, against plain queries that stop
at the sums, and against what people run today. Each in a process of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Final

import polars as pl
import typer
from rich.console import Console
from rich.progress import Progress

from experiments.analysis_log import LogSize, made
from experiments.analysis_page import OURS, PLAIN, analysis_page
from experiments.analysis_peers import PEERS, keys
from experiments.cells import KeptCells
from experiments.records import ROOT, Run, plain_endings

#: What a measurement depends on.
SOURCES: Final = (
    "cmp/estimation",
    "cmp/log",
    "experiments/analysis_log.py",
    "experiments/analysis_peers.py",
    "experiments/benchmark_analysis.py",
    "experiments/rivals.py",
)

FIGURES: Final = (
    "cpu_seconds",
    "wall_seconds",
    "import_seconds",
    "peak_mb",
    "share",
    "rows",
    "largest_difference",
)

#: Of several runs these are told at their worst, all others at their median.
WORST: Final = ("peak_mb", "largest_difference")

#: What takes less CPU than this is noisy: it is run again and again, in turns with the others, and the median told.
SHORT_SECONDS: Final = 3.0

#: So often is run what takes longer, if a goal compares it.
LONG_REPEATS: Final = 3
COMPARED: Final = (OURS, PLAIN)


@dataclass(frozen=True, slots=True)
class Scale:
    """Rows of exposures; how many of them a slow peer is given at most; how often what is short is run."""

    exposures: tuple[int, ...]
    at_most: Mapping[str, int]
    repeats: int


FULL = Scale(
    (10**6, 10**7, 10**8),
    {
        "ours, Spark": 10**7,
        "numpy in memory": 10**7,
        "least squares, HC2": 10**6,
        "bootstrap": 10**6,
    },
    repeats=9,
)
SMOKE = Scale((30_000,), {"ours, Spark": 0}, repeats=1)


def main(
    smoke: Annotated[bool, typer.Option(help="A small log, in seconds.")] = False,
    results: Annotated[Path, typer.Option(help="Where to write.")] = Path("results"),
    cache: Annotated[Path, typer.Option(help="Where logs and measurements already made are kept.")] = Path(
        ".cache/analysis"
    ),
    allow_dirty: Annotated[bool, typer.Option(help="Run on a changed tree; marks the record.")] = False,
) -> None:
    """Measure seconds of CPU and peak memory; write results/benchmark_analysis.{csv,json,md}."""
    console = Console(stderr=True)
    scale = SMOKE if smoke else FULL
    with plain_endings(console, "measurements so far are kept, run again to go on"):
        run = Run.start(
            "benchmark_analysis",
            parameters={"smoke": smoke, "cpus": os.cpu_count(), "load_average": os.getloadavg()}
            | asdict(scale),
            allow_dirty=allow_dirty,
        )
        with Progress(console=console, transient=True) as progress:
            kept = KeptCells.of(cache / "measured", SOURCES)
            rows = list(measured(scale, cache, kept, console, progress))
        frame = with_ratios(pl.DataFrame(rows, infer_schema_length=None))
        run.write(frame, analysis_page(frame, smoke=smoke), results_dir=results)
    console.print(f"Wrote {results}/benchmark_analysis.md and its tables.")


def measured(
    scale: Scale, cache: Path, kept: KeptCells, console: Console, progress: Progress
) -> Iterator[dict[str, Any]]:
    """Yield a row for every size, table and peer."""
    for is_binary in (True, False):
        sizes = scale.exposures if is_binary else scale.exposures[:2]
        for exposures in sizes:
            task = progress.add_task(f"making {exposures:,} exposures", total=None)
            log = made(LogSize(exposures, is_binary=is_binary), cache)
            progress.remove_task(task)
            names = [name for name in PEERS if exposures <= scale.at_most.get(name, exposures)]
            for by in ("memory", "query"):
                outcome = "binary" if is_binary else "continuous"
                task = progress.add_task(f"{exposures:,} exposures by {by}", total=None)
                for name, runs in in_turns(names, scale.repeats, log, by, cache, kept).items():
                    row = told(runs)
                    cost = row["failed"] or f"{row['cpu_seconds']:.1f} s CPU, {row['peak_mb']:,.0f} MB"
                    console.print(f"{name}, {exposures:,} by {by}: {cost}")
                    yield {"exposures": exposures, "outcome": outcome, "by": by, "what": name, **row}
                progress.remove_task(task)


def in_turns(
    names: list[str], repeats: int, log: Path, by: str, cache: Path, kept: KeptCells
) -> dict[str, list[dict[str, Any]]]:
    """Run each peer once, and the short ones again and again in turns, so that all see the same machine."""
    ours = cache / "answers" / f"{log.name}-{by}.parquet"
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for turn in range(repeats):
        for name, before in runs.items():
            if before and turn >= _turns(name, before[0], repeats):
                continue
            key = [log.name, by, name, turn]
            before += kept.rows(key, lambda: [alone(name, log, by, ours)], unless=failed)  # noqa: B023
    return runs


def _turns(name: str, first: dict[str, Any], repeats: int) -> int:
    """Return how often a peer is run, after its first run."""
    if first["failed"]:
        return 1
    if first["cpu_seconds"] <= SHORT_SECONDS:
        return repeats
    return min(repeats, LONG_REPEATS) if name in COMPARED else 1


def told(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the median of each figure of a peer's runs, or its worst; and the least and most CPU that one took."""
    done = [run for run in runs if not run["failed"]]
    if not done:
        return runs[0] | {"runs": 0, "cpu_least": None, "cpu_most": None}
    figures = {name: [run[name] for run in done] for name in FIGURES}
    cpu = figures["cpu_seconds"]
    return {
        **{
            name: None if None in values else (max if name in WORST else median)(values)
            for name, values in figures.items()
        },
        "failed": None,
        "runs": len(done),
        "cpu_least": min(cpu),
        "cpu_most": max(cpu),
    }


def failed(rows: list[dict[str, Any]]) -> bool:
    """Whether a peer did not finish, so that it is tried again next time."""
    return any(row["failed"] for row in rows)


def with_ratios(frame: pl.DataFrame) -> pl.DataFrame:
    """Add how many times the CPU of plain polars each took."""
    same = ["exposures", "outcome", "by"]
    plain = frame.filter(what=PLAIN).select(*same, plain=pl.col("cpu_seconds"))
    joined = frame.join(plain, on=same, how="left", maintain_order="left")
    return joined.with_columns(times_plain=pl.col("cpu_seconds") / pl.col("plain")).drop("plain")


def alone(name: str, log: Path, by: str, ours: Path) -> dict[str, Any]:
    """Run a peer in a process of its own; return its figures, and how far its answer is from ours."""
    with tempfile.TemporaryDirectory(prefix="cmp-benchmark-") as folder:
        out = Path(folder) / "figures.json"
        run = "import sys; from experiments.analysis_peers import main; main(*sys.argv[1:])"
        command = [sys.executable, "-c", run, name, str(log.absolute()), by, str(out)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            lines = done.stderr.strip().splitlines()
            return dict.fromkeys(FIGURES) | {
                "failed": lines[-1] if lines else f"ended with {done.returncode}"
            }
        answer = out.with_suffix(".parquet")
        figures: dict[str, Any] = json.loads(out.read_text("utf-8")) | {
            "failed": None,
            "largest_difference": None,
        }
        if not answer.exists():
            return figures
        if name == OURS:
            ours.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(answer, ours)
        return figures | {
            "largest_difference": difference(pl.read_parquet(ours), pl.read_parquet(answer), by)
        }


def difference(ours: pl.DataFrame, theirs: pl.DataFrame, by: str) -> float | None:
    """Return the largest difference of two answers over the memories that both have."""
    both = ours.join(theirs, on=keys(by), suffix="_theirs").drop_nulls(["utility", "utility_theirs"])
    found = both.select((pl.col("utility") - pl.col("utility_theirs")).abs().max()).item()
    return None if found is None else float(found)


if __name__ == "__main__":
    typer.run(main)
