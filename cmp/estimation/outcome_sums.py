"""What values outcomes take, by family, as sums and extremes that add up over disjoint sets of strata."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cmp.estimation.cells import BoolArray, Outcomes
from cmp.estimation.sums import FloatArray, IntArray, group_least, group_sums

__all__ = ["OutcomeSums", "describe_outcomes", "sum_outcomes"]


@dataclass(frozen=True, slots=True)
class OutcomeSums:
    """Arrays of shape (F,), one a family; ``a + b`` is what both sets of strata give together."""

    low: FloatArray
    """Least outcome; infinite without one."""
    high: FloatArray
    between: BoolArray
    """Whether some outcome is neither of these."""
    varies: BoolArray
    """Whether outcomes vary within a stratum."""
    rounds: FloatArray
    """Rounds with an outcome."""
    second: FloatArray
    """Sum of squares about the stratum's mean."""
    fourth: FloatArray
    """Sum of fourth powers about it."""

    def __add__(self, other: OutcomeSums) -> OutcomeSums:
        """Return the sums over both sets of strata; entries are of the same families."""
        low, high = np.minimum(self.low, other.low), np.maximum(self.high, other.high)
        between = np.zeros(len(low), dtype=bool)
        for part in (self, other):
            inner = [(value != low) & (value != high) for value in (part.low, part.high)]
            between |= part.between | ((part.rounds > 0) & (inner[0] | inner[1]))
        return OutcomeSums(
            low,
            high,
            between,
            self.varies | other.varies,
            self.rounds + other.rounds,
            self.second + other.second,
            self.fourth + other.fourth,
        )

    def moved(self, rows: IntArray, n_families: int) -> OutcomeSums:
        """Return the sums with family ``f`` in place ``rows[f]`` of ``n_families``."""
        nothing = (np.inf, -np.inf, False, False, 0.0, 0.0, 0.0)
        arrays = (self.low, self.high, self.between, self.varies, self.rounds, self.second, self.fourth)
        moved = [np.full(n_families, value) for value in nothing]
        for array, into in zip(arrays, moved, strict=True):
            into[rows] = array
        return OutcomeSums(*moved)

    @property
    def extremes(self) -> tuple[float, float] | None:
        """Least and greatest outcome of all; None without any."""
        seen = self.rounds > 0
        return (float(self.low[seen].min()), float(self.high[seen].max())) if seen.any() else None

    def described(self) -> Outcomes:
        """Return what tables are told of outcomes."""
        low, high = self.low, self.high
        is_bit = np.isin(low, (0.0, 1.0)) & np.isin(high, (0.0, 1.0))
        constant_bit = is_bit & (low == high)
        kurtosis = np.full(len(low), 3.0)
        np.divide(
            self.fourth * self.rounds, self.second**2, out=kurtosis, where=self.varies & (self.second > 0)
        )
        return Outcomes(
            np.where(constant_bit | (low > high), 0.0, low),
            np.where(constant_bit, 1.0, high),
            ~self.between & (is_bit | ((low < high) & self.varies)),
            # what the order of the sums left is cut off
            np.array([float(f"{value:.9g}") for value in kurtosis]),
            ~self.between,
        )


def sum_outcomes(y: FloatArray, stratum: IntArray, family: IntArray, n_families: int) -> OutcomeSums:
    """Sum known outcomes up, one family at a time.

    Parameters
    ----------
    y, stratum, family
        Shape (T,): outcomes, codes of strata, codes of families (0 to F-1, unions of strata).
    n_families
        F.

    Examples
    --------
    >>> y, one = np.array([0.0, 0.0, 0.0, 1.0] * 10), np.zeros(40, dtype=int)
    >>> half = sum_outcomes(y[:20], one[:20], one[:20], 1)
    >>> (half + half).described().kurtosis.round(2).tolist()
    [2.33]
    """
    low, high = np.full(n_families, np.inf), np.full(n_families, -np.inf)
    np.minimum.at(low, family, y)
    np.maximum.at(high, family, y)
    between = np.bincount(family[(y != low[family]) & (y != high[family])], minlength=n_families) > 0
    sizes = np.bincount(stratum)
    d = y - group_least(stratum, y, len(sizes))[stratum]
    residual = d - (group_sums(stratum, d, len(sizes)) / np.maximum(sizes, 1))[stratum]
    second, fourth = (group_sums(family, residual**power, n_families) for power in (2, 4))
    rounds = np.bincount(family, minlength=n_families).astype(np.float64)
    varies = np.bincount(family[d > 0], minlength=n_families) > 0
    return OutcomeSums(low, high, between, varies, rounds, second, fourth)


def describe_outcomes(y: FloatArray, stratum: IntArray, family: IntArray, n_families: int) -> Outcomes:
    """Describe known outcomes, one family at a time.

    Parameters
    ----------
    y, stratum, family
        Shape (T,): outcomes, codes of strata, codes of families (0 to F-1, unions of strata).
    n_families
        F; families without an outcome are not two-valued.

    Examples
    --------
    >>> y, one = np.array([0.0, 0.0, 0.0, 1.0] * 10), np.zeros(40, dtype=int)
    >>> found = describe_outcomes(y, one, one, 1)
    >>> found.two_valued.tolist(), found.kurtosis.round(2).tolist()
    ([True], [2.33])

    A constant 7 has no variance, and is no proportion:

    >>> describe_outcomes(y * 0 + 7, one, one, 1).two_valued.tolist()
    [False]
    """
    return sum_outcomes(y, stratum, family, n_families).described()
