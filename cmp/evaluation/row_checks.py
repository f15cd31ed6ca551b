"""Can rows of another system be trusted: what is left to test once they hold together."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from cmp.estimation.from_rows import RowLog, utilities_of_rows
from cmp.evaluation.evidence import Verdict, least_p, named

__all__ = ["count_p_values", "verdict_on_positivity", "verdicts_of_rows"]

FloatArray = npt.NDArray[np.float64]


def verdicts_of_rows(log: RowLog) -> list[Verdict]:
    """Return verdicts on rows that ``cmp.from_frame`` took: sample ratio, missing outcomes, positivity.

    That propensities are probabilities and add up, that rows are unique and a round has one outcome, was checked when
    they were taken. The tests suppose rounds that were drawn independently; balanced designs pass them more often.

    Examples
    --------
    >>> from cmp.foreign import from_frame
    >>> rows = pl.DataFrame({
    ...     "round_id": [1, 1, 2, 2], "memory_id": ["a", "b"] * 2, "assigned": [1, 0, 0, 1], "propensity": [0.5] * 4,
    ...     "outcome": [1, 1, 0, 0],
    ... })
    >>> [(verdict.check, verdict.p_value) for verdict in verdicts_of_rows(from_frame(rows))]
    [('sample ratio', 1.0), ('missing outcomes do not depend on the draw', None), ('positivity', None)]
    """
    counts = _counts(log)
    return [_sample_ratio(log, counts), _missing(log), _positivity(log, counts)]


def count_p_values(drawn: FloatArray, rounds: FloatArray, expected: FloatArray) -> FloatArray:
    """Return two-sided p-values of numbers of draws, where each round draws with a probability of its own.

    Parameters
    ----------
    drawn, rounds, expected
        Shape (M,): draws, rounds, and the sum of the rounds' probabilities.

    Notes
    -----
    A sum of independent draws with unequal probabilities is no farther from its mean than a binomial of the same mean
    and number, whose two tails are taken: valid whatever the probabilities, exact where they are equal.

    References
    ----------
    Hoeffding, W. (1956). On the distribution of the number of successes in independent trials. Annals of Mathematical
    Statistics 27, 713-721, theorem 5.

    Examples
    --------
    >>> count_p_values(np.array([4.0]), np.array([4.0]), np.array([2.0])).tolist()
    [0.125]
    """
    from scipy.stats import binom

    gap = np.abs(drawn - expected)
    low, high = np.floor(expected - gap + _TIE), np.ceil(expected + gap - _TIE)
    share = np.divide(expected, rounds, out=np.zeros_like(expected), where=rounds > 0)
    tails: FloatArray = binom.cdf(low, rounds, share) + binom.sf(high - 1.0, rounds, share)
    # within one of the mean the comparison does not hold
    return np.where((gap < 1.0) | (rounds == 0), 1.0, np.minimum(tails, 1.0))


#: Rounding of a sum of probabilities, so that a count as far on the other side is taken to be as far.
_TIE = 1e-9


def _counts(log: RowLog) -> pl.DataFrame:
    """Return per scope and memory the draws, rounds and expected draws of rounds that were left to chance."""
    rounds = log.per_round.select("scope", "stratum").with_row_index("round")
    rows = log.per_memory.filter("eligible").join(rounds, on="round")
    pi, home = pl.col("propensity"), ["scope", "memory"]
    by_chance = (pi > 0.0) & (pi < 1.0)
    if log.roster is None:
        return (
            rows.filter(by_chance)
            .group_by(home)
            .agg(drawn=pl.col("assigned").sum(), rounds=pl.len(), expected=pi.sum())
            .sort(home)
        )
    strata = rounds.group_by("scope", "stratum").agg(length=pl.len())
    away = log.per_memory.filter(~pl.col("eligible")).join(rounds, on="round")
    away = away.group_by("scope", "stratum", "memory").agg(away=pl.len())
    drawn = rows.group_by("scope", "stratum", "memory").agg(drawn=pl.col("assigned").sum())
    listed = (
        log.roster.filter(by_chance)
        .join(strata, on=["scope", "stratum"])
        .join(away, on=["scope", "stratum", "memory"], how="left")
        .join(drawn, on=["scope", "stratum", "memory"], how="left")
        .with_columns(rounds=pl.col("length") - pl.col("away").fill_null(0))
    )
    sums = listed.group_by(home).agg(
        drawn=pl.col("drawn").fill_null(0).sum(),
        rounds=pl.col("rounds").sum(),
        expected=(pl.col("rounds") * pi).sum(),
    )
    return sums.sort(home)


def _sample_ratio(log: RowLog, counts: pl.DataFrame) -> Verdict:
    check = "sample ratio"
    columns = (counts[name].cast(pl.Float64).to_numpy() for name in ("drawn", "rounds", "expected"))
    p, place = least_p(count_p_values(*columns))
    if p is None:
        return Verdict.untestable(check, "no row was left to chance")
    worst = counts.row(place, named=True)
    return Verdict(
        check,
        f"{log.memories[worst['memory']]!r} was drawn in {worst['drawn']} of {worst['rounds']} rounds, where its "
        f"propensities add up to {worst['expected']:.4g}",
        "Propensities are not those of the draw, or rounds were lost by what they drew: find out which before any "
        "estimate is read",
        figure=float(worst["drawn"]),
        expected=worst["expected"],
        p_value=p,
        n=counts.height,
        scope=worst["scope"],
    )


def _missing(log: RowLog) -> Verdict:
    check = "missing outcomes do not depend on the draw"
    n, missing = log.per_round.height, log.per_round["outcome"].null_count()
    if missing in (0, n):
        said = "no round lacks its outcome" if not missing else "no round has an outcome"
        return Verdict.untestable(check, said, n=n)
    try:
        table = utilities_of_rows(log).frame
    except ValueError as error:  # propensities that differ inside strata
        return Verdict.untestable(check, str(error), n=n)
    p, place = least_p(table["p_missing"].fill_null(np.nan).to_numpy())
    if p is None:
        return Verdict.untestable(check, "no memory has rounds with and without it", n=n)
    worst = table.row(place, named=True)
    return Verdict(
        check,
        f"{missing} of {n} rounds lack an outcome; the two arms differ most for {worst['memory_id']!r}: "
        f"{worst['n_missing_exposed']} of rounds drawn, {worst['n_missing_control']} of others",
        "Outcomes are lost after the draw: record one for every round; until then give cmp.utilities an outcome_range "
        "and read the bounds",
        figure=float(worst["n_missing_exposed"]),
        expected=None,
        p_value=p,
        n=n,
        scope=worst["scope"],
    )


def _positivity(log: RowLog, counts: pl.DataFrame) -> Verdict:
    rounds = log.per_round.select("scope").with_row_index("round")
    every = log.per_memory.join(rounds, on="round").select("scope", "memory").unique()
    if log.roster is not None:
        every = pl.concat([every, log.roster.select("scope", "memory")]).unique()
    bare = every.join(counts, on=["scope", "memory"], how="anti").sort("scope", "memory")
    certain = int(log.per_memory.filter(pl.col("eligible") & pl.col("propensity").is_in([0.0, 1.0])).height)
    names = pl.DataFrame({"memory": log.memories.gather(bare["memory"])})
    first = f" ({named(names)})" if bare.height else ""
    return verdict_on_positivity(
        f"{certain} rows have propensity 0 or 1; {bare.height} of {every.height} memories have no other that is "
        f"eligible{first}",
        every.height,
        bare.height,
        "Give these memories a chance that is neither 0 nor 1",
    )


def verdict_on_positivity(detail: str, n: int, bare: int, mend: str) -> Verdict:
    """Return the verdict on ``n`` memories of which ``bare`` have no contrast.

    One rule for every log. Some without a contrast are the rule where a ranker always shows some, and take nothing
    from the others: not testable, and named. Where all are without one, nothing can be estimated: a failure.

    Examples
    --------
    >>> [verdict_on_positivity("", 4, bare, "").failed for bare in (0, 1, 4)]
    [False, None, True]
    """
    check = "positivity"
    if not n:
        return Verdict.untestable(check, "the log has no memory", mend)
    if 0 < bare < n:
        detail += ": these have no contrast, the others do"
    elif bare:
        detail += ": no memory has a contrast, and nothing can be estimated"
    return Verdict(
        check,
        detail,
        mend,
        figure=bare / n,
        expected=0.0,
        n=n,
        failed=None if 0 < bare < n else bare > 0,
    )
