"""Child processes: forks of a server that has imported everything, so that hundreds are cheap."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable
from multiprocessing.process import BaseProcess
from typing import Any

__all__ = ["barrier", "joined", "started"]

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["experiments.fault_writer", "experiments.benchmark_workers"])


def started(function: Callable[..., object], *arguments: Any, **keywords: Any) -> BaseProcess:
    """Start a function in a process of its own."""
    process = _context.Process(target=function, args=arguments, kwargs=keywords)
    process.start()
    return process


def barrier(parties: int) -> Any:
    """Return a barrier that child processes can be handed."""
    return _context.Barrier(parties, timeout=180)


def joined(processes: Iterable[BaseProcess]) -> None:
    """Wait for processes that nobody kills."""
    for process in processes:
        process.join()
        if process.exitcode:
            raise RuntimeError(f"{process.name} ended with {process.exitcode}")
