"""From frames of sums to the arrays that a table of utilities is made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from cmp.estimation.cells import Arm, BoolArray, Cells, Outcomes, Tallies
from cmp.estimation.clusters import Clusters
from cmp.estimation.consistency import check_certain
from cmp.estimation.episodes import clusters_of_rounds
from cmp.estimation.log_rounds import rounds_by_row
from cmp.estimation.outcome_sums import OutcomeSums, sum_outcomes
from cmp.estimation.randomization import MemoryRounds
from cmp.estimation.sums import FloatArray, IntArray, group_sums

__all__ = ["Frames", "LogStatistics", "assemble"]


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
    """Episodes of the cells' rounds, then those of ``withholding``'s; None where no memory has two of one episode."""
    content: pl.Series
    """M texts, a hash of what each memory was delivered as, the least of several; null where none was noted."""
    content_changed: BoolArray
    """Shape (M,)."""
    stratum: IntArray
    """Shape (C,), a code of each cell's stratum."""
    rounds_of_stratum: IntArray
    """Shape (S,), randomized rounds by code of stratum."""
    n_roster: FloatArray
    """Shape (C,), memories and cards of the stratum's roster."""
    rounds_of: Callable[[int], MemoryRounds]
    """Lists the eligible rounds with an outcome of a row of ``keys``."""
    withholding: Cells
    """Rounds in which a ranked memory was kept against those in which it was withheld: strata of their own."""

    @property
    def outcomes(self) -> Outcomes:
        """What values outcomes take, one a memory: those of its family."""
        return self.outcome_sums.described().of(self.family)


@dataclass(frozen=True, slots=True)
class Frames:
    """What a log was summed up to; see :mod:`cmp.estimation.draws` for the sums."""

    key: list[str]
    """Columns that name a memory."""
    strata: list[str]
    """Columns that name a stratum."""
    sums: list[str]
    """Columns that add up."""
    rounds: pl.DataFrame
    """Randomized rounds: the columns of their family and stratum, ``round_id``, ``episode_id``, ``y``."""
    cells: pl.DataFrame
    """One row a (stratum, memory)."""
    events: pl.DataFrame
    """``round_id, memory_id, drawn``: drawn in an eligible round, or (False) in no arm in this one."""
    withheld: pl.DataFrame
    """Rounds that kept or withheld a ranked memory by chance."""
    kept: pl.DataFrame
    """Their sums, one row a (stratum, memory, probability of being kept)."""
    contents: pl.DataFrame
    """Keys of memories with a noted content: ``content``, the least hash, and ``changed``, whether it is not alone."""
    shared: pl.DataFrame
    """Keys of memories with two rounds of one episode."""


def assemble(frames: Frames) -> LogStatistics:
    """Put a log's sums in the order of the table's rows."""
    key, sums = frames.key, frames.sums
    cells = frames.cells.sort(*key, *frames.strata)
    keys = cells.select(key).unique(maintain_order=True)
    rows = cells.select(key).join(keys.with_row_index("row"), on=key, how="left", maintain_order="left")
    memory = _integers(rows["row"])
    everyone, drawn, barred = (_columns(cells, sums, prefix) for prefix in ("", "drawn_", "barred_"))
    one = _columns(cells, ["offset", "strata", "ranked_rounds"], "")
    rest = {name: everyone[name] - drawn[name] - barred[name] for name in sums}
    check_certain(cells, rest["rounds"] > 0)
    pi = (cells["planned"] / cells["length"]).to_numpy()
    chance = (pi > 0.0) & (pi < 1.0)
    eligible = everyone["rounds"] - barred["rounds"]
    certain = [np.where(of, eligible, 0.0) for of in (~chance, pi >= 1.0)]
    out_of_arms = (one["ranked_rounds"], barred["rounds"], *certain)
    tallies = (group_sums(memory, values, len(keys)).astype(np.int64) for values in out_of_arms)
    families = keys.select(key[:-1])
    family = _integers(families.select(pl.struct(pl.all()).rle_id()).to_series())
    codes = families.with_columns(family=pl.Series(family)).unique()
    names = cells.select(frames.strata).filter(chance).unique().sort(frames.strata)
    names = names.with_columns(stratum=pl.int_range(pl.len()))
    drawn_cells = cells.select(*frames.strata, "memory_id").with_columns(row=pl.Series(memory)).filter(chance)
    drawn_cells = drawn_cells.join(names, on=frames.strata, how="left", maintain_order="left")
    rounds = frames.rounds.join(names, on=frames.strata, how="left").join(codes, on=key[:-1], how="left")
    placed, withheld = _withholding(frames, keys)
    noted = keys.join(frames.contents, on=key, how="left", maintain_order="left")
    return LogStatistics(
        keys=keys,
        cells=Cells.unweighted(
            memory,
            one["offset"],
            pi,
            _arm(drawn),
            _arm(rest),
            strata=one["strata"],
            place=_integers(cells["nth"]),
        ).select(chance),
        tallies=Tallies(*tallies),
        outcome_sums=_sum_outcomes(rounds, frames.strata, family),
        family=family,
        clusters=clusters_of_rounds(
            rounds, drawn_cells, frames.events, withheld, _is_in(keys, frames.shared, key), family
        ),
        content=noted["content"],
        content_changed=noted["changed"].fill_null(False).to_numpy(),
        stratum=_integers(drawn_cells["stratum"]),
        rounds_of_stratum=np.bincount(_integers(rounds["stratum"].drop_nulls()), minlength=names.height),
        n_roster=cells["size"].cast(pl.Float64).to_numpy()[chance],
        rounds_of=rounds_by_row(rounds, drawn_cells, frames.events, withheld),
        withholding=_withholding_cells(placed, sums),
    )


def _withholding(frames: Frames, keys: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the sums of kept and withheld rounds in the order of their cells, and those rounds with their cell."""
    placed = frames.kept.join(keys.with_row_index("row"), on=frames.key, how="inner")
    placed = placed.sort("row", *frames.strata, "kept").with_row_index("place")
    on = [*frames.strata, "memory_id", "kept"]
    return placed, frames.withheld.join(placed.select("row", "place", *on), on=on)


def _withholding_cells(placed: pl.DataFrame, sums: Sequence[str]) -> Cells:
    """Return cells whose exposed arm is the rounds that kept a ranked memory, and whose control arm withheld it."""
    return Cells.unweighted(
        _integers(placed["row"]),
        _columns(placed, ["offset"], "")["offset"],
        placed["kept"].to_numpy(),
        _arm(_columns(placed, sums, "drawn_")),
        _arm(_columns(placed, sums, "rest_")),
        place=_integers(placed["nth"]),
    )


def _integers(series: pl.Series) -> IntArray:
    return series.cast(pl.Int64).to_numpy()


def _sum_outcomes(rounds: pl.DataFrame, strata: list[str], family: IntArray) -> OutcomeSums:
    """Sum up the outcomes of each family; ``family`` has an entry a memory."""
    known = rounds.filter(pl.col("y").is_not_null() & pl.col("family").is_not_null())
    stratum = known.select(pl.struct(strata).rank("dense").cast(pl.Int64) - 1).to_series()
    return sum_outcomes(
        known["y"].to_numpy(), stratum.to_numpy(), known["family"].to_numpy(), int(family.max(initial=-1)) + 1
    )


def _columns(cells: pl.DataFrame, names: Sequence[str], prefix: str) -> dict[str, FloatArray]:
    return {name: cells[prefix + name].fill_null(0.0).cast(pl.Float64).to_numpy() for name in names}


def _arm(sums: dict[str, FloatArray]) -> Arm:
    total, squares = (
        np.sum([values for name, values in sums.items() if name.rsplit("_", 1)[0] == of], axis=0)
        for of in ("d", "d2")
    )
    return Arm.unweighted(sums["known"], sums["rounds"] - sums["known"], total, squares)


def _is_in(frame: pl.DataFrame, members: pl.DataFrame, on: list[str]) -> BoolArray:
    marked = members.with_columns(pl.lit(True).alias("found"))
    found = frame.join(marked, on=on, how="left", maintain_order="left")["found"]
    return found.fill_null(False).to_numpy()
