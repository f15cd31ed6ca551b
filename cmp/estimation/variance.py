"""Variances of a difference in means under complete randomization: the exact ones, and the usual estimate."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cmp.estimation.inputs import read_memory_rounds
from cmp.estimation.sums import FloatArray

__all__ = ["neyman_variance_estimate", "null_variance", "randomization_variance"]


def randomization_variance(y1: npt.ArrayLike, y0: npt.ArrayLike, n_exposed: int) -> float:
    """Return the exact variance of the difference in means, S1^2/n1 + S0^2/n0 - Stau^2/n.

    It needs both potential outcomes of every round, which only a simulation knows. ``n_exposed`` of the
    rounds are exposed, every such subset being equally likely.

    Parameters
    ----------
    y1, y0
        Shape (n,), outcomes with and without the memory.
    n_exposed
        How many rounds are exposed, in ``1..n - 1``.

    Returns
    -------
    float
        Squared outcome units.

    Raises
    ------
    ValueError
        For arrays that differ in shape, missing values, or an empty arm.

    References
    ----------
    Neyman, J. (1923, translated 1990). Statistical Science 5(4), 465-472. Imbens, G. W. and Rubin, D. B.
    (2015). Causal Inference, theorem 6.2.

    Examples
    --------
    >>> randomization_variance([3, 1, 2, 5, 0, 4], [1, 1, 0, 2, 0, 3], 2) == 133 / 72
    True
    """
    shown, hidden = _finite(y1, "y1"), _finite(y0, "y0")
    if shown.shape != hidden.shape:
        raise ValueError(
            f"y1 has shape {shown.shape} and y0 {hidden.shape}; give both outcomes of every round"
        )
    n, n1 = len(shown), _arm_size(n_exposed, len(shown))
    effect_part = (shown - hidden).var(ddof=1) / n
    return float(shown.var(ddof=1) / n1 + hidden.var(ddof=1) / (n - n1) - effect_part)


def null_variance(outcomes: npt.ArrayLike, n_exposed: int) -> float:
    """Return the exact variance of the difference in means where no round's outcome depends on the memory.

    Under that sharp null one log holds both potential outcomes, and the variance is n / (n1 n0) S^2.

    Parameters
    ----------
    outcomes
        Shape (n,).
    n_exposed
        How many rounds are exposed, in ``1..n - 1``.

    Raises
    ------
    ValueError
        For missing values or an empty arm.

    Examples
    --------
    >>> round(null_variance([1, 0, 1, 1, 0, 0, 1, 0, 0, 0], 3), 6)
    0.126984
    """
    y = _finite(outcomes, "outcomes")
    n, n1 = len(y), _arm_size(n_exposed, len(y))
    return float(n / (n1 * (n - n1)) * y.var(ddof=1))


def neyman_variance_estimate(outcomes: npt.ArrayLike, assigned: npt.ArrayLike) -> float | None:
    """Estimate the variance of the difference in means, s1^2/n1 + s0^2/n0, from one realized log.

    Conservative in expectation: it leaves out Stau^2/n, which no log shows. A single value may fall below.

    Parameters
    ----------
    outcomes
        Shape (n,), NaN where missing; those rounds are left out.
    assigned
        Shape (n,), True where exposed.

    Returns
    -------
    float or None
        None where an arm has fewer than two outcomes.

    Raises
    ------
    ValueError
        For shapes that differ, infinite outcomes, or assignments that are not True or False.

    References
    ----------
    Neyman, J. (1923, translated 1990). Statistical Science 5(4), 465-472.

    Examples
    --------
    >>> neyman_variance_estimate([1, 0, 1, 0, 0, 0, 1, 0], [1, 1, 1, 1, 0, 0, 0, 0])
    0.14583333333333331
    >>> neyman_variance_estimate([1, 0, 1], [1, 0, 0]) is None
    True
    """
    y, z = read_memory_rounds(outcomes, assigned)
    known = ~np.isnan(y)
    arms = y[known & z], y[known & ~z]
    if min(map(len, arms)) < 2:
        return None
    return float(sum(arm.var(ddof=1) / len(arm) for arm in arms))


def _finite(values: npt.ArrayLike, name: str) -> FloatArray:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or not np.isfinite(array).all():
        raise ValueError(
            f"{name} is one finite number a round; it has shape {array.shape} or a missing value"
        )
    return array


def _arm_size(n_exposed: int, n: int) -> int:
    if isinstance(n_exposed, bool) or not float(n_exposed).is_integer():
        raise ValueError(f"n_exposed={n_exposed!r}; give a whole number of exposed rounds")
    if not 0 < n_exposed < n:
        raise ValueError(f"{n_exposed} of {n} rounds exposed leaves an arm empty; no difference is defined")
    return int(n_exposed)
