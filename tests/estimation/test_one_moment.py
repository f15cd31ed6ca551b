"""A log that was read is a log: it says what the log said at that moment, and knows what was lost before."""

from __future__ import annotations

import pytest
from polars.testing import assert_frame_equal

import cmp
from cmp.estimation.one_moment import ReadLog, as_of_one_moment
from cmp.log.gathering import read_records
from cmp.log.schema import TABLES
from tests.serving.stores import store, wrapped


@pytest.fixture
def memory(tmp_path):
    memory = wrapped(tmp_path, store(8), random_slots=2)
    ask(memory, 30)
    yield memory
    memory.close()


def ask(memory, rounds):
    for number in range(rounds):
        memory.record(memory.retrieve("q", scope="s").round_id, float(number % 2))
    memory.flush()


def test_what_was_read_says_the_same_whatever_is_written_behind_it(memory):
    before = {table: memory.log.scan(table).collect() for table in TABLES}
    found = cmp.diagnose(memory.log).frame, cmp.utilities(memory.log).frame
    read = as_of_one_moment(memory.log)
    ask(memory, 10)
    assert memory.log.rounds().collect().height == 40
    for table in TABLES:
        assert_frame_equal(read.scan(table).collect(), before[table])
    assert_frame_equal(cmp.diagnose(read).frame, found[0])
    assert_frame_equal(cmp.utilities(read).frame, found[1])
    assert read.meta() == memory.log.meta()
    assert cmp.validate_log(read) == []
    assert as_of_one_moment(read) is read
    assert repr(read) == "ReadLog(30 rounds)"


def test_what_was_lost_before_is_not_forgotten_by_reading():
    record = {"type": "outcome", "schema_version": 1, "round_id": "r", "metric": "reward", "value": 1.0}
    record |= {"recorded_at": "2026-01-01T00:00:00+00:00", "correct": False}
    log = read_records([record, {**record, "value": 2.0}], torn=3)
    read = ReadLog(log, log.losses)
    assert [str(one) for one in cmp.validate_log(read)] == [str(one) for one in cmp.validate_log(log)]
    assert_frame_equal(cmp.diagnose(read).frame, cmp.diagnose(log).frame)


def test_a_log_that_nobody_writes_to_is_returned_as_it_is(memory, tmp_path):
    log = cmp.open_log(memory.log.export(tmp_path / "out"))
    assert as_of_one_moment(log) is log
