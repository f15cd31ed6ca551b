"""An exported log in parts: whole blocks, nothing lost, nothing twice."""

from __future__ import annotations

import polars as pl
import pytest
from polars.testing import assert_frame_equal

import cmp
from cmp.log import parts
from cmp.log.schema import TABLES
from tests.serving.stores import Store, documents, store, wrapped


@pytest.fixture
def served(tmp_path):
    memory = wrapped(tmp_path, store(6, ["m1", "m2", "m3"]), holdout=0.2, random_slots=2)
    for number in range(40):
        context = memory.retrieve("q", scope="s", round_id=f"r{number:02}")
        if number % 3:
            memory.record(context.round_id, number % 2)
    memory.record("unknown", 1.0)
    return memory.log


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_the_parts_of_an_export_are_the_log_and_no_block_stands_in_two(served, tmp_path, size):
    exported = cmp.open_log(served.export(tmp_path / "out", rounds_per_part=size))
    parts = exported.parts()
    assert len(parts) == (1 if size == 1000 else len(parts)) and (size == 1000 or len(parts) > 3)
    for table in TABLES:
        whole = pl.concat([part.scan(table).collect() for part in parts])
        assert_frame_equal(whole, served.scan(table).collect(), check_row_order=False)
        assert_frame_equal(exported.scan(table).collect(), whole)
    blocks = [set(part.rounds().collect()["block_id"].drop_nulls()) for part in parts]
    assert sum(map(len, blocks)) == len(set.union(*blocks))
    for part in parts:
        rounds = set(part.rounds().collect()["round_id"])
        assert set(part.exposures().collect()["round_id"]) <= rounds
        assert set(part.outcomes().collect()["round_id"]) <= rounds | {"unknown"}
        assert set(part.rounds().collect()["block_id"].drop_nulls()) <= set(
            part.blocks().collect()["block_id"]
        )


def test_blocks_that_an_episode_runs_through_are_in_one_part(tmp_path):
    """Episodes of one scope hang a few of its blocks together; the same names in another scope are others."""
    scopes = {scope: documents(6) for scope in ("s", "t")}
    memory = wrapped(tmp_path, Store(scopes, ["m1", "m2", "m3"]), holdout=0.2, random_slots=2)
    for number in range(60):
        for scope in scopes:
            episode = f"e{number // 4}" if number % 12 else None
            memory.retrieve("q", scope=scope, episode_id=episode if scope == "s" or number % 2 else None)
    exported = cmp.open_log(memory.log.export(tmp_path / "out", rounds_per_part=3))
    parts = [part.rounds().collect() for part in exported.parts()]
    assert_frame_equal(pl.concat(parts), memory.log.rounds().collect(), check_row_order=False)
    assert len(parts) > 4
    for key in (["scope", "episode_id"], ["block_id"]):
        held = [set(part.filter("randomized").select(key).drop_nulls().unique().rows()) for part in parts]
        assert sum(map(len, held)) == len(set.union(*held)) > 4


@pytest.mark.parametrize("size", [7, 1000])
def test_an_export_whose_tables_are_placed_a_few_rows_at_a_time_is_the_same(
    served, tmp_path, monkeypatch, size
):
    whole = cmp.open_log(served.export(tmp_path / "whole", rounds_per_part=size))
    monkeypatch.setattr("cmp.log.sqlite.ROWS_READ_AT_ONCE", 5)
    monkeypatch.setattr("cmp.log.parts.ROWS_AT_ONCE", 13)
    again = cmp.open_log(served.export(tmp_path / "again", rounds_per_part=size))
    assert len(again.parts()) == len(whole.parts())
    for table in TABLES:
        assert [file.name for file in again.files(table)] == [file.name for file in whole.files(table)]
        assert not [entry for entry in (again.directory / table.name).iterdir() if entry.suffix != ".parquet"]
        for one, other in zip(again.files(table), whole.files(table), strict=True):
            assert_frame_equal(pl.read_parquet(one), pl.read_parquet(other))
    assert_frame_equal(cmp.utilities(again).frame, cmp.utilities(whole).frame)


def test_an_empty_log_is_exported(tmp_path):
    with cmp.open_log(tmp_path / "x.db", create=True) as log:
        exported = cmp.open_log(log.export(tmp_path / "out"))
    for table in TABLES:
        assert exported.scan(table).collect().schema == pl.Schema(table.frame_schema)
        assert len(exported.files(table)) == 1


def test_files_that_do_not_say_they_belong_together_are_one_part(served, tmp_path):
    target = served.export(tmp_path / "out", rounds_per_part=5)
    meta = target / "meta.json"
    meta.write_text(meta.read_text("utf-8").replace('"parts"', '"other"'), "utf-8")
    assert len(cmp.open_log(target).parts()) == 1


def test_a_part_without_a_round_is_refused(served, tmp_path):
    with pytest.raises(ValueError, match="rounds_per_part is 0"):
        served.export(tmp_path / "out", rounds_per_part=0)


def test_files_put_together_by_hand_may_hold_a_row_twice(served, tmp_path):
    target = served.export(tmp_path / "out")
    whole = cmp.utilities(cmp.open_log(target)).frame
    meta = target / "meta.json"
    meta.write_text(meta.read_text("utf-8").replace('"parts"', '"other"'), "utf-8")
    (target / "exposures" / "copy.parquet").write_bytes(
        (target / "exposures" / "part-00000.parquet").read_bytes()
    )
    assert_frame_equal(cmp.utilities(cmp.open_log(target)).frame, whole)


@pytest.mark.parametrize("rows", [13, 250_000])
@pytest.mark.parametrize("name", ["run[1]", "what{a,b}", "scope=1"])
def test_a_directory_may_have_any_name(served, tmp_path, monkeypatch, name, rows):
    """Brackets and braces are no pattern, and an equals sign makes no column."""
    monkeypatch.setattr("cmp.log.sqlite.ROWS_READ_AT_ONCE", 5)
    monkeypatch.setattr("cmp.log.parts.ROWS_AT_ONCE", rows)
    plain, named = (cmp.open_log(served.export(tmp_path / each / "out")) for each in ("plain", name))
    for table in TABLES:
        assert_frame_equal(named.scan(table).collect(), plain.scan(table).collect())
        assert_frame_equal(named.scan(table).collect(), served.scan(table).collect(), check_row_order=False)


def test_the_part_of_an_id_is_what_a_join_would_find():
    """Ids unknown, absent or in any order stand where they stood; those of no round in the first part."""
    ids = pl.Series("round_id", ["b", "d", "d\u00e9", "f"])
    key = pl.DataFrame([ids, pl.Series("part", [4, 2, 7, 1], dtype=pl.Int64)])
    wanted = pl.Series("round_id", ["f", "a", "b", None, "d\u00e9", "c", "z", "", "d"])
    joined = pl.DataFrame([wanted]).join(key, on="round_id", how="left", maintain_order="left")["part"]
    assert parts._parts_of(wanted, *key).to_list() == joined.fill_null(0).to_list()
    assert parts._parts_of(wanted, *key.clear()).to_list() == [0] * 9
    assert parts._parts_of(wanted.clear(), *key).to_list() == []
