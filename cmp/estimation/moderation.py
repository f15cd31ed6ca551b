"""Variances of many small samples, each shrunk towards what its family has in common (Smyth 2004)."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cmp.estimation.sums import FloatArray

__all__ = ["MAX_KURTOSIS", "ModeratedVariances", "moderate_variances", "shrink_to_control"]

#: Kurtosis of outcomes beyond which an arm's own variance is worth less than its rounds (see shrink_to_control).
MAX_KURTOSIS = 10.0
#: Weight, in degrees of freedom, of the control variance there.
CONTROL_PRIOR_DF = 6.0
#: Weight, in degrees of freedom, of the arithmetic mean where Smyth's fit cannot be trusted.
LATTICE_PRIOR_DF = 4.0
#: Share of variances equal to another, and fitted prior degrees of freedom, beyond which it is not trusted.
MAX_TIED_SHARE = 0.25
MIN_FITTED_DF = 5.0
#: Relative difference up to which variances are the same but for rounding.
_SAME = 1e-9


class ModeratedVariances(NamedTuple):
    """Variances after shrinkage, and the prior they were shrunk to."""

    moderated: FloatArray
    """Shape (M,), squared units; NaN where there is neither a variance nor a prior."""
    prior_df: float
    """Degrees of freedom the prior counts for; ``inf`` where the family shows one common variance."""
    prior_variance: float


def moderate_variances(
    variances: npt.ArrayLike, df: npt.ArrayLike, *, prior: str = "smyth"
) -> ModeratedVariances:
    """Shrink sample variances to their family's common prior: (d0 s0^2 + d s^2) / (d0 + d).

    Parameters
    ----------
    variances
        Shape (M,), sample variances.
    df
        Shape (M,), their degrees of freedom; a variance on 0 of them says nothing and gets the prior's.
    prior
        ``"smyth"`` fits a scaled F to the log variances by its moments, as limma's ``fitFDist`` does.
        ``"mean"`` is their arithmetic mean with weight 4. ``"auto"`` takes the first unless it fits badly;
        see Notes.

    Returns
    -------
    ModeratedVariances
        ``(moderated, prior_df, prior_variance)``; with fewer than two usable variances ``prior_df`` is 0.

    Raises
    ------
    ValueError
        For negative or infinite variances, negative degrees of freedom or another ``prior``.

    Notes
    -----
    Moments of logarithms need variances with a density that is not too skew. ``"auto"`` uses ``"mean"`` where
    a quarter of the variances are tied (outcomes on a lattice), or where the fit finds fewer than 5 degrees
    of freedom (zeros among them, or outcomes so skew that most variances lie far below their mean).

    Mean coverage of 95 % intervals in 400 simulated logs a setting (20 to 100 memories, 4 to 8 exposures
    each): normal, t(3) and rounded outcomes .95-.96 under both; ordinal .95-.96, against .91-.95 under
    ``"smyth"``; half zeros .94-.96 against .89-.94; four in five zeros .96-.99 against .68-.88; lognormal
    .97-.99 against .85-.90. ``"mean"`` is as safe, and a tenth wider for normal outcomes.

    References
    ----------
    Smyth, G. K. (2004). Linear models and empirical Bayes methods for assessing differential expression.
    Statistical Applications in Genetics and Molecular Biology 3(1), article 3, sections 4-6.

    Examples
    --------
    >>> spread = moderate_variances([0.02, 0.9, 0.1, 2.6, 0.05, 0.3, 0.15, 1.5], [4, 4, 5, 5, 4, 5, 4, 5])
    >>> round(spread.prior_df, 3), round(spread.prior_variance, 4)
    (1.601, 0.1523)
    """
    s2, d = np.asarray(variances, dtype=np.float64), np.asarray(df, dtype=np.float64)
    if s2.shape != d.shape:
        raise ValueError(f"variances have shape {s2.shape} and df {d.shape}; give one df for each variance")
    if not (np.isfinite(d) & (d >= 0)).all():
        raise ValueError("degrees of freedom are finite and not negative; 0 for a variance that says nothing")
    if (s2 < 0).any() or np.isinf(s2).any():
        raise ValueError("variances are finite and not negative; NaN where there is none")
    if prior not in ("smyth", "mean", "auto"):
        raise ValueError(f"prior={prior!r}; use 'smyth', 'mean' or 'auto'")
    usable = (d > 0) & np.isfinite(s2)
    if usable.sum() < 2:
        return ModeratedVariances(np.where(usable, s2, np.nan), 0.0, math.nan)
    order = np.lexsort((d[usable], s2[usable]))  # so that renaming memories changes no bit
    d0, s02 = _prior(s2[usable][order], d[usable][order], prior)
    if math.isinf(d0):
        return ModeratedVariances(np.full(s2.shape, s02), d0, s02)
    own = np.where(usable, s2, 0.0) * np.where(usable, d, 0.0)
    return ModeratedVariances((d0 * s02 + own) / (d0 + np.where(usable, d, 0.0)), d0, s02)


def shrink_to_control(
    variances: FloatArray, df: FloatArray, control: FloatArray, kurtosis: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Shrink the exposed arm's variance to the control arm's, where outcomes are far from normal.

    A variance of ``n`` values with kurtosis ``g`` is as uncertain as one of ``2 n / (g - 1)`` normal values. Where
    success is rare, ninety exposures without one have variance 0, which says next to nothing: it counts for that
    many degrees of freedom, against 6 of the control arm's, which hundreds of rounds have made sure.

    Parameters
    ----------
    variances, df, control, kurtosis
        Shape (M,): variances of the exposed arms (NaN where there is none), their degrees of freedom, variances of
        the control arms, kurtosis of the outcomes about the mean of their stratum.

    Returns
    -------
    moderated, df
        Shape (M,) each.

    Notes
    -----
    Mean coverage (worst memory) of 95 % intervals in 400 simulated logs a setting, with this and without: one key
    memory in each of 30 strata of 60 memories .998 (.993) against .70 (.57); in 8 strata of 32 .997 (.985) against
    .93 (.79); nine in ten zero .96-.98 (.92-.93) against .96-.99 (.86-.88); lognormal .96-.97 (.95) against .95-.99
    (.93-.98); t(3) .96 (.94) either way.

    References
    ----------
    Cramer, H. (1946). Mathematical Methods of Statistics, section 27.4 (the variance of a sample variance).
    """
    worth = df * 2.0 / (kurtosis - 1.0)
    own = np.where(np.isfinite(variances), variances, 0.0) * worth
    return (CONTROL_PRIOR_DF * control + own) / (CONTROL_PRIOR_DF + worth), CONTROL_PRIOR_DF + worth


def _prior(s2: FloatArray, df: FloatArray, kind: str) -> tuple[float, float]:
    """Return degrees of freedom and variance of the prior; ``s2`` ascends."""
    mean = LATTICE_PRIOR_DF, float(s2.mean())
    if kind == "mean" or not s2.max() > 0.0:
        return mean
    if kind == "auto":
        tied = np.count_nonzero(np.diff(s2) <= _SAME * s2[1:])
        if tied > MAX_TIED_SHARE * len(s2):
            return mean
    fitted = _fit_scaled_f(s2, df)
    return mean if kind == "auto" and fitted[0] < MIN_FITTED_DF else fitted


def _fit_scaled_f(s2: FloatArray, df: FloatArray) -> tuple[float, float]:
    """Match moments of log s^2, ascending, to a scaled F; zeros are lifted to 1e-5 of the median, as limma does."""
    from scipy.special import psi, zeta

    middle = len(s2) // 2
    median = float(s2[middle] + s2[-middle - 1]) / 2.0 or float(s2.mean())
    e = np.log(np.maximum(s2, 1e-5 * median)) - psi(df / 2) + np.log(df / 2)
    centre = float(e.mean())
    excess = float(e.var(ddof=1) - zeta(2.0, df / 2).mean())  # zeta(2, .) is the trigamma function
    if excess <= 0.0:
        return math.inf, math.exp(centre)
    half = _inverse_trigamma(excess)
    return 2.0 * half, math.exp(centre + float(psi(half)) - math.log(half))


def _inverse_trigamma(x: float) -> float:
    """Newton's iteration of Smyth (2004), appendix: monotone and quadratic from this start."""
    from scipy.special import zeta

    if x > 1e7:
        return 1.0 / math.sqrt(x)
    if x < 1e-6:
        return 1.0 / x
    y = 0.5 + 1.0 / x
    for _ in range(50):
        trigamma = float(zeta(2.0, y))
        step = trigamma * (1.0 - trigamma / x) / (-2.0 * float(zeta(3.0, y)))
        y += step
        if -step / y < 1e-10:
            break
    return y
