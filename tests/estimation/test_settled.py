from __future__ import annotations

from datetime import UTC, datetime, timedelta

import polars as pl
import pytest

from cmp.estimation import utilities
from cmp.estimation.settled import outcome_lags
from tests.estimation.logs import HandMadeLog

ASKED = datetime(2026, 3, 1, 12, tzinfo=UTC)


class TimedLog(HandMadeLog):
    """A log that says when: rounds at noon, outcomes so many seconds later."""

    def __init__(self, *lags: float) -> None:
        super().__init__()
        self.lags = lags

    def rounds(self) -> pl.LazyFrame:
        return super().rounds().with_columns(asked_at=pl.lit(ASKED))

    def outcomes(self) -> pl.LazyFrame:
        at = [ASKED + timedelta(seconds=lag) for lag in self.lags]
        return super().outcomes().with_columns(recorded_at=pl.Series(at))


def crossed_clocks() -> TimedLog:
    """Return drawn outcomes 1, 1, 0 and control outcomes 0, 1, 0, two recorded before their rounds were asked."""
    log = TimedLog(-3, 4, 2, 1, -2, 3)
    log.block("b", 6, {"m": 3, "other": 3})
    for t, y in enumerate([1.0, 1.0, 0.0, 0.0, 1.0, 0.0]):
        log.round(f"r{t}", "b", t, ["m" if t < 3 else "other"], y)
    return log


def row(log: HandMadeLog, **options) -> dict:
    return utilities(log, **options).frame.filter(pl.col("memory_id") == "m").row(0, named=True)


@pytest.mark.parametrize("window", [None, timedelta(seconds=4), timedelta(days=1)])
def test_an_outcome_stamped_before_its_round_counts(window):
    got = row(crossed_clocks(), window=window)
    assert (got["n_exposed"], got["n_control"]) == (3, 3)
    assert got["utility"] == pytest.approx(1 / 3, abs=1e-15)


def test_lags_are_listed_with_negative_ones():
    lags = outcome_lags(crossed_clocks())
    assert lags["lag"].dt.total_seconds().to_list() == [-3, 4, 2, 1, -2, 3]
    assert lags.filter(pl.col("lag") < timedelta(0)).height == 2
    assert lags.columns == ["round_id", "revision", "asked_at", "recorded_at", "lag"]


def test_an_outcome_later_than_the_window_is_missing():
    got = row(crossed_clocks(), window=timedelta(seconds=3))
    assert (got["n_exposed"], got["n_missing_exposed"], got["n_missing_control"]) == (2, 1, 0)
    assert got["utility"] == 0.5 - 1 / 3


def test_the_last_revision_within_the_window_counts():
    log = crossed_clocks()
    log.add("outcomes", round_id="r2", metric="reward", value=1.0, revision=1)
    log.lags = (*log.lags, 60)
    assert row(log)["mean_exposed"] == 1.0
    assert row(log, window=timedelta(seconds=59))["mean_exposed"] == pytest.approx(2 / 3)
    assert row(log, window=timedelta(seconds=60))["mean_exposed"] == 1.0


def test_outcomes_of_unknown_rounds_are_in_no_lag_and_no_window():
    log = crossed_clocks()
    log.add("outcomes", round_id="nobody's", metric="reward", value=1.0, revision=0)
    log.lags = (*log.lags, 1)
    assert outcome_lags(log).height == 6
    assert row(log, window=timedelta(days=1))["utility"] == row(crossed_clocks())["utility"]


@pytest.mark.parametrize("window", [timedelta(0), timedelta(seconds=-1)])
def test_a_window_that_is_over_before_it_began_is_refused(window):
    with pytest.raises(ValueError, match="positive timedelta"):
        utilities(crossed_clocks(), window=window)


def test_a_window_needs_times():
    log = HandMadeLog()
    log.block("b", 2, {"m": 1, "other": 1})
    log.round("r0", "b", 0, ["m"], 1.0)
    log.round("r1", "b", 1, ["other"], 0.0)
    with pytest.raises(ValueError, match="no column 'asked_at'"):
        utilities(log, window=timedelta(days=1))
