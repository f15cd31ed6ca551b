"""Exact tests where whole episodes were drawn together: an episode, not a round, is what chance put into an arm."""

from __future__ import annotations

import numpy as np

from cmp.estimation.cells import BoolArray, Outcomes
from cmp.estimation.clusters import Clusters
from cmp.estimation.estimators import Contrast
from cmp.estimation.margins import Margins, count_margins
from cmp.estimation.sums import FloatArray, group_sums

__all__ = ["margins_by_episode"]


def margins_by_episode(
    clusters: Clusters, contrast: Contrast, outcomes: Outcomes
) -> tuple[Margins, FloatArray]:
    """Count every episode of a stratum once, for tests that hold where episodes were drawn as wholes.

    Any of a stratum's episodes is then as likely to be drawn as another: Fisher's test, or Cochran, Mantel and
    Haenszel's, of episodes. Two rounds of one episode tell no more than one.

    Parameters
    ----------
    clusters, contrast
        Of the same cells.
    outcomes
        One a memory.

    Returns
    -------
    Margins
        Of memories whose outcomes take two values at most.
    numpy.ndarray
        Shape (M,), strata with an episode in both arms, and episodes of which two rounds have different outcomes: above
        0, the margins mean nothing.
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
        return clusters.over_parts(parts.astype(np.float64))

    n1, x1 = per_cell(is_exposed), per_cell(is_exposed & success[part])
    n0 = per_stratum(held) - per_cell(is_lost)
    x0 = per_stratum(held & success) - per_cell(is_lost & success[part])
    torn = per_cell(is_exposed & is_control) + per_stratum(np.isnan(clusters.part_outcome))
    used = kept & outcomes.at_most_two[owner]
    margins = count_margins(owner[used], x1[used], n1[used], x0[used], n0[used], m)
    return margins, group_sums(owner[kept], torn[kept], m)
