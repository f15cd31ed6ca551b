"""Neighbouring short blocks as one stratum, its rounds weighted by their own propensities."""

from __future__ import annotations

import numpy as np

from cmp.estimation.assembly import LogStatistics
from cmp.estimation.cells import Arm, Cells
from cmp.estimation.sums import FloatArray, IntArray, group_least, group_sums

__all__ = ["STRATA", "merge_short_strata"]

STRATA = ("block", "query", "merged")

#: Rounds that a stratum of merged blocks has at least, if its scope has as many.
LEAST_ROUNDS = 10


def merge_short_strata(found: LogStatistics) -> Cells:
    """Return the cells of draws with neighbouring strata merged until each has ten rounds.

    A block ends whenever a memory is added under the uniform design. Where that happens every few rounds, most of a
    stratum's exposures have few controls in it, or none. Within merged strata propensities differ, and so exposed
    rounds weigh ``1 / pi`` and controls ``1 / (1 - pi)``: Hajek's estimator, nearly unbiased whatever the blocks'
    levels are. Differences between the levels of merged blocks do widen its intervals.

    Parameters
    ----------
    found
        Statistics of a log, idle strata not condensed.

    Notes
    -----
    Median width of 95 % intervals (mean coverage), uniform design, rosters growing from 20 to 40, 2 drawn a round, per
    block against merged. Normal outcomes, 60 rounds (3 a block): 3.93 (.98) against 2.89 (.97); with a drift of one
    standard deviation 3.96 (.98) against 3.09 (.97), of three 4.48 (.98) against 4.22 (.97). 120 rounds: 2.18 (.97)
    against 1.97 (.96), with three 2.48 (.97) against 2.48 (.96). Binary, 60 rounds: .91 (.95) against .77 (.96).
    400 rounds (19 a block): the same. A whole scope in one stratum was tried: 2.72 without drift, but 6.71 with three,
    and 2.47 against 1.12 at 400 rounds. It is not offered.

    References
    ----------
    Hajek, J. (1971). In Foundations of Statistical Inference, 236.
    """
    cells = found.cells
    group = _runs(found)[found.stratum]
    n_groups = int(group.max(initial=0)) + 1
    known = cells.exposed.n + cells.control.n > 0
    least = group_least(group[known], cells.offset[known], n_groups)
    pairs, merged = np.unique(cells.memory * n_groups + group, return_inverse=True)
    memory, group_of = np.divmod(pairs, n_groups)
    shift = cells.offset - least[group]

    def add(values: FloatArray) -> FloatArray:
        return group_sums(merged, values, len(pairs))

    def arm(old: Arm, chance: FloatArray) -> Arm:
        w = 1.0 / chance
        total = np.where(known, old.total + old.n * shift, 0.0)
        squares = np.where(known, old.squares + 2.0 * shift * old.total + old.n * shift**2, 0.0)
        sums = old.n, old.missing, w * old.n, w**2 * old.n, w * total, w * squares, w * old.missing
        return Arm(*map(add, sums))

    first = np.full(len(pairs), np.iinfo(np.int64).max)
    np.minimum.at(first, merged, cells.place)
    empty = np.full(len(pairs), np.nan)
    return Cells(
        memory=memory,
        offset=least[group_of],
        propensity=empty,
        weighted=True,
        exposed=arm(cells.exposed, cells.propensity),
        control=arm(cells.control, 1.0 - cells.propensity),
        second_moment=add(cells.second_moment),
        strata=np.ones(len(pairs)),
        centre=empty,
        scale=np.ones(len(pairs)),
        information=add(cells.information),
        missing_information=add(cells.missing_information),
        place=first,
    )


def _runs(found: LogStatistics) -> IntArray:
    """Return the code of each stratum's run: strata of a family in time, closed once it has enough rounds."""
    n_strata = len(found.rounds_of_stratum)
    family, place = np.zeros(n_strata, dtype=np.int64), np.zeros(n_strata, dtype=np.int64)
    family[found.stratum], place[found.stratum] = found.family[found.cells.memory], found.cells.place
    order = np.lexsort((place, family))
    run = np.zeros(n_strata, dtype=np.int64)
    code, rounds, before = -1, LEAST_ROUNDS, -1
    for stratum in order.tolist():
        new_family = family[stratum] != before
        if new_family or rounds >= LEAST_ROUNDS:
            code, rounds = code + 1, 0
        run[stratum] = code
        rounds += int(found.rounds_of_stratum[stratum])
        before = int(family[stratum])
    return _last_short_runs_joined(run, family, found.rounds_of_stratum)


def _last_short_runs_joined(run: IntArray, family: IntArray, rounds: IntArray) -> IntArray:
    """Join a family's last run to the one before, if it is short and there is one."""
    size = group_sums(run, rounds, int(run.max(initial=-1)) + 1)
    owner = np.zeros(len(size), dtype=np.int64)
    owner[run] = family
    follows = np.append(False, owner[1:] == owner[:-1]) & (size < LEAST_ROUNDS)
    return (np.arange(len(size)) - follows)[run]
