"""Episodes: rounds that share one outcome, and whose contrasts they enter more than once."""

from __future__ import annotations

import numpy as np
import polars as pl

from cmp.estimation.cells import BoolArray
from cmp.estimation.clusters import Clusters
from cmp.estimation.log_codes import integers
from cmp.estimation.sums import IntArray

__all__ = ["clusters_of_rounds", "memories_with_shared_outcomes"]


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
    if rounds["episode_id"].null_count() == rounds.height:
        return rounds.head(0).select(*family, memory_id=pl.lit(""))
    known = rounds.filter(pl.col("episode_id").is_not_null() & pl.col("y").is_not_null())
    shared = known.filter(pl.len().over(*family, "episode_id") > 1)
    drawn_by_chance = rosters.filter((pl.col("planned") > 0) & (pl.col("planned") < pl.col("length")))
    # a block with more episodes of two rounds than the memory was barred from decides: no need to list its rounds
    within = shared.filter(pl.len().over(*family, "block_id", "episode_id") > 1)
    episodes = within.group_by(*family, "block_id").agg(episodes=pl.col("episode_id").n_unique())
    hindered = (
        barred.join(within.select("round_id", *family, "block_id", "episode_id"), on="round_id")
        .group_by(*family, "block_id", "memory_id")
        .agg(hindered=pl.col("episode_id").n_unique())
    )
    sure = (
        drawn_by_chance.filter(pl.col("removed_row").is_null())
        .join(episodes, on="block_id")
        .join(hindered, on=[*family, "block_id", "memory_id"], how="left")
        .filter(pl.col("hindered").fill_null(0) < pl.col("episodes"))
        .select(key)
        .unique()
    )
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


def clusters_of_rounds(
    rounds: pl.DataFrame,
    cells: pl.DataFrame,
    events: pl.DataFrame,
    withheld: pl.DataFrame,
    shared: BoolArray,
    family: IntArray,
) -> Clusters | None:
    """Count rounds with an outcome by cell and episode; None where no memory has two eligible rounds of an episode.

    Parameters
    ----------
    rounds
        Randomized rounds: ``round_id``, ``block_id``, ``family`` and ``stratum`` (codes; null for a stratum without
        cells), ``episode_id``, ``y``.
    cells
        The cells of draws in their order: ``row``, ``stratum``, ``memory_id``.
    events
        ``round_id``, ``memory_id``, ``drawn``: rounds in which an eligible memory was drawn (True), and in which a
        memory was in no arm.
    withheld
        Rounds that kept or withheld a ranked memory: ``round_id``, ``row``, ``place`` (from 0, a code of their cells,
        which follow those of draws), ``away``.
    shared, family
        Shape (M,): what :func:`memories_with_shared_outcomes` found, and codes of families.
    """
    if not shared.any():
        return None
    known = _known_rounds(rounds, np.unique(family[shared]))
    n_strata = len(cells["stratum"].unique())
    placed = cells.select("stratum", "memory_id").with_row_index("cell")
    drawn = (
        events.join(known.select("round_id", "stratum", "episode"), on="round_id")
        .join(placed, on=["stratum", "memory_id"])
        .select("cell", "stratum", "episode", exposed="drawn", away=pl.lit(True))
    )
    ranked = withheld.join(known.select("round_id", "block", "episode", "y"), on="round_id").select(
        (pl.col("place") + cells.height).cast(pl.UInt32).alias("cell"),
        (pl.col("place").cast(pl.Int64) + n_strata).alias("stratum"),
        "block",
        "episode",
        "y",
        exposed=~pl.col("away"),
        away=~pl.col("away"),
    )
    parts, touched = _counted(known, drawn, ranked)
    own_cells = withheld.select(pl.col("row", "place").cast(pl.Int64)).unique().sort("place")
    memory = integers(pl.concat([cells["row"].cast(pl.Int64), own_cells["row"]]))
    stratum = integers(pl.concat([cells["stratum"], own_cells["place"] + n_strata]))
    return Clusters.of_frames(shared, memory, stratum, parts, touched)


def _known_rounds(rounds: pl.DataFrame, families: IntArray) -> pl.DataFrame:
    """Return families' known rounds with codes of their ``episode`` and ``block``."""
    wanted = pl.Series(families).implode()
    known = rounds.filter(pl.col("y").is_not_null() & pl.col("family").is_in(wanted))
    own = pl.when(pl.col("episode_id").is_null()).then("round_id").alias("own")
    code = pl.struct("family", "episode_id", own).rank("dense").cast(pl.Int64) - 1
    return known.with_columns(episode=code, block=pl.col("block_id").rank("dense").cast(pl.Int64) - 1)


def _counted(
    known: pl.DataFrame, drawn: pl.DataFrame, ranked: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Count rounds by stratum and episode, and by cell and such part."""
    y, columns = pl.col("y"), ["stratum", "block", "episode", "y"]
    parts = (
        pl.concat([known.select(columns).drop_nulls(), ranked.select(columns)])
        .group_by("stratum", "episode")
        .agg(
            rounds=pl.len().cast(pl.Float64),
            block=pl.col("block").first(),
            outcome=pl.when(y.min() == y.max()).then(y.min()).otherwise(float("nan")),
        )
        .sort("stratum", "episode")
        .with_row_index("part")
    )
    touched = (
        pl.concat([drawn, ranked.drop("block", "y")])
        .join(parts, on=["stratum", "episode"])
        .group_by("cell", "part")
        .agg(pl.col("exposed", "away").sum().cast(pl.Float64))
        .sort("cell", "part")
    )
    return parts, touched
