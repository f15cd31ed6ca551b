"""One memory's rounds at a time, for tests that go through assignments."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np
import polars as pl

from cmp.estimation.randomization import MemoryRounds
from cmp.estimation.sums import FloatArray, IntArray

__all__ = ["rounds_by_row"]


class _Listed(NamedTuple):
    """Rounds with an outcome in the order of strata, and what memories did in some of them, in the order of rows."""

    y: FloatArray
    first: IntArray
    """Shape (S + 1,), where each stratum's rounds begin."""
    row: IntArray
    place: IntArray
    drawn: IntArray
    row_of_cell: IntArray
    """Shape (C,), which row each cell belongs to, in the order of rows."""
    strata: IntArray
    """Shape (C,), their strata."""


#: Rounds, cells, events and rounds of withholding.
_Frames: TypeAlias = tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame, pl.DataFrame]


def rounds_by_row(frames: Callable[[], _Frames]) -> Callable[[int], MemoryRounds]:
    """Return a function of a table's row that lists its eligible rounds with an outcome, and is idle until called.

    Parameters
    ----------
    frames
        Returns four frames. Randomized rounds: ``round_id``, ``stratum`` (a code; null for a stratum without cells),
        ``y``. Cells of draws: ``row``, ``stratum``, ``memory_id``. Events: ``round_id``, ``memory_id``, ``drawn``:
        eligible rounds that drew a memory, and (False) rounds in which one was in no arm. Rounds that kept or withheld
        a memory: ``round_id``, ``row``, ``place`` (a code of the cell, from 0), ``away``.
    """
    found: list[tuple[_Listed, pl.DataFrame, int]] = []

    def rounds_of(row: int) -> MemoryRounds:
        if not found:
            found.append(_listed(*frames()))
        listed, ranked, n_strata = found[0]
        strata = listed.strata[slice(*np.searchsorted(listed.row_of_cell, [row, row + 1]))]
        spans = [np.arange(listed.first[s], listed.first[s + 1]) for s in strata]
        place = np.concatenate([*spans, np.zeros(0, dtype=np.int64)])
        stratum = np.repeat(strata, [len(span) for span in spans])
        mine = slice(*np.searchsorted(listed.row, [row, row + 1]))
        what = np.zeros(len(listed.y), dtype=np.int64)
        what[listed.place[mine]] = listed.drawn[mine]
        kept = what[place] >= 0
        own = ranked.filter(pl.col("row") == row)
        return MemoryRounds(
            np.concatenate([listed.y[place[kept]], own["y"].to_numpy()]),
            np.concatenate([what[place[kept]] > 0, ~own["away"].to_numpy()]),
            np.concatenate([stratum[kept], own["place"].to_numpy() + n_strata]),
        )

    return rounds_of


def _listed(
    rounds: pl.DataFrame, cells: pl.DataFrame, events: pl.DataFrame, withheld: pl.DataFrame
) -> tuple[_Listed, pl.DataFrame, int]:
    known = rounds.filter(pl.col("y").is_not_null()).select("round_id", pl.col("stratum").cast(pl.Int64), "y")
    placed = known.drop_nulls("stratum").sort("stratum", "round_id")
    placed = placed.with_columns(place=pl.int_range(pl.len()))
    touched = (
        events.join(placed.select("round_id", "stratum", "place"), on="round_id")
        .join(cells.select(pl.col("row", "stratum").cast(pl.Int64), "memory_id"), on=["stratum", "memory_id"])
        .sort("row", "place")
    )
    order = cells.select(pl.col("row", "stratum").cast(pl.Int64)).sort("row", "stratum")
    n_strata = int(np.max(cells["stratum"].to_numpy(), initial=-1)) + 1
    ranked = withheld.join(known.select("round_id", "y"), on="round_id").sort("row", "place", "round_id")
    return (
        _Listed(
            placed["y"].to_numpy(),
            np.searchsorted(placed["stratum"].to_numpy(), np.arange(n_strata + 1)),
            touched["row"].to_numpy(),
            touched["place"].to_numpy(),
            np.where(touched["drawn"].to_numpy(), 1, -1),
            order["row"].to_numpy(),
            order["stratum"].to_numpy(),
        ),
        ranked.select("row", pl.col("place").cast(pl.Int64), "away", "y"),
        n_strata,
    )
