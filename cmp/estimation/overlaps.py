"""Which items that span rows overlap runs of rows: summed as differences of running sums, listed at edges alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cmp.estimation.sums import BoolArray, FloatArray, IntArray, matches, ranges

__all__ = ["Items", "Runs"]


@dataclass(frozen=True, slots=True)
class Runs:
    """W runs of rows, each of one key."""

    key: IntArray
    begin: FloatArray
    """The first row; minus infinity for all up to the end."""
    end: FloatArray
    """The row after the last, not below ``begin``."""

    @property
    def is_partial(self) -> BoolArray:
        """Whether a run has an edge."""
        found: BoolArray = np.isfinite(self.begin) | np.isfinite(self.end)
        return found

    def hold(self, run: IntArray, row: FloatArray) -> BoolArray:
        """Return whether runs, by their places, hold rows: an unknown one (NaN) where no edge bounds the run.

        Examples
        --------
        >>> runs = Runs(np.zeros(2, dtype=int), np.array([3.0, -np.inf]), np.array([8.0, np.inf]))
        >>> runs.hold(np.array([0, 0, 0, 1]), np.array([3.0, 8.0, np.nan, np.nan])).tolist()
        [True, False, False, True]
        """
        return ((row >= self.begin[run]) & (row < self.end[run])) | ~self.is_partial[run]

    def select(self, rows: IntArray | BoolArray) -> Runs:
        """Return some of the runs."""
        return Runs(self.key[rows], self.begin[rows], self.end[rows])


@dataclass(frozen=True, slots=True)
class Items:
    """P items, each of one key, that span rows from a first to a last; infinite on both sides or on neither.

    One overlaps the runs of its key that hold, or lie between, its first row and its last.
    """

    key: IntArray
    first: FloatArray
    last: FloatArray

    def sums(self, values: FloatArray, runs: Runs) -> FloatArray:
        """Add up the values of the items that overlap each run; exact where values are whole numbers.

        Those that begin before a run's end, less those that are over before it begins.

        Examples
        --------
        >>> items = Items(np.zeros(3, dtype=int), np.array([0.0, 2.0, 7.0]), np.array([3.0, 2.0, 9.0]))
        >>> runs = Runs(np.zeros(2, dtype=int), np.array([3.0, -np.inf]), np.array([8.0, 2.0]))
        >>> items.sums(np.array([1.0, 10.0, 100.0]), runs).tolist()
        [101.0, 1.0]
        """
        begun = self._sums_before(self.first, values, runs.key, runs.end)
        return begun - self._sums_before(self.last, values, runs.key, runs.begin)

    def cut(self, runs: Runs) -> tuple[IntArray, IntArray]:
        """Return pairs of a run and an item that an edge of it goes through, each once.

        Examples
        --------
        >>> items = Items(np.zeros(3, dtype=int), np.array([0.0, 2.0, 7.0]), np.array([3.0, 2.0, 9.0]))
        >>> runs = Runs(np.zeros(2, dtype=int), np.array([3.0, -np.inf]), np.array([8.0, 2.0]))
        >>> [places.tolist() for places in items.cut(runs)]
        [[0, 0, 1], [0, 2, 0]]
        """
        edge = np.concatenate([runs.begin, runs.end])
        rows = np.unique(edge[np.isfinite(edge)])
        n = len(rows) + 1
        which = np.flatnonzero(np.isfinite(edge))
        run = which % max(len(runs.key), 1)
        codes = runs.key[run] * n + np.searchsorted(rows, edge[which])
        by_code = np.argsort(codes, kind="stable")
        known = np.unique(codes)
        start, stop = (
            np.searchsorted(known, self.key * n + np.searchsorted(rows, of, side="right"))
            for of in (self.first, self.last)
        )
        code = known[ranges(start, stop - start)]
        item = np.repeat(np.arange(len(self.key)), stop - start)
        nth, place = matches(codes[by_code], code)
        pairs = np.unique(run[by_code[place]] * max(len(self.key), 1) + item[nth])
        return pairs // max(len(self.key), 1), pairs % max(len(self.key), 1)

    def _sums_before(self, of: FloatArray, values: FloatArray, key: IntArray, edge: FloatArray) -> FloatArray:
        """Add up the items of a key with ``of`` below an edge."""
        rows = np.unique(edge)
        n = len(rows) + 1
        codes = self.key * n + np.searchsorted(rows, of, side="right")
        order = np.argsort(codes, kind="stable")
        running = np.append(0.0, np.cumsum(values[order]))
        start = np.searchsorted(codes[order], key * n)
        stop = np.searchsorted(codes[order], key * n + np.searchsorted(rows, edge), side="right")
        total: FloatArray = running[stop] - running[start]
        return total
