"""Episodes: rounds that share one outcome, and whose contrasts they enter more than once."""

from __future__ import annotations

import numpy as np
import polars as pl

from cmp.estimation.clusters import Clusters
from cmp.estimation.log_codes import integers
from cmp.estimation.overlaps import Items, Runs
from cmp.estimation.sums import matches

__all__ = ["clusters_of_rounds"]

#: What a part is made of, besides its stratum.
_OF_PART = ("block", "episode", "block_row", "y")


def clusters_of_rounds(
    rounds: pl.DataFrame,
    cells: pl.DataFrame,
    events: pl.DataFrame,
    withheld: pl.DataFrame,
    n_memories: int,
    *,
    in_both_arms: bool,
) -> Clusters | None:
    """Count rounds with an outcome by cell and episode; None where no two rounds of a family are of one episode.

    Parameters
    ----------
    rounds
        Randomized rounds: ``round_id``, ``block_id``, ``block_row`` (null where unknown), ``family`` and ``stratum``
        (codes; null for a stratum without cells), ``episode_id``, ``y``.
    cells
        The cells of draws in their order: ``row``, ``stratum``, ``memory_id``, and ``begin`` and ``end``, the rows
        outside of which the memory is in no arm; infinite where nothing bounds them.
    events
        ``round_id``, ``memory_id``, ``drawn``: rounds within these rows in which an eligible memory was drawn (True),
        and in which a memory was in no arm.
    withheld
        Rounds that kept or withheld a ranked memory: ``round_id``, ``row``, ``place`` (from 0, a code of their cells,
        which follow those of draws), ``away``.
    n_memories
        How many rows there are.
    in_both_arms
        Whether strata with one arm only are in no contrast.
    """
    known = _known_rounds(rounds)
    if not known.height:
        return None
    n_strata = len(cells["stratum"].unique())
    placed = cells.select("stratum", "memory_id").with_row_index("cell")
    drawn = (
        events.join(known.select("round_id", "stratum", "episode"), on="round_id")
        .join(placed, on=["stratum", "memory_id"])
        .select("cell", pl.col("stratum").cast(pl.Int64), "episode", exposed="drawn", away=pl.lit(value=True))
    )
    ranked = withheld.join(known.drop("stratum"), on="round_id").select(
        (pl.col("place") + cells.height).cast(pl.UInt32).alias("cell"),
        (pl.col("place").cast(pl.Int64) + n_strata).alias("stratum"),
        *_OF_PART,
        exposed=~pl.col("away"),
        away=~pl.col("away"),
    )
    own_cells = withheld.select(pl.col("row", "place").cast(pl.Int64)).unique().sort("place")
    memory = np.concatenate([integers(cells["row"]), integers(own_cells["row"])])
    stratum = np.concatenate([integers(cells["stratum"]), integers(own_cells["place"]) + n_strata])
    beyond = np.full(own_cells.height, np.inf)
    begin, end = (np.append(cells[name].to_numpy(), of) for name, of in (("begin", -beyond), ("end", beyond)))
    runs = Runs(stratum, begin, end)
    parts = _parts(known, ranked)
    touched = [drawn, ranked.select(drawn.columns), _rounds_beyond(known, parts, runs)]
    listed = _counted(parts, pl.concat(touched))
    return Clusters.of_frames(n_memories, memory, runs, parts, listed, in_both_arms=in_both_arms)


def _known_rounds(rounds: pl.DataFrame) -> pl.DataFrame:
    """Return the known rounds of families with a shared outcome, with codes of their ``episode`` and ``block``."""
    known = rounds.filter(pl.col("y").is_not_null() & pl.col("family").is_not_null())
    several = (pl.len().over("family", "episode_id") > 1) & pl.col("episode_id").is_not_null()
    families = known.filter(several)["family"].unique()
    known = known.filter(pl.col("family").is_in(families.implode()))
    own = pl.when(pl.col("episode_id").is_null()).then("round_id").alias("own")
    return known.with_columns(
        pl.col("stratum").cast(pl.Int64),
        pl.col("block_row").cast(pl.Float64),
        episode=pl.struct("family", "episode_id", own).rank("dense").cast(pl.Int64) - 1,
        block=pl.col("block_id").rank("dense").cast(pl.Int64) - 1,
    )


def _parts(known: pl.DataFrame, ranked: pl.DataFrame) -> pl.DataFrame:
    """Count rounds by stratum and episode, with the rows that the episode spans in the block.

    One with rounds in another block counts as in every row: pairs of blocks then need no rows, and its rounds outside
    of a cell's are listed.
    """
    columns = ["stratum", *_OF_PART]
    y, row, of_episode = pl.col("y"), pl.col("block_row"), ("block", "episode")
    is_unknown, runs_on = row.is_null().any(), pl.col("block").n_unique().over("episode") > 1
    return (
        pl.concat([known.select(columns).drop_nulls("stratum"), ranked.select(columns)])
        .group_by("stratum", "episode")
        .agg(
            pl.col("block").first(),
            rounds=pl.len().cast(pl.Float64),
            outcome=pl.when(y.min() == y.max()).then(y.min()).otherwise(float("nan")),
            first=pl.when(is_unknown).then(-np.inf).otherwise(row.min()),
            last=pl.when(is_unknown).then(np.inf).otherwise(row.max()),
        )
        .with_columns(
            first=pl.when(runs_on).then(-np.inf).otherwise(pl.col("first").min().over(of_episode)),
            last=pl.when(runs_on).then(np.inf).otherwise(pl.col("last").max().over(of_episode)),
        )
        .sort("stratum", "episode")
        .with_row_index("part")
    )


def _rounds_beyond(known: pl.DataFrame, parts: pl.DataFrame, runs: Runs) -> pl.DataFrame:
    """List the rounds outside of cells' rows, of episodes that have some within: those that an edge goes through."""
    partial = np.flatnonzero(runs.is_partial)
    items = Items(integers(parts["stratum"]), parts["first"].to_numpy(), parts["last"].to_numpy())
    run, part = items.cut(runs.select(partial))
    placed = known.join(parts.select("part", "stratum", "episode"), on=["stratum", "episode"]).sort("part")
    nth, at = matches(integers(placed["part"]), part)
    cell, row = partial[run[nth]], placed["block_row"].fill_null(np.nan).to_numpy()[at]
    beyond = ~runs.hold(cell, row)
    return (
        placed.select("stratum", "episode")[at]
        .select(
            pl.lit(pl.Series(cell, dtype=pl.UInt32)).alias("cell"),
            "stratum",
            "episode",
            exposed=pl.lit(value=False),
            away=pl.lit(value=True),
        )
        .filter(beyond)
    )


def _counted(parts: pl.DataFrame, touched: pl.DataFrame) -> pl.DataFrame:
    """Count the rounds that are exposed, and those that are no controls, by cell and part."""
    return (
        touched.join(parts.select("part", "stratum", "episode"), on=["stratum", "episode"])
        .group_by("cell", "part")
        .agg(pl.col("exposed", "away").sum().cast(pl.Float64))
        .sort("cell", "part")
    )
