"""Utilities against reference cards: absolute, where the plain contrast is relative to the pool."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np

from cmp.estimation.cells import Arm, BoolArray, Cells
from cmp.estimation.statistics import LogStatistics
from cmp.estimation.sums import FloatArray, group_sums

__all__ = ["against_cards"]


def against_cards(found: LogStatistics, is_card: BoolArray) -> Cells:
    """Return cells that compare each memory's exposed rounds with the rounds exposed to a card.

    Showing a memory displaces another member of the pool, so its contrast is ``u_m`` less the mean of the others. A
    card's contrast is the same with the card's utility; with additive utilities ``u_m - u_card`` is
    ``(N - 1) / N`` times the difference of the two, N counting cards. That is each cell's centre. Its
    variance has, to first order, no control term: it is that of the exposed rounds of the memory and of the cards.

    Parameters
    ----------
    found
        Statistics of a log.
    is_card
        Shape (M,), which rows of ``found.keys`` are cards.

    Returns
    -------
    Cells
        Of the memories only, in strata that hold an exposed card.
    """
    cells = found.cells
    with np.errstate(invalid="ignore"):
        gap = cells.exposed.mean - cells.control.mean
    of_card = is_card[cells.memory]
    usable = of_card & (cells.exposed.n > 0) & (cells.control.n > 0)
    n_strata = int(found.stratum.max(initial=0)) + 1

    def per_stratum(values: FloatArray) -> FloatArray:
        return group_sums(found.stratum[usable], values[usable], n_strata)

    cards = Arm(*(per_stratum(getattr(cells.exposed, field.name)) for field in fields(Arm)))
    with np.errstate(invalid="ignore", divide="ignore"):
        card_gap = per_stratum(cells.exposed.n * np.where(usable, gap, 0.0)) / cards.n
    rows = ~of_card & (cards.n[found.stratum] > 0)
    stratum, n = found.stratum[rows], found.n_roster[rows]
    factor = (n - 1.0) / n
    mine = cells.select(rows)
    return replace(
        mine,
        control=cards.select(stratum),
        centre=factor * (gap[rows] - card_gap[stratum]),
        scale=factor,
    )
