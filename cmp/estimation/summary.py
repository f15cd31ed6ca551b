"""All that a table needs of a memory's strata, as sums: strata can be added up and forgotten."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import numpy as np

from cmp.estimation.cells import Arm, BoolArray, Cells, Outcomes, Tallies
from cmp.estimation.estimators import Contrast
from cmp.estimation.margins import Margins, count_margins
from cmp.estimation.moments import Moments
from cmp.estimation.sums import FloatArray, IntArray, group_least, group_sums, scattered

__all__ = ["BoundSums", "Counts", "Summary", "margins_of_cells", "summarize"]

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
    """What bounds for missing outcomes are made of, each of shape (M,); weights as if none were missing."""

    weight: FloatArray
    origin: FloatArray
    """What was taken off the outcomes: the least offset, outcome units; 0 without a stratum."""
    known1: FloatArray
    """Sum of weight times (the exposed arm's total less origin for each known outcome) over its rounds."""
    missing1: FloatArray
    """Sum of weight times the share of the exposed arm's outcomes that are missing."""
    known0: FloatArray
    missing0: FloatArray

    def __add__(self, other: BoundSums) -> BoundSums:
        """Return the sums over both sets of strata."""
        origin = np.where(
            self.weight == 0,
            other.origin,
            np.where(other.weight == 0, self.origin, np.minimum(self.origin, other.origin)),
        )

        def known(name: str) -> FloatArray:
            shifted = [
                getattr(part, f"known{name}")
                + (part.origin - origin) * (part.weight - getattr(part, f"missing{name}"))
                for part in (self, other)
            ]
            return np.asarray(shifted[0] + shifted[1])

        return BoundSums(
            self.weight + other.weight,
            origin,
            known("1"),
            self.missing1 + other.missing1,
            known("0"),
            self.missing0 + other.missing0,
        )

    def limits(self, low: float, high: float) -> tuple[FloatArray, FloatArray]:
        """Return the least and greatest difference that missing outcomes between ``low`` and ``high`` allow."""
        with np.errstate(divide="ignore", invalid="ignore"):
            least, most = (
                (self.known1 + (one - self.origin) * self.missing1)
                - (self.known0 + (two - self.origin) * self.missing0)
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
    """Of two-valued outcomes."""
    has_margins: BoolArray
    """Shape (M,), whether they hold every stratum of a memory; so they do where it has no round with an outcome."""
    missing: Margins
    """Of outcomes going missing, in strata where any does."""
    with_arms: IntArray
    """Shape (M,), strata with rounds in both arms, whether they have an outcome or not."""
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
        """Exact p-values of both arms' outcomes going missing as readily; NaN without both arms."""
        tested = self.missing.p_values()
        return np.where(np.isnan(tested) & (self.with_arms > 0), 1.0, tested)


def summarize(
    cells: Cells, contrast: Contrast, tallies: Tallies, outcomes: Outcomes, *, weights: str
) -> Summary:
    """Sum over the strata of each memory.

    Parameters
    ----------
    cells, contrast
        Statistics, and what :func:`combine_strata` made of them.
    tallies, outcomes
        One a memory.
    weights
        How strata combine.
    """
    m, exposed, control = len(contrast.utility), cells.exposed, cells.control
    counts = [
        group_sums(cells.memory, values, m).astype(np.int64)
        for values in (exposed.n, control.n, exposed.missing, control.missing)
    ]
    rounds1, rounds0 = exposed.n + exposed.missing, control.n + control.missing
    both = (rounds1 > 0) & (rounds0 > 0)
    torn = both & (exposed.missing + control.missing > 0)
    x1, x0, n1, n0 = (v[torn] for v in (exposed.missing, control.missing, rounds1, rounds0))
    return Summary(
        contrast.moments,
        Counts(*counts),
        tallies,
        margins_of_cells(contrast.cells, outcomes),
        (outcomes.two_valued | (counts[0] + counts[1] == 0)) & (not cells.weighted),
        count_margins(cells.memory[torn], x1, n1, x0, n0, m),
        group_sums(cells.memory, both, m).astype(np.int64),
        _bound_sums(cells, both, m, weights),
    )


def margins_of_cells(cells: Cells, outcomes: Outcomes) -> Margins:
    """Count successes of two-valued outcomes, one a memory, where propensities are constant inside strata."""
    cells = cells.select(outcomes.two_valued[cells.memory] & (not cells.weighted))
    low, scale = outcomes.low[cells.memory], (outcomes.high - outcomes.low)[cells.memory]
    x1, x0 = (
        np.rint((arm.total + arm.n * (cells.offset - low)) / scale) for arm in (cells.exposed, cells.control)
    )
    return count_margins(cells.memory, x1, cells.exposed.n, x0, cells.control.n, len(outcomes.low))


def _bound_sums(cells: Cells, both: BoolArray, m: int, weights: str) -> BoundSums:
    owner, offset = cells.memory[both], cells.offset[both]
    arms = [cells.exposed.select(both), cells.control.select(both)]
    n1, n0 = (arm.n + arm.missing for arm in arms)
    raw = n1 * n0 / (n1 + n0) if weights == "precision" else n1 + n0
    origin = group_least(owner, offset, m)
    above = offset - origin[owner]

    def over(arm: Arm, n: FloatArray) -> tuple[FloatArray, FloatArray]:
        known = group_sums(owner, raw * (arm.total + arm.n * above) / n, m)
        return known, group_sums(owner, raw * arm.missing / n, m)

    return BoundSums(group_sums(owner, raw, m), origin, *over(arms[0], n1), *over(arms[1], n0))


def _added(one: Sums, two: Sums) -> Sums:
    other = iter([getattr(two, field.name) for field in fields(two)])  # type: ignore[arg-type]
    return _mapped(one, lambda values: values + next(other))


def _mapped(part: Sums, change: Callable[[Any], Any]) -> Sums:
    changed = {field.name: change(getattr(part, field.name)) for field in fields(part)}  # type: ignore[arg-type]
    return type(part)(**changed)
