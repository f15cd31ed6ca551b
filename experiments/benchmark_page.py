"""The page of the serving benchmark: goals beside figures, then every measurement."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from experiments.markdown import count, pipe_table

__all__ = ["page"]


@dataclass(frozen=True, slots=True)
class Goal:
    """A figure that is to stay within a limit: how it is read from the measurements, and how it is written."""

    name: str
    limit: float
    unit: str
    figure: Callable[[pl.DataFrame, pl.DataFrame], float | None]
    is_least: bool = False

    def row(self, frame: pl.DataFrame, prepared: pl.DataFrame) -> list[str]:
        """Return the goal, the figure, and whether it is met."""
        value = self.figure(frame, prepared)
        sign = "≥" if self.is_least else "≤"
        goal = f"{sign} {self.limit:,g} {self.unit}"
        if value is None:
            return [self.name, goal, "not measured", "–"]
        met = value >= self.limit if self.is_least else value <= self.limit
        digits = 3 if value < 1 else 1 if value < 100 else 0
        return [self.name, goal, f"{value:,.{digits}f} {self.unit}", "yes" if met else "no"]


def _median_added(
    log: str, workers: str, *, paced: bool
) -> Callable[[pl.DataFrame, pl.DataFrame], float | None]:
    """Read the worst added p50, over pools, of some workers."""

    def read(frame: pl.DataFrame, prepared: pl.DataFrame) -> float | None:
        of_pace = pl.col("rate").is_not_null() == paced
        of_load = (pl.col("workers") == workers) & (pl.col("log") == log)
        found: float | None = frame.filter(of_pace & of_load)["added_p50_ms"].max()  # type: ignore[assignment]
        return found

    return read


def _least_throughput(frame: pl.DataFrame, prepared: pl.DataFrame) -> float | None:
    flat_out = pl.col("rate").is_null() & (pl.col("workers") == "4 processes") & (pl.col("log") == "process")
    found: float | None = frame.filter(flat_out)["rounds_per_second"].min()  # type: ignore[assignment]
    return found


def _flatness(frame: pl.DataFrame, prepared: pl.DataFrame) -> float | None:
    """Read how many times the median of the smallest pool that of the largest is, flat out on one thread."""
    one = frame.filter(
        pl.col("rate").is_null() & (pl.col("workers") == "1 thread") & (pl.col("log") == "process")
    ).sort("pool")
    return one["wrapped_p50_ms"][-1] / one["wrapped_p50_ms"][0] if one.height > 1 else None


GOALS = (
    *(
        Goal(
            f"{name}, added p50, {workers} {'paced' if paced else 'flat out'}",
            limit,
            "ms",
            _median_added(log, workers, paced=paced),
        )
        for name, log, limit in (("process-durable", "process", 0.35), ("queued", "queued", 0.06))
        for workers, paced in (("1 thread", False), ("4 processes", False), ("4 processes", True))
    ),
    Goal("process-durable, 4 processes flat out", 4000, "rounds/s", _least_throughput, is_least=True),
    Goal("largest pool against smallest, p50", 1.25, "times", _flatness),
    Goal("a large block prepared", 5, "s", lambda frame, prepared: prepared["seconds"][0]),
    Goal(
        "memory of its process, peak above before",
        250,
        "MB",
        lambda frame, prepared: prepared["peak_extra_mb"][0],
    ),
)


HEADERS = (
    "log",
    "pool",
    "workers",
    "load",
    "rounds",
    "added p50, ms",
    "added p99, ms",
    "bare p50, ms",
    "plain p50, ms",
    "ratio p50",
    "processor ms a round",
    "rounds/s",
    "unrandomized",
)


def page(frame: pl.DataFrame, prepared: pl.DataFrame, skipped: Sequence[str], *, smoke: bool) -> str:
    """Return the page."""
    block = prepared.row(0, named=True)
    meanwhile = (
        "none fell in between"
        if block["meanwhile_p50_ms"] is None
        else f"p50 {block['meanwhile_p50_ms']:.2f} ms, p99 {block['meanwhile_p99_ms']:.1f} ms, the slowest "
        f"{block['meanwhile_max_ms']:.1f} ms"
    )
    left_out = f"Not measured, because not offered here: {', '.join(skipped)}." if skipped else ""
    return f"""# What a random slot costs a request
{"**A smoke run: the figures mean nothing.**" if smoke else ""}

{pipe_table(["", "goal", "measured", "met"], [goal.row(frame, prepared) for goal in GOALS])}

Six slots, two of them random. *Added* is the quantile of wrapped requests less that of the bare retriever, which hands
out the first six of a list, in the same processes right after. *Paced*: each worker asks at the rate given; *flat out*:
the next request follows the answer. *Plain*: the same number of rows written by sqlite3 alone, nothing drawn and
nothing checked, at the same pace: the least that a durable round costs here. A paced worker finds the processor's
caches filled by others, so that *bare* and *plain* take several times as long paced as flat out, and so does the
wrapper. Requests come from worker threads; in the main thread, where a signal may interrupt any instruction, a round
is handed to the log's writer thread, which costs about 0.15 ms more. *Processor ms a round* counts all threads of a
process, and is the figure that a busy machine changes least. The record beside this page says how many processors
there were and how busy they were before.

A block of {count(block["pool"])} memories was ready {block["seconds"]:.1f} s after the first request for it. The
{count(block["requests_meanwhile"])} requests for the same pool meanwhile were served the base ranking: {meanwhile} (the
first one waits until the pool is listed). The
process held {block["peak_extra_mb"]:.0f} MB more at the peak than before.

{left_out}

{pipe_table(HEADERS, map(_row, frame.iter_rows(named=True)))}
"""


def _row(row: dict[str, Any]) -> list[str]:
    return [
        row["log"],
        count(row["pool"]),
        row["workers"],
        "flat out" if row["rate"] is None else f"{row['rate']:g}/s each",
        count(row["requests"]),
        f"{row['added_p50_ms']:.3f}",
        f"{row['added_p99_ms']:.2f}",
        f"{row['bare_p50_ms']:.4f}",
        "–" if row["plain_p50_ms"] is None else f"{row['plain_p50_ms']:.3f}",
        f"{row['ratio_p50']:.0f}",
        f"{row['cpu_ms_per_round']:.3f}",
        f"{row['rounds_per_second']:,.0f}",
        count(row["unrandomized"]),
    ]
