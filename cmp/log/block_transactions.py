"""What is done to the blocks of a log inside one transaction, in SQL that SQLite and Postgres both speak."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

import numpy as np
from numpy.typing import NDArray

from cmp.design import Block
from cmp.log.records import Staged
from cmp.log.schema import ROSTERS
from cmp.log.transactions import Session, insert_into, micros

__all__ = ["end_blocks", "exposures_before", "open_block", "open_rosters", "remove", "stage", "stream_end"]

#: Rounds of a block that has no table and so no end.
ENDLESS: Final = 2**62

_INSERT_ROSTER: Final = insert_into(ROSTERS)


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
    if session.execute("SELECT 1 FROM blocks WHERE block_id = ?", (staged.block_id,)).fetchone() is not None:
        return True  # by this very transaction, whose commit was not answered
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


def remove(session: Session, scope: str, ids: Sequence[str]) -> int:
    """Mark memories as gone from the next row of every open block of a scope; return the number of rows marked."""
    session.execute("UPDATE cursors SET used = used WHERE scope = ?", (scope,))  # no row is dealt meanwhile
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
