"""A large log to analyse: Parquet files of 200,000 rounds each, made by the library's own design, quickly.

Every scope has queries asked in turn, each with its own blocks (two exposures a block, six slots, two of them random);
outcomes are 0 or 1, or continuous. Ids are text of the length they have in a log.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from cmp.design import balanced_table
from cmp.log.parts import PARTS_ARE_BLOCKS, PARTS_KEY
from cmp.log.schema import SCHEMA_VERSION

__all__ = ["LogSize", "made"]

SLOTS, RANDOM_SLOTS, MEMORIES, EXPOSURES_A_BLOCK = 6, 2, 100, 2
ROUNDS_A_PART: Final = 200_000
BLOCK: Final = MEMORIES * EXPOSURES_A_BLOCK // RANDOM_SLOTS

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class LogSize:
    """How many rows of ``exposures`` to make, over how many scopes and queries of each."""

    exposures: int
    scopes: int = 50
    queries: int = 20
    is_binary: bool = True

    @property
    def rounds(self) -> int:
        """Rounds, each of which has a row for each of its slots."""
        return self.exposures // SLOTS


def made(size: LogSize, home: Path) -> Path:
    """Return a directory that :func:`cmp.open_log` reads, made there unless it is there already."""
    kind = "binary" if size.is_binary else "continuous"
    target = home / f"{kind}-{size.exposures}-{ROUNDS_A_PART}"
    if (target / "meta.json").is_file():
        return target
    shutil.rmtree(target, ignore_errors=True)
    for number, first in enumerate(range(0, size.rounds, ROUNDS_A_PART)):
        last = min(first + ROUNDS_A_PART, size.rounds)
        for name, frame in _part(size, np.arange(first, last), number).items():
            (target / name).mkdir(parents=True, exist_ok=True)
            frame.write_parquet(target / name / f"part-{number:05}.parquet", statistics=True)
    meta = {"schema_version": str(SCHEMA_VERSION)}
    if ROUNDS_A_PART % (size.scopes * size.queries * BLOCK) == 0:
        meta[PARTS_KEY] = PARTS_ARE_BLOCKS
    (target / "meta.json").write_text(json.dumps(meta), "utf-8")
    return target


def _part(size: LogSize, rounds: IntArray, number: int) -> dict[str, pl.DataFrame]:
    """Return the five tables of some rounds; blocks stand in the part in which they begin."""
    rng = np.random.default_rng([7, number])
    streams = size.scopes * size.queries
    stream, turn = rounds % streams, rounds // streams
    block, row = turn // BLOCK, turn % BLOCK
    drawn = _tables(size)[(stream + 31 * block) % TABLES, row]
    ids = pl.DataFrame(
        {
            "round": rounds,
            "stream": stream,
            "block": block,
            "block_row": row,
            "asked_at": rounds * 1000,
        }
    ).select(
        pl.format("8a3f0c5e91b27d64aa10{}", pl.col("round").cast(pl.String).str.zfill(12)).alias("round_id"),
        _scope(size),
        _block_id(),
        "block_row",
        pl.lit(None, pl.String).alias("episode_id"),
        pl.format("what about subject {}?", pl.col("stream") // size.scopes).alias("group"),
        pl.lit("5f4dcc3b5aa765d61d8327deb882cf99").alias("query_hash"),
        pl.col("asked_at").cast(pl.Datetime("us", "UTC")),
        pl.lit(MEMORIES, pl.Int64).alias("n_roster"),
        pl.lit(RANDOM_SLOTS, pl.Int64).alias("k"),
        pl.lit(SLOTS - RANDOM_SLOTS, pl.Int64).alias("n_ranked"),
        pl.lit(True).alias("randomized"),
        pl.lit(None, pl.String).alias("fallback_reason"),
        pl.lit(1, pl.Int64).alias("attempts"),
    )
    lift = 0.2 * (drawn % 10 == 0).sum(axis=1)
    y = (rng.random(len(rounds)) < 0.3 + lift) if size.is_binary else rng.normal(0.3 + lift, 0.25)
    outcomes = ids.select(
        "round_id",
        pl.lit("reward").alias("metric"),
        pl.Series("value", y.astype(np.float64)),
        pl.col("asked_at").alias("recorded_at"),
        pl.lit(0, pl.Int64).alias("revision"),
    )
    begun = ids.filter(pl.col("block_row") == 0)
    return {
        "rounds": ids,
        "exposures": _exposures(ids, drawn),
        "outcomes": outcomes,
        **_blocks_and_rosters(begun),
    }


#: Tables that blocks take in turn: a table of its own for each would only cost time.
TABLES: Final = 997


def _tables(size: LogSize) -> IntArray:
    return np.stack([balanced_table(MEMORIES, BLOCK, RANDOM_SLOTS, seed) for seed in range(TABLES)]).astype(
        np.int64
    )


def _scope(size: LogSize) -> pl.Expr:
    return pl.format("customer-{}", (pl.col("stream") % size.scopes).cast(pl.String).str.zfill(6)).alias(
        "scope"
    )


def _block_id() -> pl.Expr:
    number = (pl.col("block") * 1_000_000 + pl.col("stream")).cast(pl.String).str.zfill(32)
    return number.alias("block_id")


def _memory(column: str) -> pl.Expr:
    return pl.format("memory/2026-01/{}", pl.col(column).cast(pl.String).str.zfill(6)).alias("memory_id")


def _exposures(ids: pl.DataFrame, drawn: IntArray) -> pl.DataFrame:
    """Lay out each round: memories 0, 1, 2, ... as ranked, a drawn one staying where it was ranked."""
    reach = np.arange(SLOTS)
    is_drawn = (drawn[:, :, None] == reach).any(axis=1)
    plain_before = np.cumsum(~is_drawn, axis=1) - ~is_drawn
    in_part = plain_before < SLOTS - RANDOM_SLOTS
    beyond = ~((drawn[:, :, None] == reach) & in_part[:, None, :]).any(axis=2)
    ranked_rows, ranked = np.nonzero(in_part)
    random_rows, place = np.nonzero(beyond)
    frame = pl.DataFrame(
        {
            "row": np.concatenate([ranked_rows, random_rows]),
            "memory": np.concatenate([ranked, drawn[random_rows, place]]),
            "is_random": np.repeat([False, True], [len(ranked_rows), len(random_rows)]),
            "assigned": np.concatenate([is_drawn[ranked_rows, ranked], np.ones(len(random_rows), bool)]),
        }
    ).sort("row", "is_random", maintain_order=True)
    return frame.select(
        ids["round_id"].gather(frame["row"]),
        _memory("memory"),
        pl.when("is_random").then(pl.lit("random")).otherwise(pl.lit("ranked")).alias("arm"),
        "assigned",
        pl.int_range(pl.len()).over("row").alias("slot"),
        pl.when("is_random").then(RANDOM_SLOTS / MEMORIES).otherwise(1.0).alias("propensity"),
        pl.lit(True).alias("delivered"),
        pl.lit(None, pl.String).alias("reason"),
        pl.lit(None, pl.String).alias("content_hash"),
    )


def _blocks_and_rosters(begun: pl.DataFrame) -> dict[str, pl.DataFrame]:
    blocks = begun.select(
        "block_id",
        "scope",
        "group",
        pl.lit("balanced").alias("design"),
        "k",
        pl.lit(BLOCK, pl.Int64).alias("length"),
        pl.lit(b"").alias("table"),
        pl.col("asked_at").alias("created_at"),
    )
    memories = pl.DataFrame({"position": np.arange(MEMORIES)}).with_columns(_memory("position"))
    rosters = (
        begun.select("block_id")
        .join(memories, how="cross")
        .select(
            "block_id",
            "memory_id",
            "position",
            pl.lit(EXPOSURES_A_BLOCK, pl.Int64).alias("planned"),
            pl.lit(0, pl.Int64).alias("planned_before"),
            pl.lit(None, pl.Int64).alias("removed_row"),
        )
    )
    return {"blocks": blocks, "rosters": rosters}
