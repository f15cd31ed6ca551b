"""The one function that makes the table of utilities, for logs and for plain arrays alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl

from cmp.estimation.cells import BoolArray, Cells, Outcomes, Tallies
from cmp.estimation.estimators import Contrast, combine_strata
from cmp.estimation.exact_tests import conditional_p_values
from cmp.estimation.intervals import Interval, confidence_limits
from cmp.estimation.missing import bounds_of_cells, missingness_p_values
from cmp.estimation.multiplicity import q_values
from cmp.estimation.sums import FloatArray, IntArray, group_sums
from cmp.estimation.table import Analysis

__all__ = ["tabulate"]

#: For which memories a state holds, the state, and why.
_Rule: TypeAlias = tuple[BoolArray, str, str]

_SHARED = "rounds of one episode share an outcome: no interval for independent rounds holds"


def tabulate(
    keys: Mapping[str, Any],
    cells: Cells,
    tallies: Tallies,
    *,
    outcomes: Outcomes,
    family: IntArray,
    analysis: Analysis,
    clustered: npt.NDArray[np.bool_] | None = None,
    content_changed: npt.NDArray[np.bool_] | None = None,
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
        Shape (M,), where two of the memory's rounds share an outcome (episodes), so that no interval for
        independent rounds is right.
    content_changed
        Shape (M,).
    """
    m = len(family)
    contrast = combine_strata(cells, m, estimator=analysis.estimator, weights=analysis.weights)
    kind, level = analysis.interval, analysis.level
    interval = confidence_limits(contrast, outcomes=outcomes, family=family, interval=kind, level=level)
    p = _p_values(contrast, interval, outcomes)
    counts = _counts(cells, m)
    state, reason = _states(contrast, interval, counts, tallies)
    if analysis.estimator == "ht":
        _say_complete_cases(reason, contrast, counts)
    if clustered is not None:
        unknown = clustered & np.isfinite(contrast.utility)
        reason[unknown] = _SHARED
        interval, p = interval.without(unknown), np.where(unknown, np.nan, p)
    arms = {name: counts[name] for name in ("n_exposed", "n_control")}
    columns = {
        **keys,
        **arms,
        "mean_exposed": contrast.mean_exposed,
        "mean_control": contrast.mean_control,
        "utility": contrast.utility,
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
        **{name: values for name, values in counts.items() if name not in arms},
        "p_missing": missingness_p_values(cells, m),
        **_bounds(cells, m, analysis),
        "n_certain": tallies.certain,
        "n_strata": contrast.n_strata.astype(np.int64),
        "n_strata_empty": contrast.n_strata_empty.astype(np.int64),
        "content_changed": np.full(m, False) if content_changed is None else content_changed,
    }
    return pl.DataFrame(columns, nan_to_null=True)


def _counts(cells: Cells, m: int) -> dict[str, IntArray]:
    arms = {"exposed": cells.exposed, "control": cells.control}
    known = {f"n_{name}": arm.n for name, arm in arms.items()}
    missing = {f"n_missing_{name}": arm.missing for name, arm in arms.items()}
    return {
        name: group_sums(cells.memory, values, m).astype(np.int64)
        for name, values in (known | missing).items()
    }


def _bounds(cells: Cells, m: int, analysis: Analysis) -> dict[str, FloatArray]:
    if analysis.outcome_range is None:
        return {}
    low, high = bounds_of_cells(cells, m, *analysis.outcome_range, weights=analysis.weights)
    return {"bound_low": low, "bound_high": high}


def _say_complete_cases(
    reason: npt.NDArray[np.object_], contrast: Contrast, counts: Mapping[str, IntArray]
) -> None:
    """Horvitz-Thompson over the rounds with an outcome estimates their mean, if going missing is no effect."""
    missing = counts["n_missing_exposed"] + counts["n_missing_control"] > 0
    for row in np.flatnonzero(missing & np.isfinite(contrast.utility)):
        said = "over rounds with an outcome: unbiased if what goes missing does not depend on the draw"
        reason[row] = f"{reason[row]}; {said}" if reason[row] else said


def _p_values(contrast: Contrast, interval: Interval, outcomes: Outcomes) -> FloatArray:
    """Exact for two-valued outcomes with one propensity a stratum; else from the interval's t or normal."""
    exact = outcomes.two_valued & (not contrast.cells.weighted)
    if exact.all():
        return _exact_p_values(contrast, outcomes)
    approximate = _p_values_of_t(contrast, interval)
    return np.where(exact, _exact_p_values(contrast, outcomes), approximate) if exact.any() else approximate


def _exact_p_values(contrast: Contrast, outcomes: Outcomes) -> FloatArray:
    cells = contrast.cells.select(outcomes.two_valued[contrast.cells.memory])
    low, scale = outcomes.low[cells.memory], (outcomes.high - outcomes.low)[cells.memory]
    x1, x0 = (
        np.rint((arm.total + arm.n * (cells.offset - low)) / scale).astype(np.int64)
        for arm in (cells.exposed, cells.control)
    )
    n1, n0 = cells.exposed.n.astype(np.int64), cells.control.n.astype(np.int64)
    return conditional_p_values(cells.memory, x1, n1, x0, n0, len(contrast.utility))


def _p_values_of_t(contrast: Contrast, interval: Interval) -> FloatArray:
    from scipy.special import ndtr, stdtr

    t = -np.abs(contrast.utility / interval.std_error)
    normal = ~np.isfinite(interval.df)
    tail: FloatArray = np.where(normal, ndtr(t), stdtr(np.where(normal, 1.0, interval.df), t))
    return 2.0 * tail


def _states(
    contrast: Contrast, interval: Interval, counts: Mapping[str, IntArray], tallies: Tallies
) -> tuple[npt.NDArray[np.object_], npt.NDArray[np.object_]]:
    rules = (
        *_without_rounds(np.sum(list(counts.values()), axis=0) == 0, tallies),
        *_with_rounds(counts, tallies),
        (contrast.n1 == 0, "UNDEREXPOSED", "no stratum holds both arms"),
        (contrast.n1 < 2, "UNDEREXPOSED", "n1=1"),
        (contrast.n0 < 2, "UNDEREXPOSED", "n0=1"),
        (
            ~np.isfinite(interval.std_error),
            "ESTIMATED",
            "no variance: outcomes constant, or n=1 in an arm of a stratum",
        ),
    )
    conditions = [rule[0] for rule in rules]
    index = np.where(np.any(conditions, axis=0), np.argmax(conditions, axis=0), len(rules))
    states = np.array([rule[1] for rule in rules] + ["ESTIMATED"], dtype=object)
    reasons = np.array([rule[2] for rule in rules] + [None], dtype=object)
    reason = reasons[index]
    by_prior = np.isfinite(interval.std_error) & (states[index] == "UNDEREXPOSED")
    reason[by_prior] = reason[by_prior] + ": variance from the other memories' prior"
    return states[index], reason


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


def _with_rounds(counts: Mapping[str, IntArray], tallies: Tallies) -> tuple[_Rule, ...]:
    """What is said of memories whose arms are empty, or hold no outcome."""
    n1, n0 = counts["n_exposed"], counts["n_control"]
    missing1, missing0 = counts["n_missing_exposed"], counts["n_missing_control"]
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
