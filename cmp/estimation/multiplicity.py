"""Adjusting a family of p-values in one call."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cmp.estimation.sums import FloatArray

__all__ = ["q_values"]


def q_values(p: npt.ArrayLike, method: str = "bh") -> FloatArray:
    """Adjust p-values for having looked at all of them.

    Parameters
    ----------
    p
        Shape (M,), NaN where undefined: these are no hypotheses, and stay NaN.
    method
        ``"bh"`` (Benjamini-Hochberg) and ``"by"`` (Benjamini-Yekutieli, any dependence) bound the false
        discovery rate, ``"holm"`` the chance of a single false rejection.

    Returns
    -------
    Shape (M,), the least level at which each hypothesis is rejected.

    Raises
    ------
    ValueError
        For another method, or values outside [0, 1].

    References
    ----------
    Benjamini, Y. and Hochberg, Y. (1995). JRSS B 57, 289-300. Benjamini, Y. and Yekutieli, D. (2001). Annals
    of Statistics 29, 1165-1188. Holm, S. (1979). Scandinavian Journal of Statistics 6, 65-70.

    Examples
    --------
    >>> q_values([0.01, 0.04, float("nan"), 0.03]).round(3)
    array([0.03, 0.04,  nan, 0.04])
    """
    values = np.asarray(p, dtype=np.float64)
    known = ~np.isnan(values)
    ranked = np.sort(values[known])
    if ((ranked < 0) | (ranked > 1)).any():
        raise ValueError("p-values lie in [0, 1]; NaN where undefined")
    n = len(ranked)
    rank = np.arange(1, n + 1)
    if method == "holm":
        adjusted = np.maximum.accumulate(ranked * (n - rank + 1))
    elif method in ("bh", "by"):
        factor = n * (1.0 if method == "bh" else float((1.0 / rank).sum())) / rank
        adjusted = np.minimum.accumulate((ranked * factor)[::-1])[::-1]
    else:
        raise ValueError(f"adjust={method!r}; use 'bh', 'by' or 'holm'")
    result = np.full(values.shape, np.nan)
    order = np.flatnonzero(known)[np.argsort(values[known], kind="stable")]
    result[order] = np.minimum(adjusted, 1.0)
    return result
