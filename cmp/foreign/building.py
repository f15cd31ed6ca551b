"""From checked columns to a log: whatever the source, the same checks and the same form."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from cmp.errors import PositivityError
from cmp.foreign.checks import (
    check_counts,
    check_propensities,
    check_roster,
    check_rounds,
    check_scopes,
    check_sums,
)
from cmp.foreign.logs import ForeignLog
from cmp.foreign.problems import Places, Problems
from cmp.protocols import EVERYTHING

__all__ = ["build_log"]

#: The one stratum of a scope whose rounds name none.
_ONE_STRATUM = ""


def build_log(
    table: pl.DataFrame,
    roster: pl.DataFrame | None,
    k: int | None,
    sums_within: float,
    *,
    problems: Problems,
    places: Places,
    metric: str,
    notes: Mapping[str, int] | None = None,
) -> ForeignLog:
    """Check rows against each other and bring them to one form.

    Parameters
    ----------
    table
        ``round_id``, ``memory_id``, ``assigned``, ``propensity``, ``outcome`` and perhaps ``scope``, ``stratum``,
        ``group``, ``episode_id``, ``eligible``, ``k``.
    roster
        ``memory_id`` and perhaps ``scope``, ``stratum``, ``propensity``.
    k, sums_within
        As :func:`cmp.from_frame` has them.
    problems, places, metric, notes
        Where to put what is wrong, how to name rows, the outcome's name, and what was counted in reading.
    """
    table = _with_defaults(table).with_row_index("row")
    if not table.height:
        problems.add("there are no rows")
        problems.raise_any()
    check_scopes(table["scope"], problems)
    check_rounds(table, problems, places)
    check_propensities(table, problems, places)
    check_counts(table, problems, places)
    problems.raise_any()
    table = table.with_columns(pl.col("propensity").clip(upper_bound=1.0))
    if roster is None:
        _check_controls(table, problems)
        check_sums(table, k, sums_within, problems, places)
    else:
        roster = _complete_roster(_with_defaults(roster), table, k, problems, places)
        check_roster(table, roster, problems, places)
        _check_roster_sums(table, roster, k, sums_within, problems=problems, places=places)
    problems.raise_any()
    return _form(table, roster, metric, dict(notes or {}))


def _with_defaults(table: pl.DataFrame) -> pl.DataFrame:
    defaults = {"scope": pl.lit(EVERYTHING.key), "stratum": pl.lit(_ONE_STRATUM), "eligible": pl.lit(True)}
    return table.with_columns(
        **{name: value for name, value in defaults.items() if name not in table.columns}
    )


def _check_controls(table: pl.DataFrame, problems: Problems) -> None:
    """Refuse a log of drawn rows alone: nothing says which other memories might have been drawn."""
    if table["assigned"].all():
        problems.add(
            "every row is assigned, so nothing says which memories might have been drawn and were not: list those rows "
            "too, or pass roster= with each stratum's memories (their mere number does not say which they are)"
        )


def _complete_roster(
    roster: pl.DataFrame, table: pl.DataFrame, k: int | None, problems: Problems, places: Places
) -> pl.DataFrame:
    """Give the roster its propensities (k over its size where it has none), and check that no round is missing.

    A round without a drawn row has no row at all, so that each must have its k: otherwise rounds that drew few are
    missing, and with them controls.
    """
    home = ["scope", "stratum"]
    rounds = table.group_by("round_id").agg(
        pl.col(*home).first(),
        pl.col("assigned").sum().cast(pl.Float64).alias("drawn"),
        pl.col("row").min(),
        (pl.col("k").first() if "k" in table.columns else pl.lit(k, pl.Float64)).alias("k"),
    )
    counts = rounds.group_by(home).agg(pl.col("k").min(), pl.col("drawn").max().alias("most"))
    counts = counts.with_columns(pl.col("k").fill_null(pl.col("most")))
    torn = rounds.drop("k").join(counts, on=home).filter(pl.col("drawn") != pl.col("k"))
    if torn.height:
        row = torn.sort("row").row(0, named=True)
        problems.add(
            f"{torn.height} rounds do not have the same number of rows drawn as their stratum's others (round "
            f"{row['round_id']!r}: {row['drawn']:g}, k = {row['k']:g}; {places.of(torn['row'])}); with a roster each "
            "round of a stratum draws k, or rounds that drew none would be missing: list all rows, drawn or not"
        )
    if "propensity" in roster.columns:
        return roster.select(*home, "memory_id", "propensity")
    sized = roster.join(counts.select(*home, "k"), on=home, how="inner")
    return sized.select(*home, "memory_id", (pl.col("k") / pl.len().over(home)).alias("propensity"))


def _check_roster_sums(
    table: pl.DataFrame,
    roster: pl.DataFrame,
    k: int | None,
    within: float,
    *,
    problems: Problems,
    places: Places,
) -> None:
    bad = roster.filter(~pl.col("propensity").is_between(0.0, 1.0 + 1e-9).fill_null(False))
    if bad.height:
        row = bad.row(0, named=True)
        problems.add(
            f"{bad.height} propensities of the roster are no probabilities (memory {row['memory_id']!r}: "
            f"{row['propensity']}); give the probability that the memory is drawn in a round of the stratum",
            PositivityError,
        )
        return
    home = ["scope", "stratum"]
    whole = roster.group_by(home).agg(pl.col("propensity").sum())
    first = table.group_by("round_id").agg(
        pl.col(*home).first(), pl.col("row").min(), pl.col("assigned").sum().cast(pl.Int64).alias("drawn"),
        *([pl.col("k").first()] if "k" in table.columns else []),
    )  # fmt: skip
    # one row a round: its roster's sum against what was drawn
    lines = first.join(whole, on=home, how="left").rename({"drawn": "assigned"})
    lines = lines.with_columns(pl.col("propensity").fill_null(0.0))
    if k is None and "k" not in lines.columns:
        lines = lines.with_columns(k=pl.col("assigned").cast(pl.Float64))
    check_sums(lines, k, within, problems, places)


def _form(table: pl.DataFrame, roster: pl.DataFrame | None, metric: str, notes: dict[str, int]) -> ForeignLog:
    of_round = [
        name for name in ("scope", "stratum", "group", "episode_id", "outcome") if name in table.columns
    ]
    per_round = table.select("round_id", *of_round).unique("round_id").sort("scope", "stratum", "round_id")
    ids = table["memory_id"] if roster is None else pl.concat([table["memory_id"], roster["memory_id"]])
    memories = ids.unique().sort()
    codes = pl.DataFrame({"memory_id": memories}).with_row_index("memory")
    rounds = per_round.select("round_id").with_row_index("round")
    per_memory = (
        table.join(rounds, on="round_id")
        .join(codes, on="memory_id")
        .select("round", "memory", "assigned", "propensity", "eligible")
    )
    certain = pl.col("propensity").is_in([0.0, 1.0]) & pl.col("eligible")
    notes["rows at propensity 0 or 1"] = int(per_memory.select(certain.sum()).item())
    notes["rows in the context anyway"] = int((~per_memory["eligible"]).sum())
    if roster is not None:
        roster = (
            roster.with_columns(pl.col("propensity").clip(upper_bound=1.0))
            .join(codes, on="memory_id")
            .select("scope", "stratum", "memory", "propensity")
            .sort("scope", "stratum", "memory")
        )
    return ForeignLog(per_round, per_memory, memories, roster, metric, notes)
