"""Two scorers on the same labels and the same memories: the paired difference of their AUCs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from cmp.errors import GranularityError
from cmp.evaluation.marking import mark_table, row_codes
from cmp.evaluation.placements import Estimate, Sample, critical_value, mean_over_strata, pooled_estimate
from cmp.evaluation.qrels import Qrels, read_qrels
from cmp.evaluation.roc import read_sample, score_column

__all__ = ["AucComparison", "compare_auc", "compare_auc_arrays"]


@dataclass(frozen=True, slots=True)
class AucComparison:
    """The AUC of one scorer less that of another, on the memories that both score.

    Attributes
    ----------
    difference
        ``auc - other_auc``; None where undefined, and ``reason`` says why.
    std_error
        From DeLong's covariance with one stratum; across strata, from the spread of the clusters' summed differences.
    ci_low, ci_high, p_value
        Of the difference: Student's t with clusters - 1 degrees of freedom across strata, normal for DeLong's.
    auc, other_auc
        The two AUCs, both on the same memories.
    n_key, n_other
        Memories of each class that both scorers score, over all strata.
    n_strata, n_undefined
        Strata the mean is over, and strata without it because a class is empty.
    left_out, left_out_key
        Memories that one scorer or both do not score, and the key memories among them.
    reason
        Why something is None.
    level
        Confidence level of the limits.

    Examples
    --------
    >>> key = [1, 1, 1, 0, 0, 0, 0]
    >>> result = compare_auc_arrays([5, 4, 3, 2, 2, 1, 4], [1, 4, 3, 2, 3, 1, 5], key)
    >>> round(result.difference, 4), round(result.std_error, 4), round(result.p_value, 3)
    (0.375, 0.2624, 0.153)
    """

    difference: float | None
    std_error: float | None
    ci_low: float | None
    ci_high: float | None
    p_value: float | None
    auc: float | None
    other_auc: float | None
    n_key: int
    n_other: int
    n_strata: int
    n_undefined: int
    left_out: int
    left_out_key: int
    reason: str | None = None
    level: float = 0.95


def compare_auc_arrays(
    scores: npt.ArrayLike,
    other: npt.ArrayLike,
    labels: npt.ArrayLike,
    strata: npt.ArrayLike | None = None,
    *,
    clusters: npt.ArrayLike | None = None,
    level: float = 0.95,
) -> AucComparison:
    """Compare the AUCs of two arrays of scores for the same memories.

    Parameters
    ----------
    scores, other
        Shape (n,), higher is better; a memory with NaN in either is left out of both, and counted.
    labels, strata, clusters, level
        As in :func:`auc_arrays`.

    Raises
    ------
    ValueError
        As :func:`auc_arrays`.

    References
    ----------
    DeLong, E. R., DeLong, D. M. and Clarke-Pearson, D. L. (1988). Biometrics 44, 837-845: the variance of a
    difference is that of the differences of the two scorers' placements.
    """
    everything = read_sample(scores, labels, strata, clusters, level, rival=other)
    assert everything.rival is not None
    unscored = np.isnan(everything.score) | np.isnan(everything.rival)
    sample = everything.select(~unscored)
    n_all = len(np.unique(everything.stratum))
    parts = list(sample.by_stratum()) if n_all > 1 else [sample]

    def estimated(which: Callable[[Sample], Sample]) -> Estimate:
        if n_all <= 1:
            return pooled_estimate(which(sample))
        return mean_over_strata([which(part) for part in parts], clusters_given=clusters is not None)

    difference = estimated(lambda part: part)
    mine = estimated(lambda part: replace(part, rival=None))
    others = estimated(_of_rival)
    n_strata = len(parts) if difference.value is not None else 0
    return AucComparison(
        difference.value,
        *_limits(difference, level),
        auc=mine.value,
        other_auc=others.value,
        n_key=sample.n_key,
        n_other=sample.n_other,
        n_strata=n_strata,
        n_undefined=n_all - n_strata,
        left_out=int(unscored.sum()),
        left_out_key=int((unscored & everything.key).sum()),
        reason=difference.reason,
        level=level,
    )


def compare_auc(
    u: Any,
    other: Any,
    qrels: Qrels | pl.DataFrame,
    within: str = "query",
    *,
    score: str | None = None,
    other_score: str | None = None,
    clusters: str | None = None,
    level: float = 0.95,
) -> AucComparison:
    """Return the AUC of one table less that of another, paired on labels and memories.

    Parameters
    ----------
    u, other
        Tables, as in :func:`auc`. Where only one has ``group``, the scores of the other count in every query.
    qrels, within, clusters, level
        As in :func:`auc`.
    score, other_score
        Columns to rank by, as in :func:`auc`.

    Raises
    ------
    GranularityError
        As :func:`auc`, and where only one table has ``scope`` or they share no memory.
    ValueError
        For a memory that stands twice in a table, and as :func:`auc`.

    Examples
    --------
    >>> u = pl.DataFrame({"memory_id": ["a", "b", "c", "d"], "utility": [0.4, 0.1, 0.3, 0.2]})
    >>> ranker = pl.DataFrame({"memory_id": ["d", "c", "b", "a"], "score": [9.0, 1.0, 8.0, 7.0]})
    >>> labels = pl.DataFrame({"query_id": ["q", "q"], "memory_id": ["a", "c"]})
    >>> result = compare_auc(u, ranker, labels)
    >>> result.auc, result.other_auc, result.difference
    (1.0, 0.0, 1.0)
    """
    known = qrels if isinstance(qrels, Qrels) else read_qrels(qrels)
    paired = _paired(
        _scored(u, score, clusters), _scored(other, other_score, None).rename({"score": "rival"})
    )
    marked = mark_table(paired, known, within=within)
    scores, rivals = (marked.frame[name].fill_null(math.nan).to_numpy() for name in ("score", "rival"))
    return compare_auc_arrays(
        scores,
        rivals,
        marked.frame["key"].to_numpy(),
        marked.strata,
        clusters=row_codes(marked.frame, [clusters]) if clusters else None,
        level=level,
    )


def _of_rival(sample: Sample) -> Sample:
    assert sample.rival is not None
    return replace(sample, score=sample.rival, rival=None)


def _scored(table: Any, score: str | None, clusters: str | None) -> pl.DataFrame:
    """Return a table's keys (and clusters) with ``score``, each memory once."""
    frame: pl.DataFrame = getattr(table, "frame", table)
    column = score_column(frame, score)
    if lacking := {"memory_id", *([clusters] if clusters else [])} - set(frame.columns):
        raise ValueError(f"a table has no column {', '.join(sorted(lacking))}; it has {frame.columns}")
    keys = _keys(frame)
    more = [clusters] if clusters and clusters not in keys else []
    found = frame.select(
        pl.col(keys).cast(pl.String), *more, pl.col(column).cast(pl.Float64).fill_nan(None).alias("score")
    )
    twice = found.filter(found.select(keys).is_duplicated())
    if twice.height:
        raise ValueError(f"memory {twice['memory_id'][0]!r} stands in a table twice; give one score a memory")
    return found


def _keys(frame: pl.DataFrame) -> list[str]:
    return [name for name in ("scope", "group", "memory_id") if name in frame.columns]


def _paired(first: pl.DataFrame, second: pl.DataFrame) -> pl.DataFrame:
    """Join two tables of scores; one without ``group`` goes to every query of the other."""
    if ("scope" in first.columns) is not ("scope" in second.columns):
        raise GranularityError(
            "one table has a column scope and the other has none: their memories cannot be paired"
        )
    on = [name for name in _keys(first) if name in second.columns]
    if _keys(first) == _keys(second):
        paired = first.join(second, on=on, how="full", coalesce=True)
    else:
        paired = first.join(second, on=on, how="left" if "group" in first.columns else "right")
    if not paired.filter(pl.col("score").is_not_null() & pl.col("rival").is_not_null()).height:
        raise GranularityError(
            "the tables share no memory that both score; give both the same ids, scopes and queries"
        )
    return paired


def _limits(
    difference: Estimate, level: float
) -> tuple[float | None, float | None, float | None, float | None]:
    """Return standard error, limits and p-value of a difference."""
    from scipy.special import ndtr, stdtr

    value, variance, _, df = difference
    if value is None or variance is None:
        return None, None, None, None
    error = math.sqrt(variance)
    half, t = critical_value(level, df) * error, -abs(value) / error
    tail = float(ndtr(t) if math.isinf(df) else stdtr(df, t))
    return error, value - half, value + half, 2.0 * tail
