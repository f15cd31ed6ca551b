"""What is true before anything is served: utilities, what the ranker reaches, who comes and goes, levels and noise.

Every draw has a stream of its own. What concerns one memory is a function of (seed, scope, query, memory) alone, so
that another memory changes none of it; what concerns one round is its place in the stream of its scope and query.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cmp.design import key_of, keyed_fraction
from cmp.protocols import Hit, Scope

__all__ = ["NOISES", "Noise", "World", "WorldStore", "drawn_utilities", "given_utilities", "world_of"]

FloatArray = NDArray[np.float64]

#: Kinds of outcomes.
NOISES = ("binary", "continuous", "heavy")
#: Degrees of freedom of the heavy-tailed noise: its variance is finite, its kurtosis is not.
HEAVY_DF = 3
#: Where a uniform number is kept from 0 and 1, whose normal quantiles are infinite.
_INSIDE = 1e-12


@dataclass(frozen=True, slots=True)
class Noise:
    """How an outcome comes from its mean.

    Attributes
    ----------
    kind
        ``"binary"``: 1 with the mean as probability, cut to [0, 1]. ``"continuous"``: the mean and normal noise.
        ``"heavy"``: the mean and noise of Student's t with 3 degrees of freedom.
    scale
        What the noise of the last two is multiplied by.
    """

    kind: str
    scale: float

    @property
    def is_cut(self) -> bool:
        """Whether means are cut to [0, 1]."""
        return self.kind == "binary"

    def draws(self, number: int, generator: np.random.Generator) -> FloatArray:
        """Return the noise of a number of rounds, shape (number,), before anything is known of them."""
        if self.kind == "binary":
            return generator.random(number)
        if self.kind == "continuous":
            return self.scale * generator.standard_normal(number)
        return self.scale * generator.standard_t(HEAVY_DF, number)

    def outcome(self, mean: float, noise: float) -> float:
        """Return the outcome of a round."""
        return float(noise < mean) if self.is_cut else mean + noise


@dataclass(frozen=True, slots=True)
class World:
    """Scopes S, queries of each Q, memories of each N.

    Attributes
    ----------
    scopes, queries, memories
        Their names.
    utilities
        Shape (S, Q, N): what a memory in the context adds to the mean outcome of a query.
    rankings
        By (scope, query): the memories that the ranker reaches, best first.
    joins, leaves
        By scope: the memories that come or go before a round, by the round's number in the scope.
    """

    scopes: tuple[str, ...]
    queries: tuple[str, ...]
    memories: tuple[str, ...]
    utilities: FloatArray
    rankings: Mapping[tuple[str, str], tuple[str, ...]]
    joins: Mapping[int, str]
    leaves: Mapping[str, Mapping[int, str]]

    def utility_of(self, scope: int, query: int) -> dict[str, float]:
        """Return the utilities for one query of one scope, by memory."""
        return dict(zip(self.memories, self.utilities[scope, query].tolist(), strict=True))

    def at_first(self) -> list[str]:
        """Return the memories that are there from the first round on."""
        late = set(self.joins.values())
        return [memory for memory in self.memories if memory not in late]


class WorldStore:
    """A store in memory whose ranking for each query is fixed; an item is its own id."""

    def __init__(self, world: World) -> None:
        self._rankings = world.rankings
        self.held = {scope: dict.fromkeys(world.at_first()) for scope in world.scopes}

    def search(self, query: str, n: int, *, scope: Scope) -> list[Hit[str]]:
        """Return the first ``n`` of the query's ranking that are still held."""
        held = self.held[scope.key]
        return [Hit(memory, memory) for memory in self._rankings[scope.key, query] if memory in held][:n]

    def list_ids(self, *, scope: Scope) -> Iterable[str]:
        """Return every id of the scope."""
        return list(self.held[scope.key])

    def get(self, ids: Sequence[str], *, scope: Scope) -> dict[str, Hit[str]]:
        """Return those of the scope among ``ids``."""
        held = self.held[scope.key]
        return {memory: Hit(memory, memory) for memory in ids if memory in held}


def drawn_utilities(
    seed: int,
    names: tuple[Sequence[str], Sequence[str], Sequence[str]],
    helpful: float,
    harmful: float,
    effect: float,
) -> FloatArray:
    """Return utilities, shape (S, Q, N): ``effect`` with chance ``helpful``, minus it with ``harmful``, else 0."""

    def one(*name: str) -> float:
        u = keyed_fraction(key_of("simulated utility", seed, *name))
        return effect if u < helpful else -effect if u < helpful + harmful else 0.0

    scopes, queries, memories = names
    return np.array([[[one(s, q, m) for m in memories] for q in queries] for s in scopes], dtype=np.float64)


def given_utilities(utilities: ArrayLike, shape: tuple[int, int, int]) -> FloatArray:
    """Return utilities as given, shape (N,), (Q, N) or (S, Q, N), for every scope and query.

    Raises
    ------
    ValueError
        Where they do not fit the world, or are not finite.
    """
    given = np.asarray(utilities, dtype=np.float64)
    if given.ndim == 0 or given.shape[-1] != shape[-1] or given.ndim > 3:
        raise ValueError(
            f"utilities have shape {given.shape}; give one for each of the {shape[-1]} memories (additions counted), "
            f"or shape {shape[1:]} by query, or {shape} by scope and query"
        )
    if not np.isfinite(given).all():
        raise ValueError("a utility is NaN or infinite; give finite numbers")
    try:
        return np.broadcast_to(given, shape)
    except ValueError:
        raise ValueError(
            f"utilities have shape {given.shape}, which does not fit (scopes, queries, memories) = {shape}"
        ) from None


def world_of(
    seed: int,
    names: tuple[Sequence[str], Sequence[str], Sequence[str]],
    utilities: FloatArray,
    *,
    reach: float,
    skill: float,
    rounds: int,
    additions: int,
    deletions: int,
) -> World:
    """Return a world: rankings, and who comes and goes, are drawn from streams of their own.

    Parameters
    ----------
    seed, names, utilities
        As above.
    reach, skill
        See :func:`cmp.simulation.simulate`.
    rounds
        Rounds of a scope.
    additions, deletions
        How many memories come, the last of ``names``, and go, others; evenly spaced over the rounds.
    """
    scopes, queries, memories = (tuple(part) for part in names)
    rankings = {}
    for s, scope in enumerate(scopes):
        reached = [
            i for i, m in enumerate(memories) if keyed_fraction(key_of("reach", seed, scope, m)) < reach
        ]
        for q, query in enumerate(queries):
            scores = {
                i: _score(seed, scope, query, memories[i], skill * (utilities[s, q, i] > 0)) for i in reached
            }
            ranked = sorted(reached, key=lambda i, scores=scores: -scores[i])  # type: ignore[misc]
            rankings[scope, query] = tuple(memories[i] for i in ranked)
    staying = memories[: len(memories) - additions]
    joins = dict(zip(_spaced(additions, rounds), memories[len(staying) :], strict=True))
    leaves = {
        scope: dict(
            zip(
                _spaced(deletions, rounds),
                sorted(staying, key=lambda m, scope=scope: key_of("leaves", seed, scope, m))[:deletions],  # type: ignore[misc]
                strict=True,
            )
        )
        for scope in scopes
    }
    return World(scopes, queries, memories, utilities, rankings, joins, leaves)


def _score(seed: int, scope: str, query: str, memory: str, lift: float) -> float:
    u = keyed_fraction(key_of("ranker", seed, scope, query, memory))
    return NormalDist().inv_cdf(min(max(u, _INSIDE), 1.0 - _INSIDE)) + lift


def _spaced(number: int, rounds: int) -> Iterator[int]:
    """Yield the rounds before which something changes."""
    return (rounds * (i + 1) // (number + 1) for i in range(number))
