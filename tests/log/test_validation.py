"""Every kind of damage to a log is found, and the finding names table, row and mend."""

from __future__ import annotations

import sqlite3

import pytest

import cmp
from tests.damage import exposure
from tests.serving.stores import store, wrapped


@pytest.fixture
def memory(tmp_path):
    memory = wrapped(tmp_path, store(12, ["m1", "m2", "m3"]), slots=3, random_slots=2)
    for i in range(30):
        context = memory.retrieve("q", scope="s", round_id=f"r{i:02}")
        memory.record(context.round_id, float(i % 2))
    yield memory
    memory.close()


def test_the_uniform_design_has_no_table_and_no_last_row(tmp_path):
    memory = wrapped(tmp_path, store(3), allocation="uniform", random_slots=2)
    for _ in range(7):
        memory.retrieve("q", scope="s")
    assert cmp.validate_log(memory.log) == []
    breaker = sqlite3.connect(tmp_path / "x.db")
    breaker.execute("UPDATE rosters SET planned = 1 WHERE memory_id = 'm1'")
    breaker.commit()
    assert "the exposures planned" in " ".join(map(str, cmp.validate_log(memory.log)))


DAMAGE = {
    "propensity is no probability": f"UPDATE exposures SET propensity = 1.5 WHERE {exposure()}",
    "arm is unknown": f"UPDATE exposures SET arm = 'lucky' WHERE {exposure()}",
    "value is not finite": "UPDATE outcomes SET value = 9e999 WHERE round_id = 'r03'",
    "it is an orphan": "UPDATE outcomes SET round_id = 'gone' WHERE round_id = 'r03'",
    "its round is not in the log": f"UPDATE exposures SET round_id = 'gone' WHERE {exposure()}",
    "its block is not in the log": "DELETE FROM blocks WHERE rowid = 1",
    "its block belongs to another scope": "UPDATE rounds SET scope = 't' WHERE round_id = 'r03'",
    "it does not hold k assigned": f"DELETE FROM exposures WHERE {exposure('assigned')}",
    "drawn from outside its block's roster": "UPDATE exposures SET memory_id = 'zz' WHERE "
    + exposure("arm = 'random'"),
    "propensity is not planned / length": "UPDATE exposures SET propensity = 0.5 WHERE arm = 'random'",
    "row is not in its block's table": "UPDATE rounds SET block_row = 99 WHERE round_id = 'r03'",
    "row of the table was used twice": "UPDATE rounds SET block_row = 1 WHERE round_id = 'r03'",
    "table does not hold the exposures planned": "UPDATE rosters SET planned = planned + 1 WHERE memory_id = 'm4'",
    "it cannot be read": "DROP TABLE outcomes",
    "table rounds of": "UPDATE rounds SET fallback_reason = CAST(x'41ff42' AS TEXT) WHERE round_id = 'r03'",
    "holds a text that is not UTF-8": "UPDATE rosters SET memory_id = CAST(x'41ff42' AS TEXT) WHERE position = 0",
}


def test_a_log_written_by_the_wrapper_has_no_findings(memory):
    assert cmp.validate_log(memory.log) == []


@pytest.mark.parametrize("problem", DAMAGE)
def test_damage_is_found_and_named(memory, problem):
    with sqlite3.connect(memory.log.path) as connection:
        connection.execute(DAMAGE[problem])
    connection.close()
    findings = cmp.validate_log(memory.log)
    found = [finding for finding in findings if problem in finding.problem]
    assert found
    assert found[0].mend
    assert found[0].row
    assert problem in str(found[0])


def test_copies_of_a_row_are_found_in_an_export(memory, tmp_path):
    target = memory.log.export(tmp_path / "out")
    (target / "rounds" / "copy.parquet").write_bytes((target / "rounds" / "part-00000.parquet").read_bytes())
    findings = cmp.validate_log(cmp.open_log(target))
    repeated = [finding for finding in findings if "more than once" in finding.problem]
    assert len(repeated) == 21
    assert repeated[-1].row == "10 more rows"
    assert "round_id 'r00'" in repeated[0].row
