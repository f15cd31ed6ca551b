"""Rounds run offline: each task asked many times, each time with other random memories, and scored."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice
from typing import Any

import polars as pl

from cmp.protocols import ScopeLike
from cmp.serving.context import Context
from cmp.serving.wrapper import RandomizedRetriever

__all__ = ["Task", "run_rounds"]


@dataclass(frozen=True, slots=True)
class Task:
    """A query to be asked repeatedly: its text, its scope, and the group it is analysed under."""

    query: Any
    scope: ScopeLike | None
    group: str


def run_rounds(
    memory: RandomizedRetriever,
    tasks: Iterable[Any],
    score: Callable[[Any, Context], float],
    rounds: int = 90,
    *,
    metric: str = "reward",
    workers: int = 1,
    progress: bool = True,
) -> int:
    """Ask each task ``rounds`` times through balanced blocks of its own, score each context, and record the scores.

    Running it again on the same log goes on where it stopped: a round is named by its task and number, a round that
    has an outcome is skipped, and one that was interrupted gets the same assignment again.

    Parameters
    ----------
    memory
        A wrapped retriever. Its own balancing is set aside: each task has one block of ``rounds`` rounds.
    tasks
        Each a :class:`Task`, a (query, scope, group) tuple, or anything with ``query``, ``scope`` and ``group`` as
        attributes or keys. Groups are distinct within a scope.
    score
        ``score(task, context) -> float``, given the task as it came; higher is better.
    rounds
        Rounds of each task.
    metric
        Name of the outcome.
    workers
        Threads; worth it where ``score`` waits for something.
    progress
        Show a bar on a terminal.

    Returns
    -------
    int
        Rounds scored by this call.

    Examples
    --------
    >>> import tempfile, cmp
    >>> store = {f"m{i}": f"memory number {i}" for i in range(8)}
    >>> with tempfile.TemporaryDirectory() as folder, cmp.wrap(
    ...     lambda query: list(store)[:3], list_ids=lambda: store, get=lambda ids: list(ids),
    ...     slots=3, random_slots=1, log=folder + "/x.db", scope=cmp.EVERYTHING, seed=1,
    ... ) as memory:
    ...     n = cmp.run_rounds(memory, [("where?", None, "q1")], lambda task, context: "m7" in context, rounds=16)
    ...     table = cmp.utilities(memory.log, by="query").frame
    >>> n, table.filter(table["memory_id"] == "m7")["utility"].to_list()
    (16, [1.0])
    """
    policy = memory.with_policy(balance_within="group", rounds_per_block=rounds)
    done = _scored(memory, metric)
    todo = [
        (given, task, number, round_id)
        for given, task in _tasks(tasks)
        for number in range(rounds)
        if (round_id := _round_id(task, number)) not in done
    ]

    def one(item: tuple[Any, Task, int, str]) -> None:
        given, task, _, round_id = item
        context = policy.retrieve(task.query, scope=task.scope, round_id=round_id, group=task.group)
        policy.record(round_id, score(given, context), metric=metric)

    with progress_bar("rounds", len(todo), progress) as advance:
        if workers <= 1:
            for item in todo:
                one(item)
                advance()
        else:
            _in_threads(one, todo, workers, advance)
    return len(todo)


def _in_threads(
    one: Callable[[Any], None], todo: list[Any], workers: int, advance: Callable[[], None]
) -> None:
    """Run with a bounded number of tasks under way, so that an interrupt or an error stops at once."""
    waiting = iter(todo)
    with ThreadPoolExecutor(workers) as pool:
        running: set[Future[None]] = set()
        while True:
            running |= {pool.submit(one, item) for item in islice(waiting, 2 * workers - len(running))}
            if not running:
                return
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                future.result()
                advance()


def _tasks(tasks: Iterable[Any]) -> Iterator[tuple[Any, Task]]:
    seen: set[tuple[object, str]] = set()
    for given in tasks:
        task = _task(given)
        key = (repr(task.scope), task.group)
        if key in seen:
            raise ValueError(
                f"two tasks share the group {task.group!r} in scope {task.scope!r}; give each its own"
            )
        seen.add(key)
        yield given, task


def _task(given: Any) -> Task:
    if isinstance(given, Task):
        return given
    if isinstance(given, tuple):
        return Task(*given)
    if isinstance(given, Mapping):
        return Task(given["query"], given.get("scope"), str(given["group"]))
    return Task(given.query, getattr(given, "scope", None), str(given.group))


def _round_id(task: Task, number: int) -> str:
    name = repr((task.scope if isinstance(task.scope, (str, type(None))) else str(task.scope), task.group))
    return f"{blake2b(name.encode('utf-8', 'surrogatepass'), digest_size=16).hexdigest()}-{number}"


def _scored(memory: RandomizedRetriever, metric: str) -> set[str]:
    outcomes = memory.log.outcomes().filter(pl.col("metric") == metric)
    return set(outcomes.select("round_id").collect().to_series().to_list())


@contextmanager
def progress_bar(name: str, total: int, shown: bool) -> Iterator[Callable[[], None]]:
    """Show a bar on a terminal's standard error; yields a function that advances it by one."""
    if not shown or total == 0:
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True, emoji=False)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task(name, total=total)
        yield lambda: bar.advance(task)
