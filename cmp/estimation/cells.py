"""Additive statistics of one memory in one stratum: where a log and plain arrays meet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from cmp.estimation.sums import FloatArray, IntArray

__all__ = ["Arm", "BoolArray", "Cells", "Outcomes", "Tallies"]

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
    """Sum of w over the rounds with an outcome, as all the sums below but the last are."""
    weight_squares: FloatArray
    """Sum of w squared."""
    total: FloatArray
    """Sum of w d, outcome units."""
    squares: FloatArray
    """Sum of w d squared, outcome units squared."""
    missing_weight: FloatArray
    """Sum of w over the rounds without an outcome."""

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

    def at(self, cells: IntArray) -> Arm:
        """Return the arm for some cells, and one without a round for -1."""
        return Arm(*(np.where(cells >= 0, getattr(self, field.name)[cells], 0.0) for field in fields(self)))

    @classmethod
    def unweighted(cls, n: FloatArray, missing: FloatArray, total: FloatArray, squares: FloatArray) -> Arm:
        """Return an arm in which every round weighs 1."""
        return cls(n, missing, n, n, total, squares, missing)


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
    information: FloatArray
    """Sum of pi (1 - pi) over rounds with an outcome: the design's n1 n0 / n; NaN where pi is unknown."""
    missing_information: FloatArray
    """The same over rounds without one."""
    place: IntArray
    """Where the stratum stands in time, least first: what looks of a confidence sequence go by."""

    @classmethod
    def unweighted(
        cls,
        memory: IntArray,
        offset: FloatArray,
        propensity: FloatArray,
        exposed: Arm,
        control: Arm,
        strata: FloatArray | None = None,
        place: IntArray | None = None,
    ) -> Cells:
        """Return cells inside which the propensity is constant; without a ``place``, in the order they come in."""
        with np.errstate(divide="ignore", invalid="ignore"):  # cells at 0 or 1 are left out by the caller
            second_moment = sum(
                (arm.squares + 2.0 * offset * arm.total + offset**2 * arm.n) / chance**2
                for arm, chance in ((exposed, propensity), (control, 1.0 - propensity))
            )
        spread = propensity * (1.0 - propensity)
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
            (exposed.n + control.n) * spread,
            (exposed.missing + control.missing) * spread,
            np.arange(len(memory)) if place is None else place,
        )

    def select(self, rows: BoolArray | IntArray) -> Cells:
        """Return some of the cells."""
        if rows.dtype == np.bool_ and rows.all():
            return self
        return self._map(lambda name, part: part if name == "weighted" else _rows_of(part, rows))

    def joined(self, other: Cells) -> Cells:
        """Return the cells of both."""
        return self._map(lambda name, part: _both(part, getattr(other, name)))

    def _map(self, change: Callable[[str, Any], Any]) -> Cells:
        return Cells(**{field.name: change(field.name, getattr(self, field.name)) for field in fields(self)})


def _rows_of(part: Arm | FloatArray, rows: BoolArray | IntArray) -> Any:
    return part.select(rows) if isinstance(part, Arm) else part[rows]


def _both(one: Any, two: Any) -> Any:
    if isinstance(one, Arm):
        return Arm(*(np.concatenate([getattr(one, f.name), getattr(two, f.name)]) for f in fields(Arm)))
    return one or two if isinstance(one, bool) else np.concatenate([one, two])


@dataclass(frozen=True, slots=True)
class Tallies:
    """Rounds that carry no contrast, per memory, each of shape (M,)."""

    ranked: IntArray
    """Rounds in which the ranker showed the memory."""
    ineligible: IntArray
    """Rounds in which it was not eligible, ranked or for another reason."""
    certain: IntArray
    """Rounds with propensity 0 or 1."""
    always_drawn: IntArray
    """Of these, rounds with propensity 1."""


@dataclass(frozen=True, slots=True)
class Outcomes:
    """What values the outcome takes, each array of shape (F,), one a family of memories, or (M,), one a memory.

    A family is what shares a prior: a scope, or a scope and group. What one takes on never shows in another.
    """

    low: FloatArray
    high: FloatArray
    """``low, high`` stand for 0 and 1 where outcomes are proportions."""
    two_valued: BoolArray
    """A constant 0 or 1, or two values: 0 and 1, or both taken within one stratum."""
    kurtosis: FloatArray
    """Fourth standardized moment about the stratum's mean; 3 where outcomes do not vary within strata."""
    at_most_two: BoolArray
    """Whether there is no third value: a constant has margins too, which decide nothing."""

    def of(self, family: IntArray) -> Outcomes:
        """Return the outcomes of each memory's family."""
        return Outcomes(*(getattr(self, field.name)[family] for field in fields(self)))
