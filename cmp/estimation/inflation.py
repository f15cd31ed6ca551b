"""How far outcomes that are shared within episodes move a contrast's variance."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cmp.estimation.cells import BoolArray
from cmp.estimation.clusters import Clusters, sums_by_episode
from cmp.estimation.estimators import Contrast
from cmp.estimation.sums import FloatArray, group_sums

__all__ = ["Clumping", "clumping"]


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
    up, down = (np.zeros(len(clusters.memory)) for _ in range(2))
    up[cells[shared]] = (contrast.raw / np.where(shared, n1, 1.0))[shared]
    down[cells[shared]] = (contrast.raw / np.where(shared, n0, 1.0))[shared]
    cell, part = clusters.cell, clusters.part
    rest = clusters.part_rounds[part] - clusters.away
    n_cells = len(clusters.memory)

    def squares_of(new: FloatArray) -> FloatArray:
        """Sum squares over the parts of each cell, ``new`` in place of the rounds of those that are listed."""
        return whole + group_sums(cell, new**2 - clusters.part_rounds[part] ** 2, n_cells)

    whole = clusters.over_parts(clusters.part_rounds**2)
    q1, q0 = group_sums(cell, clusters.exposed**2, n_cells), squares_of(rest)
    both = squares_of(rest + clusters.exposed)[cells]
    sums = sums_by_episode(clusters, up, down)
    n = n1 + n0
    of_cell = contrast.raw**2 * np.divide(n, n1 * n0, out=np.zeros(len(n)), where=shared)
    mean = contrast.sum_cells(of_cell * np.divide(n - both / n, n - 1.0, out=np.zeros(len(n)), where=shared))
    return Clumping(
        sums.squares,
        mean,
        sums.exposed_squares,
        group_sums(used.memory, np.where(shared, n1, 0.0), m),
        sums.runs_on & clusters.shared,
        sums.across & clusters.shared,
        np.divide(q1[cells], n1, out=np.ones(len(cells)), where=shared),
        np.divide(q0[cells], n0, out=np.ones(len(cells)), where=shared),
    )
