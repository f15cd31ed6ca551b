"""Worlds that differ in what could make a contrast precise: companions, covariates, queries, drift."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from experiments.precision_draws import Log
from experiments.worlds import Size, World, make_world

__all__ = ["PairWorld", "Setting", "pair_worlds", "settings"]

FloatArray = npt.NDArray[np.float64]
PAPER, MORE_SLOTS = Size(90, 32, 2), Size(300, 32, 4)
QUERIES, LEVEL_SD = 10, 0.25


@dataclass(frozen=True, slots=True)
class Setting:
    """One world, and what is known of its rounds before the draw."""

    title: str
    world: World
    covariates: FloatArray
    """(T, p)"""
    queries: npt.NDArray[np.int64]
    """(T,)"""

    @property
    def key(self) -> npt.NDArray[np.bool_]:
        """Which memories an AUC counts as key: those with the largest fifth of effects."""
        effect = self.world.effect
        key: npt.NDArray[np.bool_] = effect > np.quantile(effect, 0.8) if (effect < 0).any() else effect > 0
        return key

    def draw(self, seed: list[int]) -> Log:
        """Return one log."""
        assigned, outcomes = self.world.draw(seed)
        size = self.world.size
        return Log(
            assigned,
            outcomes,
            np.ones_like(assigned),
            self.queries,
            self.covariates,
            np.zeros((size.rounds, 0)),
        )


def settings(seed: int) -> list[Setting]:
    """Return the worlds, each made from streams of its own."""
    plain = [
        ("normal, nothing known", "continuous", PAPER),
        ("normal, nothing known, k = 4", "continuous", MORE_SLOTS),
        ("t(3) noise, nothing known", "heavy", PAPER),
        ("binary, nothing known", "binary", PAPER),
        ("binary, base rate 5 %", "rare", PAPER),
        ("binary, base rate 5 %, k = 4", "rare", MORE_SLOTS),
        ("binary, base rate 5 %, no effects", "rare-null", PAPER),
        ("five-point rating, nothing known", "rating", PAPER),
    ]
    found = [Setting(title, make_world(kind, size, seed), *_nothing(size)) for title, kind, size in plain]
    base, binary = make_world("continuous", PAPER, seed), make_world("binary", PAPER, seed)
    asked = np.arange(PAPER.rounds) % QUERIES
    rng = np.random.default_rng([seed, 7])
    of_query = np.clip(rng.normal(0.35, LEVEL_SD, QUERIES), 0.02, 0.98)[asked]
    time = np.linspace(-1.0, 1.0, PAPER.rounds)
    no_covariates, one_query = _nothing(PAPER)
    found += [
        Setting("normal, ten queries in turn", replace(base, level=of_query), no_covariates, asked),
        Setting("binary, ten queries in turn", replace(binary, level=of_query), no_covariates, asked),
        Setting("normal, drift, time known", replace(base, level=0.4 + 0.3 * time), time[:, None], one_query),
    ]
    for title, world, share in (
        ("normal, weak covariate", base, 0.2),
        ("normal, strong covariate", base, 0.9),
        ("binary, strong covariate", binary, 0.9),
    ):
        found.append(Setting(title, world, _covariate(world.level, share, rng)[:, None], one_query))
    return found


def _nothing(size: Size) -> tuple[FloatArray, npt.NDArray[np.int64]]:
    return np.zeros((size.rounds, 0)), np.zeros(size.rounds, dtype=np.int64)


def _covariate(level: FloatArray, share: float, rng: np.random.Generator) -> FloatArray:
    """Return a covariate that explains about this share of the levels' variance."""
    sd = float(level.std()) * np.sqrt(1.0 / share - 1.0)
    covariate: FloatArray = level + rng.normal(0.0, sd, len(level))
    return covariate


@dataclass(frozen=True, slots=True)
class PairWorld:
    """Binary outcomes; memories 0 and 1 add ``together`` where both are shown, 2 and 3 add ``alone`` each."""

    size: Size
    base: float = 0.05
    together: float = 0.55
    alone: float = 0.2

    #: The pair that helps only together, pairs with one of it, a helper with another, two helpers, and inert pairs.
    pairs = ((0, 1), (0, 2), (0, 4), (2, 4), (2, 3), (4, 5), (6, 7), (8, 9))

    def truth(self, pair: tuple[int, int]) -> float:
        """Return the interaction; what the others shown add alone cancels, what 0 and 1 add together does not."""
        others = self.size.memories - 2
        if pair == (0, 1):
            return self.together
        if set(pair) & {0, 1}:  # the partner has one slot fewer to stand in
            return -self.together / others
        return 2.0 * self.together / (others * (others - 1))

    def draw(self, assigned: npt.NDArray[np.bool_], rng: np.random.Generator) -> FloatArray:
        """Return outcomes for the draws."""
        mean = self.base + self.together * (assigned[:, 0] & assigned[:, 1])
        mean = mean + self.alone * assigned[:, 2] + self.alone * assigned[:, 3]
        outcomes: FloatArray = (rng.random(len(mean)) < mean).astype(np.float64)
        return outcomes


def pair_worlds() -> list[PairWorld]:
    """Return the sizes at which pairs are looked at."""
    return [PairWorld(size) for size in (PAPER, Size(600, 12, 2), Size(2400, 32, 2), Size(600, 32, 4))]
