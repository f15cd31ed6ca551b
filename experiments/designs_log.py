"""A batch of logs as the five frames an analysis reads, each log in a scope of its own."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from cmp.design.cards import card_ids
from experiments.designs import RANKED_SLOTS, WITHHELD, Design
from experiments.designs_draw import Batch
from experiments.designs_withheld import Shown

__all__ = ["Frames", "frames_of"]

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Frames:
    """The five tables of a log."""

    tables: dict[str, pl.DataFrame]

    def rounds(self) -> pl.LazyFrame:
        return self.tables["rounds"].lazy()

    def exposures(self) -> pl.LazyFrame:
        return self.tables["exposures"].lazy()

    def outcomes(self) -> pl.LazyFrame:
        return self.tables["outcomes"].lazy()

    def blocks(self) -> pl.LazyFrame:
        return self.tables["blocks"].lazy()

    def rosters(self) -> pl.LazyFrame:
        return self.tables["rosters"].lazy()


def frames_of(design: Design, batch: Batch, episodes: IntArray) -> Frames:
    """Return a batch's logs; scopes sort as logs do, memories as their places, cards first.

    Parameters
    ----------
    design, batch
        Of each other.
    episodes
        Shape (T,), which rounds share an outcome.
    """
    logs, n_rounds = batch.outcomes.shape
    n_blocks = len(design.blocks)
    scope = np.repeat(np.arange(logs), n_rounds)
    block = design.block_of_round
    first = np.searchsorted(block, np.arange(n_blocks))
    rounds = pl.DataFrame(
        {
            "round_id": _named("r", np.arange(logs * n_rounds)),
            "scope": _named("s", scope),
            "block_id": _named("b", scope * n_blocks + np.tile(block, logs)),
            "block_row": np.tile(np.arange(n_rounds) - first[block], logs),
            "episode_id": _named("e", scope * n_rounds + np.tile(episodes, logs))
            if design.longest > 1
            else pl.Series([None] * len(scope), dtype=pl.String),
        }
    ).with_columns(randomized=True, group=pl.lit(None, pl.String), query_hash=pl.lit("q"))
    outcomes = pl.DataFrame({"round_id": rounds["round_id"], "value": batch.outcomes.ravel()})
    return Frames(
        {
            "rounds": rounds,
            "exposures": _ranked_exposures(design, batch.tables, batch.shown)
            if batch.shown is not None
            else _drawn_exposures(design, batch.tables),
            "outcomes": outcomes.filter(pl.col("value").is_not_nan()).with_columns(
                metric=pl.lit("reward"), revision=0
            ),
            **_blocks(design, batch.planned),
        }
    )


def _blocks(design: Design, planned: IntArray) -> dict[str, pl.DataFrame]:
    logs, n_blocks = planned.shape[:2]
    scope, block, memory = np.nonzero(np.broadcast_to(design.rosters, planned.shape))
    lengths = (
        design.rosters.sum(axis=1) if design.uniform else np.array([length for length, _ in design.blocks])
    )
    blocks = pl.DataFrame(
        {
            "block_id": _named("b", np.arange(logs * n_blocks)),
            "scope": _named("s", np.repeat(np.arange(logs), n_blocks)),
            "length": np.tile(lengths, logs).astype(np.int64),
        }
    )
    rosters = pl.DataFrame(
        {
            "block_id": _named("b", scope * n_blocks + block),
            "memory_id": _names(design).gather(memory),
            "planned": planned[scope, block, memory],
        }
    ).with_columns(removed_row=pl.lit(None, pl.Int64))
    return {"blocks": blocks, "rosters": rosters}


def _drawn_exposures(design: Design, tables: IntArray) -> pl.DataFrame:
    memory = tables.ravel()
    return pl.DataFrame(
        {
            "round_id": _named("r", np.repeat(np.arange(memory.size // design.k), design.k)),
            "memory_id": _names(design).gather(memory),
            "arm": np.where(memory < design.cards, "card", "random"),
        }
    ).with_columns(
        assigned=True, propensity=pl.lit(None, pl.Float64), delivered=True, content_hash=pl.lit(None, pl.String)
    )  # fmt: skip


def _ranked_exposures(design: Design, tables: IntArray, shown: Shown) -> pl.DataFrame:
    """Return a row for every memory that was drawn, or in the ranked part: once, with its rank first."""
    drawn = np.zeros(shown.ranked.shape, dtype=bool)
    np.put_along_axis(drawn, tables, values=True, axis=2)
    log, place, memory = np.nonzero(drawn | shown.ranked)
    one = (log, place, memory)
    arm = np.where(shown.withheld[one], "withheld", np.where(shown.ranked[one], "ranked", "random"))
    chance = WITHHELD / RANKED_SLOTS
    by_rank = np.where(shown.kept[one], 1.0 - chance, 1.0)
    return pl.DataFrame(
        {
            "round_id": _named("r", log * tables.shape[1] + place),
            "memory_id": _names(design).gather(memory),
            "arm": arm,
            "assigned": drawn[one],
            "propensity": np.where(shown.withheld[one], chance, by_rank),
            "delivered": shown.in_context[one],
        }
    ).with_columns(content_hash=pl.lit(None, pl.String))


def _names(design: Design) -> pl.Series:
    cards = pl.Series(card_ids(design.cards), dtype=pl.String)
    return pl.concat([cards, _named("m", np.arange(design.memories - design.cards))])


def _named(prefix: str, codes: IntArray) -> pl.Series:
    """Return ids that sort as their codes do."""
    digits = pl.Series(codes).cast(pl.String).str.zfill(7)
    return pl.select(pl.lit(prefix) + digits).to_series()
