"""One description of a retrieval, driven synchronously or asynchronously.

A retrieval is a generator that yields what it needs done and is sent the results: the order of steps is written
once, and neither driver can block the other's world.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from cmp.serving.backends import Backend

__all__ = ["Ask", "Compute", "Spawn", "Steps", "Wait", "listed", "run", "run_async"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ask:
    """Call a method of the backend: ``search``, ``list_ids``, ``get`` or ``revision``."""

    method: str
    args: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Compute:
    """Do something that may take long enough to hold an event loop up."""

    call: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait for a future; for at most some seconds, and then be sent ``otherwise``."""

    future: Future[Any]
    seconds: float | None = None
    otherwise: Any = None


@dataclass(frozen=True, slots=True)
class Spawn:
    """Drive other steps beside this retrieval, with the caller's context variables; nothing waits for them."""

    steps: Steps[None]


Step: TypeAlias = Ask | Compute | Wait | Spawn
Steps: TypeAlias = Generator[Step, Any, T]

#: Tasks spawned on event loops, which themselves keep no strong reference to a task.
_tasks: set[asyncio.Task[None]] = set()


def run(steps: Steps[T], backend: Backend) -> T:
    """Drive a retrieval in the calling thread."""
    try:
        step = next(steps)
        while True:
            try:
                value = _perform(step, backend)
            except BaseException as error:  # noqa: BLE001 (it is thrown into the generator, which decides)
                step = steps.throw(error)
            else:
                step = steps.send(value)
    except StopIteration as stop:
        result: T = stop.value
        return result


def _perform(step: Step, backend: Backend) -> Any:
    if isinstance(step, Wait):
        try:
            return step.future.result(step.seconds)
        except FutureTimeoutError:
            return step.future.result() if step.future.done() else step.otherwise
    if isinstance(step, Compute):
        return step.call()
    if isinstance(step, Spawn):
        _spawn_thread(step, backend)
        return None
    method = getattr(backend, step.method)
    if method is None:
        raise TypeError(
            f"this backend's {step.method} is asynchronous; await aretrieve(...) instead of retrieve(...)"
        )
    return listed(method(*step.args))


def _spawn_thread(step: Spawn, backend: Backend) -> None:
    context = copy_context()
    threading.Thread(
        target=context.run, args=(run, step.steps, backend), daemon=True, name="cmp-roster"
    ).start()


async def run_async(steps: Steps[T], backend: Backend) -> T:
    """Drive a retrieval on the event loop; what is synchronous runs in a thread with the caller's context variables.

    A cancellation is thrown into the generator like any error, so that it can withdraw what it had begun.
    """
    try:
        step = next(steps)
        while True:
            try:
                value = await _perform_async(step, backend)
            except BaseException as error:  # noqa: BLE001 (it is thrown into the generator, which decides)
                step = steps.throw(error)
            else:
                step = steps.send(value)
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        steps.close()


async def _perform_async(step: Step, backend: Backend) -> Any:
    if isinstance(step, Wait):
        waiting = asyncio.wrap_future(step.future)
        if step.seconds is None:
            return await waiting
        waiting.add_done_callback(_heard)
        done, _ = await asyncio.wait({waiting}, timeout=step.seconds)
        return waiting.result() if done else step.otherwise
    if isinstance(step, Compute):
        return await asyncio.to_thread(step.call)
    if isinstance(step, Spawn):
        if backend.alist_ids is None:  # what needs no loop must not end with it
            _spawn_thread(step, backend)
            return None
        task = asyncio.create_task(run_async(step.steps, backend))
        _tasks.add(task)
        task.add_done_callback(_tasks.discard)
        return None
    method = getattr(backend, f"a{step.method}")
    if method is not None:
        return listed(await method(*step.args))
    synchronous = getattr(backend, step.method)
    return await asyncio.to_thread(lambda: listed(synchronous(*step.args)))


def _heard(waiting: asyncio.Future[Any]) -> None:
    """Take note of an error that comes when nobody waits any more, which the loop would complain of."""
    if not waiting.cancelled():
        waiting.exception()


def listed(found: Any) -> Any:
    """Exhaust an iterator where it was made, so that its work and its errors belong to the step."""
    return list(found) if hasattr(found, "__next__") else found
