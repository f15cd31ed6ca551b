"""Additive statistics per (memory, stratum) from a log's frames: written once, in narwhals.

Everything here is a join or a group-by. Control arms are never enumerated: a memory's control sums are its
block's totals less the rounds in which it was ranked or drawn. Outcomes are split into limbs first (see
:mod:`cmp.estimation.sums`), so that those subtractions are exact and no engine or row order shows in the
result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import narwhals.stable.v2 as nw
import numpy as np
import polars as pl

from cmp.estimation.assembly import Frames, LogStatistics, assemble
from cmp.estimation.carryover import episodes_in_order, rounds_after_exposure
from cmp.estimation.consistency import check_blocks, check_drawn
from cmp.estimation.draws import (
    drawn_or_barred,
    kept_or_withheld,
    rounds_after_removal,
    sums_of_events,
    sums_of_withholding,
    totals_before_removal,
    with_limbs,
)
from cmp.estimation.episodes import memories_with_shared_outcomes
from cmp.estimation.settled import LogFrames, collected, settled_rounds

__all__ = ["LogStatistics", "statistics_of_log"]

#: Cells built at once: some hundred bytes each.
_PORTION = 1_000_000


def statistics_of_log(
    log: LogFrames,
    *,
    metric: str,
    by_query: bool,
    condense: bool = True,
    window: timedelta | None = None,
    carryover: str = "include",
) -> LogStatistics:
    """Sum a log up to one row per memory and stratum (block, or block and query).

    Parameters
    ----------
    log, metric, by_query
        What to sum.
    condense
        Whether a memory's strata without an exposure become one cell: they hold no contrast, and there may be many.
    window
        How late an outcome may be; None for any.
    carryover
        ``"exclude"`` leaves out a memory's rounds after an exposure in the same episode. Strata are then the
        rounds of a block that come after as many others of their episode: see :mod:`cmp.estimation.carryover`.

    Raises
    ------
    ValueError
        For a ``round_id`` that is not unique, a randomized round without a block or of an unknown one, (by query)
        one that has neither a group nor a query hash, a metric that the log does not hold, or a window for a log
        without times.
    PositivityError
        For planned counts that make no probability, or draws from outside the roster.
    ScopeError
        For a round of another scope than its block's.
    ConflictingOutcomeError
        Where the last revision of an outcome has two values.
    """
    group = ["group"] if by_query else []
    strata = ["block_id", *(["earlier"] if carryover == "exclude" else []), *group]
    key = ["scope", *group, "memory_id"]
    rounds, bars = _with_turns(
        log, settled_rounds(log, metric=metric, by_query=by_query, window=window), carryover
    )
    rounds, sums = with_limbs(rounds, strata)
    rounds, codes = _with_codes(rounds, strata)
    blocks = _blocks_in_time(log)
    rosters = collected(
        nw.from_native(log.rosters()).select("block_id", "memory_id", "planned", "removed_row")
    )
    check_blocks(rounds, blocks, rosters)
    totals = _totals(rounds, blocks, strata, sums)
    withheld = kept_or_withheld(log, rounds, strata, sums).join(
        bars, on=["round_id", "memory_id"], how="anti"
    )
    rows = drawn_or_barred(log, rounds, rosters, sums, bars)
    events = sums_of_events(rows, codes, sums)
    check_drawn(events, rows, rounds, rosters)
    parts = []
    for cells in _portions(totals, rosters, strata):
        whole = totals_before_removal(cells, rounds, strata, sums)
        joined = whole.join(events, on=[*strata, "memory_id"], how="left")
        parts.append(_condensed(joined, key, condense=condense))
    kept = sums_of_withholding(withheld, strata, sums)
    kept = kept.join(totals.select(*strata, "scope", "offset", "nth"), on=strata, how="inner")
    away = rows.select("round_id", "memory_id", "drawn").to_native()
    gone = rounds_after_removal(rounds, rosters).to_native().with_columns(drawn=pl.lit(False))
    # kept and withheld rounds are barred from the draw's contrast, and are one of their own
    barred = rows.filter(nw.col("barred") & (len(withheld) == 0)).select("round_id", "memory_id")
    planned = rosters.join(blocks.select("block_id", "length"), on="block_id", how="inner")
    return assemble(
        Frames(
            key=key,
            strata=strata,
            sums=sums,
            rounds=rounds.to_native(),
            cells=pl.concat(parts),
            events=pl.concat([away, gone]),
            withheld=withheld.to_native(),
            kept=kept.to_native(),
            contents=_contents(log, rounds, key),
            shared=memories_with_shared_outcomes(
                rounds.to_native(), planned.to_native(), barred.to_native(), key
            ),
        )
    )


def _with_turns(
    log: LogFrames, rounds: nw.DataFrame[Any], carryover: str
) -> tuple[nw.DataFrame[Any], nw.DataFrame[Any]]:
    """Add ``earlier`` to the rounds if what came before is to be excluded; return the rounds barred for that."""
    if carryover == "include":
        return rounds, rounds.head(0).select("round_id", memory_id=nw.lit(""))
    turns = episodes_in_order(log)
    bars = nw.from_native(rounds_after_exposure(log, turns))
    found = rounds.join(nw.from_native(turns.select("round_id", "earlier")), on="round_id", how="left")
    return found.with_columns(nw.col("earlier").fill_null(0)), bars


def _totals(
    rounds: nw.DataFrame[Any], blocks: nw.DataFrame[Any], strata: list[str], sums: Sequence[str]
) -> nw.DataFrame[Any]:
    """Return sums over all rounds of each stratum; a block without rounds is one where its blocks are the strata."""
    found = rounds.group_by(strata).agg(*(nw.col(name).sum() for name in sums), nw.col("offset").max())
    totals = blocks.join(found, on="block_id", how="inner" if "group" in strata else "left")
    if "earlier" not in strata:
        return totals
    earlier = nw.col("earlier").fill_null(0)
    return totals.with_columns(earlier, (nw.col("length") - earlier).alias("length"))


def _with_codes(rounds: nw.DataFrame[Any], strata: list[str]) -> tuple[nw.DataFrame[Any], nw.DataFrame[Any]]:
    """Add a short ``code`` of each stratum, which costs less than its names row after row; return the codes too."""
    codes = rounds.select(strata).unique()
    codes = codes.with_columns(nw.new_series("code", np.arange(len(codes)), backend="polars"))
    return rounds.join(codes, on=strata, how="left"), codes


def _blocks_in_time(log: LogFrames) -> nw.DataFrame[Any]:
    """Return ``block_id, scope, length`` and ``nth``, the block's place in the order of creation."""
    tables = nw.from_native(log.blocks())
    order = [name for name in ("created_at", "block_id") if name in tables.collect_schema().names()]
    blocks = collected(tables.select(*{*order, "block_id", "scope", "length"}))
    nth = nw.new_series("nth", np.arange(len(blocks)), backend="polars")
    return blocks.sort(*order).select("block_id", "scope", "length").with_columns(nth)


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


def _condensed(cells: nw.DataFrame[Any], key: list[str], *, condense: bool) -> pl.DataFrame:
    """Add up, for each memory, the strata without an exposure: they have counts and no contrast."""
    native: pl.DataFrame = cells.to_native()
    seen = pl.col("known").fill_null(0.0) - pl.col("barred_known").fill_null(0.0) > 0
    native = native.with_columns(pl.when(seen).then(1.0).otherwise(0.0).alias("strata"))
    if not condense:
        return native
    idle = pl.col("drawn_rounds").fill_null(0.0) == 0
    odds = [(pl.col("planned") <= 0).alias("never"), (pl.col("planned") >= pl.col("length")).alias("always")]
    same = ("planned", "length", "offset", "block_id", "earlier", "nth", "removed_row", "size")
    rest = (
        native.filter(idle)
        .group_by([*key, *odds])
        .agg(
            *(pl.col(name).min() for name in native.columns if name in same),
            *(pl.col(name).sum() for name in native.columns if name not in (*same, *key)),
        )
    )
    return pl.concat([native.filter(~idle), rest.select(native.columns)])


def _contents(log: LogFrames, rounds: nw.DataFrame[Any], key: list[str]) -> pl.DataFrame:
    """Return the keys of memories that were delivered with a noted content, the least hash, and whether others."""
    delivered = nw.from_native(log.exposures()).filter(
        nw.col("delivered") & ~nw.col("content_hash").is_null()
    )
    noted = collected(delivered.select("round_id", "memory_id", "content_hash").unique())
    found: pl.DataFrame = (
        noted.join(rounds.select("round_id", *key[:-1]), on="round_id", how="inner")
        .group_by(key)
        .agg(
            nw.col("content_hash").min().alias("content"), nw.col("content_hash").n_unique().alias("versions")
        )
        .to_native()
    )
    return found.select(*key, pl.col("content").cast(pl.String), changed=pl.col("versions") > 1)
