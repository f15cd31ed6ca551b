"""The command line: what it prints, what it writes, and how it ends."""

from __future__ import annotations

import io
import json
import re
import sqlite3
import subprocess
import sys

import polars as pl
import pytest
from rich.console import Console
from typer.testing import CliRunner

import cmp
from cmp.cli import app
from cmp.cli.output import show, without_formulas
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
    hostile = ["\x1b[31mred", "[bold]loud[/]", "a\nb"]
    memory = cmp.wrap(
        lambda query: [],
        list_ids=lambda: hostile,
        get=lambda ids: list(ids),
        slots=1,
        random_slots=1,
        log=tmp_path / "h.db",
        scope=cmp.EVERYTHING,
    )
    for _ in range(9):
        memory.record(memory.retrieve("q").round_id, 1.0)
    memory.close()
    output = run("estimate", tmp_path / "h.db")
    assert "\x1b[31m" not in output
    assert "[bold]loud[/]" in output
