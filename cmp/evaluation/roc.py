"""The chance that a key memory scores above another: AUC within query first, pooled second."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from cmp.evaluation.marking import mark_table, row_codes
from cmp.evaluation.placements import Estimate, Sample, logit_limits, mean_over_strata, pooled_estimate
from cmp.evaluation.qrels import Qrels, read_qrels

__all__ = ["Auc", "auc", "auc_arrays"]


@dataclass(frozen=True, slots=True)
class Auc:
    """An AUC, how sure it is, and what it was computed on; None where undefined, and ``reason`` says why.

    Attributes
    ----------
    auc
        P(key above other) + P(tie) / 2, averaged over the strata where it is defined, each counting once.
    std_error
        DeLong's with one stratum; across strata, from the spread of the clusters' sums.
    ci_low, ci_high
        Limits on the logit scale: Student's with clusters - 1 degrees of freedom across strata, normal for DeLong's.
    n_key, n_other
        Scored memories of each class, over all strata.
    n_strata, n_undefined
        Strata the mean is over, and strata without it because a class is empty.
    tied
        Pairs of a key and another memory, of one stratum, with equal scores.
    left_out, left_out_key
        Memories without a score, and the key memories among them.
    reason
        Why something is None.
    level
        Confidence level of the limits.
    pooled
        The AUC over all strata's pairs at once, clusters kept in its standard error; None inside itself.
    unknown_labels
        Ids that labels of the table's queries or scopes name and the table does not hold. They are no
        negatives.
    labels_elsewhere
        Labels of queries or scopes that the table does not hold at all.
    duplicates
        Repeated labels that were collapsed.
    source
        Where the labels are from, with the file's sha256.

    Examples
    --------
    >>> result = auc_arrays([2.0, 1.0, 5.0, 6.0], [1, 0, 1, 1], strata=["q1", "q1", "q2", "q2"])
    >>> result.auc, result.n_strata, result.n_undefined
    (1.0, 1, 1)
    """

    auc: float | None
    std_error: float | None
    ci_low: float | None
    ci_high: float | None
    n_key: int
    n_other: int
    n_strata: int
    n_undefined: int
    tied: int
    left_out: int
    left_out_key: int = 0
    reason: str | None = None
    level: float = 0.95
    pooled: Auc | None = None
    unknown_labels: tuple[str, ...] = ()
    labels_elsewhere: int = 0
    duplicates: int = 0
    source: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def auc_arrays(
    scores: npt.ArrayLike,
    labels: npt.ArrayLike,
    strata: npt.ArrayLike | None = None,
    *,
    clusters: npt.ArrayLike | None = None,
    level: float = 0.95,
) -> Auc:
    """Return the AUC of scores against labels, within strata first.

    Parameters
    ----------
    scores
        Shape (n,), higher is better; NaN where there is none: left out, and counted.
    labels
        Shape (n,), 1 (or True) for a key memory, else 0.
    strata
        Shape (n,), the query (or scope) of each: only pairs of one stratum are compared.
    clusters
        Shape (n,), what is sampled independently; each stratum its own where None. A stratum lies in one
        cluster.
    level
        Confidence level.

    Raises
    ------
    ValueError
        For shapes that differ, labels other than 0 and 1, or a stratum in two clusters.

    References
    ----------
    DeLong, E. R., DeLong, D. M. and Clarke-Pearson, D. L. (1988). Biometrics 44, 837-845. Obuchowski, N. A.
    (1997). Nonparametric analysis of clustered ROC curve data. Biometrics 53, 567-578 (the pooled figure).

    Examples
    --------
    >>> result = auc_arrays([0.8, 0.5, 0.5, 0.9, 0.1, 0.5, 0.7, 0.3, 0.2], [1, 1, 1, 1, 0, 0, 0, 0, 0])
    >>> result.auc, round(result.std_error, 4), result.tied
    (0.85, 0.1323, 2)
    >>> print(auc_arrays([1.0, 2.0], [1, 1]).auc)
    None
    """
    everything = read_sample(scores, labels, strata, clusters, level)
    return _within_and_pooled(everything, clusters_given=clusters is not None, level=level)


def read_sample(
    scores: npt.ArrayLike,
    labels: npt.ArrayLike,
    strata: npt.ArrayLike | None,
    clusters: npt.ArrayLike | None,
    level: float,
    rival: npt.ArrayLike | None = None,
) -> Sample:
    """Return the arrays of :func:`auc_arrays`, checked; scores may still be NaN."""
    if not 0.0 < level < 1.0:
        raise ValueError(f"level={level!r} is no confidence level; give one between 0 and 1, such as 0.95")
    score, key = np.asarray(scores, dtype=np.float64), np.asarray(labels)
    other = None if rival is None else np.asarray(rival, dtype=np.float64)
    stratum = np.zeros(len(score), dtype=np.int64) if strata is None else np.asarray(strata)
    cluster = stratum if clusters is None else np.asarray(clusters)
    arrays = [score, key, stratum, cluster, *([] if other is None else [other])]
    if any(array.shape != (len(score),) for array in arrays):
        raise ValueError("scores, labels, strata and clusters must be one-dimensional and of one length")
    if key.size and not np.isin(key, (0, 1)).all():
        raise ValueError("labels are 1 (key) or 0; cut graded relevances first")
    sample = Sample(score, key.astype(bool), _codes(stratum), _codes(cluster), other)
    one_stratum = not sample.stratum.any()
    return sample.each_its_own_cluster() if clusters is None and one_stratum else sample


def _within_and_pooled(everything: Sample, *, clusters_given: bool, level: float) -> Auc:
    unscored = np.isnan(everything.score)
    sample = everything.select(~unscored)
    left_out = int(unscored.sum()), int((unscored & everything.key).sum())
    n_all = len(np.unique(everything.stratum))
    whole = pooled_estimate(sample)
    defined = whole.value is not None
    pooled = _result(
        whole, sample, int(defined), int(not defined and n_all > 0), sample.tied_pairs(), left_out, level
    )
    if n_all <= 1:
        return replace(pooled, pooled=pooled)
    parts = list(sample.by_stratum())
    tied = sum(part.tied_pairs() for part in parts)
    mean = mean_over_strata(parts, clusters_given=clusters_given)
    result = _result(mean, sample, len(parts), n_all - len(parts), tied, left_out, level)
    return replace(result, pooled=pooled)


def _result(
    estimate: Estimate,
    sample: Sample,
    n_strata: int,
    n_undefined: int,
    tied: int,
    left_out: tuple[int, int],
    level: float,
) -> Auc:
    value, variance, reason, df = estimate
    low, high = (
        (None, None) if value is None or variance is None else logit_limits(value, variance, level, df)
    )
    return Auc(
        auc=value,
        std_error=None if variance is None else math.sqrt(variance),
        ci_low=low,
        ci_high=high,
        n_key=sample.n_key,
        n_other=sample.n_other,
        n_strata=n_strata,
        n_undefined=n_undefined,
        tied=tied,
        left_out=left_out[0],
        left_out_key=left_out[1],
        reason=reason,
        level=level,
    )


def auc(
    table: Any,
    qrels: Qrels | pl.DataFrame,
    within: str = "query",
    *,
    score: str | None = None,
    clusters: str | None = None,
    level: float = 0.95,
) -> Auc:
    """Return the AUC of a table's utilities against labels.

    Parameters
    ----------
    table
        What ``utilities`` returned, or a polars frame with ``memory_id``, a score, and ``scope`` and
        ``group`` where there are several. With ``group`` its rows are per query, and ``group`` is the labels'
        ``query_id``; without, a key memory is one that any query of its scope needs.
    qrels
        Labels, from :func:`read_qrels`, or a frame that it reads. A label's scope counts where it names one; a
        label of a scope alone is of every query.
    within
        Strata: ``"query"`` (the scope, for a table without ``group``) or ``"scope"``.
    score
        Column to rank by; ``"utility"`` where None, or ``"score"`` where there is no such column.
    clusters
        Column of independent units, such as ``"scope"``; each stratum its own where None.
    level
        Confidence level.

    Raises
    ------
    GranularityError
        Where no label names any memory of the table, labels without a scope fit memories of several, or labels of
        several scopes meet a table without ``scope``.
    ValueError
        For columns that are missing, or another ``within``.

    Examples
    --------
    >>> utilities = pl.DataFrame({"memory_id": ["a", "b", "c", "d"], "utility": [0.4, 0.1, None, 0.2]})
    >>> labels = pl.DataFrame({"query_id": ["q"] * 4, "memory_id": ["a", "a", "c", "z"]})
    >>> result = auc(utilities, labels)
    >>> result.auc, result.duplicates, result.left_out_key, result.unknown_labels
    (1.0, 1, 1, ('z',))
    """
    known = qrels if isinstance(qrels, Qrels) else read_qrels(qrels)
    frame: pl.DataFrame = getattr(table, "frame", table)
    column = score_column(frame, score)
    if clusters and clusters not in frame.columns:
        raise ValueError(f"the table has no column {clusters}; it has {frame.columns}")
    marked = mark_table(frame, known, within=within)
    result = auc_arrays(
        marked.frame[column].cast(pl.Float64).fill_null(math.nan).to_numpy(),
        marked.frame["key"].to_numpy(),
        marked.strata,
        clusters=row_codes(marked.frame, [clusters]) if clusters else None,
        level=level,
    )
    return replace(
        result,
        unknown_labels=marked.unknown,
        labels_elsewhere=marked.n_elsewhere,
        duplicates=known.duplicates,
        source=known.source,
    )


def score_column(frame: pl.DataFrame, score: str | None) -> str:
    """Return the column to rank by.

    Raises
    ------
    ValueError
        Where the table lacks it, or holds several metrics.
    """
    if "metric" in frame.columns and frame["metric"].n_unique() > 1:
        raise ValueError(
            f"the table holds the metrics {frame['metric'].unique().sort().to_list()}, each with a row a memory; pass "
            "one of them: table.frame.filter(metric=...)"
        )
    column = score or ("utility" if "utility" in frame.columns else "score")
    if column not in frame.columns:
        raise ValueError(f"the table has no column {column}; it has {frame.columns}")
    return column


def _lines(result: Auc) -> list[str]:
    """Say what there is in up to four lines."""
    if result.auc is None:
        return [f"AUC undefined: {result.reason}"]
    spread = (
        "" if result.ci_low is None else f" [{result.ci_low:.3f}, {result.ci_high:.3f}] ({result.level:.0%})"
    )
    strata = f", mean over {result.n_strata} strata" if result.n_strata + result.n_undefined > 1 else ""
    lines = [f"AUC {result.auc:.3f}{spread}{strata}"]
    counts = [f"{result.n_key} key memories, {result.n_other} others, {result.tied} tied pairs"]
    for number, what in (
        (result.n_undefined, "strata undefined"),
        (result.left_out, f"left out without a score ({result.left_out_key} key)"),
        (len(result.unknown_labels), "labelled ids unknown"),
    ):
        counts += [f"{number} {what}"] if number else []
    lines.append("; ".join(counts))
    whole = result.pooled
    if strata and whole is not None and whole.auc is not None:
        limits = "" if whole.ci_low is None else f" [{whole.ci_low:.3f}, {whole.ci_high:.3f}]"
        lines.append(f"pooled over all strata: {whole.auc:.3f}{limits}")
    return lines + ([result.reason] if result.reason else [])


def _codes(values: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    return np.unique(values, return_inverse=True)[1].astype(np.int64)
