"""The log in a Postgres database: any number of processes on any number of hosts.

The transactions are those of the SQLite log, under READ COMMITTED: the update of a stream's cursor locks its row, so
that rows of a block are dealt one by one. A transaction that loses a race, or its connection, is tried again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager
from functools import lru_cache, partial
from typing import Any, Final

import polars as pl

from cmp.errors import InvalidIdError, LogCorruptedError, LogUnavailableError, MissingExtraError
from cmp.log import transactions
from cmp.log.postgres_url import parsed, shown
from cmp.log.queueing import Queued
from cmp.log.records import AssignedRound, Compose, Request, Staged
from cmp.log.schema import TABLES, Table, check_version
from cmp.log.snapshot import ROWS_READ_AT_ONCE, frame_of
from cmp.log.transactions import Session
from cmp.log.writing import WritingLog
from cmp.log.written import written_by

try:
    import psycopg
    from psycopg import errors, sql
except ImportError as missing:
    raise MissingExtraError(
        f"a log in Postgres needs psycopg ({missing}); run: pip install 'causal-memory-policy[postgres]'"
    ) from missing

__all__ = ["LogUnreachableError", "PostgresLog"]

SYNCHRONOUS: Final = {"process": "off", "power": "on", "queued": "off"}

#: No other worker waits longer for the locks of one that hangs.
SETTINGS: Final = "SET lock_timeout = '5s'; SET idle_in_transaction_session_timeout = '5s'"

#: How long no connection is tried after one has failed; requests fail at once in the meantime.
PAUSE_SECONDS: Final = 1.0

#: Held while the tables are made, so that workers that start together make them once.
CREATION_LOCK: Final = 0x636D_706C_6F67

#: Postgres indexes at most 2704 bytes; two texts of this size always fit.
MAX_TEXT_BYTES: Final = 1300

#: Texts compare by bytes, as they do in SQLite and in Python.
_SQL_TYPES: Final[dict[Any, str]] = {
    pl.String: 'TEXT COLLATE "C"',
    pl.Float64: "DOUBLE PRECISION",
    pl.Binary: "BYTEA",
    pl.Boolean: "BOOLEAN",
}


class LogUnreachableError(LogUnavailableError, ConnectionError):
    """The server of the log is away, or does not do what it is asked for now."""


class PostgresLog(WritingLog):
    """A log in a Postgres database.

    Ids with a NUL character, and ids of more than 1300 bytes, cannot be kept by Postgres: they are an
    ``InvalidIdError`` and nothing is drawn.

    Parameters
    ----------
    url
        ``postgresql://user:password@host:port/database``, with libpq's options. ``?schema=name`` keeps the log in a
        schema of its own, which ``create`` makes; otherwise it lies in the first schema of the search path. A
        connection is held for as long as the log is open, so a pooler must pool sessions, not transactions. The
        password is in a pickled log, and in no message.
    durability
        ``"process"`` survives the death of this process; a crash of the server may lose the last moments, whole rounds
        of them (``synchronous_commit = off``). ``"power"`` survives a crash of the server too (``on``), and is slower.
        ``"queued"`` is fastest and survives a clean exit: rounds are written behind the requests.
    create
        Create the tables where there are none; otherwise an absent log is an error.

    Raises
    ------
    FileNotFoundError, LogCorruptedError, LogVersionError
        Where there is no log, the schema holds tables of something else, or a newer version wrote it.
    LogUnreachableError
        Where the server cannot be reached; a ``LogUnavailableError`` and a ``ConnectionError``.
    """

    def __init__(self, url: str, *, durability: str = "process", create: bool = False) -> None:
        if durability not in SYNCHRONOUS:
            raise ValueError(
                f"durability is {durability!r}; it is one of {', '.join(map(repr, SYNCHRONOUS))}"
            )
        self._url = url
        self._options, self._schema = parsed(url)
        self.location = shown(self._options, self._schema)
        self.durability = durability
        self.queues = durability == "queued"
        self._unreachable: tuple[float, str] | None = None
        self._in_doubt: list[str] = []
        super().__init__()
        if create:
            self._submit(lambda session: None).result()
        self.meta()

    def __repr__(self) -> str:
        return f"PostgresLog({self.location!r})"

    def __reduce__(self) -> tuple[Callable[[], PostgresLog], tuple[()]]:
        return partial(PostgresLog, self._url, durability=self.durability, create=True), ()

    # -- reading ------------------------------------------------------------------------------------------------

    def _meta(self, reader: psycopg.Connection) -> Mapping[str, str]:
        with self._read_from():
            if not _tables(reader, self.location):
                raise FileNotFoundError(
                    f"there is no log at {self.location}; check the URL, or let cmp.wrap create it"
                )
            found = {str(key): str(value) for key, value in reader.execute("SELECT key, value FROM meta")}
        check_version(found.get("schema_version"), self.location)
        return found

    def _portions(self, reader: psycopg.Connection, table: Table) -> Generator[pl.DataFrame]:
        names = ", ".join(f'"{name}"' for name in table.names)
        order = ", ".join(f'"{name}" NULLS FIRST' for name in table.order)
        query = f'SELECT {names} FROM "{table.name}" ORDER BY {order}'  # noqa: S608 (names of the schema)
        stored = {name: _stored_dtype(dtype) for name, dtype in table.frame_schema.items()}
        name = f"cmp_scan_{time.monotonic_ns()}"  # another table may be half read
        # what fails here does not end the transaction around it
        with self._read_from(), reader.transaction(), reader.cursor(name, binary=True) as cursor:
            cursor.execute(query.encode())
            while rows := cursor.fetchmany(ROWS_READ_AT_ONCE):
                yield frame_of(rows, table, stored, self.location)

    @contextmanager
    def _reader(self, *, of_one_moment: bool = False) -> Iterator[psycopg.Connection]:
        levels = psycopg.IsolationLevel
        with closing(self._dial()) as connection:  # which ends its transaction, whatever became of it
            connection.read_only = True
            connection.isolation_level = levels.REPEATABLE_READ if of_one_moment else levels.READ_COMMITTED
            yield connection

    @contextmanager
    def _read_from(self) -> Iterator[None]:
        """Say what an error in reading means."""
        try:
            yield
        except (errors.UndefinedTable, errors.UndefinedColumn) as error:
            raise LogCorruptedError(
                f"{self.location} cannot be read as a log ({_first_line(error)}). Nothing was changed"
            ) from error
        except psycopg.OperationalError as error:
            raise LogUnreachableError(
                f"the log at {self.location} was lost ({_first_line(error)}); try again when its server answers"
            ) from error

    # -- writing ------------------------------------------------------------------------------------------------

    def assign(self, request: Request, compose: Compose) -> Future[AssignedRound | None]:
        """Take the stream's next row and log the round, in one transaction (or from a lease, where rounds queue)."""
        if self.queues:
            return super().assign(request, compose)

        def job(session: Session) -> AssignedRound | None:
            assert isinstance(session, _Session)
            session.round_id = request.round_id
            return transactions.assign(session, request, compose, self._block)

        return self._submit(job)

    def stage(self, stream: str, roster: Sequence[str], planned: int, *, counted: bool) -> Staged | None:
        """Store a sorted roster for the stream's next block; None where the stream has rows left."""
        _check_texts(roster)
        return super().stage(stream, roster, planned, counted=counted)

    def _begin(self, session: Session, *, patient: bool = True) -> None:
        session.execute("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE")

    def _commit(self, session: Session) -> None:
        assert isinstance(session, _Session)
        round_id, session.round_id = session.round_id, None
        try:
            session.execute("COMMIT")
        except psycopg.Error:
            if session.connection.closed and round_id is not None:
                self._in_doubt.append(round_id)
            raise

    def _roll_back(self, session: Session) -> None:
        assert isinstance(session, _Session)
        session.round_id = None
        session.execute("ROLLBACK")

    def _disconnect(self, session: Session) -> None:
        assert isinstance(session, _Session)
        session.connection.close()

    def _is_broken(self, error: BaseException) -> bool:
        return isinstance(self._session, _Session) and self._session.connection.closed

    def _is_passing(self, error: BaseException) -> bool:
        races = (errors.SerializationFailure, errors.DeadlockDetected, errors.UniqueViolation)
        lost = isinstance(error, psycopg.Error) and self._session is None
        return lost or isinstance(error, races)

    def _is_unwritable(self, error: BaseException) -> bool:
        unadapted = isinstance(error, psycopg.ProgrammingError) and error.sqlstate is None
        of_another_type = (errors.DatatypeMismatch, errors.UndefinedFunction, errors.IndeterminateDatatype)
        refused = (psycopg.DataError, psycopg.IntegrityError, *of_another_type)
        return unadapted or super()._is_unwritable(error) or isinstance(error, refused)

    def _explained(self, error: BaseException) -> Exception | None:
        away = (psycopg.OperationalError, psycopg.InterfaceError, errors.ReadOnlySqlTransaction)
        if not isinstance(error, away):
            return None
        return LogUnreachableError(
            f"the log at {self.location} cannot be used now ({_first_line(error)}); see to its server, and try again"
        )

    def _check(self, queued: Queued) -> None:
        request = queued.request
        _check_texts((request.round_id, request.scope, request.group, request.episode_id))
        _check_texts(exposure.memory_id for exposure in queued.exposures)

    def _connect(self) -> Session:
        if self._unreachable is not None and time.monotonic() < self._unreachable[0]:
            raise LogUnreachableError(self._unreachable[1])
        try:
            connection = self._dial()
        except LogUnreachableError as error:
            self._unreachable = (time.monotonic() + PAUSE_SECONDS, str(error))
            raise
        try:
            connection.autocommit = True
            if not _tables(connection, self.location):
                self._create(connection)
            row = connection.execute("SELECT value FROM meta WHERE key = 'schema_version'").fetchone()
            check_version(row[0] if row else None, self.location)
            connection.execute(SETTINGS)
            connection.execute(f"SET synchronous_commit = {SYNCHRONOUS[self.durability]}".encode())
            session = _Session(connection)
            self._resolve_doubts(session)
        except errors.UndefinedColumn as error:
            connection.close()
            raise LogCorruptedError(
                f"{self.location} is no log ({_first_line(error)}); it was left as it is"
            ) from error
        except BaseException:
            connection.close()
            raise
        return session

    def _dial(self) -> psycopg.Connection:
        try:
            connection = _Connection.connect(**self._options)
            if self._schema is not None:
                connection.execute(sql.SQL("SET search_path TO {}").format(sql.Identifier(self._schema)))
                connection.commit()
        except psycopg.Error as error:
            raise LogUnreachableError(
                f"the log at {self.location} cannot be reached: {_first_line(error)}"
            ) from error
        return connection

    def _create(self, connection: psycopg.Connection) -> None:
        """Make the tables in one transaction, unless another worker has just made them."""
        if connection.info.parameter_status("server_encoding") != "UTF8":
            raise ValueError(f"{self.location} does not keep UTF-8; make a database with ENCODING 'UTF8'")
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (CREATION_LOCK,))
            if self._schema is not None and _current_schema(connection) is None:
                connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(self._schema)))
            if _tables(connection, self.location):
                return
            for table in TABLES:
                connection.execute(table.ddl(_sql_type).encode())
            connection.execute(transactions.CREATE_CURSORS)
            connection.execute('CREATE TABLE "meta" ("key" TEXT PRIMARY KEY, "value" TEXT NOT NULL)')
            server = str(connection.info.parameter_status("server_version"))
            connection.cursor().executemany(
                "INSERT INTO meta VALUES (%s, %s)", list(written_by(postgres=server).items())
            )

    def _resolve_doubts(self, session: _Session) -> None:
        """Withdraw rounds whose commit was never answered: if they are in the log, nobody was served from them."""
        if not self._in_doubt:
            return
        self._begin(session)
        for round_id in self._in_doubt:
            transactions.withdraw(session, round_id, "timeout")
        session.execute("COMMIT")
        self._in_doubt.clear()


class _Connection(psycopg.Connection[tuple[Any, ...]]):
    """A connection that ends without a warning when its log is let go of, and never in a forked child."""

    def __del__(self, *_: Any) -> None:
        """Leave it to libpq's own object, which knows the process that made it."""


class _Session:
    """A connection that takes ``?`` for parameters, and refuses texts that Postgres cannot keep."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self.connection = connection
        self.round_id: str | None = None

    def execute(self, query: str, parameters: Sequence[Any] = ()) -> Any:
        _check_texts(parameters)
        return self.connection.execute(_translated(query), parameters or None)

    def executemany(self, query: str, parameters: Iterable[Sequence[Any]]) -> Any:
        rows = list(parameters)
        for row in rows:
            _check_texts(row)
        cursor = self.connection.cursor()
        if rows:
            cursor.executemany(_translated(query), rows)
        return cursor


@lru_cache(maxsize=256)
def _translated(query: str) -> bytes:
    """Write a statement's marks as psycopg does; no literal of ours holds one."""
    return query.replace("?", "%s").encode()


def _check_texts(parameters: Iterable[Any]) -> None:
    for text in parameters:
        if isinstance(text, str):
            if "\0" in text:
                raise InvalidIdError(
                    f"{text!r} holds a NUL character, which Postgres cannot keep; escape it reversibly in id_of, or "
                    "log to a SQLite file"
                )
            if len(text) > MAX_TEXT_BYTES // 4 and len(text.encode()) > MAX_TEXT_BYTES:
                raise InvalidIdError(
                    f"an id or scope of {len(text.encode())} bytes, {text[:40]!r}..., is longer than the "
                    f"{MAX_TEXT_BYTES} that Postgres can index; use a hash of it, or log to a SQLite file"
                )


def _tables(connection: psycopg.Connection, location: str) -> bool:
    """Tell whether there is a log in the current schema; refuse a schema that something else lives in."""
    rows = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = current_schema()")
    names = {name for (name,) in rows}
    if names and "meta" not in names:
        raise LogCorruptedError(
            f"{location} holds tables of something else, which were left as they are; give the log a schema of its "
            "own: add schema=exposures to the options of the URL"
        )
    return bool(names)


def _current_schema(connection: psycopg.Connection) -> str | None:
    row = connection.execute("SELECT current_schema()").fetchone()
    return None if row is None else row[0]


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]


def _sql_type(dtype: object) -> str:
    return _SQL_TYPES.get(dtype, "BIGINT")


def _stored_dtype(dtype: object) -> Any:
    return dtype if dtype in _SQL_TYPES else pl.Int64
