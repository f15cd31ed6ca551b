"""Lines of JSON: streams of any length, gzipped or torn, each fault with its line."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

import cmp
from cmp.estimation.from_rows import utilities_of_rows
from cmp.foreign import ForeignLog, ForeignLogError, from_frame, read_jsonl
from cmp.log.gathering import GatheredLog
from tests.foreign.rows import small


def written(path: Path, frame: pl.DataFrame, *, nested: bool = False) -> Path:
    lines = []
    if nested:
        for _, rows in frame.group_by("round_id", maintain_order=True):
            row = rows.row(0, named=True)
            inner = rows.select("memory_id", "assigned", "propensity").to_dicts()
            lines.append({"round_id": row["round_id"], "outcome": row["outcome"], "memories": inner})
    else:
        lines = frame.to_dicts()
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return path


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("packed", [False, True])
def test_lines_give_the_table_of_their_rows(tmp_path, nested, packed):
    frame = small(rounds=20).with_columns(outcome=pl.when(pl.col("round_id") != "r3").then("outcome"))
    path = written(tmp_path / "rows.jsonl", frame, nested=nested)
    if packed:
        path.write_bytes(gzip.compress(path.read_bytes()))
    assert_frame_equal(
        utilities_of_rows(read_jsonl(path)).frame,
        utilities_of_rows(from_frame(frame)).frame,
        check_exact=True,
    )


def test_shards_in_any_order_are_one_log(tmp_path):
    """Shards that disagree: outcomes all null in one, another field in the next, ids of numbers in both."""
    frame = small(rounds=12).with_columns(memory_id=pl.col("memory_id").str.slice(1).cast(pl.Int64))
    at = pl.col("round_id").str.slice(1).cast(pl.Int64)
    frame = frame.with_columns(outcome=pl.when(at >= 4).then("outcome"))
    parts = [
        frame.filter(at < 4),
        frame.filter((at >= 4) & (at < 8)),
        frame.filter(at >= 8).with_columns(position=0),
    ]
    paths = [written(tmp_path / f"{i}.jsonl", part) for i, part in enumerate(parts)]
    whole = utilities_of_rows(from_frame(frame)).frame
    assert_frame_equal(utilities_of_rows(read_jsonl(*paths)).frame, whole, check_exact=True)
    assert_frame_equal(utilities_of_rows(read_jsonl(*reversed(paths))).frame, whole, check_exact=True)


def test_a_torn_last_line_is_left_out_and_counted(tmp_path):
    path = written(tmp_path / "rows.jsonl", small(), nested=True)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.warns(UserWarning, match=r"rows.jsonl, line 12: the file ends within it"):
        log = read_jsonl(path)
    assert (len(log), log.notes["torn lines left out"]) == (11, 1)
    packed = gzip.compress(written(path, small(rounds=400), nested=True).read_bytes())
    path.write_bytes(packed[: len(packed) // 2])
    with pytest.warns(UserWarning, match="the file ends within it"):
        assert 0 < len(read_jsonl(path)) < 400


def test_a_whole_last_line_without_its_newline_is_read(tmp_path):
    path = written(tmp_path / "rows.jsonl", small(), nested=True)
    path.write_bytes(path.read_bytes().rstrip())
    assert len(read_jsonl(path)) == 12


#: Every kind of thing that a line may be cut in: escapes, letters of several bytes, numbers, words, ends.
WHOLE = (
    '{"round_id": "a\\u00e9\\ud83d\\ude00\\n\\"é€😀", "outcome": -1.5e-3, '
    '"x": [true, false, null, {"y": 1E+2}, -0.5], "memories": []}'
).encode()


@pytest.mark.parametrize("end", range(1, len(WHOLE)))
def test_a_last_line_cut_anywhere_is_torn(tmp_path, end):
    path = written(tmp_path / "rows.jsonl", small(), nested=True)
    path.write_bytes(path.read_bytes() + WHOLE[:end])
    with pytest.warns(UserWarning, match=r"rows.jsonl, line 13: the file ends within it"):
        assert len(read_jsonl(path)) == 12


@pytest.mark.parametrize(
    ("last", "said"),
    [
        (b'{"round_id": "x", "outcome": NaN, "memories": []}', "NaN is no JSON"),
        (b'{"round_id": "x", "outcome": -Infinity, "mem', "-Infinity is no JSON"),
        (b'{"round_id": "x", "outcome": 1} {"round_id": "y"}', "it is no JSON"),
        (b'{"round_id": "x" "outcome": 1', "it is no JSON"),
        (b"{'round_id': 1}", "it is no JSON"),
        (b'{"round_id": "\\x41"}', "it is no JSON"),
        (b'{"round_id": "\xff"}', "is no UTF-8"),
        (b"the end", "it is no JSON"),
        (b"nul", "it is no JSON"),
    ],
)
@pytest.mark.parametrize("newline", [b"", b"\n"])
def test_a_last_line_that_is_wrong_before_its_end_is_a_problem_with_its_newline_or_without(
    tmp_path, last, said, newline
):
    path = written(tmp_path / "rows.jsonl", small(), nested=True)
    path.write_bytes(path.read_bytes() + last + newline)
    with pytest.raises(ForeignLogError, match=f"line 13: .*{said}"):
        read_jsonl(path)


def test_damage_within_a_file_is_told_line_by_line(tmp_path):
    path = written(tmp_path / "rows.jsonl", small(), nested=True)
    lines = path.read_bytes().splitlines(keepends=True)
    row = {"memory_id": "m0", "assigned": True, "propensity": 1.0}
    whole = {"round_id": "x", "outcome": 0.0, "memories": [row]}
    bad = [
        (b'{"round_id": "torn\n', "it is no JSON"),
        (b'{"round_id": "\xff"}\n', "byte 14 of it is no UTF-8"),
        (b"[1, 2]\n", "a JSON list, not an object"),
        (b"[" * 100_000 + b"\n", "nested too deeply"),
        (json.dumps({**whole, "outcome": float("nan")}).encode() + b"\n", "NaN is no JSON"),
        (b'{"round_id": 1, "outcome": 1e999, "memories": []}\n', None),
        (json.dumps({**whole, "outcome": "1"}).encode() + b"\n", "'outcome' is '1'; give a finite number"),
        (json.dumps({**whole, "outcome": 10**400}).encode() + b"\n", "'outcome' is '1000"),
        (json.dumps({**whole, "round_id": 1.5}).encode() + b"\n", "the id of 'round_id' is 1.5"),
        (json.dumps({**whole, "round_id": ""}).encode() + b"\n", "an empty string"),
        (
            json.dumps({**whole, "memories": [{**row, "assigned": "yes"}]}).encode() + b"\n",
            "'assigned' is 'yes'",
        ),
        (json.dumps({**whole, "memories": [{"memory_id": "m0"}]}).encode() + b"\n", "it has no 'assigned'"),
        (json.dumps({**whole, "memories": 3}).encode() + b"\n", "'memories' is no list of objects"),
    ]
    path.write_bytes(b"".join([*lines[:2], b"\n", *(line for line, _ in bad), *lines[2:]]))
    with pytest.raises(ForeignLogError) as caught:
        read_jsonl(path)
    told = str(caught.value).splitlines()
    expected = [(number, said) for number, (_, said) in enumerate(bad, start=4) if said is not None]
    assert len(told) == 1 + len(expected)
    for text, (number, said) in zip(told[1:], expected, strict=True):
        assert text.startswith(f"  line {number}: "), text
        assert said in text


def test_reading_stops_at_twenty_problems(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("{}\n" * 1000)
    with pytest.raises(ForeignLogError, match="20 problems, and reading stopped there") as caught:
        read_jsonl(path)
    assert "line 21" not in str(caught.value)


def test_problems_between_lines_name_their_lines_and_files(tmp_path):
    one, two = (written(tmp_path / f"{name}.jsonl", small(rounds=2)) for name in "ab")
    with pytest.raises(
        ForeignLogError, match=r"16 rows share.*a.jsonl lines 1, 2, 3, 4, 5 and 3 more; .*b.jsonl lines 1"
    ):
        read_jsonl(one, two)
    with pytest.raises(cmp.PositivityError, match=r"from lines 1, 5\)"):
        read_jsonl(one, k=2)


def test_files_of_this_package_are_the_logs_they_are(tmp_path):
    path = tmp_path / "own.jsonl"
    store = [f"m{i}" for i in range(8)]
    memory = cmp.wrap(
        lambda query: store[:4], list_ids=lambda: store, get=list, slots=4, random_slots=2, allocation="uniform",
        log=cmp.JsonlSink(path), scope=cmp.EVERYTHING, seed=1,
    )  # fmt: skip
    with memory:
        memory.record(memory.retrieve("q").round_id, 1.0)
    log = read_jsonl(path)
    assert isinstance(log, GatheredLog)
    assert log.outcomes().collect()["value"].to_list() == [1.0]
    path.write_bytes(b"")
    assert isinstance(read_jsonl(path), GatheredLog)


def own_records(path):
    memory = cmp.wrap(
        lambda query: ["a", "b"], list_ids=lambda: "abcdef", get=list, slots=2, random_slots=1, allocation="uniform",
        log=cmp.JsonlSink(path), scope=cmp.EVERYTHING, seed=1,
    )  # fmt: skip
    with memory:
        memory.record(memory.retrieve("q").round_id, 1.0)
    return path


@pytest.mark.parametrize("first", [True, False])
def test_an_empty_file_is_of_the_kind_of_the_others(tmp_path, first):
    """A shard without a line, which used to make the whole an empty log of this package."""
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    for other, kind in (
        (written(tmp_path / "rows.jsonl", small()), ForeignLog),
        (own_records(tmp_path / "own.jsonl"), GatheredLog),
    ):
        log = read_jsonl(*([empty, other] if first else [other, empty]))
        assert isinstance(log, kind)
        alone = read_jsonl(other)
        if isinstance(log, ForeignLog):
            assert len(log) == len(alone) == 12
        else:
            assert log.rounds().collect().height == 1


@pytest.mark.parametrize("turned", [False, True])
def test_records_of_this_package_among_those_of_another_are_refused_by_both_names(tmp_path, turned):
    paths = [written(tmp_path / "rows.jsonl", small()), own_records(tmp_path / "own.jsonl")]
    with pytest.raises(
        ForeignLogError, match=r"own.jsonl holds records of this package, and .*rows.jsonl rounds of"
    ):
        read_jsonl(*(reversed(paths) if turned else paths))


def test_a_long_file_is_read_in_portions(tmp_path, monkeypatch):
    monkeypatch.setattr("cmp.foreign.lines._PORTION", 7)
    frame = small(rounds=50)
    log = read_jsonl(written(tmp_path / "rows.jsonl", frame))
    assert isinstance(log, ForeignLog)
    assert_frame_equal(
        utilities_of_rows(log).frame, utilities_of_rows(from_frame(frame)).frame, check_exact=True
    )


def test_files_and_fields_that_are_not_there(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_jsonl(tmp_path / "nothing.jsonl")
    with pytest.raises(ForeignLogError, match="no file was named"):
        read_jsonl()
    path = tmp_path / "blank.jsonl"
    path.write_text("\n\n")
    with pytest.raises(ForeignLogError, match="there are no rows"):
        read_jsonl(path)


def test_a_gzip_that_was_damaged_in_the_middle_is_no_shorter_file(tmp_path):
    packed = bytearray(
        gzip.compress(written(tmp_path / "rows.jsonl", small(rounds=400), nested=True).read_bytes())
    )
    middle = len(packed) // 2
    packed[middle : middle + 8] = bytes(8)
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(packed)
    with pytest.raises(ForeignLogError, match=r"it is no JSON|its gzip is damaged"):
        read_jsonl(path)


def test_a_gzip_whose_checksum_is_wrong_is_damaged(tmp_path):
    packed = bytearray(gzip.compress(written(tmp_path / "rows.jsonl", small(), nested=True).read_bytes()))
    packed[-8] ^= 0xFF
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(packed)
    with pytest.raises(ForeignLogError, match="after line 12: its gzip is damaged"):
        read_jsonl(path)
