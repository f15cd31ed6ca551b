"""How a sum of hypergeometric counts is distributed: term by term, or by Fourier's transform where it is long."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from cmp.estimation.sums import FloatArray, IntArray, row_codes

__all__ = ["masses_by_transform", "masses_of_sums", "portions_by_size", "range_of_sums"]

#: Masses held at once: as many as stay in a processor's cache.
_AT_ONCE = 100_000

#: Terms of sums looked at together for the kinds of strata they share.
_TERMS_AT_ONCE = 4_000_000


def range_of_sums(margins: IntArray) -> tuple[IntArray, IntArray]:
    """Return the least and greatest number of exposed successes of each stratum.

    Parameters
    ----------
    margins
        Shape (D, 3): rounds, exposed rounds, successes of both arms.
    """
    n, n1, k = margins.T
    return np.maximum(0, n1 + k - n), np.minimum(n1, k)


def portions_by_size(rows: IntArray, size: IntArray) -> Iterator[IntArray]:
    """Yield some of the rows at a time, those of similar size together, so that what is computed at once is small."""
    rows = rows[np.argsort(size[rows], kind="stable")]
    while len(rows):
        reach = max(1, _AT_ONCE // (int(size[rows[-1]]) + 1))
        yield rows[-reach:]
        rows = rows[:-reach]


def masses_of_sums(margins: IntArray, n_strata: IntArray, size: int) -> FloatArray:
    """Convolve hypergeometric masses term by term, so that the smallest are as exact as the largest.

    Parameters
    ----------
    margins
        Shape (D, 3), the strata of one sum after those of another.
    n_strata
        Shape (M,), how many of them each sum has.
    size
        Greatest reach of a sum above its least value.

    Returns
    -------
    Shape (M, size + 1), from each sum's least value on.
    """
    masses, reach = np.zeros((len(n_strata), size + 1)), 0
    masses[:, 0] = 1.0
    begin = np.cumsum(n_strata) - n_strata
    by_length = np.argsort(-n_strata, kind="stable")  # those that have no stratum left stay as they are
    begin, n_strata = begin[by_length], n_strata[by_length]
    for turn in range(int(n_strata.max(initial=0))):
        left = int(np.searchsorted(-n_strata, -turn))
        more = _hypergeometric(margins[begin[:left] + turn])
        so_far = masses[:left, : reach + 1].copy()
        shorter, longer = (more, so_far) if more.shape[1] <= reach else (so_far, more)
        reach = min(size, reach + more.shape[1] - 1)
        masses[:left] = 0.0
        for x in range(min(shorter.shape[1], reach + 1)):
            width = min(longer.shape[1], reach + 1 - x)
            masses[:left, x : x + width] += shorter[:, x, None] * longer[:, :width]
    return masses[np.argsort(by_length, kind="stable")]


def masses_by_transform(
    margins: IntArray, count: IntArray, n_kinds: IntArray, size: IntArray
) -> Iterator[tuple[IntArray, FloatArray]]:
    """Yield sums' masses, right to about 1e-13, where they would take long term by term.

    Logarithms of characteristic functions add up, and strata that are alike share one: each is looked at once. They are
    taken about their means, so that phases stay small where the function is large.

    Parameters
    ----------
    margins
        Shape (D, 3), the kinds of strata of one sum after those of another.
    count
        Shape (D,), how many strata are so.
    n_kinds
        Shape (M,), how many kinds each sum has.
    size
        Shape (M,), reach of each sum above its least value.

    Yields
    ------
    Which sums, and their masses from the least value on: shapes (P,) and (P, at least size + 1). A transform is as
    long as the next power of two, whatever others are computed with it.
    """
    from scipy.sparse import csr_array

    _, places, kind = np.unique(row_codes(margins), return_index=True, return_inverse=True)
    kinds, ends = margins[places], np.concatenate([[0], np.cumsum(n_kinds)])
    counts = csr_array((count.astype(np.float64), kind, ends), shape=(len(n_kinds), len(kinds)))
    lengths = np.left_shift(1, np.frexp(size.astype(np.float64))[1].astype(np.int64))
    for length in np.unique(lengths).tolist():
        rows = np.flatnonzero(lengths == length)
        terms = np.cumsum(n_kinds[rows]) * length // _TERMS_AT_ONCE
        for some in np.split(rows, np.flatnonzero(np.diff(terms)) + 1):
            own = counts[some]
            used, own.indices = np.unique(own.indices, return_inverse=True)
            yield from _transformed(some, own, kinds[used], length)


def _transformed(
    sums: IntArray, counts: Any, kinds: IntArray, length: int
) -> Iterator[tuple[IntArray, FloatArray]]:
    """Yield the masses of sums, of which ``counts`` says how many strata of each kind they have."""
    from scipy.fft import irfft

    masses = _hypergeometric(kinds)
    beyond = np.arange(masses.shape[1])
    mean = masses @ beyond
    turns = np.arange(length // 2 + 1) * (2.0 * np.pi / length)
    function = (masses @ np.exp(-1j * beyond[:, None] * turns)) * np.exp(1j * mean[:, None] * turns)
    log_size, angle = np.log(np.maximum(np.abs(function), 1e-300)), np.angle(function)
    for some in portions_by_size(np.arange(len(sums)), np.full(len(sums), length)):
        own = counts[some][:, : len(kinds)]
        phase = own @ angle - (own @ mean)[:, None] * turns
        yield sums[some], irfft(np.exp(own @ log_size) * np.exp(1j * phase), n=length, axis=1)


def _hypergeometric(margins: IntArray) -> FloatArray:
    """Return the masses of each stratum's exposed successes, from its least on; 0 beyond its greatest."""
    from scipy.special import gammaln

    low, high = range_of_sums(margins)
    beyond = np.arange(int((high - low).max(initial=0)) + 1)
    x = low[:, None] + beyond
    possible = x <= high[:, None]
    n, n1, k = (v[:, None] for v in margins.T)
    x = np.where(possible, x, low[:, None])
    log_mass = -gammaln(x + 1) - gammaln(n1 - x + 1) - gammaln(k - x + 1) - gammaln(n - n1 - k + x + 1)
    mass = np.where(possible, np.exp(log_mass - log_mass.max(axis=1, keepdims=True)), 0.0)
    return np.asarray(mass / mass.sum(axis=1, keepdims=True))
