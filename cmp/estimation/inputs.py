"""The arrays people pass, read once and strictly: booleans that are booleans, outcomes that are numbers or missing."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import numpy.typing as npt

from cmp.estimation.cells import BoolArray
from cmp.estimation.sums import FloatArray, IntArray

__all__ = [
    "read_booleans",
    "read_covariates",
    "read_memory_rounds",
    "read_outcomes",
    "read_rounds",
    "read_strata",
]


def read_booleans(values: npt.ArrayLike, name: str) -> BoolArray:
    """Return an array of True and False, or of 1 and 0.

    Raises
    ------
    ValueError
        For anything else: NaN, None, strings, masked entries, other numbers.

    Examples
    --------
    >>> read_booleans([1, 0.0, True], "assigned").tolist()
    [True, False, True]
    """
    array = np.asanyarray(values)
    if np.ma.isMaskedArray(array) and np.ma.getmaskarray(array).any():
        raise ValueError(f"{name} has masked entries; say True or False of every round")
    array = np.asarray(array)
    if array.dtype == bool:
        return array
    if array.dtype.kind == "O" and all(
        isinstance(v, bool | int | float | np.number | np.bool_) for v in array.flat
    ):
        array = array.astype(np.float64)
    if array.size and (array.dtype.kind not in "iuf" or not np.isin(array, (0, 1)).all()):
        raise ValueError(f"{name} holds values other than True and False (or 1 and 0)")
    return array.astype(bool)


def read_outcomes(values: npt.ArrayLike, name: str = "outcomes") -> FloatArray:
    """Return outcomes as floats, NaN where they are NaN, None or masked.

    Raises
    ------
    ValueError
        For text, other objects, or an infinite outcome.

    Examples
    --------
    >>> read_outcomes(np.ma.masked_array([1.0, 2.0], [False, True])).tolist()
    [1.0, nan]
    """
    given = np.asanyarray(values)
    array = np.asarray(given)
    if array.dtype.kind == "O" and not any(isinstance(value, str | bytes) for value in array.flat):
        with suppress(TypeError, ValueError):
            array = array.astype(np.float64)  # None becomes NaN
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{name} are {array.dtype}; give numbers, NaN or None where missing")
    y = array.astype(np.float64)
    if np.ma.isMaskedArray(given):
        y[np.ma.getmaskarray(given)] = np.nan
    if np.isinf(y).any():
        raise ValueError(
            f"the outcome of round {int(np.flatnonzero(np.isinf(y))[0])} is infinite; missing is NaN"
        )
    return y


def read_strata(strata: npt.ArrayLike | None, n_rounds: int) -> tuple[IntArray, int]:
    """Return codes of strata in the order of their labels, and how many there are; one stratum for None.

    Raises
    ------
    ValueError
        For another shape than ``(n_rounds,)``, or a label that is None or NaN.

    Examples
    --------
    >>> codes, n = read_strata(["b2", "b1", "b2"], 3)
    >>> codes.tolist(), n
    ([1, 0, 1], 2)
    """
    if strata is None:
        return np.zeros(n_rounds, dtype=np.int64), 1
    labels = np.asarray(strata)
    if labels.shape != (n_rounds,):
        raise ValueError(f"strata have shape {labels.shape} for {n_rounds} rounds; give one a round")
    if labels.dtype.kind == "O" and any(label is None or label != label for label in labels):
        raise ValueError("strata hold None or NaN; name the stratum of every round")
    if labels.dtype.kind == "f" and np.isnan(labels).any():
        raise ValueError("strata hold None or NaN; name the stratum of every round")
    names, codes = np.unique(labels, return_inverse=True)
    return codes.astype(np.int64), len(names)


def read_memory_rounds(outcomes: npt.ArrayLike, assigned: npt.ArrayLike) -> tuple[FloatArray, BoolArray]:
    """Return one memory's outcomes, NaN where missing, and whether each round was exposed.

    Raises
    ------
    ValueError
        For shapes that differ, or values that :func:`read_outcomes` and :func:`read_booleans` refuse.

    Examples
    --------
    >>> y, z = read_memory_rounds([1, None], [1, 0])
    >>> y.tolist(), z.tolist()
    ([1.0, nan], [True, False])
    """
    y, z = read_outcomes(outcomes), read_booleans(assigned, "assigned")
    if y.shape != z.shape or y.ndim != 1:
        raise ValueError(f"outcomes have shape {y.shape} and assigned {z.shape}; give one of each a round")
    return y, z


def read_rounds(
    assigned: npt.ArrayLike,
    outcomes: npt.ArrayLike,
    strata: npt.ArrayLike | None,
    eligible: npt.ArrayLike | None,
) -> tuple[BoolArray, FloatArray, IntArray, BoolArray]:
    """Read and check who was drawn (T, N), outcomes (T,), codes of strata (T,), and who was eligible (T, N)."""
    z, y = read_booleans(assigned, "assigned"), read_outcomes(outcomes)
    if z.ndim != 2 or y.shape != (len(z),):
        raise ValueError(
            f"assigned has shape {z.shape} and outcomes {y.shape}; give (rounds, memories) and (rounds,)"
        )
    if np.isnan(y).all():
        raise ValueError("no round has an outcome")
    allowed = np.ones_like(z) if eligible is None else read_booleans(eligible, "eligible")
    if allowed.shape != z.shape:
        raise ValueError(f"eligible has shape {allowed.shape}; give {z.shape}, as assigned")
    return z, y, read_strata(strata, len(z))[0], allowed


def read_covariates(covariates: npt.ArrayLike | None, n_rounds: int) -> FloatArray:
    """Return covariates of shape (T, p), p = 0 for None.

    Raises
    ------
    ValueError
        For another shape, or a value that is missing, infinite or no number: a covariate is known in every round.
    """
    if covariates is None:
        return np.zeros((n_rounds, 0))
    x = read_outcomes(covariates, "covariates")
    x = x[:, None] if x.ndim == 1 else x
    if x.ndim != 2 or len(x) != n_rounds:
        raise ValueError(f"covariates have shape {np.shape(covariates)} for {n_rounds} rounds; give (T, p)")
    if np.isnan(x).any():
        row = int(np.argwhere(np.isnan(x))[0][0])
        raise ValueError(
            f"a covariate of round {row} is missing; fill it in and add a column that says so (1 where it was)"
        )
    return x
