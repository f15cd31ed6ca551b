"""The comparison everybody makes: delete memories from the store at random, and see what changes.

It identifies nothing about a memory that the ranker would not have shown: with or without it, the context is the
same. It is here to be beaten at the same budget.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import polars as pl

from cmp.design import balanced_table
from cmp.estimation import estimate

__all__ = ["store_randomization"]


def store_randomization(
    ranking: Sequence[str],
    score: Callable[[Sequence[str]], float],
    *,
    slots: int,
    rounds: int,
    deleted: int,
    seed: int | np.random.Generator,
) -> pl.DataFrame:
    """Estimate utilities by balanced random deletions from the store of one query.

    In each round ``deleted`` memories are away and the context is the top ``slots`` of the rest. The ranker's
    scores are held fixed, so that the context changes exactly where a shown memory was deleted. A memory's
    utility is the mean outcome with it in the store less the mean outcome without it.

    Parameters
    ----------
    ranking
        Every id of the store, best first.
    score
        Outcome of a context, given its ids in order.
    slots, rounds, deleted
        Context positions, rounds, and memories away in each round.
    seed
        Seed of the balanced table of deletions.

    Returns
    -------
    polars.DataFrame
        The columns of :func:`cmp.estimate`, with ids in ``memory_id``, and ``unchanged``: the share of rounds
        whose context was that of the whole store.

    Examples
    --------
    >>> table = store_randomization(
    ...     ["a", "b", "c", "d"], lambda ids: float("d" in ids), slots=2, rounds=8, deleted=1, seed=0
    ... )
    >>> table.filter(pl.col("memory_id") == "d")["utility"].item()  # d helps, and is never shown
    0.0
    """
    ids = list(ranking)
    away = balanced_table(len(ids), rounds, deleted, seed)
    kept = np.ones((rounds, len(ids)), dtype=bool)
    np.put_along_axis(kept, away, values=False, axis=1)
    tops = [np.flatnonzero(row)[:slots] for row in kept]
    outcomes = np.array([score([ids[place] for place in top]) for top in tops], dtype=float)
    whole = np.arange(min(slots, len(ids)))
    unchanged = float(np.mean([np.array_equal(top, whole) for top in tops])) if tops else float("nan")
    table = estimate(kept, outcomes).frame
    names = pl.Series("memory_id", [ids[place] for place in table["memory_id"]], dtype=pl.String)
    return table.with_columns(names, unchanged=pl.lit(unchanged))
