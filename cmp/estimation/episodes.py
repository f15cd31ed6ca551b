"""Episodes: rounds that share one outcome, and whose contrasts they enter more than once."""

from __future__ import annotations

import polars as pl

__all__ = ["memories_with_shared_outcomes"]


def memories_with_shared_outcomes(
    rounds: pl.DataFrame, rosters: pl.DataFrame, barred: pl.DataFrame, key: list[str]
) -> pl.DataFrame:
    """Return the keys of memories that have two eligible rounds of one episode in their contrast.

    Parameters
    ----------
    rounds
        Randomized rounds: ``round_id``, ``scope``, ``block_id``, ``block_row``, ``episode_id``, ``y`` and, by query,
        ``group``.
    rosters
        ``block_id``, ``memory_id``, ``planned``, ``length``, ``removed_row``.
    barred
        ``round_id``, ``memory_id`` of rounds in which a memory was not eligible.
    key
        ``scope``, perhaps ``group``, ``memory_id``.
    """
    family = key[:-1]
    known = rounds.filter(pl.col("episode_id").is_not_null() & pl.col("y").is_not_null())
    shared = known.filter(pl.len().over(*family, "episode_id") > 1)
    drawn_by_chance = rosters.filter((pl.col("planned") > 0) & (pl.col("planned") < pl.col("length")))
    # a stratum with an episode of two rounds decides for all that were eligible throughout: no need to list rounds
    within = (
        shared.filter(pl.len().over(*family, "block_id", "episode_id") > 1)
        .select(*family, "block_id")
        .unique()
    )
    hindered = (
        barred.join(known.select("round_id", "block_id"), on="round_id")
        .select("block_id", "memory_id")
        .unique()
    )
    throughout = drawn_by_chance.filter(pl.col("removed_row").is_null()).join(
        hindered, on=["block_id", "memory_id"], how="anti"
    )
    sure = throughout.join(within, on="block_id").select(key).unique()
    rest = (
        drawn_by_chance.join(shared.select(*family, "block_id").unique(), on="block_id")
        .join(sure, on=key, how="anti")
        .join(
            shared.select(*family, "block_id", "round_id", "block_row", "episode_id"),
            on=[*family, "block_id"],
        )
        .filter(pl.col("removed_row").is_null() | (pl.col("block_row") < pl.col("removed_row")))
        .join(barred, on=["round_id", "memory_id"], how="anti")
    )
    twice = rest.filter(pl.len().over(*key, "episode_id") > 1).select(key).unique()
    return pl.concat([sure, twice])
