"""What estimates and intervals are made from: sums over a memory's strata, which add up over disjoint strata."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from cmp.estimation.cells import Arm, BoolArray, Cells
from cmp.estimation.sums import FloatArray, group_least, group_sums, order_free_sums

__all__ = ["Moments", "sum_strata"]

#: Relative distance of two differences of means that rounding makes.
_DUST = 1e-14


@dataclass(frozen=True, slots=True)
class Moments:
    """Sums over strata, each of shape (M,); ``a + b`` is what both sets of strata give together.

    ``r`` is a stratum's weight before normalizing, ``g`` its difference of means, ``n1, n0`` its effective rounds.
    """

    weight: FloatArray
    """Sum of r."""
    gaps: FloatArray
    """Sum of r g, outcome units."""
    centres: FloatArray
    """Sum of r times the stratum's estimate, which is g unless it has a centre of its own."""
    scales: FloatArray
    """Sum of r times what g counts for in the estimate."""
    origin: FloatArray
    """What was taken off the levels: the least offset, outcome units."""
    levels1: FloatArray
    """Sum of r times (exposed mean less origin)."""
    levels0: FloatArray
    rounds1: FloatArray
    """Exposed rounds with an outcome."""
    rounds0: FloatArray
    n_strata: FloatArray
    """Strata with an eligible outcome."""
    n_paired: FloatArray
    """Of these, strata with both arms."""
    n_used: FloatArray
    """Cells summed."""
    n_uneven: FloatArray
    """Of these, cells that do not hold just the exposures their propensity says."""
    spread1: FloatArray
    """Sum of r squared over n1."""
    spread0: FloatArray
    size1: FloatArray
    """Sum of n1."""
    df0: FloatArray
    """Sum of n0 - 1, where that is positive."""
    df: FloatArray
    """Sum of n1 + n0 - 2, where that is positive."""
    within1: FloatArray
    """Sum of squares about each stratum's exposed mean, outcome units squared."""
    within0: FloatArray
    mean_gap: FloatArray
    """Mean of g weighted by n1."""
    between: FloatArray
    """Sum of n1 (g - mean_gap) squared."""
    unpooled: FloatArray
    """Sum of r squared s1^2 / n1 and r squared s0^2 / n0; NaN where an arm of a stratum has one round."""
    unpooled_spread: FloatArray
    """Sum of the squares of these terms, each over its degrees of freedom."""
    second: FloatArray
    """Sum of r squared times the mean of squared inverse-probability weighted outcomes over n."""

    def __add__(self, other: Moments) -> Moments:
        """Return the sums over the strata of both: rows of the same memories, strata of which none is in both."""
        summed = {f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)}
        origin = np.where(
            self.n_used == 0,
            other.origin,
            np.where(other.n_used == 0, self.origin, np.minimum(self.origin, other.origin)),
        )
        for name in ("levels1", "levels0"):
            summed[name] = sum(
                getattr(part, name) + part.weight * np.where(part.n_used > 0, part.origin - origin, 0.0)
                for part in (self, other)
            )
        apart = _beyond_rounding(other.mean_gap - self.mean_gap, self.mean_gap)
        size = np.where(summed["size1"] > 0, summed["size1"], 1.0)
        summed["between"] = summed["between"] + apart**2 * self.size1 * other.size1 / size
        summed["mean_gap"] = self.mean_gap + apart * other.size1 / size
        return Moments(**{**summed, "origin": origin})

    def per_weight(self, sums: FloatArray) -> FloatArray:
        """Return sums over strata as means, NaN where a memory has no stratum."""
        used = self.n_used > 0
        return np.where(used, sums / np.where(used, self.weight, 1.0), np.nan)

    @property
    def utility(self) -> FloatArray:
        """Weighted mean of the strata's estimates."""
        return self.per_weight(self.centres)

    @property
    def gap(self) -> FloatArray:
        """Weighted mean of the strata's differences of means."""
        return self.per_weight(self.gaps)

    @property
    def scale(self) -> FloatArray:
        """What the gap counts for in the utility; 1 unless strata say otherwise."""
        return self.per_weight(self.scales)

    @property
    def mean_exposed(self) -> FloatArray:
        """Weighted mean of the strata's exposed means."""
        return self.origin + self.per_weight(self.levels1)

    @property
    def mean_control(self) -> FloatArray:
        """Weighted mean of the strata's control means."""
        return self.origin + self.per_weight(self.levels0)

    @property
    def has_design_count(self) -> BoolArray:
        """Whether every cell holds just the exposures its propensity says, so that the three estimators agree."""
        design_count: BoolArray = self.n_uneven == 0
        return design_count

    @property
    def effective1(self) -> FloatArray:
        """Rounds that a plain mean would need to be as precise as the exposed arm's."""
        return np.where(self.rounds1 > 0, self.weight**2 / self.spread1, np.nan)

    @property
    def effective0(self) -> FloatArray:
        """The same of the control arm."""
        return np.where(self.rounds1 > 0, self.weight**2 / self.spread0, np.nan)

    @property
    def replicate_squares(self) -> FloatArray:
        """Sum of squares of exposed outcomes about their stratum's control mean plus the gap."""
        apart = _beyond_rounding(self.mean_gap - self.gap, self.mean_gap)
        return self.within1 + self.between + self.size1 * apart**2


def sum_strata(
    cells: Cells,
    raw: FloatArray,
    means: tuple[FloatArray, FloatArray, FloatArray],
    uneven: BoolArray,
    n_strata: FloatArray,
    n_paired: FloatArray,
) -> Moments:
    """Sum over the cells of each memory.

    Parameters
    ----------
    cells, raw, uneven
        The cells used, their weights, and which do not hold just the exposures their propensity says: shape (C,).
    means
        Exposed and control means less the cell's offset, and their difference: shape (C,) each.
    n_strata, n_paired
        Shape (M,), over all cells, whether used or not.
    """
    m, exposed, control = len(n_strata), cells.exposed, cells.control
    origin = group_least(cells.memory, cells.offset, m)

    def over(values: FloatArray) -> FloatArray:
        return group_sums(cells.memory, values, m)

    def order_free(values: FloatArray) -> FloatArray:
        return order_free_sums(cells.memory, raw * values, m)

    mean1, mean0, gap = means
    size1, size0, n = exposed.size, control.size, exposed.n + control.n
    level = cells.offset - origin[cells.memory]
    with np.errstate(divide="ignore", invalid="ignore"):
        total1 = over(size1)
        mean_gap = over(size1 * gap) / np.where(total1 > 0, total1, 1.0)
        parts = [_unpooled(arm, raw) for arm in (exposed, control)]
        weight, gaps, plain = order_free(np.ones(len(raw))), order_free(gap), np.isnan(cells.centre)
        return Moments(
            weight=weight,
            gaps=gaps,
            centres=gaps if plain.all() else order_free(np.where(plain, gap, cells.centre)),
            scales=weight if (cells.scale == 1.0).all() else order_free(cells.scale),
            origin=origin,
            levels1=order_free(level + mean1),
            levels0=order_free(level + mean0),
            rounds1=over(exposed.n),
            rounds0=over(control.n),
            n_strata=n_strata,
            n_paired=n_paired,
            n_used=over(np.ones(len(raw))),
            n_uneven=over(uneven.astype(np.float64)),
            spread1=over(raw**2 / size1),
            spread0=over(raw**2 / size0),
            size1=total1,
            df0=over(np.maximum(size0 - 1.0, 0.0)),
            df=over(np.maximum(size1 + size0 - 2.0, 0.0)),
            within1=over(exposed.within_squares),
            within0=over(control.within_squares),
            mean_gap=mean_gap,
            between=over(size1 * _beyond_rounding(gap - mean_gap[cells.memory], gap) ** 2),
            unpooled=sum((over(part) for part, _ in parts), np.zeros(m)),
            unpooled_spread=sum((over(part**2 / df) for part, df in parts), np.zeros(m)),
            second=over(raw**2 * cells.second_moment / n**2),
        )


def _unpooled(arm: Arm, raw: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the variance an arm gives each cell's weighted mean, NaN for one round, and its degrees of freedom."""
    df = arm.size - 1.0
    return raw**2 * np.where(arm.n > 1, arm.within_squares / df, np.nan) / arm.size, df


def _beyond_rounding(apart: FloatArray, size: FloatArray) -> FloatArray:
    """Return differences of numbers of a size, 0 where rounding alone made them."""
    return np.where(np.abs(apart) <= _DUST * np.abs(size), 0.0, apart)
