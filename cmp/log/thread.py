"""The one thread of a process that writes to a log: jobs in order, an end that loses none, rest while it forks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from cmp.errors import LogUnavailableError

__all__ = ["REST_SECONDS", "WriterThread", "done"]

T = TypeVar("T")

#: How long a fork waits for those who read, and then for what is being written: a log that hangs must not hang the
#: fork.
REST_SECONDS: Final = 10.0


class WriterThread:
    """Does jobs in order, on a thread that is started by the first and ended by :meth:`end`, or where they are asked.

    No two jobs are ever done at once: after an end, the next thread waits for the last job of the one before. So what
    only jobs touch (a connection, say) needs no lock.

    Parameters
    ----------
    refusal
        Why nothing can be done here; every job then fails with a ``LogUnavailableError`` that says so.
    """

    def __init__(self, refusal: str | None = None) -> None:
        self._refusal = refusal
        self._lock = threading.Lock()
        self._executor: ThreadPoolExecutor | None = None
        self._last: Future[None] | None = None
        self._turn = threading.Condition()
        # the next five belong to the turn
        self._handed = 0
        self._is_at_work = False
        self._users: list[int] = []
        self._at_the_door: set[int] = set()
        self._forking: set[int] = set()

    def submit(self, job: Callable[[], T]) -> Future[T]:
        """Have a job done by the thread, after those before it. A job cannot wait for another."""
        if self._refusal is not None:
            refused: Future[T] = Future()
            refused.set_exception(LogUnavailableError(self._refusal))
            return refused
        with self._lock:
            return self._handed_over(self._started(), job)

    def here(self, job: Callable[[], T]) -> Future[T] | None:
        """Do a job at once in the calling thread; None where it may not be, and nothing was done.

        That is so behind jobs that wait, while the process forks, on an event loop, which would be held up, and in the
        main thread: signal handlers run there between any two instructions, may raise, and may ask for jobs themselves.
        """
        if (
            self._refusal is not None
            or threading.current_thread() is threading.main_thread()
            or _runs_a_loop()
        ):
            return None
        with self._turn:
            if self._handed or self._forking or self._is_at_work:
                return None
            self._is_at_work = True
            self._users.append(threading.get_ident())
        try:
            return done(job)
        finally:
            self._leave(from_work=True)

    def end(self, last: Callable[[], None]) -> None:
        """Do a last job and end the thread; jobs that come meanwhile are done, after it, by the next."""
        if self._refusal is not None:
            return
        with self._lock:
            executor, self._executor = self._started(), None
            done = self._last = self._handed_over(executor, last)
        executor.shutdown()
        done.result()

    @property
    def is_awake(self) -> bool:
        """Whether there may be jobs that are not done."""
        with self._lock:
            return self._executor is not None or not (self._last is None or self._last.done())

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Keep the process from forking within, for as long as a fork waits; wait while it forks or is about to.

        Nested, it does not wait: a fork that is about to begin waits for the outer one. Jobs go on.
        """
        if self._refusal is not None:
            raise LogUnavailableError(self._refusal)
        me = threading.get_ident()
        with self._turn:
            self._turn.wait_for(lambda: not self._at_the_door or me in self._users)
            self._users.append(me)
        try:
            yield
        finally:
            self._leave()

    def rest(self, seconds: float) -> bool:
        """Let nothing begin until :meth:`wake` is called by this thread; return whether all that had begun has ended.

        Who has the log in use is waited for first, no longer than this many seconds, and jobs go on meanwhile: an
        export takes its time. Then no job begins, and the one at work is waited for, no longer either. Not at all is
        waited for a job, or a use, that itself asks for rest.
        """
        me = threading.get_ident()
        with self._turn:
            self._at_the_door.add(me)
            self._turn.wait_for(lambda: len(self._users) == self._is_at_work or me in self._users, seconds)
            self._forking.add(me)
            self._turn.wait_for(lambda: not self._is_at_work or me in self._users, seconds)
            return not self._users

    def wake(self) -> None:
        """Go on after :meth:`rest`."""
        with self._turn:
            self._at_the_door.discard(threading.get_ident())
            self._forking.discard(threading.get_ident())
            self._turn.notify_all()

    @property
    def is_busy(self) -> bool:
        """Whether something is in use, or nothing can be; takes no lock, so that a forked child may ask."""
        return bool(self._users) or self._refusal is not None

    def _do(self, job: Callable[[], T]) -> T:
        with self._turn:
            self._turn.wait_for(lambda: not self._forking and not self._is_at_work)
            self._is_at_work = True
            self._users.append(threading.get_ident())
        try:
            return job()
        finally:
            self._leave(from_work=True)

    def _leave(self, *, from_work: bool = False) -> None:
        with self._turn:
            self._users.remove(threading.get_ident())
            if from_work:
                self._is_at_work = False
            self._turn.notify_all()

    def _handed_over(self, executor: ThreadPoolExecutor, job: Callable[[], T]) -> Future[T]:
        with self._turn:
            self._handed += 1
        future = executor.submit(self._do, job)
        future.add_done_callback(self._took)
        return future

    def _took(self, done: Future[Any]) -> None:
        with self._turn:
            self._handed -= 1

    def _started(self) -> ThreadPoolExecutor:
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="cmp-log-writer")
            if self._last is not None:
                self._executor.submit(wait, [self._last])
        return self._executor


def _runs_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def done(job: Callable[[], T]) -> Future[T]:
    """Do a job, and return what came of it as who handed it over would be told."""
    future: Future[T] = Future()
    try:
        result = job()
    except Exception as error:  # noqa: BLE001 (it is the asker's, as where another thread does the job)
        future.set_exception(error)
    else:
        future.set_result(result)
    return future


def refusal_after_fork(log: object) -> str:
    """Return why a forked child cannot use a log that was in use at the fork."""
    return (
        f"{log!r} was still read or written in the parent process when this process was forked from it (a fork waits "
        f"{REST_SECONDS:g} s for either), and cannot be used here without risk to the rounds of both; fork before the "
        'log is used, or start workers with the "spawn" method'
    )
