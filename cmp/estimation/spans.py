"""Runs of a block's rows in which members of its roster are there: summed as differences, listed where asked."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from cmp.estimation.cells import BoolArray
from cmp.estimation.log_codes import CodedLog
from cmp.estimation.sums import FloatArray, IntArray, distinct, matches, ranges
from cmp.estimation.terms import Terms

__all__ = ["SpanSums", "Windows", "absent_rounds"]


@dataclass(frozen=True, slots=True)
class Windows:
    """Runs of rows outside of which a member is not eligible, W in all; members without one are in every row.

    Runs of one member do not overlap, and come in their order. One from minus infinity to infinity is the whole block,
    rounds of an unknown row included; no other holds them.
    """

    member: IntArray
    """(W,), rows of rosters, ascending."""
    begin: FloatArray
    """(W,), the first row."""
    end: FloatArray
    """(W,), the row after the last; not above ``begin`` where the run is empty."""

    @classmethod
    def none(cls) -> Windows:
        """Return no window: everybody is in every row.

        Examples
        --------
        >>> len(Windows.none().member)
        0
        """
        return cls(np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros(0))

    @classmethod
    def of(cls, named: pl.DataFrame, coded: CodedLog) -> Windows:
        """Replace the names of ``block_id, memory_id, begin, end`` by members; those outside of rosters are left out.

        Parameters
        ----------
        named, coded
            The windows, and the log's codes.
        """
        blocks = pl.DataFrame({"block_id": coded.strata["block_id"], "block": coded.block}).unique()
        ids = pl.DataFrame({"memory_id": coded.ids}).with_row_index("memory")
        codes = named.join(blocks, on="block_id").join(ids, on="memory_id")
        member, found = coded.members(codes["block"].to_numpy(), codes["memory"].cast(pl.Int64).to_numpy())
        begin, end = (codes[name].to_numpy()[found] for name in ("begin", "end"))
        order = np.lexsort((end, begin, member[found]))
        return cls(member[found][order], begin[order], end[order])

    def ended(self, coded: CodedLog) -> Windows:
        """Return the same cut off where members were removed, and a run for each other member that was.

        Parameters
        ----------
        coded
            The log.
        """
        gone = np.setdiff1d(np.flatnonzero(np.isfinite(coded.removed)), self.member)
        member = np.concatenate([self.member, gone])
        begin = np.concatenate([self.begin, np.full(len(gone), -np.inf)])
        end = np.concatenate([self.end, np.full(len(gone), np.inf)])
        order = np.argsort(member, kind="stable")
        member = member[order]
        return Windows(member, begin[order], np.minimum(end[order], coded.removed[member]))

    def hulls(self, n_members: int) -> tuple[FloatArray, FloatArray]:
        """Return the first row of each member's first run, and the row after its last's last.

        Parameters
        ----------
        n_members
            Rows of rosters.
        """
        begin, end = np.full(n_members, -np.inf), np.full(n_members, np.inf)
        begin[self.member[self._is_first]] = self.begin[self._is_first]
        end[self.member[self._is_last]] = self.end[self._is_last]
        return np.minimum(begin, end), end

    def several(self) -> Windows:
        """Return those of members that have more than one."""
        lone = self._is_first & self._is_last
        return Windows(self.member[~lone], self.begin[~lone], self.end[~lone])

    @property
    def _is_first(self) -> BoolArray:
        return np.append(True, self.member[1:] != self.member[:-1])[: len(self.member)]

    @property
    def _is_last(self) -> BoolArray:
        return np.append(self._is_first[1:], True)[: len(self.member)]


@dataclass(frozen=True, slots=True)
class _RowOrder:
    """Some of a log's rounds by stratum and row, those of an unknown row last."""

    rounds: IntArray
    stratum: IntArray
    rows: FloatArray
    """Every row that occurs."""
    keys: IntArray
    """One a round: ascending."""

    @classmethod
    def of(cls, coded: CodedLog, chosen: BoolArray) -> _RowOrder:
        some = np.flatnonzero(chosen)
        row, stratum = coded.block_row[some], coded.stratum[some]
        rows = np.unique(row[~np.isnan(row)])
        keys = stratum * (len(rows) + 2) + np.searchsorted(rows, row)  # NaN is behind all
        order = np.argsort(keys, kind="stable")
        return cls(some[order], stratum[order], rows, keys[order])

    def places(self, stratum: IntArray, begin: FloatArray, end: FloatArray) -> tuple[IntArray, IntArray]:
        """Return where runs of rows of strata start and stop."""
        before = stratum * (len(self.rows) + 2)
        last = np.searchsorted(self.rows, end) + (np.isneginf(begin) & np.isposinf(end))
        start = np.searchsorted(self.keys, before + np.searchsorted(self.rows, begin))
        return start, np.maximum(start, np.searchsorted(self.keys, before + last))


@dataclass(frozen=True, slots=True)
class SpanSums:
    """Sums of terms over the rounds of a stratum up to each row, and whose cells need them.

    Sums run within strata, where limbs are multiples of one unit: every partial sum is exact, and so are differences.
    """

    gone: IntArray
    """Members that were removed, ascending."""
    windows: Windows
    order: _RowOrder
    terms: FloatArray
    """(K, E), in the order of rows."""
    sums: FloatArray
    """(K, E), over a stratum's rounds up to this one, it included."""

    @classmethod
    def of(cls, coded: CodedLog, windows: Windows, terms: Terms) -> SpanSums | None:
        """Sum up the blocks in which somebody is not in every row; None where everybody is."""
        gone = np.flatnonzero(np.isfinite(coded.removed))
        some = np.concatenate([gone, windows.member])
        if not len(some):
            return None
        order = _RowOrder.of(coded, _blocks_of(some, coded)[coded.block][coded.stratum])
        columns = [column[order.rounds] for column in terms.columns]
        frame = pl.DataFrame({"stratum": order.stratum, **{str(i): c for i, c in enumerate(columns)}})
        running = frame.select(pl.exclude("stratum").cum_sum().over("stratum"))
        return cls(gone, windows, order, np.stack(columns), np.stack([c.to_numpy() for c in running]))

    def put(
        self, coded: CodedLog, strata: IntArray, shift: IntArray, whole: FloatArray, barred: FloatArray
    ) -> None:
        """Write what members have in the rounds they are there.

        Parameters
        ----------
        coded
            The log.
        strata
            Those that the cells are of.
        shift
            (S,), what a stratum adds to a member's number to make the cell's.
        whole
            (K, C), sums over all rounds of the stratum, which become those before the member's removal.
        barred
            (K, C), to which rounds outside the member's windows are added.
        """
        nth, place = matches(coded.block_of_member[self.gone], coded.block[strata])
        stratum, member = strata[nth], self.gone[place]
        whole[:, member + shift[stratum]] = self._within(
            stratum, np.full(len(member), -np.inf), coded.removed[member]
        )
        nth, place = matches(coded.block_of_member[self.windows.member], coded.block[strata])
        stratum, member = strata[nth], self.windows.member[place]
        end = np.minimum(self.windows.end[place], coded.removed[member])
        inside = self._within(stratum, self.windows.begin[place], end)
        cells, cell = distinct(member + shift[stratum], whole.shape[1])
        within = np.stack([np.bincount(cell, weights=row, minlength=len(cells)) for row in inside])
        barred[:, cells] += whole[:, cells] - within

    def _within(self, stratum: IntArray, begin: FloatArray, end: FloatArray) -> FloatArray:
        start, stop = self.order.places(stratum, begin, end)
        found = np.zeros((len(self.sums), len(start)))
        some = stop > start
        start, stop = start[some], stop[some]
        found[:, some] = self.sums[:, stop - 1] - self.sums[:, start] + self.terms[:, start]
        return found


def absent_rounds(
    coded: CodedLog, spans: Windows, among: BoolArray | None = None
) -> tuple[IntArray, IntArray]:
    """List the rounds in which members were outside of all of their runs.

    Parameters
    ----------
    coded
        The log.
    spans
        From :meth:`Windows.ended`: who is eligible where. Members without a run are not looked at.
    among
        (T,), the rounds to look at; all where it is left out.

    Returns
    -------
    Codes of rounds, and members.
    """
    member = spans.member
    if not len(member):
        return member, member
    chosen = _blocks_of(member, coded)[coded.block][coded.stratum]
    order = _RowOrder.of(coded, chosen if among is None else chosen & among)
    strata = np.unique(order.stratum)
    nth, span = matches(coded.block_of_member[member], coded.block[strata])
    stratum, member = strata[nth], member[span]
    start, stop = order.places(stratum, spans.begin[span], spans.end[span])
    first = np.searchsorted(order.stratum, stratum)
    last = np.searchsorted(order.stratum, stratum, side="right")
    is_new = np.append(True, (np.diff(stratum) != 0) | (np.diff(member) != 0))[: len(stratum)]
    is_last = np.append(is_new[1:], True)[: len(stratum)]
    before = np.where(is_new, first, np.append(0, stop[:-1])[: len(stratum)])
    begins, n = np.append(before, stop[is_last]), np.append(start - before, (last - stop)[is_last])
    return order.rounds[ranges(begins, n)], np.repeat(np.append(member, member[is_last]), n)


def _blocks_of(member: IntArray, coded: CodedLog) -> BoolArray:
    """Return which blocks have one of the members."""
    has = np.zeros(len(coded.first) - 1, dtype=bool)
    has[coded.block_of_member[member]] = True
    return has
