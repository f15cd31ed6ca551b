"""Who stands in which slot: the ranked part, the random slots, cards, and what replaces a memory that is gone."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from cmp.design import keyed_permutation, keyed_sample
from cmp.design.cards import is_card
from cmp.log.records import Drawn, Exposure

__all__ = ["Layout", "lay_out", "stand_in"]


@dataclass(frozen=True, slots=True)
class Layout:
    """How contexts are laid out: ``B`` slots, how many ranked memories are withheld, blanks, placement."""

    slots: int
    withhold: int = 0
    card: Literal["empty", "ranked"] = "empty"
    placement: Literal["last", "shuffle"] = "last"

    @property
    def is_drawn(self) -> bool:
        """Whether laying out draws anything, and so needs a key."""
        return self.withhold > 0 or self.placement == "shuffle"


def lay_out(
    ranked: Sequence[str], drawn: Sequence[Drawn], layout: Layout, key: int = 0
) -> tuple[Exposure, ...]:
    """Lay out a context.

    The ranked part holds the first ``B - k`` ranked results that were not drawn, and every drawn memory ranked before
    the last of them: it stays where it was ranked, and its freed slot goes to the next ranked result. Given the
    draws of the others, whether a memory is in the ranked part does not depend on its own, so that leaving out the
    rounds in which it was ranked biases nothing within a query. Over several queries it weighs them slightly
    differently in the two arms for a memory ranked just below: one other fewer is drawn beside it. With four ranked
    slots and two of 32 memories drawn, the fifth result is eligible in 27/31 of its exposed rounds and in .755 of the
    others. Other drawn memories follow, in drawn order; there is no top-up.

    Of the ``B - k``, ``withhold`` are taken out at random and the next ranked fill in; a blank card's slot stays empty,
    or goes to the next ranked too.

    Parameters
    ----------
    ranked
        Ids as ranked, without repeats.
    drawn
        Memories and cards drawn for the round, ids distinct, at most ``layout.slots``.
    layout
        See :class:`Layout`.
    key
        What withholding and shuffling draw from.

    Examples
    --------
    >>> rows = lay_out(["a", "b", "c", "d"], [Drawn("b", 0.2), Drawn("z", 0.2)], Layout(slots=4))
    >>> [(row.memory_id, row.arm, row.assigned) for row in rows]
    [('a', 'ranked', False), ('b', 'ranked', True), ('c', 'ranked', False), ('z', 'random', True)]
    """
    left = {memory.id for memory in drawn}
    cards = {memory_id for memory_id in left if is_card(memory_id)}
    filled = len(cards) if layout.card == "ranked" else 0
    part, plain = _ranked_part(ranked, left, layout.slots - len(drawn) + layout.withhold + filled)
    candidates = plain[: layout.slots - len(drawn)]
    n_withheld = min(layout.withhold, len(candidates))
    withheld = {candidates[place] for place in keyed_sample(key, len(candidates), n_withheld)}
    chance = n_withheld / len(candidates) if n_withheld else 0.0
    others = [memory for memory in drawn if memory.id not in part]
    n_held = len(part) - n_withheld + len(others) - filled
    shuffled = layout.placement == "shuffle"
    slots = iter(keyed_permutation(key, n_held) if shuffled else range(n_held))
    rows = [
        _ranked(memory_id, memory_id in left, next(slots), 1.0 - chance if memory_id in candidates else 1.0)
        for memory_id in part
        if memory_id not in withheld
    ]
    for memory in others:
        arm = "card" if memory.id in cards else "random"
        slot = None if filled and arm == "card" else next(slots)
        rows.append(Exposure(memory.id, arm, True, slot, memory.propensity, True))
    if shuffled or filled:
        rows.sort(key=lambda row: n_held if row.slot is None else row.slot)
    rows += [
        Exposure(memory_id, "withheld", False, None, chance, False, "withheld")
        for memory_id in candidates
        if memory_id in withheld
    ]
    gone = [memory.id for memory in others if memory.deleted]
    return stand_in(rows, gone, "deleted", ranked) if gone else tuple(rows)


def _ranked_part(ranked: Sequence[str], left: Collection[str], wanted: int) -> tuple[list[str], list[str]]:
    """Return the ranking down to the ``wanted``-th result that was not drawn, and those that were not."""
    part: list[str] = []
    plain: list[str] = []
    for memory_id in ranked:
        if len(plain) == wanted:
            break
        part.append(memory_id)
        if memory_id not in left:
            plain.append(memory_id)
    return part, plain


def stand_in(
    rows: Sequence[Exposure], gone: Collection[str], reason: str, ranked: Sequence[str]
) -> tuple[Exposure, ...]:
    """Give the slots of memories that are gone to the next ranked results; what is gone keeps a row, undelivered."""
    used = {row.memory_id for row in rows}
    spare = iter([memory_id for memory_id in ranked if memory_id not in used])
    kept: list[Exposure] = []
    lost: list[Exposure] = []
    for row in rows:
        if row.memory_id not in gone:
            (kept if row.slot is not None else lost).append(row)
            continue
        lost.append(row._replace(slot=None, delivered=False, reason=reason))
        substitute = next(spare, None)
        if substitute is not None:
            kept.append(_ranked(substitute, False, row.slot, 1.0))
    return (*kept, *lost)


def _ranked(memory_id: str, assigned: bool, slot: int | None, propensity: float) -> Exposure:
    return Exposure(memory_id, "ranked", assigned, slot, propensity, True)
