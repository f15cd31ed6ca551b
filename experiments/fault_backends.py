"""Faults of the wrapped store: it raises, answers garbage, loses memories, hangs; and stores that must not mix."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from cmp.errors import InvalidIdError
from cmp.log import Log, open_log
from cmp.protocols import Hit, Scope
from experiments.fault_scenarios import SEEDS, Reported, Scale, accounted
from experiments.fault_writer import SIZES, Notes, Store, wrapped

__all__ = ["backend_deletes", "backend_garbage", "backend_hangs", "backend_raises", "scopes_apart"]


class AwayError(ConnectionError):
    """What the store raises."""


@dataclass
class RaisingStore(Store):
    """Raises in every third listing and fetch, and in a search for ``"away"``."""

    calls: Iterator[bool] = field(default_factory=lambda: cycle([True, False, False]))

    def search(self, query: Any, n: int, *, scope: Scope) -> Sequence[Hit[str]]:
        """Return the first ``n``."""
        if query == "away":
            raise AwayError
        return super().search(query, n, scope=scope)

    def list_ids(self, *, scope: Scope) -> Iterable[str]:
        """Return every id, or raise half-way."""
        yield from super().list_ids(scope=scope)
        if next(self.calls):
            raise AwayError

    def get(self, ids: Sequence[str], *, scope: Scope) -> Mapping[str, Hit[str]]:
        """Return those that are the scope's, or raise."""
        if next(self.calls):
            raise AwayError
        return super().get(ids, scope=scope)


def backend_raises(folder: Path, scale: Scale) -> Reported:
    """Let a listing or a fetch raise now and then, and the retriever itself."""
    memory = wrapped(RaisingStore(SIZES), folder / "x.db")
    own = 0
    with memory, Notes(folder / "w.notes", "w") as notes:
        for _ in range(400):
            notes.ask(memory, "a")
        for _ in range(20):
            try:
                memory.retrieve("away", scope="a")
            except AwayError:
                own += 1
    return accounted(folder), f"{own} of 20 errors of the retriever itself reached its caller as they were"


@dataclass
class GarbageStore(Store):
    """Answers a fetch or a listing with something else."""

    fetched: Iterator[Any] = field(
        default_factory=lambda: cycle(
            [None, 7, [object()], {"a/1": None}, ["b/1"], [Hit("zz", "")], "", [None]]
        )
    )
    listed: Iterator[Any] = field(default_factory=lambda: cycle([None, 7, object(), None]))
    answers: int = 0

    def list_ids(self, *, scope: Scope) -> Iterable[str]:
        """Return garbage four times of five."""
        self.answers += 1
        garbage: Iterable[str] = next(self.listed)
        return garbage if self.answers % 5 else super().list_ids(scope=scope)

    def get(self, ids: Sequence[str], *, scope: Scope) -> Mapping[str, Hit[str]]:
        """Return garbage."""
        garbage: Mapping[str, Hit[str]] = next(self.fetched)
        return garbage


def backend_garbage(folder: Path, scale: Scale) -> Reported:
    """Let a store answer with None, numbers, nameless objects and what nobody asked for."""
    memory = wrapped(GarbageStore(SIZES), folder / "x.db")
    with memory, Notes(folder / "w.notes", "w") as notes:
        for _ in range(400):
            notes.ask(memory, "a")
    refused = sum(_refuses(folder / "ids.db", bad) for bad in (None, True, 1.5, "", "\ud800"))
    return accounted(folder), f"{refused} of 5 ids that no log can hold were refused by name"


def _refuses(log: Path, bad: object) -> bool:
    memory = wrapped(
        lambda query: [], log, list_ids=lambda scope: ["x", bad], get=lambda ids, scope: [], on_error="serve"
    )
    with memory:
        try:
            memory.retrieve("q", scope="s")
        except InvalidIdError:
            return True
    return False


@dataclass
class ShrinkingStore(Store):
    """Memories can be deleted from it at any time."""

    gone: set[str] = field(default_factory=set)

    def search(self, query: Any, n: int, *, scope: Scope) -> Sequence[Hit[str]]:
        """Return the first ``n`` that are left."""
        ranked = super().search(query, self.sizes[scope.key], scope=scope)
        return [hit for hit in ranked if hit.id not in self.gone][:n]

    def list_ids(self, *, scope: Scope) -> Iterable[str]:
        """Return the ids that are left."""
        return [memory_id for memory_id in super().list_ids(scope=scope) if memory_id not in self.gone]

    def get(self, ids: Sequence[str], *, scope: Scope) -> Mapping[str, Hit[str]]:
        """Return those that are left."""
        return super().get([memory_id for memory_id in ids if memory_id not in self.gone], scope=scope)


def backend_deletes(folder: Path, scale: Scale) -> Reported:
    """Delete memories from the store, without a word, while four threads ask; and put them back."""
    store = ShrinkingStore(SIZES)
    memory = wrapped(store, folder / "x.db")
    stop = threading.Event()

    def delete() -> None:
        places = random.Random(SEEDS["deletions"])
        while not stop.wait(0.002):
            store.gone = {f"a/{number}" for number in places.sample(range(40), places.randrange(30))}

    deleter = threading.Thread(target=delete)
    deleter.start()
    with memory:
        _in_threads(4, lambda index: _ask_many(memory, folder, index, 200))
        stop.set()
        deleter.join()
        undelivered = memory.stats().get("undelivered.deleted", 0)
    return accounted(folder), f"{undelivered:.0f} drawn memories were gone when they were fetched"


@dataclass
class HangingStore(Store):
    """Hangs in the search of a query ``"hang"``, and in the listing of scope ``b``, until it is let go."""

    let_go: threading.Event = field(default_factory=threading.Event)

    def search(self, query: Any, n: int, *, scope: Scope) -> Sequence[Hit[str]]:
        """Return the first ``n``, after a while."""
        if query == "hang":
            self.let_go.wait()
        return super().search(query, n, scope=scope)

    def list_ids(self, *, scope: Scope) -> Iterable[str]:
        """Return every id, after a while."""
        if scope.key == "b":
            self.let_go.wait()
        return super().list_ids(scope=scope)


def backend_hangs(folder: Path, scale: Scale) -> Reported:
    """Let searches and a listing hang while others are asked."""
    store = HangingStore(SIZES)
    memory = wrapped(store, folder / "x.db")
    with memory, Notes(folder / "hung.notes", "hung") as hung:
        waiting = [threading.Thread(target=hung.ask, args=(memory, "a", "hang")) for _ in range(3)]
        for thread in waiting:
            thread.start()
        _in_threads(4, lambda index: _ask_many(memory, folder, index, 50))
        began = time.perf_counter()
        with Notes(folder / "b.notes", "b") as notes:
            listing = notes.ask(memory, "b")
        seconds = time.perf_counter() - began
        hanging = sum(thread.is_alive() for thread in waiting)
        store.let_go.set()
        for thread in waiting:
            thread.join()
    reason = listing.fallback_reason if listing is not None else "an error"
    return accounted(folder), (
        f"{hanging} of 3 requests hung as long as their search, as with the bare retriever, while 200 others were "
        f"answered; with the listing hanging the base ranking was served after {seconds:.1f} s ({reason})"
    )


def _ask_many(memory: Any, folder: Path, index: int, number: int) -> None:
    with Notes(folder / f"t{index}.notes", f"t{index}") as notes:
        for _ in range(number):
            notes.ask(memory, "a")


def _in_threads(number: int, function: Callable[[int], object]) -> None:
    threads = [threading.Thread(target=function, args=(index,)) for index in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


# -- scopes -------------------------------------------------------------------------------------------------------

N_SCOPES, N_MEMORIES, DRAWN_AT_ONCE = 8, 400, 50


def scopes_apart(folder: Path, scale: Scale) -> Reported:
    """Draw for eight scopes in turn, and look for an id of another: in every table, and in every context served."""
    sizes = {f"s{number}": N_MEMORIES for number in range(N_SCOPES)}
    length = scale.draws // (N_SCOPES * DRAWN_AT_ONCE)
    memory = wrapped(
        Store(sizes),
        folder / "x.db",
        slots=DRAWN_AT_ONCE,
        random_slots=DRAWN_AT_ONCE,
        rounds_per_block=length,
        log_timeout=60.0,
    )
    with memory, Notes(folder / "w.notes", "w") as notes:
        for number in range(scale.wrapper_draws // DRAWN_AT_ONCE):
            notes.ask(memory, f"s{number % N_SCOPES}")
    drawn, foreign = _drawn_from_tables(open_log(folder / "x.db"))
    found = accounted(folder)
    if foreign:
        raise RuntimeError(f"{foreign} of {drawn} draws were of another scope")
    return found, (
        f"{foreign} ids of another scope in {drawn:,} draws of stored tables, {scale.wrapper_draws:,} of which were "
        "served through the wrapper"
    )


def _drawn_from_tables(log: Log) -> tuple[int, int]:
    """Return how many draws the tables of all blocks hold, and how many are of another scope than the block's."""
    rosters = {key[0]: frame for key, frame in log.rosters().collect().group_by("block_id")}
    drawn = foreign = 0
    for block_id, scope, table in log.blocks().select("block_id", "scope", "table").collect().iter_rows():
        names = rosters[block_id].sort("position")["memory_id"]
        stranger = ~names.str.starts_with(f"{scope}/").to_numpy()
        positions = np.frombuffer(table, "<u4")
        drawn += positions.size
        foreign += int(stranger[positions].sum())
    return drawn, foreign
