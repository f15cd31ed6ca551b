"""Counts of what a wrapper did, for operators."""

from __future__ import annotations

import threading
from collections import Counter

__all__ = ["Counters"]


class Counters:
    """Thread-safe counts by name. A copy sent to another process starts from zero."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def __reduce__(self) -> tuple[type[Counters], tuple[()]]:
        return Counters, ()

    def add(self, name: str, number: int = 1) -> None:
        """Count something."""
        with self._lock:
            self._counts[name] += number

    def snapshot(self) -> dict[str, int]:
        """Return the counts so far."""
        with self._lock:
            return dict(sorted(self._counts.items()))
