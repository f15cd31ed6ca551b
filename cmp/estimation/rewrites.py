"""When memories that are rewritten under one id held which content, as far as a log's sightings say."""

from __future__ import annotations

import numpy as np
import polars as pl

from cmp.estimation.log_codes import integers
from cmp.estimation.sums import ranges

__all__ = ["BY_CHANCE", "DRAWN", "runs_of_sightings", "windows_of_runs"]

_SHARE = pl.col("propensity")

#: Exposures by a draw.
DRAWN = pl.col("arm").is_in(["random", "card"])

#: Exposures that there are because chance had it so: draws, and ranked memories that might have been withheld.
BY_CHANCE = DRAWN | (
    (pl.col("arm") == "ranked") & ~pl.col("assigned") & (_SHARE > 0.0) & (_SHARE < 1.0)
).fill_null(value=False)


def runs_of_sightings(exposures: pl.DataFrame) -> pl.DataFrame:
    """Return runs of sightings of one content, between sightings of others: one row a run, in order.

    Parameters
    ----------
    exposures
        ``memory`` (a code), ``nth`` (of the block), ``block_row``, ``content_hash``, ``arm``, ``assigned``,
        ``propensity``.

    Returns
    -------
    polars.DataFrame
        ``memory, content_hash``; ``from_nth, begin``: the block that the first sighting is in, and the first row that
        is in the run; ``to_nth, end``: the last sighting's, and the row after the last. Sightings by chance at an edge
        are not in the run. Null where nothing bounds it. Memories with a sighting in an unknown row have none.
    """
    sightings = exposures.filter(pl.col("content_hash").is_not_null())
    unknown = sightings.filter(pl.col("block_row").is_null()).select("memory").unique()
    ordered = sightings.join(unknown, on="memory", how="anti").sort(
        "memory", "nth", "block_row", "content_hash"
    )
    is_new = pl.any_horizontal(
        pl.col(name) != pl.col(name).shift(1) for name in ("memory", "content_hash")
    ).fill_null(value=True)
    at = pl.struct("nth", "block_row")
    runs = (
        ordered.with_columns(run=is_new.cum_sum(), by_chance=BY_CHANCE)
        .group_by("run", maintain_order=True)
        .agg(
            pl.col("memory", "content_hash").first(),
            from_nth=pl.col("nth").first(),
            to_nth=pl.col("nth").last(),
            # several rounds may have one row
            begin=pl.col("block_row").first() + pl.col("by_chance").filter(at == at.first()).any(),
            end=pl.col("block_row").last() + 1 - pl.col("by_chance").filter(at == at.last()).any(),
        )
    )
    is_first = (pl.col("memory") != pl.col("memory").shift(1)).fill_null(value=True)
    is_last = (pl.col("memory") != pl.col("memory").shift(-1)).fill_null(value=True)
    meets = ~is_last & (pl.col("to_nth") == pl.col("from_nth").shift(-1))
    return runs.select(
        "memory",
        "content_hash",
        pl.when(~is_first).then("from_nth").alias("from_nth"),
        pl.when(~is_first).then("begin").alias("begin"),
        pl.when(~is_last).then("to_nth").alias("to_nth"),
        pl.when(meets)
        .then(pl.min_horizontal("end", pl.col("begin").shift(-1)))
        .when(~is_last)
        .then("end")
        .alias("end"),
    )


def windows_of_runs(runs: pl.DataFrame, rosters: pl.DataFrame) -> pl.DataFrame:
    """Return the rows that each run has of each block that it touches.

    Parameters
    ----------
    runs
        From :func:`runs_of_sightings`.
    rosters
        ``memory, nth, block_id`` of the rosters that hold the memories.

    Returns
    -------
    polars.DataFrame
        ``memory, content_hash, block_id, begin, end``: rows from ``begin`` on and before ``end``, minus infinity
        from the block's first, infinity to its last; none where ``end`` is not above ``begin``.
    """
    rosters = rosters.sort("memory", "nth")
    nth = integers(rosters["nth"])
    n_blocks = int(nth.max(initial=0)) + 1
    keys, own = integers(rosters["memory"]) * n_blocks + nth, integers(runs["memory"]) * n_blocks
    first = np.searchsorted(keys, own + integers(runs["from_nth"].fill_null(0)))
    last = np.searchsorted(keys, own + integers(runs["to_nth"].fill_null(n_blocks - 1)), side="right")
    n = last - first
    pairs = runs[np.repeat(np.arange(runs.height), n)].hstack(
        rosters.select("block_id", "nth")[ranges(first, n)]
    )
    starts, stops = (
        pl.when(pl.col(f"{side}_nth") == pl.col("nth")).then(pl.col(row).cast(pl.Float64)).otherwise(bound)
        for side, row, bound in (("from", "begin", -np.inf), ("to", "end", np.inf))
    )
    return pairs.select("memory", "content_hash", "block_id", begin=starts, end=stops)
