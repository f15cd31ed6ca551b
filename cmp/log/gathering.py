"""A log put together from the records that sinks were given, wherever these went in between."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import polars as pl

from cmp.errors import LogCorruptedError
from cmp.log.reading import Log
from cmp.log.schema import BLOCKS, EXPOSURES, OUTCOMES, ROSTERS, ROUNDS, SCHEMA_VERSION, Table, check_version

__all__ = ["GatheredLog", "read_records"]


class GatheredLog(Log):
    """A log in memory, read only.

    Attributes
    ----------
    torn
        Lines of the source that were no whole record; whole rounds lost so bias nothing.
    conflicts
        Records set aside because another came first: an outcome of another value without ``correct``, or a round
        asked again that drew other memories, its roster having changed.
    """

    def __init__(self, rows: Mapping[Table, list[dict[str, Any]]], torn: int, conflicts: int) -> None:
        self._frames = {
            table: pl.DataFrame(found, schema=table.frame_schema, orient="row").sort(table.order)
            for table, found in rows.items()
        }
        self.torn = torn
        self.conflicts = conflicts

    def __repr__(self) -> str:
        return (
            f"GatheredLog({self._frames[ROUNDS].height} rounds, {self.torn} torn, {self.conflicts} conflicts)"
        )

    def scan(self, table: Table) -> pl.LazyFrame:
        """Return one table."""
        return self._frames[table].lazy()

    def meta(self) -> Mapping[str, str]:
        """Return the schema version, and what was lost or set aside in gathering."""
        return {
            "schema_version": str(SCHEMA_VERSION),
            "torn": str(self.torn),
            "conflicts": str(self.conflicts),
        }


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
        Records known to be lost on the way; kept in :attr:`GatheredLog.torn`.

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
        blocks, rosters = _blocks(kinds["block"], rounds, exposures)
    except KeyError as error:
        raise LogCorruptedError(f"a record has no field {error}") from error
    rows = {ROUNDS: rounds, EXPOSURES: exposures, OUTCOMES: outcomes, BLOCKS: blocks, ROSTERS: rosters}
    return GatheredLog(rows, torn, redrawn + conflicting)


def _rounds(
    records: list[Mapping[str, Any]], amendments: list[Mapping[str, Any]]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], int]:
    """Return rounds, with rows numbered within each block as they were asked, their exposures, and conflicts."""
    rounds: dict[str, dict[str, Any]] = {}
    exposures: dict[str, dict[str, dict[str, Any]]] = {}
    used: dict[str, int] = {}
    conflicts = 0
    for record in sorted(records, key=lambda record: (record["asked_at"], record["round_id"])):
        round_id, block_id = record["round_id"], record["block_id"]
        rows = {row["memory_id"]: {"round_id": round_id, **row} for row in record["exposures"]}
        if round_id in rounds:
            rounds[round_id]["attempts"] += 1
            conflicts += _assigned(rows) != _assigned(exposures[round_id])
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
    return list(rounds.values()), [row for rows in exposures.values() for row in rows.values()], conflicts


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


def _outcomes(records: list[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], int]:
    revisions: dict[tuple[str, str], list[dict[str, Any]]] = {}
    conflicts = 0
    for record in sorted(records, key=lambda record: record["recorded_at"]):
        known = revisions.setdefault((record["round_id"], record["metric"]), [])
        if known and known[-1]["value"] == record["value"]:
            continue
        if known and not record["correct"]:
            conflicts += 1
            continue
        known.append(
            {
                **_columns(record, OUTCOMES, but=("recorded_at", "revision")),
                "recorded_at": _time(record["recorded_at"]),
                "revision": len(known),
            }
        )
    return [row for rows in revisions.values() for row in rows], conflicts


def _blocks(
    records: list[Mapping[str, Any]], rounds: list[dict[str, Any]], exposures: list[dict[str, Any]]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return blocks and rosters; a memory leaves a block at the first round that found it deleted."""
    place = {row["round_id"]: (row["block_id"], row["block_row"]) for row in rounds}
    removed: dict[tuple[str, str], int] = {}
    for row in exposures:
        if row["assigned"] and row["reason"] == "deleted":
            block_id, block_row = place[row["round_id"]]
            key = (block_id, row["memory_id"])
            removed[key] = min(block_row, removed.get(key, block_row))
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
                "removed_row": removed.get((block_id, memory_id)),
            }
            for position, memory_id in enumerate(record["roster"])
        ]
    return list(blocks.values()), rosters


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def _columns(record: Mapping[str, Any], table: Table, but: tuple[str, ...]) -> dict[str, Any]:
    return {name: record[name] for name in table.names if name not in but}
