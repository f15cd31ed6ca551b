"""An exported log in parts: each holds whole blocks and episodes and all that belongs to their rounds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import polars as pl

from cmp.log.schema import BLOCKS, EXPOSURES, OUTCOMES, ROSTERS, ROUNDS, TABLES, Table

__all__ = ["PARTS_ARE_BLOCKS", "PARTS_KEY", "ROUNDS_PER_PART", "write_parts"]

#: What ``meta.json`` says of a log whose files of one name belong together.
PARTS_KEY: Final = "parts"
PARTS_ARE_BLOCKS: Final = "blocks"

ROUNDS_PER_PART: Final = 1_000_000


def write_parts(scan: Callable[[Table], pl.LazyFrame], directory: Path, rounds_per_part: int) -> None:
    """Write tables as ``directory/<table>/part-<n>.parquet``.

    Parameters
    ----------
    scan
        Returns a table of the schema; each is read once, and let go of before the next.
    directory
        To be made.
    rounds_per_part
        After how many rounds the next part begins, at the end of a block; blocks that an episode runs through are in
        one part, however many.
    """
    rounds, blocks = scan(ROUNDS).collect(), scan(BLOCKS).collect()
    placed = _placed(rounds, rounds_per_part)
    of_round = rounds.select("round_id", "block_id").join(placed, on="block_id", nulls_equal=True)
    of_round = of_round.select("round_id", "part")
    of_block = blocks.select("block_id").join(placed, on="block_id", how="left")
    keys = {
        ROUNDS.name: of_round,
        EXPOSURES.name: of_round,
        OUTCOMES.name: of_round,  # an outcome without a round stands in the first part, as a block without one does
        BLOCKS.name: of_block,
        ROSTERS.name: of_block,
    }
    names = sorted({0, *of_round["part"]})
    held = {ROUNDS.name: rounds, BLOCKS.name: blocks}
    for table in TABLES:
        (directory / table.name).mkdir(parents=True)
        key = keys[table.name]
        rows = held[table.name] if table.name in held else scan(table).collect()
        frame = rows.join(key, on=key.columns[0], how="left", maintain_order="left")
        found = frame.with_columns(pl.col("part").fill_null(0)).partition_by(
            "part", as_dict=True, include_key=False
        )
        for number, name in enumerate(names):
            path = directory / table.name / f"part-{number:05}.parquet"
            found.get((name,), rows.clear()).write_parquet(path, statistics=True)


def _placed(rounds: pl.DataFrame, rounds_per_part: int) -> pl.DataFrame:
    """Return ``block_id, part`` of the blocks of rounds (the null one too), in the order in which they began."""
    of_block = pl.col("rounds").sum().alias("rounds"), pl.col("begun").min().alias("begun")
    sizes = rounds.group_by("block_id").agg(rounds=pl.len(), begun=pl.col("asked_at").min())
    tied = sizes.join(_tied(rounds), on="block_id", how="left").with_columns(
        pl.col("with").fill_null(pl.col("block_id"))
    )
    groups = tied.group_by("with").agg(of_block).sort("begun", "with")
    part = (pl.col("rounds").cum_sum() - pl.col("rounds")) // rounds_per_part
    groups = groups.select("with", part=part.cast(pl.Int64))
    return tied.join(groups, on="with", nulls_equal=True).select("block_id", "part")


def _tied(rounds: pl.DataFrame) -> pl.DataFrame:
    """Return ``block_id`` of blocks that share an episode with another, and ``with``, one of all that hang together."""
    held = rounds.select("scope", "episode_id", "block_id").drop_nulls().unique()
    held = held.filter(pl.len().over("scope", "episode_id") > 1)
    if not held.height:
        return held.select("block_id", pl.col("block_id").alias("with"))
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    codes = held.select(
        pl.struct("scope", "episode_id").rank("dense").alias("episode") - 1,
        pl.col("block_id").rank("dense").alias("block") - 1,
    )
    episode, block = codes["episode"].to_numpy(), codes["block"].to_numpy()
    n_episodes = int(episode.max()) + 1
    size = n_episodes + int(block.max()) + 1
    links = coo_array(([True] * len(block), (episode, block + n_episodes)), shape=(size, size))
    _, label = connected_components(links, directed=False)
    labelled = held.select("block_id").with_columns(label=label[episode]).unique()
    return labelled.select("block_id", pl.col("block_id").min().over("label").alias("with"))
