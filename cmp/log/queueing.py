"""Rounds acknowledged before they are durable: leased rows, a bounded queue, one transaction for many rounds.

A worker takes a lease of the next rows of a stream and deals from it without asking the database. What a crash
loses are whole rounds, at random: a lease's unused rows and what was queued. That biases nothing; losing part of a
round would.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, Final

from cmp.log import transactions
from cmp.log.records import AssignedRound, Compose, Drawn, Exposure, Request
from cmp.log.transactions import BlockOf, Session

__all__ = ["QueueFullError", "Queued", "QueuedRounds"]

#: Rows of a table that a worker takes at once.
LEASED: Final = 64
#: Rounds that may wait; the next one is served the base ranking, and counted.
QUEUED_AT_MOST: Final = 512
#: Rounds whose ids are remembered, so that a retry right after gets the same assignment.
REMEMBERED: Final = 4096


class QueueFullError(RuntimeError):
    """Rounds come faster than the database takes them."""


@dataclass(frozen=True, slots=True)
class Queued:
    """A round that waits to be written."""

    request: Request
    block_id: str
    row: int
    n_roster: int
    k: int
    exposures: tuple[Exposure, ...]


@dataclass(frozen=True, slots=True)
class Leased:
    """One row of a lease."""

    block_id: str
    row: int
    n_roster: int
    drawn: tuple[Drawn, ...]


class QueuedRounds:
    """Deals leased rows and holds what is to be written. Thread-safe; belongs to one process.

    ``submit`` hands a job to the writer thread, ``block_of`` reads a stored block there.
    """

    def __init__(self, submit: Callable[[Callable[[Session], Any]], Future[Any]], block_of: BlockOf) -> None:
        self._submit, self._block_of = submit, block_of
        self._lock = threading.Lock()
        self._leases: dict[str, deque[Leased]] = {}
        self._scopes: dict[str, str] = {}
        self._recent: OrderedDict[str, AssignedRound] = OrderedDict()
        self._waiting: list[Queued] = []
        self._draining = False
        self._changes = 0

    def assign(self, request: Request, compose: Compose) -> Future[AssignedRound | None]:
        """Return the round at once where it can be dealt from a lease; else what the database says."""
        future: Future[AssignedRound | None] = Future()
        with self._lock:
            known = self._recent.get(request.round_id)
            leased = self._next(request) if known is None and self._is_ours(request) else None
            if leased is not None:
                if len(self._waiting) >= QUEUED_AT_MOST:
                    future.set_exception(
                        QueueFullError(f"{QUEUED_AT_MOST} rounds wait to be written already")
                    )
                    return future
                assigned = self._deal(request, leased, compose)
                drain = not self._draining
                self._draining = True
        if known is not None and known.scope == request.scope:
            self._submit(lambda session: transactions.count_attempt(session, request.round_id))
            future.set_result(replace(known, repeated=True))
        elif leased is not None:
            if drain:
                self._submit(lambda session: None)
            future.set_result(assigned)
        else:
            return self._through(request, compose)
        return future

    def take(self) -> list[Queued]:
        """Take what waits, for the transaction that is about to write it."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
            self._draining = False
            return waiting

    def put_back(self, waiting: Sequence[Queued]) -> None:
        """Put back what a transaction that failed had taken."""
        with self._lock:
            self._waiting[:0] = waiting

    def end_leases(self, scope: str) -> None:
        """Let go of a scope's leases: its memories or blocks have changed."""
        with self._lock:
            self._changes += 1
            for stream in [name for name, owner in self._scopes.items() if owner == scope]:
                self._leases.pop(stream, None)
                self._scopes.pop(stream, None)

    def _is_ours(self, request: Request) -> bool:
        """Whether the round can be new to nobody but us: its id was made up a moment ago."""
        return request.stream is not None and request.made_up

    def _next(self, request: Request) -> Leased | None:
        assert request.stream is not None
        lease = self._leases.get(request.stream)
        return lease.popleft() if lease else None

    def _deal(self, request: Request, leased: Leased, compose: Compose) -> AssignedRound:
        exposures = compose(leased.drawn)
        self._waiting.append(
            Queued(request, leased.block_id, leased.row, leased.n_roster, len(leased.drawn), exposures)
        )
        assigned = AssignedRound(request.round_id, request.scope, True, None, exposures, False)
        self._recent[request.round_id] = assigned
        if len(self._recent) > REMEMBERED:
            self._recent.popitem(last=False)
        return assigned

    def _through(self, request: Request, compose: Compose) -> Future[AssignedRound | None]:
        """Assign a round the durable way, and take a lease for those to come, held once it is committed."""
        taken: list[Leased] = []
        changes = 0

        def job(session: Session) -> AssignedRound | None:
            nonlocal changes
            changes = self._changes
            taken.clear()  # a transaction that is tried again takes its rows again
            assigned = transactions.assign(session, request, compose, self._block_of)
            if assigned is not None and request.stream is not None and not assigned.repeated:
                rows = transactions.lease(session, request.stream, LEASED, self._block_of)
                taken.extend(Leased(*row) for row in rows)
            return assigned

        def hold(done: Future[AssignedRound | None]) -> None:
            if not taken or request.stream is None or done.cancelled() or done.exception() is not None:
                return
            with self._lock:
                if self._changes == changes:  # else these rows are left unused
                    self._leases.setdefault(request.stream, deque()).extend(taken)
                    self._scopes[request.stream] = request.scope

        future: Future[AssignedRound | None] = self._submit(job)
        future.add_done_callback(hold)
        return future
