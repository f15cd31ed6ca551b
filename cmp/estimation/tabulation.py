"""The one function that makes the table of utilities, for logs and for plain arrays alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from cmp.estimation.cells import Cells, Outcomes, Tallies
from cmp.estimation.estimators import Contrast, combine_strata
from cmp.estimation.exact_tests import conditional_p_values
from cmp.estimation.intervals import Interval, confidence_limits
from cmp.estimation.multiplicity import q_values
from cmp.estimation.sums import FloatArray, IntArray, group_sums
from cmp.estimation.table import Analysis

__all__ = ["tabulate"]


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
        Additive statistics; see :mod:`cmp.estimation.cells`.
    family
        Shape (M,), which memories share a prior for their variance.
    analysis
        Estimator, interval, level, stratum weights, adjustment.
    clustered
        Shape (M,), where rounds share an outcome (episodes), so that no interval for independent rounds is
        right.
    content_changed
        Shape (M,).
    """
    m = len(family)
    contrast = combine_strata(cells, m, estimator=analysis.estimator, weights=analysis.weights)
    interval = confidence_limits(
        contrast, outcomes=outcomes, family=family, interval=analysis.interval, level=analysis.level
    )
    p = _p_values(contrast, interval, outcomes)
    counts = _counts(cells, m)
    state, reason = _states(contrast, interval, counts, tallies)
    if clustered is not None:
        unknown = clustered & np.isfinite(contrast.utility)
        reason[unknown] = "rounds of one episode share an outcome: no interval for independent rounds holds"
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


def _p_values(contrast: Contrast, interval: Interval, outcomes: Outcomes) -> FloatArray:
    """Exact for two-valued outcomes with one propensity a stratum; else from the interval's t or normal."""
    cells = contrast.cells
    if outcomes.two_valued and not cells.weighted:
        scale = outcomes.high - outcomes.low
        x1, x0 = (
            np.rint((arm.total + arm.n * (cells.offset - outcomes.low)) / scale).astype(np.int64)
            for arm in (cells.exposed, cells.control)
        )
        n1, n0 = cells.exposed.n.astype(np.int64), cells.control.n.astype(np.int64)
        return conditional_p_values(cells.memory, x1, n1, x0, n0, len(contrast.utility))
    from scipy.special import ndtr, stdtr

    t = -np.abs(contrast.utility / interval.std_error)
    normal = ~np.isfinite(interval.df)
    tail: FloatArray = np.where(normal, ndtr(t), stdtr(np.where(normal, 1.0, interval.df), t))
    return 2.0 * tail


def _states(
    contrast: Contrast, interval: Interval, counts: Mapping[str, IntArray], tallies: Tallies
) -> tuple[npt.NDArray[np.object_], npt.NDArray[np.object_]]:
    n1, n0 = counts["n_exposed"], counts["n_control"]
    missing1, missing0 = counts["n_missing_exposed"], counts["n_missing_control"]
    no_rounds = n1 + n0 + missing1 + missing0 == 0
    ranked = tallies.ranked > 0
    rules = (
        (no_rounds & ranked, "ALWAYS_RANKED", "in the context by rank in every round"),
        (no_rounds & (tallies.always_drawn > 0), "UNDEREXPOSED", "always drawn: propensity 1 in every round"),
        (no_rounds & (tallies.certain > 0), "NEVER_EXPOSED", "propensity 0 in every round"),
        (no_rounds, "NEVER_EXPOSED", "no randomized round"),
        (n1 + n0 == 0, "NO_OUTCOMES", "no outcome in any eligible round"),
        ((n1 == 0) & (missing1 > 0), "NO_OUTCOMES", "no outcome in any exposed round"),
        (n1 == 0, "NEVER_EXPOSED", "n1=0"),
        (
            (n0 == 0) & (missing0 == 0) & ranked,
            "ALWAYS_RANKED",
            "n0=0: in the context by rank in all other rounds",
        ),
        (n0 == 0, "UNDEREXPOSED", "n0=0"),
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
