"""The contract between serving and analysis."""

from __future__ import annotations

import os
from pathlib import Path

from cmp.errors import LogCorruptedError
from cmp.log.parquet import ParquetLog
from cmp.log.reading import META_FILE, Log
from cmp.log.schema import SCHEMA_VERSION
from cmp.log.sqlite import SQLiteLog
from cmp.log.validation import Finding, validate_log

__all__ = ["SCHEMA_VERSION", "Finding", "Log", "ParquetLog", "SQLiteLog", "open_log", "validate_log"]


def open_log(
    location: str | os.PathLike[str] | Log, *, durability: str = "process", create: bool = False
) -> Log:
    """Open a log: a SQLite file, or a directory of Parquet files that ``log.export`` wrote.

    Parameters
    ----------
    location
        A path. An open log is returned as it is.
    durability
        For a SQLite file that will be written to: ``"process"`` (survives the death of the process) or
        ``"power"`` (survives the loss of power too).
    create
        Create a SQLite file where there is none.

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
        raise ValueError("this version keeps logs in SQLite files and Parquet directories; give a path")
    if text in ("", ":memory:"):
        raise ValueError(
            f"{text!r} is no path; a log is a file, so that other processes and later analyses can read it"
        )
    path = Path(text)
    if path.is_dir():
        if not (path / META_FILE).exists() and any(path.iterdir()):
            raise LogCorruptedError(f"{path} is a directory without {META_FILE}: no exported log")
        return ParquetLog(path)
    return SQLiteLog(path, durability=durability, create=create)
