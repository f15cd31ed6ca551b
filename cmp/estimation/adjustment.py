"""Contrasts made precise: what a round's companions and covariates explain is taken off its outcome first."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import polars as pl

from cmp.estimation.cells import Arm, BoolArray, Cells, Tallies
from cmp.estimation.estimators import combine_strata
from cmp.estimation.inputs import read_covariates, read_rounds
from cmp.estimation.intervals import normal_quantile, t_quantile
from cmp.estimation.joint import centred_within, draws_as_columns, fit_jointly
from cmp.estimation.multiplicity import q_values
from cmp.estimation.outcome_sums import describe_outcomes
from cmp.estimation.sums import FloatArray, IntArray, group_sums
from cmp.estimation.table import Analysis, Utilities
from cmp.estimation.tabulation import tabulate
from cmp.estimation.wilson import combined_limits, p_values_of_limits

__all__ = ["adjusted_estimate", "companion_part"]

#: What companions may take off a variance, at most: as if there were twice the rounds. Where effects do not add up, a
#: companion that counts for less beside the memory was perhaps never drawn with it: residuals show none of it then, and
#: the interval would end at the additive model's answer. On LoCoMo, where they do not,
#: utilities above .1 were covered in .75 of cases without this and are in .956 with it (results/precision.md).
MAX_COMPANION_GAIN = 2.0


def adjusted_estimate(
    assigned: npt.ArrayLike,
    outcomes: npt.ArrayLike,
    covariates: npt.ArrayLike | None = None,
    strata: npt.ArrayLike | None = None,
    eligible: npt.ArrayLike | None = None,
    *,
    level: float = 0.95,
    adjust: str = "bh",
) -> Utilities:
    """Estimate every memory's utility after taking off what the other memories drawn, and covariates, explain.

    The estimand is that of :func:`cmp.estimate`, the mean over eligible rounds of the outcome expected with the memory
    assigned less that without. What is taken off an outcome is (a) the effect of the memory's *companions*, as the
    joint model of :func:`cmp.joint_utilities` predicts it from the other rounds, less its expectation over the draw of
    companions; (b) the round's covariates, less their stratum's mean, times slopes fitted on the other rounds. Both
    have the same expectation in either arm, whether or not effects add up and whether or not the model is right: with
    effects and slopes from elsewhere the estimate is unbiased whatever the outcomes are, and where no memory changes
    anything it is unbiased as it stands. That effects come from the same log may bias the others: in simulated logs by
    less than 0.3 % of the utility from two rounds a memory on (T >= 2 N), by 4 % at T = N. A wrong model only costs
    precision.

    Parameters
    ----------
    assigned
        Shape (T, N), True where memory ``m`` was drawn for a random slot of round ``t``, each draw as likely to fall
        on one eligible memory as on another.
    outcomes
        Shape (T,), NaN, None or masked where missing: such a round leaves both arms and is counted.
    covariates
        Shape (T,) or (T, p), known before the draw: the ranker's best score, the length of the query, the time, an
        outcome of an earlier block. One slope each, shared by all memories and both arms.
    strata
        Shape (T,), block, or block and query. Fixed effects of queries are strata: naming them takes the queries'
        levels off, and costs little where each holds several rounds.
    eligible
        Shape (T, N), False where the memory was in the context anyway, or not in the store.
    level
        Confidence level.
    adjust
        ``"bh"``, ``"by"`` or ``"holm"``, over all memories.

    Returns
    -------
    Utilities
        The table of :func:`cmp.estimate`; means are of adjusted outcomes. Two-valued outcomes get Newcombe's
        interval at effective sizes, each arm's rounds times (variance of outcomes / variance left), and the p-value
        at which it would end at 0; others the moderated t of the adjusted outcomes.

    Raises
    ------
    ValueError
        For shapes that do not fit, values that are no numbers, or more than one covariate for ten rounds beyond the
        strata. Slopes of a memory's own (Lin's interacted regression) would need ten exposures a covariate, and at
        five exposures a memory make estimates worse: shared slopes are all there is.

    References
    ----------
    Wu, E. and Gagnon-Bartsch, J. A. (2018). The LOOP estimator: adjusting for covariates in randomized experiments.
    Evaluation Review 42(4), 458-488. Lin, W. (2013). Agnostic notes on regression adjustments to experimental data.
    Annals of Applied Statistics 7(1), 295-318. Newcombe, R. G. (1998). Statistics in Medicine 17, 873-890, method 10.

    Examples
    --------
    Twelve rounds, and a covariate that explains most of the noise:

    >>> assigned = [[1, 0, 0], [0, 1, 0], [0, 0, 1]] * 4
    >>> hard = [0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 0.0, 1.0, 2.0]
    >>> outcomes = [1.0, 0.1, 0.0, 0.5, -0.5, -0.4, -0.1, -1.0, -0.9, 1.1, -0.5, -1.0]
    >>> for covariates in (None, hard):
    ...     row = adjusted_estimate(assigned, outcomes, covariates).frame.row(0, named=True)
    ...     print(round(row["utility"], 2), round(row["std_error"], 2))
    1.15 0.34
    0.95 0.05
    """
    analysis = Analysis(interval="auto", level=level, adjust=adjust)
    z, y, stratum, allowed = read_rounds(assigned, outcomes, strata, eligible)
    x, known = read_covariates(covariates, len(z)), ~np.isnan(y)
    codes = np.unique(stratum[known], return_inverse=True)[1]
    base, adjusted = np.zeros(z.shape), np.zeros(z.shape)
    base[known], adjusted[known] = _adjusted_outcomes(z[known], y[known], x[known], codes, allowed[known])
    family = np.zeros(z.shape[1], dtype=np.int64)
    tallies = Tallies(family, (~allowed).sum(axis=0), family, family)
    outcome = describe_outcomes(y[known], codes, 0 * codes, 1).of(family)
    cells = [_cells(z, values, stratum, allowed, known) for values in (adjusted, base)]

    def table(part: Cells, values: FloatArray | None) -> pl.DataFrame:
        described = outcome
        if values is not None:
            kurtosis = _kurtosis(values, stratum, allowed, known)
            described = replace(outcome, two_valued=family > 0, at_most_two=family > 0, kurtosis=kurtosis)
        keys = {"scope": ["*"] * len(family), "memory_id": np.arange(len(family))}
        return tabulate(keys, part, tallies, outcomes=described, family=family, analysis=analysis)

    frame = table(cells[0], adjusted)
    if outcome.two_valued.all():
        low, high = float(outcome.low[0]), float(outcome.high[0])
        gain = _covariate_gain(y[known], base[known, 0], codes)
        taken = _variance_taken(cells[0], cells[1]) / (high - low) ** 2
        slots = max(float((z & allowed).sum(axis=1).mean()), 1.0)
        shares = (taken * (1.0 - 1.0 / slots), taken)  # one companion fewer stands beside the memory
        unadjusted = np.broadcast_to(np.nan_to_num(y)[:, None], z.shape)
        plain = table(_cells(z, unadjusted, stratum, allowed, known), None)
        # whether there are limits, and what is said where not, goes with score limits and not with t's
        frame = frame.with_columns(plain["state"], plain["reason"])
        shown = plain["std_error"].is_not_null().to_numpy()
        replaced = _with_score_limits(frame, shown, cells[0], (low, high), gain, shares, analysis)
        return Utilities(replaced, analysis)
    return Utilities(_with_floor(frame, table(cells[1], base), analysis), analysis)


def companion_part(effects: FloatArray, assigned: BoolArray, eligible: BoolArray) -> FloatArray:
    """Return what each memory's companions add to a round, less its expectation given how many were drawn.

    Given the eligible memories of a round and how many of them were drawn, the ones drawn are a simple random sample.
    So beside memory ``m``, or without it, every other eligible memory is as likely to be drawn, and the sum of their
    effects has expectation (number drawn less ``m`` itself) times their mean effect.

    Parameters
    ----------
    effects
        Shape (T, N), effects of the memories for each round, from any source that did not see its draw.
    assigned, eligible
        Shape (T, N).

    Returns
    -------
    Shape (T, N), outcome units; its mean over draws is 0 whether or not ``m`` is drawn.

    Examples
    --------
    Of three memories two are drawn. Beside the first stands the second, worth 1, instead of the third, worth 0:

    >>> drawn = np.array([[True, True, False]])
    >>> companion_part(np.array([[5.0, 1.0, 0.0]]), drawn, np.ones((1, 3), dtype=bool)).tolist()
    [[0.5, 2.5, 0.0]]
    """
    drawn, worth = assigned & eligible, effects * eligible
    shown = (worth * drawn).sum(axis=1, keepdims=True) - worth * drawn
    others = np.maximum(eligible.sum(axis=1, keepdims=True) - eligible, 1)
    mean = (worth.sum(axis=1, keepdims=True) - worth) / others
    part: FloatArray = shown - (drawn.sum(axis=1, keepdims=True) - drawn) * mean
    return part


def _adjusted_outcomes(
    z: BoolArray, y: FloatArray, x: FloatArray, stratum: IntArray, allowed: BoolArray
) -> tuple[FloatArray, FloatArray]:
    """Return (T, N) outcomes less what covariates, and what companions too, explain, by fits without the round."""
    fit = fit_jointly(draws_as_columns(z, allowed), y, stratum, x)
    effects, slopes = fit.without_each_round()
    explained = (centred_within(x, stratum) * slopes).sum(axis=1)
    base = np.broadcast_to((y - explained)[:, None], z.shape)
    return base, base - companion_part(effects[:, : z.shape[1]], z, allowed)


def _kurtosis(adjusted: FloatArray, stratum: IntArray, allowed: BoolArray, known: BoolArray) -> FloatArray:
    """Return (N,) the kurtosis of the rounds' adjusted outcomes, each averaged over the memories it is eligible for."""
    used = known & allowed.any(axis=1)
    rounds = (adjusted * allowed)[used].sum(axis=1) / allowed[used].sum(axis=1)
    codes = np.unique(stratum[used], return_inverse=True)[1]
    return np.repeat(describe_outcomes(rounds, codes, 0 * codes, 1).kurtosis, adjusted.shape[1])


def _cells(
    z: BoolArray, adjusted: FloatArray, stratum: IntArray, allowed: BoolArray, known: BoolArray
) -> Cells:
    """Sum adjusted outcomes over both arms of every stratum, less the least of each memory there."""
    n_strata, n = int(stratum.max()) + 1, z.shape[1]
    seen = allowed & known[:, None]
    least = np.full((n_strata, n), np.inf)
    np.minimum.at(least, stratum, np.where(seen, adjusted, np.inf))
    offset = np.where(np.isfinite(least), least, 0.0)
    d = (adjusted - offset[stratum]) * seen

    def add(values: npt.NDArray[np.float64 | np.bool_]) -> FloatArray:
        total = np.zeros((n_strata, n))
        np.add.at(total, stratum, values)
        return total.ravel()

    arms = []
    for member in (z & allowed, ~z & allowed):
        arms.append(
            Arm.unweighted(add(member & seen), add(member & ~seen), add(d * member), add(d**2 * member))
        )
    memory = np.tile(np.arange(n), n_strata)
    return Cells.unweighted(memory, offset.ravel(), np.full(n_strata * n, np.nan), arms[0], arms[1])


def _with_floor(frame: pl.DataFrame, base: pl.DataFrame, analysis: Analysis) -> pl.DataFrame:
    """Keep standard errors at what the companions may take off; limits and p-values follow."""
    from scipy.special import stdtr

    error, df, floor, floor_df, utility = (
        table[name].fill_null(np.nan).to_numpy()
        for table, name in (
            (frame, "std_error"), (frame, "df"), (base, "std_error"), (base, "df"), (frame, "utility"),
        )
    )  # fmt: skip
    floor = floor / np.sqrt(MAX_COMPANION_GAIN)
    raised = floor > error
    error, df = np.where(raised, floor, error), np.where(raised, floor_df, df)
    half = error * t_quantile(df, analysis.level)
    p = np.where(raised, 2.0 * stdtr(df, -np.abs(utility) / error), frame["p_value"].fill_null(np.nan))
    return _replaced(frame, error, df, (utility - half, utility + half), p, analysis)


def _replaced(
    frame: pl.DataFrame,
    error: FloatArray,
    df: FloatArray,
    ends: tuple[FloatArray, FloatArray],
    p: FloatArray,
    analysis: Analysis,
) -> pl.DataFrame:
    values = {
        "std_error": error, "df": df, "ci_low": ends[0], "ci_high": ends[1], "p_value": p,
        "q_value": q_values(p, analysis.adjust),
    }  # fmt: skip
    return frame.with_columns(*(pl.Series(name, v, nan_to_null=True) for name, v in values.items()))


def _sizes_without_companions(
    size: FloatArray, p: FloatArray, z: float, gain: float, taken: FloatArray
) -> FloatArray:
    """Return the sizes at which a proportion varies as it does without what companions add, shape (M,).

    Of the variance of one round, at the centre of Wilson's interval, they may take off all but
    ``1 / MAX_COMPANION_GAIN``.

    Examples
    --------
    A fifth of a variance of 1/4 makes 5/4 of the rounds, nothing leaves them, and all of it counts as half:

    >>> taken = np.array([0.05, 0.0, 0.25])
    >>> _sizes_without_companions(np.full(3, 10.0), np.full(3, 0.5), 2.0, 1.0, taken).round(9).tolist()
    [12.5, 10.0, 20.0]

    At the edge Wilson's centre, 1/6 for no success in 8 rounds, keeps a variance, and covariates their gain:

    >>> _sizes_without_companions(np.array([8.0]), np.array([0.0]), 2.0, 2.0, np.array([5 / 360])).round(9).tolist()
    [20.0]
    """
    centre = (size * np.clip(p, 0.0, 1.0) + z**2 / 2.0) / (size + z**2)
    share = taken * gain / (centre * (1.0 - centre))
    return size * gain / (1.0 - np.minimum(share, 1.0 - 1.0 / MAX_COMPANION_GAIN))


def _with_score_limits(
    frame: pl.DataFrame,
    shown: BoolArray,
    cells: Cells,
    values: tuple[float, float],
    gain: float,
    taken: tuple[FloatArray, FloatArray],
    analysis: Analysis,
) -> pl.DataFrame:
    """Replace the t limits by Newcombe's at the effective sizes, for outcomes that take two values.

    Those of memories that are not ``shown``, shape (M,), are undefined.
    """
    n, (low, high), z = frame.height, values, normal_quantile(analysis.level)
    sums = combine_strata(cells, n, estimator="difference", weights="precision").moments
    with np.errstate(divide="ignore", invalid="ignore"):
        effective = sums.effective1, sums.effective0
    proportions, sizes = [], []
    for name, each, part in zip(("mean_exposed", "mean_control"), effective, taken, strict=True):
        size = np.where(shown, each, 1.0)
        p = (frame[name].fill_null(np.nan).to_numpy() - low) / (high - low)
        proportions.append(p)
        sizes.append(_sizes_without_companions(size, p, z, gain, part))
    limits = combined_limits(np.array(proportions), np.array(sizes), (1.0, -1.0))
    ends = [np.where(shown, (high - low) * end, np.nan) for end in limits(np.full(n, z))]
    p_value = np.where(shown, p_values_of_limits(limits, n), np.nan)
    error = (ends[1] - ends[0]) / (2.0 * z)
    replaced = _replaced(frame, error, np.full(n, np.nan), (ends[0], ends[1]), p_value, analysis)
    return replaced.with_columns(interval=pl.lit("newcombe"))


def _variance_taken(adjusted: Cells, base: Cells) -> FloatArray:
    """Return (N,) what the companions took off the variance within arms and strata; below 0 where they added to it."""
    n = int(base.memory.max()) + 1
    variances = []
    for cells in (base, adjusted):
        arms = (cells.exposed, cells.control)
        squares = sum((np.nan_to_num(arm.within_squares) for arm in arms), np.zeros(len(cells.memory)))
        df = sum((np.maximum(arm.n - 1.0, 0.0) for arm in arms), np.zeros(len(cells.memory)))
        squares, df = (group_sums(cells.memory, part, n) for part in (squares, df))
        variances.append(np.divide(squares, df, out=np.zeros(n), where=df > 0.0))
    return variances[0] - variances[1]


def _covariate_gain(y: FloatArray, base: FloatArray, stratum: IntArray) -> float:
    """Return how many outcomes one without its covariates' part is worth."""
    before, after = (float((centred_within(values, stratum) ** 2).sum()) for values in (y, base))
    return before / after if after > 0.0 else 1.0
