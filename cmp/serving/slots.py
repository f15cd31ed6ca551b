"""Who stands in which slot: the ranked part, the random slots, and what replaces a memory that is gone."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from cmp.log.records import Drawn, Exposure

__all__ = ["lay_out", "stand_in"]


def lay_out(ranked: Sequence[str], drawn: Sequence[Drawn], slots: int) -> tuple[Exposure, ...]:
    """Lay out a context of ``slots`` positions.

    The ranked part holds the first ``slots - len(drawn)`` ranked results that were not drawn, and every drawn memory
    ranked before the last of them: it stays where it was ranked, and its freed slot goes to the next ranked
    result. Whether a memory is in the ranked part then depends on the draws of the others only, never on its own,
    so that leaving out the rounds in which it was ranked biases nothing. Other drawn memories follow, in drawn
    order; there is no top-up.

    Parameters
    ----------
    ranked
        Ids as ranked, without repeats.
    drawn
        Memories drawn for the round, ids distinct.
    slots
        Context positions, at least ``len(drawn)``.

    Examples
    --------
    >>> rows = lay_out(["a", "b", "c", "d"], [Drawn("b", 0.2), Drawn("z", 0.2)], slots=4)
    >>> [(row.memory_id, row.arm, row.assigned) for row in rows]
    [('a', 'ranked', False), ('b', 'ranked', True), ('c', 'ranked', False), ('z', 'random', True)]
    """
    left = {memory.id: memory for memory in drawn}
    wanted = slots - len(drawn)
    rows: list[Exposure] = []
    for memory_id in ranked:
        if not wanted:
            break
        assigned = left.pop(memory_id, None) is not None
        wanted -= not assigned
        rows.append(_ranked(memory_id, len(rows), assigned))
    rows.extend(
        Exposure(memory.id, "random", True, slot, memory.propensity, True)
        for slot, memory in enumerate(left.values(), start=len(rows))
    )
    gone = [memory.id for memory in left.values() if memory.deleted]
    return stand_in(rows, gone, "deleted", ranked) if gone else tuple(rows)


def stand_in(
    rows: Sequence[Exposure], gone: Collection[str], reason: str, ranked: Sequence[str]
) -> tuple[Exposure, ...]:
    """Give the slots of memories that are gone to the next ranked results; what is gone keeps a row, undelivered."""
    used = {row.memory_id for row in rows}
    spare = [memory_id for memory_id in ranked if memory_id not in used]
    kept = [row for row in rows if row.memory_id not in gone]
    lost = [replace(row, slot=None, delivered=False, reason=reason) for row in rows if row.memory_id in gone]
    shown = [row for row in kept if row.delivered] + [
        _ranked(memory_id, 0, False) for memory_id in spare[: len(lost)]
    ]
    renumbered = [
        replace(row, slot=slot) for slot, row in enumerate(sorted(shown, key=lambda row: row.arm == "random"))
    ]
    return (*renumbered, *(row for row in kept if not row.delivered), *lost)


def _ranked(memory_id: str, slot: int, assigned: bool) -> Exposure:
    return Exposure(memory_id, "ranked", assigned, slot, 1.0, True)
