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
from functools import partial
from typing import Any, Final, TypeAlias

from cmp.log import transactions
from cmp.log.records import AssignedRound, Compose, Drawn, Exposure, Request
from cmp.log.thread import done
from cmp.log.transactions import BlockOf, Session

__all__ = ["QueueFullError", "Queued", "QueuedRounds"]

#: Rows of a table that a worker takes at once.
LEASED: Final = 64
#: Rounds that may wait; the next one is served the base ranking, and counted.
QUEUED_AT_MOST: Final = 512
#: Streams of which leases are held; the rows of the one that was idle longest are then left unused.
STREAMS_LEASED: Final = 256
#: Rounds whose ids are remembered, so that a retry right after gets the same assignment.
REMEMBERED: Final = 4096


Submit: TypeAlias = Callable[[Callable[[Session], Any]], Future[Any]]


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


@dataclass(frozen=True, slots=True)
class Lease:
    """Rows of a stream that this process has taken and not dealt yet."""

    scope: str
    rows: deque[Leased]


class QueuedRounds:
    """Deals leased rows and holds what is to be written. Thread-safe; belongs to one process.

    ``submit`` hands a job to the writer thread, ``block_of`` reads a stored block there, ``check`` raises for a round
    that the database could not keep.
    """

    def __init__(self, submit: Submit, block_of: BlockOf, check: Callable[[Queued], None]) -> None:
        self._submit, self._block_of, self._check = submit, block_of, check
        self._lock = threading.Lock()
        self._leases: OrderedDict[str, Lease] = OrderedDict()
        self._leasing: set[str] = set()
        self._recent: OrderedDict[str, AssignedRound] = OrderedDict()
        self._waiting: list[Queued] = []
        self._draining = False
        self._changes = 0

    def assign(self, request: Request, compose: Compose) -> Future[AssignedRound | None]:
        """Return the round at once where it can be dealt from a lease; else what the database says."""
        with self._lock:
            known = self._recent.get(request.round_id)
            stream = _leasable(request) if known is None else None
            if stream is not None and stream in self._leases:
                return done(partial(self._deal, request, stream, compose))
            leasing = self._may_lease(stream)
        if known is None or known.scope != request.scope:
            return self._through(request, compose, leasing)
        self._submit(lambda session: transactions.count_attempt(session, request.round_id))
        future: Future[AssignedRound | None] = Future()
        future.set_result(replace(known, repeated=True))
        return future

    @property
    def is_waiting(self) -> bool:
        """Whether rounds wait to be written."""
        return bool(self._waiting)

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

    def forget(self, round_id: str) -> None:
        """Know nothing of a round that could not be written."""
        with self._lock:
            self._recent.pop(round_id, None)

    def end_leases(self, scope: str) -> None:
        """Let go of a scope's leases: its memories or blocks have changed."""
        with self._lock:
            self._changes += 1
            for stream in [name for name, lease in self._leases.items() if lease.scope == scope]:
                del self._leases[stream]

    def _deal(self, request: Request, stream: str, compose: Compose) -> AssignedRound:
        if not self._draining:  # also where the queue is full: what waits may be of a transaction that failed
            self._draining = True
            self._submit(lambda session: None)
        if len(self._waiting) >= QUEUED_AT_MOST:
            raise QueueFullError(f"{QUEUED_AT_MOST} rounds wait to be written already")
        self._leases.move_to_end(stream)
        rows = self._leases[stream].rows
        leased = rows.popleft()
        if not rows:
            del self._leases[stream]
        exposures = compose(leased.drawn)
        queued = Queued(request, leased.block_id, leased.row, leased.n_roster, len(leased.drawn), exposures)
        self._check(queued)
        self._waiting.append(queued)
        assigned = AssignedRound(request.round_id, request.scope, True, None, exposures, False)
        self._recent[request.round_id] = assigned
        if len(self._recent) > REMEMBERED:
            self._recent.popitem(last=False)
        return assigned

    def _may_lease(self, stream: str | None) -> str | None:
        """Return the stream where nobody is about to take a lease of it already, and note that the asker is."""
        if stream is None or stream in self._leasing:
            return None
        self._leasing.add(stream)
        return stream

    def _through(
        self, request: Request, compose: Compose, stream: str | None
    ) -> Future[AssignedRound | None]:
        """Assign a round the durable way; and lease a stream's next rows, held once the transaction is committed."""
        taken: deque[Leased] = deque()
        changes = 0

        def job(session: Session) -> AssignedRound | None:
            nonlocal changes
            changes = self._changes
            taken.clear()  # a transaction that is tried again takes its rows again
            assigned = transactions.assign(session, request, compose, self._block_of)
            if assigned is not None and stream is not None and not assigned.repeated:
                rows = transactions.lease(session, stream, LEASED, self._block_of)
                taken.extend(Leased(*row) for row in rows)
            return assigned

        def hold(done: Future[AssignedRound | None]) -> None:
            assert stream is not None
            is_committed = not done.cancelled() and done.exception() is None
            with self._lock:
                self._leasing.discard(stream)
                if taken and is_committed and self._changes == changes:  # else these rows are left unused
                    self._leases[stream] = Lease(request.scope, taken)
                    if len(self._leases) > STREAMS_LEASED:
                        self._leases.popitem(last=False)

        future: Future[AssignedRound | None] = self._submit(job)
        if stream is not None:
            future.add_done_callback(hold)
        return future


def _leasable(request: Request) -> str | None:
    """Return the stream of a round that can be new to nobody but us, since its id was made up a moment ago.

    A caller's own id may be in the log already: that is for the database to say.
    """
    return request.stream if request.made_up else None
