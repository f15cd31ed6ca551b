"""One retrieval, step by step: rank, draw and log in one transaction, fetch what was drawn, hand over."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from hashlib import blake2b
from typing import Any

from cmp.design import block_generator, block_length, drawable_slots, plan_block
from cmp.errors import InvalidIdError, ScopeError
from cmp.log.records import AssignedRound, Exposure, LogStore, Request
from cmp.protocols import Hit, Scope, canonical_ids
from cmp.serving.backends import Backend
from cmp.serving.context import Context, Item
from cmp.serving.counters import Counters
from cmp.serving.policy import Policy
from cmp.serving.slots import lay_out, stand_in
from cmp.serving.steps import Ask, Compute, Steps, Write

__all__ = ["Retrieval", "query_hash"]

logger = logging.getLogger("cmp.serving")

#: Errors of the caller's own making: served or not, they would come back at every call.
CALLER_ERRORS = (InvalidIdError, ScopeError)

#: Workers may use a short block up before the one that opened it gets a row; this many times is no accident.
BLOCKS_TRIED = 1000


class _RosterFailedError(Exception):
    """The backend could not list its ids."""


@dataclass(frozen=True, slots=True)
class Retrieval:
    """A retrieval to be driven: everything it needs, nothing it keeps."""

    policy: Policy
    backend: Backend
    log: LogStore
    counters: Counters
    text_of: Callable[[Any], str | None] | None
    query: Any
    scope: Scope
    round_id: str
    episode_id: str | None
    group: str | None

    def steps(self) -> Steps[Context]:
        """Yield the steps; return the context."""
        found = yield Ask("search", (self.query, self.policy.slots, self.scope))
        if self.policy.random_slots == 0:
            return (yield from self._base_itself(found))
        hits = self.backend.hits(found)
        ranked = tuple(hit.id for hit in hits)
        by_id = {hit.id: hit for hit in hits}
        try:
            assigned = yield from self._assigned(ranked)
        except CALLER_ERRORS:
            raise
        except Exception as error:  # noqa: BLE001 (whatever keeps a round from being drawn must not fail the request)
            return (yield from self._base_ranking(error, ranked, by_id))
        self._count(assigned)
        exposures, objects = yield from self._fetched(assigned, ranked, by_id)
        return self._context(exposures, objects, assigned.randomized, assigned.fallback_reason)

    def _base_ranking(
        self, error: Exception, ranked: Sequence[str], by_id: Mapping[str, Hit[Any]]
    ) -> Steps[Context]:
        """Serve what was ranked, unrandomized, and log that where the log is not what failed."""
        reason = "roster_failed" if isinstance(error, _RosterFailedError) else "log_failed"
        self._fell_back(reason, error)
        exposures = lay_out(ranked, (), self.policy.slots)
        if reason == "roster_failed":
            with suppress(Exception):
                yield Write(lambda: self.log.assign(self._request(None, reason), lambda drawn: exposures))
        self.counters.add("rounds")
        return self._context(exposures, by_id, False, reason)

    # -- drawing ------------------------------------------------------------------------------------------------

    def _assigned(self, ranked: Sequence[str]) -> Steps[AssignedRound]:
        """Log the round with the next row of its stream, opening blocks as they are needed."""
        policy = self.policy
        request = self._request(stream=policy.stream(self.scope, self._block_group()))

        def compose(drawn: Any) -> tuple[Exposure, ...]:
            return lay_out(ranked, drawn, policy.slots)

        for _ in range(BLOCKS_TRIED):
            assigned: AssignedRound | None = yield Write(partial(self.log.assign, request, compose))
            if assigned is not None:
                return assigned
            opened = yield from self._open_block()
            if not opened:
                request = self._request(stream=None, fallback_reason="roster_too_small")
        raise RuntimeError(f"no row could be had from {BLOCKS_TRIED} blocks in a row")

    def _open_block(self) -> Steps[bool]:
        """Plan the stream's next block over the roster as it is now; False where there is nobody to draw from."""
        policy, group = self.policy, self._block_group()
        stream = policy.stream(self.scope, group)
        try:
            listed = yield Ask("list_ids", (self.scope,))
        except CALLER_ERRORS:
            raise
        except Exception as error:
            raise _RosterFailedError(f"the ids of the scope could not be listed: {error!r}") from error
        roster = canonical_ids(listed)
        k = drawable_slots(len(roster), policy.random_slots)
        if k == 0:
            return False
        state = yield Write(lambda: self.log.stream_state(stream))
        length = policy.rounds_per_block or block_length(
            len(roster), k, policy.exposures_per_block, policy.max_block_rounds
        )
        generator = block_generator(policy.seed, stream, state.blocks)
        block = yield Compute(lambda: plan_block(roster, k, length, generator, state.exposures_before))
        yield Write(lambda: self.log.open_block(stream, self.scope.key, group, block, state.blocks))
        return True

    def _request(self, stream: str | None, fallback_reason: str | None = None) -> Request:
        return Request(
            self.round_id,
            self.scope.key,
            stream,
            self.group,
            self.episode_id,
            query_hash(self.query),
            datetime.now(UTC),
            fallback_reason,
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
        self, assigned: AssignedRound, ranked: Sequence[str], by_id: Mapping[str, Hit[Any]]
    ) -> Steps[tuple[tuple[Exposure, ...], Mapping[str, Hit[Any]]]]:
        """Fetch what is to be shown and was not ranked just now; what is gone gives its slot to the next ranked."""
        exposures = assigned.exposures
        wanted = [row.memory_id for row in exposures if row.delivered and row.memory_id not in by_id]
        if not wanted:
            self._note_contents(exposures, by_id)
            return exposures, by_id
        reason = "deleted"
        found: Mapping[str, Hit[Any]] = {}
        try:
            found = self.backend.fetched((yield Ask("get", (wanted, self.scope))), wanted)
        except Exception as error:  # noqa: BLE001 (the assignment is logged; the request must not fail)
            reason = "fetch_failed"
            self._fell_back(reason, error)
        gone = [memory_id for memory_id in wanted if memory_id not in found]
        if gone:
            exposures = stand_in(exposures, gone, reason, ranked)
            self.counters.add(f"undelivered.{reason}", len(gone))
            if not assigned.repeated:
                yield from self._amended(assigned.exposures, exposures)
        objects = {**by_id, **found}
        self._note_contents(exposures, objects)
        return exposures, objects

    def _amended(self, before: Sequence[Exposure], after: Sequence[Exposure]) -> Steps[None]:
        changed = sorted(set(after) - set(before), key=lambda row: row.memory_id)
        try:
            yield Write(lambda: self.log.amend(self.round_id, changed))
        except Exception as error:  # noqa: BLE001 (the assignment stands as logged; only its delivery is not noted)
            self._fell_back("amend_failed", error)

    def _note_contents(self, exposures: Sequence[Exposure], objects: Mapping[str, Hit[Any]]) -> None:
        hashes: dict[str, str] = {}
        for row in exposures:
            hit = objects.get(row.memory_id)
            if hit is None or not row.delivered:
                continue
            content = hit.version or self._text_hash(hit.item)
            if content is not None:
                hashes[row.memory_id] = content
        if hashes:
            self.log.note_contents(self.round_id, hashes)

    def _text_hash(self, item: Any) -> str | None:
        if self.text_of is None:
            return None
        try:
            text = self.text_of(item)
        except Exception as error:  # noqa: BLE001 (a hash is a convenience)
            self.counters.add("text_of_failed")
            logger.debug("text_of failed: %s", error)
            return None
        return (
            None
            if text is None
            else blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
        )

    # -- handing over -------------------------------------------------------------------------------------------

    def _base_itself(self, found: Any) -> Steps[Context]:
        """Serve the base list as it is, with no random slots to log; nothing here may fail the request."""
        objects = tuple(found)
        items: tuple[Item, ...] = ()
        with suppress(InvalidIdError):
            hits = self.backend.hits(objects)
            items = tuple(
                Item(hit.id, hit.item, slot, "ranked", 1.0, True, hit.score) for slot, hit in enumerate(hits)
            )
        exposures = tuple(Exposure(item.id, "ranked", False, item.slot, 1.0, True) for item in items)
        reason = "no_random_slots"
        try:
            yield Write(lambda: self.log.assign(self._request(None, reason), lambda drawn: exposures))
        except Exception as error:  # noqa: BLE001
            self._fell_back("log_failed", error, reraise=False)
        self.counters.add("rounds")
        natives = tuple(item.item if isinstance(item, Hit) else item for item in objects)
        return Context(self.round_id, False, items, natives, reason)

    def _context(
        self,
        exposures: Sequence[Exposure],
        objects: Mapping[str, Hit[Any]],
        randomized: bool,
        fallback_reason: str | None,
    ) -> Context:
        items = []
        for row in exposures:
            hit = objects.get(row.memory_id)
            shown = row.delivered and hit is not None
            items.append(
                Item(
                    row.memory_id,
                    hit.item if hit is not None and shown else None,
                    row.slot if shown else None,
                    row.arm,
                    row.propensity,
                    shown,
                    hit.score if hit is not None else None,
                )
            )
        return Context(
            self.round_id,
            randomized,
            tuple(items),
            tuple(item.item for item in items if item.delivered),
            fallback_reason,
        )

    def _count(self, assigned: AssignedRound) -> None:
        self.counters.add("attempts_repeated" if assigned.repeated else "rounds")
        if assigned.randomized and not assigned.repeated:
            self.counters.add("rounds_randomized")
        elif assigned.fallback_reason and not assigned.repeated:
            self.counters.add(f"fallback.{assigned.fallback_reason}")

    def _fell_back(self, reason: str, error: Exception, *, reraise: bool = True) -> None:
        """Count and warn of a failure that the request outlives; or raise it, where the caller asked for that."""
        self.counters.add(f"fallback.{reason}")
        if reraise and self.policy.on_error == "raise":
            raise error.__cause__ if isinstance(error, _RosterFailedError) and error.__cause__ else error
        logger.warning(
            "round %s in scope %r: %s (%s: %s); what the base retriever ranked was served in its place",
            self.round_id,
            self.scope.key,
            reason,
            type(error).__name__,
            error,
        )


def query_hash(query: Any) -> str | None:
    """Return a hash of a query's text; None where the query is not text. The text itself is never logged."""
    if not isinstance(query, str):
        return None
    return blake2b(query.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
