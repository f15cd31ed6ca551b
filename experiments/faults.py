"""What is left when things break? ``python -m experiments.faults`` writes ``results/faults.*``.

Every fault is made for real: writers are killed, disks are filled, files cut, locks held, servers killed. Then the log
is held against what its writers were told.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import polars as pl
import typer
from rich.console import Console

from cmp.errors import CmpError
from experiments import fault_backends as backends
from experiments import fault_scenarios as scenarios
from experiments.fault_account import SHOULD_BE_ZERO
from experiments.fault_postgres import postgres_killed
from experiments.fault_scenarios import FULL, SEEDS, SMOKE, Reported, Scale
from experiments.markdown import count, pipe_table
from experiments.records import Run, plain_endings

Fault = Callable[[Path, Scale], Reported | None]

FAULTS: Mapping[str, Fault] = {
    "writers killed": scenarios.writers_killed,
    "writers killed, durability power": partial(scenarios.writers_killed, durability="power"),
    "eight processes on one file": scenarios.eight_processes,
    "file locked": scenarios.locked,
    "disk full": scenarios.disk_full,
    "file read-only": scenarios.read_only,
    "clock set back": scenarios.clock_set_back,
    "torn files": scenarios.torn_files,
    "Postgres killed and restarted": postgres_killed,
    "backend raises": backends.backend_raises,
    "backend answers garbage": backends.backend_garbage,
    "backend deletes under us": backends.backend_deletes,
    "backend hangs": backends.backend_hangs,
    "scopes": backends.scopes_apart,
}


def main(
    smoke: Annotated[bool, typer.Option(help="A corner of every fault, in seconds.")] = False,
    kills: Annotated[int | None, typer.Option(min=1, help="Writers killed; 200 otherwise.")] = None,
    only: Annotated[str, typer.Option(help="Faults whose name holds this.")] = "",
    results: Annotated[Path, typer.Option(help="Where to write.")] = Path("results"),
    allow_dirty: Annotated[bool, typer.Option(help="Run on a changed tree; marks the record.")] = False,
) -> None:
    """Break things and account for what is left; write results/faults.{csv,json,md}."""
    console = Console(stderr=True)
    scale = SMOKE if smoke else FULL
    scale = scale if kills is None else replace(scale, kills=kills)
    with plain_endings(console):
        parameters = {"smoke": smoke, "only": only} | asdict(scale)
        run = Run.start("faults", parameters=parameters, seeds=SEEDS, allow_dirty=allow_dirty)
        rows = [
            row
            for name, fault in FAULTS.items()
            if only in name and (row := broken(name, fault, scale, console)) is not None
        ]
        if not rows:
            raise CmpError(f"no fault is named {only!r}; they are {', '.join(FAULTS)}")
        frame = pl.DataFrame(rows)
        run.write(frame, page(frame, smoke), results_dir=results)
    console.print(f"Wrote {results}/faults.md and its table.")
    if not frame["clean"].all():
        console.print("Not everything that should be 0 is 0.")
        raise typer.Exit(1)


def broken(name: str, fault: Fault, scale: Scale, console: Console) -> dict[str, Any] | None:
    """Make one fault in a folder of its own; return its row, None where it cannot be made here."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="cmp-faults-") as folder, console.status(name):
        reported = fault(Path(folder), scale)
    if reported is None:
        console.print(f"{name}: skipped, it lacks what it needs")
        return None
    found, words = reported
    seconds = time.monotonic() - started
    console.print(f"{name}: {'clean' if found.is_clean else 'NOT CLEAN'}; {words} ({seconds:.0f} s)")
    return {"fault": name, "clean": found.is_clean} | asdict(found) | {"words": words, "seconds": seconds}


def page(frame: pl.DataFrame, smoke: bool) -> str:
    """Return the page."""
    columns = ("requests", "acknowledged", "unlogged", "rounds", "orphan_rosters", *SHOULD_BE_ZERO)
    headers = ["fault", *(name.replace("_", " ") for name in columns), "slowest, ms"]
    rows = [
        [row["fault"], *(count(row[name]) for name in columns), f"{row['slowest_ms']:,.0f}"]
        for row in frame.iter_rows(named=True)
    ]
    words = "\n".join(f"* **{row['fault']}**: {row['words']}." for row in frame.iter_rows(named=True))
    totals = frame.select(pl.col(*SHOULD_BE_ZERO, "requests", "acknowledged").sum()).row(0, named=True)
    summary = ", ".join(f"{totals[name]} {name.replace('_', ' ')}" for name in SHOULD_BE_ZERO)
    return f"""# What is left when things break
{"**A smoke run: a corner of every fault.**" if smoke else ""}

{count(totals["requests"])} requests, {count(totals["acknowledged"])} of them acknowledged as logged: {summary}.

{pipe_table(headers, rows)}

*Unlogged*: answered with the base ranking, saying so, because the log could not take the round. *Rounds*: in the log; a
round that became durable when its writer was dead, or its request had been answered, was acknowledged to nobody, and
is harmless. *Orphan rosters*: stored for blocks that were never opened, by a writer killed in between; nothing reads
them. *Imbalance*: 0 where no two memories of a block differ by more than one in their planned exposures, its rows were
used in order without gap or repeat, and each held what the stored table says.

{words}
"""


if __name__ == "__main__":
    typer.run(main)
