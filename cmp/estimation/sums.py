"""Sums that do not depend on the order of their terms.

Plain floating-point sums do: ``.1 + .2 + .3 != .3 + .2 + .1``, and two memories with equal outcomes would get
utilities that differ in the last bit, hence different ranks. Here every term is split into *limbs*, integer
multiples of a power of two so coarse that every partial sum of up to ``n_terms`` of them is representable.
Any engine, any order, any grouping then gives the same bits, and differences of such sums are exact too.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = [
    "distinct",
    "group_least",
    "group_sums",
    "limb_quanta",
    "matches",
    "order_free_sums",
    "places",
    "ranges",
    "row_codes",
    "scattered",
    "split_by_scope",
    "split_into_limbs",
    "unit_of",
]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

#: Bits kept below the largest term: 53 of a double, and as many again for what smaller terms hold.
_KEPT_BITS = 80
_SMALLEST_EXPONENT = -1000
#: Least exponent of a unit: below it limbs would be subnormal.
_LEAST_UNIT_EXPONENT = -900

#: Codes per row above which sorting or searching rows is cheaper than a table of all codes.
_SPARSE = 8

#: Combinations that one code tells apart.
_MOST_CODES = 2.0**62


def limb_quanta(largest: float, n_terms: int) -> list[float]:
    """Return the powers of two whose multiples the limbs are, coarsest first.

    Parameters
    ----------
    largest
        Upper bound of the terms' absolute values.
    n_terms
        Upper bound of the number of terms in any sum.

    Examples
    --------
    >>> limb_quanta(1.0, 90)[0] == 2.0**-44
    True
    """
    if not largest > 0.0:
        return [1.0]
    bits = 52 - max(1, math.ceil(math.log2(max(n_terms, 2))))
    top = math.frexp(largest)[1]
    exponents = range(top - bits, top - _KEPT_BITS - bits, -bits)
    return [math.ldexp(1.0, exponent) for exponent in exponents if exponent > _SMALLEST_EXPONENT] or [
        math.ldexp(1.0, _SMALLEST_EXPONENT)
    ]


def split_into_limbs(values: FloatArray, n_terms: int) -> list[FloatArray]:
    """Split ``values`` into limbs that add up to it; trailing limbs that are all zero are left out.

    Examples
    --------
    >>> limbs = split_into_limbs(np.array([0.1, 0.2, 0.3]), 3)
    >>> bool((sum(limbs) == [0.1, 0.2, 0.3]).all())
    True
    """
    largest = float(np.max(np.abs(values), initial=0.0))
    limbs, rest = [], values
    for quantum in limb_quanta(largest, n_terms):
        limb = np.rint(rest / quantum) * quantum
        limbs.append(limb)
        rest = rest - limb
        if not rest.any():
            break
    return limbs


def split_by_scope(values: FloatArray, scope: IntArray, n_terms: int) -> list[FloatArray]:
    """Split into limbs that are fractions of each scope's largest value: what one holds never rounds another's.

    Examples
    --------
    >>> tiny_beside_huge = split_by_scope(np.array([0.1, 1e300]), np.array([0, 1]), 2)
    >>> bool(sum(tiny_beside_huge)[0] == 0.1)
    True
    """
    top = np.zeros(int(scope.max(initial=-1)) + 1)
    np.maximum.at(top, scope, np.abs(values))
    unit = unit_of(top)[scope]
    return [limb * unit for limb in split_into_limbs(values / unit, n_terms)]


def distinct(codes: IntArray, n_codes: int) -> tuple[IntArray, IntArray]:
    """Return the codes that occur, sorted, and the place of each; without sorting where most codes occur.

    Examples
    --------
    >>> distinct(np.array([7, 2, 7]), 9)
    (array([2, 7]), array([1, 0, 1]))
    """
    if n_codes > _SPARSE * len(codes):
        found, place = np.unique(codes, return_inverse=True)
        return found, place
    occurs = np.zeros(n_codes, dtype=bool)
    occurs[codes] = True
    return np.flatnonzero(occurs), (np.cumsum(occurs) - 1)[codes]


def places(ascending: IntArray, wanted: IntArray, n_codes: int) -> tuple[IntArray, BoolArray]:
    """Return where each code stands among others that are there once, and whether it does; any place if not.

    Examples
    --------
    >>> place, found = places(np.array([1, 4]), np.array([4, 2, 1]), 6)
    >>> place[found].tolist(), found.tolist()
    ([1, 0], [True, False, True])
    """
    if not len(ascending):
        return np.zeros(len(wanted), dtype=np.int64), np.zeros(len(wanted), dtype=bool)
    if n_codes > _SPARSE * (len(ascending) + len(wanted)):
        place = np.minimum(np.searchsorted(ascending, wanted), len(ascending) - 1)
    else:
        table = np.zeros(n_codes, dtype=np.int64)
        table[ascending] = np.arange(len(ascending))
        place = table[np.clip(wanted, 0, n_codes - 1)]
    return place, ascending[place] == wanted


def row_codes(rows: IntArray) -> IntArray:
    """Return a code of each row (shape (D, C), none negative), in the order of the rows: one sorts faster than C.

    Examples
    --------
    >>> row_codes(np.array([[1, 0], [0, 3], [1, 0]])).tolist()
    [4, 3, 4]
    """
    span = rows.max(axis=0, initial=0) + 1
    if np.prod(span.astype(np.float64)) < _MOST_CODES:
        return np.asarray(np.ravel_multi_index(tuple(rows.T), tuple(span)))
    return np.unique(rows, axis=0, return_inverse=True)[1].ravel()


def group_least(groups: IntArray, values: FloatArray, n_groups: int) -> FloatArray:
    """Return the least value of each group; 0 of an empty one.

    Examples
    --------
    >>> group_least(np.array([0, 2, 0]), np.array([1.0, 2.0, 3.0]), 3)
    array([1., 0., 2.])
    """
    least = np.full(n_groups, np.inf)
    np.minimum.at(least, groups, values)
    return np.where(np.isfinite(least), least, 0.0)


def matches(ascending: IntArray, wanted: IntArray) -> tuple[IntArray, IntArray]:
    """Return every pair of an index of ``wanted`` and a place of ``ascending`` that holds its value.

    Examples
    --------
    >>> index, place = matches(np.array([3, 5, 5]), np.array([5, 4, 3]))
    >>> index.tolist(), place.tolist()
    ([0, 0, 2], [1, 2, 0])
    """
    start, end = (np.searchsorted(ascending, wanted, side=side) for side in ("left", "right"))
    n = end - start
    return np.repeat(np.arange(len(wanted)), n), ranges(start, n)


def ranges(start: IntArray, n: IntArray) -> IntArray:
    """Return ``n[0]`` numbers from ``start[0]`` on, then ``n[1]`` from ``start[1]`` on, and so forth.

    Examples
    --------
    >>> ranges(np.array([5, 0]), np.array([2, 3])).tolist()
    [5, 6, 0, 1, 2]
    """
    return np.arange(n.sum()) - np.repeat(np.cumsum(n) - n - start, n)


def scattered(values: npt.NDArray[Any], rows: IntArray, n: int) -> npt.NDArray[Any]:
    """Return n values, of which ``rows`` are these and the others 0.

    Examples
    --------
    >>> scattered(np.array([True, True]), np.array([3, 0]), 4).tolist()
    [True, False, False, True]
    """
    placed = np.zeros(n, dtype=values.dtype)
    placed[rows] = values
    return placed


def unit_of(largest: FloatArray) -> FloatArray:
    """Return the power of two that limbs of values up to these are fractions of."""
    return np.ldexp(1.0, np.maximum(np.frexp(largest)[1], _LEAST_UNIT_EXPONENT))


def group_sums(groups: IntArray, values: npt.NDArray[Any], n_groups: int) -> FloatArray:
    """Sum within groups as they come; an empty group has 0.

    Examples
    --------
    >>> group_sums(np.array([0, 2, 0]), np.array([1.0, 2.0, 3.0]), 3)
    array([4., 0., 2.])
    """
    sums: FloatArray = np.bincount(groups, weights=values, minlength=n_groups).astype(np.float64, copy=False)
    return sums


def order_free_sums(groups: IntArray, values: FloatArray, n_groups: int) -> FloatArray:
    """Sum within groups by limbs of each group's own size, so that the order of its terms leaves no trace.

    Examples
    --------
    >>> there = order_free_sums(np.zeros(3, int), np.array([0.1, 0.2, 0.3]), 1)
    >>> back = order_free_sums(np.zeros(3, int), np.array([0.3, 0.2, 0.1]), 1)
    >>> bool(there == back), sum([0.1, 0.2, 0.3]) == sum([0.3, 0.2, 0.1])
    (True, False)
    """
    top = np.zeros(n_groups)
    np.maximum.at(top, groups, np.abs(values))
    unit = unit_of(top)
    sums, rest = np.zeros(n_groups), values / unit[groups]
    for quantum in limb_quanta(1.0, int(np.bincount(groups).max(initial=0))):
        limb = np.rint(rest / quantum) * quantum
        sums += group_sums(groups, limb, n_groups)
        rest = rest - limb
        if not rest.any():
            break
    return sums * unit
