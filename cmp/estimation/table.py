"""The table of utilities: what was asked for, and the answer, one row a memory."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from cmp.estimation.estimators import ESTIMATORS, WEIGHTS
from cmp.estimation.intervals import INTERVALS, check_level

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

__all__ = ["Analysis", "Utilities"]

#: Intervals that need more than sums over strata, or another reading of them.
_OPT_IN = ("randomization", "sequence")


@dataclass(frozen=True, slots=True)
class Analysis:
    """What was asked for."""

    estimator: str = "difference"
    interval: str = "auto"
    level: float = 0.95
    weights: str = "precision"
    adjust: str = "bh"
    reference: str = "pool"
    outcome_range: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        for name, value, known in (
            ("estimator", self.estimator, ESTIMATORS),
            ("weights", self.weights, WEIGHTS),
            ("interval", self.interval, (*INTERVALS, *_OPT_IN)),
            ("reference", self.reference, ("pool", "card")),
        ):
            if value not in known:
                raise ValueError(f"{name}={value!r}; use one of {', '.join(map(repr, known))}")
        check_level(self.level)
        if self.estimator == "ht" and self.interval in _OPT_IN:
            raise ValueError(
                f"interval={self.interval!r} is for a difference of two means; use estimator='difference' or 'hajek'"
            )
        if self.reference == "card":
            self._check_cards()

    def _check_cards(self) -> None:
        """Refuse what has no meaning against cards."""
        if self.interval == "randomization":
            raise ValueError(
                "interval='randomization' compares drawn rounds with the rest, and reference='card' with cards; "
                "use interval='auto'"
            )
        for wrong, why in (
            (
                self.estimator == "ht",
                "estimator='ht': weighted totals of two groups of rounds have no interval here; use "
                "estimator='difference'",
            ),
            (
                self.outcome_range is not None,
                "outcome_range: a missing outcome is in both of the contrasts compared; use reference='pool' for "
                "bounds",
            ),
        ):
            if wrong:
                raise ValueError(f"reference='card' does not go with {why}")


@dataclass(frozen=True, slots=True, repr=False)
class Utilities:
    """One row a memory: what showing it does to the outcome, how sure that is, or why it is not known.

    Attributes
    ----------
    frame
        polars columns: ``metric`` (of several only), ``scope``, ``group`` (by query only), ``memory_id``,
        ``content_hash`` (by version only); ``n_exposed``, ``n_control`` (eligible rounds with an outcome);
        ``mean_exposed``, ``mean_control``, ``utility``, ``std_error``, ``ci_low``, ``ci_high`` (outcome units); ``df``;
        ``p_value``, ``q_value``; ``state``, ``reason``; ``reference`` (what the utility is relative to),
        ``interval`` (which one it is); ``n_missing_exposed``, ``n_missing_control`` (eligible rounds without
        an outcome), ``p_missing`` (of both arms missing as readily, within strata); ``bound_low``,
        ``bound_high`` (with a range of outcomes: what the utility may be whatever the missing ones are);
        ``n_certain`` (rounds with propensity 0 or 1); ``n_strata`` (with an eligible outcome),
        ``n_strata_empty`` (of these, with an empty arm: they contribute nothing, or under ``"ht"`` that
        arm's total of 0); ``content_changed``. What is not known is null, never 0.
    analysis
        What was asked for.
    metric
        Name of the outcome.

    Notes
    -----
    States: ``ESTIMATED``; ``UNDEREXPOSED`` (an arm below two rounds); ``NEVER_EXPOSED``; ``ALWAYS_RANKED``
    (the ranker showed it in every round that might have been a control); ``NO_OUTCOMES``.

    Examples
    --------
    >>> from cmp.estimation import estimate
    >>> u = estimate([[1, 0], [0, 1], [1, 0], [0, 1], [0, 0]], [1, 0, 1, 0, 0])
    >>> print(u.summary())
    2 memories: 2 ESTIMATED
    utility of 'reward' relative to the pool: difference estimator, 95% intervals (newcombe)
    q < 0.05 (bh): 0 above the pool's mean, 0 below
    """

    frame: pl.DataFrame
    analysis: Analysis
    metric: str = "reward"

    def __len__(self) -> int:
        return self.frame.height

    def __repr__(self) -> str:
        return f"{self.summary()}\n{self.frame}"

    def to_pandas(self) -> pd.DataFrame:
        """Return the frame as pandas has it (needs the extra ``[pandas]``)."""
        from cmp.errors import MissingExtraError

        try:
            import pandas  # noqa: F401
            import pyarrow  # noqa: F401
        except ImportError as error:
            raise MissingExtraError(
                f"{error.name} is not installed; pip install 'causal-memory-policy[pandas]'"
            ) from error
        return self.frame.to_pandas()

    def summary(self) -> str:
        """Return a few lines: how many memories in which state, which interval, what stands out."""
        states = Counter(self.frame["state"].to_list())
        asked, alpha = self.analysis, 1 - self.analysis.level
        kinds = ", ".join(self.frame["interval"].unique().sort()) or "none"
        found = self.frame.filter(pl.col("q_value") < alpha)
        helpful = found.filter(pl.col("utility") > 0).height
        changed = int(self.frame["content_changed"].sum())
        lines = [
            f"{len(self)} memories: " + ", ".join(f"{n} {state}" for state, n in states.most_common()),
            f"utility of {self.metric!r} relative to the {asked.reference}: {asked.estimator} estimator, "
            f"{asked.level:.0%} intervals ({kinds})",
            f"q < {alpha:.2g} ({asked.adjust}): " + _signs(asked.reference, helpful, found.height - helpful),
        ]
        lines += _missing_lines(self.frame, alpha)
        lines += [f"{changed} memories changed content under the same id"] if changed else []
        return "\n".join(lines)

    def shrunken(self, *, probability: bool = False) -> Utilities:
        """Return the table with what is believed of each memory given all the others; see :func:`cmp.shrink`."""
        from cmp.estimation.shrinkage import shrink

        return shrink(self, probability=probability)

    def plot(self, ax: Axes | None = None, *, top: int = 40) -> Axes:
        """Draw utilities with their intervals, best first, at most ``top`` (needs the extra ``[plot]``)."""
        from cmp.errors import MissingExtraError

        try:
            from matplotlib.figure import Figure
        except ModuleNotFoundError as error:
            raise MissingExtraError(
                "matplotlib is not installed; pip install 'causal-memory-policy[plot]'"
            ) from error
        rows = (
            self.frame.filter(pl.col("utility").is_not_null())
            .sort("utility", "memory_id", descending=True)
            .head(top)
        )
        axes: Axes = (
            Figure(figsize=(6, 1 + 0.2 * max(rows.height, 1)), layout="constrained").subplots()
            if ax is None
            else ax
        )
        u, place = rows["utility"].to_numpy(), np.arange(rows.height)
        low, high = (rows[name].fill_null(rows["utility"]).to_numpy() for name in ("ci_low", "ci_high"))
        axes.errorbar(u, place, xerr=(u - low, high - u), fmt="o", markersize=3, linewidth=1, color="C0")
        axes.axvline(0.0, color="0.6", linewidth=0.8)
        axes.set_yticks(place, [str(name) for name in rows["memory_id"]], fontsize=7)
        axes.invert_yaxis()
        axes.set_xlabel(f"utility ({self.metric}, relative to {self.analysis.reference})")
        return axes


def _signs(reference: str, above: int, below: int) -> str:
    """Name the signs: relative to the pool, one below its mean may still be useful."""
    if reference == "pool":
        return f"{above} above the pool's mean, {below} below"
    return f"{above} helpful, {below} harmful"


def _missing_lines(frame: pl.DataFrame, alpha: float) -> list[str]:
    """Say how many outcomes are missing by arm, over all memories, and where that differs."""
    missing = frame.filter(pl.sum_horizontal("n_missing_exposed", "n_missing_control") > 0)
    if not missing.height:
        return []
    totals = frame.select(pl.sum("n_missing_exposed", "n_exposed", "n_missing_control", "n_control")).row(0)
    shares = [gone / max(gone + known, 1) for gone, known in (totals[:2], totals[2:])]
    torn = missing.filter(pl.col("p_missing") < alpha).height
    return [
        f"{missing.height} memories have eligible rounds without an outcome: {shares[0]:.1%} of exposed, "
        f"{shares[1]:.1%} of control rounds; {torn} differ by arm (p < {alpha:.2g}, not adjusted)"
    ]
