"""One contrast a memory from statistics per stratum: difference in means, Hajek, Horvitz-Thompson."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cmp.estimation.cells import BoolArray, Cells
from cmp.estimation.moments import Moments, sum_strata
from cmp.estimation.sums import FloatArray, group_sums

__all__ = ["ESTIMATORS", "FIXED_COUNT", "WEIGHTS", "Contrast", "combine_strata"]

ESTIMATORS = ("difference", "hajek", "ht")
WEIGHTS = ("precision", "rounds")

#: |realized share / propensity - 1| up to which a cell has its design's count: the rounding of n_m / L.
FIXED_COUNT = 1e-9


@dataclass(frozen=True, slots=True)
class Contrast:
    """One contrast a memory: arrays of shape (M,), NaN where undefined; those marked (C,) follow cells."""

    cells: Cells
    """Only the cells with both arms; for Horvitz-Thompson, all that hold an outcome and know their propensity."""
    kept: BoolArray
    """Which of the cells given these are."""
    raw: FloatArray
    """(C,) weight of each cell."""
    share: FloatArray
    """(C,) the same over its sum within a memory."""
    mean1: FloatArray
    """(C,) exposed mean less the cell's offset."""
    mean0: FloatArray
    """(C,) control mean less the cell's offset."""
    uneven: BoolArray
    """(C,) whether the cell holds other than just the exposures its propensity says."""
    utility: FloatArray
    moments: Moments
    """Sums over the strata of each memory: all that intervals need, but for exact tests."""

    @property
    def gap(self) -> FloatArray:
        """Difference of the arms' means, which is the utility unless cells have a centre of their own."""
        return self.moments.gap

    @property
    def scale(self) -> FloatArray:
        """What the gap counts for in the utility; 1 unless cells say otherwise."""
        return self.moments.scale

    @property
    def n1(self) -> FloatArray:
        """Exposed rounds with an outcome, in the cells used."""
        return self.moments.rounds1

    @property
    def n0(self) -> FloatArray:
        """Control rounds with an outcome, in the cells used."""
        return self.moments.rounds0

    @property
    def n_strata(self) -> FloatArray:
        """Strata with an eligible outcome."""
        return self.moments.n_strata

    @property
    def n_strata_empty(self) -> FloatArray:
        """Of these, strata with an empty arm."""
        return self.moments.n_strata - self.moments.n_paired

    @property
    def design_count(self) -> BoolArray:
        """Whether every cell holds just the exposures its propensity says, so that the three estimators agree."""
        return self.moments.has_design_count

    def sum_cells(self, values: FloatArray) -> FloatArray:
        """Sum an array over the cells of each memory."""
        return group_sums(self.cells.memory, values, len(self.utility))


def combine_strata(cells: Cells, n_memories: int, *, estimator: str, weights: str) -> Contrast:
    """Difference the arms within each stratum, then average over strata.

    Unbiased for the utility given the counts of each stratum, where assignment is complete randomization
    given the count (the balanced design) and effects do not vary with the stratum; with effects that do,
    ``weights="precision"`` estimates their precision-weighted mean.

    Parameters
    ----------
    cells
        Statistics; cells with an empty arm contribute nothing and are counted, but to Horvitz-Thompson, where the
        empty arm's total is 0 and leaving the cell out would bias.
    n_memories
        Number of memories M.
    estimator
        ``"difference"`` (of plain means), ``"hajek"`` (of inverse-probability weighted means), or ``"ht"``
        (Horvitz-Thompson: weighted totals over the number of eligible rounds). A missing propensity is taken
        as the stratum's realized share, which makes the three the same.
    weights
        ``"precision"``: n1 n0 / (n1 + n0); for Horvitz-Thompson, whose weights may not depend on the draw, the sum of
        pi (1 - pi) over the stratum's rounds, which is the same under a fixed count. ``"rounds"``: n1 + n0.

    References
    ----------
    Horvitz, D. G. and Thompson, D. J. (1952). JASA 47, 663-685. Hajek, J. (1971). In Foundations of
    Statistical Inference, 236. Miratrix, L. W., Sekhon, J. S. and Yu, B. (2013). JRSS B 75, 369-396.
    """
    n1, n0 = cells.exposed.n, cells.control.n
    seen, both = n1 + n0 > 0, (n1 > 0) & (n0 > 0)
    # against cards a stratum may have eligible outcomes and none in an arm
    n_strata = group_sums(cells.memory, cells.strata * (seen | (cells.information > 0.0)), n_memories)
    n_both = group_sums(cells.memory, both, n_memories)
    kept = both | (seen & np.isfinite(cells.information)) if estimator == "ht" else both
    used = cells.select(kept)
    n1, n0 = used.exposed.n, used.control.n
    raw = n1 * n0 / (n1 + n0) if weights == "precision" else n1 + n0
    if estimator == "ht" and weights == "precision":
        raw = np.where(np.isfinite(used.information), used.information, raw)
    mean1, mean0, gap, fixed = _cell_means(used, estimator)
    sums = sum_strata(used, raw, (mean1, mean0, gap), ~fixed, n_strata, n_both)
    return Contrast(
        cells=used,
        kept=kept,
        raw=raw,
        share=raw / sums.weight[used.memory],
        mean1=mean1,
        mean0=mean0,
        uneven=~fixed,
        utility=sums.utility,
        moments=sums,
    )


def _cell_means(cells: Cells, estimator: str) -> tuple[FloatArray, FloatArray, FloatArray, BoolArray]:
    """Return both means (less the offset), their difference, and which cells have the design's count."""
    mean1, mean0 = cells.exposed.mean, cells.control.mean
    if estimator != "ht":
        return mean1, mean0, mean1 - mean0, np.ones(len(mean1), dtype=bool)
    n = cells.exposed.n + cells.control.n
    pi = np.where(np.isnan(cells.propensity), cells.exposed.n / n, cells.propensity)
    over1, over0 = (1.0, 1.0) if cells.weighted else (1.0 / pi, 1.0 / (1.0 - pi))
    reach1, reach0 = cells.exposed.weight * over1 / n, cells.control.weight * over0 / n
    fixed = (np.abs(reach1 - 1.0) < FIXED_COUNT) & (np.abs(reach0 - 1.0) < FIXED_COUNT)
    # the weights of an arm need not add up to n: then the offset that was taken off does not cancel
    total1 = np.where(fixed, mean1, cells.exposed.total * over1 / n + cells.offset * (reach1 - 1.0))
    total0 = np.where(fixed, mean0, cells.control.total * over0 / n + cells.offset * (reach0 - 1.0))
    return total1, total0, total1 - total0, fixed
