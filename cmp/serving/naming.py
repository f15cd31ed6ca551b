"""Ids for rounds that the caller did not name."""

from __future__ import annotations

import secrets
from itertools import count

from cmp.forking import after_fork

__all__ = ["RoundIds"]


class RoundIds:
    """Ids that no other process makes up: 80 random bits, drawn once a process, and a counter.

    Asking the operating system for randomness at every round would cost more than logging the round does.
    Thread-safe; a copy in another process, or in a forked child, draws bits of its own.

    Examples
    --------
    >>> ids = RoundIds()
    >>> first, second = ids.make(), ids.make()
    >>> len(first), first == second
    (32, False)
    """

    def __init__(self) -> None:
        self._reset()
        after_fork(self, RoundIds._reset)

    def __reduce__(self) -> tuple[type[RoundIds], tuple[()]]:
        return RoundIds, ()

    def _reset(self) -> None:
        self._prefix = secrets.token_hex(10)
        self._numbers = count()

    def make(self) -> str:
        """Return a new id: 32 hexadecimal digits."""
        return f"{self._prefix}{next(self._numbers):012x}"
