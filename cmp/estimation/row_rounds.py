"""Which rounds a memory's cells are made of: for episodes that share outcomes, and for randomization tests."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import polars as pl

from cmp.estimation.cells import BoolArray
from cmp.estimation.clusters import Clusters
from cmp.estimation.episodes import clusters_of_rounds
from cmp.estimation.independent_draws import Draws
from cmp.estimation.log_rounds import rounds_by_row
from cmp.estimation.randomization import MemoryRounds
from cmp.estimation.row_cells import CodedRows, RowStatistics
from cmp.estimation.sums import IntArray, matches

__all__ = ["clusters_of_rows", "draws_of_rows", "memory_rounds", "shares_outcomes"]


def clusters_of_rows(coded: CodedRows, found: RowStatistics, *, in_both_arms: bool) -> Clusters | None:
    """Return which rounds of the cells share an outcome; None where none do."""
    known = coded.episode[(coded.episode >= 0) & ~np.isnan(coded.y)]
    if len(np.unique(known)) == len(known):
        return None
    clusters = clusters_of_rounds(*_frames(coded, found), len(found.keys), in_both_arms=in_both_arms)
    return Clusters.sharing(clusters)


def shares_outcomes(coded: CodedRows, found: RowStatistics) -> BoolArray:
    """Return, one a memory, whether two of its own rows in an arm, all of which are listed, share an outcome."""
    assert not found.implied
    episode = coded.episode[coded.round]
    rows = found.use & (episode >= 0) & ~np.isnan(coded.y[coded.round])
    n_keys = len(found.keys)
    key = np.searchsorted(found.keys, coded.key[rows])
    pairs, count = np.unique(episode[rows] * n_keys + key, return_counts=True)
    shared = np.zeros(n_keys, dtype=bool)
    shared[pairs[count > 1] % n_keys] = True
    return shared


def _frames(
    coded: CodedRows, found: RowStatistics
) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """Return rounds, cells, events and rounds of withholding (none) as a log's statistics have them."""
    strata, stratum_of_cell = np.unique(found.cell // coded.n_memories, return_inverse=True)
    dense = np.full(len(coded.family), -1)
    dense[strata] = np.arange(len(strata))
    stratum, y = dense[coded.stratum], coded.y
    rounds = pl.DataFrame(
        {
            "round_id": np.arange(len(y)),
            "block_id": coded.block,
            "block_row": pl.Series([None], dtype=pl.Float64).new_from_index(0, len(y)),
            "family": coded.family[coded.stratum],
            "stratum": pl.Series(stratum).replace(-1, None),
            "episode_id": pl.Series(coded.episode).replace(-1, None),
            "y": pl.Series(y).fill_nan(None),
        }
    )
    cells = pl.DataFrame(
        {
            "row": found.cells.memory,
            "stratum": stratum_of_cell,
            "memory_id": found.cell % coded.n_memories,
            "begin": np.full(len(stratum_of_cell), -np.inf),
            "end": np.full(len(stratum_of_cell), np.inf),
        },
    )
    drawn = found.use & coded.assigned
    away_cell, away_round = _absent(coded, found)
    at = np.concatenate([coded.round[drawn], away_round])
    memory = np.concatenate([coded.memory[drawn], found.cell[away_cell] % coded.n_memories])
    is_drawn = np.arange(len(at)) < int(drawn.sum())
    events = pl.DataFrame({"round_id": at, "memory_id": memory, "drawn": is_drawn})
    none_withheld = pl.DataFrame(
        schema={"round_id": pl.Int64, "row": pl.Int64, "place": pl.Int64, "away": pl.Boolean}
    )
    return rounds, cells, events, none_withheld


def memory_rounds(coded: CodedRows, found: RowStatistics) -> Callable[[int], MemoryRounds]:
    """Return a function of a row of the table that lists its eligible rounds with an outcome."""
    return rounds_by_row(lambda: _frames(coded, found))


def draws_of_rows(coded: CodedRows, found: RowStatistics) -> Draws:
    """Return the rows with an outcome that are in an arm; all of them are listed."""
    assert not found.implied
    use = found.use & ~np.isnan(coded.y[coded.round])
    rounds, z = coded.round[use], coded.assigned[use].astype(np.float64)
    memory, y = np.searchsorted(found.keys, coded.key[use]), coded.y[rounds]
    return Draws(memory, coded.stratum[rounds], coded.propensity[use], np.ones(len(y)), z, y, y * z)


def _rounds_of_cells(coded: CodedRows, cell: IntArray) -> tuple[IntArray, IntArray]:
    """List the rounds of each cell's stratum: which cell, and which round."""
    order = np.argsort(coded.stratum, kind="stable")
    which, place = matches(coded.stratum[order], cell // coded.n_memories)
    return which, order[place]


def _absent(coded: CodedRows, found: RowStatistics) -> tuple[IntArray, IntArray]:
    """Return (cell, round) pairs that are in no arm: barred, or not listed where rows list everything."""
    rows = ~coded.eligible if found.implied else found.use
    codes = coded.cell_of(rows)
    inside = np.isin(codes, found.cell)
    place, rounds = np.searchsorted(found.cell, codes[inside]), coded.round[rows][inside]
    if found.implied:
        return place, rounds
    sizes = np.bincount(coded.stratum, minlength=len(coded.family))[found.cell // coded.n_memories]
    partial = np.flatnonzero(np.bincount(place, minlength=len(found.cell)) < sizes)
    which, at = _rounds_of_cells(coded, found.cell[partial])
    t = len(coded.y)
    gone = ~np.isin(partial[which] * t + at, place * t + rounds)
    return partial[which[gone]], at[gone]
