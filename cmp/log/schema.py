"""The contract between serving and analysis: the tables of a log, declared once for every store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import polars as pl

from cmp.errors import LogCorruptedError, LogVersionError

__all__ = ["ARMS", "SCHEMA_VERSION", "TABLES", "Column", "Table", "check_version"]

SCHEMA_VERSION: Final = 1

ARMS: Final = ("ranked", "random", "withheld", "card")

TIME: Final = pl.Datetime("us", "UTC")


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its polars type (which fixes its SQL type), whether it may be null, and what it means."""

    name: str
    dtype: pl.DataType | type[pl.DataType]
    null: bool = False
    about: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """One table of the log: columns in order, the columns that make a row unique, and how rows are ordered."""

    name: str
    key: tuple[str, ...]
    columns: tuple[Column, ...]
    order: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Column names in order."""
        return tuple(column.name for column in self.columns)

    def ddl(self, sql_type: Callable[[object], str]) -> str:
        """Return the statement that creates the table in a database with these types."""
        columns = [f'"{c.name}" {sql_type(c.dtype)}{"" if c.null else " NOT NULL"}' for c in self.columns]
        if self is ROSTERS:  # rows come in this order and are asked for by it
            keys = [f"PRIMARY KEY ({_quoted(self.order)})", f"UNIQUE ({_quoted(self.key)})"]
        else:
            keys = [f"PRIMARY KEY ({_quoted(self.key)})"]
        return f'CREATE TABLE "{self.name}" ({", ".join([*columns, *keys])})'

    @property
    def frame_schema(self) -> dict[str, pl.DataType | type[pl.DataType]]:
        """Column names and polars types."""
        return {column.name: column.dtype for column in self.columns}


def _quoted(names: tuple[str, ...]) -> str:
    return ", ".join(f'"{name}"' for name in names)


ROUNDS = Table(
    "rounds",
    ("round_id",),
    (
        Column("round_id", pl.String),
        Column("scope", pl.String),
        Column("block_id", pl.String, null=True, about="null where the round was not randomized"),
        Column("block_row", pl.Int64, null=True, about="row of the block's table; rows are used in order"),
        Column("episode_id", pl.String, null=True),
        Column("group", pl.String, null=True, about="the caller's name for a repeated query"),
        Column("query_hash", pl.String, null=True, about="BLAKE2b of the query's text, never the text"),
        Column("asked_at", TIME),
        Column("n_roster", pl.Int64),
        Column("k", pl.Int64, about="memories drawn for this round"),
        Column("n_ranked", pl.Int64, about="ranked results served"),
        Column("randomized", pl.Boolean),
        Column("fallback_reason", pl.String, null=True, about="why a round was not randomized"),
        Column("attempts", pl.Int64, about="how often this round_id was asked for"),
    ),
    ("asked_at", "round_id"),
)

EXPOSURES = Table(
    "exposures",
    ("round_id", "memory_id"),
    (
        Column("round_id", pl.String),
        Column("memory_id", pl.String),
        Column("arm", pl.String, about="ranked, random, withheld or card"),
        Column("assigned", pl.Boolean, about="drawn for a random slot"),
        Column("slot", pl.Int64, null=True, about="position in the context, from 0"),
        Column(
            "propensity", pl.Float64, about="probability of this exposure under the design; 1 where ranked"
        ),
        Column("delivered", pl.Boolean, about="handed to the caller"),
        Column("reason", pl.String, null=True, about="why it was not delivered"),
        Column("content_hash", pl.String, null=True),
    ),
    ("round_id", "slot", "memory_id"),
)

OUTCOMES = Table(
    "outcomes",
    ("round_id", "metric", "revision"),
    (
        Column("round_id", pl.String),
        Column("metric", pl.String),
        Column("value", pl.Float64),
        Column("recorded_at", TIME),
        Column("revision", pl.Int64, about="from 0; the last one counts"),
    ),
    ("recorded_at", "round_id", "metric", "revision"),
)

BLOCKS = Table(
    "blocks",
    ("block_id",),
    (
        Column("block_id", pl.String),
        Column("scope", pl.String),
        Column("group", pl.String, null=True, about="set where each query has its own blocks"),
        Column("design", pl.String),
        Column("k", pl.Int64),
        Column("length", pl.Int64),
        Column("table", pl.Binary, about="length x k positions in the roster, little-endian uint32, by rows"),
        Column("created_at", TIME),
    ),
    ("created_at", "block_id"),
)

ROSTERS = Table(
    "rosters",
    ("block_id", "memory_id"),
    (
        Column("block_id", pl.String),
        Column("memory_id", pl.String),
        Column("position", pl.Int64, about="what the block's table calls this memory"),
        Column("planned", pl.Int64, about="rows of the table that hold it; propensity is planned / length"),
        Column("planned_before", pl.Int64, about="the same, summed over the earlier blocks of this stream"),
        Column("removed_row", pl.Int64, null=True, about="first row at which the memory was gone"),
    ),
    ("block_id", "position"),
)

TABLES: Final = (ROUNDS, EXPOSURES, OUTCOMES, BLOCKS, ROSTERS)


def check_version(found: object, where: str) -> None:
    """Refuse a log written under a schema this version does not know.

    Raises
    ------
    LogCorruptedError
        Where there is none: every log is created with one.
    LogVersionError
        Where ``found`` is not a schema version up to :data:`SCHEMA_VERSION`.
    """
    if found is None:
        raise LogCorruptedError(
            f"{where} has lost its schema version: it is damaged; restore it from a copy or an export"
        )
    text = str(found)
    if not text.isdecimal() or not 1 <= int(text) <= SCHEMA_VERSION:
        said = text if text.isalnum() else repr(text)  # it may hold anything
        raise LogVersionError(
            f"{where} has schema version {said}; this version of causal-memory-policy knows versions 1 to "
            f"{SCHEMA_VERSION}. Nothing was read or changed: upgrade causal-memory-policy to open it"
        )
