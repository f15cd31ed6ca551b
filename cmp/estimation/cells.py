"""Additive statistics of one memory in one stratum: where a log and plain arrays meet."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from cmp.estimation.sums import FloatArray, IntArray, group_sums

__all__ = ["Arm", "Cells", "Outcomes", "Tallies", "describe_values", "kurtosis_within"]

BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Arm:
    """Sums over the rounds of one arm, each of shape (C,); ``d`` is the outcome less the cell's offset.

    ``w`` is 1, or the inverse probability of the arm where propensities differ inside a cell.
    """

    n: FloatArray
    """Rounds with an outcome."""
    missing: FloatArray
    """Rounds without one."""
    weight: FloatArray
    """Sum of w."""
    weight_squares: FloatArray
    """Sum of w squared."""
    total: FloatArray
    """Sum of w d, outcome units."""
    squares: FloatArray
    """Sum of w d squared, outcome units squared."""

    @property
    def size(self) -> FloatArray:
        """Effective number of rounds, (sum w)^2 / sum w^2; the number itself where weights are equal."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(self.n > 0, self.weight**2 / self.weight_squares, 0.0)

    @property
    def mean(self) -> FloatArray:
        """Weighted mean of d; NaN in an empty arm."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return self.total / self.weight

    @property
    def within_squares(self) -> FloatArray:
        """Sum of squares about the arm's own mean, scaled to effective rounds; rounding dust is cut to 0."""
        with np.errstate(invalid="ignore", divide="ignore"):
            about_mean = self.squares - self.total**2 / self.weight
            dust = _DUST * self.n * self.squares
            return np.where(about_mean > dust, about_mean, 0.0) * np.where(
                self.n > 0, self.size / self.weight, 0.0
            )

    def select(self, rows: BoolArray | IntArray) -> Arm:
        """Return the arm for some cells."""
        return Arm(*(getattr(self, field.name)[rows] for field in fields(self)))

    @classmethod
    def unweighted(cls, n: FloatArray, missing: FloatArray, total: FloatArray, squares: FloatArray) -> Arm:
        """Return an arm in which every round weighs 1."""
        return cls(n, missing, n, n, total, squares)


#: Relative size of what cancellation leaves of a sum of squares that is zero (a few units of 2**-53 a term).
_DUST = 4e-16


@dataclass(frozen=True, slots=True)
class Cells:
    """Statistics per (memory, stratum), each array of shape (C,), cells of one memory in any order."""

    memory: IntArray
    """Row of the result table."""
    offset: FloatArray
    """What was taken off the outcomes: the least outcome of the stratum, so that no row order shows in it."""
    propensity: FloatArray
    """Design probability of assignment; NaN where unknown, or where it differs inside the cell."""
    weighted: bool
    """Whether propensities differ inside cells, so that arms carry inverse-probability weights."""
    exposed: Arm
    control: Arm
    second_moment: FloatArray
    """Sum over both arms of (outcome / probability of its arm) squared, for Horvitz-Thompson; else NaN."""
    strata: FloatArray
    """How many strata the cell stands for: 1, unless it gathers those without an exposed outcome."""
    centre: FloatArray
    """The cell's estimate where it is not the difference of its arms' means; else NaN."""
    scale: FloatArray
    """What a difference of the arms' means counts for in the estimate; 1 where it is the estimate."""

    @classmethod
    def unweighted(
        cls,
        memory: IntArray,
        offset: FloatArray,
        propensity: FloatArray,
        exposed: Arm,
        control: Arm,
        strata: FloatArray | None = None,
    ) -> Cells:
        """Return cells inside which the propensity is constant."""
        with np.errstate(divide="ignore", invalid="ignore"):  # cells at 0 or 1 are left out by the caller
            second_moment = sum(
                (arm.squares + 2.0 * offset * arm.total + offset**2 * arm.n) / chance**2
                for arm, chance in ((exposed, propensity), (control, 1.0 - propensity))
            )
        return cls(
            memory,
            offset,
            propensity,
            False,
            exposed,
            control,
            np.asarray(second_moment),
            np.ones(len(memory)) if strata is None else strata,
            np.full(len(memory), np.nan),
            np.ones(len(memory)),
        )

    def select(self, rows: BoolArray) -> Cells:
        """Return some of the cells."""
        return Cells(
            memory=self.memory[rows],
            offset=self.offset[rows],
            propensity=self.propensity[rows],
            weighted=self.weighted,
            exposed=self.exposed.select(rows),
            control=self.control.select(rows),
            second_moment=self.second_moment[rows],
            strata=self.strata[rows],
            centre=self.centre[rows],
            scale=self.scale[rows],
        )

    def joined(self, other: Cells) -> Cells:
        """Return the cells of both."""

        def both(one: FloatArray, two: FloatArray) -> FloatArray:
            return np.concatenate([one, two])

        arms = (
            Arm(*(both(getattr(a, f.name), getattr(b, f.name)) for f in fields(Arm)))
            for a, b in ((self.exposed, other.exposed), (self.control, other.control))
        )
        exposed, control = arms
        return Cells(
            memory=np.concatenate([self.memory, other.memory]),
            offset=both(self.offset, other.offset),
            propensity=both(self.propensity, other.propensity),
            weighted=self.weighted or other.weighted,
            exposed=exposed,
            control=control,
            second_moment=both(self.second_moment, other.second_moment),
            strata=both(self.strata, other.strata),
            centre=both(self.centre, other.centre),
            scale=both(self.scale, other.scale),
        )


@dataclass(frozen=True, slots=True)
class Tallies:
    """Rounds that carry no contrast, per memory, each of shape (M,)."""

    ranked: IntArray
    """Rounds in which the ranker showed the memory (or the caller called it not eligible)."""
    certain: IntArray
    """Rounds with propensity 0 or 1."""
    always_drawn: IntArray
    """Of these, rounds with propensity 1."""


@dataclass(frozen=True, slots=True)
class Outcomes:
    """What values the outcome takes over the whole table."""

    low: float
    high: float
    two_valued: bool
    """Two values, or a constant 0 or 1: these are proportions after mapping ``low, high`` to 0, 1."""
    kurtosis: float | FloatArray = 3.0
    """Fourth standardized moment about the stratum's mean: a number, or shape (M,), that of each memory's family."""


def describe_values(values: FloatArray) -> Outcomes:
    """Tell two-valued outcomes from others; ``values`` are those that are known.

    Examples
    --------
    >>> describe_values(np.zeros(5))
    Outcomes(low=0.0, high=1.0, two_valued=True, kurtosis=3.0)
    >>> describe_values(np.full(5, 7.0)).two_valued
    False
    """
    if not values.size:
        return Outcomes(0.0, 1.0, False)
    low, high = float(values.min()), float(values.max())
    if low == high:
        return Outcomes(0.0, 1.0, True) if low in (0.0, 1.0) else Outcomes(low, high, False)
    return Outcomes(low, high, bool(((values == low) | (values == high)).all()))


def kurtosis_within(y: FloatArray, stratum: IntArray, family: IntArray) -> FloatArray:
    """Return the kurtosis of known outcomes about the mean of their stratum, one a family; 3 where they do not vary.

    Parameters
    ----------
    y, stratum, family
        Shape (T,): outcomes, codes of strata, codes of families (0 to F-1, unions of strata).

    Examples
    --------
    >>> y = np.array([0.0, 0.0, 0.0, 1.0] * 10)
    >>> kurtosis_within(y, np.zeros(40, dtype=int), np.zeros(40, dtype=int)).round(2).tolist()
    [2.33]
    """
    if not y.size:
        return np.full(1, 3.0)
    sizes = np.bincount(stratum)
    residual = y - (group_sums(stratum, y, len(sizes)) / np.maximum(sizes, 1))[stratum]
    n = int(family.max()) + 1
    second, fourth = (group_sums(family, residual**power, n) for power in (2, 4))
    count = np.bincount(family, minlength=n)
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.where(second > _DUST * count * np.abs(y).max() ** 2, fourth * count / second**2, 3.0)
    return np.array([float(f"{value:.9g}") for value in found])  # what the order of the sums left is cut off
