"""Blocks: how many rounds one table serves, who gets the odd exposure, and the propensities that follow."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import ceil

import numpy as np
from numpy.typing import NDArray

from cmp.design.keyed import key_of
from cmp.design.tables import Table, deal_table

__all__ = [
    "Block",
    "block_generator",
    "block_length",
    "drawable_slots",
    "joint_propensity",
    "plan_block",
    "uniform_block",
]

GENERATOR = "PCG64"


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """A run of rounds of one design over one roster.

    Attributes
    ----------
    design
        ``"balanced"``: dealt from a table. ``"uniform"``: every round draws by its own key, and the block ends only
        with its roster.
    k
        Random slots in each round.
    length
        Rounds of the table, L. Without one, N: propensities are ``planned / length`` either way.
    planned
        Shape (N,), exposures of each memory in ``length`` rounds.
    table
        Shape (L, k), positions in the sorted roster: row t holds the memories drawn for the t-th round used. None
        without a table.
    """

    design: str
    k: int
    length: int
    planned: NDArray[np.int64]
    table: Table | None


def drawable_slots(n_memories: int, k: int) -> int:
    """Return how many of ``k`` random slots a roster allows: at least one memory stays out of every draw.

    Examples
    --------
    >>> [drawable_slots(n, 2) for n in (0, 1, 2, 3, 32)]
    [0, 0, 1, 2, 2]
    """
    return max(0, min(k, n_memories - 1))


def block_length(
    n_memories: int, k: int, exposures_per_block: float = 2, max_block_rounds: int | None = None
) -> int:
    """Return ``ceil(c N / k)`` rounds, at most ``max_block_rounds``.

    Examples
    --------
    >>> block_length(32, 2), block_length(1000, 2, max_block_rounds=100)
    (32, 100)
    """
    wanted = ceil(Fraction(exposures_per_block) * n_memories / k)
    return max(1, min(wanted, max_block_rounds or wanted))


def joint_propensity(n_memories: int, k: int) -> float:
    """Return the probability that two given memories are both drawn for a given round of a first block.

    Examples
    --------
    >>> round(joint_propensity(10, 3), 6)
    0.066667
    """
    return k * (k - 1) / (n_memories * (n_memories - 1))


def block_generator(seed: int | None, stream: str, ordinal: int) -> np.random.Generator:
    """Return the generator of one block's table.

    With a seed it is a function of (seed, stream, ordinal) alone, so that no two blocks share a stream of random
    numbers and no process state matters; without one it comes from the operating system's entropy.
    """
    if seed is None:
        return np.random.Generator(np.random.PCG64())
    return np.random.Generator(np.random.PCG64(key_of("table", seed, stream, ordinal)))


def plan_block(
    n_memories: int,
    k: int,
    length: int,
    generator: np.random.Generator,
    exposures_before: NDArray[np.int64] | None = None,
) -> Block:
    """Plan a block: draw its table, the odd exposures going to the least exposed so far.

    Parameters
    ----------
    n_memories
        Size of the roster. A memory is its position in the sorted roster, so that the draw does not depend on the
        order in which a store lists its ids.
    k
        Random slots, at most ``n_memories - 1`` (see :func:`drawable_slots`).
    length
        Rounds of the block (see :func:`block_length`).
    generator
        See :func:`block_generator`.
    exposures_before
        Shape (N,), exposures planned in earlier blocks; None means none. Ties are broken at random, so that in a
        first block the larger count goes to a uniformly random set.

    Examples
    --------
    >>> plan_block(3, 1, 4, np.random.default_rng(0), np.array([2, 1, 2])).planned.tolist()
    [1, 2, 1]
    """
    order = generator.permutation(n_memories)
    if exposures_before is not None:
        order = order[np.argsort(exposures_before[order], kind="stable")]
    least = order[: (length * k) % n_memories]
    table = deal_table(n_memories, length, k, generator.permutation(least), generator)
    return Block("balanced", k, length, np.bincount(table.ravel(), minlength=n_memories), table)


def uniform_block(n_memories: int, k: int) -> Block:
    """Return the block of the uniform design: each round draws ``k`` of the roster by its key, propensity ``k / N``.

    For fleets that cannot share a counter: stable under retries, no coordination, not balanced.

    Examples
    --------
    >>> block = uniform_block(10, 3)
    >>> set((block.planned / block.length).tolist())
    {0.3}
    """
    return Block("uniform", k, n_memories, np.full(n_memories, k, dtype=np.int64), None)
