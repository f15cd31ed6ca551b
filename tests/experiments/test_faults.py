"""The accounting of the fault suite finds what it is there to find; else its zeros would mean nothing."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from cmp.log import open_log
from experiments.fault_account import SHOULD_BE_ZERO, Account, account, read_notes
from experiments.fault_writer import Notes, Store, wrapped
from tests.damage import exposure


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A log and what its writer was told: 50 rounds of two blocks, and 10 of another scope."""
    memory = wrapped(Store({"a": 40, "b": 9}), tmp_path / "x.db", seed=1)
    with memory, Notes(tmp_path / "w.notes", "w") as notes:
        for number in range(60):
            notes.ask(memory, "b" if number % 6 == 5 else "a")
    return tmp_path


def figures(folder: Path) -> Account:
    return account(open_log(folder / "x.db"), read_notes(folder.glob("*.notes")))


def test_a_log_nothing_happened_to_is_clean(folder: Path) -> None:
    found = figures(folder)
    assert found.is_clean
    assert (found.requests, found.acknowledged, found.unlogged, found.rounds) == (60, 60, 0, 60)
    assert (found.blocks, found.orphan_rosters) == (4, 0)


DAMAGE = {
    "lost": "DELETE FROM rounds WHERE round_id = 'w-3'; DELETE FROM exposures WHERE round_id = 'w-3'",
    "half_rounds": f"DELETE FROM exposures WHERE {exposure('assigned')}",
    "slots_without_row": "DELETE FROM exposures WHERE " + exposure("arm = 'random'"),
    "foreign_ids": "UPDATE exposures SET memory_id = 'b/1' WHERE " + exposure("round_id = 'w-0'"),
    "imbalance": "UPDATE rounds SET block_row = 10000 WHERE round_id = 'w-4'",
    "other_findings": f"UPDATE exposures SET arm = 'lucky' WHERE {exposure()}",
}


@pytest.mark.parametrize(("figure", "statements"), DAMAGE.items())
def test_each_kind_of_damage_shows_in_its_figure(folder: Path, figure: str, statements: str) -> None:
    with closing(sqlite3.connect(folder / "x.db")) as connection:
        connection.executescript(statements)
    found = figures(folder)
    assert getattr(found, figure) > 0
    assert not found.is_clean


def test_requests_that_fail_and_random_memories_nobody_logged_are_counted(folder: Path) -> None:
    told = {
        "round_id": "x",
        "ms": 1.0,
        "scope": "a",
        "randomized": False,
        "fallback": "log_failed",
        "served": 6,
    }
    lines = [told | {"random": ["a/1"]}, {"round_id": "y", "ms": 1.0, "error": "KeyError: 'y'"}]
    (folder / "x.notes").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = figures(folder)
    assert (found.slots_without_row, found.failed_requests, found.unlogged, found.lost) == (1, 1, 1, 0)


def test_a_line_torn_by_a_kill_acknowledges_nothing(folder: Path) -> None:
    with (folder / "w.notes").open("a") as stream:
        stream.write('{"round_id": "w-60", "ms"')
    assert figures(folder).requests == 60


def test_every_figure_that_should_be_zero_can_be_damaged() -> None:
    assert set(DAMAGE) | {"failed_requests"} == set(SHOULD_BE_ZERO)
