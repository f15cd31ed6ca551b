"""The console command itself: its options in common, and what goes wrong said in a line.

Exit codes: 0, 1 where there are findings, 2 where the call or its input is wrong.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.markup import escape

from cmp.cli.output import Format, errors
from cmp.errors import CmpError

__all__ = [
    "ByOption",
    "FormatOption",
    "LevelOption",
    "LogPath",
    "MetricOption",
    "OutputOption",
    "QrelsOption",
    "app",
    "examples",
    "main",
]

app = typer.Typer(
    name="cmpolicy",
    help="Which retrieved memories actually help? Randomized context slots, one log, honest utilities.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

LogPath = Annotated[
    str,
    typer.Argument(help="A SQLite log, or a directory that `cmpolicy export` wrote.", show_default=False),
]
FormatOption = Annotated[Format, typer.Option("--format", "-f", help="How to write the result.")]
OutputOption = Annotated[
    Path | None, typer.Option("--output", "-o", help="Write to this file.", show_default=False)
]
MetricOption = Annotated[str, typer.Option(help="Which outcome.")]
ByOption = Annotated[
    Literal["memory", "query"], typer.Option(help="A row for each memory, or for each memory and query.")
]
LevelOption = Annotated[float, typer.Option(help="Confidence level.", min=0.5, max=0.9999)]
QrelsOption = Annotated[Path | None, typer.Option(help="Key-memory labels (TREC qrels).", show_default=False)]


def examples(*lines: str) -> str:
    """Return the end of a command's help: calls to copy, a line each."""
    return "\n\n".join(["Examples:", *lines])


def main() -> None:
    """Run ``cmpolicy``; errors that are the input's are one line, not a traceback."""
    try:
        app(prog_name="cmpolicy", standalone_mode=True)
    except (CmpError, ValueError, OSError) as error:
        if isinstance(error, BrokenPipeError):
            sys.exit(0)
        errors().print(f"[bold red]{type(error).__name__}[/]: {escape(str(error))}")
        sys.exit(2)
    except KeyboardInterrupt:
        errors().print("interrupted; what was logged is kept")
        sys.exit(130)
