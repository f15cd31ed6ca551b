"""The commands that judge: what they print and write, and how they end."""

from __future__ import annotations

import csv
import io
import json
import sqlite3
import time

import polars as pl
import pytest
from rich.console import Console
from typer.testing import CliRunner

import cmp
from cmp.cli.endings import app
from cmp.cli.output import working
from cmp.evaluation.diagnostics import CHECKS
from tests.cli.test_commands import command, run
from tests.damage import exposure
from tests.serving.stores import store, wrapped

runner = CliRunner()


@pytest.fixture
def log(tmp_path):
    memory = wrapped(tmp_path, store(8, ["m1", "m2"]), slots=3, random_slots=2, reference_cards=3)
    for i in range(66):
        context = memory.retrieve("q", scope="s", group=f"q{i % 2}")
        memory.record(context.round_id, float("m5" in [document.id for document in context]))
    memory.close()
    return tmp_path / "x.db"


def break_a_propensity(log):
    where = exposure("arm = 'random'")
    with sqlite3.connect(log) as connection:
        connection.execute(f"UPDATE exposures SET propensity = 0.5 WHERE {where}")
    connection.close()


def test_a_log_that_keeps_its_design_ends_with_0_and_a_broken_one_with_1(log):
    table = run("diagnose", log)
    assert f"{len(CHECKS)} checks" in table
    assert "0 FAIL" in table
    break_a_propensity(log)
    result = runner.invoke(app, ["diagnose", str(log)])
    assert result.exit_code == 1
    assert "FAIL propensities are those of the design: Log the probability" in result.stderr
    rows = json.loads(run("diagnose", log, "--format", "json", code=1))
    assert {row["check"]: row["state"] for row in rows}["propensities are those of the design"] == "FAIL"


def test_a_diagnosis_is_written_for_machines(log, tmp_path):
    run("diagnose", log, "-f", "parquet", "-o", tmp_path / "d.parquet")
    assert pl.read_parquet(tmp_path / "d.parquet")["check"].to_list() == list(CHECKS)
    rows = list(csv.DictReader(io.StringIO(run("diagnose", log, "-f", "csv"))))
    assert [row["check"] for row in rows] == list(CHECKS)
    run("diagnose", log, "-o", tmp_path / "d.txt")
    assert "sample ratio" in (tmp_path / "d.txt").read_text("utf-8")


def test_formulas_in_ids_do_not_run_from_a_diagnosis_in_csv(tmp_path):
    """The scope is the one column of a diagnosis that holds another's text at its beginning."""
    memory = wrapped(tmp_path, store(4, scope="=cmd()"), slots=2, random_slots=1)
    for _ in range(3):
        memory.retrieve("q", scope="=cmd()")
    memory.close()
    with sqlite3.connect(tmp_path / "x.db") as connection:
        connection.execute("UPDATE exposures SET propensity = 0.9 WHERE arm = 'random'")
    connection.close()
    rows = list(csv.DictReader(io.StringIO(run("diagnose", tmp_path / "x.db", "-f", "csv", code=1))))
    assert "'=cmd()" in {row["scope"] for row in rows}
    assert not any(value.startswith(("=", "+", "@")) for row in rows for value in row.values())


def test_a_plan_is_said_in_words_and_in_a_table(tmp_path):
    text = run("plan", "--effect", "0.3", "--rounds", "90")
    assert "320 rounds for 80%" in text
    assert "exposures_least" in text
    rows = json.loads(run("plan", "--sd", "0.3", "--reference-cards", "auto", "-f", "json"))
    assert [row["rounds"] for row in rows] == [22, 45, 90, 180, 360, 720]
    run("plan", "-f", "csv", "-o", tmp_path / "p.csv")
    assert pl.read_csv(tmp_path / "p.csv").height == 6


def test_forgetting_is_advised_with_its_reasons_and_nothing_is_deleted(log):
    before = cmp.open_log(log).rosters().collect()
    text = run("forget", log, "--irreversibility", "20")
    assert "of 8 memories cost less to forget; nothing was deleted" in text
    rows = json.loads(run("forget", log, "-f", "json"))
    assert {row["decision"] for row in rows} <= {"keep", "forget"}
    assert {row["memory_id"]: row["decision"] for row in rows}["m5"] == "keep"
    assert cmp.open_log(log).rosters().collect().equals(before)


def test_a_report_is_written(log, tmp_path):
    labels = tmp_path / "labels.qrels"
    labels.write_text("q0 0 m5 1\n")
    assert "report.html" in run("report", log, "-o", tmp_path / "report.html").replace("\n", "")
    run("report", log, "-o", tmp_path / "q.html", "--by", "query", "--qrels", labels, "--reference", "card")
    assert "never own" in (tmp_path / "q.html").read_text("utf-8")


OPTIONS = {
    "diagnose": ["--metric", "--level", "--format", "--output"],
    "plan": ["--n-memories", "--effect", "--sd", "--reference-cards", "--family", "--power", "--format"],
    "forget": ["--irreversibility", "--by", "--metric", "--format"],
    "report": ["--output", "--by", "--reference", "--qrels", "--level"],
    **{name: ["--help"] for name in ("demo", "estimate", "auc", "support", "validate", "export")},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_every_help_names_its_options_and_ends_with_calls_to_copy(name):
    text = run(name, "--help")
    assert [option for option in OPTIONS[name] if option not in text] == []
    _, _, calls = text.partition("Examples:")
    assert f"cmpolicy {name}" in calls
    assert not any("cmpolicy" in line.strip()[1:] for line in calls.splitlines())  # a line each


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("diagnose", "absent.db"), "there is no log at"),
        (("report", "absent.db"), "there is no log at"),
        (("plan", "--effect", "0.9"), "no rate of successes"),
        (("plan", "-N", "1"), "randomizes nothing"),
        (("plan", "--reference-cards", "some"), "no number of cards"),
        (("forget", "absent.db", "--irreversibility", "0.5"), "irreversibility"),
    ],
)
def test_a_wrong_call_ends_with_2_and_one_line(tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    result = command(*arguments)
    assert result.returncode == 2
    assert message in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr


def test_nothing_is_decided_on_utilities_relative_to_the_pool(tmp_path):
    memory = wrapped(tmp_path, store(4), slots=2, random_slots=1)
    memory.record(memory.retrieve("q", scope="s").round_id, 1.0)
    memory.close()
    result = command("forget", tmp_path / "x.db")
    assert result.returncode == 2
    assert "no reference cards" in " ".join(result.stderr.split())


def test_an_outcome_that_the_log_does_not_hold_is_named(log):
    result = command("diagnose", log, "--metric", "clicks")
    assert result.returncode == 2
    assert "it has 'reward'" in result.stderr


@pytest.mark.parametrize("terminal", [True, False])
def test_work_that_lasts_shows_itself_on_a_terminal_only(terminal):
    out = io.StringIO()
    with working("estimating", Console(file=out, force_terminal=terminal, width=60)):
        time.sleep(0.25)
    assert ("estimating" in out.getvalue()) == terminal


def test_estimates_take_a_window_and_leave_out_what_carries_over(log):
    every = json.loads(run("estimate", log, "--carryover", "exclude", "--window", "1", "-f", "json"))
    assert sum(row["n_exposed"] for row in every) > 0
    # a microsecond
    none = json.loads(run("estimate", log, "--window", "1.2e-11", "-f", "json"))
    assert {row["state"] for row in none} <= {"NO_OUTCOMES", "ALWAYS_RANKED"}


@pytest.mark.parametrize("option", [("--strata", "query"), ("--engine", "duckdb")])
def test_estimates_say_what_is_compared_within_and_what_reads_the_rows(log, option):
    plain, other = (json.loads(run("estimate", log, *more, "-f", "json")) for more in ((), option))
    assert plain
    exposed = [sorted((row["memory_id"], row["n_exposed"]) for row in rows) for rows in (plain, other)]
    assert exposed[0] == exposed[1]


def test_an_interval_that_is_unknown_is_answered_with_those_that_are(log):
    result = command("estimate", log, "--interval", "magic")
    assert result.returncode == 2
    assert "'moderated'" in result.stderr
