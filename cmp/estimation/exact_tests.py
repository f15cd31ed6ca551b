"""Exact conditional tests for two-valued outcomes: Fisher's, and Cochran-Mantel-Haenszel's in strata."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from cmp.estimation.sums import FloatArray, IntArray

__all__ = ["MAX_EXACT_SUPPORT", "conditional_p_values", "p_values_of_margins"]

#: Largest range of the sum of exposed successes that is convolved; beyond it, CMH's normal approximation.
MAX_EXACT_SUPPORT = 2000

#: Masses held at once.
_AT_ONCE = 4_000_000

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
    observed = np.bincount(memory[used], weights=x1[used], minlength=n_memories).astype(np.int64)
    return p_values_of_margins(memory[used], (n1 + n0)[used], n1[used], (x1 + x0)[used], observed)


def p_values_of_margins(
    memory: IntArray, n: IntArray, n1: IntArray, successes: IntArray, observed: IntArray
) -> FloatArray:
    """Return the p-values of :func:`conditional_p_values` from the margins of strata with rounds in both arms.

    Parameters
    ----------
    memory, n, n1, successes
        Shape (C,), which memory each stratum belongs to, its rounds, the exposed ones, the successes of both arms.
    observed
        Shape (M,), successes among the exposed over all of a memory's strata.
    """
    order = np.lexsort((n1, successes, n, memory))
    margins, owner = np.stack([n, n1, successes], axis=1)[order], memory[order]
    n_memories = len(observed)
    result = np.full(n_memories, np.nan)
    low, high = _range_of_sums(margins)
    first, size = (
        np.bincount(owner, weights=v, minlength=n_memories).astype(np.int64) for v in (low, high - low)
    )
    n_strata = np.bincount(owner, minlength=n_memories)
    is_small = size <= MAX_EXACT_SUPPORT
    for rows in _portions(n_strata, np.where(is_small, size, 0)):
        exact = rows[is_small[rows]]
        begin = np.searchsorted(owner, exact)
        masses = _masses_of_sums(margins, begin, n_strata[exact], int(size[exact].max(initial=0)))
        result[exact] = _two_sided(masses, observed[exact] - first[exact])
    for row in np.flatnonzero((n_strata > 0) & ~is_small):
        mine = margins[np.searchsorted(owner, row) :][: n_strata[row]]
        result[row] = _normal_p(mine, int(observed[row]))
    return result


def _range_of_sums(margins: IntArray) -> tuple[IntArray, IntArray]:
    """Return the least and greatest number of exposed successes of each stratum."""
    n, n1, k = margins.T
    return np.maximum(0, n1 + k - n), np.minimum(n1, k)


def _portions(n_strata: IntArray, size: IntArray) -> Iterator[IntArray]:
    """Yield memories, those of similar size together, so that what is computed at once stays small."""
    rows = np.flatnonzero(n_strata > 0)
    rows = rows[np.argsort(size[rows], kind="stable")]
    while len(rows):
        reach = max(1, _AT_ONCE // (int(size[rows[-1]]) + 1))
        yield rows[-reach:]
        rows = rows[:-reach]


def _masses_of_sums(margins: IntArray, begin: IntArray, n_strata: IntArray, size: int) -> FloatArray:
    """Convolve each memory's hypergeometric masses: shape (memories, size + 1), from the least sum on."""
    masses, reach = np.zeros((len(begin), size + 1)), 0
    masses[:, 0] = 1.0
    by_length = np.argsort(-n_strata, kind="stable")  # those that have no stratum left stay as they are
    begin, n_strata = begin[by_length], n_strata[by_length]
    for turn in range(int(n_strata.max(initial=0))):
        left = int(np.searchsorted(-n_strata, -turn))
        more = _hypergeometric(margins[begin[:left] + turn])
        so_far = masses[:left, : reach + 1].copy()
        shorter, longer = (more, so_far) if more.shape[1] <= reach else (so_far, more)
        reach = min(size, reach + more.shape[1] - 1)
        masses[:left] = 0.0
        for x in range(min(shorter.shape[1], reach + 1)):
            width = min(longer.shape[1], reach + 1 - x)
            masses[:left, x : x + width] += shorter[:, x, None] * longer[:, :width]
    return masses[np.argsort(by_length, kind="stable")]


def _two_sided(masses: FloatArray, observed: IntArray) -> FloatArray:
    """Sum the masses that are no greater than the observed one."""
    own = np.take_along_axis(masses, observed[:, None], axis=1)
    p: FloatArray = np.where(masses <= own * _TIE, masses, 0.0).sum(axis=1) / masses.sum(axis=1)
    return np.minimum(p, 1.0)


def _hypergeometric(margins: IntArray) -> FloatArray:
    """Return the masses of each stratum's exposed successes, from its least on; 0 beyond its greatest."""
    from scipy.special import gammaln

    low, high = _range_of_sums(margins)
    beyond = np.arange(int((high - low).max(initial=0)) + 1)
    x = low[:, None] + beyond
    possible = x <= high[:, None]
    n, n1, k = (v[:, None] for v in margins.T)
    x = np.where(possible, x, low[:, None])
    log_mass = -gammaln(x + 1) - gammaln(n1 - x + 1) - gammaln(k - x + 1) - gammaln(n - n1 - k + x + 1)
    mass = np.where(possible, np.exp(log_mass - log_mass.max(axis=1, keepdims=True)), 0.0)
    return np.asarray(mass / mass.sum(axis=1, keepdims=True))


def _normal_p(strata: IntArray, observed: int) -> float:
    from scipy.special import ndtr

    n, n1, k = strata.T.astype(np.float64)
    mean = float((n1 * k / n).sum())
    variance = float((n1 * (n - n1) * k * (n - k) / (n**2 * (n - 1))).sum())
    return float(2.0 * ndtr(-abs(observed - mean) / np.sqrt(variance))) if variance > 0.0 else 1.0
