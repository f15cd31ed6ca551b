"""What a forked child must not share with its parent: threads that are not there, locks and files that are held."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any, Final, TypeVar

__all__ = ["after_fork", "around_fork", "outside_forks"]

T = TypeVar("T")
Hook = Callable[[Any], object]

logger = logging.getLogger("cmp")


@dataclass(frozen=True, slots=True)
class _Hooks:
    owner: weakref.ref[Any]
    before: Hook
    after_in_parent: Hook
    after_in_child: Hook

    def call(self, hook: Hook) -> None:
        owner = self.owner()
        if owner is not None:
            _call(lambda: hook(owner))


class _Forks:
    """Who is told of forks, in the order they asked; and what waits for the end of one."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._under_way: Any = threading.RLock()  # held from before a fork until after it
        self._hooks: dict[int, _Hooks] = {}  # changed by who holds the lock alone
        self._numbers = count()
        self._gone: deque[int] = deque()
        self._postponed: deque[Callable[[], None]] = deque()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(
                before=self._before,
                after_in_parent=self._after_in_parent,
                after_in_child=self._after_in_child,
            )

    def tell(self, owner: object, before: Hook, after_in_parent: Hook, after_in_child: Hook) -> None:
        number = next(self._numbers)
        # garbage may be collected while somebody goes through the hooks: it is only noted
        reference = weakref.ref(owner, lambda _: self._gone.append(number))
        with self._under_way:
            while self._gone:
                self._hooks.pop(self._gone.popleft(), None)
            self._hooks[number] = _Hooks(reference, before, after_in_parent, after_in_child)
        self._look_again()

    def outside(self, job: Callable[[], None]) -> None:
        self._postponed.append(job)
        self._look_again()

    def _look_again(self) -> None:
        """Do what was postponed, unless somebody has the lock, who will; called by all who have let go of it."""
        while self._postponed and self._is_here and self._under_way.acquire(blocking=False):
            try:
                self._do_postponed()
            finally:
                self._under_way.release()

    def _do_postponed(self) -> None:
        while self._postponed and self._is_here:
            _call(self._postponed.popleft())

    @property
    def _is_here(self) -> bool:
        """Whether this is no child of the process that jobs were postponed in, about to be told so."""
        return os.getpid() == self._process

    def _before(self) -> None:
        self._under_way.acquire()
        self._do_postponed()
        for hooks in reversed(tuple(self._hooks.values())):
            hooks.call(hooks.before)

    def _after_in_parent(self) -> None:
        if not self._under_way._is_owned():  # made while another thread forked, or stopped at the door
            return
        try:
            for hooks in tuple(self._hooks.values()):
                hooks.call(hooks.after_in_parent)
        finally:
            self._under_way.release()
        self._look_again()

    def _after_in_child(self) -> None:
        self._under_way = threading.RLock()
        _of_parents.extend(self._postponed)
        self._postponed, self._process = deque(), os.getpid()
        for hooks in tuple(self._hooks.values()):
            hooks.call(hooks.after_in_child)


_of_parents: Final[list[object]] = []  # neither done nor let go of in a child
_forks: Final = _Forks()


def after_fork(owner: T, reset: Callable[[T], object]) -> None:
    """Call ``reset(owner)`` in every child forked from now on, for as long as the owner lives.

    Examples
    --------
    >>> class Counter:
    ...     count = 3
    >>> counter = Counter()
    >>> after_fork(counter, lambda it: setattr(it, "count", 0))
    """
    _forks.tell(owner, _nothing, _nothing, reset)


def around_fork(
    owner: T,
    *,
    before: Callable[[T], object],
    after_in_parent: Callable[[T], object],
    after_in_child: Callable[[T], object],
) -> None:
    """Call these with the owner at every fork from now on, for as long as it lives.

    Where another thread forks at this moment, it waits for that.

    Parameters
    ----------
    owner
        Kept alive by nobody here.
    before
        Runs in the thread that forks, which waits for it: it must come to an end.
    after_in_parent, after_in_child
        Run in that same thread.

    Examples
    --------
    >>> class Door:
    ...     is_open = True
    >>> door = Door()
    >>> around_fork(
    ...     door,
    ...     before=lambda it: setattr(it, "is_open", False),
    ...     after_in_parent=lambda it: setattr(it, "is_open", True),
    ...     after_in_child=lambda it: setattr(it, "is_open", True),
    ... )
    """
    _forks.tell(owner, before, after_in_parent, after_in_child)


def outside_forks(job: Callable[[], None]) -> None:
    """Do a job now, or after the fork that is under way in another thread; never waits, and never in that child.

    For finalizers: garbage is collected in any thread, at any moment.

    Examples
    --------
    >>> outside_forks(lambda: print("closed"))
    closed
    """
    _forks.outside(job)


def _call(job: Callable[[], object]) -> None:
    """Do a job whose failure stops neither a fork nor the jobs after it; Python would not hand an interrupt on."""
    try:
        job()
    except BaseException:
        logger.exception("a fork, or the end of a log, goes on without it")


def _nothing(owner: object) -> None:
    pass
