"""Utilities and their intervals as a drawing, in SVG."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor, log10
from typing import Final, NamedTuple

from cmp.report.page import Html, text

__all__ = ["Estimate", "draw_forest"]

#: Pixels: height of a row, where labels end, where the axis ends, and what surrounds it.
ROW: Final = 18
LEFT: Final = 270
RIGHT: Final = 860
MARGIN: Final = 28

#: Characters of a label; the whole of it is its tooltip.
LABEL: Final = 40


class Estimate(NamedTuple):
    """One row of the drawing; limits may be unknown."""

    label: str
    value: float
    low: float | None
    high: float | None


def draw_forest(estimates: Sequence[Estimate], axis: str) -> Html:
    """Draw estimates with their intervals, one a row.

    Examples
    --------
    >>> drawing = draw_forest([Estimate("m1", 0.2, -0.1, 0.5), Estimate("<m2>", 0.0, None, None)], "utility")
    >>> drawing.count('class="point"'), drawing.count('class="interval"'), "<m2>" in drawing
    (2, 1, False)
    """
    ends = [0.0, *(x for e in estimates for x in (e.value, e.low, e.high) if x is not None)]
    ticks = _ticks(min(ends), max(ends))
    first, last = ticks[0], ticks[-1]

    def at(value: float) -> float:
        return round(LEFT + (value - first) / (last - first) * (RIGHT - LEFT), 1)

    bottom = MARGIN + ROW * len(estimates)
    parts = [
        f'<line class="zero" x1="{at(0)}" x2="{at(0)}" y1="{MARGIN - 8}" y2="{bottom}"/>',
        f'<line class="axis" x1="{LEFT}" x2="{RIGHT}" y1="{bottom}" y2="{bottom}"/>',
    ]
    parts += [
        f'<text x="{at(tick)}" y="{bottom + 16}" text-anchor="middle">{tick:g}</text>' for tick in ticks
    ]
    parts.append(f'<text x="{RIGHT}" y="{bottom + 34}" text-anchor="end">{text(axis)}</text>')
    for row, estimate in enumerate(estimates):
        y = MARGIN + ROW * row + ROW / 2
        label = (
            estimate.label
            if len(estimate.label) <= LABEL
            else estimate.label[: LABEL - 1] + "\N{HORIZONTAL ELLIPSIS}"
        )
        parts.append(
            f"<g><title>{text(estimate.label)}: {estimate.value:.4g}</title>"
            f'<text x="{LEFT - 10}" y="{y + 4}" text-anchor="end">{text(label)}</text>'
        )
        if estimate.low is not None and estimate.high is not None:
            parts.append(
                f'<line class="interval" x1="{at(estimate.low)}" x2="{at(estimate.high)}" y1="{y}" y2="{y}"/>'
            )
        parts.append(f'<circle class="point" cx="{at(estimate.value)}" cy="{y}" r="3.2"/></g>')
    height = bottom + 44
    return Html(
        f'<svg role="img" aria-label="{text(axis)}" viewBox="0 0 {RIGHT + MARGIN} {height}" '
        f'width="{RIGHT + MARGIN}" height="{height}">\n' + "\n".join(parts) + "\n</svg>"
    )


def _ticks(low: float, high: float) -> list[float]:
    """Return four to ten round numbers about a range."""
    span = (high - low) or abs(high) or 1.0
    unit = 10.0 ** floor(log10(span / 4))
    step = next(unit * factor for factor in (1, 2, 2.5, 5, 10) if span / (unit * factor) <= 8)
    first, last = floor(low / step), ceil(high / step)
    return [round(place * step, 12) for place in range(first, max(last, first + 1) + 1)]
