"""The console command itself: its options in common.

Exit codes: 0; 1 where there are findings; 2 where the call or its input is wrong, or the work failed; 130 where it was
interrupted; 141 where whatever read its output stopped reading.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal

import typer

from cmp.cli.output import Format

__all__ = [
    "LOGS",
    "ByOption",
    "FormatOption",
    "LevelOption",
    "LogPath",
    "MetricOption",
    "OutputOption",
    "QrelsOption",
    "app",
    "examples",
]

app = typer.Typer(
    name="cmpolicy",
    help="Which retrieved memories actually help? Randomized context slots, one log, honest utilities.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

#: What is a log, as open_log knows it.
LOGS: Final = (
    "A SQLite log, a directory that `cmpolicy export` wrote, a .jsonl file of a JsonlSink, or "
    "postgresql://user@host/database."
)

LogPath = Annotated[str, typer.Argument(help=LOGS, show_default=False)]
FormatOption = Annotated[
    Format,
    typer.Option(
        "--format",
        "-f",
        help="How to write the result. In csv, text that begins with = + - @ (an id, too) gets an apostrophe before "
        "it, or a spreadsheet would run it; json and parquet have it as it is.",
    ),
]
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
