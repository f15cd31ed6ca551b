"""Rounds of an episode after a memory was shown in it: out of its contrast, if what it did then may carry over."""

from __future__ import annotations

import polars as pl

from cmp.estimation.settled import LogFrames

__all__ = ["CARRYOVER", "episodes_in_order", "rounds_after_exposure"]

CARRYOVER = ("include", "exclude")

_EPISODE = ["scope", "episode_id"]


def episodes_in_order(log: LogFrames) -> pl.DataFrame:
    """Return ``round_id, scope, episode_id, turn, earlier`` of the rounds that are of an episode.

    ``turn`` is the round's place in its episode, from 0, in the order asked; where a log does not say when, by creation
    of the block and row, without the rounds that were not randomized. ``earlier`` is how many earlier rounds of the
    episode drew from the same block. A memory that none of these drew is drawn in the round with probability
    ``planned / (length - earlier)``, the same for all such rounds of the block: that is what makes rounds of one
    block and one ``earlier`` comparable, where all rounds of the block are not. Under the uniform design rounds are
    drawn independently, the chance stays what it is, and ``earlier`` is 0.
    """
    rounds, blocks = log.rounds().collect(), log.blocks().collect()
    if "design" not in blocks.columns:
        blocks = blocks.with_columns(design=pl.lit("balanced"))
    order = [name for name in ("created_at", "block_id") if name in blocks.columns]
    blocks = blocks.sort(order).select("block_id", "design").with_row_index("nth")
    placed = rounds.filter(pl.col("episode_id").is_not_null()).join(blocks, on="block_id", how="left")
    when = ["asked_at"] if "asked_at" in rounds.columns else []
    if not when:
        placed = placed.filter("randomized")
    placed = placed.sort(*when, "nth", "block_row", "round_id")
    own = pl.when("randomized").then("block_id")
    nth_of_block = pl.int_range(pl.len()).over(*_EPISODE, own)
    return placed.select(
        "round_id",
        *_EPISODE,
        turn=pl.int_range(pl.len()).over(_EPISODE),
        earlier=pl.when(pl.col("design") == "uniform").then(0).otherwise(nth_of_block),
    )


def rounds_after_exposure(log: LogFrames, turns: pl.DataFrame) -> pl.DataFrame:
    """Return ``round_id, memory_id`` of rounds of an episode after the first in which the memory was ranked or drawn.

    Parameters
    ----------
    log
        The log.
    turns
        From :func:`episodes_in_order`.
    """
    ranked = pl.col("arm") == "ranked"
    drawn = pl.col("arm").is_in(["random", "card"]) & pl.col("assigned")
    shown = log.exposures().filter(ranked | drawn).select("round_id", "memory_id").collect()
    first = (
        shown.join(turns.select("round_id", *_EPISODE, "turn"), on="round_id")
        .group_by(*_EPISODE, "memory_id")
        .agg(first=pl.col("turn").min())
    )
    later = first.join(turns.select("round_id", *_EPISODE, "turn"), on=_EPISODE)
    return later.filter(pl.col("turn") > pl.col("first")).select("round_id", "memory_id")
