"""What a forked child must not share with its parent: threads that are not there, locks that may be held."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Any

__all__ = ["after_fork"]


def after_fork(owner: Any, reset: Callable[[Any], None]) -> None:
    """Call ``reset(owner)`` in every child forked from now on, for as long as the owner lives.

    Examples
    --------
    >>> class Counter:
    ...     count = 3
    >>> counter = Counter()
    >>> after_fork(counter, lambda it: setattr(it, "count", 0))
    """
    reference = weakref.ref(owner)

    def in_child() -> None:
        found = reference()
        if found is not None:
            reset(found)

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=in_child)
