"""Sums per (memory, stratum) of a log: control arms are never listed, but are strata's totals less other rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from cmp.estimation.log_codes import CodedLog
from cmp.estimation.log_events import Events
from cmp.estimation.spans import SpanSums
from cmp.estimation.sums import FloatArray, IntArray, distinct, group_sums, ranges
from cmp.estimation.terms import Terms

__all__ = ["CellSums", "sum_cells"]

#: Cells built at once: some hundred bytes each.
_PORTION = 1_000_000

#: Share of cells without an exposure from which on adding them up is less work than carrying them along.
_MANY = 0.5


@dataclass(frozen=True, slots=True)
class CellSums:
    """Sums over the rounds of C cells; those of shape (K, C) are of the columns of :class:`Terms`."""

    stratum: IntArray
    """(C,), of several strata that were added up, the first."""
    memory: IntArray
    planned: IntArray
    length: IntArray
    n_roster: IntArray
    """(C,), memories and cards of the stratum's roster."""
    nth: IntArray
    strata: FloatArray
    """(C,), how many strata with an eligible outcome."""
    offset: FloatArray
    ranked: FloatArray
    """(C,), rounds in which the ranker showed the memory."""
    whole: FloatArray
    """(K, C), all rounds before the memory was removed."""
    drawn: FloatArray
    barred: FloatArray

    def select(self, cells: IntArray) -> CellSums:
        """Return some of the cells."""
        return self._map(lambda _, values: values[..., cells])

    def _map(self, change: Callable[[str, Any], Any]) -> CellSums:
        return CellSums(**{f.name: change(f.name, getattr(self, f.name)) for f in fields(self)})

    @classmethod
    def joined(cls, parts: list[CellSums]) -> CellSums:
        """Return the cells of all parts."""
        return parts[0]._map(lambda name, _: np.concatenate([getattr(p, name) for p in parts], axis=-1))


def sum_cells(coded: CodedLog, events: Events, terms: Terms, *, condense: bool) -> CellSums:
    """Sum up every memory of every stratum's roster, some strata at a time.

    By query, a block that many questions share has as many cells as questions times memories: most hold no
    exposure, and with ``condense`` are added up for each memory before the next portion is built.
    """
    totals = terms.sums(coded.stratum, np.arange(len(coded.y)), len(coded.block))
    stratum_of_event = coded.stratum[events.round]
    spans = SpanSums.of(coded, events.windows, terms)
    portions = list(_portions(coded))
    if len(portions) > 1:
        order = np.argsort(stratum_of_event, kind="stable")
        events = events.select(order)
        stratum_of_event = stratum_of_event[order]
    parts = []
    for strata in portions:
        if len(portions) > 1:
            some = events.select(slice(*np.searchsorted(stratum_of_event, [strata[0], strata[-1] + 1])))
        else:
            some = events
        cells = _cells_of(coded, strata, some, terms, totals, spans)
        parts.append(_condensed(cells, coded) if condense else cells)
    return CellSums.joined(parts)


def _portions(coded: CodedLog) -> Iterator[IntArray]:
    """Yield runs of strata that have up to some number of cells together; one run, perhaps of none, at least."""
    ends = np.cumsum(np.diff(coded.first)[coded.block]) // _PORTION
    yield from np.split(np.arange(len(coded.block)), np.flatnonzero(np.diff(ends)) + 1)


def _cells_of(
    coded: CodedLog,
    strata: IntArray,
    events: Events,
    terms: Terms,
    totals: FloatArray,
    spans: SpanSums | None,
) -> CellSums:
    block = coded.block[strata]
    sizes = np.diff(coded.first)[block]
    begin = np.cumsum(sizes) - sizes
    n_cells = int(sizes.sum())
    stratum = np.repeat(strata, sizes)
    member = ranges(coded.first[block], sizes)
    own = coded.stratum[events.round]
    shift = np.zeros(len(coded.block), dtype=np.int64)
    shift[strata] = begin - coded.first[block]
    cell = events.member + shift[own]

    def over(rows: Any) -> FloatArray:
        return terms.sums(cell[rows], events.round[rows], n_cells)

    whole, barred = totals[:, stratum], over(~events.drawn)
    if spans is not None:
        spans.put(coded, strata, shift, whole, barred)
    return CellSums(
        stratum=stratum,
        memory=coded.memory[member],
        planned=coded.planned[member],
        length=coded.length[stratum],
        n_roster=np.repeat(sizes, sizes),
        nth=coded.nth[stratum],
        strata=(whole[0] > barred[0]).astype(np.float64),
        offset=terms.offset[stratum],
        ranked=group_sums(cell, events.ranked, n_cells),
        whole=whole,
        drawn=over(events.drawn),
        barred=barred,
    )


def _condensed(cells: CellSums, coded: CodedLog) -> CellSums:
    """Add up, for each memory, the strata without an exposure, where many are: they have counts and no contrast."""
    idle = cells.drawn[0] + cells.drawn[1] == 0
    if not idle.any() or idle.mean() < _MANY:
        return cells
    rest = cells.select(np.flatnonzero(idle))
    odds = np.where(rest.planned <= 0, 1, np.where(rest.planned >= rest.length, 2, 0))
    owner = coded.family[rest.stratum] * len(coded.ids) + rest.memory
    groups, group = distinct(owner * 3 + odds, 3 * coded.families.height * len(coded.ids))
    n = len(groups)

    def gathered(name: str, values: Any) -> Any:
        if name in ("strata", "ranked", "whole", "drawn", "barred"):
            rows = np.atleast_2d(values)
            return np.stack([group_sums(group, row, n) for row in rows]).reshape(*values.shape[:-1], n)
        least = np.full(n, values.max(), dtype=values.dtype)
        np.minimum.at(least, group, values)
        return least

    return CellSums.joined([cells.select(np.flatnonzero(~idle)), rest._map(gathered)])
