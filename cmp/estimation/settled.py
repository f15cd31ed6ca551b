"""The rounds of a log with what came of them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Protocol

import narwhals.stable.v2 as nw
import polars as pl

from cmp.errors import ConflictingOutcomeError

__all__ = ["LogFrames", "check_metric", "collected", "last_outcomes", "outcome_lags", "settled_rounds"]


class LogFrames(Protocol):
    """The five tables an analysis reads; an open log has them, and so may anything else."""

    def rounds(self) -> pl.LazyFrame: ...

    def exposures(self) -> pl.LazyFrame: ...

    def outcomes(self) -> pl.LazyFrame: ...

    def blocks(self) -> pl.LazyFrame: ...

    def rosters(self) -> pl.LazyFrame: ...


def settled_rounds(
    log: LogFrames, *, metric: str, by_query: bool, window: timedelta | None = None, is_part: bool = False
) -> nw.DataFrame[Any]:
    """Return the randomized rounds with the last revision of their outcome (``y``, null where missing).

    A part of a log (``is_part``) need not hold the metric: another part does, and here the outcomes are missing.
    """
    rounds = nw.from_native(log.rounds()).filter(nw.col("randomized"))
    if by_query:
        rounds = rounds.with_columns(nw.coalesce(nw.col("group"), nw.col("query_hash")).alias("group"))
    chosen = ["round_id", "scope", "block_id", "block_row", "episode_id", *(["group"] if by_query else [])]
    frame = collected(rounds.select(chosen)).join(
        last_outcomes(log, metric, window, is_part=is_part), on="round_id", how="left"
    )
    if (n := len(frame) - frame["round_id"].n_unique()) > 0:
        twice = frame.filter(frame["round_id"].is_duplicated())["round_id"][0]
        raise ValueError(
            f"{n} round ids stand in the log twice ({twice!r}); a round is one row: see cmp.validate_log"
        )
    if frame["block_id"].null_count():
        bare = frame.filter(frame["block_id"].is_null())["round_id"][0]
        raise ValueError(f"randomized round {bare!r} names no block, so its propensities are unknown")
    if by_query and frame["group"].null_count():
        bare = frame.filter(frame["group"].is_null())["round_id"][0]
        raise ValueError(
            f"round {bare!r} has neither a group nor a query hash; pass group= to retrieve, or do not ask for queries"
        )
    return frame


def last_outcomes(
    log: LogFrames, metric: str, window: timedelta | None = None, *, is_part: bool = False
) -> nw.DataFrame[Any]:
    """Return ``round_id`` and ``y``: the last revision of each round's outcome.

    Parameters
    ----------
    log, metric
        What to read.
    window
        How long after a round was asked an outcome counts: revisions recorded later are as if they were not there. One
        that was recorded before its round was asked counts: clocks differ.
    is_part
        Whether the log is part of one that was asked for the metric already: :func:`check_metric`.

    Raises
    ------
    ValueError
        For a metric that the log does not hold though it holds others, an outcome that is not finite, or a window
        that is not positive or that the log's times cannot tell.
    ConflictingOutcomeError
        Where the last revision has two values.
    """
    every = nw.from_native(log.outcomes())
    counted = every if window is None else nw.from_native(_within(log, window))
    outcomes = collected(counted.filter(nw.col("metric") == metric).select("round_id", "value", "revision"))
    if not len(outcomes) and not is_part:
        check_metric(every, metric)
    if outcomes["round_id"].n_unique() < len(outcomes):
        outcomes = _last_revisions(outcomes)
    frame = outcomes.select("round_id", nw.col("value").cast(nw.Float64).alias("y"))
    if not frame["y"].is_finite().all():
        raise ValueError("an outcome is NaN or infinite; a missing outcome has no row")
    return frame


def check_metric(outcomes: nw.LazyFrame[Any], metric: str) -> None:
    """Refuse a metric that a log does not hold though it holds others, with a ``ValueError`` that names these."""
    metrics = collected(outcomes.select("metric").unique())["metric"].to_list()
    if metrics and metric not in metrics:
        raise ValueError(
            f"the log holds no outcome of metric {metric!r}; it has {', '.join(map(repr, sorted(metrics)))}"
        )


def _last_revisions(outcomes: nw.DataFrame[Any]) -> nw.DataFrame[Any]:
    """Return one row a round: the last revision, which has one value."""
    last = outcomes.group_by("round_id").agg(nw.col("revision").max())
    frame = (
        outcomes.join(last, on=["round_id", "revision"], how="inner")
        .group_by("round_id")
        .agg(nw.col("value").min(), nw.col("value").max().alias("also"))
    )
    torn = frame.filter(nw.col("value") != nw.col("also"))
    if len(torn):
        raise ConflictingOutcomeError(
            f"{len(torn)} rounds have two outcomes of one revision ({torn['round_id'][0]!r}: "
            f"{torn['value'][0]} and {torn['also'][0]}); record the right one with correct=True"
        )
    return frame


def collected(frame: nw.LazyFrame[Any]) -> nw.DataFrame[Any]:
    """Return what an engine computed, as polars holds it."""
    return frame.collect(backend="polars")


def outcome_lags(log: LogFrames, metric: str = "reward") -> pl.DataFrame:
    """Return how long after its round was asked each outcome was recorded, negative where clocks disagree.

    Parameters
    ----------
    log, metric
        What to read.

    Returns
    -------
    polars.DataFrame
        ``round_id``, ``revision``, ``asked_at``, ``recorded_at``, ``lag`` (a duration): one row a revision, in the
        order of these columns. Outcomes of unknown rounds have none.

    Raises
    ------
    ValueError
        For a log that does not say when.

    Examples
    --------
    >>> from datetime import datetime, timezone
    >>> from types import SimpleNamespace
    >>> noon = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)
    >>> rounds = pl.LazyFrame({"round_id": ["r"], "asked_at": [noon]})
    >>> outcomes = pl.LazyFrame(
    ...     {"round_id": ["r"], "metric": ["reward"], "revision": [0], "recorded_at": [noon - timedelta(seconds=3)]}
    ... )
    >>> log = SimpleNamespace(rounds=lambda: rounds, outcomes=lambda: outcomes)
    >>> outcome_lags(log)["lag"].to_list()
    [datetime.timedelta(days=-1, seconds=86397)]
    """
    columns = ["round_id", "revision", "asked_at", "recorded_at", "lag"]
    return _with_lags(log).filter(pl.col("metric") == metric).select(columns).sort(columns).collect()


def _with_lags(log: LogFrames) -> pl.LazyFrame:
    for name, table in (("asked_at", log.rounds()), ("recorded_at", log.outcomes())):
        if name not in table.collect_schema().names():
            raise ValueError(f"the log has no column {name!r}, so how late its outcomes came is unknown")
    asked = log.rounds().select("round_id", "asked_at")
    return (
        log.outcomes().join(asked, on="round_id").with_columns(lag=pl.col("recorded_at") - pl.col("asked_at"))
    )


def _within(log: LogFrames, window: timedelta) -> pl.LazyFrame:
    if not window > timedelta(0):
        raise ValueError(
            f"window={window!r} is over before anything can be recorded; give a positive timedelta"
        )
    return _with_lags(log).filter(pl.col("lag") <= window)
