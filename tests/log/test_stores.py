"""What a log keeps, refuses, exports and reads back."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import polars as pl
import pytest
from polars.testing import assert_frame_equal

import cmp
from cmp.log.schema import OUTCOMES, TABLES
from tests.serving.stores import store, wrapped


@pytest.fixture
def filled(tmp_path):
    memory = wrapped(tmp_path, store(12, ["m1", "m2", "m3"]))
    for i in range(30):
        context = memory.retrieve("q", scope="s", round_id=f"r{i}")
        if i % 3:
            memory.record(context.round_id, float(i % 2))
    yield memory.log
    memory.close()


def test_every_table_has_the_columns_and_types_of_the_schema(filled):
    for table in TABLES:
        assert filled.scan(table).collect().schema == pl.Schema(table.frame_schema)
    assert filled.rounds().collect()["asked_at"].dtype == pl.Datetime("us", "UTC")


def test_an_export_reads_back_as_the_same_log(filled, tmp_path):
    target = filled.export(tmp_path / "out")
    back = cmp.open_log(target)
    assert back.meta() == filled.meta()
    for table in TABLES:
        assert_frame_equal(back.scan(table).collect(), filled.scan(table).collect())
    assert cmp.validate_log(back) == []
    assert [path.name for path in tmp_path.glob(".*partial")] == []


def test_an_export_overwrites_only_an_exported_log_and_only_on_request(filled, tmp_path):
    target = filled.export(tmp_path / "out")
    with pytest.raises(FileExistsError, match="overwrite=True"):
        filled.export(target)
    assert filled.export(target, overwrite=True) == target
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years")
    with pytest.raises(FileExistsError, match="left as it is"):
        filled.export(tmp_path / "mine", overwrite=True)
    assert (tmp_path / "mine" / "thesis.txt").exists()


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (1, 3, 0, 2)])
def test_shards_that_disagree_keep_all_rows_and_columns_in_any_order(filled, tmp_path, order):
    target = filled.export(tmp_path / "out")
    folder = target / "outcomes"
    whole = pl.read_parquet(folder / "part-00000.parquet").head(4)
    (folder / "part-00000.parquet").unlink()
    row = [whole.slice(i, 1) for i in range(4)]
    shards = [
        row[0].with_columns(metric=pl.lit("a").cast(pl.Categorical)),
        row[1].with_columns(metric=pl.lit("b").cast(pl.Categorical), position=pl.lit(3)),
        row[2].with_columns(value=pl.col("value").cast(pl.Float32)),
        row[3],
    ]
    for place, shard in zip(order, shards, strict=True):
        shard.write_parquet(folder / f"part-{place:05}.parquet")
    outcomes = cmp.open_log(target).outcomes().collect()
    assert sorted(outcomes["metric"]) == ["a", "b", "reward", "reward"]
    assert outcomes["position"].drop_nulls().to_list() == [3]
    assert outcomes.schema["value"] == pl.Float64
    assert outcomes.columns[:5] == list(OUTCOMES.names)


def test_a_column_that_is_null_in_one_shard_has_the_type_of_the_schema(filled, tmp_path):
    target = filled.export(tmp_path / "out")
    file = target / "rounds" / "part-00000.parquet"
    rounds = pl.read_parquet(file)
    rounds.with_columns(episode_id=pl.lit(None)).write_parquet(target / "rounds" / "a.parquet")
    rounds.drop("episode_id").write_parquet(file)
    assert cmp.open_log(target).rounds().collect().schema["episode_id"] == pl.String
    rounds.drop("scope").write_parquet(file)
    with pytest.raises(cmp.LogCorruptedError, match="no column 'scope'"):
        cmp.open_log(target).rounds()


def test_a_log_of_a_newer_version_is_refused_and_left_alone(filled, tmp_path):
    target = filled.export(tmp_path / "out")
    filled.close()
    with sqlite3.connect(filled.path) as connection:
        connection.execute("UPDATE meta SET value = '99' WHERE key = 'schema_version'")
    connection.close()
    before = filled.path.read_bytes()
    for opening in (lambda: cmp.open_log(filled.path), lambda: wrapped(tmp_path, store())):
        with pytest.raises(cmp.LogVersionError, match="schema version 99"):
            opening()
    assert filled.path.read_bytes() == before
    meta = json.loads((target / "meta.json").read_text())
    (target / "meta.json").write_text(json.dumps({**meta, "schema_version": "x"}))
    with pytest.raises(cmp.LogVersionError, match="version x"):
        cmp.open_log(target)
    (target / "meta.json").write_text("{")
    with pytest.raises(cmp.LogCorruptedError, match="cannot be read"):
        cmp.open_log(target)


@pytest.mark.parametrize("keep", [0.5, 0.9])
def test_a_truncated_database_is_named_and_not_touched(filled, tmp_path, keep):
    filled.close()
    whole = filled.path.read_bytes()
    filled.path.write_bytes(whole[: int(len(whole) * keep)])
    cut = filled.path.read_bytes()
    with contextlib.suppress(cmp.LogCorruptedError):
        findings = cmp.validate_log(cmp.open_log(filled.path))
        assert [finding for finding in findings if finding.problem.startswith("it cannot be read")]
    assert filled.path.read_bytes() == cut


def test_something_else_at_the_path_is_left_as_it_is(tmp_path):
    text = tmp_path / "notes.db"
    text.write_text("dear diary " * 400)
    for opening in (lambda: cmp.open_log(text), lambda: wrapped(tmp_path, store(), log=text)):
        with pytest.raises(cmp.LogCorruptedError):
            opening()
    assert text.read_text().startswith("dear diary")
    other = tmp_path / "other.db"
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE people (name TEXT)")
    connection.close()
    for opening in (lambda: cmp.open_log(other), lambda: wrapped(tmp_path, store(), log=other)):
        with pytest.raises(cmp.LogCorruptedError):
            opening()
    with sqlite3.connect(other) as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("people",)]
    connection.close()


def test_opening_what_is_not_there_is_an_error_and_creates_nothing(tmp_path):
    with pytest.raises(FileNotFoundError, match="no log at"):
        cmp.open_log(tmp_path / "absent.db")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").touch()
    with pytest.raises(cmp.LogCorruptedError, match=r"meta\.json"):
        cmp.open_log(tmp_path / "folder")


@pytest.mark.parametrize("location", [":memory:", ""])
def test_what_is_no_path_is_refused(location):
    with pytest.raises(ValueError, match="path"):
        cmp.open_log(location)


def test_an_exported_log_is_not_written_to(filled, tmp_path):
    target = filled.export(tmp_path / "out")
    with pytest.raises(TypeError, match="read only"):
        wrapped(tmp_path, store(), log=target)


def test_durability_is_one_of_two_words(tmp_path):
    with pytest.raises(ValueError, match="durability"):
        cmp.open_log(tmp_path / "x.db", durability="some", create=True)
    with cmp.open_log(tmp_path / "x.db", durability="power", create=True) as log:
        memory = wrapped(tmp_path, store(), log=log)
        assert memory.retrieve("q", scope="s").randomized
        assert log._session.execute("PRAGMA synchronous").fetchone() == (2,)


def test_hashes_noted_last_are_written_when_the_interpreter_ends(tmp_path):
    code = (
        "import sys; from pathlib import Path; from tests.serving.stores import store, wrapped\n"
        "memory = wrapped(Path(sys.argv[1]), store(9)); memory.retrieve('q', scope='s')"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
    exposures = cmp.open_log(tmp_path / "x.db").exposures().collect()
    assert exposures["content_hash"].null_count() == 0


def test_a_closed_log_opens_again_when_used(tmp_path):
    memory = wrapped(tmp_path, store(9))
    for _ in range(3):
        memory.retrieve("q", scope="s")
        memory.close()
    assert memory.log.rounds().collect().height == 3


def test_a_block_with_a_damaged_table_is_not_served_from(tmp_path):
    memory = wrapped(tmp_path, store(9))
    memory.retrieve("q", scope="s")
    memory.close()
    with sqlite3.connect(tmp_path / "x.db") as connection:
        connection.execute("UPDATE blocks SET \"table\" = x'00'")
    connection.close()
    fresh = wrapped(tmp_path, store(9))
    assert fresh.retrieve("q", scope="s").fallback_reason == "log_failed"


def test_a_log_that_another_process_is_about_to_create_is_waited_for(tmp_path):
    path = tmp_path / "x.db"
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as first:
        first.execute("PRAGMA journal_mode=WAL")
        first.execute("BEGIN IMMEDIATE")
        with ThreadPoolExecutor(1) as pool:
            second = pool.submit(cmp.open_log, path, create=True)
            time.sleep(0.2)
            assert not second.done()
            first.execute("COMMIT")
            second.result(timeout=10).close()
    assert cmp.validate_log(cmp.open_log(path)) == []
