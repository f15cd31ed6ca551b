"""Rosters as they change: blocks prepared once for everybody who waits, listings renewed, deletions at once."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Hashable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal, TypeAlias

from cmp.design import (
    block_generator,
    drawable_slots,
    plan_block,
    uniform_block,
)
from cmp.design.cards import card_ids, is_card, n_reference_cards, refuse_cards
from cmp.errors import InvalidIdError, ScopeError
from cmp.forking import after_fork
from cmp.log.records import LogStore
from cmp.protocols import Scope, canonical_ids
from cmp.serving.counters import Counters
from cmp.serving.policy import Policy
from cmp.serving.steps import Ask, Compute, Steps, Wait

__all__ = ["LATER", "RosterFailedError", "Rosters", "Stream", "open_block", "refresh_roster"]

logger = logging.getLogger("cmp.serving")

Prepared: TypeAlias = Literal["opened", "too_small", "later"]
LATER: Final[Prepared] = "later"

#: Nobody waits for a block over a roster larger than this: the base ranking is served until it is ready.
LARGE: Final = 20_000


#: Rounds without random slots that may wait for the log at once; more are not logged, and counted.
UNAWAITED_AT_MOST: Final = 256
#: How soon after a listing that failed the next one is tried.
RETRY_SECONDS: Final = 1.0


class RosterFailedError(Exception):
    """The backend could not list its ids."""


@dataclass(frozen=True, slots=True)
class Stream:
    """The series of blocks of one scope, or of one group of it."""

    name: str
    scope: Scope
    group: str | None


class Rosters:
    """What one process knows of rosters: who is preparing a block, and when a scope was last listed.

    Thread-safe; a copy in another process, or in a forked child, starts empty.
    """

    def __init__(self) -> None:
        self._reset()
        after_fork(self, Rosters._reset)

    def __reduce__(self) -> tuple[type[Rosters], tuple[()]]:
        return Rosters, ()

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._preparing: dict[str, Future[Prepared]] = {}
        self._listed: dict[str, tuple[float, Hashable]] = {}
        self._tried: dict[str, float] = {}
        #: Rounds being logged that nobody waits for.
        self.unawaited = threading.BoundedSemaphore(UNAWAITED_AT_MOST)

    def join(self, name: str) -> tuple[Future[Prepared], bool]:
        """Return the future of what is being prepared under a name, and whether the caller is to prepare it."""
        with self._lock:
            found = self._preparing.get(name)
            if found is not None:
                return found, False
            future: Future[Prepared] = Future()
            self._preparing[name] = future
            return future, True

    def leave(self, name: str) -> None:
        """Note that nothing is being prepared under a name any more."""
        with self._lock:
            self._preparing.pop(name, None)

    def is_due(self, scope: Scope, ttl: float | None, token: Hashable) -> bool:
        """Tell whether a scope should be listed again.

        It should where this process has not listed it yet, time has passed, or its change token has changed; but not
        at once after a try that failed.
        """
        with self._lock:
            now = time.monotonic()
            listed = self._listed.get(scope.key)
            if listed is not None and token == listed[1] and (ttl is None or now - listed[0] < ttl):
                return False
            if now - self._tried.get(scope.key, -math.inf) < min(RETRY_SECONDS, ttl or RETRY_SECONDS):
                return False
            self._tried[scope.key] = now
            return True

    def note_listed(self, scope: Scope, token: Hashable) -> None:
        """Note that a scope has been listed, as of a change token."""
        with self._lock:
            self._listed[scope.key] = (time.monotonic(), token)
            self._tried.pop(scope.key, None)


def open_block(
    policy: Policy, log: LogStore, counters: Counters, rosters: Rosters, stream: Stream
) -> Steps[None]:
    """List the roster as it is now and open the stream's next block over it; tells those who wait, whatever happens."""
    future, _ = rosters.join(stream.name)
    try:
        prepared = yield from _opened(policy, log, stream, future)
    except BaseException as error:
        if future.done():
            counters.add("blocks_failed")
            logger.warning(
                "a block of scope %r could not be prepared: %s: %s",
                stream.scope.key,
                type(error).__name__,
                error,
            )
        else:
            future.set_exception(error if isinstance(error, Exception) else RosterFailedError(repr(error)))
        if not isinstance(error, Exception):
            raise
    else:
        counters.add("blocks_prepared")
        if not future.done():
            future.set_result(prepared)
    finally:
        rosters.leave(stream.name)


def _opened(policy: Policy, log: LogStore, stream: Stream, future: Future[Prepared]) -> Steps[Prepared]:
    try:
        listed = yield Ask("list_ids", (stream.scope,))
        roster: list[str] = yield Compute(partial(_sorted_ids, listed))
    except (ScopeError, InvalidIdError):
        raise
    except Exception as error:
        raise RosterFailedError(f"the ids of the scope could not be listed: {error!r}") from error
    listed = None  # a million ids are kept once, not twice
    if len(roster) > LARGE:
        future.set_result(LATER)
    prepared: Prepared = yield Compute(partial(_store_block, policy, log, stream, roster))
    return prepared


def _sorted_ids(listed: Iterable[object]) -> list[str]:
    return sorted(canonical_ids(listed))


def _store_block(policy: Policy, log: LogStore, stream: Stream, roster: list[str]) -> Prepared:
    """Plan a block over a sorted roster and store it."""
    refuse_cards(roster)
    if len(roster) < 2:
        return "too_small"
    roster += card_ids(n_reference_cards(len(roster), policy.reference_cards))
    roster.sort()
    n = len(roster)
    k = drawable_slots(n, policy.random_slots)
    if k == 0:
        return "too_small"
    if policy.allocation == "uniform":
        staged = log.stage(stream.name, roster, k, counted=False)
        if staged is not None:
            block = uniform_block(n, k)
            log.open_block(staged, stream.name, stream.scope.key, stream.group, block).result()
        return "opened"
    length = policy.block_rounds(n, k)
    floor, odd = divmod(length * k, n)
    staged = log.stage(stream.name, roster, floor, counted=odd > 0)
    del roster
    if staged is not None:
        generator = block_generator(policy.seed, stream.name, staged.ordinal)
        block = plan_block(n, k, length, generator, staged.exposures_before)
        log.open_block(staged, stream.name, stream.scope.key, stream.group, block).result()
    return "opened"


def refresh_roster(log: LogStore, counters: Counters, scope: Scope) -> Steps[tuple[int, int]]:
    """List a scope and bring its open blocks up to date; return how many memories were added and removed.

    Deleted memories leave at once. Where there are new ones the open blocks end, so that these join at once too.
    """
    open_now: frozenset[str] = yield Wait(log.open_rosters(scope.key))
    if not open_now:
        return 0, 0
    listed = yield Ask("list_ids", (scope,))
    now = set(canonical_ids(listed))
    known = {memory_id for memory_id in open_now if not is_card(memory_id)}
    gone, new = sorted(known - now), now - known
    if gone:
        yield Wait(log.remove(scope.key, gone))
    if new:
        yield Wait(log.end_blocks(scope.key))
    counters.add("rosters_refreshed")
    return len(new), len(gone)
