"""Missing outcomes: whether they differ by arm, and the worst they can hide."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from cmp.estimation.exact_tests import conditional_p_values
from cmp.estimation.sums import IntArray

__all__ = ["Bounds", "differential_missingness", "missing_outcome_bounds"]


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
    y, z = np.asarray(outcomes, dtype=np.float64), np.asarray(assigned, dtype=bool)
    if y.shape != z.shape or y.ndim != 1:
        raise ValueError(f"outcomes have shape {y.shape} and assigned {z.shape}; give one of each a round")
    known = ~np.isnan(y)
    if not low < high or (y[known] < low).any() or (y[known] > high).any():
        raise ValueError(f"outcomes do not lie in the stated range from {low} to {high}")
    if not z.any() or z.all():
        return None
    least, most = np.where(known, y, low), np.where(known, y, high)
    return Bounds(
        float(least[z].mean() - most[~z].mean()),
        float(most[z].mean() - least[~z].mean()),
    )


def differential_missingness(table: pl.DataFrame) -> pl.DataFrame:
    """Test whether a memory's outcomes go missing in one arm more than in the other (Fisher, two-sided).

    Parameters
    ----------
    table
        The frame of a table of utilities.

    Returns
    -------
    polars.DataFrame
        The key columns, ``share_exposed`` and ``share_control`` missing, and ``p_value``; null without
        rounds.

    Examples
    --------
    >>> counts = {"memory_id": ["a"], "n_exposed": [3], "n_missing_exposed": [1], "n_control": [2]}
    >>> table = pl.DataFrame({**counts, "n_missing_control": [2]})
    >>> differential_missingness(table).row(0)
    ('a', 0.25, 0.5, 1.0)
    """
    missing1, missing0, known1, known0 = (
        table[name].to_numpy()
        for name in ("n_missing_exposed", "n_missing_control", "n_exposed", "n_control")
    )
    rows: IntArray = np.arange(table.height)
    p = conditional_p_values(rows, missing1, missing1 + known1, missing0, missing0 + known0, table.height)
    with np.errstate(invalid="ignore"):
        shares = {
            "share_exposed": missing1 / (missing1 + known1),
            "share_control": missing0 / (missing0 + known0),
        }
    keys = [name for name in ("scope", "group", "memory_id") if name in table.columns]
    return table.select(keys).hstack(pl.DataFrame({**shares, "p_value": p}, nan_to_null=True))
