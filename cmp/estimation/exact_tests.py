"""Exact conditional tests for two-valued outcomes: Fisher's, and Cochran-Mantel-Haenszel's in strata."""

from __future__ import annotations

import numpy as np

from cmp.estimation.convolution import (
    masses_by_transform,
    masses_of_sums,
    portions_by_size,
    range_of_sums,
)
from cmp.estimation.sums import FloatArray, IntArray, matches, row_codes

__all__ = ["MAX_EXACT_SUPPORT", "TIE", "conditional_p_values", "p_values_of_margins", "two_sided"]

#: Largest range of the sum of exposed successes that is convolved; beyond it, CMH's normal approximation.
MAX_EXACT_SUPPORT = 2000

#: Sums of up to this many values are convolved term by term; a transform would take as long.
_SHORT = 64

#: So are sums whose observed value has less mass than this: a transform is right to 1e-13 of the whole, not of each.
_LEAST_TRANSFORMED = 1e-4

#: Outcomes as likely as the observed one up to this factor count as being so (R's fisher.test uses the same).
TIE = 1.0 + 1e-7


def conditional_p_values(
    memory: IntArray, x1: IntArray, n1: IntArray, x0: IntArray, n0: IntArray, n_memories: int
) -> FloatArray:
    """Two-sided p-values of the sharp null, given the margins of every stratum.

    The statistic is the number of successes among the exposed, summed over strata. Its null distribution is a
    convolution of hypergeometric ones: exactly what the balanced design makes true. The p-value sums the
    points that are no more likely than the observed one. With one stratum it is Fisher's exact test. Where
    the sum can take more than ``MAX_EXACT_SUPPORT`` values the CMH chi-square on 1 degree of freedom (no
    continuity correction) is used instead.

    Parameters
    ----------
    memory
        Shape (C,), which memory each stratum belongs to.
    x1, n1, x0, n0
        Shape (C,), successes and rounds, exposed and control. Strata with an empty arm decide nothing.
    n_memories
        Number of memories M.

    Returns
    -------
    Shape (M,), NaN for a memory with no stratum.

    References
    ----------
    Fisher, R. A. (1935). The Design of Experiments, section 11. Mantel, N. and Haenszel, W. (1959). Journal
    of the National Cancer Institute 22, 719-748. Mehta, C. R., Patel, N. R. and Gray, R. (1985). JASA 80,
    969-973.

    Examples
    --------
    >>> one = np.array([1])
    >>> p = conditional_p_values(np.array([0]), 3 * one, 3 * one, 1 * one, 7 * one, 1)
    >>> round(float(p[0]), 6)
    0.033333
    """
    used = (n1 > 0) & (n0 > 0)
    observed = np.bincount(memory[used], weights=x1[used], minlength=n_memories).astype(np.int64)
    margins = np.stack([n1 + n0, n1, x1 + x0], axis=1)[used]
    return p_values_of_margins(memory[used], margins, np.ones(len(margins), dtype=np.int64), observed)


def p_values_of_margins(
    memory: IntArray, margins: IntArray, count: IntArray, observed: IntArray
) -> FloatArray:
    """Return the p-values of :func:`conditional_p_values` from the margins of strata with rounds in both arms.

    Parameters
    ----------
    memory
        Shape (D,), which memory strata belong to.
    margins
        Shape (D, 3): their rounds, the exposed ones, the successes of both arms.
    count
        Shape (D,), how many of a memory's strata are so.
    observed
        Shape (M,), successes among the exposed over all of a memory's strata.
    """
    order = np.argsort(row_codes(np.column_stack([memory, margins[:, [0, 2, 1]]])), kind="stable")
    memory, margins, count = memory[order], margins[order], count[order]
    n_memories = len(observed)
    result = np.full(n_memories, np.nan)
    low, high = range_of_sums(margins)
    first, size, n_strata = (
        np.bincount(memory, weights=v * count, minlength=n_memories).astype(np.int64)
        for v in (low, high - low, np.ones(len(low)))
    )
    decides = high > low
    memory, margins, count = memory[decides], margins[decides], count[decides]
    n_kinds, n_deciding = (
        np.bincount(memory, weights=v, minlength=n_memories).astype(np.int64)
        for v in (np.ones(len(count)), count)
    )
    is_exact = (n_strata > 0) & (size <= MAX_EXACT_SUPPORT)
    is_left = is_exact.copy()
    long = np.flatnonzero(is_exact & (size > _SHORT) & (n_deciding > 1))
    here = matches(memory, long)[1]
    for some, masses in masses_by_transform(margins[here], count[here], n_kinds[long], size[long]):
        rows = long[some]
        at = observed[rows] - first[rows]
        result[rows] = two_sided(masses, at)
        is_left[rows] = masses[np.arange(len(rows)), at] < _LEAST_TRANSFORMED
    for rows in portions_by_size(np.flatnonzero(is_left), size):
        here = matches(memory, rows)[1]
        strata = np.repeat(margins[here], count[here], axis=0)
        masses = masses_of_sums(strata, n_deciding[rows], int(size[rows].max()))
        result[rows] = two_sided(masses, observed[rows] - first[rows])
    for row in np.flatnonzero((n_strata > 0) & ~is_exact):
        here = matches(memory, np.array([row]))[1]
        result[row] = _normal_p(margins[here], count[here], int(observed[row]))
    return result


def two_sided(masses: FloatArray, observed: IntArray) -> FloatArray:
    """Sum the masses that are no greater than the observed one.

    Parameters
    ----------
    masses
        Shape (M, L), of the values from 0 on.
    observed
        Shape (M,).

    Examples
    --------
    >>> two_sided(np.array([[0.2, 0.5, 0.3]]), np.array([2]))
    array([0.5])
    """
    own = np.take_along_axis(masses, observed[:, None], axis=1)
    p: FloatArray = np.where(masses <= own * TIE, masses, 0.0).sum(axis=1) / masses.sum(axis=1)
    return np.minimum(p, 1.0)


def _normal_p(margins: IntArray, count: IntArray, observed: int) -> float:
    from scipy.special import ndtr

    n, n1, k = margins.T.astype(np.float64)
    mean = float((count * n1 * k / n).sum())
    variance = float((count * n1 * (n - n1) * k * (n - k) / (n**2 * (n - 1))).sum())
    return float(2.0 * ndtr(-abs(observed - mean) / np.sqrt(variance))) if variance > 0.0 else 1.0
