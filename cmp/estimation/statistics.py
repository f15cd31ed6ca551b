"""Additive statistics per (memory, stratum) from a log's frames: written once, in narwhals.

Everything here is a join or a group-by. Control arms are never enumerated: a memory's control sums are its
block's totals less the rounds in which it was ranked or drawn. Outcomes are split into limbs first (see
:mod:`cmp.estimation.sums`), so that those subtractions are exact and no engine or row order shows in the
result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import narwhals.stable.v2 as nw
import numpy as np
import polars as pl

from cmp.estimation.cells import (
    Arm,
    BoolArray,
    Cells,
    Outcomes,
    Tallies,
    describe_outcomes,
)
from cmp.estimation.consistency import check_blocks, check_certain, check_drawn
from cmp.estimation.episodes import memories_with_shared_outcomes
from cmp.estimation.settled import LogFrames, settled_rounds
from cmp.estimation.sums import FloatArray, IntArray, group_sums, limb_quanta

__all__ = ["LogStatistics", "statistics_of_log"]


@dataclass(frozen=True, slots=True)
class LogStatistics:
    """What the table of utilities is made from; M rows of ``keys``, C cells."""

    keys: pl.DataFrame
    """``scope``, ``group`` (by query), ``memory_id``; sorted."""
    cells: Cells
    tallies: Tallies
    outcomes: Outcomes
    """One a memory: those of its family."""
    extremes: tuple[float, float] | None
    """Least and greatest outcome of randomized rounds; None without any."""
    family: IntArray
    """Shape (M,), one code a scope, or a scope and group."""
    clustered: BoolArray
    """Shape (M,), whether two of the memory's own rounds share an episode, hence an outcome."""
    content_changed: BoolArray
    """Shape (M,)."""
    stratum: IntArray
    """Shape (C,), a code of each cell's stratum."""
    n_roster: FloatArray
    """Shape (C,), memories and cards of the stratum's roster."""
    withholding: Cells
    """Rounds in which a ranked memory was kept against those in which it was withheld: strata of their own."""


#: What is summed over rounds: how many, how many with an outcome, and the limbs.
_COUNTS = ("rounds", "known")

#: Least binary exponent of a scope's unit: below it limbs would be subnormal.
_LEAST_EXPONENT = -900

#: Cells built at once: some hundred bytes each.
_PORTION = 1_000_000


def statistics_of_log(log: LogFrames, *, metric: str, by_query: bool, condense: bool = True) -> LogStatistics:
    """Sum a log up to one row per memory and stratum (block, or block and query).

    Parameters
    ----------
    log, metric, by_query
        What to sum.
    condense
        Whether a memory's strata without an exposure become one cell: they hold no contrast, and there may be many.

    Raises
    ------
    ValueError
        For a ``round_id`` that is not unique, a randomized round without a block or of an unknown one, (by query)
        one that has neither a group nor a query hash, or a metric that the log does not hold.
    PositivityError
        For planned counts that make no probability, or draws from outside the roster.
    ScopeError
        For a round of another scope than its block's.
    ConflictingOutcomeError
        Where the last revision of an outcome has two values.
    """
    strata = ["block_id", *(["group"] if by_query else [])]
    rounds, sums = _with_limbs(settled_rounds(log, metric=metric, by_query=by_query), strata)
    key = ["scope", *(["group"] if by_query else []), "memory_id"]
    totals = rounds.group_by(strata).agg(*(nw.col(name).sum() for name in sums), nw.col("offset").max())
    blocks = nw.from_native(log.blocks()).select("block_id", "scope", "length").collect()
    rosters = (
        nw.from_native(log.rosters()).select("block_id", "memory_id", "planned", "removed_row").collect()
    )
    check_blocks(rounds, blocks, rosters)
    totals = blocks.join(totals, on="block_id", how="inner" if by_query else "left")
    withheld = _withholding(log, rounds, strata, sums)
    rows = _events(log, rounds, rosters, strata, sums)
    events = _sums_of_events(rows, strata, sums)
    parts = []
    for cells in _portions(totals, rosters, strata):
        whole = _totals_before_removal(cells, rounds, strata, sums)
        joined = whole.join(events, on=[*strata, "memory_id"], how="left")
        parts.append(_condensed(joined, key, condense=condense))
    kept = withheld.join(totals.select(*strata, "scope", "offset"), on=strata, how="inner").to_native()
    changed = _changed_content(log, rounds, key)
    # kept and withheld rounds are barred from the draw's contrast, and are one of their own
    barred = rows.filter(nw.col("barred") & (len(withheld) == 0)).select("round_id", "memory_id")
    shared = memories_with_shared_outcomes(
        rounds.to_native(),
        rosters.join(blocks.select("block_id", "length"), on="block_id", how="inner").to_native(),
        barred.to_native(),
        key,
    )
    return _assemble(pl.concat(parts), key, sums, rounds.to_native(), changed, shared, kept)


def _portions(
    totals: nw.DataFrame[Any], rosters: nw.DataFrame[Any], strata: Sequence[str]
) -> Iterator[nw.DataFrame[Any]]:
    """Yield the cells, every memory of a stratum's roster, some strata at a time.

    By query, a block that many questions share has as many cells as questions times memories: most hold no
    exposure, and are condensed before the next portion is built.
    """
    sizes = rosters.group_by("block_id").agg(nw.len().alias("size"))
    totals = totals.join(sizes, on="block_id", how="inner").sort(*reversed(strata))
    ends = np.cumsum(totals["size"].to_numpy()) // _PORTION
    for rows in np.split(np.arange(len(totals)), np.flatnonzero(np.diff(ends)) + 1):
        yield totals[rows.tolist()].join(rosters, on="block_id", how="inner")


def _sums_of_events(
    events: nw.DataFrame[Any], strata: Sequence[str], sums: Sequence[str]
) -> nw.DataFrame[Any]:
    """Return sums per (stratum, memory) of the rounds in which it was drawn, and in which it was barred."""
    both = [
        nw.when(nw.col(kind)).then(nw.col(name)).otherwise(0.0).sum().alias(f"{kind}_{name}")
        for kind in ("drawn", "barred")
        for name in sums
    ]
    ranked = nw.col("ranked").cast(nw.Float64).sum().alias("ranked_rounds")
    return events.group_by([*strata, "memory_id"]).agg(*both, ranked)


def _condensed(cells: nw.DataFrame[Any], key: list[str], *, condense: bool) -> pl.DataFrame:
    """Add up, for each memory, the strata without an exposure: they have counts and no contrast."""
    native: pl.DataFrame = cells.to_native()
    seen = pl.col("known").fill_null(0.0) - pl.col("barred_known").fill_null(0.0) > 0
    native = native.with_columns(pl.when(seen).then(1.0).otherwise(0.0).alias("strata"))
    if not condense:
        return native
    idle = pl.col("drawn_rounds").fill_null(0.0) == 0
    odds = [(pl.col("planned") <= 0).alias("never"), (pl.col("planned") >= pl.col("length")).alias("always")]
    same = ("planned", "length", "offset", "block_id", "removed_row", "size")
    rest = (
        native.filter(idle)
        .group_by([*key, *odds])
        .agg(
            *(pl.col(name).min() for name in native.columns if name in same),
            *(pl.col(name).sum() for name in native.columns if name not in (*same, *key)),
        )
    )
    return pl.concat([native.filter(~idle), rest.select(native.columns)])


def _with_limbs(rounds: nw.DataFrame[Any], strata: Sequence[str]) -> tuple[nw.DataFrame[Any], list[str]]:
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
        unit = np.ldexp(1.0, np.maximum(np.frexp(top)[1], _LEAST_EXPONENT))
        rounds = rounds.with_columns(nw.new_series("unit", unit, backend="polars"))
        rest = nw.col(name) / nw.col("unit")
        for place, quantum in enumerate(quanta):
            limb = (rest / quantum).round() * quantum
            rounds = rounds.with_columns((limb * nw.col("unit")).alias(f"{name}_{place}"))
            rest = rest - limb
            sums.append(f"{name}_{place}")
    return rounds.drop("unit", strict=False), sums


def _events(
    log: LogFrames,
    rounds: nw.DataFrame[Any],
    rosters: nw.DataFrame[Any],
    strata: Sequence[str],
    sums: Sequence[str],
) -> nw.DataFrame[Any]:
    """Return one row per (round, memory) that was drawn, or barred because it was ranked, withheld or elsewhere.

    A memory that was ranked as well as drawn is barred. Rounds at or after a memory's removal are left out.
    """
    is_random, is_card = nw.col("arm") == "random", nw.col("arm") == "card"
    is_ranked, is_elsewhere = nw.col("arm").is_in(["ranked", "withheld"]), nw.col("arm") == "elsewhere"
    events = (
        nw.from_native(log.exposures())
        .filter(((is_random | is_card) & nw.col("assigned")) | is_ranked | is_elsewhere)
        .group_by("round_id", "memory_id")
        .agg((~is_random & ~is_card).max().alias("barred"), is_ranked.max().alias("ranked"))
        .collect()
        .join(rounds.select("round_id", "block_row", *strata, *sums), on="round_id", how="inner")
    )
    check_drawn(events.filter(~nw.col("barred")), rosters)
    removed = rosters.filter(~nw.col("removed_row").is_null())
    if len(removed):
        events = events.join(
            removed.select("block_id", "memory_id", "removed_row"), on=["block_id", "memory_id"], how="left"
        ).filter(nw.col("removed_row").is_null() | (nw.col("block_row") < nw.col("removed_row")))
    return events.with_columns((~nw.col("barred")).alias("drawn"))


def _withholding(
    log: LogFrames, rounds: nw.DataFrame[Any], strata: Sequence[str], sums: Sequence[str]
) -> nw.DataFrame[Any]:
    """Return sums per (stratum, memory, probability of being kept) of the rounds that kept and withheld it."""
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
        .collect()
        .join(rounds.select("round_id", *strata, *sums), on="round_id", how="inner")
    )
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


def _totals_before_removal(
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


def _assemble(
    cells: pl.DataFrame,
    key: list[str],
    sums: Sequence[str],
    rounds: pl.DataFrame,
    changed: pl.DataFrame,
    shared: pl.DataFrame,
    kept: pl.DataFrame,
) -> LogStatistics:
    cells = cells.sort(*key, "block_id")
    keys = cells.select(key).unique(maintain_order=True)
    rows = cells.select(key).join(keys.with_row_index("row"), on=key, how="left", maintain_order="left")
    memory = rows["row"].cast(pl.Int64).to_numpy()
    everyone, drawn, barred = (_columns(cells, sums, prefix) for prefix in ("", "drawn_", "barred_"))
    one = _columns(cells, ["offset", "strata", "ranked_rounds"], "")
    rest = {name: everyone[name] - drawn[name] - barred[name] for name in sums}
    check_certain(cells, rest["rounds"] > 0)
    pi = (cells["planned"] / cells["length"]).to_numpy()
    chance = (pi > 0.0) & (pi < 1.0)
    certain = np.where(chance, 0.0, everyone["rounds"] - barred["rounds"])
    tallies = (
        group_sums(memory, values, len(keys)).astype(np.int64)
        for values in (one["ranked_rounds"], barred["rounds"], certain, np.where(pi >= 1.0, certain, 0.0))
    )
    families = keys.select(key[:-1])
    family = families.select(pl.struct(pl.all()).rle_id().cast(pl.Int64)).to_series().to_numpy()
    return LogStatistics(
        keys=keys,
        cells=Cells.unweighted(
            memory, one["offset"], pi, _arm(drawn), _arm(rest), strata=one["strata"]
        ).select(chance),
        tallies=Tallies(*tallies),
        outcomes=_describe(rounds, families, family),
        family=family,
        clustered=_is_in(keys, shared, key),
        extremes=_extremes(rounds["y"].drop_nulls().to_numpy()),
        content_changed=_is_in(keys, changed, key),
        stratum=cells.filter(chance)
        .select(pl.struct([name for name in ("block_id", "group") if name in cells.columns]).rank("dense"))
        .to_series()
        .cast(pl.Int64)
        .to_numpy(),
        n_roster=cells.filter(chance)["size"].cast(pl.Float64).to_numpy(),
        withholding=_withholding_cells(kept, keys, key, sums),
    )


def _withholding_cells(kept: pl.DataFrame, keys: pl.DataFrame, key: list[str], sums: Sequence[str]) -> Cells:
    """Return cells whose exposed arm is the rounds that kept a ranked memory, and whose control arm withheld it."""
    placed = kept.join(keys.with_row_index("row"), on=key, how="inner").sort("row", "block_id", "kept")
    return Cells.unweighted(
        placed["row"].cast(pl.Int64).to_numpy(),
        _columns(placed, ["offset"], "")["offset"],
        placed["kept"].to_numpy(),
        _arm(_columns(placed, sums, "drawn_")),
        _arm(_columns(placed, sums, "rest_")),
    )


def _describe(rounds: pl.DataFrame, families: pl.DataFrame, family: IntArray) -> Outcomes:
    """Describe the outcomes of each memory's family; ``families`` and ``family`` have a row a memory."""
    names = families.columns
    codes = families.with_columns(family=pl.Series(family, dtype=pl.Int64)).unique()
    known = rounds.filter(pl.col("y").is_not_null()).join(codes, on=names, how="inner")
    strata = [name for name in ("block_id", "group") if name in known.columns]
    stratum = known.select(pl.struct(strata).rank("dense").cast(pl.Int64) - 1).to_series()
    found = describe_outcomes(
        known["y"].to_numpy(), stratum.to_numpy(), known["family"].to_numpy(), int(family.max(initial=-1)) + 1
    )
    return found.of(family)


def _extremes(y: FloatArray) -> tuple[float, float] | None:
    return (float(y.min()), float(y.max())) if y.size else None


def _columns(cells: pl.DataFrame, names: Sequence[str], prefix: str) -> dict[str, FloatArray]:
    return {name: cells[prefix + name].fill_null(0.0).cast(pl.Float64).to_numpy() for name in names}


def _arm(sums: dict[str, FloatArray]) -> Arm:
    total, squares = (
        np.sum([values for name, values in sums.items() if name.rsplit("_", 1)[0] == of], axis=0)
        for of in ("d", "d2")
    )
    return Arm.unweighted(sums["known"], sums["rounds"] - sums["known"], total, squares)


def _is_in(frame: pl.DataFrame, members: pl.DataFrame, on: list[str]) -> BoolArray:
    marked = members.with_columns(pl.lit(True).alias("found"))
    found = frame.join(marked, on=on, how="left", maintain_order="left")["found"]
    return found.fill_null(False).to_numpy()


def _changed_content(log: LogFrames, rounds: nw.DataFrame[Any], key: list[str]) -> pl.DataFrame:
    delivered = nw.from_native(log.exposures()).filter(
        nw.col("delivered") & ~nw.col("content_hash").is_null()
    )
    versions = (
        delivered.select("round_id", "memory_id", "content_hash")
        .unique()
        .collect()
        .join(rounds.select("round_id", *key[:-1]), on="round_id", how="inner")
        .group_by(key)
        .agg(nw.col("content_hash").n_unique().alias("versions"))
    )
    native: pl.DataFrame = versions.filter(nw.col("versions") > 1).select(key).to_native()
    return native
