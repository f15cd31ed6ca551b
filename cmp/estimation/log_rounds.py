"""One memory's rounds at a time, for tests that go through assignments."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np
import polars as pl

from cmp.estimation.overlaps import Runs
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
    runs: Runs
    """C of them: the rows of its stratum outside of which the cell's memory is in no arm."""
    block_row: FloatArray


#: Rounds, cells, events and rounds of withholding.
_Frames: TypeAlias = tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame, pl.DataFrame]


def rounds_by_row(frames: Callable[[], _Frames]) -> Callable[[int], MemoryRounds]:
    """Return a function of a table's row that lists its eligible rounds with an outcome, and is idle until called.

    Parameters
    ----------
    frames
        Returns rounds, cells, events and rounds of withholding, as :func:`clusters_of_rounds` takes them.
    """
    found: list[tuple[_Listed, pl.DataFrame, int]] = []

    def rounds_of(row: int) -> MemoryRounds:
        if not found:
            found.append(_listed(*frames()))
        listed, ranked, n_strata = found[0]
        cells = slice(*np.searchsorted(listed.row_of_cell, [row, row + 1]))
        strata = listed.runs.key[cells]
        spans = [np.arange(listed.first[s], listed.first[s + 1]) for s in strata]
        place = np.concatenate([*spans, np.zeros(0, dtype=np.int64)])
        n_rounds = [len(span) for span in spans]
        stratum = np.repeat(strata, n_rounds)
        mine = slice(*np.searchsorted(listed.row, [row, row + 1]))
        what = np.zeros(len(listed.y), dtype=np.int64)
        what[listed.place[mine]] = listed.drawn[mine]
        cell = np.repeat(np.arange(cells.start, cells.stop), n_rounds)
        there = listed.runs.hold(cell, listed.block_row[place])
        kept = there & (what[place] >= 0)
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
    known = rounds.filter(pl.col("y").is_not_null()).select(
        "round_id", pl.col("stratum").cast(pl.Int64), pl.col("block_row").cast(pl.Float64), "y"
    )
    placed = known.drop_nulls("stratum").sort("stratum", "round_id")
    placed = placed.with_columns(place=pl.int_range(pl.len()))
    touched = (
        events.join(placed.select("round_id", "stratum", "place"), on="round_id")
        .join(cells.select(pl.col("row", "stratum").cast(pl.Int64), "memory_id"), on=["stratum", "memory_id"])
        .sort("row", "place")
    )
    order = cells.select(pl.col("row", "stratum").cast(pl.Int64), "begin", "end").sort("row", "stratum")
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
            Runs(*(order[name].to_numpy() for name in ("stratum", "begin", "end"))),
            placed["block_row"].fill_null(np.nan).to_numpy(),
        ),
        ranked.select("row", pl.col("place").cast(pl.Int64), "away", "y"),
        n_strata,
    )
