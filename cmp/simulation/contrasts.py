"""What a contrast estimates in a world that is known: every set that a round may draw, listed.

A design draws every set of ``k`` of a roster equally often. For each set, the context is laid out as it is in serving,
and its mean outcome is known; so the mean over the sets that hold a memory, less the mean over those that do not, is
what its rounds estimate. Sets in which the ranker would show it anyway are left out, as its rounds are.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations
from math import comb

import numpy as np
from numpy.typing import NDArray

from cmp.design.cards import is_card

__all__ = ["LARGEST_LISTING", "Contrasts", "Listing", "check_size"]

FloatArray = NDArray[np.float64]

#: Sets of one roster that are listed at most; their contexts take about a second.
LARGEST_LISTING = 500_000


@dataclass(frozen=True, slots=True)
class Contrasts:
    """By roster position, shape (N,): the contrast, NaN where there is none, and the share of sets eligible."""

    contrast: FloatArray
    eligible: FloatArray


def check_size(n_roster: int, k: int) -> None:
    """Refuse a roster whose sets are too many to list.

    Raises
    ------
    ValueError
        Naming how many there are.
    """
    if comb(n_roster, k) > LARGEST_LISTING:
        raise ValueError(
            f"a roster of {n_roster} has {comb(n_roster, k):,} sets of {k}, and the truth lists them all, "
            f"{LARGEST_LISTING:,} at most; simulate fewer memories, cards or random slots"
        )


class Listing:
    """The contexts of every set that a round may draw from a roster, for one ranking."""

    def __init__(
        self,
        roster: Sequence[str],
        gone: Collection[str],
        ranking: Sequence[str],
        *,
        slots: int,
        k: int,
        fills_cards: bool,
    ) -> None:
        """List them.

        Parameters
        ----------
        roster
            Ids of memories and cards.
        gone
            Those of the roster that have been deleted since: their slots go to the next ranked.
        ranking
            Ids that the ranker reaches, best first.
        slots, k
            ``B`` and ``k``.
        fills_cards
            Whether a card's slot goes to the next ranked, or stays empty.
        """
        check_size(len(roster), k)
        self.roster = list(roster)
        self.held = [memory not in gone for memory in roster]
        number = comb(len(roster), k)
        flat = np.fromiter(chain.from_iterable(combinations(range(len(roster)), k)), np.int64, number * k)
        self.sets = flat.reshape(number, k)
        cards = np.array([is_card(memory) for memory in roster])
        away = ~np.array(self.held)
        # no draw can bring more of the ranking into play than this
        self.head = [memory for memory in ranking if memory not in gone][: slots + 3 * k]
        self._lay_out(cards, away, slots - k, fills_cards)

    def _lay_out(
        self, cards: NDArray[np.bool_], away: NDArray[np.bool_], plain: int, fills_cards: bool
    ) -> None:
        places = {memory: place for place, memory in enumerate(self.roster)}
        #: Where each of the head stands in the roster, -1 for one that is not in it.
        self.head_places = np.array([places.get(memory, -1) for memory in self.head], dtype=np.int64)
        drawn = (self.sets[:, :, None] == self.head_places[None, None, :]).any(axis=1)
        filled = cards[self.sets].sum(axis=1) if fills_cards else np.zeros(len(self.sets), dtype=np.int64)
        before = np.cumsum(~drawn, axis=1) - ~drawn
        part = before < (plain + filled)[:, None]
        substitutes = away[self.sets].sum(axis=1)
        #: Shape (sets, head): shown though not drawn; and in the ranked part or in another's place.
        self.shown = ~drawn & (before < (plain + filled + substitutes)[:, None])
        self.barred = part | self.shown

    def means(self, utilities: Mapping[str, float], level: float, *, is_cut: bool) -> FloatArray:
        """Return the mean outcome of each set's context."""
        worth = np.array(
            [
                utilities.get(memory, 0.0) if held else 0.0
                for memory, held in zip(self.roster, self.held, strict=True)
            ]
        )
        ranked = np.array([utilities[memory] for memory in self.head])
        total: FloatArray = level + worth[self.sets].sum(axis=1) + self.shown @ ranked
        return np.clip(total, 0.0, 1.0) if is_cut else total

    def contrasts(self, means: FloatArray) -> Contrasts:
        """Return what each memory's rounds estimate."""
        n, k = len(self.roster), self.sets.shape[1]
        number = np.bincount(self.sets.ravel(), minlength=n).astype(np.float64)
        exposed = np.bincount(self.sets.ravel(), np.repeat(means, k), minlength=n)
        others, control = len(means) - number, means.sum() - exposed
        for column, place in enumerate(self.head_places.tolist()):
            if place < 0:
                continue
            barred = self.barred[:, column]
            drawn = (self.sets == place).any(axis=1)
            for rows, sums, counts in ((drawn, exposed, number), (~drawn, control, others)):
                sums[place] -= means[barred & rows].sum()
                counts[place] -= np.count_nonzero(barred & rows)
        known = (number > 0) & (others > 0) & np.array(self.held)
        contrast = np.full(n, np.nan)
        contrast[known] = exposed[known] / number[known] - control[known] / others[known]
        return Contrasts(contrast, np.where(known, (number + others) / len(means), 0.0))
