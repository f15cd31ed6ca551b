"""The page of the analysis benchmark: goals beside figures, then every measurement."""

from __future__ import annotations

import math
from typing import Any, Final

import polars as pl

from experiments.markdown import count, pipe_table

__all__ = ["OURS", "PLAIN", "analysis_page"]

OURS, PLAIN = "ours, polars", "plain polars"
HEADERS: Final = (
    "exposures",
    "outcome",
    "by",
    "what",
    "s of CPU",
    "least and most",
    "times plain polars",
    "wall s",
    "s to import",
    "peak MB",
    "memories",
    "largest difference",
)


def analysis_page(frame: pl.DataFrame, *, smoke: bool) -> str:
    """Return the page."""
    return f"""# What a table of utilities costs
{"**A smoke run: the figures mean nothing.**" if smoke else ""}

{pipe_table(["", "goal", "measured", "met"], [*_goals(frame)])}

*Ours* is `cmp.utilities` whole: checks, sums that no row order changes, states, intervals, exact p-values, q-values.
*Plain polars* and *DuckDB SQL* are queries that stop at the same sums and the estimate; *numpy in memory* adds up
integer codes that are in memory already, which is the least that anyone can take. *Least squares* (statsmodels, HC2
errors) and the *bootstrap* of self-normalized weights (a thousand resamples, as in Open Bandit Pipeline) go memory by
memory: they were run for some of them, and their time is scaled to all. What is over in a few seconds was run nine
times, in turns, and ours and plain polars three times where they take longer; medians are told. Widths at equal
coverage are in [intervals.md](intervals.md). *Largest difference* is that of a utility from ours. What importing takes
(polars and numpy are there already) is told apart, and counts once a process.

{pipe_table(HEADERS, map(_row, frame.iter_rows(named=True)))}
"""


def _goals(frame: pl.DataFrame) -> list[list[str]]:
    largest = int(frame["exposures"].max())  # type: ignore[arg-type]
    return [
        *(
            _goal(f"CPU against plain polars, worst at {size:,}", 1.15, "times", _worst_ratio(frame, size))
            for size in frame["exposures"].unique().sort()
        ),
        _goal(f"peak memory at {largest:,} exposures", 2500, "MB", _peak(frame, largest)),
        _goal("growth of CPU with exposures, exponent", 1.05, "", _growth(frame)),
        _goal("bootstrap against ours, at 1,000,000", 100, "times", _bootstrap(frame), is_least=True),
    ]


def _goal(name: str, limit: float, unit: str, value: float | None, *, is_least: bool = False) -> list[str]:
    goal = f"{'≥' if is_least else '≤'} {limit:,g} {unit}".strip()
    if value is None:
        return [name, goal, "not measured", "–"]
    met = value >= limit if is_least else value <= limit
    digits = 2 if value < 100 else 0
    return [name, goal, f"{value:,.{digits}f} {unit}".strip(), "yes" if met else "no"]


def _cpu(frame: pl.DataFrame, what: str) -> pl.DataFrame:
    return frame.filter(what=what).select("exposures", "outcome", "by", "cpu_seconds").drop_nulls()


def _worst_ratio(frame: pl.DataFrame, exposures: int) -> float | None:
    frame = frame.filter(exposures=exposures)
    both = _cpu(frame, OURS).join(_cpu(frame, PLAIN), on=["exposures", "outcome", "by"], suffix="_plain")
    found: float | None = both.select((pl.col("cpu_seconds") / pl.col("cpu_seconds_plain")).max()).item()
    return found


def _peak(frame: pl.DataFrame, exposures: int) -> float | None:
    found: float | None = frame.filter(what=OURS, exposures=exposures)["peak_mb"].max()  # type: ignore[assignment]
    return found


def _growth(frame: pl.DataFrame) -> float | None:
    """Read the steepest exponent between two neighbouring sizes."""
    found = []
    for _, group in _cpu(frame, OURS).sort("exposures").group_by("outcome", "by"):
        sizes, seconds = group["exposures"].to_list(), group["cpu_seconds"].to_list()
        found += [
            math.log(later / earlier) / math.log(larger / smaller)
            for smaller, larger, earlier, later in zip(sizes, sizes[1:], seconds, seconds[1:], strict=False)
        ]
    return max(found, default=None)


def _bootstrap(frame: pl.DataFrame) -> float | None:
    both = _cpu(frame, "bootstrap").join(_cpu(frame, OURS), on=["exposures", "outcome", "by"], suffix="_ours")
    found: float | None = both.select((pl.col("cpu_seconds") / pl.col("cpu_seconds_ours")).min()).item()
    return found


def _row(row: dict[str, Any]) -> list[str]:
    start = [count(row["exposures"]), row["outcome"], row["by"], row["what"]]
    if row["failed"]:
        return [*start, f"did not finish: {row['failed'][:80]}", *["–"] * 7]
    ratio, apart = row["times_plain"], row["largest_difference"]
    return [
        *start,
        f"{row['cpu_seconds']:,.2f}",
        "–" if row["runs"] < 2 else f"{row['cpu_least']:,.2f}–{row['cpu_most']:,.2f}",
        "–" if ratio is None else f"{ratio:.2f}",
        f"{row['wall_seconds']:,.2f}",
        f"{row['import_seconds']:.2f}",
        count(round(row["peak_mb"])),
        count(row["rows"]),
        "–" if apart is None else f"{apart:.1e}",
    ]
