"""From a log to its statistics: whole, or part by part, each forgotten once it is added up."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import narwhals.stable.v2 as nw
import polars as pl

from cmp.design.cards import CARD_PREFIX
from cmp.estimation.additive import UtilityStatistics
from cmp.estimation.cards import against_cards
from cmp.estimation.cells import Cells
from cmp.estimation.clusters import Clusters
from cmp.estimation.engines import Engine, engine_named
from cmp.estimation.missing import check_range
from cmp.estimation.settled import LogFrames, check_metric, collected
from cmp.estimation.statistics import LogStatistics, statistics_of_log
from cmp.estimation.table import Analysis
from cmp.estimation.versions import VersionedLog

__all__ = ["cells_against", "condenses", "has_parts", "statistics_for", "sum_of_parts", "utility_statistics"]

_NO_CARDS = (
    "this log has no reference cards, so utilities are relative to the pool: serve with "
    "cmp.wrap(..., reference_cards='auto') first, or pass reference='pool'"
)


def utility_statistics(
    log: LogFrames,
    by: str = "memory",
    estimator: str = "difference",
    reference: str = "pool",
    metric: str = "reward",
    engine: str = "polars",
    *,
    weights: str = "precision",
    window: timedelta | None = None,
) -> UtilityStatistics:
    """Sum a log up, so that it can be added to others and kept in place of them.

    A log that was exported in parts is read one part at a time: memory stays as large as a part and the table.

    Parameters
    ----------
    log
        What ``cmp.open_log`` returns, or any object with its five frames.
    by
        ``"memory"`` or ``"query"``.
    estimator, reference, metric, engine, weights, window
        As for :func:`cmp.utilities`. Interval, level and adjustment are asked of the sums.

    Returns
    -------
    UtilityStatistics
        ``(one + two).utilities()`` is the table for both logs.

    Raises
    ------
    ValueError
        For an option that is not supported, or a log that :func:`cmp.utilities` refuses.

    Examples
    --------
    With logs of one's own: ``sum_of = utility_statistics(monday) + utility_statistics(tuesday)``, and then
    ``sum_of.utilities()``. See :class:`UtilityStatistics` for one that runs.

    >>> utility_statistics(None, by="version")
    Traceback (most recent call last):
    ValueError: by='version' is not supported; use 'memory' or 'query'
    """
    if by not in ("memory", "query"):
        raise ValueError(f"by={by!r} is not supported; use 'memory' or 'query'")
    if window is not None and engine != "polars":
        raise ValueError(f"engine={engine!r} does not go with window; use engine='polars'")
    analysis = Analysis(estimator=estimator, weights=weights, reference=reference)
    with engine_named(engine) as opened:
        return sum_of_parts(log, opened, by, metric, analysis, window)


def has_parts(log: LogFrames) -> bool:
    """Whether a log is kept in several parts of whole blocks and episodes."""
    return len(_parts(log)) > 1


def sum_of_parts(
    log: LogFrames, engine: Engine, by: str, metric: str, analysis: Analysis, window: timedelta | None
) -> UtilityStatistics:
    """Sum a log up, one part after the other.

    A part may lack the metric, or cards, that another has: its rounds have missing outcomes, or no contrast.
    """
    parts = _parts(log)
    is_part = len(parts) > 1
    if is_part:
        check_metric(nw.from_native(log.outcomes()), metric)
        if analysis.reference == "card" and not _has_cards(log):
            raise ValueError(_NO_CARDS)
    return _added_up(_sums(engine(part), by, metric, analysis, window, is_part=is_part) for part in parts)


def _sums(
    frames: LogFrames, by: str, metric: str, analysis: Analysis, window: timedelta | None, *, is_part: bool
) -> UtilityStatistics:
    """Sum up a log, or one of its parts."""
    found = statistics_for(
        frames,
        by,
        metric,
        analysis,
        window=window,
        condense=condenses(analysis),
        in_both_arms=analysis.estimator != "ht",
        is_part=is_part,
    )
    rounds = nw.from_native(frames.rounds()).filter(nw.col("randomized"))
    named = rounds.select("scope", "block_id", nw.col("episode_id").cast(nw.String)).unique()
    held = collected(named).to_native()
    cells, clusters = cells_against(found, analysis.reference, is_part=is_part)
    return UtilityStatistics.of(
        found,
        cells,
        analysis,
        by=by,
        metric=metric,
        blocks=held["block_id"].unique(),
        episodes=held.select("scope", "episode_id").drop_nulls("episode_id").unique(),
        clusters=clusters,
        window=window,
    )


def _added_up(sums: Iterable[UtilityStatistics]) -> UtilityStatistics:
    """Add sums up in their order, small ones first.

    Adding costs what both hold. So a sum waits until those after it hold half as much: parts that bring keys of their
    own are added as by a binary counter, parts that share their keys one after the other. What waits at least halves
    from one to the next: together it is less than twice the first, which is no larger than the result.
    """
    waiting: list[UtilityStatistics] = []
    for each in sums:
        waiting.append(each)
        del each  # nobody else is to hold on to it while the next part is read
        while len(waiting) > 1 and _size(waiting[-2]) < 2 * _size(waiting[-1]):
            waiting[-2:] = [waiting[-2] + waiting[-1]]
    while len(waiting) > 1:
        waiting[-2:] = [waiting[-2] + waiting[-1]]
    return waiting[0]


def _size(sums: UtilityStatistics) -> int:
    """Return how many rows sums hold."""
    strata = sum(len(part.memory) for part in (sums.summary.margins, sums.summary.missing))
    return sums.keys.height + strata + sums.episodes.height + len(sums.blocks)


def _has_cards(log: LogFrames) -> bool:
    """Whether a reference card stands on any roster."""
    cards = log.rosters().filter(pl.col("memory_id").cast(pl.String).str.starts_with(CARD_PREFIX))
    return cards.select("memory_id").limit(1).collect().height > 0


def condenses(analysis: Analysis) -> bool:
    """Whether strata without an exposure may become one cell: totals and cards are a matter of each stratum."""
    return analysis.estimator != "ht" and analysis.reference == "pool"


def _parts(log: Any) -> list[LogFrames]:
    return log.parts() if hasattr(log, "parts") else [log]


def statistics_for(
    log: LogFrames,
    by: str,
    metric: str,
    analysis: Analysis,
    *,
    carryover: str = "include",
    window: timedelta | None = None,
    within_query: bool = False,
    condense: bool = True,
    in_both_arms: bool = True,
    is_part: bool = False,
) -> LogStatistics:
    """Return a log's statistics for a table by memory, query or version."""
    source = VersionedLog(log) if by == "version" else log
    found = statistics_of_log(
        source,
        metric=metric,
        by_query=by == "query",
        within_query=within_query,
        condense=condense,
        in_both_arms=in_both_arms,
        carryover=carryover,
        window=window,
        is_part=is_part,
        tell_cards=analysis.reference == "card",
    )
    extremes = found.outcome_sums.extremes
    if analysis.outcome_range is not None and extremes is not None:
        check_range(*extremes, *analysis.outcome_range)
    if not isinstance(source, VersionedLog):
        return found
    named = found.keys.select(pl.col("memory_id").alias("unit")).join(
        source.units, on="unit", how="left", maintain_order="left"
    )
    return replace(
        found,
        keys=named.select("scope", "memory_id", "content_hash"),
        left_out=named.select("n_dating", "n_lost"),
    )


def cells_against(
    found: LogStatistics, reference: str, *, is_part: bool = False
) -> tuple[Cells, Clusters | None]:
    """Return the cells of the contrasts with a reference, and their clusters, None where no rounds share an outcome.

    A part of a log (``is_part``) has none against cards where these stand in other parts.
    """
    is_card = found.keys["memory_id"].str.starts_with(CARD_PREFIX).to_numpy()
    if reference == "pool":
        cells = found.cells.joined(found.withholding) if len(found.withholding.memory) else found.cells
        clusters = found.clusters
    elif is_card.any() or is_part:
        cells, clusters = against_cards(found, is_card)
    else:
        raise ValueError(_NO_CARDS)
    return cells, Clusters.sharing(clusters)
