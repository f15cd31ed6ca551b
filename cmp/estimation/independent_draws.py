"""Exact tests for two-valued outcomes where propensities differ from round to round inside a stratum."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from cmp.estimation.cells import Outcomes
from cmp.estimation.exact_tests import two_sided
from cmp.estimation.sums import FloatArray, IntArray, group_sums

__all__ = ["Draws", "p_values_of_draws"]

#: Groups of rounds times terms of a transform, beyond which a memory's test is left to its interval: there the counts
#: are large, and the interval's own p-value is good.
_MOST_TERMS = 2_000_000


@dataclass(frozen=True, slots=True)
class Draws:
    """Rounds with an outcome, singly or those of one stratum and propensity together: arrays of shape (G,)."""

    memory: IntArray
    """Row of the table."""
    stratum: IntArray
    propensity: FloatArray
    rounds: FloatArray
    """How many rounds."""
    exposed: FloatArray
    """In how many of them the memory was drawn."""
    total: FloatArray
    """Sum of their outcomes."""
    total_exposed: FloatArray
    """Of these, over the rounds in which it was drawn."""


def p_values_of_draws(draws: Draws, outcomes: Outcomes) -> FloatArray:
    """Return two-sided p-values of the sharp null, given in how many rounds of each stratum the memory was drawn.

    Rounds draw independently of each other, each with its own propensity. The statistic is the number of successes
    among the exposed, over all strata; the p-value sums the values that are no more likely than the observed one. With
    one propensity a stratum it is Fisher's exact test, or Cochran, Mantel and Haenszel's.

    Parameters
    ----------
    draws
        Rounds.
    outcomes
        One a memory, which says what is a success.

    Returns
    -------
    numpy.ndarray
        Shape (M,), NaN where outcomes are not two-valued, no stratum holds both arms, or the memory has more rounds
        than are gone through.

    References
    ----------
    Chen, S. X. and Liu, J. S. (1997). Statistica Sinica 7, 875-892 (conditional Bernoulli distributions).

    Examples
    --------
    Fisher's tea, one propensity throughout:

    >>> y, drawn = np.array([1.0] * 4 + [0.0] * 4), np.array([1.0] * 3 + [0, 1] + [0.0] * 3)
    >>> zero, one = np.zeros(8, dtype=int), np.ones(8)
    >>> draws = Draws(zero, zero, 0.5 * one, one, drawn, y, y * drawn)
    >>> of = Outcomes(np.zeros(1), np.ones(1), np.ones(1, dtype=bool), np.full(1, 3.0))
    >>> p_values_of_draws(draws, of).round(6).tolist()
    [0.485714]
    """
    m = len(outcomes.low)
    result = np.full(m, np.nan)
    masses: dict[int, FloatArray] = {}
    observed = np.zeros(m, dtype=np.int64)
    for memory, stratum in _strata_with_both_arms(draws, outcomes):
        if len(stratum.odds) * _length(stratum.n_exposed) > _MOST_TERMS:
            masses[memory] = np.zeros(0)
        so_far = masses.get(memory, np.ones(1))
        if so_far.size:
            masses[memory] = np.convolve(so_far, stratum.masses())
            observed[memory] += stratum.observed
    for memory, found in masses.items():
        if found.size:
            result[memory] = two_sided(found[None], observed[[memory]])[0]
    return result


@dataclass(frozen=True, slots=True)
class _Stratum:
    """The rounds of one memory in one stratum, by propensity."""

    odds: FloatArray
    successes: FloatArray
    failures: FloatArray
    n_exposed: int
    observed: int
    """Successes among the exposed."""

    def masses(self) -> FloatArray:
        """Return how the exposed successes are distributed given how many are exposed, from 0 to all of these."""
        chance = self._chance()
        yes, no = (_poisson_binomial(chance, n, self.n_exposed) for n in (self.successes, self.failures))
        both = yes * no[::-1]
        return np.asarray(both / both.sum())

    def _chance(self) -> FloatArray:
        """Return probabilities with the same odds to each other, and as many draws expected as there were.

        Given the number of draws, the distribution is the same, and nothing needed lies far out in a tail.
        """
        from scipy.optimize import brentq

        n = self.successes + self.failures

        def excess(log_factor: float) -> float:
            tilted = self.odds * np.exp(log_factor)
            return float((n * tilted / (1.0 + tilted)).sum()) - self.n_exposed

        edge = 1.0
        while excess(-edge) > 0.0 or excess(edge) < 0.0:
            edge *= 2.0
        tilted = self.odds * np.exp(brentq(excess, -edge, edge, xtol=1e-9))
        return np.asarray(tilted / (1.0 + tilted))


def _strata_with_both_arms(draws: Draws, outcomes: Outcomes) -> Iterator[tuple[int, _Stratum]]:
    """Yield strata of memories with two-valued outcomes, in which some rounds were exposed and some not."""
    low = outcomes.low[draws.memory]
    scale = np.where(outcomes.high > outcomes.low, outcomes.high - outcomes.low, 1.0)[draws.memory]
    cell = draws.memory * (int(draws.stratum.max(initial=0)) + 1) + draws.stratum
    order = np.lexsort((draws.propensity, cell))
    cuts = np.flatnonzero(np.diff(cell[order])) + 1
    for rows in np.split(order, cuts) if len(order) else ():
        memory = int(draws.memory[rows[0]])
        n, n_exposed = draws.rounds[rows].sum(), draws.exposed[rows].sum()
        if not (outcomes.two_valued[memory] and 0 < n_exposed < n):
            continue
        pi, group = np.unique(draws.propensity[rows], return_inverse=True)
        successes = np.rint((draws.total[rows] - draws.rounds[rows] * low[rows]) / scale[rows])
        exposed = np.rint((draws.total_exposed[rows] - draws.exposed[rows] * low[rows]) / scale[rows])
        yes, every = (group_sums(group, values, len(pi)) for values in (successes, draws.rounds[rows]))
        yield memory, _Stratum(pi / (1.0 - pi), yes, every - yes, int(n_exposed), int(exposed.sum()))


def _length(n_exposed: int) -> int:
    """Return a power of two beyond which a count of independent draws, so many expected, has no mass to speak of.

    By Bernstein's inequality it has less than 1e-17.
    """
    return 1 << int(n_exposed + 12.0 * np.sqrt(n_exposed) + 60.0).bit_length()


def _poisson_binomial(chance: FloatArray, count: FloatArray, most: int) -> FloatArray:
    """Return the masses of 0, 1, ... ``most`` successes in independent trials, by Fourier's transform."""
    from scipy.fft import irfft

    length = _length(most)
    turns = np.exp(-2j * np.pi * np.arange(length // 2 + 1) / length)
    function = 1.0 + chance[:, None] * (turns - 1.0)
    size = count @ np.log(np.maximum(np.abs(function), 1e-300))
    masses: FloatArray = irfft(np.exp(size + 1j * (count @ np.angle(function))), n=length)
    return np.maximum(masses[: most + 1], 0.0)
