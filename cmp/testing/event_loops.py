"""One event loop for everything that a check awaits, in a thread of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

__all__ = ["EventLoop"]


class EventLoop:
    """Awaits from synchronous code, even where a loop is running already.

    It is one loop throughout, for a client may be bound to the loop that it was first used in.
    """

    def __enter__(self) -> EventLoop:
        self._thread = ThreadPoolExecutor(1)
        self._runner: asyncio.Runner | None = None
        return self

    def __exit__(self, *exception: object) -> None:
        if self._runner is not None:
            self._thread.submit(self._runner.close).result()
        self._thread.shutdown()

    def result_of(self, value: Any) -> Any:
        """Return a value, awaited where it is awaitable."""
        return self._thread.submit(self._run, value).result() if isinstance(value, Awaitable) else value

    def _run(self, awaitable: Awaitable[Any]) -> Any:
        if self._runner is None:
            self._runner = asyncio.Runner()

        async def wait() -> Any:
            return await awaitable

        return self._runner.run(wait())
