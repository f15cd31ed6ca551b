"""Rounds that differ by a swap: a memory in one, a reference card in its place in the other."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from cmp.estimation.assembly import LogStatistics
from cmp.estimation.cells import BoolArray, Cells
from cmp.estimation.clusters import Clusters
from cmp.estimation.overlaps import Runs
from cmp.estimation.sums import IntArray, places

__all__ = ["Swaps"]


@dataclass(frozen=True, slots=True)
class Swaps:
    """W comparisons: a memory's exposed rounds in one stratum, its control rounds in that of one card more."""

    exposed: IntArray
    """(W,), the cell whose exposed arm is compared; -1 where there is none."""
    control: IntArray
    """(W,), the cell whose control arm it is compared with."""
    stratum: IntArray
    """(W,), codes of what they are strata of."""
    exposed_in: IntArray
    """(S,), the stratum of swaps whose exposed rounds a log's stratum holds; -1 for none."""
    control_in: IntArray

    @classmethod
    def of(cls, found: LogStatistics, rows: BoolArray) -> Swaps:
        """Pair up some cells of a log, which are of strata told apart by cards."""
        told = found.cards >= 0
        turns = int(found.cards.max(initial=0)) + 1
        of_exposed = np.where(told, found.base * turns + found.cards, -1)
        of_control = np.where(told & (found.cards > 0), of_exposed - 1, -1)
        codes = np.unique(np.concatenate([of_exposed, of_control]))
        codes = codes[codes >= 0]
        exposed_in, control_in = (_places(codes, of) for of in (of_exposed, of_control))
        n, cell = max(len(codes), 1), np.flatnonzero(rows)
        pairs = []
        for strata in (exposed_in, control_in):
            stratum = strata[found.stratum[cell]]
            pairs.append(np.where(stratum >= 0, found.cells.memory[cell] * n + stratum, -1))
        known = np.unique(np.concatenate(pairs))
        known = known[known >= 0]
        exposed, control = (_scattered(cell, _places(known, pair), len(known)) for pair in pairs)
        return cls(exposed, control, known % n, exposed_in, control_in)

    def cells(self, cells: Cells) -> Cells:
        """Return the comparisons of a log's cells."""
        some = cells.select(np.where(self.exposed >= 0, self.exposed, self.control))
        unknown = np.full(len(self.stratum), np.nan)
        return replace(
            some,
            exposed=cells.exposed.at(self.exposed),
            control=cells.control.at(self.control),
            propensity=unknown,
            second_moment=unknown,
        )

    def clusters(self, clusters: Clusters) -> Clusters:
        """Return which of the comparisons' rounds are of one episode.

        An episode's rounds in a stratum of the log are exposed ones in one stratum of swaps, and controls in another.
        """
        key, y = ["stratum", "episode"], pl.col("outcome")
        uses = [
            _used(clusters, self.exposed_in, self.exposed, is_control=False),
            _used(clusters, self.control_in, self.control, is_control=True),
        ]
        parts = (
            pl.concat([parts for parts, _ in uses])
            .group_by(key)
            .agg(
                pl.col("block", "first", "last").first(),  # the same in all strata of a block
                pl.col("rounds").sum(),
                outcome=pl.when(y.min() == y.max(), ~y.is_nan().any()).then(y.first()).otherwise(np.nan),
            )
            .sort(key)
            .with_row_index("place")
        )
        touched = (
            pl.concat([touched for _, touched in uses])
            .join(parts.select("place", *key), on=key)
            .group_by("cell", "place")
            .agg(pl.col("exposed", "away").sum())
            .filter((pl.col("exposed") > 0) | (pl.col("away") > 0))
            .sort("cell", "place")
        )
        cell = np.where(self.exposed >= 0, self.exposed, self.control)
        runs = Runs(self.stratum, clusters.begin[cell], clusters.end[cell])
        n, memory = len(clusters.shared), clusters.memory[cell]
        touched = touched.rename({"place": "part"})
        return Clusters.of_frames(n, memory, runs, parts, touched, in_both_arms=clusters.in_both_arms)


def _used(
    clusters: Clusters, strata: IntArray, cells: IntArray, *, is_control: bool
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return episodes' parts by stratum of swaps, and which of them are no mere controls of a comparison."""
    of_withholding = np.full(clusters.n_strata - len(strata), -1)  # no card takes a ranked memory's place
    stratum = np.append(strata, of_withholding)[clusters.part_stratum]
    parts = pl.DataFrame(
        {
            "part": np.arange(len(stratum)),
            "stratum": stratum,
            "episode": clusters.part_episode,
            "block": clusters.part_block,
            "outcome": clusters.part_outcome,
            "first": clusters.part_first,
            "last": clusters.part_last,
            "rounds": clusters.part_rounds * is_control,
        }
    ).filter(pl.col("stratum") >= 0)
    touched = pl.DataFrame(
        {
            "cell": _scattered(np.arange(len(cells)), cells, len(clusters.memory))[clusters.cell],
            "part": clusters.part,
            "exposed": clusters.exposed * (not is_control),
            "away": clusters.away * is_control,
        }
    ).filter(pl.col("cell") >= 0)
    return parts, touched.join(parts.select("part", "stratum", "episode"), on="part")


def _places(ascending: IntArray, wanted: IntArray) -> IntArray:
    """Return where each code stands; -1 for those below 0."""
    place, found = places(ascending, wanted, int(ascending.max(initial=-1)) + 1)
    return np.where(found, place, -1)


def _scattered(values: IntArray, rows: IntArray, n: int) -> IntArray:
    """Return n values, of which ``rows`` are these and the others -1; rows below 0 are left out."""
    placed = np.full(n, -1)
    placed[rows[rows >= 0]] = values[rows >= 0]
    return placed
