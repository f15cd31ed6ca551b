"""Which rounds may stand for one another where a reference card is the control: those with as many other cards."""

from __future__ import annotations

import narwhals.stable.v2 as nw
import polars as pl

from cmp.design.cards import CARD_PREFIX
from cmp.estimation.settled import LogFrames, collected

__all__ = ["with_cards"]


def with_cards(
    log: LogFrames, rounds: pl.DataFrame, blocks: pl.DataFrame, members: pl.DataFrame, strata: list[str]
) -> pl.DataFrame:
    """Add ``cards`` to rounds: how many reference cards were drawn, or -1 in a stratum that is a whole table.

    A table is whole in a stratum if all of its rounds are there with an outcome, everybody was sure to be drawn and
    eligible throughout, and nobody left. What was drawn beside a memory then does not depend on whether a card was
    drawn at all, as that is certain, and all are compared over the same rounds. Draws of a design without a table are
    whole in no stratum, but for those in which each was drawn as often as it was to be on average: these are like a
    table.

    Parameters
    ----------
    log, rounds
        A log, and its rounds: ``round_id``, ``y`` and ``strata``.
    blocks
        ``block_id, length``.
    members
        ``block_id, memory_id, planned, removed_row``.
    strata
        Columns of rounds that name a stratum.
    """
    exposures = nw.from_native(log.exposures())
    of_chance = nw.col("assigned") & nw.col("arm").is_in(["random", "card"])
    rows = exposures.select("round_id", "memory_id", of_chance.alias("drawn")).unique()
    named: pl.DataFrame = collected(rows).to_native()
    placed = named.join(rounds.select("round_id", "block_id"), on="round_id")
    is_card = pl.col("memory_id").cast(pl.String).str.starts_with(CARD_PREFIX)
    shown = placed.filter(is_card & pl.col("drawn")).group_by("round_id").agg(cards=pl.len().cast(pl.Int64))
    tally = placed.group_by("block_id", "memory_id").agg(
        times=pl.col("drawn").sum().cast(pl.Int64), is_barred=~pl.col("drawn").all()
    )
    as_planned = (pl.col("planned") > 0) & (pl.col("times").fill_null(0) <= pl.col("planned"))
    stayed = pl.col("removed_row").is_null() & ~pl.col("is_barred").fill_null(value=False)
    tables = (
        members.join(tally, on=["block_id", "memory_id"], how="left")
        .group_by("block_id")
        .agg(is_whole=(as_planned & stayed).all())
        .join(blocks.select("block_id", "length"), on="block_id")
    )
    told = rounds.join(shown, on="round_id", how="left", maintain_order="left").join(
        tables, on="block_id", how="left", maintain_order="left"
    )
    whole = pl.col("is_whole") & (pl.col("y").count().over(strata) == pl.col("length"))
    cards = pl.when(whole).then(pl.lit(-1, pl.Int64)).otherwise(pl.col("cards").fill_null(0))
    return told.with_columns(cards=cards).drop("is_whole", "length")
