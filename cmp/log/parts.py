"""An exported log in parts: each holds whole blocks and all that belongs to their rounds, under one name a table."""

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
        After how many rounds the next part begins, at the end of a block.
    """
    rounds, blocks = scan(ROUNDS).collect(), scan(BLOCKS).collect()
    sizes = rounds.group_by("block_id").agg(rounds=pl.len(), begun=pl.col("asked_at").min())
    part = (pl.col("rounds").cum_sum() - pl.col("rounds")) // rounds_per_part
    placed = sizes.sort("begun", "block_id").select("block_id", part=part.cast(pl.Int64))
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
