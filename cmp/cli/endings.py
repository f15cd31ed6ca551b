"""How the console command ends: its exit code, and whatever went wrong in one line."""

from __future__ import annotations

import os
import sqlite3
import sys
import traceback
from contextlib import suppress
from typing import Final, TextIO

import polars as pl
import typer
from narwhals.exceptions import NarwhalsError

from cmp.cli import commands, judging  # noqa: F401 (they add their commands to the app)
from cmp.cli.application import app
from cmp.cli.output import errors, harmless
from cmp.errors import CmpError

__all__ = ["app", "main"]

FAILED: Final = 2
INTERRUPTED: Final = 130
UNREAD: Final = 141

#: A longer message is cut; its end is the least of it (a query's plan, a frame).
AT_MOST: Final = 2000

#: Set to anything, it adds where in the program an error came from.
TRACEBACK: Final = "CMPOLICY_TRACEBACK"

#: A wrong call, whichever version of click raises it.
_UsageError: Final[type[Exception]] = typer.BadParameter.__mro__[1]


def main() -> None:
    """Run ``cmpolicy`` and exit; whatever goes wrong is one line on standard error."""
    code = _ended()
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError as error:
            _discard(stream)
            if code == 0:  # what was found was not told
                code = UNREAD if isinstance(error, BrokenPipeError) else _said(error)
    sys.exit(code)


def _ended() -> int:
    try:
        code = app(prog_name="cmpolicy", standalone_mode=False)
    except (SystemExit, BrokenPipeError):
        # typer and rich raise the former, with 1, where nobody reads on; no command does
        _discard(sys.stdout)
        return UNREAD
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except (Exception, pl.exceptions.PanicException) as error:  # noqa: BLE001  an exit code of 1 would be findings
        return _said(error)
    if code == INTERRUPTED:
        _say("interrupted; what was logged is kept")
    return code if isinstance(code, int) else 0


def _said(error: BaseException) -> int:
    """Say what went wrong, and return the exit code."""
    if os.environ.get(TRACEBACK):
        traceback.print_exception(error)
    if isinstance(error, _UsageError):
        _say_usage(error)
        return FAILED
    what = " ".join(str(error).split())
    what = what if len(what) <= AT_MOST else what[: AT_MOST - 1] + "\N{HORIZONTAL ELLIPSIS}"
    name = type(error).__name__
    # narwhals' are ValueErrors too
    if isinstance(error, pl.exceptions.PolarsError | NarwhalsError | sqlite3.Error):
        mend = ". The log holds what a log does not, or its file is damaged: `cmpolicy validate` says what and where"
    elif isinstance(error, CmpError | ValueError | OSError):
        mend = ""
    else:
        mend = f". This was not foreseen: with {TRACEBACK}=1 the same call says where it happened; please report that"
    _say(f"[bold red]{name}[/]: {harmless((what or 'no more is known') + mend)}")
    return FAILED


def _say_usage(error: Exception) -> None:
    context, parameters = getattr(error, "ctx", None), getattr(error, "format_message", error.__str__)()
    if type(error).__name__ == "NoArgsIsHelpError":  # the message is the help, where click has not printed it
        if parameters.strip():
            _say(harmless(parameters))
        return
    command = getattr(context, "command_path", "cmpolicy")
    told = " ".join(parameters.split())
    told += "" if told.endswith((".", "?", "!")) else "."
    _say(f"[bold red]{harmless(command)}[/]: {harmless(told)} See {harmless(command)} --help")


def _say(text: str) -> None:
    with suppress(OSError, SystemExit):
        errors().print(text, soft_wrap=True)


def _discard(stream: TextIO) -> None:
    """Let what is left in a stream that nobody reads, or that has no space, go nowhere when the interpreter ends."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
