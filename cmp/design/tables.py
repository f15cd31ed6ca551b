"""Balanced assignment tables: which memories go to the random slots of which round.

A table is dealt in shuffled passes of the roster, so that counts are balanced and no row repeats an id;
then its rows are put in random order. The first makes counts differ by at most one, the second makes the
rounds of a memory, given its count, a simple random sample: complete randomization.
"""

from __future__ import annotations

from operator import index
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["Table", "balanced_table", "deal_table"]

Table: TypeAlias = NDArray[np.int64]


def balanced_table(n_memories: int, rounds: int, k: int, seed: int | np.random.Generator) -> Table:
    """Draw a balanced assignment table.

    Every row holds ``k`` distinct memories; every memory stands in ``floor(rounds * k / n_memories)`` or one
    more rows, and who gets one more is uniformly random. Given its count ``n_m``, the rounds of memory ``m``
    are a simple random sample of ``n_m`` out of ``rounds``, so its propensity is ``n_m / rounds``. Over the
    draw, two given memories share a given round with probability ``k (k - 1) / (n_memories (n_memories - 1))``.

    Parameters
    ----------
    n_memories
        Size of the roster, at least 1 (at least ``k``).
    rounds
        Number of rounds (rows), 0 or more.
    k
        Random slots in a round (columns), from 0 to ``n_memories``.
    seed
        A non-negative integer, or a generator that is advanced.

    Returns
    -------
    numpy.ndarray of shape (rounds, k), int64
        Positions in the roster, from 0 to ``n_memories - 1``. Cost is linear in ``rounds * k`` and ``n_memories``.

    Raises
    ------
    ValueError
        Where a size is negative or fractional, or ``k`` exceeds ``n_memories``.

    Examples
    --------
    >>> table = balanced_table(n_memories=32, rounds=90, k=2, seed=7)
    >>> table.shape
    (90, 2)
    >>> sorted(set(np.bincount(table.ravel()).tolist()))
    [5, 6]
    """
    n, length, slots = checked_sizes(n_memories, rounds, k)
    generator = np.random.default_rng(seed)
    ceiling = generator.permutation(n)[: (length * slots) % n]
    return deal_table(n, length, slots, ceiling, generator)


def deal_table(
    n: int, length: int, k: int, ceiling: NDArray[np.int64], generator: np.random.Generator
) -> Table:
    """Deal a table in which the memories of ``ceiling`` get one exposure more than the rest.

    The partial pass over ``ceiling`` comes first: any full pass can follow it without a repeat in the row where
    the two meet, while a partial pass at the end could be left with nothing but the ids of an unfinished row.

    Parameters
    ----------
    n, length, k
        Checked sizes, ``0 <= k <= n``.
    ceiling
        Positions of the ``length * k mod n`` memories with the larger count, in random order.
    generator
        Source of the passes, the order of the rows and the order within each row.
    """
    dealt = np.empty(length * k, dtype=np.int64)
    dealt[: ceiling.size] = ceiling
    for start in range(ceiling.size, dealt.size, n):
        unfinished = dealt[start - start % k : start]
        dealt[start : start + n] = _pass_after(unfinished, n, k, generator)
    rows = dealt.reshape(length, k)[generator.permutation(length)]
    return generator.permuted(rows, axis=1)


def _pass_after(unfinished: Table, n: int, k: int, generator: np.random.Generator) -> Table:
    """Return a uniform draw among the passes of the roster that complete ``unfinished`` without a repeat."""
    if unfinished.size == 0:
        return generator.permutation(n)
    allowed = np.ones(n, dtype=bool)
    allowed[unfinished] = False
    head = generator.permutation(np.flatnonzero(allowed))[: k - unfinished.size]
    left = np.ones(n, dtype=bool)
    left[head] = False
    return np.concatenate([head, generator.permutation(np.flatnonzero(left))])


def checked_sizes(n_memories: int, rounds: int, k: int) -> tuple[int, int, int]:
    """Return the three sizes as ints, or raise ValueError saying which is wrong."""
    sizes = {"n_memories": n_memories, "rounds": rounds, "k": k}
    for name, value in sizes.items():
        try:
            sizes[name] = index(value)
        except TypeError:
            raise ValueError(f"{name} is {value!r}; give a whole number") from None
        if sizes[name] < 0:
            raise ValueError(f"{name} is {value}; it cannot be negative")
    n, length, slots = sizes["n_memories"], sizes["rounds"], sizes["k"]
    if n < 1:
        raise ValueError("n_memories is 0; a table needs at least one memory to draw from")
    if slots > n:
        raise ValueError(
            f"k is {slots} and the roster holds {n}: a row cannot hold {slots} distinct memories; lower k "
            "(drawable_slots gives what a roster allows)"
        )
    return n, length, slots
