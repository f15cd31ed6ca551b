"""Decision-service JSON as its writers write it, and as it went wrong."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cmp
from cmp.estimation.from_rows import utilities_of_rows
from cmp.foreign import ForeignLogError, read_dsjson

ACTIONS = [
    {"_tag": "news", "i": {"constant": 1, "id": "n"}},
    {"i": {"constant": 1, "id": "sports"}},
    {"_tag": "music"},
]


def decision(
    number: int, taken: int, cost: float | None, p: list[float] | None = None, **more: Any
) -> dict[str, Any]:
    """Return a line as the service writes it: the action taken first, the others by rank."""
    chances = p or [0.5, 0.25, 0.25]
    others = [action for action in (1, 2, 3) if action != taken]
    order = [taken, *others]
    line = {
        "_label_cost": cost,
        "_label_probability": chances[taken - 1],
        "_label_Action": taken,
        "_labelIndex": taken - 1,
        "o": [{"v": 0 if cost is None else -cost, "EventId": f"e{number}", "ActionTaken": False}],
        "Timestamp": "2021-02-04T16:31:29.9430000Z",
        "Version": "1",
        "EventId": f"e{number}",
        "a": order,
        "c": {"FromUrl": [{"name": "Ann"}], "_multi": ACTIONS},
        "p": [chances[action - 1] for action in order],
        "VWState": {"m": "x/y"},
        "_original_label_cost": cost,
    }
    return {name: value for name, value in (line | more).items() if value is not ...}


def written(folder: Path, lines: list[dict[str, Any]]) -> Path:
    path = folder / "decisions.json"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return path


def simulated(
    n: int = 60, seed: int = 3, uneven: bool = False
) -> tuple[list[dict[str, Any]], np.ndarray, ...]:
    rng = np.random.default_rng(seed)
    lines, assigned, y, pi = [], np.zeros((n, 3), bool), np.zeros(n), np.zeros((n, 3))
    for t in range(n):
        p = [[0.5, 0.25, 0.25], [0.2, 0.2, 0.6]][t % 2 if uneven else 0]
        taken = int(rng.choice(3, p=p))
        assigned[t, taken], pi[t], y[t] = True, p, float(rng.integers(0, 2))
        lines.append(decision(t, taken + 1, -y[t], p))
    return lines, assigned, y, pi


@pytest.mark.parametrize("uneven", [False, True])
@pytest.mark.parametrize("packed", [False, True])
def test_decisions_are_rounds_of_one_slot(tmp_path, uneven, packed):
    lines, assigned, y, pi = simulated(uneven=uneven)
    path = written(tmp_path, lines)
    if packed:
        path.write_bytes(gzip.compress(path.read_bytes()))
    estimator = "hajek" if uneven else "difference"
    found = utilities_of_rows(read_dsjson(path), estimator=estimator).frame
    # the table is in the order of ids: music, news, sports
    order = [2, 0, 1]
    expected = cmp.estimate(assigned[:, order], y, propensity=pi[:, order], estimator=estimator).frame
    assert found["memory_id"].to_list() == ["music", "news", "sports"]
    for name in ("n_exposed", "n_control"):
        assert found[name].to_list() == expected[name].to_list()
    for name in ("utility", "std_error", "ci_low", "ci_high", "p_value"):
        np.testing.assert_allclose(found[name].to_numpy(), expected[name].to_numpy(), rtol=1e-12, atol=1e-12)


def test_a_cost_of_zero_is_an_outcome_of_zero_without_a_sign(tmp_path):
    log = read_dsjson(written(tmp_path, [decision(0, 1, 0.0), decision(1, 2, 2.5)]))
    assert [str(y) for y in log.per_round["outcome"]] == ["0.0", "-2.5"]


def test_what_was_never_activated_has_no_outcome_and_what_was_never_observed_is_counted(tmp_path):
    lines = [
        decision(0, 1, -1.0),
        decision(1, 2, -1.0, _skipLearn=True),
        decision(2, 3, 0.0, o=...),
        decision(3, 1, None),
        {"Timestamp": "2018-03-27T01:02:57.4990000Z", "RewardValue": 1.0, "EventId": "e9"},
    ]
    log = read_dsjson(written(tmp_path, lines))
    assert log.per_round["outcome"].to_list() == [1.0, None, 0.0, None]
    assert log.notes["decisions never activated"] == 1
    assert log.notes["decisions without an observation"] == 1
    assert log.notes["observations without a decision"] == 1
    assert "1 decisions never activated" in log.summary()


def test_single_precision_and_shares_left_out_are_no_fault(tmp_path):
    p = [float(np.float32(x)) for x in (0.9, 0.05, 0.05)]
    lines = [
        decision(0, 1, -1.5, p),
        decision(1, 1, -1.5, p, pdrop=0.5, _label_probability=p[0] * 0.5),
        decision(2, 1, -1.5, p, pdrop=0.5),
    ]
    assert len(read_dsjson(written(tmp_path, lines))) == 3


def test_without_a_label_the_first_action_was_taken_and_with_one_it_decides(tmp_path):
    bare = decision(0, 2, -1.0, _label_Action=..., _labelIndex=..., _label_probability=...)
    by_number = decision(1, 3, -1.0, a=[1, 2, 3], p=[0.5, 0.25, 0.25])
    log = read_dsjson(written(tmp_path, [bare, by_number]))
    drawn = log.per_memory.filter("assigned")["memory"]
    assert log.memories.gather(drawn).to_list() == ["sports", "music"]


@pytest.mark.parametrize(
    ("more", "kind", "said"),
    [
        ({"p": [0.8, 0.1, 0.1]}, cmp.PositivityError, "_label_probability is 0.5, and p of the action taken 0.8"),
        ({"p": [0.5, 0.25, 0.5]}, cmp.PositivityError, "add up to 1.25"),
        ({"p": [0.5, 0.25]}, ForeignLogError, "3 actions in a and 2 probabilities"),
        ({"p": [0.5, 0.25, "x"]}, ForeignLogError, "a probability of p is 'x'"),
        ({"p": [0.5, 0.75, -0.25]}, cmp.PositivityError, "outside 0 to 1"),
        ({"a": [0, 1, 2]}, ForeignLogError, "whole numbers from 1"),
        ({"a": [1, 1, 2]}, ForeignLogError, "not different whole numbers"),
        ({"a": [1, 2, 4]}, ForeignLogError, "a names action 4, and c._multi lists 3"),
        ({"a": ...}, ForeignLogError, "no list of actions a"),
        ({"c": {}}, ForeignLogError, "c._multi lists no actions"),
        ({"_label_Action": 7}, ForeignLogError, "_label_Action 7, is not one of a"),
        ({"_labelIndex": 1}, ForeignLogError, "the index counts from 0"),
        ({"_label_cost": "1"}, ForeignLogError, "_label_cost is '1'"),
        ({"EventId": ...}, cmp.InvalidIdError, "EventId.* is None"),
        ({"pdrop": 1.0}, cmp.PositivityError, "pdrop is 1.0"),
        ({"c": {"_multi": [{"x": 1}] * 3}}, ForeignLogError, "neither _tag nor i.id.*pass id_of="),
        ({"_outcomes": [{"_a": [1, 0, 2], "_p": [0.8, 0.1, 0.1]}]}, ForeignLogError, "several slots that share"),
        ({"_outcomes": 3}, ForeignLogError, "_outcomes is no list of slots"),
    ],
)  # fmt: skip
def test_a_line_that_is_no_decision_is_named_with_what_it_lacks(tmp_path, more, kind, said):
    bad = {name: value for name, value in (decision(1, 1, -1.0) | more).items() if value is not ...}
    path = written(tmp_path, [decision(0, 1, -1.0), bad])
    with pytest.raises(kind, match=rf"line 2: .*{said}|{said} \(line 2"):
        read_dsjson(path)


def test_the_same_decision_twice_is_refused_with_both_lines(tmp_path):
    path = written(tmp_path, [decision(0, 1, -1.0), decision(1, 2, 0.0), decision(0, 1, -1.0)])
    with pytest.raises(
        ForeignLogError, match=r"6 rows share their round and memory with another \(lines 1, 3;"
    ):
        read_dsjson(path)


def test_ids_queries_and_episodes_come_from_the_callers_functions(tmp_path):
    lines = [decision(t, 1 + t % 3, -1.0, session=f"s{t // 2}") for t in range(6)]
    log = read_dsjson(
        written(tmp_path, lines),
        id_of=lambda action: action.get("_tag", "none"),
        query_of=lambda line: line["c"]["FromUrl"][0]["name"],
        episode_of=lambda line: line.get("session"),
        scope="site",
    )
    assert log.memories.to_list() == ["music", "news", "none"]
    assert log.per_round["group"].unique().to_list() == ["Ann"]
    assert log.per_round["episode_id"].to_list() == ["s0", "s0", "s1", "s1", "s2", "s2"]
    assert utilities_of_rows(log, by="query").frame["scope"].unique().to_list() == ["site"]
    with pytest.raises(ForeignLogError, match="line 1: <lambda> raised KeyError"):
        read_dsjson(written(tmp_path, lines), id_of=lambda action: action["name"])


def slate(number: int, taken: tuple[int, int], cost: float, **more: Any) -> dict[str, Any]:
    """Return a slate of two slots: three actions drawn by .5, .3, .2, and two by .6, .4."""
    tables = ([0.5, 0.3, 0.2], [0.6, 0.4])
    outcomes = []
    for own, p in zip(taken, tables, strict=True):
        order = [own, *(at for at in range(len(p)) if at != own)]
        outcomes.append({"_a": order, "_p": [p[at] for at in order]})
    actions = [
        {"_slot_id": slot, "_tag": f"{slot}{at}"} for slot, p in enumerate(tables) for at in range(len(p))
    ]
    line = {"_label_cost": cost, "_outcomes": outcomes, "EventId": f"e{number}"}
    return line | {"c": {"_multi": actions, "_slots": [{}, {}]}} | more


def test_slates_are_rounds_of_as_many_draws_as_slots(tmp_path):
    rng = np.random.default_rng(8)
    drawn = np.zeros((80, 5), bool)
    y = rng.normal(size=80)
    lines = []
    for t in range(80):
        taken = int(rng.choice(3, p=[0.5, 0.3, 0.2])), int(rng.choice(2, p=[0.6, 0.4]))
        drawn[t, [taken[0], 3 + taken[1]]] = True
        lines.append(slate(t, taken, -y[t]))
    found = utilities_of_rows(read_dsjson(written(tmp_path, lines))).frame
    expected = cmp.estimate(drawn, y, propensity=[0.5, 0.3, 0.2, 0.6, 0.4]).frame
    assert found["memory_id"].to_list() == ["00", "01", "02", "10", "11"]
    for name in ("n_exposed", "utility", "std_error", "p_value"):
        np.testing.assert_allclose(found[name].to_numpy(), expected[name].to_numpy(), rtol=1e-12, atol=1e-12)


def test_slates_without_the_probabilities_of_all_actions_are_refused(tmp_path):
    for outcomes, kind, said in (
        (
            [{"_a": 1, "_p": 0.3}, {"_a": [0, 1], "_p": [0.6, 0.4]}],
            cmp.PositivityError,
            "slot 0 has 3 actions and the",
        ),
        ([{"_a": [0, 1, 2], "_p": [0.5, 0.5, 0.2]}] * 2, cmp.PositivityError, "slot 0 add up to 1.2"),
        ([{"_a": [0, 1, 3], "_p": [0.5, 0.3, 0.2]}] * 2, ForeignLogError, "names none of its 3 actions"),
        ([{"_a": [0, 1], "_p": [0.5, 0.3, 0.2]}] * 2, ForeignLogError, "are not as many"),
        ([{}, {}], ForeignLogError, "names none of its 3 actions"),
    ):
        with pytest.raises(kind, match=f"line 1: .*{said}"):
            read_dsjson(written(tmp_path, [slate(0, (0, 0), 1.0, _outcomes=outcomes)]))
