"""What serving hands to a log and gets back, whichever store holds it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, TypeAlias

from cmp.design import Block

__all__ = ["AssignedRound", "Compose", "Drawn", "Exposure", "LogStore", "Request", "StreamState"]


@dataclass(frozen=True, slots=True)
class Drawn:
    """A memory drawn for a round: its id, its propensity, and whether it has been deleted since."""

    id: str
    propensity: float
    deleted: bool = False


@dataclass(frozen=True, slots=True)
class Exposure:
    """One row of ``exposures``, less its round."""

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
    """A round to be logged. ``stream`` is the series of blocks it is dealt from; None where it is not randomized."""

    round_id: str
    scope: str
    stream: str | None
    group: str | None
    episode_id: str | None
    query_hash: str | None
    asked_at: datetime
    fallback_reason: str | None = None


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
class StreamState:
    """Where a series of blocks stands: how many there were, and the exposures planned in them for each memory."""

    blocks: int
    exposures_before: Mapping[str, int]


#: Lays out a context from what was drawn: serving's part, called inside the round's transaction. Must be pure.
Compose: TypeAlias = Callable[[Sequence[Drawn]], tuple[Exposure, ...]]


class LogStore(Protocol):
    """What serving needs of a log. Every method returns a future, done when its transaction is durable."""

    def assign(self, request: Request, compose: Compose) -> Future[AssignedRound | None]:
        """Take the stream's next row and log the round, in one transaction; None where a new block is needed.

        A ``round_id`` asked before is returned as it was logged, and only its attempts are counted.
        """
        ...

    def stream_state(self, stream: str) -> Future[StreamState]:
        """Return where the stream stands, for planning its next block."""
        ...

    def open_block(
        self, stream: str, scope: str, group: str | None, block: Block, ordinal: int
    ) -> Future[bool]:
        """Store a block, unless another worker has opened one of this ordinal first."""
        ...

    def amend(self, round_id: str, exposures: Sequence[Exposure]) -> Future[None]:
        """Replace or add exposure rows of a logged round: what was found on fetching, or trimmed by the caller."""
        ...

    def note_contents(self, round_id: str, hashes: Mapping[str, str]) -> None:
        """Note content hashes, to be written with the next transaction: nobody waits for them."""
        ...

    def remove(self, scope: str, ids: Sequence[str]) -> Future[int]:
        """Take deleted memories out of the scope's open blocks, from each block's next row on."""
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
