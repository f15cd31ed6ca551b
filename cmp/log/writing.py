"""A log that can be written to: one writer thread a process, one transaction a round, whatever the database."""

from __future__ import annotations

import atexit
import logging
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Any, Final, Self, TypeAlias, TypeVar

from cmp.design import Block
from cmp.forking import around_fork, outside_forks
from cmp.log import block_transactions, transactions
from cmp.log.database import Database, NotNowError
from cmp.log.queueing import Queued, QueuedRounds
from cmp.log.records import AssignedRound, Compose, Exposure, Request, Staged
from cmp.log.thread import REST_SECONDS, WriterThread, refusal_after_fork
from cmp.log.transactions import Note, Session, StoredBlock

__all__ = ["WritingLog"]

T = TypeVar("T")

#: What waits to be written with the next transaction.
Waiting: TypeAlias = Queued | Note

logger = logging.getLogger("cmp.log")

#: Roster rows written in one transaction; rounds of this and of other processes go on between two of them.
STAGED_AT_ONCE: Final = 2000
#: Blocks whose tables a process keeps.
BLOCKS_KEPT: Final = 256
#: How often a transaction that lost a race is tried.
TRIES: Final = 5

# A connection inherited over fork must be neither used nor closed: closing it would touch the parent's.
_inherited: list[Any] = []


class _UnwritableError(Exception):
    """What waited to be written cannot be: the fault is in the data, and would come back at every try."""


class WritingLog(Database):
    """What :class:`cmp.log.records.LogStore` asks, on a database that a subclass opens.

    A subclass connects, begins, commits and rolls back; what happens in between is in ``cmp.log.transactions``.
    """

    _thread: WriterThread
    _session: Session | None  # of the writer thread alone, or of who has it at rest
    _blocks: dict[str, StoredBlock]
    _lock: threading.Lock  # of the next two
    _notes: list[Note]
    _dropped: Counter[str]
    _queue: QueuedRounds | None

    def __init__(self) -> None:
        self._salt: str | None = None
        self._session = None
        self._reset()
        around_fork(
            self,
            before=WritingLog._rest,
            after_in_parent=lambda log: log._thread.wake(),
            after_in_child=WritingLog._restart,
        )
        atexit.register(_flush_at_exit, weakref.ref(self))

    def __del__(self) -> None:
        # garbage is collected in any thread, also while another one forks: the child of a connection that is half
        # closed would wait for SQLite's locks, which nobody holds there, for ever
        if getattr(self, "_session", None) is not None:
            outside_forks(self._let_go)

    @property
    def drops(self) -> Mapping[str, int]:
        """What this process could not write and gave up, by kind: ``content_hashes``, and ``rounds`` that were queued.

        The fault was in the data (a version that is no text, say); each is warned of.
        """
        with self._lock:
            return dict(self._dropped)

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
        is_new = request.made_up

        def job(session: Session) -> AssignedRound | None:
            nonlocal is_new
            first, is_new = is_new, False  # tried again, it may be there: a commit may go unanswered
            return transactions.assign(session, request, compose, self._block, is_new=first)

        return self._promptly(job)

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
        return self._promptly(lambda s: transactions.amend(s, round_id, exposures))

    def withdraw(self, round_id: str, reason: str) -> Future[None]:
        """Mark a round undelivered, unless it has been asked again since."""
        return self._submit(lambda s: transactions.withdraw(s, round_id, reason))

    def note_contents(self, round_id: str, hashes: Mapping[str, str]) -> None:
        """Note content hashes, to be written with the next transaction."""
        notes = [Note(content, round_id, memory_id) for memory_id, content in hashes.items()]
        with self._lock:
            self._notes.extend(notes)

    def outcome(self, round_id: str, metric: str, value: float, at: datetime, correct: bool) -> Future[bool]:
        """Record an outcome; False where the round is unknown."""
        return self._promptly(lambda s: transactions.outcome(s, round_id, metric, value, at, correct))

    def exposures_of(self, round_id: str) -> Future[tuple[Exposure, ...]]:
        """Return the exposures of a logged round."""
        return self._promptly(lambda s: transactions.exposures_of(s, round_id))

    def flush(self) -> None:
        """Return when everything handed over is durable."""
        if self._thread.is_awake or self._has_waiting():
            self._thread.submit(self._write_waiting).result()

    def close(self) -> None:
        """Flush and let go of the database; it opens again when next used, by requests in flight too."""
        self._thread.end(self._finish)

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

    def _reset(self, refusal: str | None = None) -> None:
        self._thread = WriterThread(refusal)
        self._session = None
        self._blocks = {}
        self._lock = threading.Lock()
        self._notes = []
        self._dropped = Counter()
        self._queue = QueuedRounds(self._submit, self._block, self._check) if self.queues else None

    def _rest(self) -> None:
        """Hold no connection and no lock while the process forks: the child would share them without knowing."""
        if self._thread.rest(REST_SECONDS):
            self._let_go()

    def _restart(self) -> None:
        """Begin anew in a forked child; or not at all, where the parent's writer could not be brought to rest."""
        is_torn = self._session is not None or self._thread.is_busy
        if self._session is not None:
            _inherited.append(self._session)
        self._reset(refusal_after_fork(self) if is_torn else None)

    def _promptly(self, job: Callable[[Session], T]) -> Future[T]:
        """Do a short job that somebody waits for: in the calling thread, where that holds nobody up."""
        if self._is_prompt and self._session is not None:
            done = self._thread.here(partial(self._transact, job, patient=False))
            if done is not None and not isinstance(done.exception(), NotNowError):
                self._tidy_when_due()
                return done
        return self._submit(job)

    def _submit(self, job: Callable[[Session], T]) -> Future[T]:
        future = self._thread.submit(partial(self._transact, job))
        self._tidy_when_due()
        return future

    def _tidy_when_due(self) -> None:
        if self._is_untidy:
            self._is_untidy = False
            self._thread.submit(self._tidied)

    def _tidied(self) -> None:
        if self._session is not None:
            self._tidy(self._session)

    def _transact(self, job: Callable[[Session], T], *, patient: bool = True) -> T:
        """Do a job in a transaction of its own, after what waits to be written."""
        waiting = self._take_waiting()
        try:
            try:
                return self._committed(waiting, job, patient)
            except _UnwritableError:
                self._write_singly(waiting, patient)
                return self._committed([], job, patient)
        except BaseException as error:
            self._put_back(waiting)
            told = self._explained(error)
            if told is None:
                raise
            raise told from error

    def _committed(self, waiting: Sequence[Waiting], job: Callable[[Session], T], patient: bool) -> T:
        for attempt in range(TRIES):
            session = self._session
            try:
                if session is None:
                    session = self._session = self._connect()
                self._begin(session, patient=patient)
                self._write(session, waiting)
                result = job(session)
                self._commit(session)
            except BaseException as error:
                self._after(error, session)
                if attempt + 1 < TRIES and self._is_passing(error):
                    continue
                raise
            return result
        raise AssertionError("the last attempt returns or raises")

    def _write(self, session: Session, waiting: Sequence[Waiting]) -> None:
        if not waiting:
            return
        try:
            transactions.write_queued(session, [item for item in waiting if isinstance(item, Queued)])
            transactions.write_contents(session, [item for item in waiting if isinstance(item, Note)])
        except Exception as error:
            if self._is_unwritable(error) and not self._is_passing(error):
                raise _UnwritableError from error
            raise

    def _write_singly(self, waiting: list[Waiting], patient: bool) -> None:
        """Write one by one what could not be written together, and drop what never can be."""
        while waiting:
            try:
                self._committed(waiting[:1], _nothing, patient)
            except _UnwritableError as error:
                self._drop(waiting[0], error.__cause__)
            del waiting[0]

    def _drop(self, item: Waiting, cause: BaseException | None) -> None:
        if isinstance(item, Note):
            kind, what = (
                "content_hashes",
                f"the content hash of {item.memory_id!r} in round {item.round_id!r}",
            )
        else:
            kind, what = "rounds", f"round {item.request.round_id!r}"
            if self._queue is not None:
                self._queue.forget(item.request.round_id)
        with self._lock:
            self._dropped[kind] += 1
        logger.warning("%s cannot be written to %r and was dropped (%s)", what, self, cause)

    def _take_waiting(self) -> list[Waiting]:
        with self._lock:
            notes, self._notes = self._notes, []
        queued = self._queue.take() if self._queue is not None else []
        return [*queued, *notes]

    def _put_back(self, waiting: Sequence[Waiting]) -> None:
        with self._lock:
            self._notes[:0] = [item for item in waiting if isinstance(item, Note)]
        if self._queue is not None:
            self._queue.put_back([item for item in waiting if isinstance(item, Queued)])

    def _has_waiting(self) -> bool:
        return bool(self._notes) or (self._queue is not None and self._queue.is_waiting)

    def _write_waiting(self) -> None:
        if self._has_waiting():  # a database that is away is asked for only then
            self._transact(_nothing)

    def _finish(self) -> None:
        try:
            self._write_waiting()
        finally:
            self._let_go()

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
    if log is not None:
        with suppress(Exception):
            log._finish()
