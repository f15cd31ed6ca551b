"""Additive statistics per (memory, stratum) from a log's frames.

Rows are read and filtered wherever the log is; names are then replaced by codes, and everything is summed by code.
Control arms are never enumerated: a memory's control sums are its block's totals less the rounds in which it was
ranked or drawn. Outcomes are split into limbs first (see :mod:`cmp.estimation.sums`), so that those subtractions are
exact and no engine or row order shows in the result.
"""

from __future__ import annotations

from datetime import timedelta

import narwhals.stable.v2 as nw
import polars as pl

from cmp.estimation.assembly import LogStatistics, assemble
from cmp.estimation.card_strata import with_cards
from cmp.estimation.carryover import episodes_in_order, rounds_after_exposure
from cmp.estimation.log_cells import sum_cells
from cmp.estimation.log_codes import CodedLog, code_log
from cmp.estimation.log_events import events_of, withholdings_of
from cmp.estimation.settled import LogFrames, collected, settled_rounds
from cmp.estimation.terms import Terms

__all__ = ["LogStatistics", "coded_log", "statistics_of_log"]


def statistics_of_log(
    log: LogFrames,
    *,
    metric: str,
    by_query: bool,
    within_query: bool = False,
    condense: bool = True,
    in_both_arms: bool = True,
    window: timedelta | None = None,
    carryover: str = "include",
    is_part: bool = False,
    tell_cards: bool = False,
) -> LogStatistics:
    """Sum a log up to one row per memory and stratum (block, or block and query).

    Parameters
    ----------
    log, metric, by_query
        What to sum.
    within_query
        Whether strata are the rounds of a block that ask one query, though memories are not told apart by query.
    condense
        Whether a memory's strata without an exposure become one cell: they hold no contrast, and there may be many.
    in_both_arms
        Whether strata with one arm only are in no contrast: their episodes count for nothing then.
    window
        How late an outcome may be; None for any.
    carryover
        ``"exclude"`` leaves out a memory's rounds after an exposure in the same episode. Strata are then the
        rounds of a block that come after as many others of their episode: see :mod:`cmp.estimation.carryover`.
    is_part
        Whether another part of the log may hold the metric: then this one may lack it.
    tell_cards
        Whether strata are told apart by how many cards a round drew: see :mod:`cmp.estimation.card_strata`.

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
    coded, bars = coded_log(
        log,
        metric=metric,
        by_query=by_query,
        within_query=within_query,
        window=window,
        carryover=carryover,
        is_part=is_part,
        tell_cards=tell_cards,
    )
    events = events_of(log, coded, bars)
    terms = Terms.of(coded.y, coded.stratum, coded.scope, coded.base)
    cells = sum_cells(coded, events, terms, condense=condense)
    withheld = withholdings_of(log, coded, bars)
    contents = _contents(log, coded.rounds, _key(by_query))
    return assemble(coded, events, withheld, terms, cells, contents, in_both_arms=in_both_arms)


def coded_log(
    log: LogFrames,
    *,
    metric: str,
    by_query: bool,
    within_query: bool = False,
    window: timedelta | None = None,
    carryover: str = "include",
    is_part: bool = False,
    tell_cards: bool = False,
) -> tuple[CodedLog, pl.DataFrame]:
    """Return a log's rounds and rosters, and ``round_id, memory_id`` of rounds barred by what came before.

    Parameters
    ----------
    log, metric, by_query, within_query, window, carryover, is_part, tell_cards
        As for :func:`statistics_of_log`.
    """
    has_queries = by_query or within_query
    strata = [
        *(["group"] if has_queries else []),
        "block_id",
        *(["earlier"] if carryover == "exclude" else []),
    ]
    settled = settled_rounds(
        log, metric=metric, by_query=has_queries, window=window, is_part=is_part
    ).to_native()
    rounds, bars = _with_turns(log, settled, carryover)
    rosters = nw.from_native(log.rosters()).select("block_id", "memory_id", "planned", "removed_row")
    members = collected(rosters).to_native()
    blocks = _blocks_in_time(log)
    if tell_cards:
        rounds = with_cards(log, rounds, blocks, members, strata)
        strata.append("cards")
    return code_log(rounds, blocks, members, strata, _key(by_query)), bars


def _key(by_query: bool) -> list[str]:
    return ["scope", *(["group"] if by_query else []), "memory_id"]


def _with_turns(log: LogFrames, rounds: pl.DataFrame, carryover: str) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Add ``earlier`` to the rounds if what came before is to be excluded; return the rounds barred for that."""
    if carryover == "include":
        return rounds, pl.DataFrame(schema={"round_id": pl.String, "memory_id": pl.String})
    turns = episodes_in_order(log)
    found = rounds.join(turns.select("round_id", "earlier"), on="round_id", how="left", maintain_order="left")
    return found.with_columns(pl.col("earlier").fill_null(0)), rounds_after_exposure(log, turns)


def _blocks_in_time(log: LogFrames) -> pl.DataFrame:
    """Return ``block_id, scope, length`` and ``nth``, the block's place in the order of creation."""
    tables = nw.from_native(log.blocks())
    order = [name for name in ("created_at", "block_id") if name in tables.collect_schema().names()]
    blocks: pl.DataFrame = collected(tables.select(*{*order, "block_id", "scope", "length"})).to_native()
    return blocks.sort(order).select("block_id", "scope", "length", nth=pl.int_range(pl.len()))


def _contents(log: LogFrames, rounds: pl.DataFrame, key: list[str]) -> pl.DataFrame:
    """Return the keys of memories that were delivered with a noted content, the least hash, and whether others."""
    delivered = nw.from_native(log.exposures()).filter(
        nw.col("delivered") & ~nw.col("content_hash").is_null()
    )
    noted: pl.DataFrame = collected(
        delivered.select("round_id", "memory_id", "content_hash").unique()
    ).to_native()
    hashes = pl.col("content_hash")
    return (
        noted.join(rounds.select("round_id", *key[:-1]), on="round_id")
        .group_by(key)
        .agg(content=hashes.min().cast(pl.String), changed=hashes.n_unique() > 1)
    )
