"""Exact tests for two-valued outcomes where propensities differ from round to round inside a stratum."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce

import numpy as np

from cmp.estimation.cells import BoolArray, Outcomes
from cmp.estimation.exact_tests import MAX_EXACT_SUPPORT, two_sided
from cmp.estimation.sums import FloatArray, IntArray, distinct, group_sums, ranges

__all__ = ["Draws", "missingness_of_draws", "p_values_of_draws"]

#: Propensities of a stratum that are told apart; where there are more, neighbouring ones count as their mean.
_MOST_GROUPS = 256

#: Strata of up to this many rounds are gone through round by round, many at once.
_SHORT = 64

#: Masses held at once.
_AT_ONCE = 1_000_000

#: Masses below this are left out of long sums: no p-value that anybody reads is as small.
_NOTHING = 1e-200

#: Halvings of what is added to log odds: its range, some hundreds at most, comes down to less than a millionth.
_HALVINGS = 30


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
    >>> of = Outcomes(np.zeros(1), np.ones(1), np.ones(1, dtype=bool), np.full(1, 3.0), one[:1] > 0)
    >>> p_values_of_draws(draws, of).round(6).tolist()
    [0.485714]
    """
    strata, tested = _strata_that_decide(draws, outcomes)
    p = np.where(tested, 1.0, np.nan)
    reach = group_sums(strata.memory, strata.reach, len(p))
    p[reach > MAX_EXACT_SUPPORT] = np.nan
    _exact(strata.select((reach <= MAX_EXACT_SUPPORT)[strata.memory]), p)
    return p


def missingness_of_draws(draws: Draws, n_memories: int) -> FloatArray:
    """Return two-sided p-values of a drawn round's outcome going missing as readily as another's of its stratum.

    The test of :func:`p_values_of_draws`, with going missing for a success. Where the sum can take more than
    ``MAX_EXACT_SUPPORT`` values it is the normal one, with the mean and the variance that the sum has.

    Parameters
    ----------
    draws
        All eligible rounds, with an outcome or without: 1 for an outcome that is missing, 0 for one that is not.
    n_memories
        Number of memories M.

    Returns
    -------
    numpy.ndarray
        Shape (M,), NaN where no stratum holds both arms.

    Examples
    --------
    Rounds that are seldom drawn lose their outcomes more often, drawn or not:

    >>> lost, drawn = np.array([1.0, 1.0, 1.0, 0, 0, 0]), np.array([0.0, 0.0, 1.0, 1.0, 1.0, 1.0])
    >>> zero, one, pi = np.zeros(6, dtype=int), np.ones(6), np.array([0.1] * 3 + [0.9] * 3)
    >>> missingness_of_draws(Draws(zero, zero, pi, one, drawn, lost, lost * drawn), 1).round(3).tolist()
    [1.0]
    """
    from scipy.special import ndtr

    of = np.ones(n_memories)
    bits = Outcomes(0.0 * of, of, of > 0, 3.0 * of, of > 0)
    p = p_values_of_draws(draws, bits)
    strata, tested = _strata_that_decide(draws, bits)
    for row in np.flatnonzero(tested & np.isnan(p)):
        mean, variance = strata.select(strata.memory == row).moments()
        gap = float(strata.observed[strata.memory == row].sum()) - mean
        p[row] = 2.0 * ndtr(-abs(gap) / np.sqrt(variance)) if variance > 0.0 else 1.0
    return p


@dataclass(frozen=True, slots=True)
class _Strata:
    """Strata (C) of memories, in the order of these, and their rounds by propensity (G), in the order of strata.

    Each has rounds in both arms, successes and failures.
    """

    memory: IntArray
    """(C,)."""
    n_exposed: IntArray
    observed: IntArray
    """(C,), successes among the exposed."""
    stratum: IntArray
    """(G,), 0 to C - 1."""
    log_odds: FloatArray
    """(G,), such that as many draws of a stratum are expected as there were.

    Given the number of draws, the distribution is the same, and nothing needed lies far out in a tail.
    """
    successes: IntArray
    """(G,)."""
    failures: IntArray

    @property
    def reach(self) -> IntArray:
        """(C,), an upper bound of the successes among the exposed."""
        successes = group_sums(self.stratum, self.successes, len(self.memory)).astype(np.int64)
        return np.minimum(self.n_exposed, successes)

    def select(self, rows: BoolArray) -> _Strata:
        """Return some of the strata."""
        groups = rows[self.stratum]
        place = np.cumsum(rows) - 1
        return _Strata(
            self.memory[rows],
            self.n_exposed[rows],
            self.observed[rows],
            place[self.stratum[groups]],
            self.log_odds[groups],
            self.successes[groups],
            self.failures[groups],
        )

    def masses(self) -> list[FloatArray]:
        """Return how the exposed successes of each are distributed given how many are exposed, from 0 on."""
        n = group_sums(self.stratum, self.successes + self.failures, len(self.memory))
        found: list[FloatArray] = [np.empty(0)] * len(n)
        rows = np.argsort(n, kind="stable")
        short = rows[n[rows] <= _SHORT]
        for some in np.array_split(short, 1 + len(short) * (_SHORT + 1) // _AT_ONCE):
            for row, masses in zip(some.tolist(), self._round_by_round(some), strict=True):
                found[row] = masses
        ends = np.searchsorted(self.stratum, np.arange(len(n) + 1))
        for row in rows[len(short) :].tolist():
            of, most = slice(ends[row], ends[row + 1]), int(self.n_exposed[row])
            yes, no = (
                _poisson_binomial(self.log_odds[of], count[of], most)[None]
                for count in (self.successes, self.failures)
            )
            found[row] = _given_their_sum(yes, no, self.n_exposed[[row]])[0]
        return found

    def _round_by_round(self, some: IntArray) -> FloatArray:
        """Return the masses of some of the strata, shape (S, L)."""
        from scipy.special import log_expit

        part = self.select(np.isin(np.arange(len(self.memory)), some))
        place, arms = np.argsort(np.argsort(some)), []
        for count in (part.successes, part.failures):
            rounds = group_sums(part.stratum, count, len(some)).astype(np.int64)
            at = np.repeat(part.stratum, count), ranges(np.zeros(len(some), dtype=np.int64), rounds)
            odds = np.full((len(some), int(rounds.max(initial=0))), -np.inf)  # no round
            odds[at] = np.repeat(part.log_odds, count)
            masses = np.zeros((len(some), odds.shape[1] + 1))
            masses[:, 0] = 1.0
            for yes, no in zip(np.exp(log_expit(odds)).T, np.exp(log_expit(-odds)).T, strict=True):
                drawn = masses[:, :-1] * yes[:, None]
                masses *= no[:, None]
                masses[:, 1:] += drawn
            arms.append(masses)
        return _given_their_sum(arms[0], arms[1], part.n_exposed)[place]

    def moments(self) -> tuple[float, float]:
        """Return mean and variance of the sum of all; strata too large to go through as if draws were normal."""
        small = self.reach <= MAX_EXACT_SUPPORT
        mean = variance = 0.0
        for masses in self.select(small).masses():
            x = np.arange(len(masses))
            own = float(masses @ x)
            mean, variance = mean + own, variance + float(masses @ (x - own) ** 2)
        large = self.select(~small)
        p = 1.0 / (1.0 + np.exp(-large.log_odds))
        of = [
            group_sums(large.stratum, count * p * (1.0 - p), len(large.memory))
            for count in (large.successes, large.failures)
        ]
        mean += float(large.successes @ p)
        return mean, variance + float((of[0] * of[1] / (of[0] + of[1])).sum())


def _exact(strata: _Strata, p: FloatArray) -> None:
    """Fill in the exact p-values of the memories whose strata these are."""
    masses = strata.masses()
    observed = group_sums(strata.memory, strata.observed, len(p)).astype(np.int64)
    memories, begins, n = np.unique(strata.memory, return_index=True, return_counts=True)
    for memory, begin, count in zip(memories, begins, n, strict=True):
        whole = reduce(np.convolve, masses[begin : begin + count])
        p[memory] = two_sided(whole[None], observed[[memory]])[0]


def _strata_that_decide(draws: Draws, outcomes: Outcomes) -> tuple[_Strata, BoolArray]:
    """Return the strata of two-valued outcomes in which something may have gone otherwise.

    Also which memories, shape (M,), have a stratum with both arms, though all of its outcomes may be one.
    """
    use = outcomes.two_valued[draws.memory]
    memory, rounds = draws.memory[use], draws.rounds[use]
    n_strata = int(draws.stratum.max(initial=0)) + 1
    cell, place = distinct(memory * n_strata + draws.stratum[use], len(outcomes.low) * n_strata)
    low = outcomes.low[memory]
    scale = np.where(outcomes.high > outcomes.low, outcomes.high - outcomes.low, 1.0)[memory]
    yes, both_yes = (
        np.rint((total[use] - number[use] * low) / scale)
        for total, number in ((draws.total, draws.rounds), (draws.total_exposed, draws.exposed))
    )
    n, n1, successes, observed = (
        group_sums(place, values, len(cell)).astype(np.int64)
        for values in (rounds, draws.exposed[use], yes, both_yes)
    )
    both = (n1 > 0) & (n1 < n)
    tested = np.zeros(len(outcomes.low), dtype=bool)
    tested[cell[both] // n_strata] = True
    kept = both & (successes > 0) & (successes < n)
    rows = kept[place]
    groups = _grouped(
        (np.cumsum(kept) - 1)[place[rows]], draws.propensity[use][rows], rounds[rows], yes[rows]
    )
    return _tilted(_Strata(cell[kept] // n_strata, n1[kept], observed[kept], *groups)), tested


def _grouped(
    stratum: IntArray, propensity: FloatArray, rounds: FloatArray, successes: FloatArray
) -> tuple[IntArray, FloatArray, IntArray, IntArray]:
    """Put rounds of one stratum and propensity together, and of neighbouring ones where a stratum has too many.

    Returns each group's stratum, log odds, successes and failures.
    """
    order = np.lexsort((propensity, stratum))
    stratum, propensity, rounds = stratum[order], propensity[order], rounds[order]
    size = np.bincount(stratum)
    is_first = np.append(True, stratum[1:] != stratum[:-1])[: len(stratum)]
    is_new = is_first | np.append(True, propensity[1:] != propensity[:-1])[: len(stratum)]
    many = (np.bincount(stratum, weights=is_new) > _MOST_GROUPS)[stratum]
    part = ranges(np.zeros(len(size), dtype=np.int64), size) * _MOST_GROUPS // size[stratum]
    is_new = np.where(many, is_first | np.append(True, part[1:] != part[:-1])[: len(part)], is_new)
    group, begins = np.cumsum(is_new) - 1, np.flatnonzero(is_new)
    n, yes = (group_sums(group, values, len(begins)) for values in (rounds, successes[order]))
    mean = group_sums(group, propensity * rounds, len(begins)) / n
    pi = np.where(many[begins], mean, propensity[begins])
    return stratum[begins], np.log(pi) - np.log1p(-pi), yes.astype(np.int64), (n - yes).astype(np.int64)


def _tilted(strata: _Strata) -> _Strata:
    """Add to the log odds of each stratum what makes as many draws expected as there were."""
    from scipy.special import expit, logit

    m, n = len(strata.memory), strata.successes + strata.failures
    low, high = np.full(m, np.inf), np.full(m, -np.inf)
    np.minimum.at(low, strata.stratum, strata.log_odds)
    np.maximum.at(high, strata.stratum, strata.log_odds)
    even = logit(strata.n_exposed / group_sums(strata.stratum, n, m))
    low, high = even - high, even - low
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        expected = group_sums(strata.stratum, n * expit(strata.log_odds + middle[strata.stratum]), m)
        is_over = expected > strata.n_exposed
        low, high = np.where(is_over, low, middle), np.where(is_over, middle, high)
    return replace(strata, log_odds=strata.log_odds + ((low + high) / 2.0)[strata.stratum])


def _given_their_sum(yes: FloatArray, no: FloatArray, total: IntArray) -> FloatArray:
    """Return the masses of the first of two counts given their sum.

    Parameters
    ----------
    yes, no
        Shape (C, L) and (C, K): masses of 0, 1, ...; the widths are those of the longest.
    total
        Shape (C,).
    """
    rest = total[:, None] - np.arange(yes.shape[1])
    possible = (rest >= 0) & (rest < no.shape[1])
    other = np.take_along_axis(no, np.where(possible, rest, 0), axis=1)
    both = yes * np.where(possible, other, 0.0)
    return np.asarray(both / both.sum(axis=1, keepdims=True))


def _poisson_binomial(log_odds: FloatArray, count: IntArray, most: int) -> FloatArray:
    """Return the masses of 0, 1, ... successes in independent trials, up to ``most`` or to all of them.

    Every term is positive, so that the smallest masses are as exact as the largest.
    """
    from scipy.special import gammaln, log_expit

    masses, least = np.ones(1), 0
    for odds, n in zip(log_odds[count > 0], count[count > 0], strict=True):
        x = np.arange(min(int(n), most) + 1)
        ways = gammaln(n + 1) - gammaln(x + 1) - gammaln(n - x + 1)
        mass = np.exp(ways + x * log_expit(odds) + (n - x) * log_expit(-odds))
        some = np.flatnonzero(mass > _NOTHING)
        masses, least = np.convolve(masses, mass[some[0] : some[-1] + 1]), least + int(some[0])
        masses = masses[: most + 1 - least]
    return np.append(np.zeros(least), masses)
