"""Tables for people: every number comes from a frame, and is rounded only here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = ["count", "percent", "pipe_table", "points", "rank"]


def pipe_table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table, first column to the left, the others to the right.

    Examples
    --------
    >>> print(pipe_table(["pool", "share"], [["turns", "53.2 %"]]))
    | pool | share |
    |:--|--:|
    | turns | 53.2 % |
    """
    marks = [":--", *["--:"] * (len(headers) - 1)]
    lines = [" | ".join(headers), "|".join(marks), *(" | ".join(row) for row in rows)]
    return "\n".join(f"|{line}|" if line.startswith(":--") else f"| {line} |" for line in lines)


def percent(share: float | None) -> str:
    """Return a share with one decimal, a dash where undefined."""
    return "–" if share is None else f"{100 * share:.1f} %"


def points(difference: float | None) -> str:
    """Return a difference of shares in percentage points, signed."""
    return "–" if difference is None else f"{round(100 * difference, 1) + 0.0:+.1f}"


def count(number: int) -> str:
    """Return a count with thousands marked."""
    return f"{number:,}"


def rank(value: float | None) -> str:
    """Return a rank, halves kept; a dash where unknown."""
    return "–" if value is None else f"{value:,.2f}".rstrip("0").rstrip(".")
