"""How the command ends, as a shell sees it: its exit code, and a line for whatever went wrong."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import polars as pl
import pytest

import cmp
from cmp.cli import endings
from tests.cli.test_commands import command
from tests.serving.stores import store, wrapped

#: A command is at work within this; it takes under two seconds on a machine of its own.
AT_WORK_SECONDS = 60.0

FULL = Path("/dev/full")
WINDOWS = sys.platform == "win32"


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    folder = tmp_path_factory.mktemp("log")
    memory = wrapped(folder, store(8, ["m1", "m2"]), slots=3)
    for number in range(16):
        memory.record(memory.retrieve("q", scope="s").round_id, float(number % 2))
    memory.close()
    return folder / "x.db"


def one_line(result, code=2):
    """Return the one line of standard error."""
    assert result.returncode == code, result.stderr
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    return lines[0]


def damaged_export(log, folder):
    cmp.open_log(log).export(folder)
    (path,) = (folder / "outcomes").glob("*.parquet")
    pl.read_parquet(path).with_columns(value=pl.lit("yes")).write_parquet(path)
    return folder


@pytest.mark.parametrize("days", ["1e12", "inf", "1e9"])
def test_a_window_that_is_no_span_of_days_is_a_wrong_call(log, days):
    said = one_line(command("estimate", log, "--window", days))
    assert "--window" in said
    assert "999,999,999" in said


def test_a_long_window_takes_every_outcome(log):
    plain, windowed = (command("estimate", log, *more) for more in ((), ("--window", "1e6")))
    assert windowed.returncode == 0, windowed.stderr
    assert windowed.stdout == plain.stdout


def test_a_relevance_that_no_label_holds_is_named_with_its_line(log, tmp_path):
    (tmp_path / "q").write_text("q 0 m1 99999999999999999999999\n")
    assert "line 1 of q" in one_line(command("auc", log, "--qrels", tmp_path / "q"))


@pytest.mark.parametrize("name", ["estimate", "export"])
def test_a_table_whose_values_are_no_numbers_is_a_failure_and_no_finding(log, tmp_path, name):
    folder = damaged_export(log, tmp_path / "e")
    said = one_line(command(name, folder, *([tmp_path / "to"] if name == "export" else [])))
    assert "value" in said
    assert "cmpolicy validate" in said
    assert command("validate", folder).returncode == 1


@pytest.mark.parametrize(
    ("table", "column"), [("rounds", "attempts"), ("rounds", "group"), ("outcomes", "value")]
)
def test_a_column_that_a_log_lacks_is_named_and_never_read_as_its_own_name(log, tmp_path, table, column):
    """SQLite takes a quoted name that is no column for a text."""
    path = tmp_path / "x.db"
    shutil.copy(log, path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f'ALTER TABLE {table} DROP COLUMN "{column}"')
        connection.commit()
    assert column in one_line(command("estimate", path))
    result = command("validate", path)
    assert result.returncode == 1
    assert column in result.stdout


@pytest.mark.parametrize("name", ["estimate", "validate"])
def test_what_a_hostile_log_holds_does_not_act_on_the_terminal(log, tmp_path, name):
    hostile = "\x1b]0;owned\x07\x1b[2J\x9b"
    folder = tmp_path / "evil"
    folder.mkdir()
    (folder / "meta.json").write_text(json.dumps({"schema_version": hostile}), "utf-8")
    path = tmp_path / "x.db"
    shutil.copy(log, path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE outcomes SET value = ?", (hostile,))
        connection.commit()
    for each in (folder, path):
        result = command(name, each)
        assert "owned" in result.stdout + result.stderr
        assert not set(result.stdout + result.stderr) & set("\x1b\x07\x9b")


@pytest.mark.parametrize("text", ["a\x1b[2Jb", "a\x9bb", "a\u202eb", "a:memo:b\x07", "[red]a\x00[/]"])
def test_a_message_holds_no_control_character(text, monkeypatch, capsys):
    def failing(**_):
        raise ValueError(text)

    monkeypatch.setattr(endings, "app", failing)
    with pytest.raises(SystemExit):
        endings.main()
    (line,) = capsys.readouterr().err.splitlines()
    seen = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
    assert line == f"ValueError: {seen}"


def test_a_file_that_is_no_log_is_said_in_a_line_however_long(tmp_path):
    path = tmp_path / ("long" * 40 + ".db")
    path.write_text("hello\n" * 100)
    assert "cannot be read as a log" in one_line(command("diagnose", path))


@pytest.mark.parametrize(
    ("arguments", "command_path"),
    [
        (("estimate",), "cmpolicy estimate"),
        (("estimat", "x"), "cmpolicy"),
        (("plan", "--rounds", "x"), "cmpolicy plan"),
    ],
)
def test_a_wrong_call_is_one_line_that_names_the_help(arguments, command_path):
    said = one_line(command(*arguments))
    assert said.startswith(f"{command_path}: ")
    assert said.endswith(f" See {command_path} --help")


def test_no_command_at_all_shows_the_help():
    result = command()
    assert result.returncode == 2
    assert "estimate" in result.stdout + result.stderr
    assert command("--help").returncode == 0


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (sqlite3.DatabaseError("disk image is malformed"), "cmpolicy validate"),
        (pl.exceptions.ComputeError("cannot\n  compare"), "ComputeError: cannot compare."),
        (ZeroDivisionError("division by zero"), "CMPOLICY_TRACEBACK=1"),
        (OverflowError(), "no more is known"),
        (AttributeError("[bold]x[/]"), "[bold]x[/]"),
        (pl.exceptions.PanicException("index out of bounds"), "PanicException: index out of bounds"),
        (
            cmp.LogUnavailableError("the disk is full: free space"),
            "LogUnavailableError: the disk is full: free space",
        ),
    ],
)
def test_whatever_is_raised_ends_with_2_and_a_line(error, said, monkeypatch, capsys):
    def failing(**_):
        raise error

    monkeypatch.setattr(endings, "app", failing)
    with pytest.raises(SystemExit) as ended:
        endings.main()
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_the_trace_of_an_error_is_there_for_who_asks(tmp_path):
    environment = os.environ | {"CMPOLICY_TRACEBACK": "1"}
    call = [sys.executable, "-m", "cmp", "estimate", str(tmp_path / "absent.db")]
    result = subprocess.run(call, capture_output=True, text=True, env=environment)
    assert result.returncode == 2
    assert "Traceback" in result.stderr
    assert "there is no log at" in result.stderr.splitlines()[-1]


@pytest.mark.skipif(WINDOWS, reason="pipes end otherwise there")
@pytest.mark.parametrize(
    "arguments",
    [("diagnose",), ("estimate",), *(("estimate", "-f", kind) for kind in ("csv", "json", "parquet"))],
)
def test_where_nobody_reads_the_command_ends_as_by_the_pipe_and_says_nothing(log, arguments):
    reader, writer = os.pipe()
    os.close(reader)
    name, *more = arguments
    call = [sys.executable, "-m", "cmp", name, str(log), *more]
    result = subprocess.run(call, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (result.returncode, result.stderr) == (141, "")


@pytest.mark.skipif(not FULL.exists(), reason="no /dev/full")
@pytest.mark.parametrize("kind", ["table", "csv"])
def test_a_result_that_found_no_space_is_a_failure(log, kind):
    call = [sys.executable, "-m", "cmp", "estimate", str(log), "-f", kind]
    with FULL.open("w") as full:
        result = subprocess.run(call, stdout=full, stderr=subprocess.PIPE, text=True)
    assert "No space left" in one_line(result)


@pytest.mark.skipif(WINDOWS, reason="no SIGINT to another process there")
def test_an_interrupt_ends_with_130_and_a_line_and_the_log_goes_on(tmp_path):
    path, out = tmp_path / "demo 1.db", tmp_path / "out.txt"
    call = [sys.executable, "-u", "-m", "cmp", "demo", "--rounds", "3000", "--log", str(path)]
    with out.open("w") as output:
        running = subprocess.Popen(
            call, stdout=output, stderr=subprocess.PIPE, text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # whoever started the tests may ignore it
        )  # fmt: skip
    until = time.monotonic() + AT_WORK_SECONDS
    while not (path.exists() and cmp.open_log(path).rounds().collect().height > 50):
        assert running.poll() is None, running.communicate()[1]
        assert time.monotonic() < until, "it is not at work yet"
        time.sleep(0.2)
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=AT_WORK_SECONDS)
    assert running.returncode == 130
    assert said == "interrupted; what was logged is kept\n"
    assert f"--log '{path}' goes on" in out.read_text().replace("\n", " ")
    log = cmp.open_log(path)
    assert 50 < log.rounds().collect().height < 90_000
    assert cmp.validate_log(log) == []


@pytest.mark.skipif(WINDOWS, reason="signals are POSIX's")
def test_an_interruption_while_the_command_still_loads_is_one_line(tmp_path):
    """A module that is found before polars stands for the moment that it takes to load."""
    (tmp_path / "polars.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    result = subprocess.run(
        [sys.executable, "-m", "cmp", "--version"], env=env, capture_output=True, text=True, check=False
    )
    assert one_line(result, 130) == "interrupted"
