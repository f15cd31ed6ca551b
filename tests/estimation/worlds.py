"""Many logs of one kind at once, each in a scope of its own: what coverage is counted over."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from cmp.design import balanced_table
from cmp.design.cards import card_ids


@dataclass
class Frames:
    """The five frames of a log."""

    rounds_: pl.DataFrame
    exposures_: pl.DataFrame
    outcomes_: pl.DataFrame
    blocks_: pl.DataFrame
    rosters_: pl.DataFrame

    def rounds(self) -> pl.LazyFrame:
        return self.rounds_.lazy()

    def exposures(self) -> pl.LazyFrame:
        return self.exposures_.lazy()

    def outcomes(self) -> pl.LazyFrame:
        return self.outcomes_.lazy()

    def blocks(self) -> pl.LazyFrame:
        return self.blocks_.lazy()

    def rosters(self) -> pl.LazyFrame:
        return self.rosters_.lazy()


def named(prefix: str, codes: np.ndarray) -> pl.Series:
    """Return ids that sort as their codes do."""
    digits = pl.Series(np.asarray(codes).ravel()).cast(pl.String).str.zfill(7)
    return pl.select(pl.lit(prefix) + digits).to_series()


def frames_of(tables: np.ndarray, outcomes: np.ndarray, episodes: np.ndarray | None = None) -> Frames:
    """Return a log of one block a scope.

    Parameters
    ----------
    tables
        Shape (S, T, k), what each round of each scope draws.
    outcomes, episodes
        Shape (S, T).
    """
    n_scopes, n_rounds, k = tables.shape
    n = int(tables.max()) + 1
    scope = np.repeat(np.arange(n_scopes), n_rounds)
    rounds = pl.DataFrame(
        {
            "round_id": named("r", np.arange(scope.size)),
            "scope": named("s", scope),
            "block_id": named("b", scope),
            "block_row": np.tile(np.arange(n_rounds), n_scopes),
            "episode_id": pl.Series([None] * scope.size, dtype=pl.String)
            if episodes is None
            else named("e", episodes),
        }
    ).with_columns(randomized=True, group=pl.lit(None, pl.String), query_hash=pl.lit("q"))
    exposures = pl.DataFrame(
        {"round_id": named("r", np.repeat(np.arange(scope.size), k)), "memory_id": named("m", tables)}
    ).with_columns(
        arm=pl.lit("random"), assigned=True, propensity=pl.lit(None, pl.Float64), delivered=True,
        content_hash=pl.lit(None, pl.String),
    )  # fmt: skip
    known = pl.DataFrame({"round_id": rounds["round_id"], "value": outcomes.ravel()})
    counts = np.zeros((n_scopes, n), dtype=np.int64)
    np.add.at(counts, (np.repeat(np.arange(n_scopes), n_rounds * k), tables.ravel()), 1)
    blocks = pl.DataFrame(
        {"block_id": named("b", np.arange(n_scopes)), "scope": named("s", np.arange(n_scopes))}
    )
    rosters = pl.DataFrame(
        {
            "block_id": named("b", np.repeat(np.arange(n_scopes), n)),
            "memory_id": named("m", np.tile(np.arange(n), n_scopes)),
            "planned": counts.ravel(),
        }
    ).with_columns(removed_row=pl.lit(None, pl.Int64))
    return Frames(
        rounds,
        exposures,
        known.with_columns(metric=pl.lit("reward"), revision=0),
        blocks.with_columns(length=pl.lit(n_rounds, pl.Int64)),
        rosters,
    )


def episodes_of(rng: np.random.Generator, n_scopes: int, n_rounds: int, longest: int) -> np.ndarray:
    """Return runs of 1 to ``longest`` rounds, equally likely, shape (S, T)."""
    starts = np.zeros((n_scopes, n_rounds), dtype=bool)
    for scope in range(n_scopes):
        ends = np.cumsum(rng.integers(1, longest + 1, size=n_rounds))
        starts[scope, ends[ends < n_rounds]] = True
    return np.cumsum(starts, axis=1)


def shared_outcomes(
    seed: int,
    utilities: np.ndarray,
    *,
    scopes: int,
    rounds: int,
    k: int,
    longest: int,
    kind: str,
    base: float = 0.4,
) -> tuple[Frames, np.ndarray]:
    """Return logs whose episodes share the mean of their rounds' additive utilities plus noise, and the estimands.

    An estimand is the mean over rounds of the outcome expected with the memory drawn in that round less that without.
    Drawing it there displaces one of the others there and makes one more draw of it elsewhere less likely, so that
    it is ``(u - mean of the others) (1 - (s - 1) / (T - 1)) / s`` in an episode of s rounds.
    """
    rng = np.random.default_rng(seed)
    n = len(utilities)
    tables = np.stack(
        [np.asarray(balanced_table(n, rounds, k, int(s))) for s in rng.integers(2**31, size=scopes)]
    )
    episodes = episodes_of(rng, scopes, rounds, longest)
    code = (np.arange(scopes)[:, None] * rounds + episodes).ravel()
    size = np.bincount(code)[code]
    mean = np.bincount(code, weights=utilities[tables].sum(axis=2).ravel())[code] / size
    if kind == "binary":
        noise = rng.random(code.max() + 1)[code]
        y = (noise < base + mean).astype(float)
    else:
        y = mean + rng.normal(size=code.max() + 1)[code]
    others = (utilities.sum() - utilities) / (n - 1)
    estimand = (utilities - others) * np.mean((1 - (size - 1) / (rounds - 1)) / size)
    return frames_of(tables, y.reshape(scopes, rounds), episodes), estimand


def with_cards(
    seed: int,
    utilities: np.ndarray,
    *,
    scopes: int,
    rounds: int,
    k: int,
    cards: int,
    kind: str,
    base: float = 0.4,
) -> Frames:
    """Return logs of one block a scope, whose first few memories are cards; outcomes are additive."""
    rng = np.random.default_rng(seed)
    n = len(utilities)
    tables = np.stack(
        [np.asarray(balanced_table(n, rounds, k, int(s))) for s in rng.integers(2**31, size=scopes)]
    )
    mean = utilities[tables].sum(axis=2)
    y = (rng.random(mean.shape) < base + mean) if kind == "binary" else mean + rng.normal(size=mean.shape)
    log = frames_of(tables, y.astype(float))
    names = dict(zip(named("m", np.arange(cards)), card_ids(cards), strict=True))
    is_card = pl.col("memory_id").is_in(list(names.values()))
    renamed = log.exposures_.with_columns(pl.col("memory_id").replace(names))
    log.exposures_ = renamed.with_columns(
        arm=pl.when(is_card).then(pl.lit("card")).otherwise(pl.lit("random"))
    )
    log.rosters_ = log.rosters_.with_columns(pl.col("memory_id").replace(names))
    return log
