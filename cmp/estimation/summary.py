"""All that a table needs of a memory's strata, as sums: strata can be added up and forgotten."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np

from cmp.estimation.cells import Arm, BoolArray, Cells, Outcomes, Tallies
from cmp.estimation.estimators import FIXED_COUNT, Contrast
from cmp.estimation.margins import Margins, count_margins
from cmp.estimation.moments import Moments
from cmp.estimation.sums import FloatArray, IntArray, group_least, group_sums, scattered

__all__ = ["BoundSums", "Counts", "Summary", "margins_of_cells", "p_values_of_missing", "summarize"]

Sums = TypeVar("Sums")


@dataclass(frozen=True, slots=True)
class Counts:
    """Eligible rounds, each of shape (M,)."""

    n_exposed: IntArray
    """With an outcome, drawn."""
    n_control: IntArray
    n_missing_exposed: IntArray
    """Without one."""
    n_missing_control: IntArray


@dataclass(frozen=True, slots=True)
class BoundSums:
    """What bounds for missing outcomes are made of, each of shape (M,); weights as if none were missing.

    An arm's estimate is a sum of its outcomes, each with a coefficient that does not depend on them: 1 / n for a plain
    mean, w over the arm's sum of w for Hajek's, w over the stratum's rounds for Horvitz and Thompson's.
    """

    weight: FloatArray
    origin: FloatArray
    """What was taken off the outcomes: the least offset, outcome units; 0 without a stratum."""
    known1: FloatArray
    """Sum of weight times coefficient times (outcome less origin) over the known outcomes of the exposed arm."""
    missing1: FloatArray
    """Sum of weight times coefficient over the exposed rounds without an outcome."""
    excess1: FloatArray
    """Sum of weight times (the sum of all coefficients of the arm, less 1): not 0 for Horvitz and Thompson's alone."""
    known0: FloatArray
    missing0: FloatArray
    excess0: FloatArray

    def __add__(self, other: BoundSums) -> BoundSums:
        """Return the sums over both sets of strata."""
        origin = np.where(
            self.weight == 0,
            other.origin,
            np.where(other.weight == 0, self.origin, np.minimum(self.origin, other.origin)),
        )

        def about_origin(part: BoundSums) -> BoundSums:
            shift = part.origin - origin
            return replace(
                part,
                origin=np.zeros(len(shift)),
                known1=part.known1 + shift * (part.weight + part.excess1 - part.missing1),
                known0=part.known0 + shift * (part.weight + part.excess0 - part.missing0),
            )

        return replace(_added(about_origin(self), about_origin(other)), origin=origin)

    def limits(self, low: float, high: float) -> tuple[FloatArray, FloatArray]:
        """Return the least and greatest difference that missing outcomes between ``low`` and ``high`` allow."""
        with np.errstate(divide="ignore", invalid="ignore"):
            least, most = (
                (self.known1 + (one - self.origin) * self.missing1)
                - (self.known0 + (two - self.origin) * self.missing0)
                + self.origin * (self.excess1 - self.excess0)
                for one, two in ((low, high), (high, low))
            )
            none = self.weight == 0
            return tuple(np.where(none, np.nan, sums / self.weight) for sums in (least, most))  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class Summary:
    """Sums over a memory's strata; ``a + b`` is what both sets of strata give together, row by row."""

    moments: Moments
    counts: Counts
    tallies: Tallies
    margins: Margins
    """Of outcomes that take two values at most."""
    has_margins: BoolArray
    """Shape (M,), whether they hold every stratum of a memory; so they do where it has no round with an outcome."""
    missing: Margins
    """Of outcomes going missing, in strata where any does; none where propensities differ inside strata."""
    with_arms: IntArray
    """Shape (M,), strata with rounds in both arms, with an outcome or without; 0 if propensities differ inside them."""
    bounds: BoundSums

    def __add__(self, other: Summary) -> Summary:
        """Add strata: rows are of the same memories, and no stratum is in both."""
        return Summary(
            self.moments + other.moments,
            _added(self.counts, other.counts),
            _added(self.tallies, other.tallies),
            self.margins + other.margins,
            self.has_margins & other.has_margins,
            self.missing + other.missing,
            self.with_arms + other.with_arms,
            self.bounds + other.bounds,
        )

    def moved(self, rows: IntArray, n_memories: int) -> Summary:
        """Return the sums with memory ``m`` in row ``rows[m]`` of ``n_memories``; other rows have no stratum."""

        def moved(part: Sums) -> Sums:
            return _mapped(part, lambda values: scattered(values, rows, n_memories))

        absent = np.ones(n_memories, dtype=bool)
        absent[rows] = False
        return Summary(
            moved(self.moments),
            moved(self.counts),
            moved(self.tallies),
            self.margins.moved(rows, n_memories),
            scattered(self.has_margins, rows, n_memories) | absent,
            self.missing.moved(rows, n_memories),
            scattered(self.with_arms, rows, n_memories),
            moved(self.bounds),
        )

    @property
    def missing_p_values(self) -> FloatArray:
        """Exact p-values of both arms' outcomes going missing as readily.

        NaN without both arms, and where propensities differ inside strata: what their rounds do is not exchangeable.
        """
        return _p_values_of_missing(self.missing, self.with_arms)


def summarize(
    cells: Cells, contrast: Contrast, tallies: Tallies, outcomes: Outcomes, *, estimator: str, weights: str
) -> Summary:
    """Sum over the strata of each memory.

    Parameters
    ----------
    cells, contrast
        Statistics, and what :func:`combine_strata` made of them.
    tallies, outcomes
        One a memory.
    estimator, weights
        What is estimated in each stratum, and how strata combine.
    """
    m, exposed, control = len(contrast.utility), cells.exposed, cells.control
    counts = [
        group_sums(cells.memory, values, m).astype(np.int64)
        for values in (exposed.n, control.n, exposed.missing, control.missing)
    ]
    missing, with_arms = _missing_margins(cells, m)
    return Summary(
        contrast.moments,
        Counts(*counts),
        tallies,
        margins_of_cells(contrast.cells, outcomes),
        (outcomes.at_most_two | (counts[0] + counts[1] == 0)) & (not cells.weighted),
        missing,
        with_arms,
        _bound_sums(cells, m, estimator, weights),
    )


def margins_of_cells(cells: Cells, outcomes: Outcomes) -> Margins:
    """Count successes of outcomes with two values at most, where propensities are constant inside strata.

    A stratum of successes alone decides as little as one of failures alone, and counts as one: which of the two it is
    depends on what values other strata hold.

    Parameters
    ----------
    cells
        Statistics.
    outcomes
        One a memory.
    """
    cells = cells.select(outcomes.at_most_two[cells.memory] & (not cells.weighted))
    low, scale = outcomes.low[cells.memory], (outcomes.high - outcomes.low)[cells.memory]
    scale = np.where(scale > 0, scale, 1.0)
    x1, x0 = (
        np.rint((arm.total + arm.n * (cells.offset - low)) / scale) for arm in (cells.exposed, cells.control)
    )
    n1, n0 = cells.exposed.n, cells.control.n
    varies = x1 + x0 < n1 + n0
    return count_margins(cells.memory, x1 * varies, n1, x0 * varies, n0, len(outcomes.low))


def p_values_of_missing(cells: Cells, n_memories: int) -> FloatArray:
    """Return exact p-values of both arms' outcomes going missing as readily, given each stratum's exposures.

    Parameters
    ----------
    cells
        Statistics of strata inside which propensities are constant.
    n_memories
        Number of memories M.

    Returns
    -------
    numpy.ndarray
        Shape (M,), NaN for a memory without both arms in any stratum.
    """
    missing, with_arms = _missing_margins(cells, n_memories)
    return _p_values_of_missing(missing, with_arms)


def _missing_margins(cells: Cells, m: int) -> tuple[Margins, IntArray]:
    """Return margins of outcomes going missing where any does, and how many strata have both arms."""
    x1, x0 = cells.exposed.missing, cells.control.missing
    n1, n0 = cells.exposed.n + x1, cells.control.n + x0
    both = (n1 > 0) & (n0 > 0) & (not cells.weighted)
    torn = both & (x1 + x0 > 0)
    margins = count_margins(cells.memory[torn], x1[torn], n1[torn], x0[torn], n0[torn], m)
    return margins, group_sums(cells.memory, both, m).astype(np.int64)


def _p_values_of_missing(missing: Margins, with_arms: IntArray) -> FloatArray:
    tested = missing.p_values()
    return np.where(np.isnan(tested) & (with_arms > 0), 1.0, tested)


def _bound_sums(cells: Cells, m: int, estimator: str, weights: str) -> BoundSums:
    """Sum up what bounds are made of, over the strata that would be in the estimate were no outcome missing."""
    n1, n0 = (arm.n + arm.missing for arm in (cells.exposed, cells.control))
    both = (n1 > 0) & (n0 > 0)
    is_total = np.isfinite(cells.information) & (estimator == "ht")
    used = both | (is_total & (n1 + n0 > 0))
    cells, n1, n0, is_total = cells.select(used), n1[used], n0[used], is_total[used]
    raw = n1 * n0 / (n1 + n0) if weights == "precision" else n1 + n0
    if weights == "precision":
        raw = np.where(is_total, cells.information + cells.missing_information, raw)
    origin = group_least(cells.memory, cells.offset, m)
    above = cells.offset - origin[cells.memory]
    pi = cells.propensity
    chances = (np.ones(len(pi)),) * 2 if cells.weighted else (pi, 1.0 - pi)
    arms = [
        (arm, (arm.weight + arm.missing_weight), (n1 + n0) * chance)
        for arm, chance in zip((cells.exposed, cells.control), chances, strict=True)
    ]
    has_count = np.all([np.abs(weight / n - 1.0) < FIXED_COUNT for _, weight, n in arms], axis=0)
    is_mean = has_count | ~is_total

    def over(arm: Arm, weight: FloatArray, n: FloatArray) -> tuple[FloatArray, ...]:
        rounds = np.where(is_mean, weight, n)
        terms = arm.total + arm.weight * above, arm.missing_weight, np.where(is_mean, 0.0, weight - n)
        return tuple(group_sums(cells.memory, raw * values / rounds, m) for values in terms)

    return BoundSums(group_sums(cells.memory, raw, m), origin, *over(*arms[0]), *over(*arms[1]))


def _added(one: Sums, two: Sums) -> Sums:
    other = iter([getattr(two, field.name) for field in fields(two)])  # type: ignore[arg-type]
    return _mapped(one, lambda values: values + next(other))


def _mapped(part: Sums, change: Callable[[Any], Any]) -> Sums:
    changed = {field.name: change(getattr(part, field.name)) for field in fields(part)}  # type: ignore[arg-type]
    return type(part)(**changed)
