"""The one thread of a process that writes to a log: jobs in order, an end that loses none, rest while it forks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Final, TypeVar

from cmp.errors import LogUnavailableError

__all__ = ["REST_SECONDS", "WriterThread"]

T = TypeVar("T")

#: How long a fork waits for what is being written; a log that hangs must not hang the fork.
REST_SECONDS: Final = 10.0


class WriterThread:
    """Does jobs in order, on a thread that is started by the first and ended by :meth:`end`.

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
        self._users: list[int] = []
        self._forking: set[int] = set()

    def submit(self, job: Callable[[], T]) -> Future[T]:
        """Have a job done after those before it."""
        if self._refusal is not None:
            refused: Future[T] = Future()
            refused.set_exception(LogUnavailableError(self._refusal))
            return refused
        with self._lock:
            return self._started().submit(self._do, job)

    def end(self, last: Callable[[], None]) -> None:
        """Do a last job and end the thread; jobs that come meanwhile are done, after it, by the next."""
        if self._refusal is not None:
            return
        with self._lock:
            executor, self._executor = self._started(), None
            done = self._last = executor.submit(self._do, last)
        executor.shutdown()
        done.result()

    @property
    def is_awake(self) -> bool:
        """Whether there may be jobs that are not done."""
        with self._lock:
            return self._executor is not None or not (self._last is None or self._last.done())

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Keep the process from forking within; wait while it does. Not to be nested."""
        if self._refusal is not None:
            raise LogUnavailableError(self._refusal)
        me = threading.get_ident()
        with self._turn:
            self._turn.wait_for(lambda: not self._forking)
            self._users.append(me)
        try:
            yield
        finally:
            with self._turn:
                self._users.remove(me)
                self._turn.notify_all()

    def rest(self, seconds: float) -> bool:
        """Let nothing begin until :meth:`wake` is called by this thread; return whether all that had begun has ended.

        Waits no longer than this many seconds, and not at all for a job that itself asks for rest.
        """
        me = threading.get_ident()
        with self._turn:
            self._forking.add(me)
            self._turn.wait_for(lambda: not self._users or me in self._users, seconds)
            return not self._users

    def wake(self) -> None:
        """Go on after :meth:`rest`."""
        with self._turn:
            self._forking.discard(threading.get_ident())
            self._turn.notify_all()

    @property
    def is_busy(self) -> bool:
        """Whether something is in use, or nothing can be; takes no lock, so that a forked child may ask."""
        return bool(self._users) or self._refusal is not None

    def _do(self, job: Callable[[], T]) -> T:
        with self.in_use():
            return job()

    def _started(self) -> ThreadPoolExecutor:
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="cmp-log-writer")
            if self._last is not None:
                self._executor.submit(wait, [self._last])
        return self._executor


def refusal_after_fork(log: object) -> str:
    """Return why a forked child cannot use a log that was in use at the fork."""
    return (
        f"{log!r} was still at work in the parent process when this process was forked from it (a fork waits "
        f"{REST_SECONDS:g} s), and cannot be used here without risk to the rounds of both; fork before the log is "
        'used, or start workers with the "spawn" method'
    )
