"""What is summed over rounds: how many have an outcome, how many have none, outcomes and their squares."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cmp.estimation.cells import Arm
from cmp.estimation.sums import FloatArray, IntArray, group_least, group_sums, split_by_scope

__all__ = ["Terms", "least_outcomes"]


def least_outcomes(y: FloatArray, stratum: IntArray, n_strata: int) -> FloatArray:
    """Return the least outcome of each stratum; 0 without one.

    Examples
    --------
    >>> least_outcomes(np.array([3.0, np.nan, 5.0]), np.array([1, 1, 1]), 2)
    array([0., 3.])
    """
    known = ~np.isnan(y)
    return group_least(stratum[known], y[known], n_strata)


@dataclass(frozen=True, slots=True)
class Terms:
    """One column a round for each sum, split into limbs, so that no order of rounds shows in a sum or a difference."""

    offset: FloatArray
    """(S,), the least outcome of each stratum, which is taken off; 0 without one."""
    columns: list[FloatArray]
    """K arrays of shape (T,)."""
    sizes: tuple[int, int, int, int]
    """How many of the columns are of rounds with an outcome, rounds without, outcomes, and squares."""

    @classmethod
    def of(cls, y: FloatArray, stratum: IntArray, scope: IntArray, base: IntArray | None = None) -> Terms:
        """Split rounds up.

        Parameters
        ----------
        y, stratum
            Shape (T,): outcomes, NaN where missing, and codes of strata.
        scope
            Shape (S,), the scope of each stratum.
        base
            Shape (S,), codes from 0 on: strata of the same code have the same taken off; None for each its own.

        Examples
        --------
        >>> y, one = np.array([3.0, np.nan, 5.0]), np.zeros(3, dtype=int)
        >>> terms = Terms.of(y, one, np.zeros(1, dtype=int))
        >>> arm = terms.arm(terms.sums(one, np.arange(3), 1))
        >>> float(arm.n[0]), float(arm.missing[0]), float(arm.total[0]), float(arm.squares[0])
        (2.0, 1.0, 2.0, 4.0)
        """
        known = ~np.isnan(y)
        base = np.arange(len(scope)) if base is None else base
        offset = least_outcomes(y, base[stratum], len(scope))[base]
        d = np.where(known, y - offset[stratum], 0.0)
        limbs = [split_by_scope(values, scope[stratum], len(y)) for values in (d, d**2)]
        columns = [known.astype(np.float64), (~known).astype(np.float64), *limbs[0], *limbs[1]]
        return cls(offset, columns, (1, 1, len(limbs[0]), len(limbs[1])))

    def sums(self, groups: IntArray, rounds: IntArray, n_groups: int) -> FloatArray:
        """Sum rounds (shape (E,)) within groups (shape (E,)); return shape (K, n_groups)."""
        return np.stack([group_sums(groups, column[rounds], n_groups) for column in self.columns])

    def arm(self, sums: FloatArray) -> Arm:
        """Return sums, or differences of sums, of shape (K, C), as an arm."""
        return Arm.unweighted(*(part.sum(axis=0) for part in np.split(sums, np.cumsum(self.sizes)[:-1])))
