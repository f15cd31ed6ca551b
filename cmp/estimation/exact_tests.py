"""Exact conditional tests for two-valued outcomes: Fisher's, and Cochran-Mantel-Haenszel's in strata."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cmp.estimation.sums import FloatArray, IntArray

__all__ = ["MAX_EXACT_SUPPORT", "conditional_p_values"]

#: Largest range of the sum of exposed successes that is convolved; beyond it, CMH's normal approximation.
MAX_EXACT_SUPPORT = 2000

#: Outcomes as likely as the observed one up to this factor count as being so (R's fisher.test uses the same).
_TIE = 1.0 + 1e-7


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
    order = np.lexsort((n1[used], (x1 + x0)[used], (n1 + n0)[used], memory[used]))
    strata = np.stack([(n1 + n0)[used], n1[used], (x1 + x0)[used]], axis=1)[order]
    owner = memory[used][order]
    observed = np.bincount(owner, weights=x1[used][order], minlength=n_memories).astype(np.int64)
    result = np.full(n_memories, np.nan)
    known: dict[bytes, tuple[int, FloatArray] | None] = {}
    for rows in np.split(np.arange(len(owner)), np.flatnonzero(np.diff(owner)) + 1):
        if not len(rows):
            continue
        mine, row = strata[rows], owner[rows[0]]
        key = mine.tobytes()
        if key not in known:
            known[key] = _two_sided_table(mine)
        table = known[key]
        result[row] = _normal_p(mine, observed[row]) if table is None else table[1][observed[row] - table[0]]
    return result


def _two_sided_table(strata: IntArray) -> tuple[int, FloatArray] | None:
    """Return the least possible sum and the two-sided p-value at every possible one; None where too many."""
    n, n1, k = strata.T
    low, high = np.maximum(0, n1 + k - n), np.minimum(n1, k)
    if int((high - low).sum()) > MAX_EXACT_SUPPORT:
        return None
    pmf = np.ones(1)
    for margins, first, last in zip(strata, low, high, strict=True):
        pmf = np.convolve(pmf, _hypergeometric(margins, int(first), int(last)))
    ascending = np.sort(pmf)
    mass = np.r_[0.0, np.cumsum(ascending)]
    p = mass[np.searchsorted(ascending, pmf * _TIE, side="right")]
    return int(low.sum()), np.minimum(p / mass[-1], 1.0)


def _hypergeometric(margins: npt.NDArray[np.int64], first: int, last: int) -> FloatArray:
    from scipy.special import gammaln

    n, n1, k = (int(value) for value in margins)
    x = np.arange(first, last + 1)
    log_pmf = -gammaln(x + 1) - gammaln(n1 - x + 1) - gammaln(k - x + 1) - gammaln(n - n1 - k + x + 1)
    pmf: FloatArray = np.exp(log_pmf - log_pmf.max())
    pmf /= pmf.sum()
    return pmf


def _normal_p(strata: IntArray, observed: int) -> float:
    from scipy.special import ndtr

    n, n1, k = strata.T.astype(np.float64)
    mean = float((n1 * k / n).sum())
    variance = float((n1 * (n - n1) * k * (n - k) / (n**2 * (n - 1))).sum())
    return float(2.0 * ndtr(-abs(observed - mean) / np.sqrt(variance))) if variance > 0.0 else 1.0
