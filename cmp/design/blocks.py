"""Blocks: how many rounds one table serves, who gets the odd exposure, and the propensities that follow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from hashlib import sha256
from math import ceil

import numpy as np
from numpy.typing import NDArray

from cmp.design.tables import Table, deal_table

__all__ = ["Block", "block_generator", "block_length", "drawable_slots", "joint_propensity", "plan_block"]

GENERATOR = "PCG64"


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """A run of rounds dealt from one table.

    Attributes
    ----------
    ids
        The roster, sorted; length N.
    table
        Shape (L, k), positions in ``ids``: row t holds the memories drawn for the t-th round used.
    planned
        Shape (N,), exposures of each memory in the table.
    """

    ids: tuple[str, ...]
    table: Table
    planned: NDArray[np.int64]

    @property
    def length(self) -> int:
        """Rounds in the block, L."""
        return int(self.table.shape[0])

    @property
    def k(self) -> int:
        """Random slots in each round."""
        return int(self.table.shape[1])

    def drawn(self, row: int) -> tuple[tuple[str, float], ...]:
        """Return (id, propensity) of the memories drawn for a row."""
        length = self.length
        return tuple((self.ids[m], int(self.planned[m]) / length) for m in self.table[row])


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
    digest = sha256(f"{seed}\x1f{ordinal}\x1f{stream}".encode()).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest, "little")))


def plan_block(
    ids: Sequence[str],
    k: int,
    length: int,
    generator: np.random.Generator,
    exposures_before: Mapping[str, int] | None = None,
) -> Block:
    """Plan a block: draw its table, the odd exposures going to the least exposed so far.

    Parameters
    ----------
    ids
        The roster, in any order (it is sorted, so that the draw does not depend on it), without repeats.
    k
        Random slots, at most ``len(ids) - 1`` (see :func:`drawable_slots`).
    length
        Rounds of the block (see :func:`block_length`).
    generator
        See :func:`block_generator`.
    exposures_before
        Exposures planned for each memory in earlier blocks; absent means none. Ties are broken at random, so
        that in a first block the larger count goes to a uniformly random set.

    Examples
    --------
    >>> block = plan_block(["c", "a", "b"], 1, 4, np.random.default_rng(0), {"a": 2, "b": 1, "c": 2})
    >>> dict(zip(block.ids, block.planned.tolist()))
    {'a': 1, 'b': 2, 'c': 1}
    """
    roster = tuple(sorted(ids))
    n = len(roster)
    before = exposures_before or {}
    order = generator.permutation(n)
    exposed = np.fromiter((before.get(roster[m], 0) for m in order), dtype=np.int64, count=n)
    least = order[np.argsort(exposed, kind="stable")][: (length * k) % n]
    table = deal_table(n, length, k, generator.permutation(least), generator)
    return Block(roster, table, np.bincount(table.ravel(), minlength=n))
