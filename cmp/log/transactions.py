"""What is done inside one transaction of a log, in SQL that SQLite and Postgres both speak.

Every function takes the :class:`Session` of the writer thread; the store around it begins and commits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from cmp.design import keyed_sample
from cmp.errors import ConflictingOutcomeError, LogCorruptedError, ScopeError, UnknownRoundError
from cmp.log.records import AssignedRound, Compose, Drawn, Exposure, Request
from cmp.log.schema import EXPOSURES, ROUNDS, Table

if TYPE_CHECKING:
    from cmp.log.queueing import Queued

__all__ = ["CREATE_CURSORS", "Note", "Session", "StoredBlock"]


class Session(Protocol):
    """A connection, with ``?`` for parameters."""

    def execute(self, query: str, parameters: Sequence[Any] = ()) -> Any: ...

    def executemany(self, query: str, parameters: Iterable[Sequence[Any]]) -> Any: ...


class Note(NamedTuple):
    """The content hash of a memory in a round."""

    content: str
    round_id: str
    memory_id: str


#: Where each stream of blocks stands. Apart from ``blocks``, whose rows are large, because every round updates it.
CREATE_CURSORS: Final = (
    'CREATE TABLE "cursors" ("stream" TEXT PRIMARY KEY, "block_id" TEXT NOT NULL, "scope" TEXT NOT NULL, '
    '"ordinal" BIGINT NOT NULL, "used" BIGINT NOT NULL, "length" BIGINT NOT NULL)'
)


def insert_into(table: Table) -> str:
    """Return the statement that inserts one row."""
    marks = ", ".join("?" * len(table.columns))
    return f'INSERT INTO "{table.name}" VALUES ({marks})'  # noqa: S608 (names of the schema)


_INSERT_ROUND: Final = insert_into(ROUNDS)
_INSERT_EXPOSURE: Final = insert_into(EXPOSURES)
_UPSERT_EXPOSURE: Final = (
    _INSERT_EXPOSURE
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


def assign(
    session: Session, request: Request, compose: Compose, block_of: BlockOf, *, is_new: bool = False
) -> AssignedRound | None:
    """Return the round as logged before, or log it with the next row of its stream; None if there is no row left.

    ``is_new`` says that the round cannot have been logged before, which saves the look.
    """
    known = None
    if not is_new:
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
    session.executemany(_INSERT_EXPOSURE, _exposure_rows(request.round_id, exposures))
    return AssignedRound(
        request.round_id, request.scope, randomized, request.fallback_reason, exposures, False
    )


def lease(
    session: Session, stream: str, rows: int, block_of: BlockOf
) -> list[tuple[str, int, int, tuple[Drawn, ...]]]:
    """Take up to ``rows`` rows of a stream's table; each is (block_id, row, roster size, what is drawn)."""
    session.execute(
        "UPDATE cursors SET used = used WHERE stream = ?", (stream,)
    )  # nobody else takes them meanwhile
    found = session.execute(
        "SELECT block_id, used, length FROM cursors WHERE stream = ? AND used < length", (stream,)
    ).fetchone()
    if found is None:
        return []
    block = block_of(session, found[0])
    if block.table is None:  # drawn by the key of each round, which is not known yet
        return []
    last = min(found[1] + rows, found[2])
    session.execute("UPDATE cursors SET used = ? WHERE stream = ?", (last, stream))
    return [
        (found[0], row, block.n, tuple(_drawn(session, block, block.positions(row, 0))))
        for row in range(found[1], last)
    ]


def write_queued(session: Session, queued: Sequence[Queued]) -> None:
    """Write rounds that were acknowledged before; what is there already was committed without an answer."""
    session.executemany(
        _INSERT_ROUND + " ON CONFLICT (round_id) DO NOTHING",
        [_round_row(q.request, (q.block_id, q.row), q.n_roster, q.k, q.exposures) for q in queued],
    )
    session.executemany(
        _INSERT_EXPOSURE + " ON CONFLICT (round_id, memory_id) DO NOTHING",
        [row for q in queued for row in _exposure_rows(q.request.round_id, q.exposures)],
    )


def count_attempt(session: Session, round_id: str) -> None:
    """Count that a round was asked for again."""
    session.execute("UPDATE rounds SET attempts = attempts + 1 WHERE round_id = ?", (round_id,))


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
    count_attempt(session, request.round_id)
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


def _exposure_rows(round_id: str, exposures: Sequence[Exposure]) -> list[tuple[Any, ...]]:
    return [(round_id, *row) for row in exposures]


def exposures_of(session: Session, round_id: str) -> tuple[Exposure, ...]:
    """Return the exposures of a round in slot order."""
    rows = session.execute(_SELECT_EXPOSURES, (round_id,)).fetchall()
    if not rows and not _is_known(session, round_id):
        raise UnknownRoundError(f"there is no round {round_id!r} in the log; pass the round_id of a Context")
    return tuple(
        Exposure(m, arm, bool(a), slot, p, bool(d), why, h) for m, arm, a, slot, p, d, why, h in rows
    )


def amend(session: Session, round_id: str, exposures: Sequence[Exposure]) -> None:
    """Replace or add rows: what was found missing on fetching, or trimmed by the caller.

    A memory found missing stays eligible to the end of its block, assigned and undelivered (intention to treat). It is
    found missing when it is drawn: to end its rounds there would keep rounds after the deletion as controls that could
    not be exposures, and make its estimate depend on its own draw.
    """
    if not _is_known(session, round_id):
        raise UnknownRoundError(f"there is no round {round_id!r} in the log")
    session.executemany(_UPSERT_EXPOSURE, _exposure_rows(round_id, exposures))


def withdraw(session: Session, round_id: str, reason: str) -> None:
    """Mark what a round would have delivered as undelivered; a retry that has come since delivers it."""
    session.execute(
        "UPDATE exposures SET delivered = ?, reason = ? WHERE round_id = ? AND delivered = ? "
        "AND EXISTS (SELECT 1 FROM rounds WHERE rounds.round_id = exposures.round_id AND attempts = 1)",
        (False, reason, round_id, True),
    )


def write_contents(session: Session, notes: Sequence[Note]) -> None:
    """Write noted content hashes."""
    session.executemany("UPDATE exposures SET content_hash = ? WHERE round_id = ? AND memory_id = ?", notes)


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
