"""From sums to the arrays that a table of utilities is made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import polars as pl

from cmp.estimation.cells import BoolArray, Cells, Outcomes, Tallies
from cmp.estimation.clusters import Clusters
from cmp.estimation.consistency import check_certain
from cmp.estimation.episodes import clusters_of_rounds
from cmp.estimation.log_cells import CellSums
from cmp.estimation.log_codes import CodedLog
from cmp.estimation.log_events import Events, Withholdings
from cmp.estimation.log_rounds import rounds_by_row
from cmp.estimation.outcome_sums import OutcomeSums, sum_outcomes
from cmp.estimation.overlaps import Runs
from cmp.estimation.randomization import MemoryRounds
from cmp.estimation.spans import absent_rounds
from cmp.estimation.sums import FloatArray, IntArray, distinct, group_sums
from cmp.estimation.terms import Terms

__all__ = ["LogStatistics", "assemble"]


@dataclass(frozen=True, slots=True)
class LogStatistics:
    """What the table of utilities is made from; M rows of ``keys``, C cells."""

    keys: pl.DataFrame
    """``scope``, ``group`` (by query), ``memory_id``; sorted."""
    cells: Cells
    tallies: Tallies
    outcome_sums: OutcomeSums
    """One a family."""
    family: IntArray
    """Shape (M,), one code a scope, or a scope and group."""
    clusters: Clusters | None
    """Episodes of the cells' rounds, then those of ``withholding``'s; None where no two share an outcome."""
    content: pl.Series
    """M texts, a hash of what each memory was delivered as, the least of several; null where none was noted."""
    content_changed: BoolArray
    """Shape (M,)."""
    stratum: IntArray
    """Shape (C,), a code of each cell's stratum."""
    rounds_of_stratum: IntArray
    """Shape (S,), randomized rounds by code of stratum."""
    cards: IntArray
    """Shape (S,), cards in each of its rounds; -1 where strata are not told apart by that."""
    base: IntArray
    """Shape (S,), a code that strata share which nothing but cards tells apart."""
    n_roster: FloatArray
    """Shape (C,), memories and cards of the stratum's roster."""
    rounds_of: Callable[[int], MemoryRounds]
    """Lists the eligible rounds with an outcome of a row of ``keys``."""
    withholding: Cells
    """Rounds in which a ranked memory was kept against those in which it was withheld: strata of their own."""
    left_out: pl.DataFrame | None = None
    """By version, M rows: exposures that are in no contrast because they date a rewrite, or cannot be placed."""

    @property
    def outcomes(self) -> Outcomes:
        """What values outcomes take, one a memory: those of its family."""
        return self.outcome_sums.described().of(self.family)


def assemble(
    coded: CodedLog,
    events: Events,
    withheld: Withholdings,
    terms: Terms,
    sums: CellSums,
    contents: pl.DataFrame,
    *,
    in_both_arms: bool,
) -> LogStatistics:
    """Put a log's sums in the order of the table's rows.

    Parameters
    ----------
    coded, events, withheld
        The log.
    terms, sums
        What was summed, and to what.
    contents
        ``scope``, perhaps ``group``, ``memory_id``: ``content``, the least hash, and ``changed``, whether there are
        others.
    in_both_arms
        Whether strata with one arm only are in no contrast.
    """
    n_ids = max(len(coded.ids), 1)
    owner = coded.family[sums.stratum] * n_ids + sums.memory
    order = np.argsort(owner, kind="stable")
    owner, sums = owner[order], sums.select(order)
    is_new = np.append(True, owner[1:] != owner[:-1])[: len(owner)]
    known, row = owner[is_new], np.cumsum(is_new) - 1
    family = known // n_ids
    keys = coded.families[family].hstack([coded.ids.gather(known % n_ids).alias("memory_id")])
    rest = sums.whole - sums.drawn - sums.barred
    pi = sums.planned / sums.length
    chance = (pi > 0.0) & (pi < 1.0)
    _refuse_undrawn(coded, sums, rest)
    strata, stratum = distinct(sums.stratum[chance], len(coded.block))
    dense = np.full(len(coded.block), -1)
    dense[strata] = np.arange(len(strata))
    cells = Cells.unweighted(
        row, sums.offset, pi, terms.arm(sums.drawn), terms.arm(rest), strata=sums.strata, place=sums.nth
    ).select(chance)
    placed, withholding = _withholding(coded, withheld, terms, known)
    listed = _Listed(coded, events, strata, dense, row[chance], stratum, sums.memory[chance], placed)
    noted = keys.join(contents, on=keys.columns, how="left", maintain_order="left")
    return LogStatistics(
        keys=keys,
        cells=cells,
        tallies=_tallies(sums, chance, pi, row, len(keys)),
        outcome_sums=_outcome_sums(coded),
        family=family,
        clusters=clusters_of_rounds(*listed.frames(), len(keys), in_both_arms=in_both_arms)
        if _has_shared_outcomes(coded)
        else None,
        content=noted["content"],
        content_changed=noted["changed"].fill_null(False).to_numpy(),
        stratum=stratum,
        rounds_of_stratum=np.bincount(coded.stratum, minlength=len(dense))[strata],
        cards=coded.cards[strata],
        base=coded.base[strata],
        n_roster=sums.n_roster[chance].astype(np.float64),
        rounds_of=rounds_by_row(listed.frames),
        withholding=withholding,
    )


def _refuse_undrawn(coded: CodedLog, sums: CellSums, rest: FloatArray) -> None:
    torn = (sums.planned >= sums.length) & (rest[0] + rest[1] > 0)
    if torn.any():
        blocks = coded.strata["block_id"].gather(sums.stratum[torn])
        check_certain(pl.DataFrame({"memory_id": coded.ids.gather(sums.memory[torn]), "block_id": blocks}))


def _tallies(sums: CellSums, chance: BoolArray, pi: FloatArray, row: IntArray, n: int) -> Tallies:
    barred = sums.barred[0] + sums.barred[1]
    eligible = sums.whole[0] + sums.whole[1] - barred
    certain = [np.where(of, eligible, 0.0) for of in (~chance, pi >= 1.0)]
    return Tallies(*(group_sums(row, v, n).astype(np.int64) for v in (sums.ranked, barred, *certain)))


def _outcome_sums(coded: CodedLog) -> OutcomeSums:
    """Sum up the outcomes of each family."""
    family = coded.family[coded.stratum]
    use = ~np.isnan(coded.y) & (family >= 0)
    stratum = distinct(coded.stratum[use], len(coded.block))[1]
    return sum_outcomes(coded.y[use], stratum, family[use], coded.families.height)


def _withholding(
    coded: CodedLog, withheld: Withholdings, terms: Terms, known: IntArray
) -> tuple[pl.DataFrame, Cells]:
    """Return rounds that kept or withheld a memory with their cell, and the cells: the exposed arm kept it.

    Cells are one a memory (of ``known``), stratum and probability of being kept, in this order.
    """
    stratum = coded.stratum[withheld.round]
    owner = coded.family[stratum] * max(len(coded.ids), 1) + withheld.memory
    row = np.searchsorted(known, owner)
    use = np.isin(owner, known)
    frame = pl.DataFrame({"row": row, "stratum": stratum, "kept": withheld.kept}).filter(use)
    rounds, away = withheld.round[use], withheld.away[use]
    cells = frame.unique().sort(pl.all())
    place = frame.join(cells.with_row_index("place"), on=frame.columns, how="left", maintain_order="left")
    cell = place["place"].cast(pl.Int64).to_numpy()
    kept, gone = (terms.arm(terms.sums(cell[arm], rounds[arm], cells.height)) for arm in (~away, away))
    of = cells["stratum"].to_numpy()
    listed = pl.DataFrame({"round_id": rounds, "row": row[use], "place": cell, "away": away})
    return listed, Cells.unweighted(
        cells["row"].to_numpy(),
        terms.offset[of],
        cells["kept"].to_numpy(),
        kept,
        gone,
        place=coded.nth[of],
    )


def _has_shared_outcomes(coded: CodedLog) -> bool:
    known = coded.rounds.filter(pl.col("episode_id").is_not_null() & pl.col("y").is_not_null())
    return known["episode_id"].n_unique() < known.height


def _rounds(coded: CodedLog, stratum: IntArray) -> pl.DataFrame:
    """Return rounds as codes, with their outcomes."""
    return pl.DataFrame(
        {
            "round_id": np.arange(len(coded.y)),
            "block_id": coded.block[coded.stratum],
            "block_row": pl.Series(coded.block_row).fill_nan(None),
            "family": pl.Series(coded.family[coded.stratum]).replace(-1, None),
            "stratum": pl.Series(stratum).replace(-1, None),
            "episode_id": coded.rounds["episode_id"],
            "y": coded.rounds["y"],
        }
    )


@dataclass(frozen=True, slots=True)
class _Listed:
    """What says which rounds a cell is made of, as frames once somebody asks."""

    coded: CodedLog
    events: Events
    strata: IntArray
    dense: IntArray
    row: IntArray
    stratum: IntArray
    memory: IntArray
    placed: pl.DataFrame

    def frames(self) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame, pl.DataFrame]:
        """Return rounds, cells, events and rounds of withholding: see :func:`clusters_of_rounds`."""
        coded = self.coded
        rounds = _rounds(coded, self.dense[coded.stratum])
        spans = self.events.windows.ended(coded)
        begin, end = spans.hulls(len(coded.memory))
        of_cell, _ = coded.members(coded.block[self.strata][self.stratum], self.memory)
        cells = pl.DataFrame(
            {
                "row": self.row,
                "stratum": self.stratum,
                "memory_id": self.memory,
                "begin": begin[of_cell],
                "end": end[of_cell],
            }
        )
        # what is outside the first run and the last is told by these; all unknown rows, where neither has an edge
        rounds_away, members_away = absent_rounds(coded, spans.several())
        hulls = Runs(coded.block_of_member, begin, end)
        between = hulls.hold(members_away, coded.block_row[rounds_away])
        rounds_away, members_away = rounds_away[between], members_away[between]
        member = np.append(self.events.member, members_away)
        events = pl.DataFrame(
            {
                "round_id": np.append(self.events.round, rounds_away),
                "memory_id": coded.memory[member],
                "drawn": np.append(self.events.drawn, np.zeros(len(members_away), dtype=bool)),
            }
        )
        return rounds, cells, events, self.placed
