"""The page of the precision experiment: every number comes from its tables."""

from __future__ import annotations

from typing import Any

import polars as pl

from experiments.markdown import percent, pipe_table
from experiments.precision_methods import CONTRAST, KEPT

__all__ = ["render", "verdicts"]

#: Mean coverage that counts as equal: what the intervals experiment asks of any method.
COVERS = 0.94
#: A difference of AUCs or a ratio of widths smaller than this helps nobody, however certain.
WORTH = 0.01

Row = dict[str, Any]


def render(frame: pl.DataFrame, pairs: pl.DataFrame, *, smoke: bool, skipped: str = "") -> str:
    """Return the page in Markdown."""
    parts = [
        "# What makes utilities more precise",
        *(["**A smoke run: the numbers mean nothing.**"] if smoke else []),
        *([skipped] if skipped else []),
        "Each method against the plain contrast (`cmp.estimate`, nominal 95 % intervals) on the same logs. "
        "*Width* is the mean half width over the contrast's, *squared error* likewise; brackets are 95 % limits. "
        "Coverage is the mean over memories, then the worst memory.",
    ]
    for keys, cells in frame.group_by("data", "setting", "size", maintain_order=True):
        data, setting, size = keys
        large = bool(cells["large_coverage"].count())
        heads = ["method", "AUC", "AUC gained", "half width", "width", "squared error", "coverage"]
        heads += ["coverage, large utilities"] if large else []
        parts += [
            f"## {data}: {setting} ({size}; {int(cells['logs'].to_numpy().max())} logs)",
            pipe_table(heads, [_line(row, large) for row in cells.iter_rows(named=True)]),
        ]
    parts += ["## What helps", verdicts(frame), "## Pairs", _PAIRS, _pair_table(pairs)]
    parts += ["## How it was computed", _METHOD]
    return "\n\n".join(parts)


def _line(row: Row, large: bool) -> list[str]:
    worst = "" if row["worst_coverage"] is None else f" ({row['worst_coverage']:.2f})"
    line = [
        row["method"],
        _number(row["auc"]),
        _with_limits(row, "auc_difference", "auc_low", "auc_high", "+.3f"),
        _number(row["half_width"]),
        _with_limits(row, "width_ratio", "width_low", "width_high", ".2f"),
        _with_limits(row, "squared_error_ratio", "squared_error_low", "squared_error_high", ".2f"),
        "–" if row["coverage"] is None else f"{row['coverage']:.3f}{worst}",
    ]
    return line + ([_number(row["large_coverage"])] if large else [])


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _with_limits(row: Row, name: str, low: str, high: str, shape: str) -> str:
    if row[name] is None:
        return "–"
    if row[low] is None:
        return f"{row[name]:{shape}}"
    return f"{row[name]:{shape}} ({row[low]:{shape}} to {row[high]:{shape}})"


def verdicts(frame: pl.DataFrame) -> str:
    """Say of every method where it gains in AUC, where in width while it covers, and where it fails to cover."""
    lines = []
    for (method,), rows in frame.filter(pl.col("method") != CONTRAST).group_by("method", maintain_order=True):
        tried = rows.height
        ranks = rows.filter((pl.col("auc_low") > 0.0) & (pl.col("auc_difference") >= WORTH)).height
        loses = rows.filter((pl.col("auc_high") < 0.0) & (pl.col("auc_difference") <= -WORTH)).height
        known = rows.filter(pl.col("coverage").is_not_null())
        narrow = (pl.col("width_high") < 1.0) & (pl.col("width_ratio") <= 1.0 - WORTH)
        covers = pl.col("coverage") >= COVERS
        narrower = known.filter(narrow & covers)
        wider = known.filter(covers & (pl.col("width_low") > 1.0) & (pl.col("width_ratio") >= 1.0 + WORTH))
        short = known.filter(~covers)
        span = ""
        if narrower.height:
            ratios = narrower["width_ratio"].sort().to_list()
            span = f" (by {percent(1 - ratios[-1])} to {percent(1 - ratios[0])})"
        lines.append(
            f"* **{method}**, {tried} settings: AUC higher in {ranks}, lower in {loses}; narrower while covering in "
            f"{narrower.height} of {known.height} with a known truth{span}, wider in {wider.height}; mean coverage "
            f"below {COVERS} in {short.height}. {KEPT[str(method)]}"
        )
    return "\n".join(lines)


def _pair_table(pairs: pl.DataFrame) -> str:
    heads = ["size", "pair", "rounds with both", "estimated", "coverage", "p <= .05", "half width"]
    rows = [
        [
            row["size"], row["kind"], f"{row['together']:.1f}", percent(row["estimated"]), _number(row["coverage"]),
            percent(row["rejected"]), _number(row["half_width"]),
        ]
        for row in pairs.iter_rows(named=True)
    ]  # fmt: skip
    return pipe_table(heads, rows)


_PAIRS = (
    "Binary outcomes at a base rate of 5 %. Memories 0 and 1 add .55 where both are shown and nothing alone; 2 and 3 "
    "add .2 each. A pair with fewer than 4 rounds of both is `TOO_FEW_COEXPOSURES`: at the paper's size that is every "
    "pair, and 2,000 rounds are needed. For the pair that helps only together the share of p <= .05 is power; for all "
    "others, which have next to no interaction, it is a false alarm, to stay at 5 %."
)

_METHOD = (
    "Simulated worlds have fixed levels and effects; each log draws a balanced table and noise, and the truth is a "
    "closed form. Key memories are those with an effect, or with the largest fifth of effects. On LoCoMo the outcome "
    "is answer support, which reads the gold answer and no model; the outcome of every one of the 496 draws of two of "
    "32 memories is computed, so a log is a balanced table and a look-up, and a utility's truth is a mean over draws. "
    "Texts, pools, ranker and slots are those of the identification experiment. AUC there is against the labels, its "
    "differences paired and clustered by question or pool; widths and coverage are over questions whose outcomes vary. "
    "Large utilities are above .1 in size. *Per memory* one block asks a pool's questions in turn; what a contrast "
    "estimates then depends on its strata, so no coverage is given. Where a log asks several queries, every method but "
    "the contrast takes them as strata. The covariate on LoCoMo is the ranker's best score for the query; with queries "
    "as strata it says nothing more. The mean outcome of a query's other rounds was not tried as a covariate: queries "
    "as strata use the same knowledge, and no round then depends on another's draw. Joint limits are posterior and "
    "hold on average over memories, not for each."
)
