"""Logs with known utilities: levels and effects are fixed, the design and the noise are drawn.

A mean outcome is the level of the round plus the effects shown; then comes noise. As a balanced table is uniformly
labelled, the other memories shown beside one are a simple random sample of the rest, whatever its count; so what a
contrast estimates, the mean over rounds of E[outcome | shown] - E[outcome | not shown], has a closed form.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cmp.design import balanced_table

__all__ = ["KINDS", "RATES", "Size", "World", "contrasts", "make_world"]

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
Noise = Callable[[FloatArray, np.random.Generator], FloatArray]


@dataclass(frozen=True, slots=True)
class Size:
    """Rounds T, memories N, random slots k."""

    rounds: int
    memories: int
    k: int

    def __str__(self) -> str:
        return f"T={self.rounds}, N={self.memories}, k={self.k}"


@dataclass(frozen=True, slots=True)
class World:
    """A process that can be logged again and again."""

    size: Size
    level: FloatArray
    """(T,) mean outcome with no effect shown."""
    effect: FloatArray
    """(N,) what a memory adds to the mean."""
    bounded: bool
    """Whether means are cut to [0, 1]; effects then take one value besides 0."""
    noise: Noise
    """Outcomes from means."""

    @property
    def truth(self) -> FloatArray:
        """(N,) the expectation of each memory's difference in means."""
        truth: FloatArray = contrasts(self.level, self.effect, self.size.k, bounded=self.bounded).mean(axis=0)
        return truth

    def draw(self, seed: list[int]) -> tuple[BoolArray, FloatArray]:
        """Return one log: who was assigned, (T, N), and outcomes, (T,); each has a stream of its own."""
        assigned = assignment(self.size, seed)
        mean = self.level + assigned @ self.effect
        mean = np.clip(mean, 0.0, 1.0) if self.bounded else mean
        return assigned, self.noise(mean, np.random.default_rng([*seed, 1]))


def assignment(size: Size, seed: list[int]) -> BoolArray:
    """Return who was assigned in a log's rounds, shape (T, N), by the first stream of its seed."""
    table = balanced_table(size.memories, size.rounds, size.k, np.random.default_rng([*seed, 0]))
    assigned = np.zeros((size.rounds, size.memories), dtype=bool)
    np.put_along_axis(assigned, table, values=True, axis=1)
    return assigned


def contrasts(
    level: FloatArray, effect: FloatArray, k: int, *, bounded: bool, present: BoolArray | None = None
) -> FloatArray:
    """Return E[outcome | shown] - E[outcome | not shown] of each memory in each round, (T, N).

    Parameters
    ----------
    level, effect
        Shape (T,) and (N,).
    k
        Memories shown in a round.
    bounded
        Whether means are cut to [0, 1]; effects then take one value besides 0.
    present
        Shape (T, N), whose turn it may be: the roster of each round. None for everyone. What is returned for a memory
        that is not in a round's roster means nothing.
    """
    everyone = np.ones((len(level), len(effect)), dtype=bool) if present is None else present
    if bounded:
        return _bounded_contrasts(level, effect, k, everyone)
    # with k shown or k - 1 beside the memory, the others' mean effect counts k or k - 1 times
    others = (everyone @ effect)[:, None] - effect
    found: FloatArray = effect - others / (everyone.sum(axis=1)[:, None] - 1)
    return found


def _bounded_contrasts(level: FloatArray, effect: FloatArray, k: int, present: BoolArray) -> FloatArray:
    """How many of the others shown have the effect is hypergeometric, with and without the memory."""
    step = float(effect.max())
    found = np.zeros(present.shape)
    rosters = np.stack([present.sum(axis=1), (present & (effect > 0)).sum(axis=1)])
    for n, with_effect in np.unique(rosters, axis=1).T.tolist():
        rounds = (rosters[0] == n) & (rosters[1] == with_effect)
        for own in {0.0, step} if with_effect else {0.0}:
            means = []
            for extra, shown in ((own, k - 1), (0.0, k)):
                count = np.arange(shown + 1)
                weight = _hypergeometric(n - 1, with_effect - (own > 0), shown)
                means.append(np.clip(level[rounds, None] + extra + step * count, 0.0, 1.0) @ weight)
            found[np.ix_(rounds, effect == own)] = (means[0] - means[1])[:, None]
    return found


def _hypergeometric(n: int, marked: int, drawn: int) -> FloatArray:
    """Return the probabilities of 0 to ``drawn`` marked ones among ``drawn`` of ``n``."""
    ways = [math.comb(marked, count) * math.comb(n - marked, drawn - count) for count in range(drawn + 1)]
    return np.array(ways) / math.comb(n, drawn)


def _bernoulli(mean: FloatArray, rng: np.random.Generator) -> FloatArray:
    return (rng.random(len(mean)) < mean).astype(np.float64)


def _normal(mean: FloatArray, rng: np.random.Generator) -> FloatArray:
    return mean + rng.normal(0.0, 0.1, len(mean))


def _student(mean: FloatArray, rng: np.random.Generator) -> FloatArray:
    return mean + 0.3 * rng.standard_t(3, len(mean))


def _lognormal(mean: FloatArray, rng: np.random.Generator) -> FloatArray:
    return mean + 0.3 * (rng.lognormal(0.0, 1.0, len(mean)) - math.exp(0.5))


def _rating(mean: FloatArray, rng: np.random.Generator) -> FloatArray:
    ratings: FloatArray = rng.binomial(4, mean) / 4.0
    return ratings


def _zero_inflated(mean: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Nothing in four rounds of five, else a gamma score five times as large."""
    return 5.0 * mean * rng.gamma(2.0, 0.5, len(mean)) * (rng.random(len(mean)) < 0.2)


#: Name to what it is, its noise, whether means are cut to [0, 1], and its effects.
KINDS: dict[str, tuple[str, Noise, bool, str]] = {
    "binary": ("binary, mixed effects: a fifth of memories add .45", _bernoulli, True, "some"),
    "rare": ("binary, base rate 5 %, a fifth of memories add .45", _bernoulli, True, "some"),
    "rare-null": ("binary, base rate 5 %, no effects", _bernoulli, True, "none"),
    "continuous": ("normal noise, sd .1, effects of sd .15", _normal, False, "all"),
    "heavy": ("t(3) noise, scale .3, effects of sd .15", _student, False, "all"),
    "lognormal": ("lognormal noise, scale .3, effects of sd .15", _lognormal, False, "all"),
    "rating": ("five-point rating, a fifth of memories add .45", _rating, True, "some"),
    "zero-inflated": ("zero in 80 % of rounds, a fifth of memories add .45", _zero_inflated, True, "some"),
    "tenth": ("binary, base rate 10 %, a fifth of memories add .45", _bernoulli, True, "some"),
}

#: Base rates of the kinds whose rounds all have one level.
RATES = {"rare": 0.05, "rare-null": 0.05, "tenth": 0.1}


def make_world(kind: str, size: Size, seed: int) -> World:
    """Return the world of one kind and size; levels and effects are drawn once, from streams of their own."""
    _, noise, bounded, effects = KINDS[kind]
    levels, gains = (np.random.default_rng([seed, size.rounds, size.memories, stream]) for stream in range(2))
    level = np.clip(levels.normal(0.35, 0.25, size.rounds), 0.02, 0.98)
    if kind in RATES:
        level = np.full(size.rounds, RATES[kind])
    effect = np.zeros(size.memories)
    if effects == "some":
        effect[::5] = 0.45
    elif effects == "all":
        effect = gains.normal(0.0, 0.15, size.memories)
    return World(size, level, effect, bounded, noise)
