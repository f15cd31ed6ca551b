"""A simulated log with its truth, and how an analysis of it scores."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from cmp.estimation import Utilities
from cmp.evaluation import Auc, Qrels, auc
from cmp.log import Log

__all__ = ["Simulation", "SimulationScore"]


@dataclass(frozen=True, slots=True)
class SimulationScore:
    """How near a table of utilities comes to the truth.

    Attributes
    ----------
    n_memories, n_estimated, n_intervals
        Rows of the table; those with a utility and a truth; and of these, those with an interval.
    coverage
        Share of the intervals that hold the truth; None without any.
    width
        Mean width of the intervals, in units of the outcome; None without any.
    bias, rmse
        Mean, and root mean square, of utility less truth; None where nothing is estimated.
    worst
        Largest distance from the truth in standard errors; None without any.
    auc
        Of the utilities against the key memories; None in a world without any.
    """

    n_memories: int
    n_estimated: int
    n_intervals: int
    coverage: float | None
    width: float | None
    bias: float | None
    rmse: float | None
    worst: float | None
    auc: Auc | None


@dataclass(frozen=True, slots=True)
class Simulation:
    """A log whose utilities are known; made by :func:`cmp.simulation.simulate`.

    Attributes
    ----------
    log
        What the wrapper wrote: in memory, or the log that was given.
    by_memory, by_query
        The truth: ``scope``, ``group`` (by query only), ``memory_id``; ``true_own``, what the memory adds to the mean
        outcome (over the queries); ``true_pool`` and ``true_card``, what ``reference="pool"`` and ``"card"``
        estimate, null where they estimate nothing; ``key``, whether it helps any of the queries;
        ``eligible_rounds``, expected over the draws. Joins with ``utilities(...).frame`` by the ids.
    qrels
        The memories with a positive utility for a query are its key memories; the others are judged, relevance 0.
    seed
        Of every stream.
    """

    log: Log
    by_memory: pl.DataFrame
    by_query: pl.DataFrame
    qrels: Qrels
    seed: int

    def truth_of(self, table: Utilities) -> pl.DataFrame:
        """Return the table with the truth of its rows beside it: ``true_own``, and ``truth`` for its reference.

        Raises
        ------
        ValueError
            For utilities by version: a simulated memory has one.
        """
        if "content_hash" in table.frame.columns:
            raise ValueError("utilities by version have no truth here; use by='memory' or by='query'")
        grouped = "group" in table.frame.columns
        keys = ["scope", *(["group"] if grouped else []), "memory_id"]
        truth = (self.by_query if grouped else self.by_memory).select(
            *keys, "true_own", pl.col(f"true_{table.analysis.reference}").alias("truth"), "key"
        )
        return table.frame.join(truth, on=keys, how="left", maintain_order="left")

    def score(self, table: Utilities) -> SimulationScore:
        """Return how near a table of this log's utilities comes to the truth.

        Parameters
        ----------
        table
            What ``cmp.utilities(simulation.log, ...)`` returned, by memory or by query, relative to pool or card.

        Raises
        ------
        ValueError
            For utilities by version.

        Examples
        --------
        >>> from cmp.estimation import utilities
        >>> from cmp.simulation import simulate
        >>> simulated = simulate(8, rounds=64, slots=2, random_slots=2, outcome="continuous", seed=5)
        >>> score = simulated.score(utilities(simulated.log))
        >>> score.n_intervals, score.coverage
        (8, 1.0)
        """
        frame = self.truth_of(table)
        known = frame.filter(pl.col("utility").is_not_null() & pl.col("truth").is_not_null())
        held = known.filter(pl.col("ci_low").is_not_null() & pl.col("ci_high").is_not_null())
        error = pl.col("utility") - pl.col("truth")
        covered = pl.col("truth").is_between("ci_low", "ci_high")
        sure = known.filter(pl.col("std_error") > 0)
        return SimulationScore(
            n_memories=frame.height,
            n_estimated=known.height,
            n_intervals=held.height,
            coverage=_number(held, covered.mean()),
            width=_number(held, (pl.col("ci_high") - pl.col("ci_low")).mean()),
            bias=_number(known, error.mean()),
            rmse=_number(known, error.pow(2).mean().sqrt()),
            worst=_number(sure, (error.abs() / pl.col("std_error")).max()),
            auc=auc(table, self.qrels) if len(self.qrels.key_memories) else None,
        )


def _number(frame: pl.DataFrame, value: pl.Expr) -> float | None:
    return None if frame.is_empty() else float(frame.select(value).item())
