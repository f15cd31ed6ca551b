from __future__ import annotations

import hashlib

import polars as pl
import pytest

from cmp.errors import DatasetError
from cmp.evaluation import critical_z, read_qrels
from tests.estimation.golden import golden


def test_a_trec_file_is_read_with_its_hash(tmp_path):
    path = tmp_path / "labels.qrels"
    path.write_text("q1 0 D1:3 1\nq1 0 D1:3 1\n\nq2\t0\tD2:1\t-1\n", encoding="utf-8")
    qrels = read_qrels(path)
    assert qrels.frame.rows() == [("q1", None, "D1:3", 1), ("q2", None, "D2:1", 0)]
    assert qrels.duplicates == 1
    assert qrels.source == (f"labels.qrels sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}",)
    assert qrels.key_memories["memory_id"].to_list() == ["D1:3"]


def test_tabs_alone_keep_blanks_inside_ids(tmp_path):
    path = tmp_path / "labels.qrels"
    path.write_text("my query\t0\tmemory one\t2\n", encoding="utf-8")
    assert read_qrels(str(path)).frame.rows() == [("my query", None, "memory one", 2)]


@pytest.mark.parametrize("line", ["q1 0 m1", "q1 0 m1 yes", "q1 m1 1"])
def test_a_line_that_is_no_label_is_named(tmp_path, line):
    path = tmp_path / "labels.qrels"
    path.write_text(f"q0 0 m0 1\n{line}\n", encoding="utf-8")
    with pytest.raises(DatasetError, match="line 2 of labels"):
        read_qrels(path)


def test_a_file_that_is_not_there_or_no_text_is_a_dataset_error(tmp_path):
    with pytest.raises(DatasetError, match="cannot read"):
        read_qrels(tmp_path / "absent")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(DatasetError, match="cannot read"):
        read_qrels(tmp_path / "binary")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"query_id": ["q"]}, "they need memory_id"),
        ({"query_id": [None], "memory_id": ["m"]}, "lack an id"),
        ({"query_id": ["q"], "memory_id": [None]}, "lack an id"),
        ({"query_id": ["q", "q"], "memory_id": ["m", "m"], "relevance": [0, 1]}, "two relevances"),
    ],
)
def test_frames_that_are_no_labels_are_refused(columns, message):
    with pytest.raises(DatasetError, match=message):
        read_qrels(pl.DataFrame(columns))


def test_labels_may_be_by_scope():
    frame = pl.DataFrame({"scope": ["A", "B"], "memory_id": [1, 1]})
    assert read_qrels(frame).frame.rows() == [(None, "A", "1", 1), (None, "B", "1", 1)]


def test_corrections_move_and_remove_keys_and_are_counted(tmp_path):
    start = pl.DataFrame({"query_id": ["q1", "q2", "q3"], "memory_id": ["a", "b", "c"]})
    path = tmp_path / "fixes.qrels"
    path.write_text("q1 0 a 0\nq1 0 d 1\nq2 0 b 0\nq3 0 c 1\n", encoding="utf-8")
    fixed = read_qrels(start).with_overrides(path)
    assert fixed.key_memories.select("query_id", "memory_id").rows() == [("q1", "d"), ("q3", "c")]
    assert fixed.overridden == 3
    assert fixed.source[0] == "frame"
    assert fixed.source[1].startswith("fixes.qrels sha256:")
    assert len(fixed) == 4


def test_the_critical_z_is_the_golden_one():
    for irreversibility, want in golden("forget_critical_z").items():
        assert critical_z(float(irreversibility)) == pytest.approx(want, abs=1e-10)


@pytest.mark.parametrize("bad", [0.5, float("nan"), float("inf")])
def test_a_cost_ratio_below_one_is_refused(bad):
    with pytest.raises(ValueError, match="at least 1"):
        critical_z(bad)
