"""The arithmetic of an AUC: placements, their variance with and without clusters, means over strata."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["Estimate", "Sample", "critical_value", "logit_limits", "mean_over_strata", "pooled_estimate"]

BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

#: Below this a variance is the rounding of a zero.
_NO_VARIANCE = 1e-24


class Estimate(NamedTuple):
    """A value and its variance; None where undefined, and then the reason."""

    value: float | None
    variance: float | None
    reason: str | None
    df: float = math.inf
    """Degrees of freedom of the variance: clusters less one; infinite for DeLong's."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Scored memories, each array of shape (n,)."""

    score: FloatArray
    key: BoolArray
    stratum: IntArray
    cluster: IntArray
    rival: FloatArray | None = None
    """Scores of another scorer: then every value is the difference, score less rival."""

    @property
    def n_key(self) -> int:
        """Key memories."""
        return int(self.key.sum())

    @property
    def n_other(self) -> int:
        """Other memories."""
        return int((~self.key).sum())

    def select(self, rows: BoolArray | IntArray) -> Sample:
        """Return some of the memories."""
        rival = None if self.rival is None else self.rival[rows]
        return Sample(self.score[rows], self.key[rows], self.stratum[rows], self.cluster[rows], rival)

    def each_its_own_cluster(self) -> Sample:
        """Return the sample with every memory independent of the others."""
        return replace(self, cluster=np.arange(len(self.score)))

    def by_stratum(self) -> Iterator[Sample]:
        """Yield the strata that have both classes."""
        order = np.argsort(self.stratum, kind="stable")
        for rows in np.split(order, np.flatnonzero(np.diff(self.stratum[order])) + 1):
            part = self.select(rows)
            if part.n_key and part.n_other:
                yield part

    def tied_pairs(self) -> int:
        """Count pairs of a key and another memory with equal scores."""
        _, place = np.unique(self.score, return_inverse=True)
        keys, others = (np.bincount(place[side], minlength=len(place)) for side in (self.key, ~self.key))
        return int((keys.astype(np.int64) * others.astype(np.int64)).sum())


def _midranks(values: FloatArray) -> FloatArray:
    """Ranks from 1, ties sharing their mean: exact in doubles, with no product of class sizes in integers."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks: FloatArray = np.cumsum(counts) - (counts - 1) / 2.0
    return ranks[place]


def _placements(sample: Sample) -> tuple[FloatArray, FloatArray]:
    """DeLong's components: for each key the share of others below, for each other that of keys above."""
    below, above = _components(sample.score, sample.key)
    if sample.rival is not None:
        rival_below, rival_above = _components(sample.rival, sample.key)
        return below - rival_below, above - rival_above
    return below, above


def _components(score: FloatArray, key: BoolArray) -> tuple[FloatArray, FloatArray]:
    joint = _midranks(score)
    below = (joint[key] - _midranks(score[key])) / np.count_nonzero(~key)
    above = 1.0 - (joint[~key] - _midranks(score[~key])) / np.count_nonzero(key)
    return below, above


def pooled_estimate(sample: Sample) -> Estimate:
    """All pairs at once, with Obuchowski's (1997) variance: DeLong's where each memory is its own cluster."""
    m, n = sample.n_key, sample.n_other
    if not (m and n):
        empty = "key" if n else "other"
        return Estimate(None, None, f"no {empty} memory has a score" if m or n else "no memory has a score")
    below, above = _placements(sample)
    value = float(below.mean())
    size = int(sample.cluster.max()) + 1
    of_key, of_other = sample.cluster[sample.key], sample.cluster[~sample.key]
    sum1 = np.bincount(of_key, weights=below - value, minlength=size)
    sum0 = np.bincount(of_other, weights=above - value, minlength=size)
    clusters1, clusters0, clusters = (len(np.unique(c)) for c in (of_key, of_other, sample.cluster))
    if min(clusters1, clusters0) < 2:
        return Estimate(value, None, "no standard error: one class has a single member or cluster")
    variance = (
        clusters1 / (clusters1 - 1) * float((sum1**2).sum()) / m**2
        + clusters0 / (clusters0 - 1) * float((sum0**2).sum()) / n**2
        + 2.0 * clusters / (clusters - 1) * float((sum1 * sum0).sum()) / (m * n)
    )
    return _checked(value, variance, math.inf if clusters == m + n else clusters - 1.0)


def mean_over_strata(strata: list[Sample], *, clusters_given: bool) -> Estimate:
    """Mean of the strata's AUCs, each counting once; its variance from the spread of the clusters' sums.

    With one stratum and no clusters given there is nothing to spread over: its members are the sample, and the
    variance is DeLong's.

    Raises
    ------
    ValueError
        Where a stratum lies in several clusters.
    """
    if not strata:
        return Estimate(None, None, "no stratum holds both a key and another memory with a score")
    if any((part.cluster != part.cluster[0]).any() for part in strata):
        raise ValueError("a stratum lies in several clusters; clusters are unions of strata")
    if len(strata) == 1 and not clusters_given:
        return pooled_estimate(strata[0].each_its_own_cluster())
    values = np.array([_placements(part)[0].mean() for part in strata])
    _, owner = np.unique([part.cluster[0] for part in strata], return_inverse=True)
    sums = np.bincount(owner, weights=values - values.mean())
    if len(sums) < 2:
        return Estimate(float(values.mean()), None, "no standard error: a single cluster")
    spread = len(sums) / (len(sums) - 1) * float((sums**2).sum())
    return _checked(float(values.mean()), spread / len(values) ** 2, len(sums) - 1.0)


def _checked(value: float, variance: float, df: float) -> Estimate:
    if variance > _NO_VARIANCE:
        return Estimate(value, variance, None, df)
    return Estimate(value, None, "no standard error: complete separation, or all strata agree")


def critical_value(level: float, df: float) -> float:
    """Return the two-sided critical value of Student's t; of the normal where ``df`` is infinite."""
    from scipy.special import ndtri, stdtrit

    return float(ndtri(0.5 + level / 2) if math.isinf(df) else stdtrit(df, 0.5 + level / 2))


def logit_limits(value: float, variance: float, level: float, df: float = math.inf) -> tuple[float, float]:
    """Return limits on the logit scale, which stay inside (0, 1); at 0 and 1 there is no variance.

    Notes
    -----
    Over S strata the limits are Student's with clusters - 1 degrees of freedom. Coverage of 95 % limits in 1,000
    simulated tables a setting (3 keys among 23 memories, AUC .76): .99 with 2 strata, .95 with 3, .96 with 5 and 10,
    .95 with 30.
    """
    from scipy.special import expit, logit

    half = critical_value(level, df) * math.sqrt(variance) / (value * (1.0 - value))
    centre = float(logit(value))
    return float(expit(centre - half)), float(expit(centre + half))
