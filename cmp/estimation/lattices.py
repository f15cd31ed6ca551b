"""Exact distributions where outcomes are whole multiples of a step: ratings, counts, scores to two decimals."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cmp.estimation.cells import BoolArray
from cmp.estimation.sums import FloatArray, IntArray

__all__ = ["MAX_LATTICE_WORK", "lattice_p_value"]

#: Additions up to which the exact distribution is worked out: about a tenth of a second.
MAX_LATTICE_WORK = 20_000_000

#: Least positive outcomes that are tried as so many steps.
_STEPS = range(1, 13)
#: Distance from a whole number of steps that is rounding.
_WHOLE = 1e-9


def lattice_p_value(residuals: Sequence[FloatArray], members: Sequence[BoolArray]) -> float | None:
    """Return the two-sided p-value of a sum over random subsets, one a stratum, each of its arm's size.

    Parameters
    ----------
    residuals
        A stratum each, shape (n,): what a round adds to the sum if it is drawn, less the stratum's mean.
    members
        A stratum each, shape (n,): which rounds were drawn.

    Returns
    -------
    float or None
        The probability of a sum at least as far from 0 as the observed one; None where the residuals are not on one
        lattice, or on one too fine.

    Examples
    --------
    >>> y, z = np.array([1, 0, 1, 1, 0, 0, 1, 0, 0, 0]), np.array([1, 0, 1, 1, 0, 0, 0, 0, 0, 0], bool)
    >>> round(lattice_p_value([y - y.mean()], [z]), 6)
    0.033333
    """
    least = [float(values.min()) for values in residuals]
    raised = [values - low for values, low in zip(residuals, least, strict=True)]
    step = _common_step(np.concatenate(raised))
    if step is None:
        return None
    sizes = [int(member.sum()) for member in members]
    whole = [np.rint(values / step).astype(np.int64) for values in raised]
    widths = [int(np.sort(steps)[-m:].sum()) + 1 for steps, m in zip(whole, sizes, strict=True)]
    work = sum(len(s) * m * width for s, m, width in zip(whole, sizes, widths, strict=True))
    if work + sum(widths) ** 2 > MAX_LATTICE_WORK:
        return None
    pmf = np.ones(1)
    for steps, m, width in zip(whole, sizes, widths, strict=True):
        pmf = np.convolve(pmf, _sum_of_subset(steps, m, width))
    observed = sum(int(steps[member].sum()) for steps, member in zip(whole, members, strict=True))
    centre = sum(float(steps.sum()) * m / len(steps) for steps, m in zip(whole, sizes, strict=True))
    distance = np.abs(np.arange(len(pmf)) - centre)
    return float(min(pmf[distance >= abs(observed - centre) - _WHOLE * max(centre, 1.0)].sum(), 1.0))


def _common_step(values: FloatArray) -> float | None:
    """Return a step that every value is a whole number of; None without one."""
    positive = values[values > _WHOLE * values.max(initial=0.0)]
    if not len(positive):
        return 1.0
    for parts in _STEPS:
        step = float(positive.min()) / parts
        count = positive / step
        if np.abs(count - np.rint(count)).max() <= _WHOLE * max(float(count.max()), 1.0):
            return step
    return None


def _sum_of_subset(steps: IntArray, m: int, width: int) -> FloatArray:
    """Return the distribution of the sum of m of the steps, every subset as likely, over 0..width - 1.

    Rounds come one at a time, and each is drawn with the probability its turn has given how many were.
    """
    ways = np.zeros((m + 1, width))
    ways[0, 0] = 1.0
    for turn, step in enumerate(steps.tolist()):
        chance = np.clip((m - np.arange(m + 1)) / (len(steps) - turn), 0.0, 1.0)[:, None]
        drawn = ways[:-1] * chance[:-1]
        ways *= 1.0 - chance
        ways[1:, step:] += drawn[:, : width - step]
    total: FloatArray = ways[m]
    return total
