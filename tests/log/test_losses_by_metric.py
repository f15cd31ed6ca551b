"""Outcomes set aside are of one metric: what contradicts itself in one says nothing of another."""

from __future__ import annotations

import json

import polars as pl
import pytest

import cmp
from cmp.errors import LogCorruptedError
from cmp.log import JsonlSink
from cmp.log.losses import Losses
from cmp.log.reading import META_FILE
from tests.serving.stores import store, wrapped

CHECK = "one outcome a round"


@pytest.fixture
def log(tmp_path):
    """20 rounds with a reward and a latency, of which three have a second latency and one a second reward."""
    path = tmp_path / "x.jsonl"
    memory = wrapped(tmp_path, store(12), log=JsonlSink(path), allocation="uniform", random_slots=2)
    for number in range(20):
        round_id = memory.retrieve("q", scope="s", round_id=f"r{number:02}").round_id
        memory.record(round_id, float(number % 2))
        memory.record(round_id, 0.1 * number, metric="latency")
        memory.record(round_id, 1.0, metric="cost")
    memory.close()
    for number, metric in ((1, "latency"), (2, "latency"), (3, "latency"), (4, "reward")):
        JsonlSink(path).write(
            {
                **{"type": "outcome", "schema_version": 1, "round_id": f"r{number:02}", "metric": metric},
                **{"value": 9.5, "recorded_at": "2126-01-01T00:00:00+00:00", "correct": False},
            }
        )
    return cmp.open_log(path)


def one_outcome(log, metric):
    verdict = cmp.diagnose(log, metric).frame.row(by_predicate=pl.col("check") == CHECK, named=True)
    return verdict["state"], verdict["figure"]


EXPECTED = {"latency": ("FAIL", 3.0), "reward": ("FAIL", 1.0), "cost": ("PASS", 0.0)}


@pytest.mark.parametrize("metric", EXPECTED)
def test_each_metric_has_its_own_verdict_before_and_after_an_export(log, tmp_path, metric):
    again = cmp.open_log(log.export(tmp_path / "out"))
    twice = cmp.open_log(again.export(tmp_path / "again"))
    assert {one_outcome(each, metric) for each in (log, again, twice)} == {EXPECTED[metric]}
    assert log.conflicts == 4
    assert len(cmp.validate_log(log)) == 4


def changed(log, folder, change):
    out = log.export(folder)
    meta = json.loads((out / META_FILE).read_text("utf-8"))
    change(meta)
    (out / META_FILE).write_text(json.dumps(meta), "utf-8")
    return out


@pytest.mark.parametrize("metric", EXPECTED)
def test_an_export_that_does_not_say_of_which_metric_they_are_may_be_of_any(log, tmp_path, metric):
    """So it is with what an earlier version wrote."""
    out = changed(log, tmp_path / "out", lambda meta: meta.pop("conflicting_outcomes_by_metric"))
    assert one_outcome(cmp.open_log(out), metric) == ("FAIL", 4.0)


@pytest.mark.parametrize("counts", ["[1]", '{"reward": "many"}', '{"reward": true}', "{", "3"])
def test_what_is_no_count_for_each_metric_is_damage(log, tmp_path, counts):
    out = changed(log, tmp_path / "out", lambda meta: meta.update(conflicting_outcomes_by_metric=counts))
    with pytest.raises(LogCorruptedError, match=r"meta\.json cannot be read"):
        cmp.open_log(out)


def test_what_was_lost_comes_back_from_meta_as_it_was():
    losses = Losses(torn=2, cut=1, outcomes=3, rounds=4, by_metric=(("latency", 1), ("reward", 2)))
    assert Losses.from_meta(losses.to_meta()) == losses
    assert Losses.from_meta(Losses().to_meta()) == Losses()
