"""What befell memories in a log's rounds: drawn, ranked, withheld, removed."""

from __future__ import annotations

from dataclasses import dataclass

import narwhals.stable.v2 as nw
import numpy as np
import polars as pl

from cmp.estimation.cells import BoolArray
from cmp.estimation.consistency import check_drawn
from cmp.estimation.log_codes import CodedLog, integers
from cmp.estimation.settled import LogFrames, collected
from cmp.estimation.sums import FloatArray, IntArray, ranges

__all__ = ["Events", "Withholdings", "events_of", "withholdings_of"]


@dataclass(frozen=True, slots=True)
class Events:
    """One entry a round and member of its block's roster that was drawn in it or is not eligible, E in all."""

    round: IntArray
    member: IntArray
    """Rows of rosters."""
    drawn: BoolArray
    """Whether it was drawn and eligible."""
    ranked: BoolArray
    """Whether it was ranked, so that chance had no say."""
    gone: BoolArray
    """Whether it had been removed."""


@dataclass(frozen=True, slots=True)
class Withholdings:
    """One entry a round and ranked memory that chance kept or withheld, W in all."""

    round: IntArray
    memory: IntArray
    kept: FloatArray
    """Probability of being kept."""
    away: BoolArray


def events_of(log: LogFrames, coded: CodedLog, bars: pl.DataFrame) -> Events:
    """Read who was drawn, and who was barred: ranked, withheld, elsewhere, or one of ``bars``.

    A memory that was ranked as well as drawn is barred. From the row on in which a memory was removed, its rounds are
    ``gone``, whatever else they say.

    Parameters
    ----------
    log, coded
        What to read, and its codes.
    bars
        ``round_id, memory_id`` of further rounds in which a memory is not eligible.

    Raises
    ------
    PositivityError
        For draws of what has no exposure planned, or from outside a roster.
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
    named: pl.DataFrame = collected(rows).to_native()
    if bars.height:
        also = bars.select("round_id", "memory_id", barred=pl.lit(True), ranked=pl.lit(False))
        named = (
            pl.concat([named, also]).group_by("round_id", "memory_id").agg(pl.col("barred", "ranked").max())
        )
    codes = coded.codes_of(named)
    if codes["round"].null_count():  # rounds that were not randomized
        named, codes = (frame.filter(codes["round"].is_not_null()) for frame in (named, codes))
    rounds, memory = integers(codes["round"]), integers(codes["memory"].cast(pl.Int64).fill_null(-1))
    barred, ranked = codes["barred"].to_numpy(), codes["ranked"].to_numpy()
    member, listed = coded.members(coded.block[coded.stratum[rounds]], memory)
    here = ~listed
    removed = coded.removed[member[listed]]
    here[listed] = np.isinf(removed) | (coded.block_row[rounds[listed]] < removed)
    chosen = here & ~barred
    if len(coded.planned):
        chosen &= ~listed | (coded.planned[member] <= 0)
    if chosen.any():
        of_round = coded.rounds.select("block_id")[rounds[chosen]]
        check_drawn(named.select("round_id", "memory_id").filter(chosen).hstack(of_round))
    use = here & listed
    gone_round, gone_member = _after_removal(coded)
    is_gone = np.arange(int(use.sum()) + len(gone_round)) >= int(use.sum())
    nothing = np.zeros(len(gone_round), dtype=bool)
    return Events(
        np.append(rounds[use], gone_round),
        np.append(member[use], gone_member),
        np.append(~barred[use], nothing),
        np.append(ranked[use], nothing),
        is_gone,
    )


def _after_removal(coded: CodedLog) -> tuple[IntArray, IntArray]:
    """List the rounds at or after a member's removal from its block; those of an unknown row among them."""
    removed = np.flatnonzero(np.isfinite(coded.removed))
    block = coded.block[coded.stratum]
    order = np.lexsort((coded.block_row, block))  # NaN is last
    ends = np.searchsorted(block[order], coded.block_of_member[removed], side="right")
    begins = np.searchsorted(block[order], coded.block_of_member[removed])
    n = np.array(
        [
            np.count_nonzero(~(coded.block_row[order[start:end]] < row))
            for start, end, row in zip(begins, ends, coded.removed[removed], strict=True)
        ],
        dtype=np.int64,
    )
    return order[ranges(ends - n, n)], np.repeat(removed, n)


def withholdings_of(log: LogFrames, coded: CodedLog, bars: pl.DataFrame) -> Withholdings:
    """Read which ranked memories chance kept or withheld, leaving out ``bars`` (``round_id, memory_id``)."""
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
    if not getattr(log, "has_unique_rows", False):
        rows = rows.unique()
    named: pl.DataFrame = collected(rows).to_native()
    if bars.height:
        named = named.join(bars, on=["round_id", "memory_id"], how="anti")
    found = coded.codes_of(named).drop_nulls(["round", "memory"])
    return Withholdings(
        integers(found["round"]),
        integers(found["memory"]),
        found["kept"].to_numpy(),
        found["away"].to_numpy(),
    )
