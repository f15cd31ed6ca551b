"""Rounds that share an outcome: which of a contrast's are of one episode, from counts alone."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import numpy as np
import polars as pl

from cmp.estimation.cells import BoolArray
from cmp.estimation.log_codes import integers
from cmp.estimation.overlaps import Items, Runs
from cmp.estimation.sums import FloatArray, IntArray, group_sums, matches

__all__ = ["Clusters", "EpisodeSums", "sums_by_episode"]


@dataclass(frozen=True, slots=True)
class Clusters:
    """Which rounds with an outcome are of one episode; a *part* is an episode's rounds in one stratum.

    Rounds without an episode are episodes of their own. Cells follow the order of the cells they belong to. A cell has
    those parts of its stratum whose episode's rows of the block, from the first to the last, overlap its own run of
    rows; their rounds are controls unless ``away`` says otherwise.
    """

    shared: BoolArray
    """Shape (M,), whether two rounds of the memory's contrast are of one episode; found out by :meth:`marked`."""
    in_both_arms: bool
    """Whether strata with one arm only are in no contrast, whatever becomes of them."""
    memory: IntArray
    """Shape (C,), row of the table."""
    stratum: IntArray
    """Shape (C,), code of the stratum; no two cells of a memory have the same."""
    begin: FloatArray
    """Shape (C,), the row of the block from which on the memory was there; minus infinity for the first."""
    end: FloatArray
    """Shape (C,), the row from which on it was gone, not below ``begin``; infinity where it stayed."""
    part_stratum: IntArray
    """Shape (P,)."""
    part_block: IntArray
    """Shape (P,), a code of the block that the stratum is of."""
    part_episode: IntArray
    """Shape (P,), a code of the episode within its family."""
    part_first: FloatArray
    """Shape (P,), the first row that the episode has in the block; minus infinity where a row is unknown, or it has
    rounds in another block."""
    part_last: FloatArray
    """Shape (P,), the last one; infinity likewise."""
    part_rounds: FloatArray
    """Shape (P,)."""
    part_outcome: FloatArray
    """Shape (P,), the outcome that all of its rounds have; NaN where they differ."""
    cell: IntArray
    """Shape (K,), a row for each cell and part in which not every round is a control; sorted by cell, then part."""
    part: IntArray
    """Shape (K,)."""
    exposed: FloatArray
    """Shape (K,), rounds of the part in the cell's exposed arm."""
    away: FloatArray
    """Shape (K,), rounds of the part that are not in its control arm."""

    @classmethod
    def of_frames(
        cls,
        n_memories: int,
        memory: IntArray,
        runs: Runs,
        parts: pl.DataFrame,
        touched: pl.DataFrame,
        *,
        in_both_arms: bool,
    ) -> Clusters:
        """Return clusters, not yet marked.

        Parameters
        ----------
        n_memories
            M.
        memory, runs
            Of cells; the keys of runs are strata.
        parts
            P rows of ``stratum, block, episode, first, last, rounds, outcome``.
        touched
            K rows of ``cell, part, exposed, away``, sorted by the first two.
        in_both_arms
            See there.
        """
        return cls(
            shared=np.zeros(n_memories, dtype=bool),
            in_both_arms=in_both_arms,
            memory=memory,
            stratum=runs.key,
            begin=runs.begin,
            end=runs.end,
            part_stratum=integers(parts["stratum"]),
            part_block=integers(parts["block"]),
            part_episode=integers(parts["episode"]),
            part_first=parts["first"].to_numpy(),
            part_last=parts["last"].to_numpy(),
            part_rounds=parts["rounds"].to_numpy(),
            part_outcome=parts["outcome"].to_numpy(),
            cell=integers(touched["cell"]),
            part=integers(touched["part"]),
            exposed=touched["exposed"].to_numpy(),
            away=touched["away"].to_numpy(),
        )

    @property
    def n_strata(self) -> int:
        """One more than the largest code of a stratum."""
        return max(_codes(self.stratum), _codes(self.part_stratum))

    @property
    def runs(self) -> Runs:
        """The rows that each cell has of its stratum."""
        return Runs(self.stratum, self.begin, self.end)

    def over_parts(self, values: FloatArray) -> FloatArray:
        """Add up what each cell's parts have, exact for whole numbers alone."""
        found = group_sums(self.part_stratum, values, self.n_strata)[self.stratum]
        runs = self.runs
        partial = runs.is_partial
        if partial.any():
            parts = Items(self.part_stratum, self.part_first, self.part_last)
            found[partial] = parts.sums(values, runs.select(partial))
        return found

    def has(self, cell: IntArray, part: IntArray) -> BoolArray:
        """Return whether cells have parts, which are of their strata."""
        begun = self.part_first[part] < self.end[cell]
        found: BoolArray = begun & (self.part_last[part] >= self.begin[cell])
        return found

    def marked(self) -> Clusters:
        """Return the same with ``shared`` found out: the squared numbers of an episode's rounds exceed the numbers."""
        n_cells, n_memories = len(self.memory), len(self.shared)
        all_of_part = self.part_rounds[self.part]
        left = all_of_part - self.away + self.exposed
        n1 = group_sums(self.cell, self.exposed, n_cells)
        n = self.over_parts(self.part_rounds) + group_sums(self.cell, left - all_of_part, n_cells)
        used = ((n1 > 0) & (n > n1) | (not self.in_both_arms)).astype(np.float64)
        squares = self.over_parts(self.part_rounds**2)
        squares += group_sums(self.cell, left**2 - all_of_part**2, n_cells)
        shared = group_sums(self.memory, used * (squares - n), n_memories) > 0  # within a stratum
        if not shared[self.memory].all():  # only then need pairs of strata be gone through
            rounds = group_sums(self.memory, used * n, n_memories)
            shared = sums_by_episode(self, -used, used).squares > rounds
        return replace(self, shared=shared)

    @classmethod
    def sharing(cls, clusters: Clusters | None) -> Clusters | None:
        """Return clusters marked, or None where no contrast has two rounds of one episode."""
        marked = None if clusters is None else clusters.marked()
        return None if marked is None or not marked.shared.any() else marked

    def against(self, is_other: BoolArray, rows: BoolArray) -> Clusters:
        """Return some cells, their control arm made of the exposed rounds of others in the same stratum.

        Parameters
        ----------
        is_other, rows
            Shape (C,), the cells to compare with (cards) and the cells to keep.
        """
        theirs = is_other[self.cell]
        compared = group_sums(self.part[theirs], self.exposed[theirs], len(self.part_rounds))
        mine, place = rows[self.cell], np.cumsum(rows) - 1
        return replace(
            self,
            memory=self.memory[rows],
            stratum=self.stratum[rows],
            begin=self.begin[rows],
            end=self.end[rows],
            part_rounds=compared,
            cell=place[self.cell[mine]],
            part=self.part[mine],
            exposed=self.exposed[mine],
            away=np.zeros(int(mine.sum())),
        )

    def joined(self, other: Clusters) -> Clusters:
        """Return both's cells, of the same memories, not yet marked: strata of the other are strata of their own."""
        parts, cells = len(self.part_rounds), len(self.memory)
        shift = {"stratum": self.n_strata, "part_stratum": self.n_strata, "cell": cells, "part": parts}
        both = {
            field.name: np.concatenate(
                [getattr(self, field.name), getattr(other, field.name) + shift.get(field.name, 0)]
            )
            for field in fields(self)
            if field.name not in ("shared", "in_both_arms")
        }
        return Clusters(shared=self.shared, in_both_arms=self.in_both_arms, **both)


class EpisodeSums(NamedTuple):
    """Sums over the episodes of each memory's cells, of shape (M,)."""

    squares: FloatArray
    """Of the squared sums of ``a_t``."""
    exposed_squares: FloatArray
    """Of the squared numbers of exposed rounds."""
    runs_on: BoolArray
    """Whether an episode has rounds in two cells."""
    across: BoolArray
    """Whether these are of two blocks."""


def sums_by_episode(clusters: Clusters, up: FloatArray, down: FloatArray) -> EpisodeSums:
    """Sum up ``a_t``: ``up`` in the exposed rounds of each cell, ``-down`` in its control rounds, where not 0.

    First every round is taken for a control, which goes by strata and pairs of them; then the episodes that hold
    another one are put right.
    """
    m = len(clusters.shared)
    exposed_squares, squares = _squares_put_right(clusters, up, down)
    whole = clusters.over_parts(clusters.part_rounds**2)
    squares += group_sums(clusters.memory, down**2 * whole, m)
    first, second, product, is_block = _pairs_of_cells(clusters)
    squares += 2.0 * group_sums(clusters.memory[first], down[first] * product * down[second], m)
    runs_on, across = (
        np.bincount(clusters.memory[first], weights=of, minlength=m) > 0 for of in (product > 0, is_block)
    )
    return EpisodeSums(squares, exposed_squares, runs_on, across)


def _squares_put_right(clusters: Clusters, up: FloatArray, down: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Sum over episodes that hold an exposed or ineligible round.

    Returns, per memory, the squared numbers of exposed rounds, and the squared sums of ``a_t`` less what the episodes
    would have given as controls throughout.
    """
    m, n_parts = len(clusters.shared), max(len(clusters.part_rounds), 1)
    touched = down[clusters.cell] > 0
    pairs = clusters.memory[clusters.cell[touched]] * _codes(clusters.part_episode)
    pairs = np.unique(pairs + clusters.part_episode[clusters.part[touched]])
    memory, episode = np.divmod(pairs, _codes(clusters.part_episode))
    by_episode = np.argsort(clusters.part_episode, kind="stable")
    place, spot = matches(clusters.part_episode[by_episode], episode)
    part, memory_of_spot = by_episode[spot], memory[place]
    cell = _find(
        clusters.memory * clusters.n_strata + clusters.stratum,
        memory_of_spot * clusters.n_strata + clusters.part_stratum[part],
    )
    held = cell >= 0
    held[held] = clusters.has(cell[held], part[held])
    cell, part, place = cell[held], part[held], place[held]
    row = _find(clusters.cell * n_parts + clusters.part, cell * n_parts + part)
    exposed = np.where(row >= 0, clusters.exposed[row], 0.0) * (down[cell] > 0)
    away = np.where(row >= 0, clusters.away[row], 0.0)
    rounds = clusters.part_rounds[part]
    ours = group_sums(place, up[cell] * exposed - down[cell] * (rounds - away), len(memory))
    idle = group_sums(place, down[cell] * rounds, len(memory))
    count = group_sums(place, exposed, len(memory))
    return group_sums(memory, count**2, m), group_sums(memory, ours**2 - idle**2, m)


def _pairs_of_cells(clusters: Clusters) -> tuple[IntArray, IntArray, FloatArray, BoolArray]:
    """Return pairs of cells of one memory whose strata some episodes run through.

    Returns
    -------
    The first cell, the one in the later stratum, ``sum_g t_g t'_g`` over episodes with so many rounds in both strata,
    and whether these are of two blocks.
    """
    order = np.argsort(clusters.part_episode, kind="stable")
    first, spot = matches(clusters.part_episode[order], clusters.part_episode)
    second = order[spot]
    later = clusters.part_stratum[second] > clusters.part_stratum[first]
    first, second = first[later], second[later]
    n_strata = clusters.n_strata
    block = np.zeros(n_strata, dtype=np.int64)
    block[clusters.part_stratum] = clusters.part_block
    code, at = np.unique(
        clusters.part_stratum[first] * n_strata + clusters.part_stratum[second], return_inverse=True
    )
    one, other = np.divmod(code, n_strata)
    by_stratum = np.argsort(clusters.stratum, kind="stable")
    pair, spot = matches(clusters.stratum[by_stratum], one)
    cell = by_stratum[spot]
    mate = _find(
        clusters.memory * n_strata + clusters.stratum, clusters.memory[cell] * n_strata + other[pair]
    )
    held = mate >= 0
    pair, cell, mate = pair[held], cell[held], mate[held]
    is_other_block = block[one[pair]] != block[other[pair]]
    products = clusters.part_rounds[first] * clusters.part_rounds[second]
    product = group_sums(at, products, len(code))[pair]
    # parts of episodes that run on into another block are in every row; within a block, rows decide
    begin, end = clusters.begin, clusters.end
    partial = ~is_other_block & (clusters.runs.is_partial[cell] | clusters.runs.is_partial[mate])
    alike = (begin[cell] == begin[mate]) & (end[cell] == end[mate])
    one_run = np.flatnonzero(partial & alike)
    items = Items(at, clusters.part_first[first], clusters.part_last[first])
    within = Runs(pair[one_run], begin[cell[one_run]], end[cell[one_run]])
    product[one_run] = items.sums(products, within)
    rest = np.flatnonzero(partial & ~alike)  # a draw's stratum, and one of withholding
    by_code = np.argsort(at, kind="stable")
    nth, spot = matches(at[by_code], pair[rest])
    item = by_code[spot]
    both = clusters.has(cell[rest][nth], first[item]) & clusters.has(mate[rest][nth], second[item])
    product[rest] = group_sums(nth, products[item] * both, len(rest))
    return cell, mate, product, is_other_block & (product > 0)


def _codes(values: IntArray) -> int:
    return int(values.max(initial=0)) + 1


def _find(values: IntArray, wanted: IntArray) -> IntArray:
    """Return where each wanted value stands among distinct ones; -1 where it does not."""
    if not len(values):
        return np.full(len(wanted), -1)
    order = np.argsort(values, kind="stable")
    spot = np.minimum(np.searchsorted(values[order], wanted), len(values) - 1)
    found: IntArray = np.where(values[order[spot]] == wanted, order[spot], -1)
    return found
