"""Missing outcomes: whether they differ by arm, and the worst they can hide."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from cmp.estimation.inputs import read_memory_rounds

__all__ = [
    "Bounds",
    "check_range",
    "differential_missingness",
    "missing_outcome_bounds",
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
    y, z = read_memory_rounds(outcomes, assigned)
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
        missing as readily as another's of its stratum. Where propensities differ inside a stratum, rounds that are
        seldom drawn may lose their outcomes more often with no effect of the draw; assignments then count by their
        probability. Null without rounds in both arms.

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
    keys = [
        name for name in ("metric", "scope", "group", "memory_id", "content_hash") if name in table.columns
    ]
    missing1, known1, missing0, known0 = map(pl.col, counts)
    return table.select(
        *keys,
        (missing1 / (missing1 + known1)).fill_nan(None).alias("share_exposed"),
        (missing0 / (missing0 + known0)).fill_nan(None).alias("share_control"),
        pl.col("p_missing").alias("p_value"),
    )


def check_range(least: float, greatest: float, low: float, high: float) -> None:
    """Refuse a range of outcomes that is none, or that known outcomes leave.

    Raises
    ------
    ValueError
        As said.
    """
    if not (math.isfinite(low) and math.isfinite(high) and low < high) or least < low or greatest > high:
        raise ValueError(f"outcomes do not lie in the stated range from {low} to {high}")
