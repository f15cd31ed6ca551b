"""What a writer does while something fails around it: ask, and note in a file of its own what it was told.

Runs in child processes that may be killed at any instant: a note is one unbuffered write after the context is there.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from cmp.log import open_log
from cmp.protocols import Hit, Scope
from cmp.serving import Context, RandomizedRetriever, wrap

__all__ = ["SIZES", "Notes", "Store", "wrapped", "write"]

#: Scopes and how many memories they hold. The large one is stored in several transactions.
SIZES: Mapping[str, int] = {"a": 40, "b": 25, "large": 2500}

SLOTS, RANDOM_SLOTS = 6, 2

#: Between requests while the log cannot be written.
PAUSE_SECONDS = 0.01


@dataclass
class Store:
    """Memories of several scopes, each named ``scope/number``; the ranking is its first."""

    sizes: Mapping[str, int]

    def search(self, query: Any, n: int, *, scope: Scope) -> Sequence[Hit[str]]:
        """Return the first ``n``."""
        return [_hit(scope, number) for number in range(min(n, self.sizes[scope.key]))]

    def list_ids(self, *, scope: Scope) -> Iterable[str]:
        """Return every id."""
        return [f"{scope.key}/{number}" for number in range(self.sizes[scope.key])]

    def get(self, ids: Sequence[str], *, scope: Scope) -> Mapping[str, Hit[str]]:
        """Return those that are the scope's."""
        return {i: Hit(i, f"text of {i}") for i in ids if i.startswith(f"{scope.key}/")}


def _hit(scope: Scope, number: int) -> Hit[str]:
    return Hit(f"{scope.key}/{number}", f"text of {scope.key}/{number}")


def wrapped(
    retriever: Any, log: Any, *, slots: int = SLOTS, random_slots: int = RANDOM_SLOTS, **settings: Any
) -> RandomizedRetriever:
    """Wrap a store, its warnings silenced: the faults are made on purpose."""
    logging.getLogger("cmp.serving").setLevel(logging.CRITICAL)
    return wrap(retriever, slots=slots, random_slots=random_slots, log=log, **settings)


class Notes:
    """Asks, and notes each answer as a line of JSON.

    Every other request comes from a thread of its own: such a round is written where it is asked, while those of the
    main thread are handed to the log's writer thread.
    """

    def __init__(self, path: Path, name: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        self._numbers, self._name = count(), name
        self._worker = ThreadPoolExecutor(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._worker.shutdown()
        os.close(self._file)

    def ask(self, memory: RandomizedRetriever, scope: str, query: str = "q") -> Context | None:
        """Ask once; a request that fails is noted and None is returned."""
        number = next(self._numbers)
        if number % 2:
            return self._worker.submit(self._ask, number, memory, scope, query).result()
        return self._ask(number, memory, scope, query)

    def _ask(self, number: int, memory: RandomizedRetriever, scope: str, query: str) -> Context | None:
        round_id = f"{self._name}-{number}"
        started = time.perf_counter()
        try:
            context = memory.retrieve(query, scope=scope, round_id=round_id)
        except Exception as error:  # noqa: BLE001 (that is what is counted)
            self._note(round_id, started, error=f"{type(error).__name__}: {error}")
            return None
        self._note(
            round_id,
            started,
            scope=scope,
            randomized=context.randomized,
            fallback=context.fallback_reason,
            random=[item.id for item in context.items if item.arm == "random"],
            served=len(context),
        )
        return context

    def _note(self, round_id: str, started: float, **told: Any) -> None:
        told |= {"round_id": round_id, "ms": 1e3 * (time.perf_counter() - started)}
        os.write(self._file, (json.dumps(told) + "\n").encode())


def write(
    log: str,
    notes: Path,
    name: str,
    seconds: float,
    *,
    durability: str = "process",
    prepare: Callable[[], object] | None = None,
) -> None:
    """Ask every scope in turn for some seconds; what a writer process runs."""
    if prepare is not None:
        prepare()
    memory = wrapped(Store(SIZES), open_log(log, durability=durability, create=True))
    until = time.monotonic() + seconds
    with memory, Notes(notes, name) as asked:
        for scope in _in_turn(SIZES):
            context = asked.ask(memory, scope)
            if context is None or context.fallback_reason == "log_failed":
                time.sleep(PAUSE_SECONDS)
            if time.monotonic() > until:
                break


def _in_turn(scopes: Iterable[str]) -> Iterator[str]:
    names = list(scopes)
    return (names[number % len(names)] for number in count())
