"""The section "Every design" of the coverage experiment's page: every number comes from its table."""

from __future__ import annotations

from typing import Any

import polars as pl

from experiments.designs import DESIGNS, FAMILIES, KIND_NAMES
from experiments.designs_measure import LEAST_ESTIMATES
from experiments.markdown import pipe_table

__all__ = ["MARKS", "render_designs", "verdict"]

#: What counts as covering: mean over memories, and the worst memory.
MEAN, WORST = (0.94, 0.97), 0.92
#: Verdict to its mark in a table.
MARKS = {
    "holds": "", "holds where ESTIMATED": " °", "conservative": " +", "conservative where ESTIMATED": " +°",
    "does not hold": " !",
}  # fmt: skip
#: Shares of less than this are not worth a word.
_SOME = 0.0005
#: How far coverage of another estimand may be before it is said.
_APART = 0.003


def verdict(row: dict[str, Any]) -> str:
    """Return whether a cell covers as it should: a key of :data:`MARKS`.

    Over all memories first, an undefined interval covering nothing; failing that, over those in state ESTIMATED. The
    worst memory may lie as low as it does in one cell of a hundred whose memories all have .95.
    """
    everyone = _judged(row["mean_coverage"], row["worst_coverage"], row["worst_floor"])
    if everyone != "does not hold" or row["share_estimated"] == 1.0 or row["estimated_coverage"] is None:
        return everyone
    estimated = _judged(row["estimated_coverage"], row["estimated_worst"], row["estimated_floor"])
    return estimated if estimated == "does not hold" else f"{estimated} where ESTIMATED"


def _judged(mean: float, worst: float, floor: float) -> str:
    if mean < MEAN[0] or worst < min(WORST, floor):
        return "does not hold"
    return "holds" if mean <= MEAN[1] else "conservative"


def render_designs(frame: pl.DataFrame) -> str:
    """Return the section in Markdown."""
    ours, neyman = (frame.filter(method=method) for method in ("auto", "neyman"))
    kinds = [kind for kind in KIND_NAMES if kind in ours["kind"].unique()]
    heads = [KIND_NAMES[kind] for kind in kinds]
    parts = ["## Every design", _opening(ours)]
    for family, heading in FAMILIES.items():
        designs = [one for one in DESIGNS if one.key.split("-")[0] == family]
        parts += [
            f"### {heading}",
            pipe_table(
                ["ours", *heads],
                [[one.title, *(_cell(ours, one.key, kind, mark=True) for kind in kinds)] for one in designs],
            ),
            pipe_table(
                ["Neyman z", *heads],
                [[one.title, *(_cell(neyman, one.key, kind) for kind in kinds)] for one in designs],
            ),
        ]
    return "\n\n".join([*parts, "### Where it does not hold", _exceptions(ours), "### How", _method(ours)])


def _opening(ours: pl.DataFrame) -> str:
    found = [verdict(row) for row in ours.iter_rows(named=True)]
    counts = {name: found.count(name) for name in MARKS}
    return (
        f"Ours against Neyman's z in {len(found)} cells. As above: mean coverage over memories (worst memory) ± mean "
        f"half width; an undefined interval covers nothing. Asked for are a mean of {MEAN[0]} to {MEAN[1]} and {WORST} "
        "for the worst memory, or what the worst falls below by chance in one cell of a hundred if every memory has "
        f".95, whichever is lower. {counts['holds']} cells hold (no mark); {counts['holds where ESTIMATED']} hold for "
        "what the table calls ESTIMATED, and it says of the rest that they are not (°); "
        f"{counts['conservative']} are conservative, with a mean above {MEAN[1]} and a worst memory that holds (+), "
        f"{counts['conservative where ESTIMATED']} more for what is called ESTIMATED (+°); "
        f"{counts['does not hold']} do not hold (!)."
    )


def _cell(frame: pl.DataFrame, design: str, kind: str, *, mark: bool = False) -> str:
    cells = frame.filter(design=design, kind=kind)
    if cells.height == 0:
        return "–"
    row = cells.row(0, named=True)
    width = "undefined" if row["mean_half_width"] is None else f"± {row['mean_half_width']:.3f}"
    text = f"{row['mean_coverage']:.3f} ({row['worst_coverage']:.3f}) {width}"
    return text + (MARKS[verdict(row)] if mark else "")


def _exceptions(ours: pl.DataFrame) -> str:
    said: dict[str, list[str]] = {name: [] for name in MARKS}
    for row in ours.iter_rows(named=True):
        said[verdict(row)].append(_exception(row))
    parts = [
        f"**{name[0].upper()}{name[1:]}{MARKS[name]}**\n\n" + "\n".join(said[name])
        for name in ("does not hold", "holds where ESTIMATED", "conservative where ESTIMATED", "conservative")
        if said[name]
    ]
    return "\n\n".join(parts) or "Every cell holds."


def _exception(row: dict[str, Any]) -> str:
    title = {one.key: f"{FAMILIES[one.key.split('-')[0]]}: {one.title}" for one in DESIGNS}[row["design"]]
    return (
        f"* {title}, {KIND_NAMES[row['kind']]}: mean {row['mean_coverage']:.3f} (standard error "
        f"{row['mean_coverage_se']:.4f}), worst {row['worst_coverage']:.3f} (chance alone allows "
        f"{row['worst_floor']:.3f} in {row['draws']:,} logs); {_states(row)}."
    )


def _states(row: dict[str, Any]) -> str:
    """Say what the state said: how many in which, and how those fare that it vouches for."""
    shares = {
        name.removeprefix("share_").upper(): value
        for name, value in row.items()
        if name.startswith("share_") and value >= _SOME
    }
    said = ", ".join(f"{value:.1%} {state}" for state, value in shares.items())
    if set(shares) == {"ESTIMATED"} or row["estimated_worst"] is None:
        return f"the state said {said}"
    return (
        f"the state said {said}; of those ESTIMATED {row['estimated_coverage']:.3f} are covered, of the worst memory "
        f"{row['estimated_worst']:.3f}"
    )


def _method(ours: pl.DataFrame) -> str:
    draws = ours.group_by("draws").agg(pl.col("design").unique()).sort("draws", descending=True).rows()
    counts = "; ".join(
        f"{n:,} logs a cell" if place == 0 else f"{n:,} in {', '.join(sorted(names))}"
        for place, (n, names) in enumerate(draws)
    )
    even, mean = pl.col("coverage_of_mean_over_rounds"), pl.col("mean_coverage")
    apart = ours.filter((even - mean).abs() > _APART).select("design", "kind", even).rows()
    listed = ", ".join(f"{design} {kind} {value:.3f}" for design, kind, value in apart)
    gaps = ours["largest_z_against_truth"].drop_nulls().to_numpy()
    errors = f"within {gaps.max():.1f} standard errors of 0" if len(gaps) else "(too few logs to say)"
    chance = (
        ours.filter(draws=draws[0][0], memories=32)
        .select("worst_expected_of_95", "worst_floor")
        .head(1)
        .rows()
    )
    return (
        f"{counts}. Logs are written as the product writes them and read by cmp.utilities or cmp.utility_statistics, "
        "many at once, each in a scope of its own; rosters that grow are also given to cmp.estimate, as one stratum "
        "weighted by propensities. What an estimate is of is exact: given how often a memory was exposed in each "
        "stratum, the mean over the rounds with an outcome of E[outcome | drawn] - E[outcome | not drawn], strata "
        "weighted as the estimate weights them; against cards, the memory's own effect. Where outcomes share an "
        "episode, or cards are compared, levels leave room for effects, so that binary means are additive. Two "
        "estimates are only nearly unbiased for it: weighted arms are a ratio, and beside ranked memories what else is "
        f"drawn changes a little which rounds count. The mean error over logs lies {errors} "
        f"for every memory with {LEAST_ESTIMATES} estimates or more. The plain mean over all rounds, whatever is "
        f"missing and however strata weigh, is covered as often to within {_APART}"
        f"{f', except: {listed}' if listed else ''}. "
        + "".join(
            f"If every memory has .95, the worst of 32 lies below {median:.3f} half the time and below {floor:.3f} "
            "once in a hundred. "
            for median, floor in chance
        )
        + "A memory's coverage among its estimates counts for the worst one if it was ESTIMATED in a fifth of the logs."
    )
