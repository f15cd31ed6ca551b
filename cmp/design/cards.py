"""Reference cards: blanks in the roster, against which a utility is absolute and not relative to the pool."""

from __future__ import annotations

from math import ceil, sqrt
from typing import Final, Literal

from cmp.errors import InvalidIdError

__all__ = ["CARD_PREFIX", "card_ids", "is_card", "n_reference_cards"]

#: No memory may have an id that begins so.
CARD_PREFIX: Final = "__card__/"


def n_reference_cards(n_memories: int, reference_cards: int | Literal["auto"]) -> int:
    """Return how many cards a roster gets; ``"auto"`` is Dunnett's allocation, ``ceil(sqrt(N))``.

    References
    ----------
    Dunnett, C. W. (1955). A multiple comparison procedure for comparing several treatments with a control. JASA 50,
    1096-1121.

    Examples
    --------
    >>> n_reference_cards(32, "auto"), n_reference_cards(32, 4)
    (6, 4)
    """
    return ceil(sqrt(n_memories)) if reference_cards == "auto" else reference_cards


def card_ids(number: int) -> list[str]:
    """Return the ids of a roster's cards.

    Examples
    --------
    >>> card_ids(2)
    ['__card__/1', '__card__/2']
    """
    return [f"{CARD_PREFIX}{n}" for n in range(1, number + 1)]


def is_card(memory_id: str) -> bool:
    """Return whether an id is a card's."""
    return memory_id.startswith(CARD_PREFIX)


def refuse_cards(ids: list[str]) -> None:
    """Refuse memories whose ids are reserved.

    Raises
    ------
    InvalidIdError
        Naming the first.
    """
    for memory_id in ids:
        if is_card(memory_id):
            raise InvalidIdError(f"the id {memory_id!r} is reserved for reference cards; rename the memory")
