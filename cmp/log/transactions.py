"""What is done inside one transaction of a SQLite log. Each function takes the connection of the writer thread."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Final, TypeAlias
from uuid import uuid4

import numpy as np

from cmp.design import Block
from cmp.errors import ConflictingOutcomeError, LogCorruptedError, ScopeError, UnknownRoundError
from cmp.log.records import AssignedRound, Compose, Drawn, Exposure, Request, StreamState

__all__ = ["CREATE_CURSORS"]

Connection: TypeAlias = sqlite3.Connection

#: Where each stream of blocks stands. Apart from ``blocks``, whose rows are large, because every round updates it.
CREATE_CURSORS: Final = (
    'CREATE TABLE "cursors" ("stream" TEXT PRIMARY KEY, "block_id" TEXT NOT NULL, "scope" TEXT NOT NULL, '
    '"ordinal" INTEGER NOT NULL, "used" INTEGER NOT NULL, "length" INTEGER NOT NULL)'
)
_INSERT_ROUND: Final = "INSERT INTO rounds VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,1)"
_INSERT_EXPOSURE: Final = "INSERT OR REPLACE INTO exposures VALUES (?,?,?,?,?,?,?,?,?)"
_SELECT_EXPOSURES: Final = (
    "SELECT memory_id, arm, assigned, slot, propensity, delivered, reason, content_hash "
    "FROM exposures WHERE round_id = ? ORDER BY slot IS NULL, slot, rowid"
)


def assign(
    connection: Connection, request: Request, compose: Compose, block_of: Callable[[Connection, str], Block]
) -> AssignedRound | None:
    """Return the round as logged before, or log it with the next row of its stream; None if there is no row left."""
    known = connection.execute(
        "SELECT scope, randomized, fallback_reason FROM rounds WHERE round_id = ?", (request.round_id,)
    ).fetchone()
    if known is not None:
        return _repeat(connection, request, *known)
    taken: tuple[str, int] | tuple[None, None] = (None, None)
    drawn: list[Drawn] = []
    n_roster = 0
    if request.stream is not None:
        row = connection.execute(
            "UPDATE cursors SET used = used + 1 WHERE stream = ? AND used < length RETURNING block_id, used - 1",
            (request.stream,),
        ).fetchone()
        if row is None:
            return None
        taken = row
        block = block_of(connection, row[0])
        n_roster = len(block.ids)
        drawn = _drawn(connection, row[0], block, row[1])
    exposures = compose(drawn)
    n_ranked = sum(exposure.arm == "ranked" for exposure in exposures)
    connection.execute(
        _INSERT_ROUND,
        (
            request.round_id,
            request.scope,
            *taken,
            request.episode_id,
            request.group,
            request.query_hash,
            micros(request.asked_at),
            n_roster,
            len(drawn),
            n_ranked,
            request.stream is not None,
            request.fallback_reason,
        ),
    )
    _write_exposures(connection, request.round_id, exposures)
    return AssignedRound(
        request.round_id, request.scope, request.stream is not None, request.fallback_reason, exposures, False
    )


def _repeat(
    connection: Connection, request: Request, scope: str, randomized: int, fallback_reason: str | None
) -> AssignedRound:
    if scope != request.scope:
        raise ScopeError(
            f"round {request.round_id!r} was asked in another scope before; a round_id belongs to one retrieval: "
            "give each its own, or none"
        )
    connection.execute("UPDATE rounds SET attempts = attempts + 1 WHERE round_id = ?", (request.round_id,))
    exposures = exposures_of(connection, request.round_id)
    return AssignedRound(request.round_id, scope, bool(randomized), fallback_reason, exposures, True)


def _drawn(connection: Connection, block_id: str, block: Block, row: int) -> list[Drawn]:
    drawn = block.drawn(row)
    marks = ",".join("?" * len(drawn))
    gone = {
        memory_id
        for (memory_id,) in connection.execute(
            f"SELECT memory_id FROM rosters WHERE block_id = ? AND memory_id IN ({marks}) "  # noqa: S608 (marks only)
            "AND removed_row IS NOT NULL",
            (block_id, *(memory_id for memory_id, _ in drawn)),
        )
    }
    return [Drawn(memory_id, propensity, memory_id in gone) for memory_id, propensity in drawn]


def _write_exposures(connection: Connection, round_id: str, exposures: Sequence[Exposure]) -> None:
    connection.executemany(
        _INSERT_EXPOSURE,
        [
            (
                round_id,
                e.memory_id,
                e.arm,
                e.assigned,
                e.slot,
                e.propensity,
                e.delivered,
                e.reason,
                e.content_hash,
            )
            for e in exposures
        ],
    )


def exposures_of(connection: Connection, round_id: str) -> tuple[Exposure, ...]:
    """Return the exposures of a round in slot order."""
    rows = connection.execute(_SELECT_EXPOSURES, (round_id,)).fetchall()
    if (
        not rows
        and connection.execute("SELECT 1 FROM rounds WHERE round_id = ?", (round_id,)).fetchone() is None
    ):
        raise UnknownRoundError(f"there is no round {round_id!r} in the log; pass the round_id of a Context")
    return tuple(
        Exposure(m, arm, bool(a), slot, p, bool(d), why, h) for m, arm, a, slot, p, d, why, h in rows
    )


def amend(connection: Connection, round_id: str, exposures: Sequence[Exposure]) -> None:
    """Replace or add rows; a memory found deleted leaves its block from this round on."""
    row = connection.execute(
        "SELECT block_id, block_row FROM rounds WHERE round_id = ?", (round_id,)
    ).fetchone()
    if row is None:
        raise UnknownRoundError(f"there is no round {round_id!r} in the log")
    _write_exposures(connection, round_id, exposures)
    connection.executemany(
        "UPDATE rosters SET removed_row = min(coalesce(removed_row, ?2), ?2) WHERE block_id = ?1 AND memory_id = ?3",
        [(*row, e.memory_id) for e in exposures if e.assigned and e.reason == "deleted"],
    )


def write_contents(connection: Connection, notes: Sequence[tuple[str, str, str]]) -> None:
    """Write noted content hashes, (hash, round_id, memory_id) each."""
    connection.executemany(
        "UPDATE exposures SET content_hash = ? WHERE round_id = ? AND memory_id = ?", notes
    )


def stream_state(connection: Connection, stream: str) -> StreamState:
    """Return the number of blocks of a stream and the exposures planned in them."""
    row = connection.execute("SELECT ordinal, block_id FROM cursors WHERE stream = ?", (stream,)).fetchone()
    if row is None:
        return StreamState(0, {})
    planned = connection.execute(
        "SELECT memory_id, planned_before + planned FROM rosters WHERE block_id = ?", (row[1],)
    ).fetchall()
    return StreamState(row[0] + 1, dict(planned))


def open_block(
    connection: Connection, stream: str, scope: str, group: str | None, block: Block, ordinal: int
) -> bool:
    """Store block number ``ordinal`` of a stream, unless another worker has: a block is used up before the next."""
    left = connection.execute(
        "SELECT 1 FROM cursors WHERE stream = ? AND used < length", (stream,)
    ).fetchone()
    state = stream_state(connection, stream)
    if left is not None or state.blocks != ordinal:
        return False
    block_id = uuid4().hex
    connection.execute(
        "INSERT INTO blocks VALUES (?,?,?,?,?,?,?,?)",
        (
            block_id,
            scope,
            group,
            "balanced",
            block.k,
            block.length,
            block.table.astype("<u4").tobytes(),
            micros(datetime.now(UTC)),
        ),
    )
    before = state.exposures_before
    connection.executemany(
        "INSERT INTO rosters VALUES (?,?,?,?,?,NULL)",
        (
            (block_id, memory_id, position, planned, before.get(memory_id, 0))
            for position, (memory_id, planned) in enumerate(
                zip(block.ids, block.planned.tolist(), strict=True)
            )
        ),
    )
    connection.execute(
        "INSERT OR REPLACE INTO cursors VALUES (?,?,?,?,0,?)",
        (stream, block_id, scope, ordinal, block.length),
    )
    return True


def read_block(connection: Connection, block_id: str) -> Block:
    """Read a stored block back."""
    row = connection.execute(
        'SELECT k, length, "table" FROM blocks WHERE block_id = ?', (block_id,)
    ).fetchone()
    roster = connection.execute(
        "SELECT memory_id, planned FROM rosters WHERE block_id = ? ORDER BY position", (block_id,)
    ).fetchall()
    if row is None or len(row[2]) != 4 * row[0] * row[1] or not roster:
        raise LogCorruptedError(
            f"block {block_id} of the log is incomplete; `cmpolicy validate` says what is damaged"
        )
    k, length, table = row
    positions = np.frombuffer(table, dtype="<u4").astype(np.int64).reshape(length, k)
    ids, planned = zip(*roster, strict=True)
    return Block(tuple(ids), positions, np.array(planned, dtype=np.int64))


def remove(connection: Connection, scope: str, ids: Sequence[str]) -> int:
    """Mark memories as gone from the next row of every open block of a scope; return the number of rows marked."""
    return connection.executemany(
        "UPDATE rosters SET removed_row = (SELECT used FROM cursors WHERE cursors.block_id = rosters.block_id) "
        "WHERE memory_id = ? AND removed_row IS NULL AND block_id IN (SELECT block_id FROM cursors WHERE scope = ?)",
        [(memory_id, scope) for memory_id in ids],
    ).rowcount


def outcome(
    connection: Connection, round_id: str, metric: str, value: float, at: datetime, correct: bool
) -> bool:
    """Record an outcome once; a different value needs ``correct`` and is appended as a revision."""
    last = connection.execute(
        "SELECT value, revision FROM outcomes WHERE round_id = ? AND metric = ? ORDER BY revision DESC LIMIT 1",
        (round_id, metric),
    ).fetchone()
    if last is not None and last[0] != value and not correct:
        raise ConflictingOutcomeError(
            f"round {round_id!r} already has {metric} = {last[0]!r}, and {value!r} came now; the first is kept. "
            "Pass correct=True to replace it by a revision"
        )
    if last is None or last[0] != value:
        revision = 0 if last is None else last[1] + 1
        connection.execute(
            "INSERT INTO outcomes VALUES (?,?,?,?,?)", (round_id, metric, value, micros(at), revision)
        )
    return connection.execute("SELECT 1 FROM rounds WHERE round_id = ?", (round_id,)).fetchone() is not None


def micros(at: datetime) -> int:
    """Return microseconds since the epoch, exactly."""
    since = at - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
