"""Do tests and sequences keep their level? ``python -m experiments.validity`` writes ``results/validity.*``.

P-values where nothing has an effect; false discoveries where half of the memories have none; confidence sequences, and
the usual intervals, looked at after every block. A cell is kept under ``.cache/`` once done, so that an interrupted run
goes on where it was.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import polars as pl
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from experiments.cells import KeptCells
from experiments.records import ROOT, Run, plain_endings
from experiments.validity_families import FAMILIES, SIZES, Family, measure_family
from experiments.validity_nulls import NULL_TESTS, SEED, NullTest
from experiments.validity_page import figure, render
from experiments.validity_sequences import (
    KINDS,
    LOOKS,
    STREAMS,
    TABLE_LOOKS,
    measure_stream,
    measure_tables,
)
from experiments.validity_tallies import GRID, tally_p_values

#: What a cell depends on.
SOURCES = (
    "cmp/estimation", "cmp/foreign", "cmp/design/tables.py", "experiments/worlds.py", "experiments/validity_nulls.py",
    "experiments/validity_families.py", "experiments/validity_sequences.py", "experiments/validity_tallies.py",
    "experiments/validity.py",
)  # fmt: skip

Advance = Callable[[int], None]
Rows = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Amounts:
    """How much is simulated."""

    logs: int
    """A test of p-values."""
    families: int
    """A kind, size and effect."""
    sequences: int
    """A kind of outcomes, each looked at ``looks`` times."""
    looks: int
    tables: int
    """A kind of outcomes, each of memories that share rounds, looked at ``table_looks`` times."""
    table_looks: int

    @classmethod
    def of(cls, draws: int, *, smoke: bool) -> Amounts:
        """Return what goes with so many logs a test: of what takes longer, fewer."""
        if smoke:
            return cls(logs=6, families=4, sequences=20, looks=60, tables=2, table_looks=4)
        return cls(draws, max(2, draws // 3), max(2, 4 * draws // 3), LOOKS, max(2, draws // 75), TABLE_LOOKS)


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of one of the tables."""

    table: str
    title: str
    key: list[Any]
    steps: int
    measure: Callable[[Advance], Rows]


def main(
    smoke: Annotated[bool, typer.Option(help="A few draws of every cell, in seconds.")] = False,
    draws: Annotated[int, typer.Option(min=2, help="Logs a test of p-values; the rest goes with it.")] = 1500,
    results: Annotated[Path, typer.Option(help="Where to write.")] = Path("results"),
    cache: Annotated[Path, typer.Option(help="Cells already done.")] = ROOT / ".cache" / "validity",
    allow_dirty: Annotated[bool, typer.Option(help="Run on a changed tree; marks the record.")] = False,
) -> None:
    """Measure how often what should be rare happens; write results/validity.{csv,json,md,png} and its tables."""
    console = Console(stderr=True)
    amounts = Amounts.of(draws, smoke=smoke)
    cells = all_cells(amounts)
    parameters = {name: getattr(amounts, name) for name in Amounts.__slots__}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with plain_endings(console, "cells so far are kept, run again to go on"):
        run = Run.start(
            "validity", parameters={"smoke": smoke} | parameters, seeds={"all": SEED}, allow_dirty=allow_dirty
        )
        kept, tables = KeptCells.of(cache, SOURCES), dict[str, Rows]()
        with Progress(*columns, console=console) as progress:
            task = progress.add_task("", total=sum(cell.steps for cell in cells))
            for cell in cells:
                progress.update(task, description=cell.title)
                tables.setdefault(cell.table, []).extend(
                    _rows(kept, cell, lambda n: progress.advance(task, n))
                )
        curve = curves(tables["p_values"])
        frames = {name: pl.DataFrame(rows, infer_schema_length=None) for name, rows in tables.items()}
        p_values = frames.pop("p_values").drop("curve")
        page = render(p_values, frames, smoke=smoke)
        more = frames | {"curve": curve}
        run.write(p_values, page, more=more, figure=figure(curve, p_values), results_dir=results)
    console.print(f"Wrote {results}/validity.md, its tables and its figure.")


def _rows(kept: KeptCells, cell: Cell, advance: Advance) -> Rows:
    return kept.rows(
        [cell.table, *cell.key, SEED], lambda: cell.measure(advance), skipped=lambda: advance(cell.steps)
    )


def all_cells(amounts: Amounts) -> list[Cell]:
    """Return the cells of all tables, in the order of the page."""
    return [
        *(_null_cell(test, fixed, amounts.logs) for test in NULL_TESTS for fixed in (True, False)),
        *(_family_cell(family, amounts.families) for family in FAMILIES),
        *(_stream_cell(number, amounts) for number in range(len(STREAMS))),
        *(_table_cell(kind, amounts) for kind in KINDS),
    ]


def _null_cell(test: NullTest, fixed: bool, logs: int) -> Cell:
    def measure(advance: Advance) -> Rows:
        return [measure_null(test, fixed, logs, advance)]

    key = [test.test, test.setting, fixed, test.draws(logs)]
    return Cell("p_values", f"{test.test}: {test.setting}", key, test.draws(logs), measure)


def measure_null(test: NullTest, fixed: bool, logs: int, advance: Advance) -> dict[str, Any]:
    """Draw the design of a test's logs anew; return its row."""
    found = []
    for draw in range(test.draws(logs)):
        found.append(test.p_values(fixed, draw))
        advance(1)
    head = {"test": test.test, "setting": test.setting, "outcomes": "fixed" if fixed else "drawn"}
    return head | tally_p_values(np.concatenate(found))


def _family_cell(family: Family, draws: int) -> Cell:
    key = [family.kind, str(family.size), family.effect, draws]
    title = f"{family.size.memories} memories, {family.kind}, effects of {family.effect:g}"
    # a large family takes as long as five small ones
    steps = 1 if family.size.memories < SIZES[-1].memories else 5
    return Cell(
        "discoveries",
        title,
        key,
        steps * draws,
        lambda advance: measure_family(family, draws, lambda n: advance(steps * n)),
    )


def _stream_cell(number: int, amounts: Amounts) -> Cell:
    stream, count, looks = STREAMS[number], amounts.sequences, amounts.looks
    key = [stream.kind, stream.exposures, stream.drifts, stream.effect, number, count, looks]
    title = f"{looks} looks, {stream.kind}, {stream.exposures} a block"
    return Cell(
        "sequences", title, key, count, lambda advance: measure_stream(stream, count, looks, number, advance)
    )


def _table_cell(kind: str, amounts: Amounts) -> Cell:
    tables, looks = amounts.tables, amounts.table_looks
    steps = 100
    return Cell(
        "tables", f"tables, {looks} looks, {kind}", [kind, tables, looks], steps * tables,
        lambda advance: measure_tables(kind, tables, looks, lambda n: advance(steps * n)),
    )  # fmt: skip


def curves(rows: Rows) -> pl.DataFrame:
    """Return the share of p-values up to each point of the grid, one row a point and test."""
    return pl.DataFrame(
        [
            {
                "test": row["test"],
                "setting": row["setting"],
                "outcomes": row["outcomes"],
                "u": u,
                "share": share,
            }
            for row in rows
            for u, share in zip(GRID, row["curve"], strict=True)
        ]
    )


if __name__ == "__main__":
    typer.run(main)
