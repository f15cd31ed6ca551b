"""A log put together from the records that sinks were given, wherever these went in between."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

import polars as pl

from cmp.errors import LogCorruptedError
from cmp.log.losses import Losses
from cmp.log.reading import Log
from cmp.log.schema import BLOCKS, EXPOSURES, OUTCOMES, ROSTERS, ROUNDS, SCHEMA_VERSION, Table, check_version

__all__ = ["GatheredLog", "PlacedRecord", "gathered", "read_records"]

#: Records set aside that are named one by one.
NAMED_AT_MOST: Final = 5

NO_LOSSES: Final = Losses()


class PlacedRecord(dict[str, Any]):
    """A record that knows the file and line it stood in."""

    __slots__ = ("file", "line")

    def __init__(self, fields: Mapping[str, Any], file: str, line: int) -> None:
        super().__init__(fields)
        self.file, self.line = file, line


class GatheredLog(Log):
    """A log in memory, read only.

    Attributes
    ----------
    torn
        Places in the source that held no whole record; whole rounds lost so bias nothing.
    conflicts
        Records set aside because another came first: an outcome of another value without ``correct``, or a round
        asked again that drew other memories, its roster having changed.
    losses
        The same by kind, with the places of the first few; :func:`cmp.validate_log` and :func:`cmp.diagnose` tell them.
    """

    def __init__(self, rows: Mapping[Table, list[dict[str, Any]]], losses: Losses = NO_LOSSES) -> None:
        self._frames = {
            table: pl.DataFrame(found, schema=table.frame_schema, orient="row").sort(table.order)
            for table, found in rows.items()
        }
        self.losses = losses
        self.torn = losses.torn + losses.cut
        self.conflicts = losses.outcomes + losses.rounds

    def __repr__(self) -> str:
        return (
            f"GatheredLog({self._frames[ROUNDS].height} rounds, {self.torn} torn, {self.conflicts} conflicts)"
        )

    def scan(self, table: Table) -> pl.LazyFrame:
        """Return one table."""
        return self._frames[table].lazy()

    def meta(self) -> Mapping[str, str]:
        """Return the schema version, and what was lost or set aside in gathering."""
        return {"schema_version": str(SCHEMA_VERSION), **self.losses.to_meta()}


def read_records(records: Iterable[Mapping[str, Any]], *, torn: int = 0) -> GatheredLog:
    """Put the records of one or many sinks together.

    Records may repeat and come in any order, but for the amendments of one round, the last of which counts. Of the
    records of one ``round_id`` the one asked first counts, and the others are its further attempts. Of the outcomes of
    a round and metric the first counts, unless a later one corrects it.

    Parameters
    ----------
    records
        What :class:`cmp.log.sinks.Sink` was given, after any number of trips through JSON.
    torn
        Records known to be lost on the way; kept in :attr:`GatheredLog.torn`, and a finding of its checks.

    Raises
    ------
    LogVersionError
        Where a newer version wrote a record.
    LogCorruptedError
        Where a record lacks a field.

    Examples
    --------
    >>> outcome = {"type": "outcome", "schema_version": 1, "round_id": "r", "metric": "reward", "value": 1.0,
    ...            "recorded_at": "2026-01-01T00:00:00+00:00", "correct": False}
    >>> read_records([outcome, outcome]).outcomes().collect().height
    1
    """
    return gathered(records, Losses(torn=torn))


def gathered(records: Iterable[Mapping[str, Any]], losses: Losses) -> GatheredLog:
    """Put records together, and note what is set aside beside what was lost before: see :func:`read_records`."""
    kinds: dict[str, list[Mapping[str, Any]]] = {
        kind: [] for kind in ("block", "round", "amendment", "outcome")
    }
    for record in records:
        check_version(record.get("schema_version"), "a record")
        if record.get("type") not in kinds:
            raise LogCorruptedError(
                f"a record is of type {record.get('type')!r}; it is one of {', '.join(kinds)}"
            )
        kinds[record["type"]].append(record)
    try:
        rounds, exposures, redrawn = _rounds(kinds["round"], kinds["amendment"])
        outcomes, conflicting = _outcomes(kinds["outcome"])
        blocks, rosters = _blocks(kinds["block"])
    except KeyError as error:
        raise LogCorruptedError(f"a record has no field {error}") from error
    rows = {ROUNDS: rounds, EXPOSURES: exposures, OUTCOMES: outcomes, BLOCKS: blocks, ROSTERS: rosters}
    noted = replace(
        losses,
        outcomes=len(conflicting),
        rounds=len(redrawn),
        by_metric=tuple(sorted(Counter(record["metric"] for record in conflicting).items())),
        outcomes_at=tuple(
            _named(record, "round_id", "metric", "value") for record in conflicting[:NAMED_AT_MOST]
        ),
        rounds_at=tuple(_named(record, "round_id") for record in redrawn[:NAMED_AT_MOST]),
    )
    return GatheredLog(rows, noted)


def _named(record: Mapping[str, Any], *fields: str) -> str:
    """Name a record set aside, and where it stood."""
    name = ", ".join(f"{field} {record[field]!r}" for field in fields)
    return name + (f" ({record.file}, line {record.line})" if isinstance(record, PlacedRecord) else "")


def _rounds(
    records: list[Mapping[str, Any]], amendments: list[Mapping[str, Any]]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[Mapping[str, Any]]]:
    """Return rounds, with rows numbered within each block as asked, their exposures, and records set aside."""
    rounds: dict[str, dict[str, Any]] = {}
    exposures: dict[str, dict[str, dict[str, Any]]] = {}
    used: dict[str, int] = {}
    redrawn: list[Mapping[str, Any]] = []
    for record in sorted(records, key=lambda record: (record["asked_at"], record["round_id"])):
        round_id, block_id = record["round_id"], record["block_id"]
        rows = {row["memory_id"]: {"round_id": round_id, **row} for row in record["exposures"]}
        if round_id in rounds:
            rounds[round_id]["attempts"] += 1
            if _assigned(rows) != _assigned(exposures[round_id]):
                redrawn.append(record)
            continue
        row_of_block = None if block_id is None else used.get(block_id, 0)
        if row_of_block is not None:
            used[block_id] = row_of_block + 1
        rounds[round_id] = {
            **_columns(record, ROUNDS, but=("asked_at", "block_row", "attempts")),
            "asked_at": _time(record["asked_at"]),
            "block_row": row_of_block,
            "attempts": 1,
        }
        exposures[round_id] = rows
    for amendment in amendments:
        found = exposures.get(amendment["round_id"])
        if found is not None:
            _amend(found, amendment)
    return list(rounds.values()), [row for rows in exposures.values() for row in rows.values()], redrawn


def _assigned(rows: Mapping[str, Mapping[str, Any]]) -> set[str]:
    return {memory_id for memory_id, row in rows.items() if row["assigned"]}


def _amend(rows: dict[str, dict[str, Any]], amendment: Mapping[str, Any]) -> None:
    for row in amendment.get("exposures", ()):
        known = rows.get(row["memory_id"], {})
        content = row["content_hash"] or known.get("content_hash")
        rows[row["memory_id"]] = {"round_id": amendment["round_id"], **row, "content_hash": content}
    for memory_id, content in amendment.get("content_hashes", {}).items():
        if memory_id in rows:
            rows[memory_id]["content_hash"] = content


def _outcomes(
    records: list[Mapping[str, Any]],
) -> tuple[list[dict[str, Any]], list[Mapping[str, Any]]]:
    """Return outcomes, and records set aside."""
    revisions: dict[tuple[str, str], list[dict[str, Any]]] = {}
    conflicting: list[Mapping[str, Any]] = []
    for record in sorted(records, key=lambda record: record["recorded_at"]):
        known = revisions.setdefault((record["round_id"], record["metric"]), [])
        if known and known[-1]["value"] == record["value"]:
            continue
        if known and not record["correct"]:
            conflicting.append(record)
            continue
        known.append(
            {
                **_columns(record, OUTCOMES, but=("recorded_at", "revision")),
                "recorded_at": _time(record["recorded_at"]),
                "revision": len(known),
            }
        )
    return [row for rows in revisions.values() for row in rows], conflicting


def _blocks(
    records: list[Mapping[str, Any]],
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return blocks and rosters. A memory that a draw found deleted stays on: that draw was left to chance."""
    blocks: dict[str, dict[str, Any]] = {}
    rosters: list[dict[str, Any]] = []
    for record in sorted(records, key=lambda record: record["created_at"]):
        block_id = record["block_id"]
        if block_id in blocks:
            continue
        blocks[block_id] = {
            **_columns(record, BLOCKS, but=("table", "created_at")),
            "table": b"",
            "created_at": _time(record["created_at"]),
        }
        rosters += [
            {
                "block_id": block_id,
                "memory_id": memory_id,
                "position": position,
                "planned": record["k"],
                "planned_before": 0,
                "removed_row": None,
            }
            for position, memory_id in enumerate(record["roster"])
        ]
    return list(blocks.values()), rosters


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def _columns(record: Mapping[str, Any], table: Table, but: tuple[str, ...]) -> dict[str, Any]:
    return {name: record[name] for name in table.names if name not in but}
