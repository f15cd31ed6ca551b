"""What intervals need of rounds that share outcomes, as sums: strata can be added up and forgotten."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from cmp.estimation.cells import Arm, BoolArray, Outcomes
from cmp.estimation.clusters import Clusters
from cmp.estimation.episode_tests import margins_by_episode
from cmp.estimation.estimators import Contrast
from cmp.estimation.inflation import clumping
from cmp.estimation.margins import Margins
from cmp.estimation.summary import Summary
from cmp.estimation.sums import FloatArray, IntArray, scattered

__all__ = ["ClusterSums", "expected_squares", "sum_clusters", "sums_of_rounds_alone"]

#: What is left of a sum of squares or of degrees of freedom when rounding is all there is.
_DUST = 1e-9


@dataclass(frozen=True, slots=True)
class ClusterSums:
    """Sums over a memory's strata, of shape (M,); ``a + b`` is what both sets of strata give, no episode being in both.

    ``r`` is a stratum's weight before normalizing, as in :class:`cmp.estimation.moments.Moments`. Where a memory's
    rounds are all on their own the sums are those of :func:`sums_of_rounds_alone`.
    """

    squares: FloatArray
    """See :class:`cmp.estimation.inflation.Clumping`."""
    mean: FloatArray
    exposed_squares: FloatArray
    exposed_rounds: FloatArray
    expected0: FloatArray
    """What the control arms' sums of squares about their means have in expectation over the variance."""
    df0: FloatArray
    """Degrees of freedom of these."""
    expected: FloatArray
    """The same of both arms."""
    df: FloatArray
    unpooled: FloatArray
    """Sum of r squared s1^2 / n1 and r squared s0^2 / n0; NaN where an arm of a stratum has one episode."""
    unpooled_spread: FloatArray
    """Sum of the squares of these terms, each over its degrees of freedom."""
    torn: FloatArray
    """Strata with an episode in both arms, episodes that run on into another stratum, or with different outcomes."""
    shared: BoolArray
    """Whether two rounds share an outcome."""
    across: BoolArray
    """Whether an episode has rounds in two blocks of the memory."""
    by_episode: Margins
    """Of two-valued outcomes, every episode of a stratum counted once; nothing where any is torn."""

    def __add__(self, other: ClusterSums) -> ClusterSums:
        """Add strata: rows are of the same memories, and no stratum and no episode is in both."""
        return self._map(lambda name, values: values + getattr(other, name))  # of truth values, either

    def moved(self, rows: IntArray, n_memories: int) -> ClusterSums:
        """Return the sums with memory ``m`` in row ``rows[m]`` of ``n_memories``; other rows have no stratum."""

        def moved(_: str, values: Any) -> Any:
            if isinstance(values, Margins):
                return values.moved(rows, n_memories)
            return scattered(values, rows, n_memories)

        return self._map(moved)

    def _map(self, change: Callable[[str, Any], Any]) -> ClusterSums:
        return ClusterSums(
            **{field.name: change(field.name, getattr(self, field.name)) for field in fields(self)}
        )


def sum_clusters(clusters: Clusters, contrast: Contrast, outcomes: Outcomes, summary: Summary) -> ClusterSums:
    """Sum over the strata of each memory.

    Parameters
    ----------
    clusters, contrast
        Of the same cells.
    outcomes
        One a memory.
    summary
        Of the same contrast.
    """
    found, alone = clumping(clusters, contrast), sums_of_rounds_alone(summary)
    cells, over = contrast.cells, contrast.sum_cells
    expected1, df1 = expected_squares(cells.exposed.size, found.exposed_of_cell)
    expected0, df0 = expected_squares(cells.control.size, found.control_of_cell)
    margins, torn = margins_by_episode(clusters, contrast, outcomes)
    with np.errstate(divide="ignore", invalid="ignore"):
        parts = [
            _unpooled(arm, contrast.raw, expected)
            for arm, expected in ((cells.exposed, expected1), (cells.control, expected0))
        ]
        spreads = [part**2 / df for part, df in zip(parts, (df1, df0), strict=True)]
    sums = {
        "squares": found.squares,
        "mean": found.mean,
        "exposed_squares": found.exposed_squares,
        "exposed_rounds": found.exposed_rounds,
        "torn": torn + found.runs_on,
        "expected0": over(expected0),
        "df0": over(df0),
        "expected": over(expected1 + expected0),
        "df": over(df1 + df0),
        "unpooled": over(parts[0]) + over(parts[1]),
        "unpooled_spread": over(spreads[0]) + over(spreads[1]),
    }
    kept = {name: np.where(clusters.shared, values, getattr(alone, name)) for name, values in sums.items()}
    return ClusterSums(
        **kept,
        shared=clusters.shared,
        across=found.across,
        by_episode=margins.where(clusters.shared, summary.margins),
    )


def sums_of_rounds_alone(summary: Summary) -> ClusterSums:
    """Return the sums of strata in which every round has an outcome of its own."""
    of, none = summary.moments, np.zeros(len(summary.with_arms), dtype=bool)
    spread = of.spread1 + of.spread0
    return ClusterSums(
        squares=spread,
        mean=spread,
        exposed_squares=of.size1,
        exposed_rounds=of.size1,
        expected0=of.df0,
        df0=of.df0,
        expected=of.df,
        df=of.df,
        unpooled=of.unpooled,
        unpooled_spread=of.unpooled_spread,
        torn=np.zeros(len(none)),
        shared=none,
        across=none,
        by_episode=summary.margins,
    )


def expected_squares(n: FloatArray, mean_size: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return what a sum of squares about a mean has in expectation over the variance, and its degrees of freedom.

    Parameters
    ----------
    n
        Rounds.
    mean_size
        Mean size of their episodes, a round as likely to be picked as another.

    Examples
    --------
    Six rounds on their own, in episodes of two, and in one episode:

    >>> expected_squares(np.full(3, 6.0), np.array([1.0, 2.0, 6.0]))
    (array([5., 4., 0.]), array([5., 2., 0.]))
    """
    loss = np.minimum(mean_size, n)
    with np.errstate(divide="ignore", invalid="ignore"):
        left = n - loss > _DUST * n
        return np.where(left, n - loss, 0.0), np.where(left, n / loss - 1.0, 0.0)


def _unpooled(arm: Arm, raw: FloatArray, expected: FloatArray) -> FloatArray:
    return raw**2 * np.where(expected > 0, arm.within_squares / expected, np.nan) / arm.size
