"""Labels find their memories alike for an AUC and for support: by scope where both name one, by id elsewhere."""

from __future__ import annotations

import polars as pl
import pytest

from cmp.errors import DatasetError, GranularityError
from cmp.evaluation import auc, read_qrels, support
from cmp.evaluation.placing import place_labels
from tests.evaluation.test_reach import Given

UNITS = pl.DataFrame({"scope": ["A", "A", "B", "B"], "memory_id": ["m1", "a2", "m1", "b2"]})
TABLE = UNITS.with_columns(utility=pl.Series([2.0, 1.0, 3.0, 4.0]))
STORE = Given({"A": {"m1": "", "a2": ""}, "B": {"m1": "", "b2": ""}})
QUERIES = pl.DataFrame({"query_id": ["qa", "qb"], "scope": ["A", "B"], "text": ["1 0", "0 1"]})


def labels(*rows: tuple) -> pl.DataFrame:
    return pl.DataFrame(
        list(rows), schema=dict.fromkeys(["query_id", "scope", "memory_id"], pl.String), orient="row"
    )


def test_scoped_labels_go_by_scope_and_scopeless_ones_by_id_in_one_file():
    mixed = labels(("qa", "A", "m1"), ("qb", None, "b2"))
    assert place_labels(mixed, UNITS.select("scope").unique(), UNITS).found.rows() == [
        ("A", "m1"),
        ("B", "b2"),
    ]
    assert (auc(TABLE, mixed).auc, auc(TABLE, mixed).n_strata) == (1.0, 2)
    report = support(STORE, QUERIES, mixed, cutoff=1)
    assert report.pairs.select("query_id", "memory_id", "retrieved").rows() == [
        ("qa", "m1", True),
        ("qb", "b2", True),
    ]


def test_a_scopeless_label_that_fits_two_scopes_is_an_error_for_both():
    with pytest.raises(GranularityError, match="'m1' in several scopes"):
        auc(TABLE, labels(("qa", None, "m1")))
    both = pl.DataFrame({"query_id": ["q", "q"], "scope": ["A", "B"], "text": ["1 0", "0 1"]})
    with pytest.raises(GranularityError, match="'m1' in several scopes"):
        support(STORE, both, labels(("q", None, "m1")), cutoff=1)


def test_labels_of_several_scopes_need_a_table_with_scopes():
    bare = pl.DataFrame({"memory_id": ["m1", "a2", "b2"], "utility": [1.0, 2.0, 3.0]})
    with pytest.raises(GranularityError, match=r"2 scopes \('A', 'B'\).*give the table a scope column"):
        auc(bare, labels(("qa", "A", "m1"), ("qb", "B", "b2")))
    assert auc(bare, labels(("qa", "A", "m1"), ("qb", "A", "a2"))).n_key == 2


def test_labels_of_a_scope_are_of_each_of_its_queries():
    of_scope = labels((None, "A", "m1"))
    by_query = pl.DataFrame(
        {
            "scope": ["A"] * 4,
            "group": ["q1", "q1", "q2", "q2"],
            "memory_id": ["m1", "a2"] * 2,
            "utility": [2.0, 1, 1, 2],
        }
    )
    assert (auc(by_query, of_scope).auc, auc(by_query, of_scope).n_strata) == (0.5, 2)
    report = support(STORE, QUERIES, of_scope, cutoff=1)
    assert report.pairs.select("query_id", "memory_id").rows() == [("qa", "m1")]
    with pytest.raises(GranularityError, match="first scope is 'C' there and 'A' here"):
        support(STORE, QUERIES, labels((None, "C", "m1")))


def test_int_label_ids_work_wherever_labels_do():
    ints = pl.DataFrame({"query_id": [7], "memory_id": [1]})
    table = pl.DataFrame({"memory_id": ["1", "2"], "utility": [2.0, 1.0]})
    assert auc(table, ints).auc == 1.0
    store = Given({"s": {"1": "", "2": ""}})
    queries = pl.DataFrame({"query_id": ["7"], "scope": ["s"], "text": ["1 0"]})
    assert support(store, queries, ints, cutoff=1).never_own == 0.0


@pytest.mark.parametrize("bad", [0.5, float("nan"), "yes", "0.5"])
def test_a_relevance_that_is_no_whole_number_is_an_error_naming_its_label(bad):
    frame = pl.DataFrame({"query_id": ["q", "q"], "memory_id": ["a", "b"], "relevance": [type(bad)(1), bad]})
    with pytest.raises(DatasetError, match="relevance of label 1"):
        read_qrels(frame)


@pytest.mark.parametrize("good", [[1, 0], [1.0, 0.0], ["1", "0"], [True, False]])
def test_whole_relevances_of_any_type_are_read(good):
    frame = pl.DataFrame({"query_id": ["q", "q"], "memory_id": ["a", "b"], "relevance": good})
    assert read_qrels(frame).frame["relevance"].to_list() == [1, 0]


@pytest.mark.parametrize("bad", [[1.5, 2.0], [True, False], ["", "a"]])
def test_ids_that_are_no_ids_are_refused(bad):
    with pytest.raises(DatasetError, match="memory_id of the qrels holds no ids"):
        read_qrels(pl.DataFrame({"query_id": ["q", "q"], "memory_id": bad}))


def test_empty_ids_between_tabs_are_refused_and_odd_ones_kept(tmp_path):
    path = tmp_path / "x.qrels"
    path.write_text("q\t0\t\t1\n", encoding="utf-8")
    with pytest.raises(DatasetError, match="line 1"):
        read_qrels(path)
    path.write_text("q\t0\t m\u2028 \t1\r\n", encoding="utf-8", newline="")
    assert read_qrels(path).frame["memory_id"].to_list() == [" m\u2028 "]


# Corrections


SCOPED = labels(("q1", "A", "a"), ("q1", "A", "b"), ("q2", "B", "c"))


def test_corrections_of_a_trec_file_are_of_their_querys_scope(tmp_path):
    path = tmp_path / "fixes.qrels"
    path.write_text("q1 0 a 0\nq1 0 d 1\nq2 0 c 1\n", encoding="utf-8")
    fixed = read_qrels(SCOPED).with_overrides(path)
    assert fixed.key_memories.select("query_id", "scope", "memory_id").rows() == [
        ("q1", "A", "b"),
        ("q1", "A", "d"),
        ("q2", "B", "c"),
    ]
    assert fixed.overridden == 2


def test_a_correction_of_a_query_in_several_scopes_must_say_which():
    torn = read_qrels(labels(("q", "A", "a"), ("q", "B", "a")))
    fix = pl.DataFrame({"query_id": ["q"], "memory_id": ["a"], "relevance": [0]})
    with pytest.raises(DatasetError, match="'q' in 'A', 'B'"):
        torn.with_overrides(fix)
    assert torn.with_overrides(fix.with_columns(scope=pl.lit("A"))).key_memories["scope"].to_list() == ["B"]


def test_what_was_never_labelled_is_not_overridden_by_a_zero():
    fix = pl.DataFrame({"query_id": ["q1", "q9"], "memory_id": ["never", "never"], "relevance": [0, 0]})
    fixed = read_qrels(SCOPED).with_overrides(fix)
    assert (fixed.overridden, fixed.key_memories.height) == (0, 3)


def test_a_scoped_correction_reaches_a_label_without_a_scope():
    bare = read_qrels(pl.DataFrame({"query_id": ["q1"], "memory_id": ["a"]}))
    fix = labels(("q1", "A", "a")).with_columns(relevance=0)
    fixed = bare.with_overrides(fix)
    assert (fixed.key_memories.height, fixed.overridden) == (0, 1)
