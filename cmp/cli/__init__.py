"""The command line, ``cmpolicy``."""

from cmp.cli import commands, judging  # noqa: F401 (they add their commands to the app)
from cmp.cli.application import app
from cmp.cli.endings import main

__all__ = ["app", "main"]
