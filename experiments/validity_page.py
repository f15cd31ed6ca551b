"""The page of the validity experiment: every number comes from its tables."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle
from typing import Any

import polars as pl
from matplotlib.figure import Figure

from experiments.markdown import percent, pipe_table
from experiments.validity_families import RATE
from experiments.validity_sequences import ALPHA, WIDTHS_AT
from experiments.validity_tallies import LEVELS, TOLERANCE, holds, tail_of_tolerance

__all__ = ["figure", "render", "verdicts"]

Row = dict[str, Any]
#: Greatest level at which people reject.
REJECTS = 0.1
HOLDS = {True: "holds", False: "**does not hold**"}


def render(p_values: pl.DataFrame, more: Mapping[str, pl.DataFrame], *, smoke: bool) -> str:
    """Return the page in Markdown.

    Parameters
    ----------
    p_values
        A row a test, setting and kind of outcomes.
    more
        ``discoveries``, ``sequences``, ``tables``.
    smoke
        Whether the numbers mean nothing.
    """
    parts = [
        "# Do tests and sequences keep their level?",
        *(["**A smoke run: the numbers mean nothing.**"] if smoke else []),
        _INTRODUCTION,
        "## What does not hold",
        verdicts(p_values, more),
        "## P-values where nothing has an effect",
        _P_VALUES,
        _p_value_table(p_values),
        "![P(p <= u) / u, thick lines where it does not hold](validity.png)",
        "## False discoveries where half have no effect",
        _DISCOVERIES,
        _discovery_table(more["discoveries"]),
        "## Looking after every block",
        _SEQUENCES.format(looks=more["sequences"]["looks"][0]),
        _sequence_table(more["sequences"]),
        _TABLES.format(looks=more["tables"]["looks"][0], tables=more["tables"]["tables"][0]),
        _table_of_tables(more["tables"]),
    ]
    return "\n\n".join(parts)


def verdicts(p_values: pl.DataFrame, more: Mapping[str, pl.DataFrame]) -> str:
    """List what exceeds its level, and how much of that chance alone would make; first what makes false alarms."""
    torn = sorted(p_values.filter(~pl.col("holds")).iter_rows(named=True), key=_spares_rejections)
    lines = [_p_value_fault(row) for row in torn]
    for row in more["discoveries"].filter(~pl.col("holds")).iter_rows(named=True):
        what = "any false discovery" if row["method"] == "holm" else "false discoveries"
        share = row["any_false"] if row["method"] == "holm" else row["false_discovery_rate"]
        lines.append(
            f"* {NAMES[row['method']]}, {row['memories']} memories, {row['kind']}, effects of {row['effect']:g}: "
            f"{what} {percent(share)}, nominal {percent(RATE)}."
        )
    for name, title in (
        ("sequences", "after every block"),
        ("tables", "tables of memories that share rounds"),
    ):
        for row in more[name].filter(~pl.col("holds")).iter_rows(named=True):
            lines.append(
                f"* Confidence sequence, {row['outcomes']}, {title}: the truth was left out of "
                f"{percent(row['sequence_share'])}, nominal {percent(ALPHA)}."
            )
    compared = p_values.height * (len(LEVELS) + 1) + sum(frame.height for frame in more.values())
    rows = p_values.height + sum(frame.height for frame in more.values())
    return "\n".join(lines or ["* Nothing."]) + (
        f"\n\n{len(lines)} of {rows} rows, which make {compared} comparisons. Were every share in expectation just "
        f"its level, {compared * tail_of_tolerance():.1f} comparisons would exceed it by {TOLERANCE:g} standard "
        "errors; most are conservative, so that fewer should."
    )


def _levels_exceeded(row: Row) -> list[float]:
    return [level for level in LEVELS if not holds(row[f"share_{level:g}"], level, row[f"error_{level:g}"])]


def _spares_rejections(row: Row) -> bool:
    """Whether p-values at which people reject are as rare as they should be."""
    return all(level > REJECTS for level in _levels_exceeded(row))


def _p_value_fault(row: Row) -> str:
    over = [
        f"P(p <= {level:g}) = {row[f'share_{level:g}']:.4g} ± {row[f'error_{level:g}']:.2g}"
        for level in _levels_exceeded(row)
    ]
    if row["excess"] > row["excess_by_chance"]:
        over.append(
            f"F(u) - u = {row['excess']:.3f} at u = {row['excess_at']:.3g} ({row['excess_by_chance']:.3f} by chance)"
        )
    elsewhere = f"; p <= {REJECTS:g} and every lower level hold" if _spares_rejections(row) else ""
    return f"* {row['test']}, {row['setting']}, outcomes {row['outcomes']}: {', '.join(over)}{elsewhere}."


def _p_value_table(frame: pl.DataFrame) -> str:
    heads = ["test, outcomes and size", "outcomes", "p-values", *(f"p <= {level:g}" for level in LEVELS)]
    heads += ["F(u) - u at most (chance)", "verdict"]
    rows = [
        [
            f"{row['test']}: {row['setting']}", row["outcomes"], _counted(row),
            *(_share(row[f"share_{level:g}"], row[f"error_{level:g}"], level) for level in LEVELS),
            f"{row['excess']:.3f} ({row['excess_by_chance']:.3f})", _verdict(row),
        ]
        for row in frame.iter_rows(named=True)
    ]  # fmt: skip
    return pipe_table(heads, rows)


def _verdict(row: Row) -> str:
    spared = not row["holds"] and _spares_rejections(row)
    return HOLDS[row["holds"]] + (f", but p <= {REJECTS:g} does" if spared else "")


def _counted(row: Row) -> str:
    undefined = row["undefined_share"]
    return f"{row['p_values']:,}" + (f", {percent(undefined)} undefined" if undefined else "")


def _share(share: float, error: float, level: float) -> str:
    digits = 5 if level < 0.01 else 4 if level < 0.05 else 3
    return f"{share:.{digits}f} ± {error:.{digits}f}"


NAMES = {"bh": "Benjamini-Hochberg", "by": "Benjamini-Yekutieli", "holm": "Holm"}


def _discovery_table(frame: pl.DataFrame) -> str:
    heads = [
        "memories",
        "outcomes",
        "effects",
        "adjusted",
        "false discovery rate",
        "any false",
        "power",
        "verdict",
    ]
    rows = [
        [
            str(row["memories"]), row["kind"], f"± {row['effect']:g}" if row["effect"] else "none",
            NAMES[row["method"]],
            f"{row['false_discovery_rate']:.4f} ± {row['false_discovery_error']:.4f}",
            f"{row['any_false']:.3f} ± {row['any_false_error']:.3f}",
            "–" if row["power"] is None else f"{row['power']:.3f} ± {row['power_error']:.3f}", HOLDS[row["holds"]],
        ]
        for row in frame.iter_rows(named=True)
    ]  # fmt: skip
    return pipe_table(heads, rows)


def _sequence_table(frame: pl.DataFrame) -> str:
    heads = [
        "outcomes",
        "exposures a block",
        "levels",
        "truth",
        "memories",
        "sequence left it out",
        "usual interval did",
    ]
    heads += [f"half width at look {look}: sequence, usual" for look in WIDTHS_AT] + ["the sequence"]
    rows = [
        [
            row["outcomes"], str(row["exposures"]), "drift" if row["drifts"] else "stay", f"{row['truth']:g}",
            f"{row['memories']:,}", f"{row['sequence_share']:.4f} ± {row['sequence_error']:.4f}",
            f"{row['usual_share']:.3f} ± {row['usual_error']:.3f}",
            *(_widths(row, look) for look in WIDTHS_AT), HOLDS[row["holds"]],
        ]
        for row in frame.iter_rows(named=True)
    ]  # fmt: skip
    return pipe_table(heads, rows)


def _widths(row: Row, look: int) -> str:
    found = [row[f"{name}_half_width_{look}"] for name in ("sequence", "usual")]
    return ", ".join("–" if width is None else f"{width:.3f}" for width in found)


def _table_of_tables(frame: pl.DataFrame) -> str:
    heads = ["outcomes", "memories", "looks", "sequence left it out", "usual interval did", "the sequence"]
    rows = [
        [
            row["outcomes"], f"{row['memories']:,}", str(row["looks"]),
            f"{row['sequence_share']:.4f} ± {row['sequence_error']:.4f}",
            f"{row['usual_share']:.3f} ± {row['usual_error']:.3f}", HOLDS[row["holds"]],
        ]
        for row in frame.iter_rows(named=True)
    ]  # fmt: skip
    return pipe_table(heads, rows)


def figure(curve: pl.DataFrame, p_values: pl.DataFrame) -> Figure:
    """Return P(p <= u) / u against u, a line a test, thick where it does not hold; above 1 is too often."""
    curve = curve.join(
        p_values.select("test", "setting", "outcomes", "holds"), on=["test", "setting", "outcomes"]
    )
    palette = [*(f"C{number}" for number in range(10)), "black"]
    colours = dict(zip(curve["test"].unique(maintain_order=True), cycle(palette)))
    result = Figure(figsize=(10, 11), layout="constrained")
    panels = result.subplots(2, 1, sharex=True, sharey=True)
    for axes, outcomes in zip(panels, ("fixed", "drawn"), strict=True):
        mine = curve.filter(pl.col("outcomes") == outcomes)
        styles = ("-", "--", ":", "-.")
        drawn: dict[str, int] = {}
        for (test, setting), line in mine.group_by("test", "setting", maintain_order=True):
            number = drawn[str(test)] = drawn.get(str(test), -1) + 1
            axes.plot(
                line["u"], line["share"] / line["u"], styles[number % 4], color=colours[str(test)],
                linewidth=1.0 if line["holds"].all() else 2.5, label=f"{test}: {setting}",
            )  # fmt: skip
        axes.axhline(1.0, color="0.3", linewidth=1)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_ylim(0.1, 10.0)
        axes.set_ylabel("P(p <= u) / u")
        axes.set_title(f"outcomes {outcomes}", fontsize=10)
    panels[-1].set_xlabel("u")
    handles, labels = panels[0].get_legend_handles_labels()
    result.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=7)
    return result


_INTRODUCTION = (
    f"A share *holds* where it exceeds its level by no more than {TOLERANCE:g} standard errors, which stand after ±: "
    "the binomial one at the level, of as many independent memories, or, where that is larger, the one of the logs' "
    "shares, as memories of one log share their rounds. Below its level a share always holds: exact tests of discrete "
    "outcomes are conservative, and so is a sequence that is to hold at every look."
)

_P_VALUES = (
    "The sharp null: no outcome depends on what is drawn. Each log draws the design anew. *Drawn* outcomes are new in "
    "every log as well; *fixed* ones are the same in all (of episodes, in every fiftieth), evenly spaced quantiles in "
    "one random order, so that the design alone is left to chance. Of pairs of which one memory helps, the sharp null "
    "is that its partner changes nothing. The last but one column is Kolmogorov's distance on the side of false "
    "alarms: the greatest F(u) - u, in brackets what chance exceeds as seldom as a tolerance. Undefined p-values are "
    "left out. Randomization tests and rearranged pairs draw 999 assignments, so that the least p-value is .001."
)

_DISCOVERIES = (
    f"At q <= {RATE:g}, nominal {percent(RATE)}: of the false discovery rate for Benjamini-Hochberg and "
    "Benjamini-Yekutieli, of the chance of any false discovery for Holm. Ten exposures a memory, two drawn a round. A "
    "quarter of the memories add the effect and a quarter take it away; half have none, and are worth exactly the "
    "mean of the others. Where success is rare (6.5 %) one in 32 adds it, and the rest of its half takes a little "
    "each. Power is the share found of the memories that add the effect. Without effects (*none*) every discovery is "
    "false. All memories of a family are drawn in one design: they share rounds, and take slots from each other, so "
    "their p-values are dependent. Benjamini-Hochberg bounds the rate for independent p-values and for some positive "
    "dependence, which this is not; the others bound theirs under any."
)

_SEQUENCES = (
    "Memories with rounds of their own, a look after each of {looks} blocks, nominal 95 %: the share of memories "
    "whose truth is left out at any look, by the confidence sequence and by the interval that `auto` gives as if each "
    "look were the only one. That one is what is looked at daily if nothing else is chosen; no verdict is given on "
    "it, as it does not claim to hold at more than one look. Fifteen controls an exposure. Where levels drift they "
    "move as a sine of the block, by 80 % of a chance of success and by 2 otherwise. Half widths are means over "
    "memories with limits."
)

_TABLES = (
    "The same of {tables} tables of 100 memories that share their rounds (blocks of 25, 8 drawn in each, two "
    "exposures a memory and block; levels drift), {looks} looks, one every three blocks, without effects:"
)
