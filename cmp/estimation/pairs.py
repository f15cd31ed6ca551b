"""Pairs: memories that help only together, or get in each other's way."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from cmp.estimation.cells import BoolArray
from cmp.estimation.inputs import read_rounds
from cmp.estimation.intervals import check_level, normal_quantile, t_quantile
from cmp.estimation.joint import centred_within
from cmp.estimation.multiplicity import q_values
from cmp.estimation.sums import FloatArray, IntArray
from cmp.estimation.wilson import combined_limits, p_values_of_limits

__all__ = ["pair_utilities"]

#: Rounds of each other kind (one of the two, neither) that a contrast asks for.
_MIN_OTHERS = 2
#: Statistics as large as the observed one up to this share of it are ties.
_TIE = 1e-9
#: Numbers held at once while outcomes are rearranged.
_CHUNK = 4_000_000
#: Weight, in rounds, of the other three kinds' variance in that of the few rounds with both.
_PRIOR_DF = 4.0


def pair_utilities(
    assigned: npt.ArrayLike,
    outcomes: npt.ArrayLike,
    strata: npt.ArrayLike | None = None,
    pairs: Iterable[tuple[int, int]] | None = None,
    eligible: npt.ArrayLike | None = None,
    *,
    min_together: int = 4,
    level: float = 0.95,
    adjust: str = "bh",
    resamples: int = 9999,
    seed: int = 0,
) -> pl.DataFrame:
    """Estimate what two memories do together beyond the sum of what each does alone.

    The estimand is the interaction E[y | both drawn] - E[y | a only] - E[y | b only] + E[y | neither], over rounds in
    which both are eligible and over the design's other draws. With one stratum the estimate is that contrast of four
    means, unbiased given their counts; with more it is the least-squares coefficient of "both" beside a level for
    each stratum, which is the same contrast where the interaction is one number.

    Pairs are rarely drawn together: k (k - 1) / (N (N - 1)) of rounds, 0.2 % at N = 32 and k = 2. Most logs know
    nothing of most pairs, and the table says so rather than giving a number.

    Parameters
    ----------
    assigned
        Shape (T, N), True where memory ``m`` was drawn for a random slot of round ``t``.
    outcomes
        Shape (T,), NaN where missing; those rounds are left out.
    strata
        Shape (T,), block (or block and query) of each round.
    pairs
        Pairs of columns to look at; None for all. Fewer pairs make smaller q-values, if they were chosen before the
        outcomes were seen.
    eligible
        Shape (T, N), False where a memory was in the context anyway, or not in the store.
    min_together
        Rounds with both that an estimate asks for, at least 2.
    level
        Confidence level.
    adjust
        ``"bh"``, ``"by"`` or ``"holm"``, over the pairs that were tested.
    resamples
        Rearrangements of the outcomes for one p-value, where it is not enumerated; it is at least 1 / (1 + resamples).
    seed
        What they are drawn from.

    Returns
    -------
    polars.DataFrame
        A row a pair: ``memory_a, memory_b``; ``n_together, n_a_only, n_b_only, n_neither`` and the means of the same
        four; ``interaction, std_error, df, ci_low, ci_high`` (outcome units), ``p_value, q_value``; ``state``
        (``ESTIMATED``, ``TOO_FEW_COEXPOSURES``, ``UNDEREXPOSED``) and ``reason``. What is not known is null.

    Raises
    ------
    ValueError
        For shapes that do not fit, values that are no numbers, or a pair of columns that is none.

    Notes
    -----
    The p-value is exact for "one of the two changes no outcome, beside the other or without it", which rules out any
    interaction. Given the rounds with ``a``, those of them that also drew ``b`` are a simple random sample, and so
    among the rounds without ``a``: rearranging outcomes within both gives the distribution of the estimate if ``b``
    changes nothing. The same with ``a`` and ``b`` exchanged; the larger of the two p-values counts (an
    intersection-union test), so that a memory that helps alone makes none of its pairs significant. Where *both*
    matter and their effects just add up, these say little; so the p-value is never below that of the limits, and 0
    lies outside a 95 % interval wherever p < .05. Two-valued outcomes in one stratum are enumerated, and
    their limits combine Wilson's for the four means; other limits are of a t whose variance in the few rounds with
    both is drawn to that of the rest.

    References
    ----------
    Fisher, R. A. (1935). The Design of Experiments, sections 11 and 41. Berger, R. L. (1982). Multiparameter hypothesis
    testing and acceptance sampling. Technometrics 24(4), 295-300. Phipson, B. and Smyth, G. K. (2010). Permutation
    p-values should never be zero. SAGMB 9(1), article 39. Zou, G. Y. and Donner, A. (2008). Construction of confidence
    limits about effect measures: a general approach. Statistics in Medicine 27, 1693-1702.

    Examples
    --------
    An answer that needs both halves of a recipe: 40 rounds, both drawn in 5.

    >>> a, b = np.arange(40) < 10, np.arange(40) % 2 == 0
    >>> table = pair_utilities(np.stack([a, b], axis=1), (a & b).astype(float))
    >>> table.select("n_together", pl.col("interaction").round(4), pl.col("p_value").round(4)).row(0)
    (5, 1.0, 0.0079)
    """
    if min_together < 2:
        raise ValueError(
            f"min_together={min_together}; two rounds with both is the least that has a variance"
        )
    check_level(level)
    z, y, stratum, allowed = read_rounds(assigned, outcomes, strata, eligible)
    known = ~np.isnan(y)
    stratum = np.unique(stratum[known], return_inverse=True)[1]
    log = _Log(z[known] & allowed[known], y[known], stratum, allowed[known])
    wanted = _wanted(pairs, z.shape[1])
    counts, means = _cells(log, wanted)
    testable = (counts[:, 0] >= min_together) & (counts[:, 1:] >= _MIN_OTHERS).all(axis=1)
    found = np.full((len(wanted), 4), np.nan)
    streams = np.random.default_rng(seed).spawn(2)
    for swapped, stream in zip((False, True), streams, strict=True):
        for fixed, rows, one in _groups(log, wanted, testable, swapped):
            estimate, error, df, weights = _interaction(one, fixed, wanted[rows, 1 - swapped])
            p = _p_values(one, fixed, wanted[rows, 1 - swapped], weights, estimate, resamples, stream)
            found[rows] = np.stack([estimate, error, df, np.fmax(found[rows, 3], p)], axis=1)
    return _tabulate(log, wanted, counts, means, found, min_together, level, adjust)


@dataclass(frozen=True, slots=True)
class _Log:
    drawn: BoolArray
    y: FloatArray
    stratum: IntArray
    allowed: BoolArray

    def of(self, rows: BoolArray) -> _Log:
        """Return some rounds, strata numbered anew."""
        stratum = np.unique(self.stratum[rows], return_inverse=True)[1]
        return _Log(self.drawn[rows], self.y[rows], stratum, self.allowed[rows])


def _wanted(pairs: Iterable[tuple[int, int]] | None, n: int) -> IntArray:
    if pairs is None:
        return np.stack(np.triu_indices(n, 1), axis=1).astype(np.int64)
    listed = np.array(list(pairs), dtype=np.int64).reshape(-1, 2)
    wrong = ((listed < 0) | (listed >= n)).any(axis=1) | (listed[:, 0] == listed[:, 1])
    if wrong.any():
        raise ValueError(
            f"{tuple(listed[wrong][0].tolist())} is no pair of the {n} memories; give two different columns"
        )
    return listed


def _cells(log: _Log, wanted: IntArray) -> tuple[IntArray, FloatArray]:
    """Return rounds and mean outcomes, (P, 4) each, with both, a only, b only and neither."""
    first, second = wanted.T
    drawn, allowed = log.drawn.astype(np.float64), log.allowed.astype(np.float64)
    alone = allowed - drawn
    centre = log.y.mean()

    def over(weight: FloatArray) -> FloatArray:
        parts = ((drawn, drawn), (drawn, alone), (alone, drawn), (alone, alone))
        return np.stack([((one.T * weight) @ two)[first, second] for one, two in parts], axis=1)

    counts = np.rint(over(np.ones(len(log.y))))
    sums = over(log.y - centre)
    means = centre + np.divide(sums, counts, out=np.full(sums.shape, np.nan), where=counts > 0)
    return counts.astype(np.int64), means


def _groups(
    log: _Log, wanted: IntArray, testable: BoolArray, swapped: bool
) -> Iterator[tuple[int, IntArray, _Log]]:
    """Yield a memory, the pairs it is fixed in whose partners are eligible in the same rounds, and these rounds."""
    for fixed in np.unique(wanted[testable, int(swapped)]):
        rows = np.flatnonzero(testable & (wanted[:, int(swapped)] == fixed))
        patterns, which = np.unique(log.allowed[:, wanted[rows, 1 - swapped]], axis=1, return_inverse=True)
        for number, pattern in enumerate(patterns.T):
            yield int(fixed), rows[which.ravel() == number], log.of(pattern & log.allowed[:, fixed])


def _interaction(
    log: _Log, fixed: int, partners: IntArray
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Return estimates, standard errors and degrees of freedom, (P,), and what each outcome counts for, (T, P)."""
    a = log.drawn[:, fixed].astype(np.float64)
    b = log.drawn[:, partners].astype(np.float64)
    columns = np.stack([np.broadcast_to(a[:, None], b.shape), b, a[:, None] * b])
    columns = np.stack([centred_within(column, log.stratum) for column in columns])
    gram = np.einsum("itp,jtp->pij", columns, columns)
    fits = np.linalg.matrix_rank(gram, hermitian=True) == 3
    inverse = np.full(gram.shape, np.nan)
    inverse[fits] = np.linalg.inv(gram[fits])
    weights = np.einsum("pi,itp->tp", inverse[:, 2], columns)
    y = centred_within(log.y, log.stratum)
    slopes = np.einsum("pij,jtp,t->pi", inverse, columns, y)
    residual = y[:, None] - np.einsum("pi,itp->tp", slopes, columns)
    both = (log.drawn[:, [fixed]] & log.drawn[:, partners]).astype(np.float64)
    df = float(len(y) - int(log.stratum.max()) - 4)
    return (*_moderated(slopes[:, 2], residual, weights, both, df), weights)


def _moderated(
    estimate: FloatArray, residual: FloatArray, weights: FloatArray, both: FloatArray, df: float
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Pool the variance of the rounds without the pair; draw that of the few with both towards it."""
    squares1, n1 = (residual**2 * both).sum(axis=0), both.sum(axis=0)
    df0 = df - (n1 - 1.0)
    variance0 = (residual**2 * (1.0 - both)).sum(axis=0) / df0
    variance1 = (_PRIOR_DF * variance0 + squares1) / (_PRIOR_DF + n1 - 1.0)
    part1, part0 = (
        variance1 * (weights**2 * both).sum(axis=0),
        variance0 * (weights**2 * (1.0 - both)).sum(axis=0),
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        spread = part1**2 / (_PRIOR_DF + n1 - 1.0) + part0**2 / df0
        return estimate, np.sqrt(part1 + part0), (part1 + part0) ** 2 / spread


def _p_values(
    log: _Log,
    fixed: int,
    partners: IntArray,
    weights: FloatArray,
    estimate: FloatArray,
    resamples: int,
    stream: np.random.Generator,
) -> FloatArray:
    """Return p-values of "the partner changes nothing, beside the fixed memory or without it"."""
    values = np.unique(log.y)
    if len(values) <= 2 and not log.stratum.any():
        success = log.y == values[-1]
        return np.array([_enumerated(log.drawn[:, fixed], log.drawn[:, one], success) for one in partners])
    level = 2 * log.stratum + log.drawn[:, fixed]
    order = np.argsort(level, kind="stable")
    y, weights = (log.y - log.y.mean())[order], weights[order]
    ends = np.flatnonzero(np.diff(level[order])) + 1
    at_least = np.zeros(len(partners))
    chunk = max(1, _CHUNK // len(y))
    for begin in range(0, resamples, chunk):
        size = min(chunk, resamples - begin)
        parts = [stream.permuted(np.tile(part, (size, 1)), axis=1) for part in np.split(y, ends)]
        moved = np.abs(np.hstack(parts) @ weights)
        at_least += (moved >= np.abs(estimate) * (1.0 - _TIE)).sum(axis=0)
    return np.where(np.isnan(estimate), np.nan, (1.0 + at_least) / (1.0 + resamples))


def _enumerated(a: BoolArray, b: BoolArray, success: BoolArray) -> float:
    """Sum the chances of all pairs of counts, with ``a`` and without, that make the contrast as large."""
    from scipy.stats import hypergeom

    gaps, chances, observed = [], [], []
    for level in (a, ~a):
        n, n1, k = int(level.sum()), int((level & b).sum()), int((level & success).sum())
        x = np.arange(max(0, n1 + k - n), min(n1, k) + 1)
        gaps.append(x / n1 - (k - x) / (n - n1))
        chances.append(hypergeom(n, n1, k).pmf(x))
        observed.append(gaps[-1][int((level & b & success).sum()) - x[0]])
    contrast = np.abs(gaps[0][:, None] - gaps[1][None, :])
    extreme = contrast >= abs(observed[0] - observed[1]) * (1.0 - _TIE)
    return min(float((chances[0][:, None] * chances[1][None, :])[extreme].sum()), 1.0)


def _tabulate(
    log: _Log,
    wanted: IntArray,
    counts: IntArray,
    means: FloatArray,
    found: FloatArray,
    min_together: int,
    level: float,
    adjust: str,
) -> pl.DataFrame:
    from scipy.special import stdtr

    kinds = ("together", "a_only", "b_only", "neither")
    estimate, error, df, p = found.T
    half = error * t_quantile(df, level)
    low, high = estimate - half, estimate + half
    p_limits = 2.0 * stdtr(df, -np.abs(estimate) / error)
    if len(values := np.unique(log.y)) == 2 and not log.stratum.any():
        scale, n, z = values[1] - values[0], np.maximum(counts, 1).astype(np.float64), normal_quantile(level)
        limits = combined_limits(np.nan_to_num((means - values[0]) / scale).T, n.T, (1.0, -1.0, -1.0, 1.0))
        low, high = (scale * end for end in limits(np.full(len(n), z)))
        error, df = (high - low) / (2.0 * z), np.full(len(df), np.nan)
        p_limits = p_values_of_limits(limits, len(n))
    p = np.where(np.isnan(p), np.nan, np.fmax(p, p_limits))
    low, high, error = (np.where(np.isnan(estimate), np.nan, part) for part in (low, high, error))
    too_few, others = counts[:, 0] < min_together, (counts[:, 1:] < _MIN_OTHERS).any(axis=1)
    torn = ~too_few & ~others & np.isnan(estimate)
    states = np.select([too_few, others | torn], ["TOO_FEW_COEXPOSURES", "UNDEREXPOSED"], "ESTIMATED")
    needed = _rounds_needed(log, min_together)
    reasons: list[str | None] = [
        f"{n} rounds with both, {min_together} needed: {needed}" if few
        else f"fewer than {_MIN_OTHERS} rounds with one of the two only, or with neither" if other
        else "strata leave no contrast between both and one of the two" if lost
        else None
        for n, few, other, lost in np.stack([counts[:, 0], too_few, others, torn], axis=1).tolist()
    ]  # fmt: skip
    columns = {
        "memory_a": wanted[:, 0], "memory_b": wanted[:, 1],
        **{f"n_{kind}": counts[:, i] for i, kind in enumerate(kinds)},
        **{f"mean_{kind}": means[:, i] for i, kind in enumerate(kinds)},
        "interaction": estimate, "std_error": error, "df": df, "ci_low": low, "ci_high": high,
        "p_value": p, "q_value": q_values(p, adjust),
        "state": pl.Series(states.tolist(), dtype=pl.String), "reason": pl.Series(reasons, dtype=pl.String),
    }  # fmt: skip
    return pl.DataFrame(columns, nan_to_null=True)


def _rounds_needed(log: _Log, min_together: int) -> str:
    drawn, n = log.drawn.sum(axis=1).astype(np.float64), log.drawn.shape[1]
    a_round = float((drawn * (drawn - 1.0)).mean()) / (n * (n - 1.0)) if n > 1 else 0.0
    if not a_round > 0.0:
        return "no round drew two memories; draw two or more a round"
    needed = math.ceil(min_together / a_round)
    return f"a pair is drawn together once in {1 / a_round:.0f} rounds, so about {needed} rounds"
