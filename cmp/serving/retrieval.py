"""One retrieval, step by step: rank, draw and log in one transaction, fetch what was drawn, hand over."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from cmp.design import key_of, keyed_fraction
from cmp.errors import InvalidIdError, LogTimeoutError, ScopeError
from cmp.log.queueing import QueueFullError
from cmp.log.records import AssignedRound, Compose, Exposure, LogStore, Request
from cmp.protocols import Hit, Scope
from cmp.serving.backends import Backend
from cmp.serving.context import Context, Item
from cmp.serving.counters import Counters
from cmp.serving.handing import Objects, compose, context_of, delivered_after_all, query_hash, text_hash
from cmp.serving.policy import Policy
from cmp.serving.rosters import LATER, RosterFailedError, Rosters, Stream, open_block, refresh_roster
from cmp.serving.slots import lay_out, stand_in
from cmp.serving.steps import Ask, Spawn, Steps, Wait

__all__ = ["Retrieval"]

logger = logging.getLogger("cmp.serving")

#: Errors of the caller's own making: served or not, they would come back at every call.
CALLER_ERRORS = (InvalidIdError, ScopeError)

#: Workers may use a short block up before the one that opened it gets a row; this many times is no accident.
BLOCKS_TRIED = 1000

#: How long a request waits for a log that it does not depend on.
MOMENT_SECONDS = 0.05


#: What a wait for the log gives when it has lasted too long; None is an answer of the log's.
LATE: Final = object()


class _InterruptedError(BaseException):
    """Carries what interrupted a wait, which is none of the log's failures, past those who handle these."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


def _why(error: BaseException) -> str:
    return "cancelled" if isinstance(error, asyncio.CancelledError) else "interrupted"


@dataclass(frozen=True, slots=True)
class Retrieval:
    """A retrieval to be driven: everything it needs, nothing it keeps."""

    policy: Policy
    backend: Backend
    log: LogStore
    counters: Counters
    rosters: Rosters
    text_of: Callable[[Any], str | None] | None
    query: Any
    scope: Scope
    round_id: str
    made_up: bool
    episode_id: str | None
    group: str | None

    def steps(self) -> Steps[Context]:
        """Yield the steps; return the context."""
        found = yield Ask("search", (self.query, self.policy.results_wanted, self.scope))
        if self.policy.random_slots == 0:
            return (yield from self._base_itself(found))
        hits = self._of_scope(self.backend.hits(found))
        ranked = tuple(hit.id for hit in hits)
        by_id = {hit.id: hit for hit in hits}
        yield from self._renewed()
        try:
            assigned = yield from self._assigned(ranked)
        except CALLER_ERRORS:
            raise
        except _InterruptedError as interruption:
            raise interruption.error from None
        except Exception as error:  # noqa: BLE001 (whatever keeps a round from being drawn must not fail the request)
            return (yield from self._base_ranking(error, ranked, by_id))
        self._count(assigned)
        try:
            exposures, objects = yield from self._fetched(assigned, ranked, by_id)
        except BaseException as error:
            self._withdraw(assigned, _why(error))
            raise
        return self._context(exposures, objects, assigned.randomized, assigned.fallback_reason)

    def _of_scope(self, hits: list[Hit[Any]]) -> list[Hit[Any]]:
        """Return the results that do not say they belong to another scope."""
        foreign = self.backend.foreign(hits, self.scope)
        if foreign:
            names = ", ".join(map(repr, sorted(foreign)[:3]))
            self._fell_back("foreign", ScopeError(f"the retriever returned {names} of another scope"))
        return [hit for hit in hits if hit.id not in foreign]

    def _base_ranking(self, error: Exception, ranked: Sequence[str], by_id: Objects) -> Steps[Context]:
        """Serve what was ranked, unrandomized, and log that where the log is not what failed."""
        reasons = {
            RosterFailedError: "roster_failed",
            LogTimeoutError: "log_timeout",
            QueueFullError: "queue_full",
        }
        reason = reasons.get(type(error), "log_failed")
        self._fell_back(reason, error)
        exposures = lay_out(ranked, (), self.policy.base_layout)
        if reason == "roster_failed":
            with suppress(Exception):
                yield self._within_timeout(
                    self.log.assign(self._request(None, reason), lambda drawn: exposures)
                )
        self.counters.add("rounds")
        return self._context(exposures, by_id, False, reason)

    # -- drawing ------------------------------------------------------------------------------------------------

    def _assigned(self, ranked: Sequence[str]) -> Steps[AssignedRound]:
        """Log the round with the next row of its stream, opening blocks as they are needed."""
        layout = self.policy.layout
        key = key_of("layout", self._seed(), self.scope.key, self.round_id) if layout.is_drawn else 0
        stream = self._stream()
        request = self._request(stream.name)
        if self._is_held_out():
            request = self._request(None, "holdout")
        for _ in range(BLOCKS_TRIED):
            now = layout if request.stream is not None else self.policy.base_layout
            assigned = yield from self._waited(request, partial(compose, ranked, now, key))
            if assigned is not None:
                return assigned
            prepared = yield from self._prepared(stream)
            if prepared != "opened":
                reason = "block_preparing" if prepared == LATER else "roster_too_small"
                request = self._request(None, reason)
        raise RuntimeError(f"no row could be had from {BLOCKS_TRIED} blocks in a row")

    def _waited(self, request: Request, compose: Compose) -> Steps[AssignedRound | None]:
        """Wait for a round to be durable; who waits no longer withdraws it, even where it is being written."""
        started = time.perf_counter()
        future = self.log.assign(request, compose)
        try:
            assigned: AssignedRound | object | None = yield self._within_timeout(future)
        except BaseException as error:
            if future.done() and not future.cancelled() and future.exception() is error:
                raise  # the log's own failure
            self._give_up(future, _why(error))
            raise _InterruptedError(error) from error
        self.counters.time("log", time.perf_counter() - started)
        if assigned is LATE:
            self._give_up(future, "timeout")
            raise LogTimeoutError(f"the log took longer than log_timeout = {self.policy.log_timeout:g} s")
        assert assigned is None or isinstance(assigned, AssignedRound)
        return assigned

    def _within_timeout(self, future: Future[Any]) -> Wait:
        return Wait(future, self.policy.log_timeout, LATE)

    def _give_up(self, future: Future[AssignedRound | None], reason: str) -> None:
        """Keep a round that waits its turn from being written; withdraw it once it is, where that has begun."""
        if future.cancel():
            return

        def withdraw(done: Future[AssignedRound | None]) -> None:
            if done.exception() is None and (assigned := done.result()) is not None:
                self._withdraw(assigned, reason)

        future.add_done_callback(withdraw)

    def _withdraw(self, assigned: AssignedRound, reason: str) -> None:
        """Mark a round that its caller never saw: nothing of it was delivered. The assignment stands."""
        if not assigned.repeated:
            self.counters.add(f"withdrawn.{reason}")
            self.log.withdraw(self.round_id, reason)

    def _prepared(self, stream: Stream) -> Steps[str]:
        """Have the stream's next block opened: by this request, or by one that is at it already."""
        future, mine = self.rosters.join(stream.name)
        if mine:
            yield Spawn(open_block(self.policy, self.log, self.counters, self.rosters, stream))
        prepared: str | None = yield Wait(future, self.policy.log_timeout)
        if prepared is None:
            with suppress(InvalidStateError):
                future.set_result(LATER)  # nobody waits for this one again
        return prepared or LATER

    def _renewed(self) -> Steps[None]:
        """List the roster again, beside this request, where it is due."""
        token: Hashable = None
        if self.backend.has_revision:
            try:
                token = yield Ask("revision", (self.scope,))
            except Exception as error:  # noqa: BLE001 (a change token is a convenience)
                self.counters.add("revision_failed")
                logger.debug("revision failed: %s", error)
                return
        elif self.policy.roster_ttl is None:
            return
        if self.rosters.is_due(self.scope, self.policy.roster_ttl, token):
            name = f"refresh {self.scope.key}"
            if self.rosters.join(name)[1]:
                yield Spawn(self._refreshed(name, token))

    def _refreshed(self, name: str, token: Hashable) -> Steps[None]:
        try:
            yield from refresh_roster(self.log, self.counters, self.scope)
            self.rosters.note_listed(self.scope, token)
        except Exception as error:  # noqa: BLE001 (the roster in use stays in use)
            self.counters.add("refresh_failed")
            logger.warning("scope %r: the roster could not be renewed: %s", self.scope.key, error)
        finally:
            self.rosters.leave(name)

    def _stream(self) -> Stream:
        group = self._block_group()
        return Stream(self.policy.stream(self.scope, group), self.scope, group)

    def _seed(self) -> int | str:
        return self.log.salt if self.policy.seed is None else self.policy.seed

    def _is_held_out(self) -> bool:
        share = self.policy.holdout
        return share > 0 and keyed_fraction(key_of("holdout", self._seed(), self.round_id)) < share

    def _request(self, stream: str | None, fallback_reason: str | None = None) -> Request:
        is_keyed = self.policy.allocation == "uniform"
        return Request(
            self.round_id,
            self.scope.key,
            stream,
            key_of("draw", self._seed(), self.scope.key, self.round_id) if is_keyed else 0,
            self.group,
            self.episode_id,
            query_hash(self.query),
            datetime.now(UTC),
            fallback_reason,
            self.made_up,
        )

    def _block_group(self) -> str | None:
        """Return the group whose blocks this round is dealt from, where blocks belong to groups."""
        if self.policy.balance_within == "scope":
            return None
        group = self.group or query_hash(self.query)
        if group is None:
            raise ScopeError('balance_within="group" needs group=... where the query is not a string')
        return group

    # -- fetching -----------------------------------------------------------------------------------------------

    def _fetched(
        self, assigned: AssignedRound, ranked: Sequence[str], by_id: Objects
    ) -> Steps[tuple[tuple[Exposure, ...], Objects]]:
        """Fetch what is to be shown and was not ranked just now; what is gone gives its slot to the next ranked."""
        exposures = delivered_after_all(assigned.exposures) if assigned.repeated else assigned.exposures
        revived = exposures != assigned.exposures
        wanted = [
            row.memory_id
            for row in exposures
            if row.delivered and row.arm != "card" and row.memory_id not in by_id
        ]
        found, reason = (yield from self._got(wanted)) if wanted else ({}, "")
        gone = [memory_id for memory_id in wanted if memory_id not in found]
        if gone:
            exposures = stand_in(exposures, gone, reason, ranked)
            self.counters.add(f"undelivered.{reason}", len(gone))
        if revived or (gone and not assigned.repeated):
            yield from self._amended(assigned.exposures, exposures)
        objects = {**by_id, **found} if found else by_id
        self._note_contents(exposures, objects)
        return exposures, objects

    def _got(self, wanted: Sequence[str]) -> Steps[tuple[Objects, str]]:
        """Return what the store still has of some memories, and why the others are missing."""
        try:
            found = yield Ask("get", (wanted, self.scope))
            return self.backend.fetched(found, wanted, self.scope), "deleted"
        except Exception as error:  # noqa: BLE001 (the assignment is logged; the request must not fail)
            reason = "foreign" if isinstance(error, ScopeError) else "fetch_failed"
            self._fell_back(reason, error)
            return {}, reason

    def _amended(self, before: Sequence[Exposure], after: Sequence[Exposure]) -> Steps[None]:
        changed = sorted(set(after) - set(before), key=lambda row: row.memory_id)
        try:
            yield self._within_timeout(self.log.amend(self.round_id, changed))
        except Exception as error:  # noqa: BLE001 (the assignment stands as logged; only its delivery is not noted)
            self._fell_back("amend_failed", error)

    def _note_contents(self, exposures: Sequence[Exposure], objects: Objects) -> None:
        hashes: dict[str, str] = {}
        for row in exposures:
            hit = objects.get(row.memory_id)
            if hit is None or not row.delivered:
                continue
            content = self._text_hash(hit.item) if hit.version is None else text_hash(str(hit.version))
            if content is not None:
                hashes[row.memory_id] = content
        if hashes:
            self.log.note_contents(self.round_id, hashes)

    def _text_hash(self, item: Any) -> str | None:
        if self.text_of is None:
            return None
        try:
            text = self.text_of(item)
            return None if text is None else text_hash(text)
        except Exception as error:  # noqa: BLE001 (a hash is a convenience)
            self.counters.add("text_of_failed")
            logger.debug("text_of failed: %s", error)
            return None

    # -- handing over -------------------------------------------------------------------------------------------

    def _base_itself(self, found: Any) -> Steps[Context]:
        """Serve the base list as it is, with no random slots to log; nothing here may fail the request."""
        objects = tuple(found)
        items: tuple[Item, ...] = ()
        with suppress(Exception):
            hits = self.backend.hits(objects)
            items = tuple(
                Item(hit.id, hit.item, slot, "ranked", 1.0, True, hit.score) for slot, hit in enumerate(hits)
            )
        exposures = tuple(Exposure(item.id, "ranked", False, item.slot, 1.0, True) for item in items)
        reason = "no_random_slots"
        yield from self._noted(exposures, reason)
        self.counters.add("rounds")
        natives = tuple(item.item if isinstance(item, Hit) else item for item in objects)
        return Context(self.round_id, False, items, natives, reason)

    def _noted(self, exposures: tuple[Exposure, ...], reason: str) -> Steps[None]:
        """Log a round that nothing depends on: wait a moment at most, and let no more than a few pile up."""
        if not self.rosters.unawaited.acquire(blocking=False):
            self.counters.add("fallback.log_failed")
            return
        try:
            future = self.log.assign(self._request(None, reason), lambda drawn: exposures)
        except Exception as error:  # noqa: BLE001
            self.rosters.unawaited.release()
            self._fell_back("log_failed", error, reraise=False)
            return
        future.add_done_callback(lambda done: self.rosters.unawaited.release())
        try:
            if (yield Wait(future, MOMENT_SECONDS, LATE)) is LATE:
                self.counters.add("log_late")
        except Exception as error:  # noqa: BLE001
            self._fell_back("log_failed", error, reraise=False)

    def _context(
        self, exposures: Sequence[Exposure], objects: Objects, randomized: bool, fallback_reason: str | None
    ) -> Context:
        return context_of(self.round_id, exposures, objects, randomized, fallback_reason)

    def _count(self, assigned: AssignedRound) -> None:
        if assigned.repeated:
            self.counters.add("attempts_repeated")
            return
        self.counters.add("rounds")
        if assigned.randomized:
            self.counters.add("rounds_randomized")
        elif assigned.fallback_reason:
            self.counters.add(f"fallback.{assigned.fallback_reason}")

    def _fell_back(self, reason: str, error: Exception, *, reraise: bool = True) -> None:
        """Count and warn of a failure that the request outlives; or raise it, where the caller asked for that."""
        self.counters.add(f"fallback.{reason}")
        if reraise and self.policy.on_error == "raise":
            raise error.__cause__ if isinstance(error, RosterFailedError) and error.__cause__ else error
        logger.warning(
            "round %s in scope %r: %s (%s: %s); what the base retriever ranked was served in its place",
            self.round_id,
            self.scope.key,
            reason,
            type(error).__name__,
            error,
        )
