"""What befell memories in a log's rounds: drawn, ranked, withheld."""

from __future__ import annotations

from dataclasses import dataclass, replace

import narwhals.stable.v2 as nw
import numpy as np
import polars as pl

from cmp.estimation.cells import BoolArray
from cmp.estimation.consistency import check_drawn
from cmp.estimation.log_codes import CodedLog, integers
from cmp.estimation.settled import LogFrames, collected
from cmp.estimation.spans import Windows
from cmp.estimation.sums import FloatArray, IntArray

__all__ = ["Events", "Withholdings", "events_of", "withholdings_of"]


@dataclass(frozen=True, slots=True)
class Events:
    """One entry a round and member of its block's roster that was drawn in it or barred, E in all."""

    round: IntArray
    member: IntArray
    """Rows of rosters."""
    drawn: BoolArray
    """Whether it was drawn and eligible."""
    ranked: BoolArray
    """Whether it was ranked, so that chance had no say."""
    windows: Windows
    """Where members are eligible at all; entries are of rounds within."""

    def select(self, entries: IntArray | slice) -> Events:
        """Return some of the entries."""
        return replace(
            self,
            round=self.round[entries],
            member=self.member[entries],
            drawn=self.drawn[entries],
            ranked=self.ranked[entries],
        )


@dataclass(frozen=True, slots=True)
class Withholdings:
    """One entry a round and ranked memory that chance kept or withheld, W in all."""

    round: IntArray
    memory: IntArray
    kept: FloatArray
    """Probability of being kept."""
    away: BoolArray


def events_of(log: LogFrames, coded: CodedLog, bars: pl.DataFrame) -> Events:
    """Read who was drawn, and who was barred: ranked, withheld, or one of ``bars``.

    A memory that was ranked as well as drawn is barred. From the row on in which a memory was removed, its rounds have
    no entry, whatever they say: they are not listed, but taken off as one run of rows.

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
    is_ranked = nw.col("arm").is_in(["ranked", "withheld"])
    rows = (
        nw.from_native(log.exposures())
        .filter(((is_random | is_card) & nw.col("assigned")) | is_ranked)
        .select("round_id", "memory_id", is_ranked.alias("ranked"))
    )
    if not getattr(log, "has_unique_rows", False):
        rows = rows.group_by("round_id", "memory_id").agg(nw.col("ranked").max())
    named: pl.DataFrame = collected(rows).to_native()
    barred_by = "ranked"
    if bars.height:
        barred_by = "barred"
        also = bars.select("round_id", "memory_id", ranked=pl.lit(False), barred=pl.lit(True))
        named = pl.concat([named.with_columns(barred="ranked"), also])
        named = named.group_by("round_id", "memory_id").agg(pl.col("ranked", "barred").max())
    codes = coded.codes_of(named)
    if codes["round"].null_count():  # rounds that were not randomized
        named, codes = (frame.filter(codes["round"].is_not_null()) for frame in (named, codes))
    rounds, memory = integers(codes["round"]), integers(codes["memory"].cast(pl.Int64).fill_null(-1))
    barred, ranked = codes[barred_by].to_numpy(), codes["ranked"].to_numpy()
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
    return Events(rounds[use], member[use], ~barred[use], ranked[use], _windows_of(log, coded))


def _windows_of(log: LogFrames, coded: CodedLog) -> Windows:
    named: pl.DataFrame | None = getattr(log, "windows", None)
    return Windows.none() if named is None else Windows.of(named, coded)


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
