"""Exact tests for two-valued outcomes where propensities differ from round to round inside a stratum."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce

import numpy as np

from cmp.estimation.cells import Outcomes
from cmp.estimation.exact_tests import MAX_EXACT_SUPPORT, two_sided
from cmp.estimation.sums import FloatArray, IntArray, group_sums

__all__ = ["Draws", "p_values_of_draws"]

#: Propensities of a stratum that are told apart; where there are more, neighbouring ones count as their mean.
_MOST_GROUPS = 256


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
    one propensity a stratum it is Fisher's exact test, or Cochran, Mantel and Haenszel's. A stratum of more than 256
    propensities is taken to have 256, each the mean of neighbouring ones.

    Parameters
    ----------
    draws
        Rounds.
    outcomes
        One a memory, which says what is a success.

    Returns
    -------
    numpy.ndarray
        Shape (M,), NaN where outcomes are not two-valued, no stratum holds both arms, or the sum can take more than
        ``MAX_EXACT_SUPPORT`` values: so many successes are as good as normal.

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
    result, observed = np.full(m, np.nan), np.zeros(m, dtype=np.int64)
    strata: dict[int, list[_Stratum]] = {}
    for memory, stratum in _strata_with_both_arms(draws, outcomes):
        strata.setdefault(memory, []).append(stratum)
        observed[memory] += stratum.observed
    for memory, own in strata.items():
        if sum(min(stratum.n_exposed, int(stratum.successes.sum())) for stratum in own) <= MAX_EXACT_SUPPORT:
            masses = reduce(np.convolve, (stratum.masses() for stratum in own))
            result[memory] = two_sided(masses[None], observed[[memory]])[0]
    return result


@dataclass(frozen=True, slots=True)
class _Stratum:
    """The rounds of one memory in one stratum, by propensity."""

    log_odds: FloatArray
    successes: FloatArray
    failures: FloatArray
    n_exposed: int
    observed: int
    """Successes among the exposed."""

    def masses(self) -> FloatArray:
        """Return how the exposed successes are distributed given how many are exposed, from 0 on."""
        log_odds = self.log_odds + self._shift()
        yes, no = (_poisson_binomial(log_odds, n, self.n_exposed) for n in (self.successes, self.failures))
        rest = self.n_exposed - np.arange(len(yes))
        both = yes * np.where(rest < len(no), no[np.minimum(rest, len(no) - 1)], 0.0)
        return np.asarray(both / both.sum())

    def _shift(self) -> float:
        """Return what to add to all log odds so that as many draws are expected as there were.

        Given the number of draws, the distribution is the same, and nothing needed lies far out in a tail.
        """
        from scipy.optimize import brentq
        from scipy.special import expit

        n = self.successes + self.failures

        def excess(shift: float) -> float:
            return float(n @ expit(self.log_odds + shift)) - self.n_exposed

        edge = 1.0
        while excess(-edge) > 0.0 or excess(edge) < 0.0:
            edge *= 2.0
        return float(brentq(excess, -edge, edge, xtol=1e-9))


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
        successes, exposed = (
            np.rint((total[rows] - number[rows] * low[rows]) / scale[rows])
            for total, number in ((draws.total, draws.rounds), (draws.total_exposed, draws.exposed))
        )
        pi, group = _grouped(draws.propensity[rows], draws.rounds[rows])
        yes, every = (group_sums(group, values, len(pi)) for values in (successes, draws.rounds[rows]))
        log_odds = np.log(pi) - np.log1p(-pi)
        yield memory, _Stratum(log_odds, yes, every - yes, int(n_exposed), int(exposed.sum()))


def _grouped(propensity: FloatArray, rounds: FloatArray) -> tuple[FloatArray, IntArray]:
    """Return up to some number of propensities, and which of them each of those given (ascending) is."""
    pi, group = np.unique(propensity, return_inverse=True)
    if len(pi) > _MOST_GROUPS:
        group = np.arange(len(propensity)) * _MOST_GROUPS // len(propensity)
        pi = group_sums(group, propensity * rounds, _MOST_GROUPS) / group_sums(group, rounds, _MOST_GROUPS)
    return pi, group


def _poisson_binomial(log_odds: FloatArray, count: FloatArray, most: int) -> FloatArray:
    """Return the masses of 0, 1, ... successes in independent trials, up to ``most`` or to all of them.

    Every term is positive, so that the smallest masses are as exact as the largest.
    """
    from scipy.special import gammaln, log_expit

    masses = np.ones(1)
    for odds, n in zip(log_odds[count > 0], count[count > 0], strict=True):
        x = np.arange(min(int(n), most) + 1)
        ways = gammaln(n + 1) - gammaln(x + 1) - gammaln(n - x + 1)
        mass = np.exp(ways + x * log_expit(odds) + (n - x) * log_expit(-odds))
        masses = np.convolve(masses, mass)[: most + 1]
    return masses
