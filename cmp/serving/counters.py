"""Counts and latencies of what a wrapper did, for operators."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict, deque
from typing import Final

from cmp.forking import after_fork

__all__ = ["Counters"]

#: Latencies kept for the quantiles.
KEPT: Final = 2000


class Counters:
    """Thread-safe counts and recent latencies, by name. A copy sent to another process starts from zero."""

    def __init__(self) -> None:
        self._reset()
        after_fork(self, Counters._reset)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._seconds: defaultdict[str, deque[float]] = defaultdict(lambda: deque(maxlen=KEPT))

    def __reduce__(self) -> tuple[type[Counters], tuple[()]]:
        return Counters, ()

    def add(self, name: str, number: int = 1) -> None:
        """Count something."""
        with self._lock:
            self._counts[name] += number

    def time(self, name: str, seconds: float) -> None:
        """Note how long something took."""
        with self._lock:
            self._seconds[name].append(seconds)

    def snapshot(self) -> dict[str, float]:
        """Return the counts so far, and the median and 99th percentile of recent latencies in milliseconds."""
        with self._lock:
            found: dict[str, float] = dict(self._counts)
            timed = {name: sorted(values) for name, values in self._seconds.items()}
        for name, values in timed.items():
            found[f"{name}_ms_p50"] = 1e3 * values[len(values) // 2]
            found[f"{name}_ms_p99"] = 1e3 * values[len(values) * 99 // 100]
        return dict(sorted(found.items()))
