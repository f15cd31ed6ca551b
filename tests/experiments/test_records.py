"""Every result says what made it, and every experiment still runs."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import polars as pl
import pytest
import typer
from rich.console import Console

from experiments import records
from experiments.records import ROOT, DirtyTreeError, Run, plain_endings, sha256_of

RESULTS = ROOT / "results"
RECORDS = sorted(RESULTS.glob("*.json"))
EXPERIMENTS = [
    path.stem for path in sorted((ROOT / "experiments").glob("*.py")) if "__main__" in path.read_text("utf-8")
]
KEYS = {
    "experiment",
    "command",
    "commit",
    "dirty",
    "seeds",
    "parameters",
    "versions",
    "inputs",
    "outputs",
    "started",
    "wall_seconds",
}


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.name)
def test_a_record_names_a_command_that_exists_and_files_that_are_as_written(path: Path) -> None:
    record = json.loads(path.read_text("utf-8"))
    assert set(record) == KEYS
    command = record["command"]
    assert find_spec(command[command.index("-m") + 1]) is not None
    assert {name: sha256_of(RESULTS / name) for name in record["outputs"]} == record["outputs"]


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.name)
def test_a_record_shows_nothing_of_the_machine(path: Path) -> None:
    text = path.read_text("utf-8")
    assert not any(place in text for place in (str(Path.home()), sys.prefix, str(ROOT)))


def test_no_file_of_results_lacks_a_record() -> None:
    recorded = {name for path in RECORDS for name in json.loads(path.read_text("utf-8"))["outputs"]}
    files = {path.name for path in RESULTS.glob("*") if path.is_file() and path.suffix != ".json"}
    assert files - recorded == set()


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_each_experiment_runs_on_a_small_scale(name: str, tmp_path: Path) -> None:
    beside = ROOT.parent / "shared" / "data"
    data = os.environ.get("CMP_DATA") or (str(beside) if beside.is_dir() else None)
    environment = os.environ | ({"CMP_DATA": data} if data else {})
    command = [
        sys.executable,
        "-m",
        f"experiments.{name}",
        "--smoke",
        "--allow-dirty",
        "--results",
        str(tmp_path),
    ]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if "MissingExtraError" in done.stderr or (data is None and "DatasetError" in done.stderr):
        pytest.skip(f"experiments.{name} lacks what it needs: {done.stderr.strip()[-200:]}")
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / f"{name}.json").read_text("utf-8"))
    assert {file: sha256_of(tmp_path / file) for file in record["outputs"]} == record["outputs"]


def git(repository: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    subprocess.run(["git", *identity, *arguments], cwd=repository, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A committed repository that the records take for their own."""
    place = tmp_path / "repository"
    place.mkdir()
    git(place, "init", "-q")
    (place / "code.py").write_text("x = 1\n")
    git(place, "add", ".")
    git(place, "commit", "-q", "-m", "begin")
    monkeypatch.setattr(records, "ROOT", place)
    return place


def test_a_changed_tree_is_refused_unless_it_is_marked(repository: Path) -> None:
    assert Run.start("e", parameters={}).dirty is False
    (repository / "results").mkdir()
    (repository / "results" / "e.csv").write_text("1\n")
    (repository / ".cache").mkdir()
    (repository / ".cache" / "v.npy").write_text("1\n")
    assert Run.start("e", parameters={}).dirty is False
    (repository / "new file.py").write_text("y = 2\n")
    with pytest.raises(DirtyTreeError, match=r"1 paths differ from the commit \(new file\.py\)"):
        Run.start("e", parameters={})
    run = Run.start("e", parameters={}, allow_dirty=True)
    assert run.dirty is True
    assert run.commit is not None
    assert len(run.commit) == 40


def test_a_rename_is_one_change(repository: Path) -> None:
    git(repository, "mv", "code.py", "moved.py")
    with pytest.raises(DirtyTreeError, match=r"1 paths differ from the commit \(moved\.py\)"):
        Run.start("e", parameters={})


def test_outside_a_repository_the_commit_is_unknown_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.setattr(records, "ROOT", tmp_path)
    run = Run.start("e", parameters={})
    assert (run.commit, run.dirty) == (None, None)


def test_numbers_are_written_unrounded_and_hashes_are_of_what_was_written(tmp_path: Path) -> None:
    read = tmp_path / "input.txt"
    read.write_bytes(b"data")
    frame = pl.DataFrame({"x": [0.1 + 0.2, 1 / 3, None]})
    run = Run.start("e", parameters={"third": 1 / 3}, seeds={"data": 7}, allow_dirty=True)
    run.add_input(read)
    run.note_input("known", "0" * 64)
    results = tmp_path / "results"
    path = run.write(frame, "# Page", more={"more": frame.head(1)}, results_dir=results)
    record = json.loads(path.read_text("utf-8"))
    assert pl.read_csv(results / "e.csv").equals(frame)
    assert record["parameters"]["third"] == 1 / 3
    assert record["inputs"] == {"input.txt": hashlib.sha256(b"data").hexdigest(), "known": "0" * 64}
    assert set(record["outputs"]) == {"e.csv", "e_more.csv", "e.md"}
    assert {name: sha256_of(results / name) for name in record["outputs"]} == record["outputs"]
    assert sorted(file.name for file in results.iterdir()) == ["e.csv", "e.json", "e.md", "e_more.csv"]


def test_a_figure_is_written_and_recorded(tmp_path: Path) -> None:
    figure_module = pytest.importorskip("matplotlib.figure", reason="the extra plot is not installed")
    figure = figure_module.Figure()
    figure.add_subplot().plot([0, 1], [1, 0])
    run = Run.start("e", parameters={}, allow_dirty=True)
    record = json.loads(
        run.write(pl.DataFrame({"x": [1]}), "", figure=figure, results_dir=tmp_path).read_text("utf-8")
    )
    assert record["outputs"]["e.png"] == sha256_of(tmp_path / "e.png")


def test_a_write_that_fails_leaves_the_old_results_whole(tmp_path: Path) -> None:
    Run.start("e", parameters={}, allow_dirty=True).write(pl.DataFrame({"x": [1]}), "", results_dir=tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    run = Run.start("e", parameters={"bad": float("nan")}, allow_dirty=True)
    with pytest.raises(ValueError, match="JSON compliant"):
        run.write(pl.DataFrame({"x": [2]}), "", results_dir=tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_commands_are_written_without_the_machine() -> None:
    command = [
        "/opt/env/bin/python3.11",
        "-m",
        "experiments.support",
        f"--data={ROOT}/data",
        str(ROOT / "results"),
        "-v",
    ]
    written = ["python3.11", "-m", "experiments.support", "--data=data", "results", "-v"]
    assert records._portable_command(command) == written


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (KeyboardInterrupt(), 130, "Interrupted. Nothing was written; rounds are kept."),
        (DirtyTreeError("2 paths differ"), 2, "DirtyTreeError: 2 paths differ"),
    ],
)
def test_an_experiment_that_is_interrupted_or_refused_ends_with_a_line(error, code, said) -> None:
    out = io.StringIO()
    with pytest.raises(typer.Exit) as ending, plain_endings(Console(file=out, width=100), "rounds are kept"):
        raise error
    assert ending.value.exit_code == code
    assert said in out.getvalue()
