"""Fixtures of more than one area: both stores of a log, and the server behind one of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.servers import Server, running

# A machine that does other things as well is slow at times; no test is one of speed.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    with running() as server:
        yield server


@pytest.fixture
def postgres_url(postgres: Server) -> str:
    """A schema of one test."""
    return postgres.schema_url()


@pytest.fixture(params=["sqlite", "postgres"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> Path | str:
    """Where a log may lie: what is true of one store is true of the other."""
    return tmp_path if request.param == "sqlite" else request.getfixturevalue("postgres_url")
