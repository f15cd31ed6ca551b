"""Missing outcomes: whether they differ by arm, and the worst they can hide."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from cmp.estimation.cells import Arm, Cells
from cmp.estimation.exact_tests import conditional_p_values
from cmp.estimation.inputs import read_booleans, read_outcomes
from cmp.estimation.sums import FloatArray, group_sums

__all__ = [
    "Bounds",
    "bounds_of_cells",
    "check_range",
    "differential_missingness",
    "missing_outcome_bounds",
    "missingness_p_values",
]


class Bounds(NamedTuple):
    """Least and greatest difference that the missing outcomes allow."""

    low: float
    high: float


def missing_outcome_bounds(
    outcomes: npt.ArrayLike, assigned: npt.ArrayLike, low: float, high: float
) -> Bounds | None:
    """Bound the difference in means over every value the missing outcomes might have had.

    Parameters
    ----------
    outcomes
        Shape (n,), NaN or None where missing.
    assigned
        Shape (n,), True where exposed.
    low, high
        Range of the outcome.

    Returns
    -------
    Bounds or None
        ``(low, high)``; None where an arm has no round at all.

    Raises
    ------
    ValueError
        For shapes that differ, an outcome outside the range, or ``low >= high``.

    References
    ----------
    Manski, C. F. (1990). Nonparametric bounds on treatment effects. American Economic Review 80(2), 319-323.

    Examples
    --------
    >>> missing_outcome_bounds([1, 1, None, 0, 0, None, None, 1], [1, 1, 1, 1, 0, 0, 0, 0], 0, 1)
    Bounds(low=-0.25, high=0.5)
    """
    y, z = read_outcomes(outcomes), read_booleans(assigned, "assigned")
    if y.shape != z.shape or y.ndim != 1:
        raise ValueError(f"outcomes have shape {y.shape} and assigned {z.shape}; give one of each a round")
    known = ~np.isnan(y)
    check_range(y[known].min(initial=math.inf), y[known].max(initial=-math.inf), low, high)
    if not z.any() or z.all():
        return None
    least, most = np.where(known, y, low), np.where(known, y, high)
    return Bounds(
        float(least[z].mean() - most[~z].mean()),
        float(most[z].mean() - least[~z].mean()),
    )


def differential_missingness(u: Any) -> pl.DataFrame:
    """Say whether a memory's outcomes go missing in one arm more than in the other, stratum by stratum.

    Parameters
    ----------
    u
        A table of utilities, or its frame.

    Returns
    -------
    polars.DataFrame
        The key columns, ``share_exposed`` and ``share_control`` missing over all strata, and ``p_value``: the exact
        conditional test (Fisher's; Cochran-Mantel-Haenszel's with several strata) of a drawn round's outcome going
        missing as readily as another's of its stratum. Null without rounds in both arms.

    Raises
    ------
    ValueError
        For a frame that lacks the columns of a table of utilities.

    Examples
    --------
    >>> from cmp.estimation import estimate
    >>> u = estimate([1, 1, 1, 1, 0, 0, 0, 0], [1, 1, None, 0, 0, None, None, 1])
    >>> differential_missingness(u).row(0)
    ('*', 0, 0.25, 0.5, 1.0)
    """
    table: pl.DataFrame = getattr(u, "frame", u)
    counts = ["n_missing_exposed", "n_exposed", "n_missing_control", "n_control"]
    if lacking := {*counts, "p_missing"} - set(table.columns):
        raise ValueError(
            f"the table lacks {', '.join(sorted(lacking))}; pass what utilities() returned, or its frame"
        )
    keys = [name for name in ("scope", "group", "memory_id", "content_hash") if name in table.columns]
    missing1, known1, missing0, known0 = map(pl.col, counts)
    return table.select(
        *keys,
        (missing1 / (missing1 + known1)).fill_nan(None).alias("share_exposed"),
        (missing0 / (missing0 + known0)).fill_nan(None).alias("share_control"),
        pl.col("p_missing").alias("p_value"),
    )


def missingness_p_values(cells: Cells, n_memories: int) -> FloatArray:
    """Test each memory's missing outcomes by arm within strata; 1 where none is missing, NaN without both arms."""
    missing1, missing0 = cells.exposed.missing, cells.control.missing
    rounds1, rounds0 = missing1 + cells.exposed.n, missing0 + cells.control.n
    both = (rounds1 > 0) & (rounds0 > 0)
    p = np.where(group_sums(cells.memory, both, n_memories) > 0, 1.0, np.nan)
    torn = group_sums(cells.memory, both * (missing1 + missing0), n_memories) > 0
    if torn.any():
        rows = both & torn[cells.memory]
        x1, n1, x0, n0 = (v[rows].astype(np.int64) for v in (missing1, rounds1, missing0, rounds0))
        tested = conditional_p_values(cells.memory[rows], x1, n1, x0, n0, n_memories)
        p = np.where(torn, tested, p)
    return p


def bounds_of_cells(
    cells: Cells, n_memories: int, low: float, high: float, *, weights: str
) -> tuple[FloatArray, FloatArray]:
    """Bound each memory's difference over every value in ``low..high`` that its missing outcomes might have had.

    Strata combine as they would were no outcome missing; NaN without a stratum that has rounds in both arms.
    """
    exposed, control = cells.exposed, cells.control
    n1, n0 = exposed.n + exposed.missing, control.n + control.missing
    both = (n1 > 0) & (n0 > 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        raw = np.where(both, n1 * n0 / (n1 + n0) if weights == "precision" else n1 + n0, 0.0)
        share = raw / group_sums(cells.memory, raw, n_memories)[cells.memory]

        def mean(arm: Arm, n: FloatArray, filled: float) -> FloatArray:
            return (arm.total + arm.missing * (filled - cells.offset)) / n

        gaps = (mean(exposed, n1, one) - mean(control, n0, two) for one, two in ((low, high), (high, low)))
        bounds = [group_sums(cells.memory, np.where(both, share * gap, 0.0), n_memories) for gap in gaps]
    none = group_sums(cells.memory, both, n_memories) == 0
    return np.where(none, np.nan, bounds[0]), np.where(none, np.nan, bounds[1])


def check_range(least: float, greatest: float, low: float, high: float) -> None:
    """Refuse a range of outcomes that is none, or that known outcomes leave.

    Raises
    ------
    ValueError
        As said.
    """
    if not (math.isfinite(low) and math.isfinite(high) and low < high) or least < low or greatest > high:
        raise ValueError(f"outcomes do not lie in the stated range from {low} to {high}")
