"""All memories in one model: each round's outcome is its stratum's level, its covariates, and what was shown."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from cmp.estimation.cells import BoolArray
from cmp.estimation.inputs import read_covariates, read_rounds
from cmp.estimation.intervals import t_quantile
from cmp.estimation.sums import FloatArray, IntArray, group_least

__all__ = [
    "JointFit",
    "JointUtilities",
    "centred_within",
    "draws_as_columns",
    "fit_jointly",
    "joint_utilities",
]

#: Rounds a covariate asks for beside those that strata take: with fewer its slope is noise, and it is refused.
ROUNDS_A_COVARIATE = 10
#: Range of log(variance of effects / variance of noise) that is searched; exposures are 0 or 1, so it has no unit.
_LOG_RATIOS = (-14.0, 14.0)
#: Singular values below this share of the largest are rounding.
_RANK = 1e-9
#: A round whose leverage is within this of 1 decides its own fit: leaving it out is undefined.
_FREE = 1e-9


@dataclass(frozen=True, slots=True)
class JointFit:
    """The posterior of C effects given T outcomes, all outcome units; linear in the outcomes at a given ratio."""

    effects: FloatArray
    """(C,) posterior means; they are about 0, as levels belong to the strata."""
    weights: FloatArray
    """(C, T) what each outcome counts for in each effect."""
    slopes: FloatArray
    """(p,) of the covariates as given; directions that strata explain have slope 0."""
    slope_weights: FloatArray
    """(p, T)"""
    leverage: FloatArray
    """(T,) what each outcome counts for in its own fit."""
    residual: FloatArray
    """(T,)"""
    effect_variance: float
    noise_variance: float
    explained: FloatArray
    """(C, C) share of the effects' prior variance that the outcomes take away; symmetric."""
    df: float
    """Rounds less strata less covariates."""

    def without_each_round(self) -> tuple[FloatArray, FloatArray]:
        """Return effects (T, C) and slopes (T, p) as fitted without the round of each row, at the same ratio."""
        free = self.leverage < 1.0 - _FREE
        step = np.divide(self.residual, 1.0 - self.leverage, out=np.zeros_like(self.residual), where=free)
        effects = self.effects - self.weights.T * step[:, None]
        return effects, self.slopes - self.slope_weights.T * step[:, None]


@dataclass(frozen=True, slots=True)
class JointUtilities:
    """What :func:`joint_utilities` finds.

    Attributes
    ----------
    frame
        polars columns ``scope`` (``"*"``), ``memory_id``, ``n_exposed``, ``n_control``, ``utility``, ``std_error``,
        ``df``, ``ci_low``, ``ci_high`` (null where the memory was never exposed, never 0), ``reliability`` (share of
        the prior variance that the log takes away), ``state``, ``reason`` (why there is no estimate), ``reference``.
        Outcomes that are constant within strata say nothing of how far to draw effects back: no memory has one then.
    effect_sd, noise_sd
        Standard deviations of effects over memories and of outcomes within, outcome units.
    level
        Posterior probability of the limits.
    """

    frame: pl.DataFrame
    effect_sd: float
    noise_sd: float
    level: float


def joint_utilities(
    assigned: npt.ArrayLike,
    outcomes: npt.ArrayLike,
    strata: npt.ArrayLike | None = None,
    covariates: npt.ArrayLike | None = None,
    eligible: npt.ArrayLike | None = None,
    *,
    level: float = 0.95,
) -> JointUtilities:
    """Score all memories at once: ridge regression on who was drawn, its penalty estimated from the log.

    A memory's companions in a round are taken into account, and memories that chance favoured are drawn back to the
    pool. The estimand is that of :func:`cmp.estimate` where effects add up: a memory's effect less the mean of the
    others'. Estimates are shrunk, so that a single one is biased towards 0, by ``1 - reliability``; over memories
    they are closer to the truth than any contrast. Use them to rank; use ``cmp.adjusted_estimate`` to test one.

    Parameters
    ----------
    assigned
        Shape (T, N), True where memory ``m`` was drawn for a random slot of round ``t``.
    outcomes
        Shape (T,), NaN where missing; those rounds are left out.
    strata
        Shape (T,), block (or block and query) of each round; each has a level of its own.
    covariates
        Shape (T,) or (T, p), known before the draw.
    eligible
        Shape (T, N), False where a memory was in the context anyway. Being drawn then stands for whatever took the
        freed slot: it has an effect of its own, which is not reported.
    level
        Posterior probability of the limits.

    Returns
    -------
    JointUtilities

    Raises
    ------
    ValueError
        For shapes that do not fit, values that are no numbers, or more than one covariate for ten rounds.

    Notes
    -----
    Effects are normal with mean 0, outcomes normal about their sum; the ratio of variances maximizes the restricted
    likelihood times itself, which keeps it above 0 (Li and Lahiri 2010), so that memories keep their order even where
    the log shows no effect. Limits hold on average over memories, not for each: those far from the pool are drawn in
    too far. Two memories share a round with probability k (k - 1) / (N (N - 1)), so at k = 1 the ranking is the
    contrast's, and the gain grows with k.

    References
    ----------
    Robinson, G. K. (1991). That BLUP is a good thing. Statistical Science 6(1), 15-32. Li, H. and Lahiri, P. (2010).
    An adjusted maximum likelihood method for solving small area estimation problems. Journal of Multivariate
    Analysis 101(4), 882-892.

    Examples
    --------
    >>> assigned = [[1, 0, 0], [0, 1, 0], [0, 0, 1]] * 4
    >>> u = joint_utilities(assigned, [1.0, 0.1, 0.0, 0.9, 0.0, 0.1, 1.1, 0.0, 0.1, 1.0, 0.1, 0.0])
    >>> u.frame["utility"].round(2).to_list()
    [0.95, -0.47, -0.47]
    """
    z, y, stratum, allowed = read_rounds(assigned, outcomes, strata, eligible)
    x = read_covariates(covariates, len(z))
    known = ~np.isnan(y)
    _, stratum = np.unique(stratum[known], return_inverse=True)
    shown = draws_as_columns(z[known], allowed[known])
    fit = fit_jointly(shown, y[known], stratum, x[known])
    arms = _Arms.of(z & allowed, ~z & allowed, known)
    has_contrast = np.asarray(centred_within(shown, stratum)[:, : z.shape[1]].any(axis=0))
    return _tabulate(fit, arms, has_contrast, level)


def fit_jointly(
    shown: FloatArray, outcomes: FloatArray, stratum: IntArray, covariates: FloatArray
) -> JointFit:
    """Fit the mixed model by restricted maximum likelihood, adjusted to keep the effects' variance above 0.

    Parameters
    ----------
    shown
        Shape (T, C), columns with random effects.
    outcomes, stratum
        Shape (T,), without missing ones; codes 0 to S-1, each taken.
    covariates
        Shape (T, p), columns with fixed slopes.

    Raises
    ------
    ValueError
        Where there are too many covariates for the rounds.
    """
    basis, x = _fixed_part(covariates, stratum)
    n_strata = int(stratum.max(initial=-1)) + 1
    df = len(outcomes) - n_strata - basis.shape[1]
    if basis.shape[1] * ROUNDS_A_COVARIATE > len(outcomes) - n_strata:
        raise ValueError(
            f"{covariates.shape[1]} covariates for {len(outcomes)} rounds in {n_strata} strata; give at most one for "
            f"every {ROUNDS_A_COVARIATE} rounds beyond the strata, such as a first principal component"
        )
    # less the least first: of a constant nothing is left, not rounding either
    outcomes = centred_within(outcomes - group_least(stratum, outcomes, n_strata)[stratum], stratum)
    columns, y = _clear_of(basis, centred_within(shown, stratum)), _clear_of(basis, outcomes)
    left, s, right = np.linalg.svd(columns, full_matrices=False)
    kept = s > _RANK * s.max(initial=0.0)
    left, s, right = left[:, kept], s[kept], right[kept]
    along = left.T @ y
    rest = max(float(y @ y - along @ along), 0.0)
    ratio = _variance_ratio(s, along, rest, df)
    pull = ratio * s / (1.0 + ratio * s**2)
    weights = (right.T * pull) @ left.T
    effects = weights @ y
    noise = ((along**2 / (1.0 + ratio * s**2)).sum() + rest) / df if df > 0 else math.nan
    own = 1.0 / np.bincount(stratum)[stratum] + (basis**2).sum(axis=1) + (left**2 * (pull * s)).sum(axis=1)
    to_slopes = np.linalg.pinv(x, rcond=_RANK)
    return JointFit(
        effects,
        weights,
        to_slopes @ (outcomes - shown @ effects),
        to_slopes - (to_slopes @ shown) @ weights,
        own,
        y - columns @ effects,
        ratio * noise,
        noise,
        (right.T * (pull * s)) @ right,
        df,
    )


def _fixed_part(covariates: FloatArray, stratum: IntArray) -> tuple[FloatArray, FloatArray]:
    """Return an orthonormal basis of the covariates within strata, and themselves so centred."""
    x = centred_within(covariates, stratum)
    size = np.sqrt((covariates**2).sum(axis=0))
    x = np.where(np.sqrt((x**2).sum(axis=0)) > _RANK * size, x, 0.0)  # what strata explain leaves dust
    left, s, _ = np.linalg.svd(x, full_matrices=False)
    return left[:, s > _RANK * s.max(initial=0.0)], x


def _clear_of(basis: FloatArray, values: FloatArray) -> FloatArray:
    cleared: FloatArray = values - basis @ (basis.T @ values)
    return cleared


def centred_within(values: FloatArray, stratum: IntArray) -> FloatArray:
    """Take each stratum's mean off the rows of a (T,) or (T, C) array.

    Examples
    --------
    >>> centred_within(np.array([1.0, 3.0, 5.0]), np.array([0, 0, 1])).tolist()
    [-1.0, 1.0, 0.0]
    """
    if not len(values):
        return values
    sums = np.zeros((int(stratum.max()) + 1, *values.shape[1:]))
    np.add.at(sums, stratum, values)
    return values - (sums.T / np.bincount(stratum)).T[stratum]


def _variance_ratio(s: FloatArray, along: FloatArray, rest: float, df: float) -> float:
    """Maximize the restricted likelihood of var(effects) / var(noise), times the ratio; 0 where nothing varies."""
    from scipy.optimize import minimize_scalar

    total = float(along @ along) + rest
    if not (len(s) and df > 0 and total > 0.0):
        return 0.0

    def loss(log_ratio: float) -> float:
        spread = 1.0 + math.exp(log_ratio) * s**2
        left_over = ((along**2 / spread).sum() + rest) / total
        return float(np.log(spread).sum() + df * math.log(max(left_over, 1e-300)) - 2.0 * log_ratio)

    return math.exp(float(minimize_scalar(loss, bounds=_LOG_RATIOS, method="bounded").x))


@dataclass(frozen=True, slots=True)
class _Arms:
    """Eligible rounds of each arm, with an outcome and without: shape (N,) each."""

    n1: IntArray
    n0: IntArray
    missing1: IntArray
    missing0: IntArray

    @classmethod
    def of(cls, exposed: BoolArray, control: BoolArray, known: BoolArray) -> _Arms:
        return cls(*(arm[rows].sum(axis=0) for rows in (known, ~known) for arm in (exposed, control)))


def _tabulate(fit: JointFit, arms: _Arms, has_contrast: BoolArray, level: float) -> JointUtilities:
    if not 0.0 < level < 1.0:
        raise ValueError(f"level={level!r} is no probability; give one between 0 and 1, such as 0.95")
    n = len(arms.n1)
    to_pool = (np.eye(n) - 1.0 / n) * (n / (n - 1.0) if n > 1 else 1.0)
    utility = to_pool @ fit.effects[:n]
    prior = (to_pool**2).sum(axis=1)
    taken = ((to_pool @ fit.explained[:n, :n]) * to_pool).sum(axis=1)
    reliability = np.divide(taken, prior, out=np.zeros(n), where=prior > 0.0)
    error = np.sqrt(np.maximum(prior - taken, 0.0) * fit.effect_variance)
    states, reasons = _states(fit, arms, has_contrast)
    scored = states == "ESTIMATED"
    half = error * t_quantile(np.full(n, float(fit.df)), level)
    columns = {
        "utility": utility, "std_error": error, "df": np.full(n, float(fit.df)),
        "ci_low": utility - half, "ci_high": utility + half, "reliability": reliability,
    }  # fmt: skip
    frame = pl.DataFrame(
        {"scope": ["*"] * n, "memory_id": np.arange(n), "n_exposed": arms.n1, "n_control": arms.n0}
        | {name: np.where(scored, values, np.nan) for name, values in columns.items()},
        nan_to_null=True,
    ).with_columns(
        state=pl.Series(states.tolist(), dtype=pl.String),
        reason=pl.Series(reasons.tolist(), dtype=pl.String),
        reference=pl.lit("pool"),
    )
    return JointUtilities(frame, math.sqrt(fit.effect_variance), math.sqrt(fit.noise_variance), level)


def _states(
    fit: JointFit, arms: _Arms, has_contrast: BoolArray
) -> tuple[npt.NDArray[np.object_], npt.NDArray[np.object_]]:
    """Return each memory's state, and why it has no estimate."""
    n1, n0 = arms.n1, arms.n0
    rounds = n1 + n0 + arms.missing1 + arms.missing0
    any_round = np.ones(len(n1), dtype=bool)
    rules = (
        (rounds == 0, "NEVER_EXPOSED", "no eligible round"),
        (n1 + n0 == 0, "NO_OUTCOMES", "no outcome in any eligible round"),
        ((n1 == 0) & (arms.missing1 > 0), "NO_OUTCOMES", "no outcome in any exposed round"),
        (n1 == 0, "NEVER_EXPOSED", "n1=0"),
        (n0 == 0, "UNDEREXPOSED", "n0=0"),
        (~has_contrast, "UNDEREXPOSED", "no stratum holds both arms"),
        (any_round & (fit.effect_variance > 0.0), "ESTIMATED", None),
        (any_round, "UNDEREXPOSED", "no variance: outcomes constant"),
    )
    first = np.argmax([rule[0] for rule in rules], axis=0)
    states, reasons = (np.array([rule[of] for rule in rules], dtype=object)[first] for of in (1, 2))
    return states, reasons


def draws_as_columns(assigned: BoolArray, eligible: BoolArray) -> FloatArray:
    """Return a column a memory, then one for each memory that was drawn where it was not eligible."""
    barred = assigned & ~eligible
    return np.hstack([assigned & eligible, barred[:, barred.any(axis=0)]]).astype(np.float64)
