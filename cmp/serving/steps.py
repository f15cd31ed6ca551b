"""One description of a retrieval, driven synchronously or asynchronously.

A retrieval is a generator that yields what it needs done and is sent the results: the order of steps is written
once, and neither driver can block the other's world.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from cmp.serving.backends import Backend

__all__ = ["Ask", "Compute", "Steps", "Write", "run", "run_async"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ask:
    """Call a method of the backend: ``search``, ``list_ids`` or ``get``."""

    method: str
    args: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Compute:
    """Do something that may take long enough to hold an event loop up."""

    call: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Write:
    """Hand something to the log and wait until it is durable."""

    start: Callable[[], Future[Any]]


Step: TypeAlias = Ask | Compute | Write
Steps: TypeAlias = Generator[Step, Any, T]


def run(steps: Steps[T], backend: Backend) -> T:
    """Drive a retrieval in the calling thread."""

    def perform(step: Step) -> Any:
        if isinstance(step, Write):
            return step.start().result()
        if isinstance(step, Compute):
            return step.call()
        method = getattr(backend, step.method)
        if method is None:
            raise TypeError(
                f"this backend's {step.method} is asynchronous; await aretrieve(...) instead of retrieve(...)"
            )
        return _listed(method(*step.args))

    try:
        step = next(steps)
        while True:
            try:
                value = perform(step)
            except Exception as error:  # noqa: BLE001 (it is thrown into the generator, which decides)
                step = steps.throw(error)
            else:
                step = steps.send(value)
    except StopIteration as stop:
        result: T = stop.value
        return result


async def run_async(steps: Steps[T], backend: Backend) -> T:
    """Drive a retrieval on the event loop; what is synchronous runs in a thread with the caller's context variables."""

    async def perform(step: Step) -> Any:
        if isinstance(step, Write):
            return await asyncio.wrap_future(step.start())
        if isinstance(step, Compute):
            return await asyncio.to_thread(step.call)
        method = getattr(backend, f"a{step.method}")
        if method is not None:
            return _listed(await method(*step.args))
        synchronous = getattr(backend, step.method)
        return await asyncio.to_thread(lambda: _listed(synchronous(*step.args)))

    try:
        step = next(steps)
        while True:
            try:
                value = await perform(step)
            except Exception as error:  # noqa: BLE001 (it is thrown into the generator, which decides)
                step = steps.throw(error)
            else:
                step = steps.send(value)
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        steps.close()


def _listed(found: Any) -> Any:
    """Exhaust an iterator where it was made, so that its work and its errors belong to the step."""
    return list(found) if hasattr(found, "__next__") else found
