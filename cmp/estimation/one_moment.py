"""A log's five tables as of one moment, where somebody may be writing to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import polars as pl

from cmp.estimation.settled import LogFrames
from cmp.log.losses import Losses
from cmp.log.reading import Log
from cmp.log.schema import BLOCKS, EXPOSURES, OUTCOMES, ROSTERS, ROUNDS, TABLES, Table

__all__ = ["ReadLog", "Tables", "as_of_one_moment", "at_one_moment"]

L = TypeVar("L", bound=LogFrames)


class Tables:
    """The five tables of a log, as lazy frames of polars or of another engine."""

    def __init__(self, tables: Mapping[Table, Any], has_unique_rows: bool) -> None:
        self._tables, self.has_unique_rows = tables, has_unique_rows

    def rounds(self) -> Any:
        return self._tables[ROUNDS]

    def exposures(self) -> Any:
        return self._tables[EXPOSURES]

    def outcomes(self) -> Any:
        return self._tables[OUTCOMES]

    def blocks(self) -> Any:
        return self._tables[BLOCKS]

    def rosters(self) -> Any:
        return self._tables[ROSTERS]


class ReadLog(Log):
    """A log that has been read: all that it held at one moment, in memory, and what was lost before.

    Parameters
    ----------
    now
        The log as of that moment: what ``log.snapshot()`` holds open.
    losses
        What was lost or set aside before there were tables; a snapshot does not know.
    """

    def __init__(self, now: Log, losses: Losses) -> None:
        self._tables = {table: now.scan(table).collect() for table in TABLES}
        self._meta, self.losses, self.has_unique_rows = dict(now.meta()), losses, now.has_unique_rows

    def __repr__(self) -> str:
        return f"ReadLog({self._tables[ROUNDS].height} rounds)"

    def scan(self, table: Table) -> pl.LazyFrame:
        """Return one table."""
        return self._tables[table].lazy()

    def meta(self) -> Mapping[str, str]:
        """Return the log's ``meta``."""
        return dict(self._meta)


@contextmanager
def at_one_moment(log: L) -> Iterator[L]:
    """Hold a log as of one moment, where it is one that can be: see :meth:`cmp.log.Log.snapshot`."""
    if isinstance(log, Log):
        with log.snapshot() as now:
            yield cast("L", now)
    else:
        yield log


def as_of_one_moment(log: L) -> L | ReadLog:
    """Read the tables of a log that somebody may be writing to, and let go of it; any other is returned as it is.

    An analysis takes longer than the reading, and asks for some tables several times. What was read is a log too.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> mine = SimpleNamespace()
    >>> as_of_one_moment(mine) is mine
    True
    """
    with at_one_moment(log) as now:
        if now is log or not isinstance(log, Log):
            return log
        return ReadLog(cast("Log", now), log.losses)
