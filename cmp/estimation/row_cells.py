"""Additive statistics per (memory, stratum) from rows of (round, memory), listed in full or implied by a roster."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from cmp.estimation.cells import Arm, BoolArray, Cells, Tallies
from cmp.estimation.sums import (
    FloatArray,
    IntArray,
    distinct,
    group_sums,
    matches,
    split_by_scope,
)
from cmp.estimation.terms import Terms, least_outcomes

__all__ = ["CodedRoster", "CodedRows", "RowStatistics", "statistics_of_roster", "statistics_of_rows"]


@dataclass(frozen=True, slots=True)
class CodedRows:
    """Rounds (T) and rows (E) with their names replaced by codes; strata (S) are in the order of their names."""

    y: FloatArray
    """(T,), NaN where missing."""
    stratum: IntArray
    """(T,)."""
    block: IntArray
    """(T,), the design's stratum: by query, several strata are of one."""
    episode: IntArray
    """(T,), -1 where the round is alone."""
    family: IntArray
    """(S,), the scope (or scope and query) of each stratum."""
    scope: IntArray
    """(S,)."""
    round: IntArray
    """(E,)."""
    memory: IntArray
    """(E,), 0 to ``n_memories - 1``."""
    assigned: BoolArray
    propensity: FloatArray
    eligible: BoolArray
    n_memories: int

    @property
    def key(self) -> IntArray:
        """(E,), code of each row's (family, memory)."""
        return self.key_of(self.stratum[self.round], self.memory)

    def key_of(self, stratum: IntArray, memory: IntArray) -> IntArray:
        """Return the code of (family, memory)."""
        return self.family[stratum] * self.n_memories + memory

    def cell_of(self, rows: BoolArray) -> IntArray:
        """Return the code of (stratum, memory) of some rows."""
        return self.stratum[self.round[rows]] * self.n_memories + self.memory[rows]


@dataclass(frozen=True, slots=True)
class CodedRoster:
    """Who might have been drawn in each round of a stratum of the design, each of shape (R,) but the last."""

    base: IntArray
    """The design's stratum."""
    memory: IntArray
    propensity: FloatArray
    base_of: IntArray
    """(S,), the design's stratum of each stratum (by query, several are of one)."""


@dataclass(frozen=True, slots=True)
class RowStatistics:
    """What the table of utilities is made from; K keys, sorted codes of (family, memory)."""

    keys: IntArray
    cells: Cells
    cell: IntArray
    """(C,), code of each cell's (stratum, memory)."""
    tallies: Tallies
    use: BoolArray
    """(E,), rows that are in an arm."""
    implied: bool
    """Whether rounds of a cell's stratum without a row are controls."""


def statistics_of_rows(coded: CodedRows) -> RowStatistics:
    """Sum rows up where they list every memory that might have been drawn."""
    pi = coded.propensity
    use = coded.eligible & (pi > 0.0) & (pi < 1.0)
    cell, place = distinct(coded.cell_of(use), len(coded.family) * coded.n_memories)
    least, most = np.full(len(cell), np.inf), np.full(len(cell), -np.inf)
    np.minimum.at(least, place, pi[use])
    np.maximum.at(most, place, pi[use])
    constant = not (most > least).any()
    arms = _counted if constant else _weighted
    cells = arms(coded, use, place, cell, least)
    keys, row = distinct(coded.key, (int(coded.family.max(initial=0)) + 1) * coded.n_memories)
    certain = coded.eligible & ~use
    tallies = [
        np.bincount(row, weights=rows, minlength=len(keys)).astype(np.int64)
        for rows in (~coded.eligible, certain, certain & (pi >= 1.0))
    ]
    return _found(coded, keys, cell, cells, tallies=tallies, use=use, implied=False)


def statistics_of_roster(coded: CodedRows, roster: CodedRoster) -> RowStatistics:
    """Sum up by subtraction where rows list the drawn memories alone: the rest of a stratum's rounds are controls."""
    n, n_strata = coded.n_memories, len(coded.family)
    order = np.argsort(roster.base, kind="stable")
    strata, place = matches(roster.base[order], roster.base_of)
    member = order[place]
    cell, sorted_by = np.unique(strata * n + roster.memory[member], return_index=True)
    pi = roster.propensity[member][sorted_by]
    terms = Terms.of(coded.y, coded.stratum, coded.scope)
    own_cell = coded.cell_of(np.ones_like(coded.eligible))
    arms = (coded.eligible & coded.assigned, ~coded.eligible & np.isin(own_cell, cell))
    groups = [np.searchsorted(cell, own_cell[rows]) for rows in arms]
    chosen = [coded.round[rows] for rows in arms]
    whole = terms.sums(coded.stratum, np.arange(len(coded.y)), n_strata)[:, cell // n]
    drawn, away = (terms.sums(g, r, len(cell)) for g, r in zip(groups, chosen, strict=True))
    exposed, control = terms.arm(drawn), terms.arm(whole - drawn - away)
    chance = (pi > 0.0) & (pi < 1.0)
    cells = Cells.unweighted(
        np.arange(len(cell)), terms.offset[cell // n], pi, exposed, control, place=cell // n
    ).select(chance)
    keys, row = np.unique(coded.key_of(cell // n, cell % n), return_inverse=True)
    everyone = exposed.n + exposed.missing + control.n + control.missing
    out = group_sums(groups[1], np.ones(len(groups[1])), len(cell))
    tallies = [
        group_sums(row, values, len(keys)).astype(np.int64)
        for values in (out, everyone * ~chance, everyone * (pi >= 1.0))
    ]
    use = coded.eligible & np.isin(own_cell, cell[chance])
    return _found(coded, keys, cell[chance], cells, tallies=tallies, use=use, implied=True)


def _found(
    coded: CodedRows,
    keys: IntArray,
    cell: IntArray,
    cells: Cells,
    *,
    tallies: list[IntArray],
    use: BoolArray,
    implied: bool,
) -> RowStatistics:
    key = coded.key_of(cell // coded.n_memories, cell % coded.n_memories)
    placed = replace(cells, memory=np.searchsorted(keys, key))
    # rows do not say that it was the ranker which barred a memory
    tallied = Tallies(np.zeros(len(keys), dtype=np.int64), *tallies)
    return RowStatistics(keys, placed, cell, tallied, use, implied)


def _counted(coded: CodedRows, use: BoolArray, place: IntArray, cell: IntArray, pi: FloatArray) -> Cells:
    terms = Terms.of(coded.y, coded.stratum, coded.scope)
    rounds, drawn, stratum = coded.round[use], coded.assigned[use], cell // coded.n_memories
    exposed, control = (terms.arm(terms.sums(place[z], rounds[z], len(cell))) for z in (drawn, ~drawn))
    return Cells.unweighted(np.arange(len(cell)), terms.offset[stratum], pi, exposed, control, place=stratum)


def _weighted(coded: CodedRows, use: BoolArray, place: IntArray, cell: IntArray, _: FloatArray) -> Cells:
    """The same with weights 1/pi and 1/(1 - pi), which differ from round to round."""
    rounds, drawn, pi = coded.round[use], coded.assigned[use], coded.propensity[use]
    y, stratum_of_row = coded.y[rounds], coded.stratum[rounds]
    known, scope = ~np.isnan(y), coded.scope[stratum_of_row]
    offset = least_outcomes(coded.y, coded.stratum, len(coded.family))
    d = np.nan_to_num(y - offset[stratum_of_row], nan=0.0)
    weight = 1.0 / np.where(drawn, pi, 1.0 - pi)

    def add(rows: BoolArray, values: npt.NDArray[np.float64] | float) -> FloatArray:
        terms = np.where(rows, values, 0.0)
        return sum(
            (group_sums(place, limb, len(cell)) for limb in split_by_scope(terms, scope, len(coded.y))),
            np.zeros(len(cell)),
        )

    arms = []
    for z in (drawn, ~drawn):
        seen = z & known
        weighted = weight, weight**2, weight * d, weight * d**2
        lost = z & ~known
        sums = add(seen, 1.0), add(lost, 1.0), *(add(seen, values) for values in weighted), add(lost, weight)
        arms.append(Arm(*sums))
    stratum = cell // coded.n_memories
    nowhere = np.full(len(cell), np.nan)
    plain = Cells.unweighted(np.arange(len(cell)), offset[stratum], nowhere, arms[0], arms[1], place=stratum)
    return replace(
        plain,
        weighted=True,
        second_moment=add(known, (weight * np.nan_to_num(y)) ** 2),
        information=add(known, pi * (1.0 - pi)),
        missing_information=add(~known, pi * (1.0 - pi)),
    )
