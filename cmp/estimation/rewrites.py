"""When memories that are rewritten under one id held which content, as far as a log's sightings say."""

from __future__ import annotations

import numpy as np
import polars as pl

from cmp.estimation.log_codes import integers
from cmp.estimation.sums import ranges

__all__ = ["BY_CHANCE", "DRAWN", "in_order", "runs_of_sightings", "windows_of_runs"]

_SHARE = pl.col("propensity")

#: Exposures by a draw.
DRAWN = pl.col("arm").is_in(["random", "card"])

#: Exposures that there are because chance had it so: draws, and ranked memories that might have been withheld.
BY_CHANCE = DRAWN | (
    (pl.col("arm") == "ranked") & ~pl.col("assigned") & (_SHARE > 0.0) & (_SHARE < 1.0)
).fill_null(value=False)


def in_order(rounds: pl.DataFrame, blocks: pl.DataFrame) -> pl.DataFrame:
    """Add ``place`` to rounds, which they have in the order they were asked in; the same for those of one row.

    Rows of a block follow one another, whatever clocks say, and blocks where their rounds' times put them: those of
    one scope may run side by side. Without times, one block comes after the other.

    Parameters
    ----------
    rounds
        ``round_id, block_id, block_row``, perhaps ``asked_at``.
    blocks
        ``block_id, scope``, perhaps ``created_at``.

    Returns
    -------
    polars.DataFrame
        ``round_id, block_id, block_row, scope, place``.
    """
    created = [name for name in ("created_at", "block_id") if name in blocks.columns]
    nth = blocks.sort(created).select("block_id", "scope").with_row_index("nth")
    timed = "asked_at" in rounds.columns and not rounds["asked_at"].null_count()
    asked = pl.col("asked_at") if timed else pl.lit(0)
    found = (
        rounds.with_columns(asked=asked).join(nth, on="block_id").sort("nth", "block_row", nulls_last=True)
    )
    latest = pl.col("asked").cum_max().over("block_id")
    found = found.with_columns(asked=pl.when(pl.col("block_row").is_null()).then("asked").otherwise(latest))
    by = ["asked", "nth", "block_row"]
    found = found.sort(by, nulls_last=True)
    is_new = pl.any_horizontal(pl.col(name).ne_missing(pl.col(name).shift()) for name in by)
    return found.select("round_id", "block_id", "block_row", "scope", place=is_new.cum_sum().cast(pl.Int64))


def runs_of_sightings(exposures: pl.DataFrame) -> pl.DataFrame:
    """Return runs of sightings of one content, between sightings of others: one row a run, in order.

    Parameters
    ----------
    exposures
        ``memory`` (a code), ``place``, ``block_row``, ``content_hash``, ``arm``, ``assigned``, ``propensity``.

    Returns
    -------
    polars.DataFrame
        ``memory, content_hash``; ``since`` and ``until``, the places of its first and last sighting; ``begin``, the
        first place that is in the run, and ``end``, the one after the last: sightings by chance at an edge are not in
        the run. Null where nothing bounds it. Memories with a sighting in an unknown row have none.
    """
    sightings = exposures.filter(pl.col("content_hash").is_not_null())
    unknown = sightings.filter(pl.col("block_row").is_null()).select("memory").unique()
    ordered = sightings.join(unknown, on="memory", how="anti").sort("memory", "place", "content_hash")
    is_new = pl.any_horizontal(
        pl.col(name) != pl.col(name).shift(1) for name in ("memory", "content_hash")
    ).fill_null(value=True)
    at = pl.col("place")
    runs = (
        ordered.with_columns(run=is_new.cum_sum(), by_chance=BY_CHANCE)
        .group_by("run", maintain_order=True)
        .agg(
            pl.col("memory", "content_hash").first(),
            since=at.first(),
            until=at.last(),
            # several rounds may have one place
            begin=at.first() + pl.col("by_chance").filter(at == at.first()).any(),
            end=at.last() + 1 - pl.col("by_chance").filter(at == at.last()).any(),
        )
    )
    is_first = (pl.col("memory") != pl.col("memory").shift(1)).fill_null(value=True)
    is_last = (pl.col("memory") != pl.col("memory").shift(-1)).fill_null(value=True)
    return runs.select(
        "memory",
        "content_hash",
        *(pl.when(~is_first).then(name).alias(name) for name in ("since", "begin")),
        pl.when(~is_last).then("until").alias("until"),
        pl.when(~is_last).then(pl.min_horizontal("end", pl.col("begin").shift(-1))).alias("end"),
    )


def windows_of_runs(runs: pl.DataFrame, rosters: pl.DataFrame, rounds: pl.DataFrame) -> pl.DataFrame:
    """Return the rows that each run has of each block that it touches.

    Parameters
    ----------
    runs
        From :func:`runs_of_sightings`.
    rosters
        ``memory, block_id`` of the rosters that hold the memories.
    rounds
        From :func:`in_order`.

    Returns
    -------
    polars.DataFrame
        ``memory, content_hash, block_id, begin, end``: rows from ``begin`` on and before ``end``, minus infinity
        from the block's first, infinity to its last; none where ``end`` is not above ``begin``.
    """
    reach = rounds.group_by("block_id").agg(
        low=pl.col("place").min(), high=pl.col("place").max(), beyond=pl.col("block_row").max() + 1.0
    )
    held = rosters.join(reach, on="block_id").sort("memory", "low")
    n = int(rounds["place"].max() or 0) + 2  # type: ignore[arg-type]
    since, until = integers(runs["since"].fill_null(0)), integers(runs["until"].fill_null(n - 1))
    own, low, high = integers(held["memory"]) * n, integers(held["low"]), integers(held["high"])
    of_run = integers(runs["memory"]) * n
    first = np.searchsorted(of_run + until, own + low)
    several = np.searchsorted(of_run + since, own + high, side="right") - first
    pairs = runs[ranges(first, several)].hstack(
        held.select("block_id", "low", "high", "beyond")[np.repeat(np.arange(held.height), several)]
    )
    known = (
        rounds.filter(pl.col("block_row").is_not_null())
        .select("block_id", "place", "block_row")
        .sort("place")
    )

    def row_at(side: str) -> pl.Series:
        """Return the row of the block's first round at or after a place, or the one beyond its last."""
        wanted = pairs.select("block_id", "beyond", place=pl.col(side)).with_row_index("nth").sort("place")
        found = wanted.join_asof(known, on="place", by="block_id", strategy="forward", check_sortedness=False)
        row = pl.coalesce(pl.col("block_row").cast(pl.Float64), "beyond")
        return found.sort("nth").select(row).to_series()

    # rounds of an unknown row may lie before the first sighting or behind the last
    begin = pl.when(pl.col("since") >= pl.col("low")).then(row_at("begin")).otherwise(-np.inf)
    end = pl.when(pl.col("until") <= pl.col("high")).then(row_at("end")).otherwise(np.inf)
    return pairs.select("memory", "content_hash", "block_id", begin=begin, end=end)
