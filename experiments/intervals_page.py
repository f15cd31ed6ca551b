"""The page of the coverage experiment: every number comes from its table."""

from __future__ import annotations

import polars as pl

from experiments.markdown import pipe_table
from experiments.worlds import KINDS

__all__ = ["render", "verdicts"]

NAMES = {
    "auto": "ours (auto)", "neyman": "Neyman z", "welch": "Welch t", "pooled": "pooled t",
    "bootstrap": "bootstrap, fixed SNIPW",
}  # fmt: skip
#: What counts as covering: mean over memories, and the worst memory.
MEAN, WORST = (0.94, 0.97), 0.92


def render(frame: pl.DataFrame, *, draws: int) -> str:
    """Return the page in Markdown."""
    parts = [
        "# Do the intervals cover?",
        f"Nominal 95 % intervals for the utility of each memory, {draws:,} logs a cell. Coverage is the mean over "
        "memories, in brackets that of the worst memory; then the mean half width, in outcome units. An undefined "
        "interval counts as not covering and is left out of the width.",
    ]
    for keys, cells in frame.group_by("rounds", "memories", "k", maintain_order=True):
        rounds, memories, k = keys
        least = cells["least_exposures"][0]
        parts += [
            f"## T = {rounds}, N = {memories}, k = {k}: {least} or {least + 1} exposures a memory",
            pipe_table(
                ["outcome", *NAMES.values()],
                [_line(kind, cells) for kind in cells["kind"].unique(maintain_order=True)],
            ),
        ]
    aims = (
        f"Mean coverage {MEAN[0]} to {MEAN[1]}, the worst memory at least {WORST}, and no wider than any other "
        "interval that covers."
    )
    parts += ["## Against the aims", aims, verdicts(frame), "## How it was computed", _method(frame)]
    return "\n\n".join(parts)


def _line(kind: str, cells: pl.DataFrame) -> list[str]:
    line = [KINDS[kind][0]]
    for method in NAMES:
        one = cells.filter((pl.col("kind") == kind) & (pl.col("method") == method)).row(0, named=True)
        text = f"{one['mean_coverage']:.3f} ({one['worst_coverage']:.3f}) ± {one['mean_half_width']:.3f}"
        undefined = one["undefined_share"]
        line.append(text + (f", {undefined:.1%} undefined" if undefined else ""))
    return line


def verdicts(frame: pl.DataFrame) -> str:
    """Say for every cell whether ours covers as it should, and whether what else covers is narrower."""
    lines = []
    for (kind, rounds, memories, k), cell in frame.group_by(
        "kind", "rounds", "memories", "k", maintain_order=True
    ):
        ours, others = (cell.filter((pl.col("method") == "auto") == mine) for mine in (True, False))
        mean, worst, width = ours.select("mean_coverage", "worst_coverage", "mean_half_width").row(0)
        rivals = others.filter((pl.col("mean_coverage") >= MEAN[0]) & (pl.col("worst_coverage") >= WORST))
        narrower = rivals.filter(pl.col("mean_half_width") < width)
        shown = ", ".join(
            f"{NAMES[m]} (± {w:.3f})" for m, w in narrower.select("method", "mean_half_width").rows()
        )
        held = MEAN[0] <= mean <= MEAN[1] and worst >= WORST
        lines.append(
            f"* {kind}, T = {rounds}, N = {memories}, k = {k}: mean {mean:.3f} and worst {worst:.3f} "
            f"{'hold' if held else 'do not hold'}; "
            + (
                f"narrower and covering: {shown}."
                if shown
                else f"of {rivals.height} others that cover, none is narrower."
            )
        )
    return "\n".join(lines)


def _method(frame: pl.DataFrame) -> str:
    gap = float(frame["largest_z_against_truth"].to_numpy().max())
    times = frame.group_by("method", maintain_order=True).agg(pl.col("milliseconds_a_log").mean()).rows()
    clock = ", ".join(f"{NAMES[method]} {ms:.1f}" for method, ms in times)
    return (
        "Each world has fixed levels of its rounds and fixed effects of its memories; each log draws a balanced "
        "table and noise. The truth is the exact expectation of the difference in means over both, in closed form: "
        "beside a memory, the others shown are a simple random sample of the rest, so the number of them with an "
        "effect is hypergeometric where means are cut to [0, 1], and their effects average out where they are not. "
        f"As a check, the mean estimate over the logs lies within {gap:.1f} standard errors of it for every memory of "
        "every cell. A memory's coverage over n logs has a standard error of sqrt(.95 x .05 / n), so the worst of N "
        "memories lies two to three of these low by chance alone. The bootstrap is Open Bandit Pipeline's: weights "
        "are self-normalized once and kept, and the rounds' products with the outcome resampled. "
        f"Milliseconds a log: {clock}."
    )
