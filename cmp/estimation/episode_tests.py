"""Exact tests where whole episodes were drawn together: an episode, not a round, is what chance put into an arm."""

from __future__ import annotations

import numpy as np

from cmp.estimation.cells import BoolArray, Outcomes
from cmp.estimation.clusters import Clusters
from cmp.estimation.estimators import Contrast
from cmp.estimation.margins import count_margins
from cmp.estimation.sums import FloatArray, group_sums

__all__ = ["p_values_by_episode"]


def p_values_by_episode(clusters: Clusters, contrast: Contrast, outcomes: Outcomes) -> FloatArray:
    """Return exact conditional p-values that count every episode of a stratum once.

    They hold where a stratum's episodes were drawn as wholes, any of them as likely as another of its kind: Fisher's
    test, or Cochran, Mantel and Haenszel's, of episodes. Two rounds of one episode tell no more than one.

    Parameters
    ----------
    clusters, contrast
        Of the same cells.
    outcomes
        One a memory.

    Returns
    -------
    numpy.ndarray
        Shape (M,). NaN unless a memory's outcomes take two values, the rounds of an episode share theirs, and the
        eligible rounds of each of its episodes lie in one arm of one stratum.
    """
    kept, m = contrast.kept, len(contrast.utility)
    stratum, owner = clusters.stratum, clusters.memory
    high_in = np.full(clusters.n_strata, np.nan)
    high_in[stratum] = outcomes.high[owner]  # memories of one stratum have outcomes of one family
    of_part = clusters.part_stratum
    held = clusters.part_rounds > 0
    success = clusters.part_outcome == high_in[of_part]

    cell, part = clusters.cell, clusters.part
    is_exposed = clusters.exposed > 0
    is_control = clusters.part_rounds[part] > clusters.away
    is_lost = held[part] & ~is_control

    def per_cell(rows: BoolArray) -> FloatArray:
        return group_sums(cell, rows.astype(np.float64), len(owner))

    def per_stratum(parts: BoolArray) -> FloatArray:
        return group_sums(of_part, parts.astype(np.float64), clusters.n_strata)[stratum]

    n1, x1 = per_cell(is_exposed), per_cell(is_exposed & success[part])
    n0 = per_stratum(held) - per_cell(is_lost)
    x0 = per_stratum(held & success) - per_cell(is_lost & success[part])
    torn = per_cell(is_exposed & is_control) + per_stratum(np.isnan(clusters.part_outcome))
    is_whole = (group_sums(owner[kept], torn[kept], m) == 0) & ~clusters.across & outcomes.two_valued
    used = kept & is_whole[owner]
    return count_margins(owner[used], x1[used], n1[used], x0[used], n0[used], m).p_values()
