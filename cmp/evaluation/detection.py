"""Power and width of the two contrasts that ``interval="auto"`` makes, before there is a log."""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from cmp.estimation.exact_tests import TIE
from cmp.estimation.intervals import normal_quantile
from cmp.estimation.wilson import wilson_limits

__all__ = ["Arms", "binary_half_width", "binary_power", "fisher_rejects", "mean_half_width", "mean_power"]

#: Tables (n1 + 1) x (n0 + 1) summed in full; beyond, Fisher's test is as good as normal.
MAX_TABLES: Final = 1_000_000

#: Points of a binomial that a width is summed over.
POINTS: Final = 1000

FloatArray = npt.NDArray[np.float64]


class Arms(NamedTuple):
    """Rounds of the two arms."""

    exposed: int
    control: int


def fisher_rejects(arms: Arms, alpha: float) -> npt.NDArray[np.bool_]:
    """Return which tables Fisher's two-sided exact test rejects at ``alpha``.

    Returns
    -------
    numpy.ndarray of shape (exposed + 1, control + 1), bool
        By successes of each arm.

    References
    ----------
    Fisher, R. A. (1935). The Design of Experiments, section 11.

    Examples
    --------
    >>> bool(fisher_rejects(Arms(3, 7), 0.05)[3, 1]), bool(fisher_rejects(Arms(3, 7), 0.03)[3, 1])
    (True, False)
    """
    return _rejects(arms, alpha)


@lru_cache(maxsize=64)
def _rejects(arms: Arms, alpha: float) -> npt.NDArray[np.bool_]:
    from scipy.special import gammaln

    n1, n0 = arms
    rejects = np.zeros((n1 + 1, n0 + 1), dtype=bool)
    for successes in range(n1 + n0 + 1):
        x = np.arange(max(0, successes - n0), min(n1, successes) + 1)
        rest = successes - x
        log_pmf = -gammaln(x + 1) - gammaln(n1 - x + 1) - gammaln(rest + 1) - gammaln(n0 - rest + 1)
        pmf = np.exp(log_pmf - log_pmf.max())
        pmf /= pmf.sum()
        ascending = np.sort(pmf)
        mass = np.r_[0.0, np.cumsum(ascending)]
        rejects[x, rest] = mass[np.searchsorted(ascending, pmf * TIE, side="right")] <= alpha
    rejects.setflags(write=False)
    return rejects


def binary_power(arms: Arms, exposed_rate: float, control_rate: float, alpha: float) -> float:
    """Return the chance that Fisher's exact test rejects, summed over both binomials.

    Where the tables are too many to sum, that of the normal test with a pooled variance.

    References
    ----------
    Fleiss, J. L., Levin, B. and Paik, M. C. (2003). Statistical Methods for Rates and Proportions, 3rd
    ed., section 4.2.

    Examples
    --------
    >>> round(binary_power(Arms(10, 10), 0.9, 0.1, 0.05), 4)
    0.9579
    """
    from scipy.special import ndtr, ndtri

    if (arms.exposed + 1) * (arms.control + 1) <= MAX_TABLES:
        of_exposed, of_control = _binomial(arms.exposed, exposed_rate), _binomial(arms.control, control_rate)
        return float(of_exposed @ (_rejects(arms, alpha) @ of_control))
    n1, n0 = arms
    pooled = (n1 * exposed_rate + n0 * control_rate) / (n1 + n0)
    null = (pooled * (1 - pooled) * (1 / n1 + 1 / n0)) ** 0.5
    actual = (exposed_rate * (1 - exposed_rate) / n1 + control_rate * (1 - control_rate) / n0) ** 0.5
    gap, critical = exposed_rate - control_rate, -float(ndtri(alpha / 2)) * null
    if actual <= 0.0:
        return float(abs(gap) > critical)
    return float(ndtr((gap - critical) / actual) + ndtr((-gap - critical) / actual))


def binary_half_width(arms: Arms, exposed_rate: float, control_rate: float, level: float) -> float:
    """Return the expected half width of Newcombe's interval, summed over both binomials.

    Of a large arm at most some thousand points are summed, evenly spaced: its binomial is smooth.

    Examples
    --------
    >>> round(binary_half_width(Arms(5, 85), 0.2, 0.2, 0.95), 3)
    0.303
    """
    z = normal_quantile(level)
    tables = []
    for n, rate in zip(arms, (exposed_rate, control_rate), strict=True):
        weight = _binomial(n, rate)
        kept = np.flatnonzero(weight > 1e-15)
        kept = kept[:: max(1, len(kept) // POINTS)]
        p = kept / n
        low, high = wilson_limits(p, np.array(n), z)
        tables.append((weight[kept] / weight[kept].sum(), p - low, high - p))
    (w1, below1, above1), (w0, below0, above0) = tables
    width = np.hypot(below1[:, None], above0) + np.hypot(above1[:, None], below0)
    return float(w1 @ width @ w0) / 2


def mean_power(arms: Arms, effect: float, sd: float, df: float, alpha: float) -> float:
    """Return the chance that a two-sided t test rejects: noncentral t.

    Parameters
    ----------
    effect, sd
        Difference of the arms' means and standard deviation within arms, outcome units.
    df
        Degrees of freedom of the variance.

    References
    ----------
    Cohen, J. (1988). Statistical Power Analysis for the Behavioral Sciences, 2nd ed., section 2.3.

    Examples
    --------
    >>> round(mean_power(Arms(20, 20), 0.5, 1.0, 38, 0.05), 3)  # Cohen: .33
    0.338
    """
    from scipy.stats import nct, norm, t

    shift = effect / (sd * (1 / arms.exposed + 1 / arms.control) ** 0.5)
    if df > 1e6 or abs(shift) > 30:
        critical = float(norm.isf(alpha / 2))
        return float(norm.cdf(shift - critical) + norm.cdf(-shift - critical))
    critical = float(t.isf(alpha / 2, df))
    below = -abs(shift)  # by symmetry the same; far above, scipy's noncentral t is NaN
    return float(nct.cdf(-critical, df, below) + nct.sf(critical, df, below))


def mean_half_width(arms: Arms, sd: float, df: float, level: float) -> float:
    """Return the expected half width of a t interval for a difference of two means.

    Examples
    --------
    >>> round(mean_half_width(Arms(5, 85), 1.0, 88, 0.95), 3)
    0.912
    """
    from scipy.special import gammaln, stdtrit

    shrunk: float = (
        1 - 0.25 / df
    )  # E[s] / sigma for large df, where the difference of logarithms loses digits
    if df < 1e5:
        shrunk = float(np.exp(gammaln((df + 1) / 2) - gammaln(df / 2)) * (2 / df) ** 0.5)
    spread: float = sd * (1 / arms.exposed + 1 / arms.control) ** 0.5
    return float(stdtrit(df, 0.5 + level / 2)) * shrunk * spread


def _binomial(n: int, rate: float) -> FloatArray:
    from scipy.stats import binom

    pmf: FloatArray = binom.pmf(np.arange(n + 1), n, rate)
    return pmf
