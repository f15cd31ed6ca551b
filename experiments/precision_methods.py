"""What was tried: every method scores all memories of a log, with limits."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from cmp.estimation import estimate
from cmp.estimation.adjustment import adjusted_estimate
from cmp.estimation.intervals import t_quantile
from cmp.estimation.joint import centred_within, fit_jointly, joint_utilities
from experiments.precision_draws import Log

__all__ = ["CONTRAST", "KEPT", "METHODS", "Scores", "apply_method"]

FloatArray = npt.NDArray[np.float64]
LEVEL = 0.95


class Scores(NamedTuple):
    """One number a memory with its limits, (N,) each; NaN where there is none."""

    utility: FloatArray
    low: FloatArray
    high: FloatArray


def _of_frame(frame: pl.DataFrame) -> Scores:
    names = ("utility", "ci_low", "ci_high")
    return Scores(*(frame[name].cast(pl.Float64).fill_null(np.nan).to_numpy() for name in names))


def _contrast(log: Log) -> Scores:
    return _of_frame(estimate(log.assigned, log.outcomes, eligible=log.eligible).frame)


def _query_strata(log: Log) -> Scores:
    return _of_frame(estimate(log.assigned, log.outcomes, log.queries, log.eligible).frame)


def _shared_slopes(log: Log) -> Scores:
    """Ordinary least squares of the outcome on the covariates within queries; the contrast of what is left."""
    x, y = (centred_within(part, log.queries) for part in (log.covariates, log.outcomes))
    left = log.outcomes - x @ np.linalg.lstsq(x, y, rcond=None)[0]
    return _of_frame(estimate(log.assigned, left, log.queries, log.eligible).frame)


def _own_slopes(log: Log) -> Scores:
    """Lin (2013): a slope in either arm of every memory, covariates centred; HC2, df of the smaller arm."""
    x = log.covariates - log.covariates.mean(axis=0)
    design = np.hstack([np.ones((len(x), 1)), x])
    found = np.full((3, log.assigned.shape[1]), np.nan)
    for memory, (drawn, eligible) in enumerate(zip(log.assigned.T, log.eligible.T, strict=True)):
        arms = [design[eligible & arm] for arm in (drawn, ~drawn)]
        if min(map(len, arms)) < design.shape[1] + 1:
            continue
        parts = [
            _intercept(part, log.outcomes[eligible & arm])
            for part, arm in zip(arms, (drawn, ~drawn), strict=True)
        ]
        utility, variance = parts[0][0] - parts[1][0], parts[0][1] + parts[1][1]
        df = np.array([float(len(arms[0]) - design.shape[1])])
        half = np.sqrt(variance) * float(t_quantile(df, LEVEL)[0])
        found[:, memory] = utility, utility - half, utility + half
    return Scores(*found)


def _intercept(design: FloatArray, y: FloatArray) -> tuple[float, float]:
    """Return the intercept of least squares and its HC2 variance."""
    inverse = np.linalg.pinv(design)
    leverage = np.minimum((design * inverse.T).sum(axis=1), 1.0 - 1e-9)
    residual = y - design @ (inverse @ y)
    return float(inverse[0] @ y), float((inverse[0] ** 2 * residual**2 / (1.0 - leverage)).sum())


def _companions(log: Log) -> Scores:
    return _of_frame(
        adjusted_estimate(log.assigned, log.outcomes, strata=log.queries, eligible=log.eligible).frame
    )


def _companions_and_covariates(log: Log) -> Scores:
    return _of_frame(
        adjusted_estimate(log.assigned, log.outcomes, log.covariates, log.queries, log.eligible).frame
    )


def _joint(log: Log) -> Scores:
    return _of_frame(joint_utilities(log.assigned, log.outcomes, log.queries, eligible=log.eligible).frame)


def _joint_and_covariates(log: Log) -> Scores:
    return _of_frame(
        joint_utilities(log.assigned, log.outcomes, log.queries, log.covariates, log.eligible).frame
    )


def _joint_of_contexts(log: Log) -> Scores:
    """Ridge on everything in the context: what the ranker shows in a freed slot is random, too."""
    shown = (log.assigned | ~log.eligible).astype(np.float64)
    fit = fit_jointly(shown, log.outcomes, log.queries, np.zeros((len(shown), 0)))
    nothing = np.full(shown.shape[1], np.nan)
    return Scores(fit.effects, nothing, nothing)


def _joint_about_scores(log: Log) -> Scores:
    """Ridge about a prior mean that is linear in the ranker's score, its slope fitted too."""
    drawn, scores = (log.assigned & log.eligible).astype(np.float64), np.log1p(log.scores)
    sums = (drawn * scores).sum(axis=1, keepdims=True)
    fit = fit_jointly(drawn, log.outcomes, log.queries, sums)
    nothing = np.full(drawn.shape[1], np.nan)
    return Scores(fit.effects + float(fit.slopes[0]) * scores.mean(axis=0), nothing, nothing)


CONTRAST = "contrast"


class _Method(NamedTuple):
    apply: Callable[[Log], Scores]
    applies: Callable[[Log], bool]


def _always(log: Log) -> bool:
    return True


def _asks_several(log: Log) -> bool:
    return bool(log.queries.any())


def _knows_covariates(log: Log) -> bool:
    return bool((np.abs(centred_within(log.covariates, log.queries)) > 1e-9).any())


def _knows_scores(log: Log) -> bool:
    return bool(log.scores.size)


METHODS: dict[str, _Method] = {
    CONTRAST: _Method(_contrast, _always),
    "contrast, query strata": _Method(_query_strata, _asks_several),
    "covariates, shared slopes": _Method(_shared_slopes, _knows_covariates),
    "covariates, own slopes (Lin)": _Method(_own_slopes, _knows_covariates),
    "companions": _Method(_companions, _always),
    "companions and covariates": _Method(_companions_and_covariates, _knows_covariates),
    "joint": _Method(_joint, _always),
    "joint and covariates": _Method(_joint_and_covariates, _knows_covariates),
    "joint of whole contexts": _Method(_joint_of_contexts, _knows_scores),
    "joint about the ranker's score": _Method(_joint_about_scores, _knows_scores),
}


def apply_method(name: str, log: Log) -> Scores | None:
    """Return a method's scores, None where the log lacks what it needs. Queries, where several, are its strata."""
    method = METHODS[name]
    return method.apply(log) if method.applies(log) else None


#: What became of each.
KEPT = {
    "contrast, query strata": "Kept: `strata=`.",
    "covariates, shared slopes": "Kept, with companions: `cmp.adjusted_estimate`.",
    "covariates, own slopes (Lin)": "Not kept: five exposures do not carry a slope of their own.",
    "companions": "Kept: `cmp.adjusted_estimate`.",
    "companions and covariates": "Kept: `cmp.adjusted_estimate`.",
    "joint": "Kept: `cmp.joint_utilities`, to rank and to predict, not to test.",
    "joint and covariates": "Kept: `cmp.joint_utilities`, to rank and to predict, not to test.",
    "joint of whole contexts": "Not kept: no better than the joint model of draws.",
    "joint about the ranker's score": "Not kept: no better, and takes the ranker's word for what was to be measured.",
}
