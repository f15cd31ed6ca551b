"""The middleware: wrap a retriever, retrieve contexts with random slots in them, record outcomes."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import replace
from datetime import UTC, datetime
from numbers import Real
from typing import Any

from cmp.errors import InvalidIdError, ScopeError
from cmp.log.sinks import NO_COUNTER, SinkLog
from cmp.log.writing import WritingLog
from cmp.protocols import Scope, ScopeLike, canonical_id, canonical_ids
from cmp.serving.backends import Source, backend_of
from cmp.serving.context import Context
from cmp.serving.counters import Counters
from cmp.serving.naming import RoundIds
from cmp.serving.policy import Policy
from cmp.serving.retrieval import Retrieval
from cmp.serving.rosters import Rosters, refresh_roster
from cmp.serving.steps import run, run_async
from cmp.serving.telemetry import annotate_span

__all__ = ["RandomizedRetriever"]

logger = logging.getLogger("cmp.serving")


class RandomizedRetriever:
    """A retriever with random slots; made by :func:`wrap`. Holds no state of any request: threads may share it."""

    def __init__(
        self,
        policy: Policy,
        source: Source,
        log: WritingLog | SinkLog,
        text_of: Callable[[Any], str | None] | None,
        scope: Scope | None,
    ) -> None:
        if isinstance(log, SinkLog) and policy.random_slots and policy.allocation != "uniform":
            raise ValueError(NO_COUNTER)
        self.policy = policy
        self.log = log
        self._source = source
        self._backend = backend_of(source, random=policy.random_slots > 0)
        self._text_of = text_of
        self._scope = scope
        self._counters = Counters()
        self._rosters = Rosters()
        self._ids = RoundIds()

    def __reduce__(self) -> tuple[type[RandomizedRetriever], tuple[Any, ...]]:
        """Send what the caller handed over; another process makes its own connection, counters and rosters."""
        return RandomizedRetriever, (self.policy, self._source, self.log, self._text_of, self._scope)

    def retrieve(
        self,
        query: Any,
        *,
        scope: ScopeLike | None = None,
        round_id: str | None = None,
        episode_id: str | None = None,
        group: str | None = None,
    ) -> Context:
        """Return the context for a query: ranked memories, and random ones in the random slots.

        The round is in the log, durable, before this returns. If it cannot be logged in time, or the roster cannot be
        had, the base ranking is served, counted and warned of (``on_error="serve"``).

        Parameters
        ----------
        query
            Handed to the retriever as it is. Only a hash of its text is logged.
        scope
            Whose store is searched: a non-empty str, a mapping of str to str, or ``cmp.EVERYTHING``.
        round_id
            The caller's own id for this retrieval, unique in the log. Asked again, it gives the same assignment
            and writes nothing new, so that a retry is no second draw. None makes one up.
        episode_id
            Rounds that will share one outcome (a conversation, a task).
        group
            A name for a query that is asked repeatedly.

        Returns
        -------
        Context

        Raises
        ------
        ScopeError
            Where no scope is given here or to :func:`wrap`, it is empty, or ``round_id`` was used in another scope.
        InvalidIdError
            Where a memory, or one of the ids given here, has no usable id.
        """
        retrieval = self._retrieval(query, scope, round_id, episode_id, group)
        return self._traced(run(retrieval.steps(), self._backend), retrieval.scope)

    async def aretrieve(
        self,
        query: Any,
        *,
        scope: ScopeLike | None = None,
        round_id: str | None = None,
        episode_id: str | None = None,
        group: str | None = None,
    ) -> Context:
        """Return what :meth:`retrieve` returns, without blocking the event loop."""
        retrieval = self._retrieval(query, scope, round_id, episode_id, group)
        return self._traced(await run_async(retrieval.steps(), self._backend), retrieval.scope)

    def record(self, round_id: str, value: float, *, metric: str = "reward", correct: bool = False) -> None:
        """Record the outcome of a round; higher is better.

        Parameters
        ----------
        round_id
            Of the :class:`Context`. An outcome for a round the log does not know is kept as an orphan, counted and
            warned of.
        value
            A finite number; True and False are 1 and 0. The same value again is a no-op.
        metric
            Name of the outcome; a round may have several.
        correct
            Replace a different value recorded before, as a new revision.

        Raises
        ------
        ConflictingOutcomeError
            Where a different value was recorded before.
        TypeError, ValueError
            Where the value is no number, or not a finite one.
        """
        self._recorded(round_id, self._outcome(round_id, value, metric, correct).result())

    async def arecord(
        self, round_id: str, value: float, *, metric: str = "reward", correct: bool = False
    ) -> None:
        """Do what :meth:`record` does, without blocking the event loop."""
        self._recorded(round_id, await asyncio.wrap_future(self._outcome(round_id, value, metric, correct)))

    def forget_ids(self, ids: Iterable[object], *, scope: ScopeLike | None = None) -> None:
        """Take deleted memories out of the scope's current blocks at once."""
        removed = canonical_ids(ids, "ids to forget")
        self.log.remove(self._resolved(scope).key, removed).result()
        self._counters.add("forgotten", len(removed))

    def refresh(self, scope: ScopeLike | None = None) -> tuple[int, int]:
        """List the scope's roster now; return how many memories are new and how many are gone.

        Deleted memories leave the current blocks at once; where there are new ones, the next round opens a new block.
        """
        return run(refresh_roster(self.log, self._counters, self._resolved(scope)), self._backend)

    async def arefresh(self, scope: ScopeLike | None = None) -> tuple[int, int]:
        """Do what :meth:`refresh` does, without blocking the event loop."""
        return await run_async(refresh_roster(self.log, self._counters, self._resolved(scope)), self._backend)

    def mark_undelivered(self, round_id: str, ids: Iterable[object]) -> None:
        """Note that the caller did not use some memories of a round: they were trimmed from the prompt, say.

        Analysis stays by assignment; the share delivered is reported.

        Raises
        ------
        UnknownRoundError
            Where the log has no such round.
        InvalidIdError
            Where a memory was not in the round.
        """
        trimmed = canonical_ids(ids, "ids not delivered")
        rows = {row.memory_id: row for row in self.log.exposures_of(canonical_id(round_id, "round")).result()}
        unknown = [memory_id for memory_id in trimmed if memory_id not in rows]
        if unknown:
            raise InvalidIdError(
                f"round {round_id!r} holds no {unknown[:3]!r}; pass ids of its context's items"
            )
        self.log.amend(
            round_id,
            [rows[memory_id]._replace(delivered=False, reason="trimmed") for memory_id in trimmed],
        ).result()

    def stats(self) -> dict[str, float]:
        """Return counts since this wrapper was made, and recent latencies of the log in milliseconds.

        Rounds, fallbacks by reason, undelivered memories by reason, repeated attempts, outcomes and orphans.
        """
        dropped = {f"log_dropped.{name}": number for name, number in self.log.drops.items()}
        return {**self._counters.snapshot(), **dropped}

    def with_policy(self, **changes: Any) -> RandomizedRetriever:
        """Return a wrapper of the same retriever and log with other settings (fields of :class:`Policy`)."""
        return RandomizedRetriever(
            replace(self.policy, **changes), self._source, self.log, self._text_of, self._scope
        )

    def flush(self) -> None:
        """Return when everything handed to the log is durable."""
        self.log.flush()

    def close(self) -> None:
        """Flush and let go of the log."""
        self.log.close()

    def __enter__(self) -> RandomizedRetriever:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _traced(self, context: Context, scope: Scope) -> Context:
        if self.policy.telemetry:
            try:
                annotate_span(context, self.policy, scope)
            except Exception as error:  # noqa: BLE001 (a trace must not fail a request)
                self._counters.add("telemetry_failed")
                logger.debug("telemetry failed: %s", error)
        return context

    def _retrieval(
        self,
        query: Any,
        scope: ScopeLike | None,
        round_id: str | None,
        episode_id: str | None,
        group: str | None,
    ) -> Retrieval:
        return Retrieval(
            self.policy,
            self._backend,
            self.log,
            self._counters,
            self._rosters,
            self._text_of,
            query,
            self._resolved(scope),
            self._ids.make() if round_id is None else canonical_id(round_id, "round"),
            round_id is None,
            None if episode_id is None else canonical_id(episode_id, "episode"),
            None if group is None else canonical_id(group, "group"),
        )

    def _resolved(self, scope: ScopeLike | None) -> Scope:
        if scope is None and self._scope is not None:
            return self._scope
        given = Scope.of(scope)
        if self._scope is not None and given != self._scope:
            raise ScopeError(
                f"this wrapper is fixed to scope {self._scope.key!r} and was asked for {given.key!r}"
            )
        return given

    def _outcome(self, round_id: str, value: float, metric: str, correct: bool) -> Future[bool]:
        number = finite(value)
        key = canonical_id(round_id, "round")
        return self.log.outcome(key, canonical_id(metric, "metric"), number, datetime.now(UTC), correct)

    def _recorded(self, round_id: str, known: bool) -> None:
        self._counters.add("outcomes")
        if not known:
            self._counters.add("outcomes_orphaned")
            logger.warning("outcome for round %r, which is not in the log: kept as an orphan", round_id)


def finite(value: object) -> float:
    """Return an outcome as a float.

    Raises
    ------
    TypeError
        For strings, None and other things that are no numbers.
    ValueError
        For NaN and infinities.
    """
    if not isinstance(value, Real) and not (hasattr(value, "dtype") and getattr(value, "ndim", 1) == 0):
        raise TypeError(
            f"the outcome is {value!r} ({type(value).__name__}); record a number, or nothing where it is missing"
        )
    number = float(value)  # type: ignore[arg-type]
    if not math.isfinite(number):
        raise ValueError(f"the outcome is {number}; record a finite number, or nothing where it is missing")
    return number
