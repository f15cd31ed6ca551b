"""Contexts in which memories are ranked beside those drawn, and some of the ranked are withheld by chance.

Rounds ask queries in turn; each query ranks the memories from its own first one on, around the roster. The ranked part
is laid out as :func:`cmp.serving.slots.lay_out` does, for all rounds at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

from experiments.designs import RANKED_SLOTS, WITHHELD
from experiments.worlds import World

__all__ = ["Shown", "lay_out_all", "withheld_contrasts"]

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Shown:
    """Which part each memory has in each round; every array is (S, T, N)."""

    ranked: BoolArray
    """In the ranked part, drawn or withheld too."""
    kept: BoolArray
    """Ranked, and kept where chance might have withheld it."""
    withheld: BoolArray
    in_context: BoolArray


def lay_out_all(drawn: BoolArray, queries: IntArray, rng: np.random.Generator) -> Shown:
    """Lay contexts out: the ranked part, what is withheld of it, what is shown.

    Parameters
    ----------
    drawn
        Shape (S, T, N).
    queries
        Shape (T,).
    rng
        What withholding draws from.
    """
    ranked, candidates = ranked_part(drawn, queries)
    keys = np.where(candidates, rng.random(drawn.shape), 2.0)
    withheld = np.zeros_like(drawn)
    np.put_along_axis(withheld, keys.argmin(axis=2)[..., None], values=True, axis=2)
    return Shown(ranked, candidates & ~withheld, withheld, (drawn | ranked) & ~withheld)


def ranked_part(drawn: BoolArray, queries: IntArray) -> tuple[BoolArray, BoolArray]:
    """Return who is in the ranked part, and who of it may be withheld: (..., T, N) each."""
    n = drawn.shape[-1]
    order = (np.arange(n) + (RANKED_SLOTS + WITHHELD) * queries[:, None]) % n
    undrawn = ~np.take_along_axis(drawn, np.broadcast_to(order, drawn.shape), axis=-1)
    by_rank: IntArray = np.cumsum(undrawn, axis=-1) - undrawn
    back = np.broadcast_to(np.argsort(order, axis=-1), drawn.shape)
    ahead: IntArray = np.take_along_axis(by_rank, back, axis=-1)
    ranked: BoolArray = ahead < RANKED_SLOTS + WITHHELD
    candidates: BoolArray = (ahead < RANKED_SLOTS) & ~drawn
    return ranked, candidates


def withheld_contrasts(world: World, queries: IntArray, k: int) -> tuple[FloatArray, FloatArray]:
    """Return the contrasts of drawn rounds and of rounds kept or withheld, each round's by listing every context.

    Returns
    -------
    tuple of numpy.ndarray
        (T, N) each: E[outcome | drawn] - E[outcome | not drawn] where the memory is not in the ranked part, and
        E[outcome | kept] - E[outcome | withheld] where it may be withheld; 0 where there is no such round.
    """
    n = len(world.effect)
    sets = np.array(list(combinations(range(n), k)))
    drawn = np.zeros((len(sets), n), dtype=bool)
    np.put_along_axis(drawn, sets, values=True, axis=1)
    by_draw, by_rank = np.zeros((len(queries), n)), np.zeros((len(queries), n))
    for query in np.unique(queries):
        rounds = queries == query
        ranked, candidates = ranked_part(drawn[:, None], np.array([query]))
        ranked, candidates = ranked[:, 0], candidates[:, 0]
        context, choice = np.nonzero(candidates)  # every draw with each of those who may be withheld
        away = np.zeros((len(context), n), dtype=bool)
        away[np.arange(len(context)), choice] = True
        in_context = (drawn | ranked)[context] & ~away
        mean = world.level[rounds, None] + in_context @ world.effect
        mean = np.clip(mean, 0.0, 1.0) if world.bounded else mean
        chosen, part, maybe = drawn[context], ranked[context], candidates[context]
        by_draw[rounds] = _gap(mean, chosen & ~part, ~chosen & ~part)
        by_rank[rounds] = _gap(mean, maybe & ~away, maybe & away)
    return by_draw, by_rank


def _gap(mean: FloatArray, one: BoolArray, none: BoolArray) -> FloatArray:
    with np.errstate(invalid="ignore"):
        gap = mean @ one / one.sum(axis=0) - mean @ none / none.sum(axis=0)
    found: FloatArray = np.nan_to_num(gap)
    return found
