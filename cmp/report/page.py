"""HTML from frames: every text escaped, no script, nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any, Final

import polars as pl

__all__ = ["Html", "note", "page", "section", "table", "text"]

#: Nothing is loaded and nothing runs, whatever an id may hold.
POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"

STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1d2430; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; border-bottom: 1px solid #d8dde6; }
table { border-collapse: collapse; font-size: 13px; } .wide { overflow-x: auto; }
th, td { padding: .25rem .6rem; text-align: left; vertical-align: top; border-bottom: 1px solid #eceff4; }
td { overflow-wrap: anywhere; } td.number, th.number { text-align: right; white-space: nowrap; }
td.number { font-variant-numeric: tabular-nums; }
.note { background: #f4f6fa; border-left: 4px solid #8092b0; padding: .6rem .9rem; }
.FAIL { color: #a4161a; font-weight: 600; } .PASS { color: #1b6e3c; } .NOT_TESTABLE { color: #667; }
svg { max-width: 100%; height: auto; } svg text { font: 11px system-ui, sans-serif; fill: #1d2430; }
svg .interval { stroke: #33567f; stroke-width: 1.6; } svg .point { fill: #33567f; }
svg .axis { stroke: #b6bfcd; } svg .zero { stroke: #667; stroke-dasharray: 3 3; }
@media (prefers-color-scheme: dark) {
  body { background: #14181f; color: #dfe5ee; } .note { background: #1e2530; }
  svg text { fill: #dfe5ee; } th, td { border-color: #2a323f; } .PASS { color: #6fce97; } .FAIL { color: #ff8a8d; }
  svg .interval { stroke: #8fb4e3; } svg .point { fill: #8fb4e3; }
}
"""


class Html(str):
    """Text that is markup already."""

    __slots__ = ()


def text(value: object) -> Html:
    r"""Return a value as markup: escaped, and what a reader could not see replaced.

    Examples
    --------
    >>> text("<b>\u202ex</b>")
    '&lt;b&gt;\ufffdx&lt;/b&gt;'
    """
    if isinstance(value, Html):
        return value
    shown = str(value)
    if not shown.isprintable():
        shown = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in shown)
    return Html(escape(shown, quote=True))


def page(title: str, parts: Sequence[Html]) -> str:
    """Return a whole document."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{text(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>{text(title)}</h1>\n"
        + "\n".join(parts)
        + "\n</body>\n</html>\n"
    )


def section(title: str, *parts: Html) -> Html:
    """Return a section under a heading."""
    return Html(f"<section>\n<h2>{text(title)}</h2>\n" + "\n".join(parts) + "\n</section>")


def note(*lines: object) -> Html:
    """Return a paragraph that stands out."""
    return Html('<p class="note">' + "<br>".join(text(line) for line in lines) + "</p>")


def table(frame: pl.DataFrame) -> Html:
    """Return a frame as a table; numbers to the right, what is not known a dash, states coloured."""
    kinds = ["number" if dtype.is_numeric() else "" for dtype in frame.dtypes]
    head = "".join(_cell("th", name, kind) for name, kind in zip(frame.columns, kinds, strict=True))
    rows = [
        "<tr>" + "".join(_cell("td", value, kind) for value, kind in zip(row, kinds, strict=True)) + "</tr>"
        for row in frame.iter_rows()
    ]
    return Html(
        f'<div class="wide"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n'
        + "\n".join(rows)
        + "\n</tbody>\n</table></div>"
    )


def _cell(tag: str, value: Any, kind: str) -> str:
    if tag == "td" and value in ("PASS", "FAIL", "NOT TESTABLE"):
        kind = value.replace(" ", "_")
    shown = "\N{EN DASH}" if value is None else f"{value:.4g}" if isinstance(value, float) else value
    named = f' class="{kind}"' if kind else ""
    return f"<{tag}{named}>{text(shown)}</{tag}>"
