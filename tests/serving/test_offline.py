"""Rounds run offline: balanced within each task, resumable, the same with threads."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl
import pytest

import cmp
from tests.serving.stores import store, wrapped


def counts(memory):
    joined = memory.log.exposures().filter("assigned").join(memory.log.rounds(), on="round_id")
    return joined.group_by("group", "memory_id").len().collect()


@pytest.mark.parametrize("workers", [1, 4])
def test_each_task_gets_a_balanced_block_of_its_own(tmp_path, workers):
    memory = wrapped(tmp_path, store(8))
    tasks = [
        ("first", "s", "q1"),
        cmp.Task("second", "s", "q2"),
        {"query": "third", "scope": "s", "group": "q3"},
    ]
    n = cmp.run_rounds(memory, tasks, lambda task, context: 1.0, rounds=16, workers=workers)
    assert n == 48
    assert set(counts(memory)["len"]) == {2}
    assert counts(memory).height == 24
    assert memory.log.blocks().collect()["length"].to_list() == [16, 16, 16]


def test_an_interrupted_run_goes_on_where_it_stopped(tmp_path):
    memory = wrapped(tmp_path, store(8))
    calls = []

    def score(task, context):
        calls.append(context.round_id)
        if len(calls) == 11:
            raise KeyboardInterrupt
        return float("m3" in [document.id for document in context])

    with pytest.raises(KeyboardInterrupt):
        cmp.run_rounds(memory, [("q", "s", "g")], score, rounds=16)
    assert cmp.run_rounds(memory, [("q", "s", "g")], score, rounds=16) == 6
    assert cmp.run_rounds(memory, [("q", "s", "g")], score, rounds=16) == 0
    assert memory.log.rounds().collect().height == 16
    assert memory.log.rounds().filter(pl.col("attempts") == 2).collect().height == 1
    assert set(counts(memory)["len"]) == {2}


def test_an_error_of_the_score_stops_the_threads(tmp_path):
    memory = wrapped(tmp_path, store(8))

    def score(task, context):
        raise RuntimeError("no judge")

    with pytest.raises(RuntimeError, match="no judge"):
        cmp.run_rounds(memory, [("q", "s", "g")], score, rounds=100, workers=3)
    assert memory.log.rounds().collect().height < 100


def test_tasks_may_be_objects_and_must_have_groups_of_their_own(tmp_path):
    @dataclass
    class Question:
        query: str
        scope: str
        group: str

    memory = wrapped(tmp_path, store(8))
    assert (
        cmp.run_rounds(memory, [Question("q", "s", "g")], lambda task, context: task.query == "q", rounds=4)
        == 4
    )
    with pytest.raises(ValueError, match="share the group 'g'"):
        cmp.run_rounds(memory, [("a", "s", "g"), ("b", "s", "g")], lambda task, context: 1.0)
