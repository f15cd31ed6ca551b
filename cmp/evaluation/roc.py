"""The chance that a key memory scores above another: AUC within query first, pooled second."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from cmp.errors import GranularityError
from cmp.evaluation.placements import (
    Estimate,
    IntArray,
    Sample,
    logit_limits,
    mean_over_strata,
    pooled_estimate,
)
from cmp.evaluation.qrels import Qrels

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
        Normal limits on the logit scale.
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
    if not 0.0 < level < 1.0:
        raise ValueError(f"level={level!r} is no confidence level; give one between 0 and 1, such as 0.95")
    score, key = np.asarray(scores, dtype=np.float64), np.asarray(labels)
    stratum = np.zeros(len(score), dtype=np.int64) if strata is None else np.asarray(strata)
    cluster = (
        (np.arange(len(score)) if strata is None else stratum) if clusters is None else np.asarray(clusters)
    )
    if any(array.shape != (len(score),) for array in (score, key, stratum, cluster)):
        raise ValueError("scores, labels, strata and clusters must be one-dimensional and of one length")
    if key.size and not np.isin(key, (0, 1)).all():
        raise ValueError("labels are 1 (key) or 0; cut graded relevances first")
    unscored = np.isnan(score)
    everything = Sample(score, key.astype(bool), _codes(stratum), _codes(cluster))
    sample = everything.select(~unscored)
    left_out = int(unscored.sum()), int((unscored & everything.key).sum())
    whole = pooled_estimate(sample)
    n_all = len(np.unique(everything.stratum))
    pooled = _result(
        whole,
        sample,
        int(whole.value is not None),
        int(whole.value is None and n_all > 0),
        sample.tied_pairs(),
        left_out,
        level,
    )
    if n_all <= 1:
        return replace(pooled, pooled=pooled)
    parts = list(sample.by_stratum())
    tied = sum(part.tied_pairs() for part in parts)
    mean = mean_over_strata(parts)
    return replace(
        _result(mean, sample, len(parts), n_all - len(parts), tied, left_out, level), pooled=pooled
    )


def _result(
    estimate: Estimate,
    sample: Sample,
    n_strata: int,
    n_undefined: int,
    tied: int,
    left_out: tuple[int, int],
    level: float,
) -> Auc:
    value, variance, reason = estimate
    low, high = (None, None) if value is None or variance is None else logit_limits(value, variance, level)
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
    qrels: Qrels,
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
        Labels, from :func:`read_qrels`.
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
        Where no label names any memory of the table, or labels without a scope fit memories of several.
    ValueError
        For columns that are missing, or another ``within``.

    Examples
    --------
    >>> from cmp.evaluation.qrels import read_qrels
    >>> utilities = pl.DataFrame({"memory_id": ["a", "b", "c", "d"], "utility": [0.4, 0.1, None, 0.2]})
    >>> labels = pl.DataFrame({"query_id": ["q"] * 4, "memory_id": ["a", "a", "c", "z"]})
    >>> result = auc(utilities, read_qrels(labels))
    >>> result.auc, result.duplicates, result.left_out_key, result.unknown_labels
    (1.0, 1, 1, ('z',))
    """
    frame: pl.DataFrame = getattr(table, "frame", table)
    column = score or ("utility" if "utility" in frame.columns else "score")
    if lacking := {column, "memory_id", *([clusters] if clusters else [])} - set(frame.columns):
        raise ValueError(f"the table has no column {', '.join(sorted(lacking))}; it has {frame.columns}")
    if within not in ("query", "scope"):
        raise ValueError(f"within={within!r}; use 'query' or 'scope'")
    marked, unknown, elsewhere = _mark(frame.with_columns(pl.col("memory_id").cast(pl.String)), qrels)
    keys = [name for name in ("scope", *(["group"] if within == "query" else [])) if name in frame.columns]
    if not keys and "group" in frame.columns:
        keys = ["group"]
    strata = _row_codes(marked, keys)
    result = auc_arrays(
        marked[column].cast(pl.Float64).fill_null(math.nan).to_numpy(),
        marked["key"].to_numpy(),
        strata,
        clusters=_row_codes(marked, [clusters]) if clusters else None,
        level=level,
    )
    return replace(
        result,
        unknown_labels=unknown,
        labels_elsewhere=elsewhere,
        duplicates=qrels.duplicates,
        source=qrels.source,
    )


def _mark(frame: pl.DataFrame, qrels: Qrels) -> tuple[pl.DataFrame, tuple[str, ...], int]:
    """Add the column ``key``; return labelled ids the table lacks, and how many labels are of elsewhere."""
    scoped = "scope" in frame.columns and qrels.frame["scope"].null_count() == 0
    place = [*(["scope"] if scoped else []), *(["group"] if "group" in frame.columns else [])]
    labels = qrels.key_memories.rename({"query_id": "group"}).select(*place, "memory_id").unique()
    here = labels if not place else labels.join(frame.select(place).unique(), on=place, how="semi")
    hits = here.join(frame, on=[*place, "memory_id"], how="inner")
    if not hits.height:
        raise GranularityError(_no_match(frame, labels, here, place))
    if "scope" in frame.columns and not scoped:
        shared = (
            hits.select(*place, "memory_id", "scope")
            .unique()
            .filter(pl.struct(*place, "memory_id").is_duplicated())
        )
        if shared.height:
            raise GranularityError(
                f"labels without a scope fit {shared['memory_id'][0]!r} in several scopes "
                f"({', '.join(shared['scope'].head(2))}); give the qrels a scope column"
            )
    unknown = here.join(frame, on=[*place, "memory_id"], how="anti")["memory_id"].unique().sort().to_list()
    marked = frame.join(
        here.with_columns(pl.lit(True).alias("key")),
        on=[*place, "memory_id"],
        how="left",
        maintain_order="left",
    ).with_columns(pl.col("key").fill_null(False))
    return marked, tuple(unknown), labels.height - here.height


def _no_match(frame: pl.DataFrame, labels: pl.DataFrame, here: pl.DataFrame, place: list[str]) -> str:
    def some(ids: pl.Series) -> str:
        return ", ".join(map(repr, ids.unique().sort().head(3))) or "nothing"

    name = "memory_id" if here.height or not place else place[-1]
    return (
        f"none of {labels.height} labels names a memory of the table: {name} is {some(labels[name])} "
        f"there, and {some(frame[name])} here. Label the unit that is retrieved (turns, say, not sessions)"
    )


def _row_codes(frame: pl.DataFrame, columns: list[str]) -> IntArray:
    if not columns:
        return np.zeros(frame.height, dtype=np.int64)
    return frame.select(pl.struct(columns).rank("dense").cast(pl.Int64)).to_series().to_numpy()


def _codes(values: npt.NDArray[Any]) -> IntArray:
    return np.unique(values, return_inverse=True)[1].astype(np.int64)
