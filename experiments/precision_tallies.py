"""What is kept of each log, and the paired comparison with the contrast."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from experiments.precision_methods import Scores

__all__ = ["Tally", "compare_tallies"]

FloatArray = npt.NDArray[np.float64]


@dataclass
class Tally:
    """One method on the logs of one setting; a list has an entry a log."""

    auc: list[float] = field(default_factory=list)
    half_width: list[float] = field(default_factory=list)
    squared_error: list[float] = field(default_factory=list)
    covered: list[FloatArray] = field(default_factory=list)
    """(N,) 1, 0, or NaN where there are no limits or no truth."""
    large_covered: list[FloatArray] = field(default_factory=list)
    """The same for utilities that are large."""

    def add(self, scores: Scores, truth: FloatArray, auc: float | None, *, large: float = np.inf) -> None:
        """Add one log."""
        known = np.isfinite(scores.low) & np.isfinite(scores.high) & np.isfinite(truth)
        inside = (scores.low - _ROUNDING <= truth) & (truth <= scores.high + _ROUNDING)
        covered = np.where(known, inside, np.nan)
        self.auc.append(np.nan if auc is None else auc)
        self.half_width.append(_mean((scores.high - scores.low) / 2))
        self.squared_error.append(_mean((scores.utility - truth) ** 2))
        self.covered.append(covered)
        self.large_covered.append(np.where(np.abs(truth) > large, covered, np.nan))


#: Outcomes without noise make limits of width 0 that are right but for rounding.
_ROUNDING = 1e-12


def compare_tallies(tally: Tally, contrast: Tally) -> dict[str, Any]:
    """Return means over logs, and differences from the contrast on the same logs with 95 % limits.

    Ratios are of means over logs; their limits are of the mean of log a - ratio b, by the delta method.
    """
    covered = np.array(tally.covered)
    by_log = np.array([_mean(row) for row in covered])
    difference = np.array(tally.auc) - np.array(contrast.auc)
    ratio, ratio_error = _ratio(tally.half_width, contrast.half_width)
    error_ratio, error_error = _ratio(tally.squared_error, contrast.squared_error)
    same = tally is contrast
    auc_error = _error(difference)
    row = {
        "logs": len(covered),
        "auc": _mean(tally.auc),
        "auc_difference": np.nan if same else _mean(difference),
        "auc_low": np.nan if same else _mean(difference) - 1.96 * auc_error,
        "auc_high": np.nan if same else _mean(difference) + 1.96 * auc_error,
        "half_width": _mean(tally.half_width),
        "width_ratio": np.nan if same else ratio,
        "width_low": np.nan if same else ratio - 1.96 * ratio_error,
        "width_high": np.nan if same else ratio + 1.96 * ratio_error,
        "squared_error_ratio": np.nan if same else error_ratio,
        "squared_error_low": np.nan if same else error_ratio - 1.96 * error_error,
        "squared_error_high": np.nan if same else error_ratio + 1.96 * error_error,
        "coverage": _mean(by_log),
        "coverage_error": _error(by_log),
        "worst_coverage": _worst(covered),
        "large_coverage": _mean(np.concatenate(tally.large_covered)),
    }
    return {
        name: None if isinstance(value, float) and np.isnan(value) else value for name, value in row.items()
    }


def _worst(covered: FloatArray) -> float:
    """Return the coverage of the worst memory, where memories are the same ones in every log."""
    complete = covered[:, np.isfinite(covered).any(axis=0)]
    return float(np.nanmean(complete, axis=0).min()) if complete.size else np.nan


def _ratio(values: list[float], others: list[float]) -> tuple[float, float]:
    a, b = np.array(values), np.array(others)
    used = np.isfinite(a) & np.isfinite(b)
    a, b = a[used], b[used]
    if not len(a) or not b.mean() > 0.0:
        return np.nan, np.nan
    ratio = float(a.mean() / b.mean())
    return ratio, _error(a - ratio * b) / float(b.mean())


def _mean(values: FloatArray | list[float]) -> float:
    known = np.asarray(values, dtype=np.float64)
    known = known[np.isfinite(known)]
    return float(known.mean()) if len(known) else np.nan


def _error(values: FloatArray) -> float:
    known = values[np.isfinite(values)]
    return float(known.std(ddof=1) / np.sqrt(len(known))) if len(known) > 1 else np.nan
