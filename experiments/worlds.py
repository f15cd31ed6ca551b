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

__all__ = ["KINDS", "Size", "World", "make_world"]

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
        return _bounded_truth(self) if self.bounded else _additive_truth(self.effect)

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


def _additive_truth(effect: FloatArray) -> FloatArray:
    """With k shown or k - 1 beside the memory, the others' mean effect counts k or k - 1 times."""
    truth: FloatArray = effect - (effect.sum() - effect) / (len(effect) - 1)
    return truth


def _bounded_truth(world: World) -> FloatArray:
    """How many of the others shown have the effect is hypergeometric, with and without the memory."""
    from scipy.stats import hypergeom

    size, step = world.size, float(world.effect.max())
    truth = np.empty(size.memories)
    for own in (0.0, step):
        helpful = int((world.effect > 0).sum()) - (own > 0)
        means = []
        for extra, shown in ((own, size.k - 1), (0.0, size.k)):
            count = np.arange(shown + 1)
            weight = hypergeom(size.memories - 1, helpful, shown).pmf(count)
            cut = np.clip(world.level[:, None] + extra + step * count, 0.0, 1.0)
            means.append(float((cut @ weight).mean()))
        truth[world.effect == own] = means[0] - means[1]
    return truth


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
}


def make_world(kind: str, size: Size, seed: int) -> World:
    """Return the world of one kind and size; levels and effects are drawn once, from streams of their own."""
    _, noise, bounded, effects = KINDS[kind]
    levels, gains = (np.random.default_rng([seed, size.rounds, size.memories, stream]) for stream in range(2))
    level = np.clip(levels.normal(0.35, 0.25, size.rounds), 0.02, 0.98)
    if kind.startswith("rare"):
        level = np.full(size.rounds, 0.05)
    effect = np.zeros(size.memories)
    if effects == "some":
        effect[::5] = 0.45
    elif effects == "all":
        effect = gains.normal(0.0, 0.15, size.memories)
    return World(size, level, effect, bounded, noise)
