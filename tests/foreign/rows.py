"""Rows of small randomized logs, and damage done to them."""

from __future__ import annotations

import numpy as np
import polars as pl

from tests.estimation.logs import SimulatedLog


def rows_of(made: SimulatedLog, *, scope: str | None = None) -> pl.DataFrame:
    """Return one row per round and memory of a simulated log, ranked and deleted memories as not eligible."""
    t, n = made.assigned.shape
    rounds = np.repeat(np.arange(t), n)
    frame = pl.DataFrame(
        {
            "round_id": [f"r{i}" for i in rounds],
            "memory_id": [f"m{m}" for m in range(n)] * t,
            "assigned": made.assigned.ravel(),
            "propensity": made.propensity.ravel(),
            "outcome": made.outcomes[rounds],
            "eligible": made.eligible.ravel(),
            "stratum": [f"b{made.strata[i]}" for i in rounds],
        }
    )
    return frame if scope is None else frame.with_columns(scope=pl.lit(scope))


def small(n: int = 4, rounds: int = 12, k: int = 1, seed: int = 1) -> pl.DataFrame:
    """Return rows of uniform draws of ``k`` of ``n`` memories, all eligible, with 0/1 outcomes."""
    rng = np.random.default_rng(seed)
    drawn = np.zeros((rounds, n), dtype=bool)
    for row in drawn:
        row[rng.permutation(n)[:k]] = True
    at = np.repeat(np.arange(rounds), n)
    return pl.DataFrame(
        {
            "round_id": [f"r{i}" for i in at],
            "memory_id": [f"m{m}" for m in range(n)] * rounds,
            "assigned": drawn.ravel(),
            "propensity": np.full(n * rounds, k / n),
            "outcome": rng.integers(0, 2, rounds)[at].astype(float),
        }
    )
