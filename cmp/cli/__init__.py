"""The command line, ``cmpolicy``."""

from cmp.cli.commands import app, main

__all__ = ["app", "main"]
