"""The log in one SQLite file: any number of processes on one host.

Write-ahead logging and ``BEGIN IMMEDIATE``. A round is durable against the death of the process before its future
is done. Never put the file on a network file system.

A process may fork while it serves: its connection is closed for the fork, because a child that inherits SQLite's idea
of the locks it holds would hold none. Whoever reads is waited for, while rounds go on. Where a snapshot or an export
has not ended after 10 s, or the thread that forks is inside one, the fork goes ahead, and the child refuses the log for
as long as it lives: it serves, and randomizes nothing. A connection of your own to the same file is yours to close
before a fork; and no other thread may be inside SQLite then, on whatever file: its locks would be held for ever in the
child.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import polars as pl

from cmp.errors import LogCorruptedError, LogUnavailableError
from cmp.log import transactions
from cmp.log.database import NotNowError
from cmp.log.schema import TABLES, Table, check_version
from cmp.log.snapshot import ROWS_READ_AT_ONCE, frame_of
from cmp.log.transactions import Session
from cmp.log.writing import WritingLog
from cmp.log.written import written_by

__all__ = ["SQLiteLog"]

SYNCHRONOUS: Final = {"process": "NORMAL", "power": "FULL", "queued": "NORMAL"}
BUSY_SECONDS: Final = 10.0

#: How long a request itself tries to be the one that writes, and its first pause between two tries, each twice the one
#: before: where many contend, few at a time get more done. Then the writer thread waits for its turn.
MOMENT_SECONDS: Final = 0.02
PAUSE_SECONDS: Final = 0.0005

#: Transactions of a process between two checkpoints; and pages after which any commit makes one.
COMMITS_A_CHECKPOINT: Final = 1000
PAGES_AT_MOST: Final = 16_000

#: What to do where the file cannot be used now, by SQLite's primary result code.
_MENDS: Final = {
    sqlite3.SQLITE_BUSY: "another process or connection holds it locked: end its transaction, and try again",
    sqlite3.SQLITE_LOCKED: "another connection holds a table of it: end its transaction, and try again",
    sqlite3.SQLITE_FULL: "free space on its disk, and try again",
    sqlite3.SQLITE_IOERR: "see to its disk: it may be full, failing or away",
    sqlite3.SQLITE_READONLY: "let this process write to the file and to its folder",
    sqlite3.SQLITE_CANTOPEN: "let this process open and make files in its folder",
    sqlite3.SQLITE_PERM: "let this process open the file",
    sqlite3.SQLITE_PROTOCOL: "its locks are contended, or on a network file system: keep it on a local disk",
    sqlite3.SQLITE_NOMEM: "there is no memory left for it",
}

_SQL_TYPES: Final[dict[Any, str]] = {pl.String: "TEXT", pl.Float64: "REAL", pl.Binary: "BLOB"}


class SQLiteLog(WritingLog):
    """A log in a SQLite file.

    Parameters
    ----------
    path
        The file. It is created by the first write, or by ``create``.
    durability
        ``"process"`` survives the death of the process; ``"power"`` survives the loss of power too, and is slower;
        ``"queued"`` is faster and survives a clean exit: a bounded queue of rounds is written behind the requests, and
        a crash loses whole rounds, at random.
    create
        Create the file where it is absent; otherwise an absent file is an error.

    Raises
    ------
    FileNotFoundError, LogCorruptedError, LogVersionError
        Where there is no such file, it is no log, or a newer version wrote it.
    """

    # of the session at hand: whether it waits for locks, and its transactions since the last checkpoint
    _is_patient: bool
    _commits: int

    def __init__(
        self, path: str | os.PathLike[str], *, durability: str = "process", create: bool = False
    ) -> None:
        if durability not in SYNCHRONOUS:
            raise ValueError(
                f"durability is {durability!r}; it is one of {', '.join(map(repr, SYNCHRONOUS))}"
            )
        self.path = Path(path).absolute()
        self.durability = durability
        self.queues = durability == "queued"
        self._is_prompt = durability != "power"  # a request must not wait for a disk longer than it would
        super().__init__()
        if create and self._is_empty():
            self._submit(lambda session: None).result()
        elif not self.path.exists():
            raise FileNotFoundError(
                f"there is no log at {self.path}; check the path, or let cmp.wrap create it"
            )
        self.meta()

    def __repr__(self) -> str:
        return f"SQLiteLog({str(self.path)!r})"

    def __reduce__(self) -> tuple[Callable[[], SQLiteLog], tuple[()]]:
        return partial(SQLiteLog, self.path, durability=self.durability, create=True), ()

    def _is_empty(self) -> bool:
        """Whether there is nothing in the file yet; another process may be about to create the log in it."""
        if not self.path.exists():
            return True
        with self._reader() as reader, self._read_from():
            return not reader.execute("SELECT name FROM sqlite_master LIMIT 1").fetchall()

    # -- reading ------------------------------------------------------------------------------------------------

    @contextmanager
    def _reader(self, *, of_one_moment: bool = False) -> Iterator[sqlite3.Connection]:
        with self._thread.in_use():
            with self._read_from():
                reader = sqlite3.connect(
                    f"{self.path.as_uri()}?mode=ro",
                    uri=True,
                    timeout=BUSY_SECONDS,
                    isolation_level=None,
                    check_same_thread=False,
                )
            with closing(reader):
                if of_one_moment:
                    with self._read_from():
                        reader.execute("BEGIN")
                yield reader

    def _meta(self, reader: sqlite3.Connection) -> Mapping[str, str]:
        with self._read_from(f"table meta of {self.path}"):
            rows = reader.execute("SELECT key, value FROM meta").fetchall()
        found = {str(key): str(value) for key, value in rows}
        check_version(found.get("schema_version"), str(self.path))
        return found

    def _portions(self, reader: sqlite3.Connection, table: Table) -> Generator[pl.DataFrame]:
        # a name alone that is no column would be read as a text
        names, order = (
            ", ".join(f'"{table.name}"."{name}"' for name in part) for part in (table.names, table.order)
        )
        stored = {name: _stored_dtype(dtype) for name, dtype in table.frame_schema.items()}
        with self._read_from(f"table {table.name} of {self.path}"):
            cursor = reader.execute(f'SELECT {names} FROM "{table.name}" ORDER BY {order}')  # noqa: S608 (names of the schema)
            while rows := cursor.fetchmany(ROWS_READ_AT_ONCE):
                yield frame_of(rows, table, stored, str(self.path))

    @contextmanager
    def _read_from(self, what: str = "") -> Iterator[None]:
        """Say what an error in reading means."""
        try:
            yield
        except sqlite3.DatabaseError as error:
            told = self._explained(error)
            if told is not None:
                raise told from error
            if str(error).startswith("Could not decode"):  # Python's own, and no failure of SQLite's
                raise LogCorruptedError(
                    f"{what or self.path} holds a text that is not UTF-8 ({error}). Nothing was changed. Correct it "
                    "there, or restore the log from a copy or an export"
                ) from error
            absent = ("no such table", "no such column")
            if isinstance(error, sqlite3.OperationalError) and not str(error).startswith(absent):
                raise
            raise LogCorruptedError(
                f"{self.path} cannot be read as a log ({error}). Nothing was changed. If it was copied while in use, "
                "copy it again with its -wal file; `cmpolicy validate` says what can still be read"
            ) from error

    # -- writing ------------------------------------------------------------------------------------------------

    def _begin(self, session: Session, *, patient: bool = True) -> None:
        self._be(session, patient)
        give_up, pause = 0.0, PAUSE_SECONDS
        while True:
            try:
                session.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                if patient or _primary(error) != sqlite3.SQLITE_BUSY:
                    raise
                now = time.monotonic()
                give_up = give_up or now + MOMENT_SECONDS
                if now > give_up:
                    raise NotNowError from error
                time.sleep(pause)
                pause *= 2
            else:
                return

    def _be(self, session: Session, patient: bool) -> None:
        if patient != self._is_patient:
            session.execute(f"PRAGMA busy_timeout = {1000 * BUSY_SECONDS if patient else 0:.0f}")
            self._is_patient = patient

    def _commit(self, session: Session) -> None:
        session.execute("COMMIT")
        self._commits += 1
        if self._commits >= COMMITS_A_CHECKPOINT:
            self._commits, self._is_untidy = 0, True

    def _tidy(self, session: Session) -> None:
        """Copy the write-ahead log into the file: the disk may be slow, and no request should do it."""
        session.execute("PRAGMA wal_checkpoint(PASSIVE)")

    def _roll_back(self, session: Session) -> None:
        session.execute("ROLLBACK")

    def _disconnect(self, session: Session) -> None:
        if isinstance(session, sqlite3.Connection):
            session.close()

    def _is_unwritable(self, error: BaseException) -> bool:
        refused = (
            sqlite3.DataError,
            sqlite3.IntegrityError,
            sqlite3.InterfaceError,
            sqlite3.ProgrammingError,
        )
        return super()._is_unwritable(error) or isinstance(error, refused)

    def _explained(self, error: BaseException) -> Exception | None:
        if not isinstance(error, sqlite3.OperationalError):
            return None
        mend = _MENDS.get(_primary(error))
        if mend is None:
            return None
        return LogUnavailableError(f"the log at {self.path} cannot be used now ({error}): {mend}")

    def _connect(self) -> Session:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(
            self.path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        try:
            _enter_wal(connection)
            connection.execute(f"PRAGMA synchronous={SYNCHRONOUS[self.durability]}")
            connection.execute(f"PRAGMA wal_autocheckpoint={PAGES_AT_MOST}")
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
        self._is_patient, self._commits = True, 0
        return connection


def _primary(error: sqlite3.Error) -> int:
    """Return SQLite's primary result code; an error of our own has none."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


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
    for (
        table
    ) in TABLES:  # kept by key alone, a row costs one page less to write; large values would crowd the tree
        clustered = "" if pl.Binary in table.frame_schema.values() else " WITHOUT ROWID"
        connection.execute(table.ddl(_sql_type) + clustered)
    connection.execute(transactions.CREATE_CURSORS + " WITHOUT ROWID")
    connection.execute('CREATE TABLE "meta" ("key" TEXT PRIMARY KEY, "value" TEXT NOT NULL)')
    connection.executemany(
        "INSERT INTO meta VALUES (?, ?)", written_by(sqlite=sqlite3.sqlite_version).items()
    )


def _sql_type(dtype: object) -> str:
    return _SQL_TYPES.get(dtype, "INTEGER")


def _stored_dtype(dtype: object) -> Any:
    return dtype if dtype in _SQL_TYPES else pl.Int64
