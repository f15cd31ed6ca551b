"""An exported log in parts: each holds whole blocks and episodes and all that belongs to their rounds."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

import polars as pl

from cmp.log.schema import BLOCKS, EXPOSURES, OUTCOMES, ROSTERS, ROUNDS, TABLES, Table

__all__ = ["PARTS_ARE_BLOCKS", "PARTS_KEY", "ROUNDS_PER_PART", "write_parts"]

#: What ``meta.json`` says of a log whose files of one name belong together.
PARTS_KEY: Final = "parts"
PARTS_ARE_BLOCKS: Final = "blocks"

ROUNDS_PER_PART: Final = 1_000_000

#: Rows that are placed at one time: of exposures some 25 MB, and several times that in between.
ROWS_AT_ONCE: Final = 250_000


def write_parts(
    portions: Callable[[Table], Iterable[pl.DataFrame]], directory: Path, rounds_per_part: int
) -> None:
    """Write tables as ``directory/<table>/part-<n>.parquet``.

    Parameters
    ----------
    portions
        Returns a table of the schema, some rows at a time; each is read once. Rounds and blocks are kept meanwhile.
    directory
        To be made.
    rounds_per_part
        After how many rounds the next part begins, at the end of a block; blocks that an episode runs through are in
        one part, however many.
    """
    rounds, blocks = (pl.concat(list(portions(table))) for table in (ROUNDS, BLOCKS))
    placed = _placed(rounds, rounds_per_part)
    of_round = rounds.select("round_id", "block_id").join(placed, on="block_id", nulls_equal=True)
    of_round = of_round.select("round_id", "part").sort("round_id")
    of_block = blocks.select("block_id").join(placed, on="block_id", how="left").sort("block_id")
    keys = {
        ROUNDS: of_round,
        EXPOSURES: of_round,
        OUTCOMES: of_round,  # an outcome without a round stands in the first part, as a block without one does
        BLOCKS: of_block,
        ROSTERS: of_block,
    }
    names = sorted({0, *of_round["part"]})
    held = {ROUNDS: rounds, BLOCKS: blocks}
    for table in TABLES:
        folder = directory / table.name
        folder.mkdir(parents=True)
        rows = [held[table]] if table in held else portions(table)
        _write_table(rows, keys[table], folder, names)


def _write_table(rows: Iterable[pl.DataFrame], key: pl.DataFrame, folder: Path, names: list[int]) -> None:
    """Write a table's rows to the files of their parts, in order, though they may not fit into memory together.

    ``key`` holds ids, sorted, and the part of each.
    """
    aside = folder / ".aside"
    aside.mkdir()
    ids, parts = key
    for number, chunk in enumerate(_chunks(rows)):
        frame = chunk.with_columns(_parts_of(chunk[key.columns[0]], ids, parts).alias("part"))
        found = frame.partition_by("part", as_dict=True, include_key=False)
        for name in names:
            if number == 0 or (name,) in found:
                path = aside / f"{name:06}-{number:06}.parquet"
                found.get((name,), chunk.clear()).write_parquet(path, statistics=True)
    for place, name in enumerate(names):
        pieces, target = sorted(aside.glob(f"{name:06}-*.parquet")), folder / f"part-{place:05}.parquet"
        if len(pieces) == 1:
            pieces[0].replace(target)
        else:
            pl.scan_parquet(pieces, glob=False).sink_parquet(target, statistics=True, maintain_order=True)
    shutil.rmtree(aside)


def _parts_of(wanted: pl.Series, ids: pl.Series, parts: pl.Series) -> pl.Series:
    """Return the part of each id, looked up in sorted ones: a join would go through all of them for every chunk.

    What is not among them stands in the first part.
    """
    if ids.is_empty():
        return pl.Series([0], dtype=pl.Int64).new_from_index(0, len(wanted))
    place = ids.search_sorted(wanted).clip(upper_bound=len(ids) - 1)
    is_known = (ids.gather(place) == wanted).fill_null(False)
    return parts.gather(place).fill_null(0).zip_with(is_known, pl.Series([0], dtype=pl.Int64))


def _chunks(portions: Iterable[pl.DataFrame]) -> Iterator[pl.DataFrame]:
    """Yield portions together, as many as are to be placed at one time; at least one."""
    held: list[pl.DataFrame] = []
    for portion in portions:
        held.append(portion)
        if sum(each.height for each in held) >= ROWS_AT_ONCE:
            yield pl.concat(held)
            held = []
    if held:
        yield pl.concat(held)


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
