"""What serving hands to a log and gets back, whichever store holds it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from cmp.design import Block

__all__ = ["AssignedRound", "Compose", "Drawn", "Exposure", "LogStore", "Request", "Staged"]


class Drawn(NamedTuple):
    """A memory drawn for a round: its id, its propensity, and whether it has been deleted since."""

    id: str
    propensity: float
    deleted: bool = False


class Exposure(NamedTuple):
    """One row of ``exposures``, less its round. A tuple, because every round makes several."""

    memory_id: str
    arm: str
    assigned: bool
    slot: int | None
    propensity: float
    delivered: bool
    reason: str | None = None
    content_hash: str | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """A round to be logged.

    ``stream`` is the series of blocks it is dealt from, None where it is not randomized; ``key`` is what a stateless
    design draws from; ``made_up`` says that nobody else can know this ``round_id``.
    """

    round_id: str
    scope: str
    stream: str | None
    key: int
    group: str | None
    episode_id: str | None
    query_hash: str | None
    asked_at: datetime
    fallback_reason: str | None = None
    made_up: bool = False


@dataclass(frozen=True, slots=True)
class AssignedRound:
    """A round as it stands in the log. ``repeated`` where this ``round_id`` had been asked before."""

    round_id: str
    scope: str
    randomized: bool
    fallback_reason: str | None
    exposures: tuple[Exposure, ...]
    repeated: bool


@dataclass(frozen=True, slots=True)
class Staged:
    """A roster stored for a block that is not open yet.

    Attributes
    ----------
    block_id
        Of the block to be.
    ordinal
        How many blocks the stream has had.
    exposures_before
        Shape (N,), exposures planned in these for each memory, in the order of the roster; None where not asked for.
    """

    block_id: str
    ordinal: int
    exposures_before: NDArray[np.int64] | None


#: Lays out a context from what was drawn: serving's part, called inside the round's transaction. Must be pure.
Compose: TypeAlias = Callable[[Sequence[Drawn]], tuple[Exposure, ...]]


@runtime_checkable
class LogStore(Protocol):
    """What serving needs of a log. A future is done when its transaction is durable."""

    @property
    def salt(self) -> str:
        """A random text made with the log, shared by all who write to it."""
        ...

    @property
    def drops(self) -> Mapping[str, int]:
        """What could not be written and was given up, by kind."""
        ...

    def assign(self, request: Request, compose: Compose) -> Future[AssignedRound | None]:
        """Take the stream's next row and log the round, in one transaction; None where a new block is needed.

        A ``round_id`` asked before is returned as it was logged, and only its attempts are counted.
        """
        ...

    def stage(self, stream: str, roster: Sequence[str], planned: int, *, counted: bool) -> Staged | None:
        """Store a sorted roster, ``planned`` exposures for each memory, for the stream's next block.

        A large one is written in many short transactions, between which rounds go on. None where the stream has
        rows left: another worker has opened a block. ``counted``: report the exposures of earlier blocks.
        """
        ...

    def open_block(
        self, staged: Staged, stream: str, scope: str, group: str | None, block: Block
    ) -> Future[bool]:
        """Open a block over a staged roster, unless another worker has opened one of this ordinal first."""
        ...

    def end_blocks(self, scope: str) -> Future[int]:
        """End the open blocks of a scope where they stand; the next round opens new ones."""
        ...

    def open_rosters(self, scope: str) -> Future[frozenset[str]]:
        """Return the ids that the open blocks of a scope may still draw."""
        ...

    def remove(self, scope: str, ids: Sequence[str]) -> Future[int]:
        """Take deleted memories out of the scope's open blocks, from each block's next row on."""
        ...

    def amend(self, round_id: str, exposures: Sequence[Exposure]) -> Future[None]:
        """Replace or add exposure rows of a logged round: what was found on fetching, or trimmed by the caller."""
        ...

    def withdraw(self, round_id: str, reason: str) -> Future[None]:
        """Mark a round undelivered whose caller waited no longer, unless it has been asked again since."""
        ...

    def note_contents(self, round_id: str, hashes: Mapping[str, str]) -> None:
        """Note content hashes, to be written with the next transaction: nobody waits for them."""
        ...

    def outcome(self, round_id: str, metric: str, value: float, at: datetime, correct: bool) -> Future[bool]:
        """Record an outcome; False where the round is unknown (an orphan, kept all the same)."""
        ...

    def exposures_of(self, round_id: str) -> Future[tuple[Exposure, ...]]:
        """Return the exposures of a logged round (raises ``UnknownRoundError``)."""
        ...

    def flush(self) -> None:
        """Return when everything handed over is durable."""
        ...

    def close(self) -> None:
        """Flush and let go of the store; it opens again when next used."""
        ...
