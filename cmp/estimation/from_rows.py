"""Utilities from another system's rounds: who was drawn, with which probability, and what came of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol, runtime_checkable

import numpy as np
import polars as pl

from cmp.estimation.cells import Outcomes
from cmp.estimation.independent_draws import Draws, missingness_of_draws, p_values_of_draws
from cmp.estimation.missing import check_range
from cmp.estimation.outcome_sums import describe_outcomes
from cmp.estimation.row_cells import (
    CodedRoster,
    CodedRows,
    RowStatistics,
    statistics_of_roster,
    statistics_of_rows,
)
from cmp.estimation.row_rounds import (
    clusters_of_rows,
    draws_of_rows,
    memory_rounds,
    shares_outcomes,
)
from cmp.estimation.sums import IntArray
from cmp.estimation.table import Analysis, Utilities
from cmp.estimation.tabulation import tabulate

__all__ = ["RowLog", "utilities_of_rows"]


@runtime_checkable
class RowLog(Protocol):
    """Rounds and rows of memories, checked; ``cmp.from_frame`` makes one, and says what the frames hold."""

    @property
    def per_round(self) -> pl.DataFrame: ...

    @property
    def per_memory(self) -> pl.DataFrame: ...

    @property
    def memories(self) -> pl.Series: ...

    @property
    def roster(self) -> pl.DataFrame | None: ...

    @property
    def metric(self) -> str: ...


def utilities_of_rows(
    log: RowLog,
    by: str = "memory",
    estimator: str = "difference",
    interval: str = "auto",
    level: float = 0.95,
    reference: str = "pool",
    adjust: str = "bh",
    *,
    weights: str = "precision",
    outcome_range: tuple[float, float] | None = None,
) -> Utilities:
    """Estimate every memory's utility from rounds of any source, with the table and the options of a log's.

    The estimand is the mean over a memory's eligible rounds of the outcome expected with the memory assigned less that
    without, over the design's other draws. Where a memory's propensity is constant within each stratum the difference
    of means is unbiased, given that every set of rounds of the same size was as likely to be the memory's; where it
    differs, arms are weighted by the inverse probability of their rows (Hajek: consistent; Horvitz-Thompson: unbiased).

    Parameters
    ----------
    log
        What ``cmp.from_frame`` or a reader of another format returns.
    by
        ``"memory"``, or ``"query"``: one row per memory and query, strata within it.
    estimator
        ``"difference"``, ``"hajek"`` or ``"ht"``. ``"difference"`` is refused where propensities differ inside a
        (memory, stratum).
    interval
        ``"auto"``, ``"newcombe"``, ``"moderated"``, ``"pooled"``, ``"neyman"``, ``"welch"``, ``"randomization"``, or
        ``"sequence"``, which takes strata to follow each other in time in the order of their names.
    level
        Confidence level.
    reference
        ``"pool"``: relative to the others that might have been drawn.
    adjust
        ``"bh"``, ``"by"`` or ``"holm"``, over the whole table.
    weights
        How strata combine: ``"precision"``, n1 n0 / (n1 + n0), or ``"rounds"``.
    outcome_range
        Least and greatest value an outcome may have (outcome units): adds ``bound_low, bound_high``.

    Returns
    -------
    Utilities
        A row for every memory that is listed, scopes apart.

    Raises
    ------
    ValueError
        For an option that is not supported, outcomes outside their range, or propensities that differ inside a
        (memory, stratum) under ``estimator="difference"``.

    References
    ----------
    Hajek, J. (1971). In Foundations of Statistical Inference, 236. Horvitz, D. G. and Thompson, D. J. (1952). JASA 47,
    663-685.

    Examples
    --------
    >>> import cmp
    >>> from cmp.foreign import from_frame
    >>> rows = pl.DataFrame({
    ...     "round_id": [1, 1, 2, 2, 3, 3, 4, 4], "memory_id": ["a", "b"] * 4,
    ...     "assigned": [1, 0, 0, 1, 1, 0, 0, 1], "propensity": [0.5] * 8, "outcome": [1, 1, 0, 0, 1, 1, 1, 1],
    ... })
    >>> utilities_of_rows(from_frame(rows)).frame.select("memory_id", "n_exposed", "utility").rows()
    [('a', 2, 0.5), ('b', 2, -0.5)]
    """
    _check_options(log, by, reference)
    analysis = Analysis(
        estimator=estimator,
        interval=interval,
        level=level,
        weights=weights,
        adjust=adjust,
        reference=reference,
        outcome_range=outcome_range,
    )
    names = ["scope", "group"] if by == "query" else ["scope"]
    coded = _code(log, names)
    known = coded.y[~np.isnan(coded.y)]
    if outcome_range is not None and known.size:
        check_range(float(known.min()), float(known.max()), *outcome_range)
    roster = None if log.roster is None else _code_roster(log, names)
    found = statistics_of_rows(coded) if roster is None else statistics_of_roster(coded, roster)
    weighted = found.cells.weighted
    if weighted and estimator == "difference":
        raise ValueError(
            "propensities differ inside a (memory, stratum), where a plain difference of means is biased; "
            "use estimator='hajek', or name a stratum within which they are constant"
        )
    family = found.keys // coded.n_memories
    families = log.per_round.select(names).unique().sort(names)
    frame = tabulate(
        {
            **families[family].to_dict(),
            "memory_id": log.memories.gather(found.keys % coded.n_memories).alias("memory_id"),
        },
        found.cells,
        found.tallies,
        outcomes=_describe(coded, family),
        family=family,
        analysis=analysis,
        # with weights that differ from round to round no interval for shared outcomes is known
        clustered=shares_outcomes(coded, found) if weighted else None,
        clusters=None if weighted else clusters_of_rows(coded, found, in_both_arms=estimator != "ht"),
        rounds_of=None if weighted else memory_rounds(coded, found),
        exact=lambda of: p_values_of_draws(draws_of_rows(coded, found), of),
        missing=(lambda: missingness_of_draws(_losses(coded, found), len(family))) if weighted else None,
    )
    return Utilities(frame, analysis, log.metric)


def _check_options(log: RowLog, by: str, reference: str) -> None:
    if by not in ("memory", "query"):
        raise ValueError(f"by={by!r} is not supported for rows; use 'memory' or 'query'")
    if by == "query" and "group" not in log.per_round.columns:
        raise ValueError("these rows name no query; pass query=... to from_frame, or by='memory'")
    if reference != "pool":
        raise ValueError(
            f"reference={reference!r} is not supported for rows, which do not say what is a card; use 'pool'"
        )


def _losses(coded: CodedRows, found: RowStatistics) -> Draws:
    """Return the rows that are in an arm, each with whether its outcome is missing in place of the outcome."""
    return draws_of_rows(replace(coded, y=np.isnan(coded.y).astype(np.float64)), found)


def _codes(frame: pl.DataFrame) -> IntArray:
    """Return codes of a frame's rows from 0, in the order of their values."""
    return frame.select(pl.struct(pl.all()).rank("dense").cast(pl.Int64) - 1).to_series().to_numpy()


def _code(log: RowLog, names: list[str]) -> CodedRows:
    rounds, rows = log.per_round, log.per_memory
    stratum = _codes(rounds.select(*names, "stratum"))
    first = np.unique(stratum, return_index=True)[1]
    episode = np.full(rounds.height, -1)
    if "episode_id" in rounds.columns:
        given = rounds["episode_id"].is_not_null().to_numpy()
        episode[given] = _codes(rounds.filter(given).select("scope", "episode_id"))
    return CodedRows(
        y=rounds["outcome"].cast(pl.Float64).fill_null(np.nan).to_numpy(),
        stratum=stratum,
        block=_codes(rounds.select("scope", "stratum")),
        episode=episode,
        family=_codes(rounds.select(names))[first],
        scope=_codes(rounds.select("scope"))[first],
        round=rows["round"].cast(pl.Int64).to_numpy(),
        memory=rows["memory"].cast(pl.Int64).to_numpy(),
        assigned=rows["assigned"].to_numpy(),
        propensity=rows["propensity"].fill_null(np.nan).to_numpy(),
        eligible=rows["eligible"].to_numpy(),
        n_memories=len(log.memories),
    )


def _code_roster(log: RowLog, names: list[str]) -> CodedRoster:
    assert log.roster is not None
    home = ["scope", "stratum"]
    bases = log.per_round.select(home).unique().sort(home).with_row_index("base")
    members = log.roster.join(bases, on=home, how="inner")
    strata = log.per_round.select(*names, "stratum").unique().sort(*names, "stratum")
    return CodedRoster(
        base=members["base"].cast(pl.Int64).to_numpy(),
        memory=members["memory"].cast(pl.Int64).to_numpy(),
        propensity=members["propensity"].to_numpy(),
        base_of=strata.join(bases, on=home, how="left", maintain_order="left")["base"]
        .cast(pl.Int64)
        .to_numpy(),
    )


def _describe(coded: CodedRows, family: IntArray) -> Outcomes:
    """Describe the outcomes of each memory's family."""
    known = ~np.isnan(coded.y)
    stratum = coded.stratum[known]
    n_families = int(coded.family.max(initial=-1)) + 1
    return describe_outcomes(coded.y[known], stratum, coded.family[stratum], n_families).of(family)
