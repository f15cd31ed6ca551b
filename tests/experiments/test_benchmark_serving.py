"""The benchmark's goals are judged on the measurements they name."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from experiments.benchmark_page import GOALS, page
from experiments.benchmark_workers import Load, timed

PREPARED = pl.DataFrame(
    {
        "pool": [1_000_000],
        "seconds": [6.0],
        "requests_meanwhile": [0],
        "meanwhile_p50_ms": [None],
        "meanwhile_p99_ms": [None],
        "meanwhile_max_ms": [None],
        "peak_extra_mb": [200.0],
    }
)


def measured() -> pl.DataFrame:
    rows = [
        {
            "log": "process",
            "pool": pool,
            "workers": workers,
            "rate": rate,
            "requests": 100,
            "unrandomized": 0,
            "wrapped_p50_ms": 0.3 if pool == 100 else 0.33,
            "bare_p50_ms": 0.005,
            "plain_p50_ms": 0.1 if rate else None,
            "added_p50_ms": 0.3 if rate else 0.9,
            "added_p99_ms": 2.0,
            "ratio_p50": 60.0,
            "cpu_ms_per_round": 0.3,
            "rounds_per_second": 100.0 if rate else 5000.0,
        }
        for pool in (100, 10_000)
        for workers in ("1 thread", "4 processes")
        for rate in (25.0, None)
    ]
    return pl.DataFrame(rows)


def test_goals_are_read_from_the_load_they_name() -> None:
    judged = {row[0]: row[2:] for row in (goal.row(measured(), PREPARED) for goal in GOALS)}
    assert judged["process-durable, added p50, 4 processes paced"] == ["0.300 ms", "yes"]
    assert judged["process-durable, 4 processes flat out"] == ["5,000 rounds/s", "yes"]
    assert judged["queued, added p50, 4 processes paced"] == ["not measured", "–"]
    assert judged["largest pool against smallest, p50"] == ["1.1 times", "yes"]
    assert judged["a large block prepared"] == ["6.0 s", "no"]


def test_the_page_says_what_was_not_measured() -> None:
    assert "not offered here: queued" in page(measured(), PREPARED, ["queued"], smoke=False)


@pytest.mark.parametrize("threads", [1, 3])
def test_paced_requests_come_at_their_rate(threads: int) -> None:
    """Poisson arrivals: 200 a second of each thread for half a second; within 6 standard deviations (p < 1e-8)."""
    found = timed(Load("", "process", 1, threads, 200.0, 0.5), 0, lambda: None)
    expected = 100 * threads
    assert abs(found.latencies.size - expected) < 6 * np.sqrt(expected)
    assert found.latencies.min() >= 0
