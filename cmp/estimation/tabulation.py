"""What makes the table of utilities, for logs and for plain arrays alike, from strata or from sums over them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl

from cmp.estimation.cells import BoolArray, Cells, Outcomes, Tallies
from cmp.estimation.cluster_sums import ClusterSums, sum_clusters
from cmp.estimation.clustered import clustered_inference, score_p_values
from cmp.estimation.clusters import Clusters
from cmp.estimation.estimators import Contrast, combine_strata
from cmp.estimation.intervals import INTERVALS, Interval, confidence_limits, p_values_of_t
from cmp.estimation.multiplicity import q_values
from cmp.estimation.randomization import MemoryRounds, randomization_limits
from cmp.estimation.sequences import sequence_limits
from cmp.estimation.summary import Counts, Summary, summarize
from cmp.estimation.sums import FloatArray, IntArray
from cmp.estimation.table import Analysis

__all__ = ["tabulate", "tabulate_summary"]

#: For which memories a state holds, the state, and why.
_Rule: TypeAlias = tuple[BoolArray, str, str]

_NO_VARIANCE = "no variance: outcomes constant, or n=1 in an arm of a stratum"
_NO_LIMITS = {
    "randomization": "no limits: outcomes constant, or too few assignments for the level",
    "sequence": "no limits: outcomes constant, or too few blocks for limits that hold at every look",
}

_SHARED = "rounds of one episode share an outcome: no interval of this kind holds"


def tabulate(
    keys: Mapping[str, Any],
    cells: Cells,
    tallies: Tallies,
    *,
    outcomes: Outcomes,
    family: IntArray,
    analysis: Analysis,
    clustered: BoolArray | None = None,
    clusters: Clusters | None = None,
    content_changed: BoolArray | None = None,
    rounds_of: Callable[[int], MemoryRounds] | None = None,
    exact: Callable[[Outcomes], FloatArray] | None = None,
    missing: Callable[[], FloatArray] | None = None,
) -> pl.DataFrame:
    """Map statistics per (memory, stratum) to the table of utilities.

    Parameters
    ----------
    keys
        Columns that name the M memories.
    cells, tallies, outcomes
        Additive statistics, outcomes one a memory; see :mod:`cmp.estimation.cells`.
    family
        Shape (M,), which memories share a prior for their variance.
    analysis
        Estimator, interval, level, stratum weights, adjustment.
    clustered
        Shape (M,), where two of the memory's rounds share an outcome and it is not known which: no interval.
    clusters
        Which rounds share an outcome (episodes), for intervals that allow for it; None where none do.
    content_changed
        Shape (M,).
    rounds_of
        Returns the rounds of a row of the table; needed by ``interval="randomization"`` alone.
    exact
        Returns exact p-values of two-valued outcomes, NaN where there is none, if propensities differ inside strata.
    missing
        Returns p-values of both arms' outcomes going missing as readily, likewise.

    Raises
    ------
    ValueError
        For ``interval="randomization"`` without rounds, or with propensities that differ inside strata.
    """
    m = len(family)
    contrast = combine_strata(cells, m, estimator=analysis.estimator, weights=analysis.weights)
    asked = {"estimator": analysis.estimator, "weights": analysis.weights}
    summary = summarize(cells, contrast, tallies, outcomes, **asked)
    interval, p = _intervals(contrast, summary, outcomes, family, analysis, rounds_of, exact)
    unknown = np.zeros(m, dtype=bool) if clustered is None else clustered & np.isfinite(contrast.utility)
    interval, p = interval.without(unknown), np.where(unknown, np.nan, p)
    if clusters is not None:
        sums = sum_clusters(clusters, contrast, outcomes, summary)
        interval, p, unknown = _clustered(summary, sums, interval, p, outcomes, family, analysis)
    table = _table(keys, summary, interval, p, unknown, analysis, content_changed)
    return (
        table if missing is None else table.with_columns(pl.Series("p_missing", missing(), nan_to_null=True))
    )


def tabulate_summary(
    keys: Mapping[str, Any],
    summary: Summary,
    *,
    outcomes: Outcomes,
    family: IntArray,
    analysis: Analysis,
    clustered: BoolArray,
    clusters: ClusterSums | None,
    content_changed: BoolArray,
) -> pl.DataFrame:
    """Map sums over strata, the strata themselves forgotten, to the table of utilities.

    Parameters
    ----------
    keys, outcomes, family, analysis, clustered, content_changed
        As for :func:`tabulate`.
    summary, clusters
        Made with the estimator and weights of the analysis.

    Raises
    ------
    ValueError
        For an interval that lists rounds or blocks.
    """
    if analysis.interval not in INTERVALS:
        raise ValueError(
            f"interval={analysis.interval!r} lists rounds or blocks, which were added up; use one of "
            f"{', '.join(map(repr, INTERVALS))}, or cmp.utilities on the log as one"
        )
    interval, p = _limits(summary, outcomes, family, analysis, None)
    unknown = np.zeros(len(p), dtype=bool)
    if clusters is not None:
        interval, p, unknown = _clustered(summary, clusters, interval, p, outcomes, family, analysis)
    unknown |= clustered & np.isfinite(summary.moments.utility)
    interval, p = interval.without(unknown), np.where(unknown, np.nan, p)
    return _table(keys, summary, interval, p, unknown, analysis, content_changed)


def _table(
    keys: Mapping[str, Any],
    summary: Summary,
    interval: Interval,
    p: FloatArray,
    unknown: BoolArray,
    analysis: Analysis,
    content_changed: BoolArray | None,
) -> pl.DataFrame:
    sums, counts, m = summary.moments, summary.counts, len(p)
    state, reason = _states(summary, interval, analysis)
    if analysis.estimator == "ht":
        _say_complete_cases(reason, summary)
    reason[unknown] = _SHARED
    bounds: dict[str, FloatArray] = {}
    if analysis.outcome_range is not None:
        bounds = dict(
            zip(("bound_low", "bound_high"), summary.bounds.limits(*analysis.outcome_range), strict=True)
        )
    columns = {
        **keys,
        "n_exposed": counts.n_exposed,
        "n_control": counts.n_control,
        "mean_exposed": sums.mean_exposed,
        "mean_control": sums.mean_control,
        "utility": sums.utility,
        "std_error": interval.std_error,
        "df": interval.df,
        "ci_low": interval.low,
        "ci_high": interval.high,
        "p_value": p,
        "q_value": q_values(p, analysis.adjust),
        "state": pl.Series(state.tolist(), dtype=pl.String),
        "reason": pl.Series(reason.tolist(), dtype=pl.String),
        "reference": pl.repeat(analysis.reference, m, eager=True),
        "interval": pl.Series(interval.method.tolist(), dtype=pl.String),
        "n_missing_exposed": counts.n_missing_exposed,
        "n_missing_control": counts.n_missing_control,
        "p_missing": summary.missing_p_values,
        **bounds,
        "n_certain": summary.tallies.certain,
        "n_strata": sums.n_strata.astype(np.int64),
        "n_strata_empty": (sums.n_strata - sums.n_paired).astype(np.int64),
        "content_changed": np.full(m, False) if content_changed is None else content_changed,
    }
    return pl.DataFrame(columns, nan_to_null=True)


def _intervals(
    contrast: Contrast,
    summary: Summary,
    outcomes: Outcomes,
    family: IntArray,
    analysis: Analysis,
    rounds_of: Callable[[int], MemoryRounds] | None,
    exact: Callable[[Outcomes], FloatArray] | None,
) -> tuple[Interval, FloatArray]:
    """Return intervals and p-values of the kind asked for."""
    kind, level = analysis.interval, analysis.level
    if kind == "sequence":
        return sequence_limits(contrast, level=level)
    if kind == "randomization":
        if contrast.cells.weighted or rounds_of is None:
            raise ValueError(
                "interval='randomization' lists what assignments might have been, which takes rounds whose propensity "
                "is the same within a stratum: pass strata in which it is, or use another interval"
            )
        return randomization_limits(contrast, rounds_of, weights=analysis.weights, level=level)
    return _limits(summary, outcomes, family, analysis, exact)


def _limits(
    summary: Summary,
    outcomes: Outcomes,
    family: IntArray,
    analysis: Analysis,
    exact: Callable[[Outcomes], FloatArray] | None,
) -> tuple[Interval, FloatArray]:
    kind, level = analysis.interval, analysis.level
    interval = confidence_limits(
        summary.moments, outcomes=outcomes, family=family, interval=kind, level=level
    )
    return interval, _p_values(summary, interval, outcomes, exact)


def _clustered(
    summary: Summary,
    clusters: ClusterSums,
    interval: Interval,
    p: FloatArray,
    outcomes: Outcomes,
    family: IntArray,
    analysis: Analysis,
) -> tuple[Interval, FloatArray, BoolArray]:
    """Replace intervals of memories whose rounds share outcomes; return also where there is none to replace them."""
    known = clusters.shared & np.isfinite(summary.moments.utility)
    if analysis.interval not in INTERVALS:
        # a sequence's replicates are blocks, whatever the rounds of one share
        known = known & (clusters.across | (analysis.interval != "sequence"))
        return interval.without(known), np.where(known, np.nan, p), known
    own, own_p = clustered_inference(
        summary,
        clusters,
        outcomes=outcomes,
        family=family,
        interval=analysis.interval,
        level=analysis.level,
        as_if_alone=p,
    )
    unknown = known & ~summary.moments.has_design_count if analysis.estimator == "ht" else known & False
    interval, p = own.where(known, interval), np.where(known, own_p, p)
    return interval.without(unknown), np.where(unknown, np.nan, p), unknown


def _say_complete_cases(reason: npt.NDArray[np.object_], summary: Summary) -> None:
    """Horvitz-Thompson over the rounds with an outcome estimates their mean, if going missing is no effect."""
    missing = summary.counts.n_missing_exposed + summary.counts.n_missing_control > 0
    for row in np.flatnonzero(missing & np.isfinite(summary.moments.utility)):
        said = "over rounds with an outcome: unbiased if what goes missing does not depend on the draw"
        reason[row] = f"{reason[row]}; {said}" if reason[row] else said


def _p_values(
    summary: Summary, interval: Interval, outcomes: Outcomes, exact: Callable[[Outcomes], FloatArray] | None
) -> FloatArray:
    """Exact for two-valued outcomes; else, or where that would take too long, the interval's own.

    A score interval's p-value is below .001 five times as often as it should be where success is rare.
    """
    counted = outcomes.two_valued & summary.has_margins
    if counted.all():
        return summary.margins.p_values()
    p = p_values_of_t(summary.moments.utility, interval)
    if (rest := outcomes.two_valued & ~counted).any():
        score = np.where(interval.method == "newcombe", score_p_values(summary.moments, outcomes), p)
        given = np.full(len(p), np.nan) if exact is None else exact(outcomes)
        p = np.where(rest, np.where(np.isnan(given), score, given), p)
    return np.where(counted, summary.margins.p_values(), p) if counted.any() else p


def _states(
    summary: Summary, interval: Interval, analysis: Analysis
) -> tuple[npt.NDArray[np.object_], npt.NDArray[np.object_]]:
    sums, counts, tallies = summary.moments, summary.counts, summary.tallies
    rounds = counts.n_exposed + counts.n_control + counts.n_missing_exposed + counts.n_missing_control
    no_limits = _NO_LIMITS.get(analysis.interval, _NO_VARIANCE)
    rules = (
        *(_without_cards(summary, rounds == 0) if analysis.reference == "card" else ()),
        *_without_rounds(rounds == 0, tallies),
        *_with_rounds(counts, tallies),
        (sums.rounds1 == 0, "UNDEREXPOSED", "no stratum holds both arms"),
        (sums.rounds1 < 2, "UNDEREXPOSED", "n1=1"),
        (sums.rounds0 < 2, "UNDEREXPOSED", "n0=1"),
        (~np.isfinite(interval.std_error), "ESTIMATED", no_limits),
    )
    conditions = [rule[0] for rule in rules]
    index = np.where(np.any(conditions, axis=0), np.argmax(conditions, axis=0), len(rules))
    states = np.array([rule[1] for rule in rules] + ["ESTIMATED"], dtype=object)
    reasons = np.array([rule[2] for rule in rules] + [None], dtype=object)
    reason = reasons[index]
    by_prior = np.isfinite(interval.std_error) & (states[index] == "UNDEREXPOSED")
    reason[by_prior] = reason[by_prior] + ": variance from the other memories' prior"
    return states[index], reason


def _without_cards(summary: Summary, no_rounds: BoolArray) -> tuple[_Rule, ...]:
    """What is said of memories that were eligible where no card was drawn: rounds that are in no arm."""
    counts, had_rounds = summary.counts, summary.moments.n_strata > 0
    no_control = counts.n_control + counts.n_missing_control == 0
    return (
        (
            no_rounds & had_rounds,
            "NEVER_EXPOSED",
            "n1=0, and no card was drawn in its place",
        ),
        (
            (counts.n_exposed > 0) & no_control,
            "UNDEREXPOSED",
            "n0=0: no card was drawn in its place",
        ),
    )


def _ranked_elsewhere(tallies: Tallies) -> BoolArray:
    """Whether every round that is in no arm is one in which the ranker showed the memory."""
    alone: BoolArray = (tallies.certain == 0) & (tallies.ranked == tallies.ineligible)
    return (tallies.ranked > 0) & alone


def _without_rounds(no_rounds: BoolArray, tallies: Tallies) -> tuple[_Rule, ...]:
    """What is said of memories without an eligible round by chance."""
    always = tallies.always_drawn
    return (
        (no_rounds & _ranked_elsewhere(tallies), "ALWAYS_RANKED", "in the context by rank in every round"),
        (
            no_rounds & (tallies.ranked > 0),
            "ALWAYS_RANKED",
            "in the context by rank in every round that might have been eligible",
        ),
        (
            no_rounds & (always > 0) & (always == tallies.certain),
            "UNDEREXPOSED",
            "always drawn: propensity 1 in every eligible round",
        ),
        (no_rounds & (always > 0), "UNDEREXPOSED", "propensity 0 or 1 in every eligible round"),
        (no_rounds & (tallies.certain > 0), "NEVER_EXPOSED", "propensity 0 in every eligible round"),
        (no_rounds & (tallies.ineligible > 0), "NEVER_EXPOSED", "no eligible round"),
        (no_rounds, "NEVER_EXPOSED", "no randomized round"),
    )


def _with_rounds(counts: Counts, tallies: Tallies) -> tuple[_Rule, ...]:
    """What is said of memories whose arms are empty, or hold no outcome."""
    n1, n0 = counts.n_exposed, counts.n_control
    missing1, missing0 = counts.n_missing_exposed, counts.n_missing_control
    return (
        (n1 + n0 == 0, "NO_OUTCOMES", "no outcome in any eligible round"),
        ((n1 == 0) & (missing1 > 0), "NO_OUTCOMES", "no outcome in any exposed round"),
        (n1 == 0, "NEVER_EXPOSED", "n1=0"),
        (
            (n0 == 0) & (missing0 == 0) & _ranked_elsewhere(tallies),
            "ALWAYS_RANKED",
            "n0=0: in the context by rank in all other rounds",
        ),
        (n0 == 0, "UNDEREXPOSED", "n0=0"),
    )
