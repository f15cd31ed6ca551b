"""How results leave the command line: tables on a terminal, JSON, CSV or Parquet for machines."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any

import polars as pl
from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cmp.cli.digits import number_formats
from cmp.log.replacing import write_whole

__all__ = ["Format", "console", "emit", "errors", "harmless", "printable", "show", "working"]

#: Columns of text are at least this wide before a table grows beyond the terminal.
FOLDED = 12


class Format(StrEnum):
    """Output formats."""

    table = "table"
    json = "json"
    csv = "csv"
    parquet = "parquet"


def console() -> Console:
    """Return the console of results."""
    return _console()


def errors() -> Console:
    """Return the console of messages."""
    return _console(stderr=True)


def _console(**options: Any) -> Console:
    """Return a console that changes no text: an id such as ``user:memo:1`` holds no emoji."""
    return Console(highlight=False, emoji=False, **options)


def printable(text: str, but: str = "") -> str:
    """Replace what would act on a terminal and not be seen there: control characters, save those of ``but``."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in but else "\N{REPLACEMENT CHARACTER}" for c in text)


def harmless(text: object) -> str:
    """Return a text, of lines, as a console prints it: nothing in it is markup or acts on the terminal."""
    return escape(printable(str(text), but="\n"))


@contextmanager
def working(what: str, where: Console | None = None) -> Iterator[None]:
    """Show, on a terminal, what is being done and for how long: for work whose end cannot be told."""
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    where = where or errors()
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=where, transient=True, disable=not where.is_terminal) as progress:
        progress.add_task(what, total=None)
        yield


def emit(frame: pl.DataFrame, output_format: Format, output: Path | None, title: str) -> None:
    """Write a frame in a format, to a file or to standard output."""
    if output_format is Format.table:
        if output is None:
            show(frame, title, console())
        else:
            text = io.StringIO()
            show(frame, title, _console(file=text))
            write_whole(output, text.getvalue().encode())
    elif output_format is Format.parquet:
        whole = io.BytesIO()
        frame.write_parquet(whole)
        if output is not None:
            write_whole(output, whole.getvalue())
        else:
            sys.stdout.buffer.write(whole.getbuffer())
    else:
        lines = (
            frame.write_json() + "\n" if output_format is Format.json else without_formulas(frame).write_csv()
        )
        if output is None:
            sys.stdout.write(lines)
        else:
            write_whole(output, lines.encode())


def show(frame: pl.DataFrame, title: str, where: Console) -> None:
    """Print a frame as an aligned table; numbers to the right and always whole, what is not known as a dash.

    Text folds where the terminal is narrow. Where not even the numbers fit, and off a terminal, lines are as long as
    they must be: a digit that is cut off would be another number.
    """
    formats = number_formats(frame)
    cells = [[_cell(value, formats.get(name, str)) for value in frame[name]] for name in frame.columns]
    widths = [
        max([len(name), *map(cell_len, column)]) for name, column in zip(frame.columns, cells, strict=True)
    ]
    folds = [not dtype.is_numeric() for dtype in frame.dtypes]
    least = [min(width, FOLDED) if fold else width for width, fold in zip(widths, folds, strict=True)]
    table = Table(title=harmless(title), title_justify="left", box=None, pad_edge=False)
    for name, fold, width in zip(frame.columns, folds, least, strict=True):
        table.add_column(
            escape(name),
            justify="left" if fold else "right",
            no_wrap=not fold,
            overflow="fold",
            min_width=width,
        )
    for row in zip(*cells, strict=True):
        table.add_row(*map(escape, row))
    gaps = 2 * len(widths)
    on_terminal = where.is_terminal
    needed = sum(least if on_terminal else widths) + gaps
    where.width = max(where.width, needed)
    where.print(table, crop=False)


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


def _cell(value: Any, written: Callable[[float], str]) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return written(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return printable(str(value))
