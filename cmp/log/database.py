"""What a database says of itself, so that one writer serves them all: how to begin, and what its errors mean."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import polars as pl

from cmp.log.queueing import Queued
from cmp.log.reading import Log
from cmp.log.schema import Table
from cmp.log.snapshot import Snapshot, put_together
from cmp.log.transactions import Session

__all__ = ["Database", "NotNowError"]


class NotNowError(Exception):
    """The database is taken; who cannot wait leaves it to the writer thread, which can."""


class Database(Log):
    """A log that can be read, and what writing to it needs; no thread and no state of its own."""

    #: Whether rounds are acknowledged before they are durable.
    queues = False
    #: Whether a transaction is so short that a request may do it itself, in its own thread.
    _is_prompt = False
    #: Set by a commit after which ``_tidy`` is due.
    _is_untidy = False

    def meta(self) -> Mapping[str, str]:
        """Return the schema version, and the library versions and generator that created the log."""
        with self._reader() as reader:
            return self._meta(reader)

    def scan(self, table: Table) -> pl.LazyFrame:
        """Read one table as it stands now."""
        with self._reader() as reader:
            return put_together(self._portions(reader, table), table)

    @contextmanager
    def snapshot(self) -> Iterator[Log]:
        """Hold the log as of one moment: see :meth:`cmp.log.Log.snapshot`."""
        with self._reader(of_one_moment=True) as reader:
            meta = self._meta(reader)  # the first read fixes the moment
            now = Snapshot(meta, partial(self._portions, reader))
            try:
                yield now
            finally:
                now.end()

    @abstractmethod
    def _reader(self, *, of_one_moment: bool = False) -> AbstractContextManager[Any]:
        """Open a connection to read by; all that one ``of_one_moment`` reads is as it stood at its first read."""

    @abstractmethod
    def _meta(self, reader: Any) -> Mapping[str, str]: ...

    @abstractmethod
    def _portions(self, reader: Any, table: Table) -> Generator[pl.DataFrame]:
        """Read a table some rows at a time, in order."""

    @abstractmethod
    def _connect(self) -> Session:
        """Open a session for the writer thread, creating the log's tables where there are none."""

    @abstractmethod
    def _begin(self, session: Session, *, patient: bool = True) -> None:
        """Begin to write; who is not patient raises ``NotNowError`` where others write for longer than a moment."""

    @abstractmethod
    def _commit(self, session: Session) -> None: ...

    @abstractmethod
    def _roll_back(self, session: Session) -> None: ...

    @abstractmethod
    def _disconnect(self, session: Session) -> None: ...

    def _tidy(self, session: Session) -> None:
        """Do what keeps the database quick; asked for after ``_is_untidy`` was set, apart from any request."""

    def _is_passing(self, error: BaseException) -> bool:
        """Whether a transaction that failed so may succeed when tried again at once."""
        return False

    def _is_broken(self, error: BaseException) -> bool:
        """Whether the session is of no use after this error."""
        return False

    def _is_unwritable(self, error: BaseException) -> bool:
        """Whether a statement that failed so was given what the database can never keep."""
        return isinstance(error, (TypeError, ValueError, OverflowError))

    def _explained(self, error: BaseException) -> Exception | None:
        """Return what to raise in place of a driver's error, where that says too little."""
        return None

    def _check(self, queued: Queued) -> None:
        """Refuse a round that the database could not keep, before it is acknowledged."""
