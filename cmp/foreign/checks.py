"""What rows of a randomized log must satisfy together: unique keys, one outcome a round, propensities that add up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import polars as pl

from cmp.errors import CmpError, ConflictingOutcomeError, PositivityError, ScopeError
from cmp.foreign.problems import NAMED_AT_MOST, ForeignLogError, Places, Problems
from cmp.protocols import EVERYTHING, Scope

__all__ = ["check_counts", "check_propensities", "check_roster", "check_rounds", "check_scopes", "check_sums"]

#: How far above 1 a propensity may be by rounding.
_ABOVE_ONE: Final = 1e-9

#: Standard errors between draws and propensities, over all rounds, above which propensities are not the design's:
#: by chance less than once in 5e8 logs.
_FAR: Final = 6.0

_PER_ROUND: Final = {
    "outcome": (
        "outcomes",
        "give the round's one outcome in each of its rows, drawn or not",
        ConflictingOutcomeError,
    ),
    "scope": ("scopes", "randomization never crosses a scope; make round ids unique", ScopeError),
    "stratum": ("strata", "a round is drawn in one stratum; make round ids unique", ForeignLogError),
    "group": ("queries", "a round is one query; make round ids unique", ForeignLogError),
    "episode_id": ("episodes", "a round is of one episode", ForeignLogError),
    "k": ("values of k", "say of every round how many were drawn", ForeignLogError),
}


def check_scopes(scopes: pl.Series, problems: Problems) -> None:
    """Check the distinct scopes as :class:`cmp.Scope` does; ``*`` is the one single-tenant store."""
    for scope in scopes.drop_nulls().unique().sort():
        if scope == EVERYTHING.key:
            continue
        try:
            Scope.of(scope)
        except CmpError as error:
            problems.add(f"scope {scope!r}: {error}", type(error))


def check_rounds(table: pl.DataFrame, problems: Problems, places: Places) -> None:
    """Check that a memory stands once in a round, and that a round has one outcome, scope, stratum, and so on."""
    twice = table.filter(pl.struct("round_id", "memory_id").is_duplicated())
    if twice.height:
        problems.add(
            f"{twice.height} rows share their round and memory with another ({places.of(twice['row'])}; "
            f"round {twice['round_id'][0]!r}, memory {twice['memory_id'][0]!r}): a join that multiplied rows, or a "
            "retry; keep one row per round and memory"
        )
    present = [name for name in _PER_ROUND if name in table.columns]
    spread = table.group_by("round_id").agg(pl.col(name).n_unique() for name in present)
    for name in present:
        what, mend, kind = _PER_ROUND[name]
        torn = spread.filter(pl.col(name) > 1).select("round_id").join(table, on="round_id")
        if not torn.height:
            continue
        first = torn.sort("row")["round_id"][0]
        seen = (
            torn.filter(pl.col("round_id") == first).sort("row")[name].unique(maintain_order=True).to_list()
        )
        rows = torn.filter(pl.col("round_id") == first)["row"]
        problems.add(
            f"{torn['round_id'].n_unique()} rounds have several {what} (round {first!r}: "
            f"{', '.join(repr(value) for value in seen[:3])}; {places.of(rows)}); {mend}",
            kind,
        )


def check_propensities(table: pl.DataFrame, problems: Problems, places: Places) -> None:
    """Check that propensities of eligible rows are probabilities, and possible given who was drawn."""
    pi, drawn = pl.col("propensity"), pl.col("assigned")
    eligible = table.filter("eligible")
    for bad, what in (
        (pi.is_null(), "have no propensity: it is null or NaN,"),
        ((pi < 0) | (pi > 1 + _ABOVE_ONE), "have a propensity outside 0 to 1"),
        (drawn & (pi == 0), "were drawn at propensity 0"),
        (~drawn & (pi >= 1) & (pi <= 1 + _ABOVE_ONE), "were not drawn at propensity 1"),
    ):
        torn = eligible.filter(bad)
        if torn.height:
            row = torn.row(0, named=True)
            problems.add(
                f"{torn.height} rows {what} ({places.of(torn['row'])}; round {row['round_id']!r}, memory "
                f"{row['memory_id']!r}: {row['propensity']}); log the design's probability that the memory is drawn in "
                "that round, known before the outcome",
                PositivityError,
            )


def check_counts(table: pl.DataFrame, problems: Problems, places: Places) -> None:
    """Check that a column of k says of every round how many were drawn: without, its sum is compared with nothing."""
    if "k" not in table.columns:
        return
    k = pl.col("k")
    unsaid = table.filter(k.is_null())
    if unsaid.height:
        problems.add(
            f"{unsaid.height} rows have no k: it is null or NaN ({places.of(unsaid['row'])}; round "
            f"{unsaid['round_id'][0]!r}); say of every round how many were drawn, or leave k out where that is the "
            "rows assigned"
        )
    bad = table.filter((k < 0) | (k != k.floor()))
    if bad.height:
        problems.add(
            f"{bad.height} rows have a k that is no count ({places.of(bad['row'])}; round {bad['round_id'][0]!r}: "
            f"{bad['k'][0]:g}); give the number of memories drawn in the round"
        )


def check_sums(table: pl.DataFrame, k: int | None, within: float, problems: Problems, places: Places) -> None:
    """Check that each round's propensities add up to the number drawn.

    With ``k`` (or a column of it) that is the number; otherwise it is the number of rows that were assigned, where
    that is the same in every round. Where it varies, draws are compared with propensities over all rounds at once.
    """
    rounds = table.group_by("round_id").agg(
        pl.col("propensity").sum().alias("sum"),
        pl.col("assigned").sum().cast(pl.Int64).alias("drawn"),
        pl.len().alias("rows"),
        pl.col("row").min(),
        *([pl.col("k").first()] if "k" in table.columns else []),
    )
    if k is not None:
        rounds = rounds.with_columns(k=pl.lit(k, pl.Float64))
    elif "k" not in rounds.columns and rounds["drawn"].n_unique() == 1:
        rounds = rounds.with_columns(k=pl.col("drawn").cast(pl.Float64))
    if "k" not in rounds.columns:
        for text in _uncalibrated(rounds):
            problems.add(text, PositivityError)
        return
    many = rounds.filter(pl.col("drawn") > pl.col("k")).sort("row")
    if many.height:
        problems.add(
            f"{many.height} rounds have more rows assigned than k (round {many['round_id'][0]!r}: {many['drawn'][0]} "
            f"of {many['k'][0]:g}; {places.of(many['row'])}); a retry that drew again, or two rounds under one id"
        )
    torn = rounds.filter((pl.col("sum") - pl.col("k")).abs() > within * pl.max_horizontal("k", 1.0)).sort(
        "row"
    )
    if torn.height:
        named = ", ".join(
            f"{row['round_id']!r}: {row['sum']:.6g}" for row in torn.head(NAMED_AT_MOST).to_dicts()
        )
        problems.add(
            f"the propensities of {torn.height} of {rounds.height} rounds do not add up to the k = {torn['k'][0]:g} "
            f"memories drawn ({named}; from {places.of(torn['row'])}). {_likely(torn)}",
            PositivityError,
        )


def _likely(torn: pl.DataFrame) -> str:
    """Say what such sums mostly come from."""
    ones = ((torn["sum"] - 1.0).abs() < 1e-6).all()
    if ones and (torn["k"] > 1).all():
        return (
            "They add up to 1: these are probabilities of one slot; log the probability that the memory is in any of "
            "the k slots"
        )
    return (
        "List every memory that might have been drawn, drawn or not, with the probability that it is drawn at all; "
        "rows of memories in the context anyway may be listed with eligible=False; rounded propensities need "
        "sums_within="
    )


def _uncalibrated(rounds: pl.DataFrame) -> Iterator[str]:
    gap = rounds["drawn"] - rounds["sum"]
    spread = float((gap * gap).sum()) ** 0.5
    total = float(gap.sum())
    if spread > 0 and abs(total) > _FAR * spread:
        yield (
            f"{int(rounds['drawn'].sum())} rows were assigned where propensities add up to {rounds['sum'].sum():.6g}, "
            f"over {rounds.height} rounds: propensities are not the design's. Log the probability that the memory is "
            "drawn in any slot, and list the rows of those not drawn"
        )


def check_roster(table: pl.DataFrame, roster: pl.DataFrame, problems: Problems, places: Places) -> None:
    """Check that what was drawn stood in its stratum's roster, at the propensity its row says."""
    key = ["scope", "stratum", "memory_id"]
    twice = roster.filter(pl.struct(key).is_duplicated())
    if twice.height:
        problems.add(
            f"{twice.height} rows of the roster repeat a memory of a stratum ({twice['memory_id'][0]!r}); list it once"
        )
        return
    rows = table.join(roster.select(*key, there=pl.col("propensity")), on=key, how="left")
    stray = rows.filter(pl.col("there").is_null() & pl.col("eligible"))
    if stray.height:
        problems.add(
            f"{stray.height} rows are of memories outside their stratum's roster ({places.of(stray['row'])}; memory "
            f"{stray['memory_id'][0]!r}, stratum {stray['stratum'][0]!r}); the roster lists whatever might have been "
            "drawn",
            PositivityError,
        )
    other = rows.filter(pl.col("eligible") & ((pl.col("there") - pl.col("propensity")).abs() > _ABOVE_ONE))
    if other.height:
        row = other.row(0, named=True)
        problems.add(
            f"{other.height} rows have another propensity than the roster ({places.of(other['row'])}; memory "
            f"{row['memory_id']!r}: {row['propensity']:g}, in the roster {row['there']:g}); where propensities differ "
            "from round to round, list the rows of those not drawn too",
            PositivityError,
        )
