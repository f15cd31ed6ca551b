"""A service whose blocks never open, or whose catalogue has begun to hang, is told from one that has just begun."""

from __future__ import annotations

import threading

import pytest

from tests.evaluation.served import damage, verdict
from tests.serving.stores import Store, documents, wrapped

WAIT = 0.05
"""Seconds that a round waits for its block."""

WHOLE_TEST = 60.0
"""Seconds."""

MINUTE = 60_000_000
"""In the units that SQLite keeps times in, microseconds."""


class Hanging(Store):
    """A store that searches, and from some moment on takes for ever to list its memories."""

    answers = threading.Event()

    def list_ids(self, *, scope):
        assert self.answers.wait(WHOLE_TEST)
        return super().list_ids(scope=scope)


@pytest.fixture
def base():
    held = Hanging({"s": documents(6)}, ["m1"])
    held.answers = threading.Event()
    yield held
    held.answers.set()


def without_a_block(folder, base, *, served_before: int):
    """Serve some rounds, a block of them, then two more while the next one waits for the list of memories."""
    settings = {"random_slots": 1, "rounds_per_block": max(served_before, 1), "log": folder / "x.db"}
    base.answers.set()
    memory = wrapped(folder, base, **settings)
    for number in range(served_before):
        assert memory.retrieve("q", scope="s", round_id=f"a{number}").randomized
    base.answers.clear()
    memory = wrapped(folder, base, log_timeout=WAIT, **settings)
    for number in range(2):
        assert memory.retrieve("q", scope="s", round_id=f"b{number}").fallback_reason == "block_preparing"
    return memory


@pytest.mark.parametrize("served_before", [0, 6])
def test_a_scope_that_has_waited_for_its_block_too_long_is_a_failure(tmp_path, base, served_before):
    memory = without_a_block(tmp_path, base, served_before=served_before)
    assert verdict(memory.log, "rounds are randomized")["state"] == "PASS"  # it may be about to open
    damage(memory, f"UPDATE rounds SET asked_at = asked_at + {11 * MINUTE} WHERE round_id = 'b1'")
    found = verdict(memory.log, "rounds are randomized")
    assert found["state"] == "FAIL"
    assert found["scope"] == "s"
    assert "1 scopes wait for a block" in found["detail"]
    assert "No block was opened in 0:10:00" in found["mend"]


def test_a_wait_that_is_over_is_none(tmp_path, base):
    memory = without_a_block(tmp_path, base, served_before=6)
    damage(
        memory,
        f"UPDATE rounds SET asked_at = asked_at + {11 * MINUTE} WHERE round_id = 'b1'",
        f"UPDATE rounds SET asked_at = asked_at + {12 * MINUTE} WHERE round_id = 'a5'",
    )
    assert verdict(memory.log, "rounds are randomized")["state"] == "PASS"
