"""What exact tests condition on: how many rounds, exposures and successes each stratum had, equal strata counted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cmp.estimation.cells import BoolArray
from cmp.estimation.exact_tests import p_values_of_margins
from cmp.estimation.sums import FloatArray, IntArray, group_sums, row_codes, scattered

__all__ = ["Margins", "count_margins"]


@dataclass(frozen=True, slots=True)
class Margins:
    """Strata by memory, arrays of shape (D,), one row for all strata of a memory that are alike."""

    memory: IntArray
    """Row of the result table."""
    n: IntArray
    """Rounds of the stratum."""
    n1: IntArray
    """Of these, exposed ones."""
    successes: IntArray
    """Of both arms."""
    count: IntArray
    """How many strata are so."""
    exposed_successes: IntArray
    """Shape (M,), successes among the exposed, over all strata."""

    def __add__(self, other: Margins) -> Margins:
        """Return the margins of both sets of strata; rows are of the same memories."""
        strata = np.concatenate([self._strata, other._strata])
        count = np.concatenate([self.count, other.count])
        return _counted(strata, count, self.exposed_successes + other.exposed_successes)

    @property
    def _strata(self) -> IntArray:
        return np.stack([self.memory, self.n, self.n1, self.successes], axis=1)

    def moved(self, rows: IntArray, n_memories: int) -> Margins:
        """Return the margins with memory ``m`` in row ``rows[m]`` of ``n_memories``."""
        sums = scattered(self.exposed_successes, rows, n_memories)
        return Margins(rows[self.memory], self.n, self.n1, self.successes, self.count, sums)

    def where(self, rows: BoolArray, other: Margins) -> Margins:
        """Return these strata of some memories and the other ones' of the rest."""
        mine, theirs = rows[self.memory], ~rows[other.memory]
        return _counted(
            np.concatenate([self._strata[mine], other._strata[theirs]]),
            np.concatenate([self.count[mine], other.count[theirs]]),
            np.where(rows, self.exposed_successes, other.exposed_successes),
        )

    def p_values(self) -> FloatArray:
        """Return the exact conditional p-values, shape (M,): see :func:`conditional_p_values`."""
        return p_values_of_margins(self.memory, self._strata[:, 1:], self.count, self.exposed_successes)


def count_margins(
    memory: IntArray, x1: FloatArray, n1: FloatArray, x0: FloatArray, n0: FloatArray, n_memories: int
) -> Margins:
    """Count the strata that decide something: those with rounds in both arms.

    Parameters
    ----------
    memory
        Shape (C,), which memory each stratum belongs to.
    x1, n1, x0, n0
        Shape (C,), successes and rounds, exposed and control: whole numbers.
    n_memories
        Number of memories M.

    Examples
    --------
    >>> one = np.ones(2)
    >>> found = count_margins(np.array([0, 0]), one, 2 * one, 0 * one, 5 * one, 1)
    >>> found.n.tolist(), found.n1.tolist(), found.successes.tolist(), found.count.tolist()
    ([7], [2], [1], [2])
    """
    both = (n1 > 0) & (n0 > 0)
    owner, exposed = memory[both], x1[both]
    whole = [np.rint(values[both]).astype(np.int64) for values in (n1 + n0, n1, x1 + x0)]
    sums = np.rint(group_sums(owner, exposed, n_memories)).astype(np.int64)
    return _counted(np.stack([owner, *whole], axis=1), np.ones(len(owner), dtype=np.int64), sums)


def _counted(strata: IntArray, count: IntArray, sums: IntArray) -> Margins:
    """Put strata that are alike together; columns are memory, rounds, exposed rounds and successes."""
    order = np.argsort(row_codes(strata), kind="stable")
    rows = strata[order]
    is_new = np.ones(len(rows), dtype=bool)
    is_new[1:] = (np.diff(rows, axis=0) != 0).any(axis=1)
    begins = np.flatnonzero(is_new)
    counts = np.add.reduceat(count[order], begins) if len(begins) else count
    memory, n, n1, successes = rows[begins].T
    return Margins(memory, n, n1, successes, counts, sums)
