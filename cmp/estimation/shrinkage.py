"""Empirical Bayes: what a memory's number is worth, given how much the memories of its family differ at all."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from cmp.errors import UndecidableError
from cmp.estimation.intervals import t_quantile
from cmp.estimation.sums import FloatArray, IntArray, group_sums
from cmp.estimation.table import Utilities

__all__ = ["MIN_FAMILY", "Posterior", "shrink", "shrink_arrays"]

#: Estimates a family needs: with three, nothing is known of how much they differ.
MIN_FAMILY = 4
#: Halvings of the bracket of the prior's variance: to the last bit of its upper end.
_HALVINGS = 60


class Posterior(NamedTuple):
    """What is believed of each effect, arrays of shape (M,), NaN where its family has fewer than four estimates."""

    mean: FloatArray
    sd: FloatArray
    prior_mean: FloatArray
    """Weighted mean of the family."""
    prior_sd: FloatArray
    """How much true effects differ within the family; 0 where estimates differ no more than chance makes them."""


def shrink_arrays(
    estimates: npt.ArrayLike, std_errors: npt.ArrayLike, families: npt.ArrayLike | None = None
) -> Posterior:
    """Shrink estimates towards their family's mean, as far as they differ for being noisy.

    True effects of a family are taken as draws from a normal distribution, whose mean and variance are estimated from
    the family. On average over its members the posterior mean is nearer to the truth than the estimate, and mean +-
    1.96 sd covers 95 %; for one that is unlike the others neither need hold.

    Parameters
    ----------
    estimates
        Shape (M,), NaN where undefined.
    std_errors
        Shape (M,), positive; NaN where undefined.
    families
        Shape (M,), labels; one family for None.

    Returns
    -------
    Posterior
        ``(mean, sd, prior_mean, prior_sd)``, in the estimates' units.

    Raises
    ------
    ValueError
        For shapes that differ, infinite estimates, or standard errors that are not positive.

    Notes
    -----
    The prior's variance solves ``sum (x - mean)^2 / (V + A) = k - 1`` (Paule and Mandel), which is Morris's estimate.
    The sd allows for not knowing the prior: Morris (1983), section 5.

    References
    ----------
    Morris, C. N. (1983). Parametric empirical Bayes inference: theory and applications. JASA 78(381), 47-55. Paule,
    R. C. and Mandel, J. (1982). Consensus values and weighting factors. Journal of Research of the National Bureau of
    Standards 87(5), 377-385. Efron, B. and Morris, C. (1975). JASA 70(350), 311-319.

    Examples
    --------
    >>> found = shrink_arrays([-1.0, 0.0, 1.0, 2.0, 8.0], [1.0, 1.0, 1.0, 1.0, 1.0])
    >>> found.mean.round(2).tolist()
    [-0.88, 0.08, 1.04, 2.0, 7.76]
    """
    x, error = np.asarray(estimates, dtype=np.float64), np.asarray(std_errors, dtype=np.float64)
    if x.shape != error.shape or x.ndim != 1:
        raise ValueError(
            f"estimates have shape {x.shape} and std_errors {error.shape}; give one of each an effect"
        )
    if np.isinf(x).any() or (error <= 0).any() or np.isinf(error).any():
        raise ValueError("estimates are finite, and standard errors finite and positive; NaN where undefined")
    labels = np.zeros(len(x), dtype=np.int64) if families is None else np.asarray(families)
    if labels.shape != x.shape:
        raise ValueError(f"families have shape {labels.shape} for {len(x)} estimates; give one an effect")
    names, family = np.unique(labels, return_inverse=True)
    known = np.isfinite(x) & np.isfinite(error)
    result = np.full((4, len(x)), np.nan)
    rows = np.flatnonzero(known)
    rows = rows[np.lexsort((error[rows], x[rows], family[rows]))]  # so that renaming effects changes no bit
    result[:, rows] = _posterior(x[rows], error[rows] ** 2, family[rows].astype(np.int64), len(names))
    return Posterior(*result)


def _posterior(x: FloatArray, v: FloatArray, family: IntArray, n_families: int) -> FloatArray:
    """Return means, standard deviations, prior means and prior deviations, a row each."""

    def over(values: FloatArray) -> FloatArray:
        return group_sums(family, values, n_families)

    k = over(np.ones(len(x)))
    with np.errstate(divide="ignore", invalid="ignore"):
        origin = over(x) / k
        d = x - origin[family]  # sums are of what differs
        low, high = np.zeros(n_families), over(d**2) / (k - 1.0)
        for _ in range(_HALVINGS):
            a = (low + high) / 2.0
            w = 1.0 / (v + a[family])
            mean = over(w * d) / over(w)
            more = over(w * (d - mean[family]) ** 2) > k - 1.0
            low, high = np.where(more, a, low), np.where(more, high, a)
        a = low  # 0 itself where even that is too much
        w = 1.0 / (v + a[family])
        mean = over(w * d) / over(w)
        typical = (over(w * v) / over(w))[family]
        kept, of = (k - 3.0)[family], k[family]
        shrunk = kept / (of - 1.0) * v * w
        moved = d - mean[family]
        doubt = 2.0 / kept * shrunk**2 * (typical + a[family]) * w
        variance = v * (1.0 - (1.0 - w / over(w)[family]) * shrunk) + doubt * moved**2
    result = np.stack([x - shrunk * moved, np.sqrt(variance), (origin + mean)[family], np.sqrt(a)[family]])
    return np.where(of >= MIN_FAMILY, result, np.nan)


def shrink(u: Utilities, *, probability: bool = False) -> Utilities:
    """Add to a table what is believed of each memory, given all the others of its scope (and group).

    Parameters
    ----------
    u
        A table of utilities; its intervals' level is kept.
    probability
        Whether to add ``posterior_positive``, the probability of a utility above 0. It needs ``reference="card"``:
        relative to the pool, a useful memory below the pool's mean has a negative number.

    Returns
    -------
    Utilities
        The same table with ``posterior_mean, posterior_sd, posterior_low, posterior_high``, outcome units. They are
        null for a memory without a standard error, or of a family with fewer than four.

    Raises
    ------
    UndecidableError
        For ``probability=True`` where utilities are relative to the pool.

    Notes
    -----
    Estimates are taken as normal about their utility, with the table's standard errors; limits use the table's degrees
    of freedom, so that a memory that is not shrunk keeps its interval. Coverage and errors are averages over the
    family: what is farthest out moves most.

    References
    ----------
    Morris, C. N. (1983). Parametric empirical Bayes inference: theory and applications. JASA 78(381), 47-55.

    Examples
    --------
    >>> from cmp.estimation import estimate
    >>> rng = np.random.default_rng(1)
    >>> assigned = rng.random((200, 8)) < 0.25
    >>> u = shrink(estimate(assigned, rng.normal(size=200) + 2.0 * assigned[:, 0]))
    >>> u.frame.select(pl.col("utility", "posterior_mean").round(2)).head(2).rows()
    [(1.83, 1.75), (0.08, 0.08)]
    """
    if probability and u.analysis.reference != "card":
        raise UndecidableError(
            f"these utilities are relative to the {u.analysis.reference}, where the sign of a memory's number depends "
            'on the other memories; serve with reference_cards="auto" and pass cmp.utilities(log, reference="card")'
        )
    frame = u.frame
    of_family = [name for name in ("metric", "scope", "group") if name in frame.columns]
    family = frame.select(pl.struct(of_family).rank("dense")).to_series().to_numpy()
    x, error, df = (
        frame[name].cast(pl.Float64).fill_null(np.nan).to_numpy() for name in ("utility", "std_error", "df")
    )
    found = shrink_arrays(x, error, family)
    half = found.sd * t_quantile(df, u.analysis.level)
    columns = {
        "posterior_mean": found.mean,
        "posterior_sd": found.sd,
        "posterior_low": found.mean - half,
        "posterior_high": found.mean + half,
    }
    if probability:
        columns["posterior_positive"] = _above_zero(found.mean / found.sd, df)
    return replace(
        u, frame=frame.with_columns(pl.Series(name, v, nan_to_null=True) for name, v in columns.items())
    )


def _above_zero(z: FloatArray, df: FloatArray) -> FloatArray:
    from scipy.special import ndtr, stdtr

    normal = ~np.isfinite(df)
    chance: FloatArray = np.where(normal, ndtr(z), stdtr(np.where(normal, 1.0, df), z))
    return chance
