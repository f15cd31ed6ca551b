"""The log in one SQLite file: any number of processes on one host, one writer thread in each.

Write-ahead logging, one transaction a round, ``BEGIN IMMEDIATE``. A round is durable against the death of the
process before its future is done. Never put the file on a network file system.
"""

from __future__ import annotations

import atexit
import os
import platform
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import polars as pl

from cmp.design import GENERATOR, Block
from cmp.errors import LogCorruptedError
from cmp.log import transactions
from cmp.log.reading import Log
from cmp.log.records import AssignedRound, Compose, Exposure, Request, StreamState
from cmp.log.schema import SCHEMA_VERSION, TABLES, Table, check_version

__all__ = ["SQLiteLog"]

T = TypeVar("T")

SYNCHRONOUS: Final = {"process": "NORMAL", "power": "FULL"}
BUSY_SECONDS: Final = 10.0

_SQL_TYPES: Final[dict[Any, str]] = {
    pl.String: "TEXT",
    pl.Float64: "REAL",
    pl.Binary: "BLOB",
}

# A connection inherited over fork must be neither used nor closed: closing it would touch the parent's files.
_inherited: list[sqlite3.Connection] = []


class SQLiteLog(Log):
    """A log in a SQLite file; see :class:`cmp.log.records.LogStore` for what serving asks of it.

    Parameters
    ----------
    path
        The file. It is created by the first write, or by ``create``.
    durability
        ``"process"`` survives the death of the process; ``"power"`` survives the loss of power too, and is slower.
    create
        Create the file where it is absent; otherwise an absent file is an error.

    Raises
    ------
    FileNotFoundError, LogCorruptedError, LogVersionError
        Where there is no such file, it is no log, or a newer version wrote it.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, durability: str = "process", create: bool = False
    ) -> None:
        if durability not in SYNCHRONOUS:
            raise ValueError(
                f"durability is {durability!r}; it is one of {', '.join(map(repr, SYNCHRONOUS))}"
            )
        self.path = Path(path).absolute()
        self.durability = durability
        self._reset()
        _reset_after_fork(self)
        atexit.register(_flush_at_exit, weakref.ref(self))
        if create and not self.path.exists():
            self._submit(lambda connection: None).result()
        elif not self.path.exists():
            raise FileNotFoundError(
                f"there is no log at {self.path}; check the path, or let cmp.wrap create it"
            )
        self.meta()

    def _reset(self) -> None:
        connection = getattr(self, "_connection", None)
        if connection is not None:
            _inherited.append(connection)
        self._lock = threading.Lock()
        self._executor: ThreadPoolExecutor | None = None
        self._connection: sqlite3.Connection | None = None
        self._blocks: dict[str, Block] = {}
        self._notes: list[tuple[str, str, str]] = []

    def __repr__(self) -> str:
        return f"SQLiteLog({str(self.path)!r})"

    def __reduce__(self) -> tuple[Callable[[], SQLiteLog], tuple[()]]:
        return partial(SQLiteLog, self.path, durability=self.durability, create=True), ()

    # -- reading ------------------------------------------------------------------------------------------------

    def meta(self) -> Mapping[str, str]:
        """Return the schema version, and the library versions and generator that created the log."""
        rows = self._read("SELECT key, value FROM meta")
        found = {str(key): str(value) for key, value in rows}
        check_version(found.get("schema_version"), str(self.path))
        return found

    def scan(self, table: Table) -> pl.LazyFrame:
        """Read one table as it stands now."""
        names = ", ".join(f'"{name}"' for name in table.names)
        rows = self._read(f'SELECT {names} FROM "{table.name}" ORDER BY rowid')  # noqa: S608 (names of the schema)
        stored = {name: _stored_dtype(dtype) for name, dtype in table.frame_schema.items()}
        frame = pl.DataFrame(rows, schema=stored, orient="row")
        return frame.lazy().cast(dict(table.frame_schema))  # type: ignore[arg-type]

    def _read(self, query: str) -> list[tuple[Any, ...]]:
        try:
            with closing(
                sqlite3.connect(f"{self.path.as_uri()}?mode=ro", uri=True, timeout=BUSY_SECONDS)
            ) as reader:
                return reader.execute(query).fetchall()
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError) and "no such table" not in str(error):
                raise
            raise LogCorruptedError(
                f"{self.path} cannot be read as a log ({error}). Nothing was changed. If it was copied while in use, "
                "copy it again with its -wal file; `cmpolicy validate` says what can still be read"
            ) from error

    # -- writing ------------------------------------------------------------------------------------------------

    def assign(self, request: Request, compose: Compose) -> Future[AssignedRound | None]:
        """Take the stream's next row and log the round, in one transaction."""
        return self._submit(lambda c: transactions.assign(c, request, compose, self._block))

    def stream_state(self, stream: str) -> Future[StreamState]:
        """Return where the stream stands."""
        return self._submit(lambda c: transactions.stream_state(c, stream))

    def open_block(
        self, stream: str, scope: str, group: str | None, block: Block, ordinal: int
    ) -> Future[bool]:
        """Store a block, unless another worker has opened one of this ordinal first."""
        return self._submit(lambda c: transactions.open_block(c, stream, scope, group, block, ordinal))

    def amend(self, round_id: str, exposures: Sequence[Exposure]) -> Future[None]:
        """Replace or add exposure rows of a logged round."""
        return self._submit(lambda c: transactions.amend(c, round_id, exposures))

    def note_contents(self, round_id: str, hashes: Mapping[str, str]) -> None:
        """Note content hashes, to be written with the next transaction."""
        notes = [(content, round_id, memory_id) for memory_id, content in hashes.items()]
        with self._lock:
            self._notes.extend(notes)

    def remove(self, scope: str, ids: Sequence[str]) -> Future[int]:
        """Take deleted memories out of the scope's open blocks."""
        return self._submit(lambda c: transactions.remove(c, scope, ids))

    def outcome(self, round_id: str, metric: str, value: float, at: datetime, correct: bool) -> Future[bool]:
        """Record an outcome; False where the round is unknown."""
        return self._submit(lambda c: transactions.outcome(c, round_id, metric, value, at, correct))

    def exposures_of(self, round_id: str) -> Future[tuple[Exposure, ...]]:
        """Return the exposures of a logged round."""
        return self._submit(lambda c: transactions.exposures_of(c, round_id))

    def flush(self) -> None:
        """Return when everything handed over is durable."""
        if self._executor is not None:
            self._submit(lambda connection: None).result()

    def close(self) -> None:
        """Flush and let go of the file; it opens again when next used."""
        self.flush()
        with self._lock:
            executor, self._executor = self._executor, None
        if executor is not None:
            executor.submit(self._disconnect).result()
            executor.shutdown()

    def __enter__(self) -> SQLiteLog:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _submit(self, job: Callable[[sqlite3.Connection], T]) -> Future[T]:
        with self._lock:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(1, thread_name_prefix="cmp-log-writer")
            return self._executor.submit(self._transact, job)

    def _transact(self, job: Callable[[sqlite3.Connection], T]) -> T:
        connection = self._connection or self._connect()
        with self._lock:
            notes, self._notes = self._notes, []
        try:
            connection.execute("BEGIN IMMEDIATE")
            if notes:
                transactions.write_contents(connection, notes)
            result = job(connection)
            connection.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            with self._lock:
                self._notes[:0] = notes
            raise
        return result

    def _block(self, connection: sqlite3.Connection, block_id: str) -> Block:
        """Return a block of the log; the most recent ones are kept, since every round of a block asks for it."""
        block = self._blocks.pop(block_id, None) or transactions.read_block(connection, block_id)
        self._blocks[block_id] = block
        if len(self._blocks) > _BLOCKS_KEPT:
            del self._blocks[next(iter(self._blocks))]
        return block

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connect(self) -> sqlite3.Connection:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(
            self.path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        try:
            _enter_wal(connection)
            connection.execute(f"PRAGMA synchronous={SYNCHRONOUS[self.durability]}")
            connection.execute("BEGIN IMMEDIATE")
            _create(connection, self.path)
            connection.execute("COMMIT")
        except sqlite3.DatabaseError as error:
            connection.close()
            if isinstance(error, sqlite3.OperationalError):
                raise
            raise LogCorruptedError(
                f"{self.path} is no SQLite database ({error}); it was left as it is"
            ) from error
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return connection


_BLOCKS_KEPT: Final = 256


def _enter_wal(connection: sqlite3.Connection) -> None:
    """Switch to write-ahead logging; SQLite's own busy timeout does not cover the switch."""
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.005)
        else:
            return


def _create(connection: sqlite3.Connection, path: Path) -> None:
    names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if names and "meta" not in names:
        raise LogCorruptedError(f"{path} is a SQLite database of something else; it was left as it is")
    if names:
        row = connection.execute("SELECT value FROM meta WHERE key = 'schema_version'").fetchone()
        check_version(row[0] if row else None, str(path))
        return
    for table in TABLES:
        columns = [f'"{c.name}" {_sql_type(c.dtype)}{"" if c.null else " NOT NULL"}' for c in table.columns]
        key = ", ".join(f'"{name}"' for name in table.key)
        connection.execute(f'CREATE TABLE "{table.name}" ({", ".join(columns)}, UNIQUE ({key}))')
    connection.execute(transactions.CREATE_CURSORS)
    connection.execute('CREATE TABLE "meta" ("key" TEXT PRIMARY KEY, "value" TEXT NOT NULL)')
    connection.executemany("INSERT INTO meta VALUES (?, ?)", written_by().items())


def written_by() -> dict[str, str]:
    """Return the ``meta`` of a log created here."""
    from cmp import __version__

    return {
        "schema_version": str(SCHEMA_VERSION),
        "causal-memory-policy": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "sqlite": sqlite3.sqlite_version,
        "generator": GENERATOR,
    }


def _sql_type(dtype: object) -> str:
    return _SQL_TYPES.get(dtype, "INTEGER")


def _stored_dtype(dtype: object) -> Any:
    return dtype if dtype in _SQL_TYPES else pl.Int64


def _reset_after_fork(log: SQLiteLog) -> None:
    """A forked child shares neither the parent's connection nor its writer thread: it opens its own."""
    reference = weakref.ref(log)

    def reset() -> None:
        found = reference()
        if found is not None:
            found._reset()

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=reset)


def _flush_at_exit(reference: weakref.ref[SQLiteLog]) -> None:
    """Write what is still noted when the interpreter ends, when the writer thread has been joined already."""
    log = reference()
    if log is not None and log._connection is not None:
        with suppress(sqlite3.Error, OSError):
            log._transact(lambda connection: None)
            log._disconnect()
