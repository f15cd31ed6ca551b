"""The contract between serving and analysis."""

from __future__ import annotations

import os
from pathlib import Path

from cmp.errors import LogCorruptedError
from cmp.log.gathering import GatheredLog, read_records
from cmp.log.jsonl import JsonlSink, read_jsonl
from cmp.log.parquet import ParquetLog
from cmp.log.reading import META_FILE, Log
from cmp.log.schema import SCHEMA_VERSION
from cmp.log.sinks import Sink, SinkLog
from cmp.log.sqlite import SQLiteLog
from cmp.log.validation import Finding, validate_log

__all__ = [
    "SCHEMA_VERSION",
    "Finding",
    "GatheredLog",
    "JsonlSink",
    "Log",
    "ParquetLog",
    "SQLiteLog",
    "Sink",
    "SinkLog",
    "open_log",
    "read_jsonl",
    "read_records",
    "validate_log",
]


def open_log(
    location: str | os.PathLike[str] | Log, *, durability: str = "process", create: bool = False
) -> Log:
    """Open a log: a SQLite file, a Postgres database, a directory that ``log.export`` wrote, or a file of records.

    Parameters
    ----------
    location
        A path, or ``postgresql://user:password@host/database?schema=name`` (the extra ``postgres``). A file that ends
        in ``.jsonl`` holds what a :class:`JsonlSink` wrote. An open log is returned as it is.
    durability
        For a log that will be written to: ``"process"`` (survives the death of the process), ``"power"`` (survives
        the loss of power too; in Postgres, a crash of the server) or ``"queued"`` (rounds are written behind the
        requests: survives a clean exit, a crash loses whole rounds at random).
    create
        Create a SQLite file, or the tables in Postgres, where there are none.

    Returns
    -------
    Log
        With ``rounds()``, ``exposures()``, ``outcomes()``, ``blocks()``, ``rosters()``, each a polars LazyFrame.

    Raises
    ------
    FileNotFoundError
        Where there is nothing at the path (unless ``create``).
    LogCorruptedError
        Where what is there is no log, or is damaged.
    LogVersionError
        Where a version with a schema unknown to this one wrote it.
    MissingExtraError
        Where psycopg is needed and not installed.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     log = open_log(pathlib.Path(folder) / "exposures.db", create=True)
    ...     n = log.rounds().collect().height
    ...     log.close()
    >>> n
    0
    """
    if isinstance(location, Log):
        return location
    text = os.fspath(location)
    if text.startswith(("postgresql://", "postgres://")):
        from cmp.log.postgres import PostgresLog

        return PostgresLog(text, durability=durability, create=create)
    if text in ("", ":memory:"):
        raise ValueError(
            f"{text!r} is no path; a log is a file, so that other processes and later analyses can read it"
        )
    path = Path(text)
    if path.suffix == ".jsonl":
        if create and not path.exists():
            raise ValueError(f"{path} is to hold records; wrap with log=cmp.log.JsonlSink({text!r})")
        return read_jsonl(path)
    if path.is_dir():
        if not (path / META_FILE).exists() and any(path.iterdir()):
            raise LogCorruptedError(f"{path} is a directory without {META_FILE}: no exported log")
        return ParquetLog(path)
    return SQLiteLog(path, durability=durability, create=create)
