"""What a caller gets back: the context of one round."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, overload

__all__ = ["Context", "Item"]


@dataclass(frozen=True, slots=True)
class Item:
    """One memory of a round.

    Attributes
    ----------
    id
        As the log writes it.
    item
        The store's own object, untouched; None where it was not delivered.
    slot
        Position in the context, from 0; None where it was not delivered.
    arm
        ``"ranked"`` or ``"random"``.
    propensity
        Probability of this exposure under the design, known before the outcome; 1 for a ranked memory.
    delivered
        False where the memory was drawn but had been deleted or could not be fetched.
    score
        The retriever's own, where it gave one.
    """

    id: str
    item: Any
    slot: int | None
    arm: str
    propensity: float
    delivered: bool
    score: float | None = None


@dataclass(frozen=True, slots=True)
class Context(Sequence[Any]):
    """The context of one round: a sequence of the caller's own objects, in slot order.

    Attributes
    ----------
    round_id
        The key under which the outcome is recorded.
    randomized
        Whether random slots were drawn and logged; if not, ``fallback_reason`` says why.
    items
        What stands in which slot and why, undelivered memories last.
    objects
        What ``list(context)`` gives.
    """

    round_id: str
    randomized: bool
    items: tuple[Item, ...]
    objects: tuple[Any, ...]
    fallback_reason: str | None = None

    def __iter__(self) -> Iterator[Any]:
        return iter(self.objects)

    def __len__(self) -> int:
        return len(self.objects)

    @overload
    def __getitem__(self, position: int) -> Any: ...

    @overload
    def __getitem__(self, position: slice) -> Sequence[Any]: ...

    def __getitem__(self, position: int | slice) -> Any:
        return self.objects[position]

    def __bool__(self) -> bool:
        return bool(self.objects)
