"""The settings of a wrapper, checked when it is made."""

from __future__ import annotations

import json
from dataclasses import dataclass
from operator import index
from typing import Any, Literal

from cmp.protocols import Scope

__all__ = ["Policy"]


@dataclass(frozen=True, slots=True)
class Policy:
    """How contexts are randomized.

    Attributes
    ----------
    slots, random_slots
        ``B`` context positions, of which ``k`` are random.
    balance_within
        ``"scope"``: one series of blocks a scope. ``"group"``: one for each query (or caller's group) of a scope.
    exposures_per_block
        Exposures of each memory in a block, ``c``; a block has ``ceil(c N / k)`` rounds.
    rounds_per_block
        Rounds of a block, in place of ``c``.
    max_block_rounds
        Longest block.
    on_error
        ``"serve"`` the base ranking, counted and warned of, or ``"raise"``.
    seed
        Makes the tables reproducible; None draws from the operating system's entropy.
    """

    slots: int
    random_slots: int
    balance_within: Literal["scope", "group"] = "scope"
    exposures_per_block: float = 2
    rounds_per_block: int | None = None
    max_block_rounds: int | None = None
    on_error: Literal["serve", "raise"] = "serve"
    seed: int | None = None

    def __post_init__(self) -> None:
        slots = _whole("slots", self.slots, least=1)
        k = _whole("random_slots", self.random_slots, least=0)
        if k > slots:
            raise ValueError(
                f"random_slots is {k} and slots is {slots}: there cannot be more random slots than slots"
            )
        for name in ("rounds_per_block", "max_block_rounds"):
            if getattr(self, name) is not None:
                _whole(name, getattr(self, name), least=1)
        if self.seed is not None:
            _whole("seed", self.seed, least=0)
        if not 0 < self.exposures_per_block < float("inf"):
            raise ValueError(f"exposures_per_block is {self.exposures_per_block!r}; give a positive number")
        _one_of("balance_within", self.balance_within, ("scope", "group"))
        _one_of("on_error", self.on_error, ("serve", "raise"))

    def stream(self, scope: Scope, group: str | None) -> str:
        """Name the series of blocks a round is dealt from; other settings of the design start another series."""
        return json.dumps(
            ["balanced", self.random_slots, self.rounds_per_block, scope.key, group], ensure_ascii=False
        )


def _whole(name: str, value: Any, least: int) -> int:
    try:
        number = index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or number < least:
        raise ValueError(f"{name} is {value!r}; give a whole number, {least} or more")
    return number


def _one_of(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} is {value!r}; it is one of {', '.join(map(repr, choices))}")


def refuse_unsupported(**settings: tuple[Any, Any]) -> None:
    """Refuse settings of the interface that this version does not carry out, rather than ignore them.

    Raises
    ------
    ValueError
        Naming the first setting whose value is not the one supported.
    """
    for name, (value, supported) in settings.items():
        if value != supported:
            raise ValueError(f"{name}={value!r} is not supported by this version; leave it at {supported!r}")
