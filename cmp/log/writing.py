"""A log that can be written to: one writer thread a process, one transaction a round, whatever the database."""

from __future__ import annotations

import atexit
import threading
import weakref
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime
from typing import Any, Final, Self, TypeVar

from cmp.design import Block
from cmp.forking import after_fork
from cmp.log import block_transactions, transactions
from cmp.log.queueing import Queued, QueuedRounds
from cmp.log.reading import Log
from cmp.log.records import AssignedRound, Compose, Exposure, Request, Staged
from cmp.log.transactions import Session, StoredBlock

__all__ = ["WritingLog"]

T = TypeVar("T")

#: Roster rows written in one transaction; rounds of this and of other processes go on between two of them.
STAGED_AT_ONCE: Final = 1000
#: Blocks whose tables a process keeps.
BLOCKS_KEPT: Final = 256
#: How often a transaction that lost a race is tried.
TRIES: Final = 5

# A connection inherited over fork must be neither used nor closed: closing it would touch the parent's.
_inherited: list[Any] = []


class WritingLog(Log):
    """What :class:`cmp.log.records.LogStore` asks, on a database that a subclass opens.

    A subclass connects, begins, commits and rolls back; what happens in between is in ``cmp.log.transactions``.
    """

    _lock: threading.Lock
    _executor: ThreadPoolExecutor | None
    _session: Session | None
    _blocks: dict[str, StoredBlock]
    _notes: list[tuple[str, str, str]]
    _queue: QueuedRounds | None

    #: Whether rounds are acknowledged before they are durable.
    queues = False

    def __init__(self) -> None:
        self._salt: str | None = None
        self._reset()
        after_fork(self, WritingLog._reset)
        atexit.register(_flush_at_exit, weakref.ref(self))

    @abstractmethod
    def _connect(self) -> Session:
        """Open a session for the writer thread, creating the log's tables where there are none."""

    @abstractmethod
    def _begin(self, session: Session) -> None: ...

    @abstractmethod
    def _commit(self, session: Session) -> None: ...

    @abstractmethod
    def _roll_back(self, session: Session) -> None: ...

    @abstractmethod
    def _disconnect(self, session: Session) -> None: ...

    def _is_passing(self, error: BaseException) -> bool:
        """Whether a transaction that failed so may succeed when tried again at once."""
        return False

    def _is_broken(self, error: BaseException) -> bool:
        """Whether the session is of no use after this error."""
        return False

    @property
    def salt(self) -> str:
        """A random text made with the log, shared by all who write to it."""
        if self._salt is None:
            self._salt = self.meta()["salt"]
        return self._salt

    def assign(self, request: Request, compose: Compose) -> Future[AssignedRound | None]:
        """Take the stream's next row and log the round, in one transaction (or from a lease, where rounds queue)."""
        if self._queue is not None:
            return self._queue.assign(request, compose)
        return self._submit(lambda session: transactions.assign(session, request, compose, self._block))

    def stage(self, stream: str, roster: Sequence[str], planned: int, *, counted: bool) -> Staged | None:
        """Store a sorted roster for the stream's next block; None where the stream has rows left."""
        block_id = transactions.new_block_id()

        def begin(session: Session) -> tuple[int, str | None] | None:
            end = block_transactions.stream_end(session, stream)
            if end is not None:
                block_transactions.stage(session, block_id, end[1], 0, roster[:STAGED_AT_ONCE], planned)
            return end

        end = self._submit(begin).result()
        if end is None:
            return None
        for first in range(STAGED_AT_ONCE, len(roster), STAGED_AT_ONCE):
            part = roster[first : first + STAGED_AT_ONCE]
            self._submit(
                lambda s, first=first, part=part: block_transactions.stage(  # type: ignore[misc]
                    s, block_id, end[1], first, part, planned
                )
            ).result()
        if not counted or end[1] is None:
            return Staged(block_id, end[0], None)
        before = self._submit(
            lambda s: block_transactions.exposures_before(s, block_id, len(roster))
        ).result()
        return Staged(block_id, end[0], before)

    def open_block(
        self, staged: Staged, stream: str, scope: str, group: str | None, block: Block
    ) -> Future[bool]:
        """Open a block over a staged roster, unless another worker has opened one of this ordinal first."""
        return self._submit(lambda s: block_transactions.open_block(s, staged, stream, scope, group, block))

    def end_blocks(self, scope: str) -> Future[int]:
        """End the open blocks of a scope where they stand."""
        return self._changing(scope, lambda s: block_transactions.end_blocks(s, scope))

    def open_rosters(self, scope: str) -> Future[frozenset[str]]:
        """Return the ids that the open blocks of a scope may still draw."""
        return self._submit(lambda s: block_transactions.open_rosters(s, scope))

    def remove(self, scope: str, ids: Sequence[str]) -> Future[int]:
        """Take deleted memories out of the scope's open blocks."""
        return self._changing(scope, lambda s: block_transactions.remove(s, scope, ids))

    def amend(self, round_id: str, exposures: Sequence[Exposure]) -> Future[None]:
        """Replace or add exposure rows of a logged round."""
        return self._submit(lambda s: transactions.amend(s, round_id, exposures))

    def withdraw(self, round_id: str, reason: str) -> Future[None]:
        """Mark a round undelivered, unless it has been asked again since."""
        return self._submit(lambda s: transactions.withdraw(s, round_id, reason))

    def note_contents(self, round_id: str, hashes: Mapping[str, str]) -> None:
        """Note content hashes, to be written with the next transaction."""
        notes = [(content, round_id, memory_id) for memory_id, content in hashes.items()]
        with self._lock:
            self._notes.extend(notes)

    def outcome(self, round_id: str, metric: str, value: float, at: datetime, correct: bool) -> Future[bool]:
        """Record an outcome; False where the round is unknown."""
        return self._submit(lambda s: transactions.outcome(s, round_id, metric, value, at, correct))

    def exposures_of(self, round_id: str) -> Future[tuple[Exposure, ...]]:
        """Return the exposures of a logged round."""
        return self._submit(lambda s: transactions.exposures_of(s, round_id))

    def flush(self) -> None:
        """Return when everything handed over is durable."""
        with self._lock:
            if self._executor is None:
                return
            last = (
                self._executor.submit(self._transact, _nothing)
                if self._notes or self._queue is not None
                else self._executor.submit(int)
            )
        last.result()  # the writer works in order; a database that is away is asked for only where notes remain

    def close(self) -> None:
        """Flush and let go of the database; it opens again when next used."""
        self.flush()
        with self._lock:
            executor, self._executor = self._executor, None
        if executor is not None:
            executor.submit(self._let_go).result()
            executor.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _changing(self, scope: str, job: Callable[[Session], T]) -> Future[T]:
        """Do what changes a scope's blocks, and deal no more from leases of what they were."""

        def change(session: Session) -> T:
            result = job(session)
            if self._queue is not None:
                self._queue.end_leases(scope)
            return result

        return self._submit(change)

    # -- the writer thread ----------------------------------------------------------------------------------------

    def _reset(self) -> None:
        session = getattr(self, "_session", None)
        if session is not None:
            _inherited.append(session)
        self._lock = threading.Lock()
        self._executor = None
        self._session = None
        self._blocks = {}
        self._notes = []
        self._queue = QueuedRounds(self._submit, self._block) if self.queues else None

    def _submit(self, job: Callable[[Session], T]) -> Future[T]:
        with self._lock:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(1, thread_name_prefix="cmp-log-writer")
            return self._executor.submit(self._transact, job)

    def _transact(self, job: Callable[[Session], T]) -> T:
        with self._lock:
            notes, self._notes = self._notes, []
        queued = self._queue.take() if self._queue is not None else []
        for attempt in range(TRIES):
            session = self._session
            try:
                if session is None:
                    session = self._session = self._connect()
                self._begin(session)
                transactions.write_queued(session, queued)
                if notes:
                    transactions.write_contents(session, notes)
                result = job(session)
                self._commit(session)
            except BaseException as error:
                self._after(error, session)
                if attempt + 1 < TRIES and self._is_passing(error):
                    continue
                self._put_back(notes, queued)
                raise
            return result
        raise AssertionError("the last attempt returns or raises")

    def _put_back(self, notes: list[tuple[str, str, str]], queued: list[Queued]) -> None:
        with self._lock:
            self._notes[:0] = notes
        if self._queue is not None:
            self._queue.put_back(queued)

    def _after(self, error: BaseException, session: Session | None) -> None:
        if session is None:
            return
        if self._is_broken(error):
            self._let_go()
            return
        with suppress(Exception):
            self._roll_back(session)

    def _block(self, session: Session, block_id: str) -> StoredBlock:
        """Return a block of the log; the most recent ones are kept, since every round of a block asks for it."""
        block = self._blocks.pop(block_id, None) or transactions.read_block(session, block_id)
        self._blocks[block_id] = block
        if len(self._blocks) > BLOCKS_KEPT:
            del self._blocks[next(iter(self._blocks))]
        return block

    def _let_go(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            with suppress(Exception):
                self._disconnect(session)


def _nothing(session: Session) -> None:
    """Be a transaction that writes what has been noted."""


def _flush_at_exit(reference: weakref.ref[WritingLog]) -> None:
    """Write what is still noted when the interpreter ends, when the writer thread has been joined already."""
    log = reference()
    if log is not None and log._session is not None:
        with suppress(Exception):
            log._transact(lambda session: None)
        log._let_go()
