"""Rounds that share an outcome: how far that moves a contrast's variance, from counts alone."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np
import polars as pl

from cmp.estimation.cells import BoolArray
from cmp.estimation.estimators import Contrast
from cmp.estimation.log_codes import integers
from cmp.estimation.sums import FloatArray, IntArray, group_sums, matches

__all__ = ["Clumping", "Clusters", "clumping"]


@dataclass(frozen=True, slots=True)
class Clusters:
    """Which rounds with an outcome are of one episode; a *part* is an episode's rounds in one stratum.

    Rounds without an episode are episodes of their own. Cells follow the order of the cells they belong to.
    """

    shared: BoolArray
    """Shape (M,), whether two eligible rounds of the memory are of one episode."""
    memory: IntArray
    """Shape (C,), row of the table."""
    stratum: IntArray
    """Shape (C,), code of the stratum; no two cells of a memory have the same."""
    part_stratum: IntArray
    """Shape (P,)."""
    part_block: IntArray
    """Shape (P,), a code of the block that the stratum is of."""
    part_episode: IntArray
    """Shape (P,), a code of the episode within its family."""
    part_rounds: FloatArray
    """Shape (P,), rounds that are controls unless ``away`` says otherwise."""
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
        shared: BoolArray,
        memory: IntArray,
        stratum: IntArray,
        parts: pl.DataFrame,
        touched: pl.DataFrame,
    ) -> Clusters:
        """Return clusters whose parts are rows of ``stratum, block, episode, rounds, outcome``.

        Parameters
        ----------
        shared, memory, stratum
            Of memories and of cells.
        parts
            P rows.
        touched
            K rows of ``cell, part, exposed, away``, sorted by the first two.
        """
        return cls(
            shared=shared,
            memory=memory,
            stratum=stratum,
            part_stratum=integers(parts["stratum"]),
            part_block=integers(parts["block"]),
            part_episode=integers(parts["episode"]),
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
            part_rounds=compared,
            cell=place[self.cell[mine]],
            part=self.part[mine],
            exposed=self.exposed[mine],
            away=np.zeros(int(mine.sum())),
        )

    def joined(self, other: Clusters) -> Clusters:
        """Return both's cells, of the same memories: strata of the other are strata of their own."""
        parts, cells = len(self.part_rounds), len(self.memory)
        shift = {"stratum": self.n_strata, "part_stratum": self.n_strata, "cell": cells, "part": parts}
        both = {
            field.name: np.concatenate(
                [getattr(self, field.name), getattr(other, field.name) + shift.get(field.name, 0)]
            )
            for field in fields(self)
            if field.name != "shared"
        }
        return Clusters(shared=self.shared, **both)


@dataclass(frozen=True, slots=True)
class Clumping:
    """What shared outcomes do to a contrast, before its strata's weights ``r`` are normalized.

    Shapes are (M,), one a memory, or (C,), one a cell of the contrast.
    """

    squares: FloatArray
    """(M,) sum over episodes of the squared sum of ``a_t``."""
    mean: FloatArray
    """(M,) what that is on average over draws of rounds one by one."""
    exposed_squares: FloatArray
    """(M,) sum over episodes of the squared number of exposed rounds."""
    exposed_rounds: FloatArray
    """(M,) sum of these numbers."""
    runs_on: BoolArray
    """(M,) whether an episode has rounds in two strata of the memory."""
    across: BoolArray
    """(M,) whether these are of two blocks."""
    exposed_of_cell: FloatArray
    """(C,) mean size of the exposed rounds' episodes within a cell, a round as likely to be picked as another."""
    control_of_cell: FloatArray
    """(C,) of the control rounds."""


def clumping(clusters: Clusters, contrast: Contrast) -> Clumping:
    r"""Compare the variance of a contrast under outcomes shared within episodes with that of independent rounds.

    A contrast is ``sum_t a_t y_t`` over the sum of ``r``, with ``a_t = r / n1`` in exposed and ``-r / n0`` in control
    rounds of a stratum. Outcomes shared within episodes ``g`` and independent across them have variance
    ``sigma^2 sum_g (sum_{t in g} a_t)^2``, rounds on their own ``sigma^2 sum_t a_t^2``. The ratio is Moulton's factor
    for outcomes that agree wholly; it depends on assignments only. It is above 1 where whole episodes were assigned
    together, and below where exposed rounds have controls of their own episode. There it is not taken to be less
    than its mean over draws of rounds one by one, ``(n - sum_g t_g^2 / n) / (n - 1)`` in a stratum whose episodes have
    ``t_g`` of its n rounds, which is exact for the variance over such draws: controls of the same episode take
    something of the memory's effect away as well, all of it where every episode has the same share of exposed rounds.

    Parameters
    ----------
    clusters
        Of the cells that the contrast was made of.
    contrast
        What :func:`combine_strata` returned.

    References
    ----------
    Moulton, B. R. (1986). Random group effects and the precision of regression estimates. Journal of Econometrics
    32, 385-397.
    """
    used, m = contrast.cells, len(contrast.utility)
    n1, n0 = used.exposed.n, used.control.n
    cells = np.flatnonzero(contrast.kept)
    shared = clusters.shared[used.memory] & (n1 > 0) & (n0 > 0)
    up, down, counted = (np.zeros(len(clusters.memory)) for _ in range(3))
    up[cells[shared]] = (contrast.raw / np.where(shared, n1, 1.0))[shared]
    down[cells[shared]] = (contrast.raw / np.where(shared, n0, 1.0))[shared]
    counted[cells[shared]] = 1.0

    touched = counted[clusters.cell] > 0
    cell, part = clusters.cell[touched], clusters.part[touched]
    exposed, away = clusters.exposed[touched], clusters.away[touched]
    rounds = clusters.part_rounds[part]
    n_cells = len(clusters.memory)
    in_stratum = group_sums(clusters.part_stratum, clusters.part_rounds**2, clusters.n_strata)

    def squares_of(new: FloatArray) -> FloatArray:
        """Sum squares over the parts of each cell, ``new`` in place of the rounds of the touched ones."""
        return in_stratum[clusters.stratum] + group_sums(cell, new**2 - rounds**2, n_cells)

    q1, q0 = group_sums(cell, exposed**2, n_cells), squares_of(rounds - away)
    both = squares_of(rounds - away + exposed)[cells]
    by_episode, squares = _squares_by_episode(clusters, up, down, touched)
    squares += group_sums(clusters.memory, down**2 * in_stratum[clusters.stratum], m)
    first, second, product, is_block = _pairs_of_cells(clusters)
    squares += 2.0 * group_sums(clusters.memory[first], down[first] * product * down[second], m)
    runs_on, across = (
        np.bincount(clusters.memory[first], weights=of, minlength=m) > 0 for of in (product > 0, is_block)
    )
    n = n1 + n0
    of_cell = contrast.raw**2 * np.divide(n, n1 * n0, out=np.zeros(len(n)), where=shared)
    mean = contrast.sum_cells(of_cell * np.divide(n - both / n, n - 1.0, out=np.zeros(len(n)), where=shared))
    return Clumping(
        squares,
        mean,
        by_episode,
        group_sums(used.memory, np.where(shared, n1, 0.0), m),
        runs_on & clusters.shared,
        across & clusters.shared,
        np.divide(q1[cells], n1, out=np.ones(len(cells)), where=shared),
        np.divide(q0[cells], n0, out=np.ones(len(cells)), where=shared),
    )


def _squares_by_episode(
    clusters: Clusters, up: FloatArray, down: FloatArray, touched: BoolArray
) -> tuple[FloatArray, FloatArray]:
    """Sum over episodes that hold an exposed or ineligible round.

    Returns, per memory, the squared numbers of exposed rounds, and the squared sums of ``a_t`` less what the episodes
    would have given as controls throughout.
    """
    m, n_parts = len(clusters.shared), max(len(clusters.part_rounds), 1)
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
    product = group_sums(at, clusters.part_rounds[first] * clusters.part_rounds[second], len(code))
    one, other = np.divmod(code, n_strata)
    by_stratum = np.argsort(clusters.stratum, kind="stable")
    pair, spot = matches(clusters.stratum[by_stratum], one)
    cell = by_stratum[spot]
    mate = _find(
        clusters.memory * n_strata + clusters.stratum, clusters.memory[cell] * n_strata + other[pair]
    )
    held = mate >= 0
    pair = pair[held]
    return cell[held], mate[held], product[pair], block[one[pair]] != block[other[pair]]


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
