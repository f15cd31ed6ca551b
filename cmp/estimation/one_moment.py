"""A log's five tables as of one moment, where somebody may be writing to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar, cast

from cmp.estimation.settled import LogFrames
from cmp.log.reading import Log
from cmp.log.schema import BLOCKS, EXPOSURES, OUTCOMES, ROSTERS, ROUNDS, TABLES, Table

__all__ = ["Tables", "as_of_one_moment", "at_one_moment"]

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


@contextmanager
def at_one_moment(log: L) -> Iterator[L]:
    """Hold a log as of one moment, where it is one that can be: see :meth:`cmp.log.Log.snapshot`."""
    if isinstance(log, Log):
        with log.snapshot() as now:
            yield cast("L", now)
    else:
        yield log


def as_of_one_moment(log: LogFrames) -> LogFrames:
    """Read the tables of a log that somebody may be writing to, and let go of it; any other is returned as it is.

    An analysis takes longer than the reading, and asks for some tables several times.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> mine = SimpleNamespace()
    >>> as_of_one_moment(mine) is mine
    True
    """
    with at_one_moment(log) as now:
        if now is log:
            return log
        read = {table: getattr(now, table.name)().collect().lazy() for table in TABLES}
        return Tables(read, getattr(now, "has_unique_rows", False))
