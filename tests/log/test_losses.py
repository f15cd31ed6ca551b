"""What gathering loses or sets aside is seen: by who opens the log, by its checks, and after an export."""

from __future__ import annotations

import logging

import polars as pl
import pytest

import cmp
from cmp.errors import LogCorruptedError
from cmp.log import JsonlSink
from cmp.log.gathering import NAMED_AT_MOST, read_records
from tests.serving.stores import store, wrapped

#: A block, and of each round its draws, its hashes and its outcome.
LINES = 1 + 3 * 40

CONTRACT, ONE_OUTCOME = "log keeps its contract", "one outcome a round"


@pytest.fixture
def path(tmp_path):
    """A file of 40 rounds and their outcomes, behind the one block that they are of."""
    path = tmp_path / "x.jsonl"
    memory = wrapped(tmp_path, store(12), log=JsonlSink(path), allocation="uniform", random_slots=2)
    for number in range(40):
        memory.record(memory.retrieve("q", scope="s", round_id=f"r{number:02}").round_id, float(number % 2))
    memory.close()
    assert len(path.read_bytes().splitlines()) == LINES
    return path


def states(log):
    return dict(cmp.diagnose(log).frame.select("check", "state").iter_rows())


def rewritten(path, change):
    """Change the lines of a file, each with its number from 1."""
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(change(number, line) for number, line in enumerate(lines, start=1)))


def outcome(value, at, correct=False):
    fields = {"type": "outcome", "schema_version": 1, "round_id": "r00", "metric": "reward"}
    return {**fields, "value": value, "recorded_at": f"2126-01-01T00:00:0{at}+00:00", "correct": correct}


@pytest.mark.parametrize(
    "content",
    [
        b"# A project\n\nIts purpose.\n",
        b"no newline",
        b'{"round_id": "r1", "memory_id": "m1"}\n',
        b'{"crc32":"00000000","length":99,"record":{"ty\n{"crc32":"00000000","length":99,"record":{"ty',
        b"\x00\xff\xfe" * 100,
        b"\n\nsomething\n",
    ],
)
def test_a_file_without_one_whole_record_is_no_empty_log(tmp_path, content):
    path = tmp_path / "readme.jsonl"
    path.write_bytes(content)
    with pytest.raises(LogCorruptedError, match=r"readme.jsonl holds no record .* line 1 .*cmp\.read_jsonl"):
        cmp.open_log(path)


def test_one_such_file_among_others_is_named(path):
    other = path.with_name("other.jsonl")
    other.write_text("something else\n")
    with pytest.raises(LogCorruptedError, match=r"other\.jsonl"):
        cmp.log.read_jsonl(path, other)


@pytest.mark.parametrize("content", [b"", b"\n", b"\n \n"])
def test_a_file_that_nothing_was_written_to_is_an_empty_log(tmp_path, content):
    path = tmp_path / "x.jsonl"
    path.write_bytes(content)
    log = cmp.open_log(path)
    assert log.rounds().collect().height == 0
    assert cmp.validate_log(log) == []


def test_a_whole_file_has_no_findings(path):
    log = cmp.open_log(path)
    assert (log.torn, log.conflicts, cmp.validate_log(log)) == (0, 0, [])
    assert cmp.diagnose(log).passed


def test_a_last_record_that_a_crash_cut_short_is_counted_and_warned_of_and_no_fault(path, caplog):
    """Wherever within it: the file's end is what the crash left."""
    whole = path.read_bytes()
    last = len(whole.splitlines(keepends=True)[-1])
    for kept in range(1, last - 1, 7):
        path.write_bytes(whole[: len(whole) - last + kept])
        caplog.clear()
        with caplog.at_level(logging.WARNING, "cmp.log"):
            log = cmp.open_log(path)
        assert (log.torn, log.losses.cut, log.losses.torn) == (1, 1, 0)
        assert f"x.jsonl, line {LINES}: a record was cut short" in caplog.text
        assert cmp.validate_log(log) == []
    assert cmp.diagnose(log).passed


def test_the_first_record_of_all_may_be_cut_short_too(path):
    path.write_bytes(path.read_bytes()[:50])
    log = cmp.open_log(path)
    assert (log.rounds().collect().height, log.losses.cut) == (0, 1)


def test_other_torn_lines_are_findings_that_name_file_and_line(path, tmp_path):
    def halved(number, line):
        return line[: len(line) // 2] + b"\n" if number > 10 and number % 4 == 0 else line

    rewritten(path, halved)
    log = cmp.open_log(path)
    torn = [finding for finding in cmp.validate_log(log) if finding.table == "records"]
    assert log.torn == 28
    assert [finding.row for finding in torn] == [
        *(f"{path}, line {number}" for number in (12, 16, 20, 24, 28)),
        f"{28 - NAMED_AT_MOST} more",
    ]
    assert all("no whole record" in finding.problem and finding.mend for finding in torn)
    again = cmp.open_log(log.export(tmp_path / "out"))
    for each in (log, again):
        verdict = cmp.diagnose(each).frame.row(by_predicate=pl.col("check") == CONTRACT, named=True)
        assert (verdict["state"], verdict["figure"]) == ("FAIL", 28.0)
        assert verdict["detail"].startswith("28 findings: records: it is no whole record")
    assert [finding.row for finding in cmp.validate_log(again) if finding.table == "records"] == ["28 in all"]


def test_a_last_line_that_is_no_beginning_of_a_record_is_a_finding(path):
    path.write_bytes(path.read_bytes() + b"# the end")
    log = cmp.open_log(path)
    assert (log.losses.torn, log.losses.cut) == (1, 0)
    assert [finding.row for finding in cmp.validate_log(log)] == [f"{path}, line {LINES + 1}"]


def test_a_torn_last_line_with_its_newline_was_not_left_by_a_crash(path):
    path.write_bytes(path.read_bytes()[:-20] + b"\n")
    log = cmp.open_log(path)
    assert (log.losses.torn, log.losses.cut) == (1, 0)
    assert states(log)[CONTRACT] == "FAIL"


def test_each_of_several_files_may_end_in_a_record_cut_short(path):
    other = path.with_name("other.jsonl")
    other.write_bytes(path.read_bytes()[:-30])
    path.write_bytes(path.read_bytes()[:-30])
    log = cmp.log.read_jsonl(path, other)
    assert (log.torn, log.losses.cut, cmp.validate_log(log)) == (2, 2, [])


@pytest.mark.parametrize("kept", [1, 5, 9, 10, 30, 60, -2, -1])
def test_a_record_that_a_crash_cut_short_is_no_fault_once_the_process_is_started_again(path, caplog, kept):
    """It appends to the same line, and may crash again: each time one record is lost, and none behind it."""
    for value in (2.0, 3.0):
        whole = path.read_bytes().rstrip(b"\n")
        last = max(whole.rfind(b"\n"), whole.rfind(b'{"crc32":"') - 1) + 1
        path.write_bytes(whole[: last + kept] if kept > 0 else whole[:kept])
        JsonlSink(path).write(outcome(value, int(value), correct=True))
        JsonlSink(path).write(outcome(value + 0.5, int(value) + 4, correct=True))
    with caplog.at_level(logging.WARNING, "cmp.log"):
        log = cmp.open_log(path)
    assert (log.torn, log.losses.cut, log.losses.torn) == (2, 2, 0)
    assert "a record was cut short, as a crash leaves it, and is left out; so are 1 before it" in caplog.text
    found = log.outcomes().filter(pl.col("round_id") == "r00").collect()
    assert found["value"].to_list()[1:] == [2.0, 3.0, 3.5]
    assert cmp.validate_log(log) == []
    assert states(log)[CONTRACT] == "PASS"


@pytest.mark.parametrize(
    "torn",
    [
        b"# no record",
        b'"crc32":"00',
        b'{"crc32":"00000000","length":4,"record":{"a"}',  # as long as it says it is, and another one
        b'{"crc32":"00000000","length":4,"record":{"a":1}}',
    ],
)
def test_what_else_stands_before_a_record_on_its_line_is_a_finding(path, torn):
    rewritten(path, lambda number, line: torn + line if number == 7 else line)
    log = cmp.open_log(path)
    assert (log.losses.torn, log.losses.cut) == (1, 0)
    assert [finding.row for finding in cmp.validate_log(log)] == [f"{path}, line 7"]
    assert log.rounds().collect().height == 40


def test_outcomes_that_contradict_others_are_findings_and_fail(path, tmp_path):
    sink = JsonlSink(path)
    for at in range(7):
        sink.write(outcome(0.25, at))
    log = cmp.open_log(path)
    found = cmp.validate_log(log)
    assert log.conflicts == 7
    assert {finding.table for finding in found} == {"outcomes"}
    assert found[0].row == f"round_id 'r00', metric 'reward', value 0.25 ({path}, line {LINES + 1})"
    assert found[-1].row == f"{7 - NAMED_AT_MOST} more"
    assert "correct=True" in found[0].mend
    assert (states(log)[CONTRACT], states(log)[ONE_OUTCOME]) == ("FAIL", "FAIL")
    again = cmp.open_log(log.export(tmp_path / "out"))
    assert (states(again)[CONTRACT], states(again)[ONE_OUTCOME]) == ("FAIL", "FAIL")
    assert again.meta()["conflicts"] == "7"


def test_a_corrected_outcome_is_no_conflict(path):
    JsonlSink(path).write(outcome(0.25, 1, correct=True))
    log = cmp.open_log(path)
    assert (log.conflicts, cmp.validate_log(log)) == (0, [])
    assert states(log)[ONE_OUTCOME] == "PASS"


def test_a_round_that_drew_otherwise_when_asked_again_is_a_finding(path, tmp_path):
    memory = wrapped(tmp_path, store(9), log=JsonlSink(path), allocation="uniform", random_slots=2, seed=5)
    memory.retrieve("q", scope="s", round_id="r07")
    memory.close()
    log = cmp.open_log(path)
    found = cmp.validate_log(log)
    assert log.conflicts == 1
    assert [finding.row.partition(" (")[0] for finding in found] == ["round_id 'r07'"]
    assert found[0].table == "rounds"
    assert states(log)[CONTRACT] == "FAIL"
    assert states(log)[ONE_OUTCOME] == "PASS"


def test_records_lost_on_the_way_are_a_finding_where_the_gatherer_says_so():
    log = read_records([outcome(1.0, 0)], torn=3)
    assert [finding.row for finding in cmp.validate_log(log) if finding.table == "records"] == ["3 in all"]


def test_a_count_that_is_none_is_damage_of_the_export(path, tmp_path):
    target = cmp.open_log(path).export(tmp_path / "out")
    meta = target / "meta.json"
    meta.write_text(meta.read_text("utf-8").replace('"torn": "0"', '"torn": "few"'), "utf-8")
    with pytest.raises(LogCorruptedError, match=r"meta\.json cannot be read"):
        cmp.open_log(target)
