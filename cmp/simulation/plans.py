"""What to simulate, checked; and the rounds themselves, asked as an application would ask them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from cmp.design import drawable_slots, key_of
from cmp.design.cards import n_reference_cards
from cmp.serving import RandomizedRetriever
from cmp.serving.offline import progress_bar
from cmp.serving.policy import Policy, one_of, whole
from cmp.simulation.contrasts import check_size
from cmp.simulation.truth import Served
from cmp.simulation.worlds import (
    NOISES,
    FloatArray,
    Noise,
    World,
    WorldStore,
    drawn_utilities,
    given_utilities,
    world_of,
)

__all__ = ["Plan"]


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """The settings of :func:`cmp.simulation.simulate`, which says what they mean."""

    n_memories: int
    rounds: int
    scopes: int
    queries: int
    utilities: ArrayLike | None
    helpful: float
    harmful: float
    effect: float
    outcome: str
    base_rate: float
    noise: float
    drift: float
    missing: float | tuple[float, float]
    reach: float
    skill: float
    additions: int
    deletions: int
    slots: int
    random_slots: int
    seed: int
    design: Mapping[str, Any]

    def __post_init__(self) -> None:
        for name, least in (
            *(("n_memories", 1), ("rounds", 1), ("scopes", 1), ("queries", 1)),
            *(("additions", 0), ("deletions", 0), ("slots", 1), ("random_slots", 1), ("seed", 0)),
        ):
            whole(name, getattr(self, name), least)
        if self.deletions >= self.n_memories:
            raise ValueError(
                f"deletions is {self.deletions} of {self.n_memories} memories; leave one at least"
            )
        for name in ("helpful", "harmful", "reach"):
            _check_share(name, getattr(self, name))
        _check_share("helpful + harmful", self.helpful + self.harmful)
        for share in self.losses:
            _check_share("missing", share)
        for name in ("effect", "base_rate", "noise", "drift", "skill"):
            if not isfinite(getattr(self, name)):
                raise ValueError(f"{name} is {getattr(self, name)!r}; give a finite number")
        one_of("outcome", self.outcome, NOISES)
        if self.design.get("withhold"):
            raise ValueError("the truth under withholding is not listed here; simulate without withhold")
        check_size(self.n_roster + self.additions, drawable_slots(self.n_roster, self.random_slots))

    @property
    def losses(self) -> tuple[float, float]:
        """Chances that an outcome is missing: without a key memory in the context, and with one."""
        return self.missing if isinstance(self.missing, tuple) else (self.missing, self.missing)

    @property
    def kind(self) -> Noise:
        """How outcomes come from their means."""
        return Noise(self.outcome, self.noise)

    @property
    def n_roster(self) -> int:
        """Memories and cards of the first roster."""
        return self.n_memories + n_reference_cards(self.n_memories, self.design.get("reference_cards", 0))

    @property
    def settings(self) -> dict[str, Any]:
        """What the wrapper is given."""
        own = {"slots": self.slots, "random_slots": self.random_slots}
        if self._within_group:
            own["rounds_per_block"] = self.rounds
        return own | dict(self.design)

    @property
    def _within_group(self) -> bool:
        return self.design.get("balance_within") == "group"

    @property
    def wrapper_seed(self) -> int:
        """The seed of the assignment."""
        return key_of("simulated assignment", self.seed) >> 65

    def world(self) -> World:
        """Return the world that the seed names.

        Raises
        ------
        ValueError
            For utilities of another shape.
        """
        shape = (self.scopes, self.queries, self.n_memories + self.additions)
        names = (
            [f"s{i}" for i in range(shape[0])],
            [f"q{i}" for i in range(shape[1])],
            [f"m{i:03}" for i in range(shape[2])],
        )
        worth = (
            drawn_utilities(self.seed, names, self.helpful, self.harmful, self.effect)
            if self.utilities is None
            else given_utilities(self.utilities, shape)
        )
        return world_of(
            self.seed,
            names,
            worth,
            reach=self.reach,
            skill=self.skill,
            rounds=self.rounds * self.queries,
            additions=self.additions,
            deletions=self.deletions,
        )

    def serve(
        self, world: World, store: WorldStore, memory: RandomizedRetriever, *, progress: bool
    ) -> dict[str, Served]:
        """Ask every round, record its outcome, and return what was served by round id."""
        served: dict[str, Served] = {}
        total = self.scopes * self.queries * self.rounds
        with progress_bar("simulated rounds", total, progress) as advance:
            for scope in range(self.scopes):
                for round_id, round_ in self._rounds(world, store, memory, scope):
                    served[round_id] = round_
                    advance()
        return served

    def _rounds(
        self, world: World, store: WorldStore, memory: RandomizedRetriever, s: int
    ) -> Iterator[tuple[str, Served]]:
        scope, number, gone = world.scopes[s], 0, frozenset[str]()
        streams = [_Streams(self, scope, query) for query in world.queries]
        worths = [world.utility_of(s, q) for q in range(self.queries)]
        levels = self._levels(scope, memory.policy)
        for row in range(self.rounds):
            for q, query in enumerate(world.queries):
                gone = _changed(world, store, memory, scope, number, gone)
                round_id = f"{scope}/{query}/{row}"
                context = memory.retrieve(query, scope=scope, round_id=round_id, group=query)
                worth = [worths[q][shown] for shown in context]
                level = float(levels[row if self._within_group else number])
                if streams[q].missing[row] >= self.losses[any(value > 0 for value in worth)]:
                    value = self.kind.outcome(level + sum(worth), float(streams[q].noise[row]))
                    memory.record(round_id, value)
                yield round_id, Served(s, q, level, gone)
                number += 1

    def _levels(self, scope: str, policy: Policy) -> FloatArray:
        """Return the level of each round of a scope, shape (rounds x queries,): the same for a block's length."""
        k = max(drawable_slots(self.n_roster, self.random_slots), 1)
        length = policy.block_rounds(self.n_roster, k)
        number = self.rounds * self.queries
        drawn = _stream(self.seed, "levels", scope).standard_normal(-(-number // length))
        return self.base_rate + self.drift * np.repeat(drawn, length)[:number]


class _Streams:
    """The noise of one query's rounds, and the numbers that decide which outcomes are missing."""

    def __init__(self, plan: Plan, scope: str, query: str) -> None:
        self.noise = plan.kind.draws(plan.rounds, _stream(plan.seed, "outcomes", scope, query))
        self.missing = _stream(plan.seed, "missing", scope, query).random(plan.rounds)


def _stream(seed: int, *name: str) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(key_of("simulated", seed, *name)))


def _changed(
    world: World,
    store: WorldStore,
    memory: RandomizedRetriever,
    scope: str,
    number: int,
    gone: frozenset[str],
) -> frozenset[str]:
    """Let memories come and go before a round of a scope; return those that are gone."""
    held = store.held[scope]
    if (leaver := world.leaves[scope].get(number)) is not None:
        del held[leaver]
        memory.forget_ids([leaver], scope=scope)
        gone = gone | {leaver}
    if (comer := world.joins.get(number)) is not None:
        held[comer] = None
        memory.refresh(scope)
    return gone


def _check_share(name: str, value: float) -> None:
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"{name} is {value!r}; give a share between 0 and 1")
