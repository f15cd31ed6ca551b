"""What exploring costs: randomized rounds against the rounds held out from randomization."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from cmp.estimation import estimate
from cmp.estimation.settled import last_outcomes

if TYPE_CHECKING:
    from cmp.log.reading import Log

__all__ = ["ExposureCost", "exposure_cost"]


@dataclass(frozen=True, slots=True)
class ExposureCost:
    """Mean outcome of randomized rounds less that of holdout rounds, within scope.

    Attributes
    ----------
    cost
        Outcome units; negative where exploring costs. None where unknown, and ``reason`` says why.
    std_error, ci_low, ci_high, p_value
        Of the difference.
    n_randomized, n_holdout
        Rounds with an outcome.
    """

    cost: float | None
    std_error: float | None
    ci_low: float | None
    ci_high: float | None
    p_value: float | None
    n_randomized: int
    n_holdout: int
    reason: str | None


def exposure_cost(log: Log, metric: str = "reward", level: float = 0.95) -> ExposureCost:
    """Compare the outcomes of randomized rounds with those of holdout rounds.

    Which rounds are held out is decided by a hash of their id, so that the comparison is that of a randomized trial;
    scopes are strata.

    Raises
    ------
    ValueError
        Where the log has no holdout rounds, or other metrics only.

    Examples
    --------
    >>> import tempfile, cmp
    >>> with tempfile.TemporaryDirectory() as folder, cmp.wrap(
    ...     lambda query: ["a", "b"], list_ids=lambda: "abcdef", get=list, slots=2, random_slots=1,
    ...     log=folder + "/x.db", scope=cmp.EVERYTHING, holdout=0.5, seed=1,
    ... ) as memory:
    ...     for number in range(40):
    ...         context = memory.retrieve("q", round_id=f"r{number}")
    ...         memory.record(context.round_id, 0.5 if context.randomized else 1.0)
    ...     cost = exposure_cost(memory.log)
    >>> cost.cost
    -0.5
    """
    held = pl.col("fallback_reason") == "holdout"
    last = last_outcomes(log, metric).to_native().lazy()
    rounds = (
        log.rounds()
        .filter(pl.col("randomized") | held.fill_null(False))
        .join(last, on="round_id", how="left")
        .select("scope", "randomized", "y")
        .collect()
    )
    if rounds["randomized"].all():
        raise ValueError("this log has no holdout rounds; serve with cmp.wrap(..., holdout=0.1)")
    y, drawn = rounds["y"].to_numpy().astype(float), rounds["randomized"].to_numpy()
    row = estimate(drawn, y, strata=rounds["scope"].rank("dense").to_numpy(), level=level).frame.row(
        0, named=True
    )
    return ExposureCost(
        cost=row["utility"],
        **{name: row[name] for name in ("std_error", "ci_low", "ci_high", "p_value", "reason")},
        n_randomized=int((np.isfinite(y) & drawn).sum()),
        n_holdout=int((np.isfinite(y) & ~drawn).sum()),
    )
