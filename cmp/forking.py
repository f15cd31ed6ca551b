"""What a forked child must not share with its parent: threads that are not there, locks and files that are held."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import TypeVar

__all__ = ["after_fork", "around_fork"]

T = TypeVar("T")


def after_fork(owner: T, reset: Callable[[T], None]) -> None:
    """Call ``reset(owner)`` in every child forked from now on, for as long as the owner lives.

    Examples
    --------
    >>> class Counter:
    ...     count = 3
    >>> counter = Counter()
    >>> after_fork(counter, lambda it: setattr(it, "count", 0))
    """
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_while_alive(owner, reset))


def around_fork(
    owner: T,
    *,
    before: Callable[[T], None],
    after_in_parent: Callable[[T], None],
    after_in_child: Callable[[T], None],
) -> None:
    """Call these with the owner at every fork from now on, for as long as it lives.

    Parameters
    ----------
    owner
        Kept alive by nobody here.
    before
        Runs in the thread that forks, which waits for it: it must come to an end. Several threads may fork at once.
    after_in_parent, after_in_child
        Run in that same thread. An owner made while another thread forks may see these without ``before``.

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
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(
            before=_while_alive(owner, before),
            after_in_parent=_while_alive(owner, after_in_parent),
            after_in_child=_while_alive(owner, after_in_child),
        )


def _while_alive(owner: T, hook: Callable[[T], None]) -> Callable[[], None]:
    reference = weakref.ref(owner)

    def call() -> None:
        found = reference()
        if found is not None:
            hook(found)

    return call
