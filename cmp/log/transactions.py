"""What is done inside one transaction of a log, in SQL that SQLite and Postgres both speak.

Every function takes the :class:`Session` of the writer thread; the store around it begins and commits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Protocol, TypeAlias
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from cmp.design import Block, keyed_sample
from cmp.errors import ConflictingOutcomeError, LogCorruptedError, ScopeError, UnknownRoundError
from cmp.log.records import AssignedRound, Compose, Drawn, Exposure, Request, Staged
from cmp.log.schema import EXPOSURES, ROSTERS, ROUNDS, Table

__all__ = ["CREATE_CURSORS", "Session", "StoredBlock"]


class Session(Protocol):
    """A connection, with ``?`` for parameters."""

    def execute(self, query: str, parameters: Sequence[Any] = ()) -> Any: ...

    def executemany(self, query: str, parameters: Iterable[Sequence[Any]]) -> Any: ...


#: Where each stream of blocks stands. Apart from ``blocks``, whose rows are large, because every round updates it.
CREATE_CURSORS: Final = (
    'CREATE TABLE "cursors" ("stream" TEXT PRIMARY KEY, "block_id" TEXT NOT NULL, "scope" TEXT NOT NULL, '
    '"ordinal" BIGINT NOT NULL, "used" BIGINT NOT NULL, "length" BIGINT NOT NULL)'
)

#: Rounds of a block that has no table and so no end.
ENDLESS: Final = 2**62


def _insert(table: Table) -> str:
    marks = ", ".join("?" * len(table.columns))
    return f'INSERT INTO "{table.name}" VALUES ({marks})'  # noqa: S608 (names of the schema)


_INSERT_ROUND: Final = _insert(ROUNDS)
_INSERT_ROSTER: Final = _insert(ROSTERS)
_UPSERT_EXPOSURE: Final = (
    _insert(EXPOSURES)
    + " ON CONFLICT (round_id, memory_id) DO UPDATE SET "
    + ", ".join(f"{name} = excluded.{name}" for name in EXPOSURES.names[2:])
)
_SELECT_EXPOSURES: Final = (
    "SELECT memory_id, arm, assigned, slot, propensity, delivered, reason, content_hash "
    "FROM exposures WHERE round_id = ? ORDER BY slot IS NULL, slot, memory_id"
)


@dataclass(frozen=True, slots=True, eq=False)
class StoredBlock:
    """What a worker keeps of a block: its table, or that it has none and is drawn by key."""

    block_id: str
    k: int
    length: int
    n: int
    table: NDArray[np.uint32] | None

    def positions(self, row: int, key: int) -> tuple[int, ...]:
        """Return the roster positions drawn for a row."""
        if self.table is None:
            return keyed_sample(key, self.n, self.k)
        return tuple(self.table[row].tolist())


BlockOf: TypeAlias = Callable[[Session, str], StoredBlock]


def assign(session: Session, request: Request, compose: Compose, block_of: BlockOf) -> AssignedRound | None:
    """Return the round as logged before, or log it with the next row of its stream; None if there is no row left."""
    known = session.execute(
        "SELECT scope, randomized, fallback_reason FROM rounds WHERE round_id = ?", (request.round_id,)
    ).fetchone()
    if known is not None:
        return _repeat(session, request, *known)
    taken: tuple[str, int] | tuple[None, None] = (None, None)
    drawn: list[Drawn] = []
    n_roster = 0
    if request.stream is not None:
        row = session.execute(
            "UPDATE cursors SET used = used + 1 WHERE stream = ? AND used < length RETURNING block_id, used - 1",
            (request.stream,),
        ).fetchone()
        if row is None:
            return None
        taken = (row[0], row[1])
        block = block_of(session, row[0])
        n_roster = block.n
        drawn = _drawn(session, block, block.positions(row[1], request.key))
    exposures = compose(drawn)
    randomized = request.stream is not None
    session.execute(_INSERT_ROUND, _round_row(request, taken, n_roster, len(drawn), exposures))
    _write_exposures(session, request.round_id, exposures)
    return AssignedRound(
        request.round_id, request.scope, randomized, request.fallback_reason, exposures, False
    )


def _round_row(
    request: Request,
    taken: tuple[str | None, int | None],
    n_roster: int,
    k: int,
    exposures: Sequence[Exposure],
) -> tuple[Any, ...]:
    n_ranked = sum(exposure.arm == "ranked" for exposure in exposures)
    return (
        request.round_id,
        request.scope,
        *taken,
        request.episode_id,
        request.group,
        request.query_hash,
        micros(request.asked_at),
        n_roster,
        k,
        n_ranked,
        request.stream is not None,
        request.fallback_reason,
        1,
    )


def _repeat(
    session: Session, request: Request, scope: str, randomized: int, fallback_reason: str | None
) -> AssignedRound:
    if scope != request.scope:
        raise ScopeError(
            f"round {request.round_id!r} was asked in another scope before; a round_id belongs to one retrieval: "
            "give each its own, or none"
        )
    session.execute("UPDATE rounds SET attempts = attempts + 1 WHERE round_id = ?", (request.round_id,))
    exposures = exposures_of(session, request.round_id)
    return AssignedRound(request.round_id, scope, bool(randomized), fallback_reason, exposures, True)


def _drawn(session: Session, block: StoredBlock, positions: Sequence[int]) -> list[Drawn]:
    marks = ",".join("?" * len(positions))
    rows = session.execute(
        "SELECT position, memory_id, planned, removed_row FROM rosters "  # noqa: S608 (marks only)
        f"WHERE block_id = ? AND position IN ({marks})",
        (block.block_id, *positions),
    ).fetchall()
    found = {
        position: Drawn(memory_id, planned / block.length, removed is not None)
        for position, memory_id, planned, removed in rows
    }
    if len(found) < len(positions):
        raise _incomplete(block.block_id)
    return [found[position] for position in positions]


def _write_exposures(session: Session, round_id: str, exposures: Sequence[Exposure]) -> None:
    session.executemany(
        _UPSERT_EXPOSURE,
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


def exposures_of(session: Session, round_id: str) -> tuple[Exposure, ...]:
    """Return the exposures of a round in slot order."""
    rows = session.execute(_SELECT_EXPOSURES, (round_id,)).fetchall()
    if not rows and not _is_known(session, round_id):
        raise UnknownRoundError(f"there is no round {round_id!r} in the log; pass the round_id of a Context")
    return tuple(
        Exposure(m, arm, bool(a), slot, p, bool(d), why, h) for m, arm, a, slot, p, d, why, h in rows
    )


def amend(session: Session, round_id: str, exposures: Sequence[Exposure]) -> None:
    """Replace or add rows; a memory found deleted leaves its block from this round on."""
    row = session.execute("SELECT block_id, block_row FROM rounds WHERE round_id = ?", (round_id,)).fetchone()
    if row is None:
        raise UnknownRoundError(f"there is no round {round_id!r} in the log")
    _write_exposures(session, round_id, exposures)
    session.executemany(
        "UPDATE rosters SET removed_row = ? WHERE block_id = ? AND memory_id = ? "
        "AND (removed_row IS NULL OR removed_row > ?)",
        [(row[1], row[0], e.memory_id, row[1]) for e in exposures if e.assigned and e.reason == "deleted"],
    )


def write_contents(session: Session, notes: Sequence[tuple[str, str, str]]) -> None:
    """Write noted content hashes, (hash, round_id, memory_id) each."""
    session.executemany("UPDATE exposures SET content_hash = ? WHERE round_id = ? AND memory_id = ?", notes)


def stream_end(session: Session, stream: str) -> tuple[int, str | None] | None:
    """Return how many blocks a stream has had and the last one's id; None where that one has rows left."""
    row = session.execute(
        "SELECT ordinal, block_id, used < length FROM cursors WHERE stream = ?", (stream,)
    ).fetchone()
    if row is None:
        return 0, None
    return None if row[2] else (row[0] + 1, row[1])


def stage(
    session: Session, block_id: str, previous: str | None, first: int, ids: Sequence[str], planned: int
) -> None:
    """Store a part of a roster, from position ``first`` on."""
    before: dict[str, int] = {}
    if previous is not None:
        rows = session.execute(
            "SELECT memory_id, planned_before + planned FROM rosters "
            "WHERE block_id = ? AND memory_id >= ? AND memory_id <= ?",
            (previous, ids[0], ids[-1]),
        )
        before = dict(rows.fetchall())
    session.executemany(
        _INSERT_ROSTER,
        [
            (block_id, memory_id, position, planned, before.get(memory_id, 0), None)
            for position, memory_id in enumerate(ids, start=first)
        ],
    )


def exposures_before(session: Session, block_id: str, n: int) -> NDArray[np.int64]:
    """Return the exposures planned before a staged roster's block, in its order."""
    rows = session.execute(
        "SELECT planned_before FROM rosters WHERE block_id = ? ORDER BY position", (block_id,)
    )
    return np.fromiter((before for (before,) in rows), dtype=np.int64, count=n)


def open_block(
    session: Session, staged: Staged, stream: str, scope: str, group: str | None, block: Block
) -> bool:
    """Open a block, unless another worker has opened one of this ordinal: a block is used up before the next."""
    length = ENDLESS if block.table is None else block.length
    opened = session.execute(
        "INSERT INTO cursors VALUES (?,?,?,?,0,?) ON CONFLICT (stream) DO UPDATE SET block_id = excluded.block_id, "
        "ordinal = excluded.ordinal, used = 0, length = excluded.length "
        "WHERE cursors.ordinal = excluded.ordinal - 1 AND cursors.used >= cursors.length",
        (stream, staged.block_id, scope, staged.ordinal, length),
    ).rowcount
    if not opened:
        session.execute("DELETE FROM rosters WHERE block_id = ?", (staged.block_id,))
        return False
    table = b"" if block.table is None else block.table.astype("<u4").tobytes()
    session.execute(
        "INSERT INTO blocks VALUES (?,?,?,?,?,?,?,?)",
        (
            staged.block_id,
            scope,
            group,
            block.design,
            block.k,
            block.length,
            table,
            micros(datetime.now(UTC)),
        ),
    )
    more = np.flatnonzero(block.planned > block.planned.min()).tolist()
    session.executemany(
        "UPDATE rosters SET planned = planned + 1 WHERE block_id = ? AND position = ?",
        [(staged.block_id, position) for position in more],
    )
    return True


def read_block(session: Session, block_id: str) -> StoredBlock:
    """Read what a worker needs of a stored block."""
    row = session.execute(
        'SELECT design, k, length, "table" FROM blocks WHERE block_id = ?', (block_id,)
    ).fetchone()
    last = session.execute("SELECT max(position) FROM rosters WHERE block_id = ?", (block_id,)).fetchone()
    if row is None or last[0] is None:
        raise _incomplete(block_id)
    design, k, length, table = row
    if design == "uniform":
        return StoredBlock(block_id, k, length, last[0] + 1, None)
    if len(table) != 4 * k * length:
        raise _incomplete(block_id)
    return StoredBlock(block_id, k, length, last[0] + 1, np.frombuffer(table, dtype="<u4").reshape(length, k))


def _incomplete(block_id: str) -> LogCorruptedError:
    return LogCorruptedError(
        f"block {block_id} of the log is incomplete; `cmpolicy validate` says what is damaged"
    )


def remove(session: Session, scope: str, ids: Sequence[str]) -> int:
    """Mark memories as gone from the next row of every open block of a scope; return the number of rows marked."""
    removed = 0
    for memory_id in ids:
        removed += session.execute(
            "UPDATE rosters SET removed_row = "
            "(SELECT used FROM cursors WHERE cursors.block_id = rosters.block_id AND cursors.scope = ?) "
            "WHERE memory_id = ? AND removed_row IS NULL "
            "AND block_id IN (SELECT block_id FROM cursors WHERE scope = ?)",
            (scope, memory_id, scope),
        ).rowcount
    if removed:  # a design without a table draws from its whole roster: it goes on with a new one
        session.execute("UPDATE cursors SET length = used WHERE scope = ? AND length = ?", (scope, ENDLESS))
    return removed


def end_blocks(session: Session, scope: str) -> int:
    """End the open blocks of a scope where they stand."""
    ended: int = session.execute(
        "UPDATE cursors SET length = used WHERE scope = ? AND used < length", (scope,)
    ).rowcount
    return ended


def open_rosters(session: Session, scope: str) -> frozenset[str]:
    """Return the ids that the open blocks of a scope may still draw."""
    rows = session.execute(
        "SELECT DISTINCT memory_id FROM rosters WHERE removed_row IS NULL "
        "AND block_id IN (SELECT block_id FROM cursors WHERE scope = ? AND used < length)",
        (scope,),
    )
    return frozenset(memory_id for (memory_id,) in rows.fetchall())


def outcome(session: Session, round_id: str, metric: str, value: float, at: datetime, correct: bool) -> bool:
    """Record an outcome once; a different value needs ``correct`` and is appended as a revision."""
    last = session.execute(
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
        session.execute(
            "INSERT INTO outcomes VALUES (?,?,?,?,?)", (round_id, metric, value, micros(at), revision)
        )
    return _is_known(session, round_id)


def _is_known(session: Session, round_id: str) -> bool:
    return session.execute("SELECT 1 FROM rounds WHERE round_id = ?", (round_id,)).fetchone() is not None


def new_block_id() -> str:
    """Return an id for a block."""
    return uuid4().hex


def micros(at: datetime) -> int:
    """Return microseconds since the epoch, exactly."""
    since = at - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
