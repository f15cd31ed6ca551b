"""Rows and sums that statistics per (memory, stratum) are made of: draws, bars, withholdings, removals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import narwhals.stable.v2 as nw

from cmp.estimation.settled import LogFrames, collected
from cmp.estimation.sums import limb_quanta, unit_of

__all__ = [
    "drawn_or_barred",
    "kept_or_withheld",
    "rounds_after_removal",
    "sums_of_events",
    "sums_of_withholding",
    "totals_before_removal",
    "with_limbs",
]

#: What is summed over rounds: how many, how many with an outcome, and the limbs.
_COUNTS = ("rounds", "known")


def with_limbs(rounds: nw.DataFrame[Any], strata: Sequence[str]) -> tuple[nw.DataFrame[Any], list[str]]:
    """Add counts, the stratum's offset (its least outcome: no row order in it), limbs of d and d squared.

    Limbs are fractions of the scope's largest value, so that what one scope holds never rounds another's.
    """
    rounds = rounds.with_columns(
        nw.lit(1.0).alias("rounds"),
        (~nw.col("y").is_null()).cast(nw.Float64).alias("known"),
        nw.col("y").min().over(*strata).fill_null(0.0).alias("offset"),
    ).with_columns((nw.col("y") - nw.col("offset")).fill_null(0.0).alias("d"))
    rounds = rounds.with_columns((nw.col("d") * nw.col("d")).alias("d2"))
    sums = list(_COUNTS)
    quanta = limb_quanta(1.0, len(rounds))
    for name in ("d", "d2"):
        top = rounds.select(nw.col(name).max().over("scope"))[name].to_numpy()
        unit = unit_of(top)
        rounds = rounds.with_columns(nw.new_series("unit", unit, backend="polars"))
        rest = nw.col(name) / nw.col("unit")
        for place, quantum in enumerate(quanta):
            limb = (rest / quantum).round() * quantum
            rounds = rounds.with_columns((limb * nw.col("unit")).alias(f"{name}_{place}"))
            rest = rest - limb
            sums.append(f"{name}_{place}")
    rounds = rounds.drop("unit", strict=False)
    finer = [name for name in sums if name not in (*_COUNTS, "d_0", "d2_0")]
    nothing = [name for name in finer if not (rounds[name] != 0.0).any()]  # as of outcomes that are 0 or 1
    return rounds.drop(*nothing), [name for name in sums if name not in nothing]


def drawn_or_barred(
    log: LogFrames,
    rounds: nw.DataFrame[Any],
    rosters: nw.DataFrame[Any],
    sums: Sequence[str],
    bars: nw.DataFrame[Any],
) -> nw.DataFrame[Any]:
    """Return one row per (round, memory) that was drawn, or barred: ranked, withheld, elsewhere, or one of ``bars``.

    A memory that was ranked as well as drawn is barred. Rounds at or after a memory's removal are left out.
    """
    is_random, is_card = nw.col("arm") == "random", nw.col("arm") == "card"
    is_ranked, is_elsewhere = nw.col("arm").is_in(["ranked", "withheld"]), nw.col("arm") == "elsewhere"
    rows = (
        nw.from_native(log.exposures())
        .filter(((is_random | is_card) & nw.col("assigned")) | is_ranked | is_elsewhere)
        .select("round_id", "memory_id", (~is_random & ~is_card).alias("barred"), is_ranked.alias("ranked"))
    )
    if not getattr(log, "has_unique_rows", False):
        rows = rows.group_by("round_id", "memory_id").agg(nw.col("barred").max(), nw.col("ranked").max())
    events = collected(rows)
    place = rounds.select("round_id", "code", *sums)
    if len(bars):
        events = _with_bars(events, bars)
    events = events.join(place, on="round_id", how="inner")
    removed = rosters.filter(~nw.col("removed_row").is_null())
    if len(removed):
        where = rounds.select("round_id", "block_id", "block_row")
        events = (
            events.join(where, on="round_id", how="inner")
            .join(
                removed.select("block_id", "memory_id", "removed_row"),
                on=["block_id", "memory_id"],
                how="left",
            )
            .filter(nw.col("removed_row").is_null() | (nw.col("block_row") < nw.col("removed_row")))
        )
    return events.with_columns((~nw.col("barred")).alias("drawn"))


def _with_bars(events: nw.DataFrame[Any], bars: nw.DataFrame[Any]) -> nw.DataFrame[Any]:
    also = bars.select("round_id", "memory_id", barred=nw.lit(True), ranked=nw.lit(False))
    both = nw.concat([events.select(also.columns), also])
    return both.group_by("round_id", "memory_id").agg(nw.col("barred", "ranked").max())


def sums_of_events(
    events: nw.DataFrame[Any], codes: nw.DataFrame[Any], sums: Sequence[str]
) -> nw.DataFrame[Any]:
    """Return sums per (stratum, memory) of the rounds in which it was drawn, and in which it was barred."""
    both = [
        nw.when(nw.col(kind)).then(nw.col(name)).otherwise(0.0).sum().alias(f"{kind}_{name}")
        for kind in ("drawn", "barred")
        for name in sums
    ]
    ranked = nw.col("ranked").cast(nw.Float64).sum().alias("ranked_rounds")
    found = events.group_by("code", "memory_id").agg(*both, ranked)
    return found.join(codes, on="code", how="inner").drop("code")


def kept_or_withheld(
    log: LogFrames, rounds: nw.DataFrame[Any], strata: Sequence[str], sums: Sequence[str]
) -> nw.DataFrame[Any]:
    """Return one row per (round, ranked memory) that chance kept or withheld, with the probability of keeping it."""
    withheld = nw.col("arm") == "withheld"
    kept = (nw.col("arm") == "ranked") & ~nw.col("assigned")
    by_chance = (nw.col("propensity") > 0.0) & (nw.col("propensity") < 1.0)
    rows = (
        nw.from_native(log.exposures())
        .filter((withheld | kept) & by_chance)
        .with_columns(
            nw.when(withheld).then(1.0 - nw.col("propensity")).otherwise(nw.col("propensity")).alias("kept"),
            withheld.alias("away"),
        )
        .select("round_id", "memory_id", "kept", "away")
    )
    return collected(rows).join(rounds.select("round_id", *strata, *sums), on="round_id", how="inner")


def sums_of_withholding(
    rows: nw.DataFrame[Any], strata: Sequence[str], sums: Sequence[str]
) -> nw.DataFrame[Any]:
    """Return sums per (stratum, memory, probability of being kept) of the rounds that kept and withheld it."""
    arms = [
        nw.when(nw.col("away") if away else ~nw.col("away"))
        .then(nw.col(name))
        .otherwise(0.0)
        .sum()
        .alias(f"{prefix}_{name}")
        for prefix, away in (("drawn", False), ("rest", True))
        for name in sums
    ]
    return rows.group_by([*strata, "memory_id", "kept"]).agg(*arms)


def totals_before_removal(
    cells: nw.DataFrame[Any], rounds: nw.DataFrame[Any], strata: Sequence[str], sums: Sequence[str]
) -> nw.DataFrame[Any]:
    """Replace totals of removed memories by those of the rounds before: prefix sums, exact as limbs are."""
    if cells["removed_row"].null_count() == len(cells):
        return cells
    prefix = rounds.select(
        *strata,
        (nw.col("block_row") + 1).alias("upto"),
        *(
            nw.col(name).cum_sum().over(*strata, order_by="block_row").alias(f"before_{name}")
            for name in sums
        ),
    )
    gone = ~nw.col("removed_row").is_null()
    last = (
        cells.filter(gone)
        .select(*strata, "removed_row")
        .unique()
        .join(prefix, on=list(strata), how="inner")
        .filter(nw.col("upto") <= nw.col("removed_row"))
        .group_by(*strata, "removed_row")
        .agg(nw.col("upto").max())
        .join(prefix, on=[*strata, "upto"], how="inner")
        .drop("upto")
    )
    found = cells.filter(gone).join(last, on=[*strata, "removed_row"], how="left")
    found = found.with_columns(*(nw.col(f"before_{name}").fill_null(0.0).alias(name) for name in sums))
    return nw.concat([cells.filter(~gone), found.select(cells.columns)])


def rounds_after_removal(rounds: nw.DataFrame[Any], rosters: nw.DataFrame[Any]) -> nw.DataFrame[Any]:
    """Return ``round_id, memory_id`` of the rounds at or after a memory's removal from the block."""
    removed = rosters.filter(~nw.col("removed_row").is_null())
    return (
        removed.select("block_id", "memory_id", "removed_row")
        .join(rounds.select("round_id", "block_id", "block_row"), on="block_id", how="inner")
        .filter(nw.col("block_row") >= nw.col("removed_row"))
        .select("round_id", "memory_id")
    )
