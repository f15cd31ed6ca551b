"""The settings of a wrapper, checked when it is made."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from operator import index
from typing import Any, Literal

from cmp.design import block_length
from cmp.protocols import Scope
from cmp.serving.slots import Layout

__all__ = ["Policy"]


@dataclass(frozen=True, slots=True)
class Policy:
    """How contexts are randomized.

    Attributes
    ----------
    slots, random_slots
        ``B`` context positions, of which ``k`` are random.
    allocation
        ``"balanced"``: blocks dealt from tables. ``"uniform"``: every round draws by a key of its ``round_id``; needs
        ``seed``, no shared counter, and is not balanced.
    balance_within
        ``"scope"``: one series of blocks a scope. ``"group"``: one for each query (or caller's group) of a scope.
    exposures_per_block
        Exposures of each memory in a block, ``c``; a block has ``ceil(c N / k)`` rounds.
    rounds_per_block
        Rounds of a block, in place of ``c``.
    max_block_rounds
        Longest block.
    reference_cards
        Blanks in the roster, or ``"auto"`` for ``ceil(sqrt(N))``: they make utilities absolute.
    card
        A blank's slot stays ``"empty"``, or goes to the next ``"ranked"`` result.
    withhold
        Ranked memories taken out of a round at random: what the ranker always shows gets a contrast.
    holdout
        Share of rounds served the base ranking itself, to measure what exploring costs.
    placement
        Random slots come ``"last"``, or all slots are shuffled (``"shuffle"``).
    roster_ttl
        Seconds after which a roster is listed again; None lists at each block only.
    log_timeout
        Seconds a request waits for the log; then the base ranking is served, and a round that is written all the same
        is marked undelivered, reason ``"timeout"``.
    telemetry
        Write a round's attributes to the active OpenTelemetry span.
    on_error
        ``"serve"`` the base ranking, counted and warned of, or ``"raise"``.
    seed
        Makes draws reproducible; None draws from the operating system's entropy.
    """

    slots: int
    random_slots: int
    allocation: Literal["balanced", "uniform"] = "balanced"
    balance_within: Literal["scope", "group"] = "scope"
    exposures_per_block: float = 2
    rounds_per_block: int | None = None
    max_block_rounds: int | None = None
    reference_cards: int | Literal["auto"] = 0
    card: Literal["empty", "ranked"] = "empty"
    withhold: int = 0
    holdout: float = 0.0
    placement: Literal["last", "shuffle"] = "last"
    roster_ttl: float | None = None
    log_timeout: float = 2.0
    telemetry: bool = False
    on_error: Literal["serve", "raise"] = "serve"
    seed: int | None = None

    def __post_init__(self) -> None:
        slots = whole("slots", self.slots, least=1)
        k = whole("random_slots", self.random_slots, least=0)
        if k > slots:
            raise ValueError(
                f"random_slots is {k} and slots is {slots}: there cannot be more random slots than slots"
            )
        withhold = whole("withhold", self.withhold, least=0)
        if withhold > slots - k:
            raise ValueError(f"withhold is {withhold}, and only {slots - k} slots are ranked")
        if self.reference_cards != "auto":
            whole("reference_cards", self.reference_cards, least=0)
        for name in ("rounds_per_block", "max_block_rounds"):
            if getattr(self, name) is not None:
                whole(name, getattr(self, name), least=1)
        if self.seed is not None:
            whole("seed", self.seed, least=0)
        self._check_numbers()
        one_of("allocation", self.allocation, ("balanced", "uniform"))
        one_of("balance_within", self.balance_within, ("scope", "group"))
        one_of("card", self.card, ("empty", "ranked"))
        one_of("placement", self.placement, ("last", "shuffle"))
        one_of("on_error", self.on_error, ("serve", "raise"))
        if self.allocation == "uniform" and self.seed is None:
            raise ValueError("allocation='uniform' draws by key: give every host the same seed=...")

    def _check_numbers(self) -> None:
        if not 0 < self.exposures_per_block < float("inf"):
            raise ValueError(f"exposures_per_block is {self.exposures_per_block!r}; give a positive number")
        if not 0 <= self.holdout <= 1:
            raise ValueError(f"holdout is {self.holdout!r}; give a share between 0 and 1")
        if not self.log_timeout > 0:
            raise ValueError(f"log_timeout is {self.log_timeout!r}; give a positive number of seconds")
        if self.roster_ttl is not None and not self.roster_ttl >= 0:
            raise ValueError(f"roster_ttl is {self.roster_ttl!r}; give seconds, or None")

    @property
    def results_wanted(self) -> int:
        """How many results a context may use: its slots, and what fills in for what is withheld or blank."""
        filled = self.random_slots if self.reference_cards and self.card == "ranked" else 0
        return self.slots + self.withhold + filled

    @property
    def base_layout(self) -> Layout:
        """How the base ranking is laid out: as it comes."""
        return Layout(self.slots)

    @property
    def layout(self) -> Layout:
        """How contexts are laid out."""
        return Layout(self.slots, self.withhold, self.card, self.placement)

    def block_rounds(self, n_roster: int, k: int) -> int:
        """Return the rounds of a block over a roster of which k are drawn a round."""
        return self.rounds_per_block or block_length(
            n_roster, k, self.exposures_per_block, self.max_block_rounds
        )

    def stream(self, scope: Scope, group: str | None) -> str:
        """Name the series of blocks a round is dealt from; other settings of the design start another series."""
        return _stream(
            self.allocation, self.random_slots, self.reference_cards, self.rounds_per_block, scope.key, group
        )


@lru_cache(maxsize=4096)
def _stream(*parts: str | int | None) -> str:
    return json.dumps(parts, ensure_ascii=False)


def whole(name: str, value: Any, least: int) -> int:
    try:
        number = index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or number < least:
        raise ValueError(f"{name} is {value!r}; give a whole number, {least} or more")
    return number


def one_of(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} is {value!r}; it is one of {', '.join(map(repr, choices))}")
