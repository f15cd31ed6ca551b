"""The command line: what it prints, what it writes, and how it ends."""

from __future__ import annotations

import io
import json
import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from rich.console import Console
from typer.testing import CliRunner

import cmp
import cmp.report
from cmp.cli.endings import app
from cmp.cli.output import Format, emit, show, without_formulas
from tests.damage import exposure
from tests.serving.stores import store, wrapped

runner = CliRunner()


@pytest.fixture
def log(tmp_path):
    memory = wrapped(tmp_path, store(8, ["m1", "m2"]), slots=3)
    for i in range(32):
        context = memory.retrieve("q", scope="s", group=f"q{i % 2}")
        memory.record(context.round_id, float("m5" in [document.id for document in context]))
    memory.close()
    return tmp_path / "x.db"


def run(*arguments, code=0):
    result = runner.invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    return result.stdout


def command(*arguments):
    return subprocess.run([sys.executable, "-m", "cmp", *map(str, arguments)], capture_output=True, text=True)


def test_the_demonstration_finds_what_the_ranker_never_reaches(tmp_path):
    path = tmp_path / "demo.db"
    output = run("demo", "--rounds", 60, "--log", path)
    assert "never own" in output
    assert "answer support" in output
    assert str(path) in output.replace("\n", "")
    random_slots = float(re.search(r"random slots, per question\s+(\d\.\d+)", output).group(1))
    ranker = float(re.search(r"ranker's own score, same memories\s+(\d\.\d+)", output).group(1))
    assert random_slots > 0.9 > ranker
    log = cmp.open_log(path)
    assert log.rounds().collect().height == 30 * 60
    assert cmp.validate_log(log) == []


def test_estimates_are_written_for_people_and_for_machines(log, tmp_path):
    assert "8 memories" in run("estimate", log)
    rows = json.loads(run("estimate", log, "--format", "json"))
    assert {row["memory_id"] for row in rows} == {f"m{i}" for i in range(8)}
    assert rows[0]["memory_id"] == "m5"
    run("estimate", log, "--by", "query", "--format", "parquet", "--output", tmp_path / "u.parquet")
    assert set(pl.read_parquet(tmp_path / "u.parquet")["group"]) == {"q0", "q1"}
    versions = json.loads(run("estimate", log, "--by", "version", "--outcome-range", "0", "1", "-f", "json"))
    assert {"content_hash", "bound_low", "bound_high"} <= set(versions[0])
    run("estimate", log, "-f", "csv", "-o", tmp_path / "u.csv")
    assert pl.read_csv(tmp_path / "u.csv").height == 8
    run("estimate", log, "-o", tmp_path / "u.txt")
    assert "m5" in (tmp_path / "u.txt").read_text()


def test_auc_and_support_read_labels(log, tmp_path):
    qrels = tmp_path / "labels.qrels"
    qrels.write_text("q0 0 m5 1\nq1 0 m5 1\nq1 0 nobody 1\n")
    rows = json.loads(run("auc", log, "--qrels", qrels, "--format", "json"))
    assert [row["compared"] for row in rows] == ["within query", "pooled"]
    assert rows[0]["auc"] == 1.0
    assert "never own" in run("support", log, "--qrels", qrels)
    assert json.loads(run("support", log, "--qrels", qrels, "--format", "json"))[0]["category"] == "all"


def test_findings_end_with_1(log):
    assert "no findings" in run("validate", log)
    with sqlite3.connect(log) as connection:
        connection.execute(f"UPDATE exposures SET propensity = 2 WHERE {exposure()}")
    connection.close()
    assert "no probability" in run("validate", log, code=1)
    assert json.loads(run("validate", log, "--format", "json", code=1))[0]["table"] == "exposures"


def test_an_export_reads_back(log, tmp_path):
    run("export", log, tmp_path / "out")
    assert json.loads(run("estimate", tmp_path / "out", "-f", "json")) == json.loads(
        run("estimate", log, "-f", "json")
    )


OPTIONS = {
    "demo": ["--data", "--conversation", "--slots", "--random-slots", "--rounds", "--log", "--seed"],
    "support": ["--qrels", "--data", "--retriever", "--cutoff", "--format"],
    "estimate": [
        "--by",
        "--metric",
        "--estimator",
        "--interval",
        "--reference",
        "--adjust",
        "--level",
        "--format",
    ],
    "auc": ["--qrels", "--by", "--within", "--format", "--output"],
    "validate": ["--format", "--output"],
    "export": ["--overwrite"],
}


@pytest.mark.parametrize("name", OPTIONS)
def test_every_command_has_a_help_that_names_its_options(name):
    text = run(name, "--help")
    assert [option for option in OPTIONS[name] if option not in text] == []


@pytest.mark.parametrize("name", ["estimate", "auc", "support", "validate", "export"])
def test_every_help_says_what_a_log_may_be_and_that_csv_marks_formulas(name):
    text = " ".join(run(name, "--help").replace("│", " ").split())
    for kind in ("SQLite", ".jsonl", "postgresql://", "cmpolicy export"):
        assert kind in text
    assert name == "export" or "apostrophe" in text


def test_a_file_of_records_is_a_log_as_the_help_says(tmp_path):
    path = tmp_path / "x.jsonl"
    memory = cmp.wrap(
        lambda query: ["a"], list_ids=lambda: "abcd", get=list, slots=2, random_slots=1, allocation="uniform",
        log=cmp.JsonlSink(path), scope=cmp.EVERYTHING, seed=1,
    )  # fmt: skip
    for number in range(20):
        memory.record(memory.retrieve("q").round_id, number % 2)
    memory.close()
    assert "4 memories" in run("estimate", path)


@pytest.mark.parametrize("width", [40, 80, 160])
@pytest.mark.parametrize("terminal", [True, False])
def test_no_digit_or_sign_of_a_table_is_ever_cut_off(width, terminal):
    numbers = {f"a_rather_long_name_{i}": [-0.123 - i, 125_000.5] for i in range(9)}
    frame = pl.DataFrame(
        {"memory_id": ["m" * 50, "n"], "n": [15_625_000_000, 1], **numbers, "reason": ["why " * 20, None]}
    )
    out = io.StringIO()
    show(frame, "title", Console(file=out, width=width, force_terminal=terminal, color_system=None))
    text = out.getvalue()
    assert "15625000000" in text
    assert all(f"{-0.123 - i:.3f}" in text for i in range(9))
    assert text.count("125000.500") == 9
    assert "".join(text.split()).count("m") >= 50


@pytest.mark.parametrize(
    "stray", [("--data", "d", "--qrels", "q"), ("x.db", "--cutoff", "3"), ("x.db", "--retriever", "dense")]
)
def test_options_that_would_be_ignored_are_refused(stray):
    assert "does not go with" in runner.invoke(app, ["support", *stray]).stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("estimate", "absent.db"), "there is no log at"),
        (("estimate",), "Missing argument"),
        (("support",), "give either a log, or --data"),
        (("demo", "--data", "absent.json"), "absent.json"),
        (("demo", "--random-slots", "9"), "more random slots than slots"),
    ],
)
def test_a_wrong_call_ends_with_2_and_one_line(tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    result = command(*arguments)
    assert result.returncode == 2
    assert message in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr


def test_spreadsheet_formulas_are_defused_in_csv():
    frame = pl.DataFrame({"memory_id": ["=1+1", "+x", "-x", "@x", "\tx", "m1"], "utility": [-1.0] * 6})
    assert without_formulas(frame)["memory_id"].to_list() == ["'=1+1", "'+x", "'-x", "'@x", "'\tx", "m1"]
    assert without_formulas(frame)["utility"].to_list() == [-1.0] * 6


def test_control_characters_and_markup_in_ids_do_not_reach_the_terminal(tmp_path):
    output = run("estimate", logged(tmp_path / "h.db", ["\x1b[31mred", "[bold]loud[/]", "a\nb"]))
    assert "\x1b[31m" not in output
    assert "[bold]loud[/]" in output


def logged(path, ids):
    """Return the path of a log whose memories have these ids."""
    memory = cmp.wrap(
        lambda query: [],
        list_ids=lambda: ids,
        get=lambda ids: list(ids),
        slots=1,
        random_slots=1,
        log=path,
        scope=cmp.EVERYTHING,
    )
    for _ in range(9):
        memory.record(memory.retrieve("q").round_id, 1.0)
    memory.close()
    return path


@pytest.mark.skipif(sys.platform == "win32", reason="no colons in file names there")
def test_ids_paths_and_messages_hold_no_emoji(tmp_path):
    ids = ["user:memo:1", "user:key:2", "doc:end:5"]
    path = logged(tmp_path / "x.db", ids)
    run("estimate", path, "-o", tmp_path / "table.txt")
    for text in (run("estimate", path), (tmp_path / "table.txt").read_text("utf-8")):
        assert all(each in text for each in ids)
    assert "run:key:1" in run("export", path, tmp_path / "run:key:1").replace("\n", "")
    assert "no:key:1.db" in command("estimate", tmp_path / "no:key:1.db").stderr


def test_a_title_holds_no_control_character_and_no_markup():
    text = io.StringIO()
    show(pl.DataFrame({"a": ["x" * 60]}), "of \x1b[2J[bold]all[/]\nand more", Console(file=text, width=80))
    lines = [line.rstrip() for line in text.getvalue().splitlines()]
    assert lines[:2] == ["of \N{REPLACEMENT CHARACTER}[2J[bold]all[/]", "and more"]


@pytest.mark.parametrize("kind", Format)
def test_a_file_that_cannot_be_written_whole_is_left_as_it_was(tmp_path, kind):
    """The disk is as good as full: a file may have no more than some bytes."""
    resource = pytest.importorskip("resource")
    frame = pl.DataFrame({"memory_id": [f"m{number}" for number in range(4000)]})
    target = tmp_path / "out"
    emit(frame, kind, target, "title")
    before = target.read_bytes()
    held = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, held[1]))
    try:
        with pytest.raises(OSError, match=r"too large.*/out'$"):
            emit(frame, kind, target, "title")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, held)
    assert target.read_bytes() == before
    assert list(tmp_path.iterdir()) == [target]


def test_a_report_that_cannot_be_written_whole_leaves_the_last_one(log, tmp_path):
    resource = pytest.importorskip("resource")
    target = tmp_path / "report.html"
    exported = cmp.open_log(
        cmp.open_log(log).export(tmp_path / "exported")
    )  # SQLite's own files are not to fail
    cmp.report.write_report(exported, target)
    before = target.read_bytes()
    held = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, held[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            cmp.report.write_report(exported, target)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, held)
    assert target.read_bytes() == before


@pytest.mark.skipif(sys.platform == "win32", reason="no such links, modes and devices there")
def test_an_output_may_be_a_link_a_device_or_a_file_with_its_own_permissions(tmp_path):
    frame = pl.DataFrame({"a": [1]})
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_text("before")
    real.chmod(0o640)
    link.symlink_to(real)
    for target in (link, Path("/dev/null")):
        emit(frame, Format.csv, target, "title")
    assert (real.read_text(), link.is_symlink(), real.stat().st_mode & 0o777) == ("a\n1\n", True, 0o640)
    assert Path("/dev/null").is_char_device()


def test_an_output_in_no_folder_names_the_file_that_was_asked_for(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none.*out\.csv'$") as raised:
        emit(pl.DataFrame({"a": [1]}), Format.csv, tmp_path / "none" / "out.csv", "title")
    assert "partial" not in str(raised.value)
