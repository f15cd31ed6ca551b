"""A log exported to Parquet, or gathered there from several places: any number of files a table."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import polars as pl

from cmp.errors import LogCorruptedError
from cmp.log.losses import Losses
from cmp.log.parts import PARTS_ARE_BLOCKS, PARTS_KEY
from cmp.log.reading import META_FILE, Log
from cmp.log.schema import TABLES, Table, check_version

__all__ = ["ParquetLog"]

ALL: Final = "*.parquet"


class ParquetLog(Log):
    """Reads ``directory/<table>/*.parquet``.

    Files may disagree, as shards do: a column that is all null in one, a column only another has, categoricals with
    different categories. Every known column is cast to the schema, every other one is kept.
    """

    def __init__(self, directory: str | os.PathLike[str], *, part: str = ALL) -> None:
        self.directory, self._part = Path(directory), part
        meta = self.directory / META_FILE
        if not meta.is_file():
            raise LogCorruptedError(
                f"{self.directory} is no exported log: it has no {META_FILE}. Give the directory that log.export() "
                "or `cmpolicy export` wrote"
            )
        try:
            self._meta = {str(key): str(value) for key, value in json.loads(meta.read_text("utf-8")).items()}
            self.losses = Losses.from_meta(self._meta)
        except (ValueError, AttributeError) as error:
            raise LogCorruptedError(f"{meta} cannot be read ({error}); export the log again") from error
        check_version(self._meta.get("schema_version"), str(self.directory))
        #: Files put together by other hands may hold a row twice.
        self.has_unique_rows = self._meta.pop(PARTS_KEY, None) == PARTS_ARE_BLOCKS
        self._in_parts = self.has_unique_rows and part == ALL

    def __repr__(self) -> str:
        part = "" if self._part == ALL else f", part={self._part!r}"
        return f"ParquetLog({str(self.directory)!r}{part})"

    def meta(self) -> Mapping[str, str]:
        """Return the contents of the log's ``meta.json``."""
        return dict(self._meta)

    def scan(self, table: Table) -> pl.LazyFrame:
        """Scan every file of one table.

        Raises
        ------
        LogCorruptedError
            Where a file cannot be read, or lacks a column that may not be null.
        """
        files = self.files(table)
        if not files:
            return pl.LazyFrame(schema=table.frame_schema)
        return pl.concat([_conform(file, table) for file in files], how="diagonal_relaxed")

    def files(self, table: Table) -> list[Path]:
        """Return the files of one table in order."""
        return sorted((self.directory / table.name).glob(self._part))

    def parts(self) -> list[ParquetLog]:
        """Return logs of whole blocks that together are this one: its parts, or itself where it does not say."""
        if not self._in_parts:
            return [self]
        names = sorted({file.name for table in TABLES for file in self.files(table)})
        return [ParquetLog(self.directory, part=name) for name in names] or [self]


def _conform(file: Path, table: Table) -> pl.LazyFrame:
    frame = pl.scan_parquet(file, glob=False)
    try:
        found = frame.collect_schema()
    except (pl.exceptions.PolarsError, OSError) as error:
        raise LogCorruptedError(
            f"{file} cannot be read as Parquet ({error}); export the log again"
        ) from error
    known: list[pl.Expr] = []
    for column in table.columns:
        if column.name in found:
            known.append(pl.col(column.name).cast(column.dtype))
        elif column.null:
            known.append(pl.lit(None, column.dtype).alias(column.name))
        else:
            raise LogCorruptedError(
                f"{file} has no column {column.name!r}, which every row of {table.name} needs"
            )
    return frame.select(*known, *(name for name in found if name not in table.names))
