"""Limits made of Wilson's, for proportions of any effective size, and the p-value at which they end at 0."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from cmp.estimation.sums import FloatArray

__all__ = ["Limits", "combined_limits", "newcombe_limits", "p_values_of_limits", "wilson_limits"]

#: Limits at a critical value: z, a number or (M,), to low and high, (M,) each.
Limits = Callable[[float | FloatArray], tuple[FloatArray, FloatArray]]

#: Halvings when a p-value is sought as the level whose limit is 0: to 38 / 2**50, below any rounding of a level.
_HALVINGS = 50
_LARGEST_Z = 38.0


def combined_limits(p: FloatArray, n: FloatArray, signs: tuple[float, ...]) -> Limits:
    """Return the limits of a sum of proportions, as Newcombe's method 10 has them for a difference of two.

    Parameters
    ----------
    p
        Shape (J, M), proportions; adjusted ones may lie past 0 or 1, where their limits are taken as at the end.
    n
        Shape (J, M), rounds of each, or effective sizes.
    signs
        J numbers, 1 or -1: what each proportion counts for.

    References
    ----------
    Newcombe, R. G. (1998). Statistics in Medicine 17, 873-890, method 10. Zou, G. Y. and Donner, A. (2008).
    Construction of confidence limits about effect measures: a general approach. Statistics in Medicine 27, 1693-1702.

    Examples
    --------
    >>> limits = combined_limits(np.array([[0.8], [0.6]]), np.array([[70.0], [80.0]]), (1.0, -1.0))
    >>> [float(end[0].round(4)) for end in limits(np.array([1.959964]))]
    [0.0524, 0.3339]
    """
    sign = np.array(signs)[:, None]
    estimate, cut = (sign * p).sum(axis=0), np.clip(p, 0.0, 1.0)

    def limits(z: float | FloatArray) -> tuple[FloatArray, FloatArray]:
        low, high = wilson_limits(cut, n, z)
        below, above = cut - low, high - cut
        down, up = np.where(sign > 0, below, above), np.where(sign > 0, above, below)
        return estimate - np.sqrt((down**2).sum(axis=0)), estimate + np.sqrt((up**2).sum(axis=0))

    return limits


def newcombe_limits(
    p1: FloatArray, n1: FloatArray, p0: FloatArray, n0: FloatArray, z: float | FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return the limits of a difference of two proportions, shape (M,) each: Newcombe's method 10."""
    return combined_limits(np.stack([p1, p0]), np.stack([n1, n0]), (1.0, -1.0))(z)


def wilson_limits(p: FloatArray, n: FloatArray, z: float | FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the limits of a proportion of ``n`` rounds: Wilson, E. B. (1927). JASA 22, 209-212."""
    centre, spread = p + z**2 / (2 * n), z * np.sqrt(p * (1 - p) / n + z**2 / (4 * n**2))
    scale = 1 + z**2 / n
    return np.where(p == 0, 0.0, (centre - spread) / scale), np.where(p == 1, 1.0, (centre + spread) / scale)


def p_values_of_limits(limits: Limits, size: int) -> FloatArray:
    """Return the level at which each interval would end at 0, so that p-values and limits never disagree.

    Examples
    --------
    >>> p = p_values_of_limits(lambda z: (1.959964 - z, 1.959964 + z), 1)
    >>> round(float(p[0]), 6)
    0.05
    """
    from scipy.special import ndtr

    inside, outside = np.full(size, _LARGEST_Z), np.zeros(size)  # 0 is inside at a large z
    for _ in range(_HALVINGS):
        middle = (inside + outside) / 2.0
        low, high = limits(middle)
        covers = (low <= 0.0) & (high >= 0.0)
        inside, outside = np.where(covers, middle, inside), np.where(covers, outside, middle)
    p: FloatArray = np.minimum(2.0 * ndtr(-inside), 1.0)
    return p
