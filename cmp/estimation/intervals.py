"""Confidence intervals that hold with five exposures a memory; every one says which it is."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cmp.estimation.cells import BoolArray, Outcomes
from cmp.estimation.moderation import MAX_KURTOSIS, moderate_variances, shrink_to_control
from cmp.estimation.moments import Moments
from cmp.estimation.sums import FloatArray, IntArray
from cmp.estimation.wilson import newcombe_limits

__all__ = [
    "INTERVALS",
    "Interval",
    "NewcombeInterval",
    "check_level",
    "confidence_limits",
    "newcombe_interval",
]

INTERVALS = ("auto", "newcombe", "moderated", "pooled", "neyman", "welch")


class NewcombeInterval(NamedTuple):
    """Difference of two proportions and its limits."""

    difference: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Interval:
    """Standard errors and limits, each of shape (M,), outcome units, NaN where undefined."""

    std_error: FloatArray
    """For ``"newcombe"``, which has none of its own: half the width over the normal critical value."""
    df: FloatArray
    """Degrees of freedom of the t; NaN for a normal or a score interval."""
    low: FloatArray
    high: FloatArray
    method: npt.NDArray[np.object_]
    """Which interval it is, a name a memory."""

    def without(self, rows: BoolArray) -> Interval:
        """Return the intervals with some of them undefined."""
        error, df, low, high = (
            np.where(rows, np.nan, values) for values in (self.std_error, self.df, self.low, self.high)
        )
        return Interval(error, df, low, high, self.method)

    def where(self, rows: BoolArray, other: Interval) -> Interval:
        """Return these intervals in some rows and the other ones in the rest."""
        return Interval(
            *(np.where(rows, getattr(self, field.name), getattr(other, field.name)) for field in fields(self))
        )


def newcombe_interval(
    exposed_successes: float,
    n_exposed: float,
    control_successes: float,
    n_control: float,
    level: float = 0.95,
) -> NewcombeInterval:
    """Newcombe's hybrid score interval for a difference of two independent proportions.

    Parameters
    ----------
    exposed_successes, n_exposed, control_successes, n_control
        Successes and rounds of each arm.
    level
        Confidence level.

    Returns
    -------
    NewcombeInterval
        ``(difference, low, high)``; the limits lie in [-1, 1].

    Raises
    ------
    ValueError
        For an empty arm, infinite numbers, successes outside ``0..n``, or a level outside (0, 1).

    References
    ----------
    Newcombe, R. G. (1998). Interval estimation for the difference between independent proportions: comparison
    of eleven methods. Statistics in Medicine 17, 873-890, method 10. Wilson, E. B. (1927). JASA 22, 209-212.

    Examples
    --------
    >>> difference, low, high = newcombe_interval(56, 70, 48, 80)
    >>> round(difference, 4), round(low, 4), round(high, 4)
    (0.2, 0.0524, 0.3339)
    """
    check_level(level)
    counts = (exposed_successes, n_exposed, control_successes, n_control)
    if not all(map(math.isfinite, counts)):
        raise ValueError(f"{counts} are the successes and rounds of both arms; give four finite numbers")
    if not (0 <= exposed_successes <= n_exposed and 0 <= control_successes <= n_control) or not (
        n_exposed > 0 and n_control > 0
    ):
        raise ValueError(
            f"{exposed_successes} of {n_exposed} exposed, {control_successes} of {n_control} control rounds: "
            "each arm needs a round, and successes lie between 0 and its rounds"
        )
    p1, p0 = np.array([exposed_successes / n_exposed]), np.array([control_successes / n_control])
    low, high = newcombe_limits(p1, np.array([n_exposed]), p0, np.array([n_control]), normal_quantile(level))
    return NewcombeInterval(float(p1[0] - p0[0]), float(low[0]), float(high[0]))


def confidence_limits(
    sums: Moments, *, outcomes: Outcomes, family: IntArray, interval: str, level: float
) -> Interval:
    """Return the interval asked for, one a memory.

    Parameters
    ----------
    sums
        Over each memory's strata.
    outcomes
        Shape (M,), their values over each memory's family.
    family
        Shape (M,), which memories share a prior for their variance (those of one scope, or scope and group).
    interval
        One of :data:`INTERVALS`. ``"auto"``: ``"newcombe"`` where a family's outcomes are two-valued, else
        ``"moderated"``.
    level
        Confidence level.

    Raises
    ------
    ValueError
        For another interval or level, or ``"newcombe"`` on outcomes that are not two-valued.

    Notes
    -----
    Horvitz-Thompson estimates of a memory whose rounds are not just as many as its propensity says vary with
    that number too; they get a normal interval from the conservative sum of squared weighted outcomes, named
    ``"horvitz_thompson"``.
    """
    check_level(level)
    if interval not in INTERVALS:
        raise ValueError(f"interval={interval!r}; use one of {', '.join(map(repr, INTERVALS))}")
    proportions = outcomes.two_valued
    others = (sums.rounds1 + sums.rounds0 > 0) & ~proportions
    if interval == "newcombe" and others.any():
        row = int(np.argmax(others))
        raise ValueError(
            f"interval='newcombe' is for two-valued outcomes; some lie between {outcomes.low[row]:g} and "
            f"{outcomes.high[row]:g} and are not: use 'moderated' or 'auto'"
        )
    if interval == "newcombe" or (interval == "auto" and proportions.all()):
        result = _newcombe(sums, outcomes, level)
    else:
        chosen = "moderated" if interval == "auto" else interval
        error, df = _standard_errors(sums, chosen, family, outcomes.kurtosis)
        result = _symmetric(sums.gap, error, df, level, chosen)
        if interval == "auto" and proportions.any():
            result = _newcombe(sums, outcomes, level).where(proportions, result)
    if not sums.has_design_count.all():
        result = _with_horvitz_thompson(sums, result, level)
    return _centred(result, sums)


def _centred(interval: Interval, sums: Moments) -> Interval:
    """Move an interval about the difference of the arms to the utility, where that is another number."""
    low, high = (sums.utility + sums.scale * (limit - sums.gap) for limit in (interval.low, interval.high))
    moved = ~((sums.utility == sums.gap) & (sums.scale == 1.0))
    return Interval(
        np.where(moved, interval.std_error * sums.scale, interval.std_error),
        interval.df,
        np.where(moved, low, interval.low),
        np.where(moved, high, interval.high),
        interval.method,
    )


def _newcombe(sums: Moments, outcomes: Outcomes, level: float) -> Interval:
    """Stratum-weighted proportions at their effective sizes; with one stratum, Newcombe's interval itself."""
    scale, z = outcomes.high - outcomes.low, normal_quantile(level)
    with np.errstate(invalid="ignore", divide="ignore"):
        low, high = newcombe_limits(*weighted_proportions(sums, outcomes), z)
    shown = (sums.rounds1 >= 2) & (sums.rounds0 >= 2)
    low, high = np.where(shown, low * scale, np.nan), np.where(shown, high * scale, np.nan)
    nothing = np.full(len(low), np.nan)
    return Interval((high - low) / (2 * z), nothing, low, high, np.full(len(low), "newcombe", dtype=object))


def weighted_proportions(
    sums: Moments, outcomes: Outcomes
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Return the exposed arm's proportion and effective size, and the control arm's: shape (M,) each."""
    scale = outcomes.high - outcomes.low
    start = sums.origin - outcomes.low

    def proportion(levels: FloatArray) -> FloatArray:
        # a mean of 0s and 1s leaves that range by rounding alone
        return np.clip((start + levels / sums.weight) / np.where(scale > 0, scale, 1.0), 0, 1)

    with np.errstate(divide="ignore", invalid="ignore"):
        return proportion(sums.levels1), sums.effective1, proportion(sums.levels0), sums.effective0


def _standard_errors(
    sums: Moments, method: str, family: IntArray, kurtosis: FloatArray
) -> tuple[FloatArray, FloatArray]:
    error: Callable[..., tuple[FloatArray, FloatArray]] = {
        "moderated": lambda: _moderated(sums, family, kurtosis),
        "pooled": lambda: _pooled(sums),
        "neyman": lambda: _unpooled(sums, normal=True),
        "welch": lambda: _unpooled(sums, normal=False),
    }[method]
    with np.errstate(divide="ignore", invalid="ignore"):
        variance, df = error()
    # a variance of 0 is a lattice's accident, or a constant outcome: neither is a certainty
    return np.sqrt(np.where((variance > 0) & (sums.rounds1 > 0), variance, np.nan)), df


def _moderated(sums: Moments, family: IntArray, kurtosis: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Replicate form: an exposure's residual is from its stratum's control mean plus the gap."""
    df1 = np.maximum(sums.size1 - 1.0, 0.0)
    variance1 = np.where(df1 > 0, sums.replicate_squares / df1, np.nan)
    variance0 = np.where(sums.df0 > 0, sums.within0 / sums.df0, np.nan)
    # Horvitz-Thompson's gaps off the design's counts have an interval of their own, and no say in others'
    own_df1 = np.where((sums.rounds1 > 1) & sums.has_design_count, df1, 0.0)
    moderated1, total_df1 = moderate_exposed(variance1, own_df1, variance0, kurtosis, family)
    part1 = moderated1 * sums.spread1 / sums.weight**2
    part0 = variance0 * sums.spread0 / sums.weight**2
    return part1 + part0, (part1 + part0) ** 2 / (part1**2 / total_df1 + part0**2 / sums.df0)


def moderate_exposed(
    variances: FloatArray, df: FloatArray, control: FloatArray, kurtosis: FloatArray, family: IntArray
) -> tuple[FloatArray, FloatArray]:
    """Shrink the exposed arms' variances to their family's prior; to the control arms' where far from normal."""
    to_control = shrink_to_control(variances, df, control, kurtosis)
    to_family = _shrink_by_family(variances, df, family)
    moderated, total_df = (
        np.where(kurtosis > MAX_KURTOSIS, *both) for both in zip(to_control, to_family, strict=True)
    )
    return moderated, total_df


def _shrink_by_family(
    variances: FloatArray, df: FloatArray, family: IntArray
) -> tuple[FloatArray, FloatArray]:
    """Moderate each family's variances; no total df exceeds that of the whole family, as in limma."""
    moderated, total_df = np.empty_like(variances), np.empty_like(variances)
    for rows in _groups(family):
        own = np.where(np.isfinite(variances[rows]), df[rows], 0.0)
        fitted = moderate_variances(variances[rows], own, prior="auto")
        moderated[rows] = fitted.moderated
        total_df[rows] = np.minimum(fitted.prior_df + own, own.sum())
    return moderated, total_df


def _groups(family: IntArray) -> list[IntArray]:
    order = np.argsort(family, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(family[order])) + 1)


def _pooled(sums: Moments) -> tuple[FloatArray, FloatArray]:
    """Student: one variance for both arms and all strata of a memory."""
    variance = (sums.within1 + sums.within0) / sums.df
    return variance * (sums.spread1 + sums.spread0) / sums.weight**2, sums.df


def _unpooled(sums: Moments, *, normal: bool) -> tuple[FloatArray, FloatArray]:
    """Neyman: a variance for each arm of each stratum; Welch-Satterthwaite df unless normal."""
    df = np.full(len(sums.weight), np.nan) if normal else sums.unpooled**2 / sums.unpooled_spread
    return sums.unpooled / sums.weight**2, df


def _symmetric(utility: FloatArray, error: FloatArray, df: FloatArray, level: float, method: str) -> Interval:
    df = np.where(np.isfinite(error), df, np.nan)
    half = error * t_quantile(df, level)
    return Interval(error, df, utility - half, utility + half, np.full(len(utility), method, dtype=object))


def _with_horvitz_thompson(sums: Moments, interval: Interval, level: float) -> Interval:
    rows: BoolArray = ~sums.has_design_count
    with np.errstate(divide="ignore", invalid="ignore"):
        variance = sums.second / sums.weight**2
    error = np.sqrt(np.where((variance > 0) & (sums.rounds1 > 1) & (sums.rounds0 > 1), variance, np.nan))
    own = _symmetric(sums.gap, error, np.full(len(error), np.nan), level, "horvitz_thompson")
    return own.where(rows, interval)


def p_values_of_t(utility: FloatArray, interval: Interval) -> FloatArray:
    """Return two-sided p-values of 0 that go with symmetric intervals, shape (M,)."""
    from scipy.special import ndtr, stdtr

    with np.errstate(invalid="ignore", divide="ignore"):
        t = -np.abs(utility / interval.std_error)
    normal = ~np.isfinite(interval.df)
    tail: FloatArray = np.where(normal, ndtr(t), stdtr(np.where(normal, 1.0, interval.df), t))
    return 2.0 * tail


def t_quantile(df: FloatArray, level: float) -> FloatArray:
    """Two-sided critical value of Student's t; of the normal where ``df`` is NaN or infinite."""
    from scipy.special import stdtrit

    normal = ~np.isfinite(df)
    quantile: FloatArray = stdtrit(np.where(normal, 1.0, df), 0.5 + level / 2)
    return np.where(normal, normal_quantile(level), quantile)


def normal_quantile(level: float) -> float:
    """Two-sided critical value of the normal."""
    from scipy.special import ndtri

    return float(ndtri(0.5 + level / 2))


def check_level(level: float) -> None:
    """Refuse what is no confidence level, with a ``ValueError``."""
    if not 0.0 < level < 1.0:
        raise ValueError(f"level={level!r} is no confidence level; give one between 0 and 1, such as 0.95")
