"""How results leave the command line: tables on a terminal, JSON, CSV or Parquet for machines."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

import polars as pl
from rich.console import Console
from rich.markup import escape
from rich.table import Table

__all__ = ["Format", "console", "emit", "errors", "show"]


class Format(StrEnum):
    """Output formats."""

    table = "table"
    json = "json"
    csv = "csv"
    parquet = "parquet"


def console() -> Console:
    """Return the console of results. Off a terminal it does not wrap at 80 columns."""
    return Console(highlight=False) if sys.stdout.isatty() else Console(highlight=False, width=160)


def errors() -> Console:
    """Return the console of messages."""
    return Console(stderr=True, highlight=False)


def emit(frame: pl.DataFrame, output_format: Format, output: Path | None, title: str) -> None:
    """Write a frame in a format, to a file or to standard output."""
    if output_format is Format.table:
        text_console = (
            console() if output is None else Console(file=output.open("w", encoding="utf-8"), width=200)
        )
        show(frame, title, text_console)
        if output is not None:
            text_console.file.close()
    elif output_format is Format.parquet:
        frame.write_parquet(output if output is not None else sys.stdout.buffer)
    else:
        text = (
            frame.write_json() + "\n" if output_format is Format.json else without_formulas(frame).write_csv()
        )
        if output is None:
            sys.stdout.write(text)
        else:
            output.write_text(text, "utf-8")


def show(frame: pl.DataFrame, title: str, where: Console, note: str | None = None) -> None:
    """Print a frame as an aligned table; numbers to the right, what is not known as a dash."""
    table = Table(
        title=escape(title),
        title_justify="left",
        caption=note,
        caption_justify="left",
        box=None,
        pad_edge=False,
    )
    for name, dtype in frame.schema.items():
        table.add_column(
            name, justify="right" if dtype.is_numeric() else "left", no_wrap=name != "text", overflow="fold"
        )
    for row in frame.iter_rows():
        table.add_row(*(_cell(value) for value in row))
    where.print(table)


def lines(rows: Iterable[Sequence[str]], where: Console) -> None:
    """Print rows of aligned text without a header."""
    table = Table(box=None, show_header=False, pad_edge=False)
    for row in rows:
        table.add_row(*(escape(cell) for cell in row))
    where.print(table)


def without_formulas(frame: pl.DataFrame) -> pl.DataFrame:
    """Put an apostrophe before every text cell that a spreadsheet would run as a formula.

    Ids are therefore not byte-exact in CSV; they are in JSON and Parquet.
    """
    formula = "^[=+\\-@\t\r]"
    return frame.with_columns(
        pl.when(pl.col(name).str.contains(formula))
        .then("'" + pl.col(name))
        .otherwise(pl.col(name))
        .alias(name)
        for name, dtype in frame.schema.items()
        if dtype == pl.String
    )


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:+.3f}" if value < 0 else f"{value:.3f}"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return escape(
        "".join(
            character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in str(value)
        )
    )
