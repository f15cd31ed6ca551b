"""A log in a database as of one moment, whoever writes to it meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import polars as pl

from cmp.errors import LogCorruptedError
from cmp.log.reading import Log
from cmp.log.schema import Table

__all__ = ["ROWS_READ_AT_ONCE", "Snapshot", "frame_of", "put_together"]

#: Rows that are Python objects at one time: as such they take several times the room of a frame.
ROWS_READ_AT_ONCE: Final = 50_000


class Snapshot(Log):
    """A log as it stood at one moment: what ``log.snapshot()`` holds open.

    Parameters
    ----------
    meta
        Its ``meta``, of that moment.
    read
        Returns a table's rows, in portions, each with the types of the schema.
    """

    def __init__(self, meta: Mapping[str, str], read: Callable[[Table], Generator[pl.DataFrame]]) -> None:
        self._meta, self._read = dict(meta), read
        self._half_read: list[Generator[pl.DataFrame]] = []
        self._is_over = False

    def __repr__(self) -> str:
        return f"Snapshot({'over' if self._is_over else 'open'})"

    def scan(self, table: Table) -> pl.LazyFrame:
        """Read one table."""
        return put_together(self.portions(table), table)

    def portions(self, table: Table) -> Iterator[pl.DataFrame]:
        """Read one table some rows at a time, in order."""
        self._refuse_if_over()
        reading = self._read(table)
        self._half_read.append(reading)
        try:
            portion = pl.DataFrame(schema=table.frame_schema)
            for portion in reading:
                yield portion
                self._refuse_if_over()  # a table cut short by the end must not pass for a whole one
            if not portion.height:
                yield portion
        finally:
            self._half_read.remove(reading)

    def meta(self) -> Mapping[str, str]:
        """Return the log's ``meta``."""
        return dict(self._meta)

    def end(self) -> None:
        """Refuse to be read from now on, and leave what is half read: the connection is about to close."""
        self._is_over = True
        for reading in tuple(self._half_read):
            # a connection may be lost, or a thread read still, which is told then
            with suppress(Exception):
                reading.close()

    def _refuse_if_over(self) -> None:
        if self._is_over:
            raise ValueError("this snapshot is over: read within `with log.snapshot() as now:`")


def frame_of(
    rows: Sequence[Sequence[Any]], table: Table, stored: Mapping[str, Any], where: str
) -> pl.DataFrame:
    """Return rows of a database as a frame with the types of the schema.

    Parameters
    ----------
    rows, table
        The rows, in the order of the table's columns.
    stored
        The types that the database keeps its columns in.
    where
        The log, for who is told.

    Raises
    ------
    LogCorruptedError
        Where a value is not of its column's type, as databases without strict types may have it.
    """
    try:
        frame = pl.DataFrame(rows, schema=stored, orient="row")
        return frame.cast(dict(table.frame_schema))  # type: ignore[arg-type]
    except (TypeError, OverflowError, pl.exceptions.PolarsError) as error:
        raise LogCorruptedError(
            f"{where} holds a value in its {table.name} that is not of its column's type ({error}). Nothing was "
            "changed"
        ) from error


def put_together(portions: Iterable[pl.DataFrame], table: Table) -> pl.LazyFrame:
    """Return a table's portions as one frame."""
    return pl.concat([pl.DataFrame(schema=table.frame_schema), *portions]).lazy()
