"""Where a log's rows are read and filtered, to be summed in polars: there too, or in DuckDB or Spark."""

from __future__ import annotations

import glob
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import narwhals.stable.v2 as nw
import polars as pl

from cmp.errors import MissingExtraError
from cmp.estimation.one_moment import Tables, as_of_one_moment, at_one_moment
from cmp.estimation.settled import LogFrames
from cmp.log.parquet import ParquetLog
from cmp.log.schema import TABLES, Table

__all__ = ["ENGINES", "Engine", "engine_named"]

ENGINES = ("polars", "duckdb", "spark")

#: Types that a column keeps on every engine; times stay as the file has them.
_TYPES: Mapping[Any, Any] = {
    pl.String: nw.String,
    pl.Int64: nw.Int64,
    pl.Float64: nw.Float64,
    pl.Boolean: nw.Boolean,
}


#: Returns an object with the five tables of a log as lazy frames of the engine's own.
Engine: TypeAlias = Callable[[LogFrames], Any]


@contextmanager
def engine_named(name: str) -> Iterator[Engine]:
    """Open an engine.

    Raises
    ------
    MissingExtraError
        Where it is not installed.
    ValueError
        For another name.
    """
    if name == "polars":
        yield as_of_one_moment
    elif name == "duckdb":
        with tempfile.TemporaryDirectory(prefix="cmp-") as folder, _duckdb() as connection:
            yield _Elsewhere(
                Path(folder),
                lambda files: connection.read_parquet(
                    [glob.escape(str(file)) for file in files], union_by_name=True, hive_partitioning=False
                ),
            )
    elif name == "spark":
        session = _spark()
        with tempfile.TemporaryDirectory(prefix="cmp-") as folder:
            yield _Elsewhere(
                Path(folder),
                lambda files: session.read.option("mergeSchema", "true").parquet(*map(_literal, files)),
            )
    else:
        raise ValueError(f"engine={name!r} is not supported; use {' or '.join(map(repr, ENGINES))}")


def _literal(file: Path) -> str:
    """Return a path as Hadoop takes it without finding a pattern in it."""
    return re.sub(r"[][{}*?\\]", r"\\\g<0>", str(file))


class _Elsewhere:
    """An engine that reads Parquet files; a log that is kept otherwise is written to such files first."""

    def __init__(self, folder: Path, read: Callable[[list[Path]], Any]) -> None:
        self._folder, self._read, self._written = folder, read, 0

    def __call__(self, log: LogFrames) -> Tables:
        with at_one_moment(log) as now:
            tables = {table: self._table(now, table) for table in TABLES}
        return Tables(tables, getattr(log, "has_unique_rows", False))

    def _table(self, log: LogFrames, table: Table) -> Any:
        files = log.files(table) if isinstance(log, ParquetLog) else []
        if not files:
            self._written += 1
            files = [self._folder / f"{self._written}.parquet"]
            getattr(log, table.name)().sink_parquet(files[0])
        frame = nw.from_native(self._read(files))
        present = frame.collect_schema().names()
        known = [column for column in table.columns if column.name in present]
        types = {column.name: _TYPES[column.dtype] for column in known if column.dtype in _TYPES}
        kept = [nw.col(name).cast(types[name]) if name in types else nw.col(name) for name in present]
        return nw.to_native(frame.select(*kept))


@contextmanager
def _duckdb() -> Iterator[Any]:
    try:
        import duckdb
        import pyarrow  # noqa: F401 (frames go there and back as Arrow)
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"{error.name} is not installed; pip install 'causal-memory-policy[duckdb]'"
        ) from error
    with duckdb.connect() as connection:
        yield connection


def _spark() -> Any:
    """Return the session that is running, or a local one."""
    try:
        import pyarrow  # noqa: F401
        from pyspark.sql import SparkSession
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"{error.name} is not installed; pip install 'causal-memory-policy[spark]'"
        ) from error
    running = SparkSession.getActiveSession()
    if running is not None:
        return running
    return SparkSession.builder.appName("causal-memory-policy").getOrCreate()
