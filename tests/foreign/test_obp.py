"""Open Bandit Pipeline's dictionary: what it says of the actions not taken, and what it does not."""

from __future__ import annotations

import math
from itertools import permutations
from typing import Any

import numpy as np
import pytest

import cmp
from cmp.estimation.from_rows import utilities_of_rows
from cmp.foreign import ForeignLogError, read_obp

#: Both tables are made of exact sums; what is left is a division's rounding.
ROUNDING = 1e-12


def single(
    n: int = 4, rounds: int = 80, seed: int = 1, logits: bool = False, positions: int = 1
) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    weights = np.exp(rng.normal(size=(rounds, n, positions)) if logits else np.zeros((rounds, n, positions)))
    pi = weights / weights.sum(axis=1, keepdims=True)
    position = rng.integers(positions, size=rounds)
    action = np.array([rng.choice(n, p=pi[t, :, position[t]]) for t in range(rounds)])
    return {
        "n_rounds": rounds,
        "n_actions": n,
        "context": np.zeros((rounds, 2)),
        "action_context": np.eye(n),
        "action": action,
        "position": position if positions > 1 else None,
        "reward": rng.integers(0, 2, rounds),
        "pscore": pi[np.arange(rounds), action, position],
        "pi_b": pi,
    }


def slates(
    n: int = 5, length: int = 2, number: int = 60, seed: int = 1, logits: bool = True
) -> dict[str, Any]:
    """Return slates drawn by logits without repetition, with the probabilities of whole slates and of positions."""
    rng = np.random.default_rng(seed)
    possible = np.array(list(permutations(range(n), length)))
    columns: dict[str, list[Any]] = {
        name: [] for name in ("action", "reward", "pscore", "pscore_item_position")
    }
    marginals = np.zeros((number, n, length))
    for s in range(number):
        weight = np.exp(rng.normal(size=n)) if logits else np.ones(n)
        chance = np.ones(len(possible))
        for row, slate in enumerate(possible):
            for place in range(length):
                chance[row] *= weight[slate[place]] / (weight.sum() - weight[slate[:place]].sum())
        for place in range(length):
            np.add.at(marginals[s, :, place], possible[:, place], chance)
        drawn = rng.choice(len(possible), p=chance / chance.sum())
        columns["action"] += possible[drawn].tolist()
        columns["reward"] += rng.integers(0, 2, length).tolist()
        columns["pscore"] += [chance[drawn]] * length
        columns["pscore_item_position"] += [marginals[s, possible[drawn, at], at] for at in range(length)]
    return {
        "n_rounds": number,
        "n_unique_action": n,
        "slate_id": np.repeat(np.arange(number), length),
        "position": np.tile(np.arange(length), number),
        **{name: np.array(values) for name, values in columns.items()},
        "marginals": marginals,
    }


def same(found: Any, expected: Any) -> None:
    for name in ("n_exposed", "n_control", "utility", "std_error", "ci_low", "ci_high", "p_value"):
        np.testing.assert_allclose(
            found[name].to_numpy(), expected[name].to_numpy(), rtol=ROUNDING, atol=ROUNDING, err_msg=name
        )


def test_the_logging_policys_distribution_weighs_rounds_as_arrays_do():
    feedback = single(logits=True)
    drawn = feedback["action"][:, None] == np.arange(4)
    expected = cmp.estimate(
        drawn, feedback["reward"], propensity=feedback["pi_b"][:, :, 0], estimator="hajek"
    ).frame
    same(utilities_of_rows(read_obp(feedback), estimator="hajek").frame, expected)
    dist = feedback.pop("pi_b")
    for given in (dist, dist[:, :, 0]):
        same(utilities_of_rows(read_obp(feedback, action_dist=given), estimator="hajek").frame, expected)


def test_positions_are_strata():
    feedback = single(positions=3, rounds=120)
    del feedback["pi_b"]
    drawn = feedback["action"][:, None] == np.arange(4)
    expected = cmp.estimate(drawn, feedback["reward"], feedback["position"], propensity=0.25).frame
    same(utilities_of_rows(read_obp(feedback)).frame, expected)


@pytest.mark.parametrize("kind", [np.float64, np.float32])
def test_a_policy_that_is_the_same_in_all_rounds_follows_from_pscore(kind):
    chances = np.array([0.5, 0.3, 0.2])
    action = np.array([0, 1, 0, 2, 0, 1, 0, 2, 1, 0])
    feedback = {
        "n_actions": 3,
        "action": action,
        "reward": action % 2,
        "pscore": chances[action].astype(kind),
    }
    log = read_obp(feedback, names=["x", "y", "z"])
    assert log.roster is not None
    np.testing.assert_allclose(log.roster["propensity"].to_numpy(), chances, rtol=1e-6)
    drawn = action[:, None] == np.arange(3)
    same(utilities_of_rows(log).frame, cmp.estimate(drawn, action % 2, propensity=chances).frame)


def test_an_action_that_was_never_taken_is_known_under_a_uniform_policy_alone():
    feedback = {
        "n_actions": 4,
        "action": np.array([0, 1, 2, 0]),
        "reward": np.ones(4),
        "pscore": np.full(4, 0.25),
    }
    assert utilities_of_rows(read_obp(feedback)).frame["state"].to_list()[-1] == "NEVER_EXPOSED"
    with pytest.raises(cmp.PositivityError, match=r"does not follow from it.*pass action_dist="):
        read_obp(feedback | {"pscore": np.full(4, 0.3)})
    # the least of each action's would add up
    for chances, action in (([0.5, 0.5, 0.9, 0.5], [0, 1, 0, 1]), ([0.5, 0.3, 0.2, 0.9], [0, 1, 2, 0])):
        taken = {"n_actions": max(action) + 1, "action": np.array(action), "reward": np.ones(4)}
        with pytest.raises(cmp.PositivityError, match="does not follow from it"):
            read_obp(taken | {"pscore": np.array(chances)})
    varied = single(logits=True)
    del varied["pi_b"]
    with pytest.raises(cmp.PositivityError, match="does not follow from it"):
        read_obp(varied)


def test_a_memorys_propensity_is_that_of_any_position_of_the_slate():
    """Neither pscore (of the slate) nor pscore_item_position (of a position): they add up to k over memories."""
    feedback = slates()
    inclusion = feedback["marginals"].sum(axis=2)
    np.testing.assert_allclose(inclusion.sum(axis=1), 2.0, rtol=1e-12)
    drawn = np.zeros((60, 5), bool)
    drawn[feedback["slate_id"], feedback["action"]] = True
    reward = np.bincount(feedback["slate_id"], weights=feedback["reward"])
    expected = cmp.estimate(drawn, reward, propensity=inclusion, estimator="ht").frame
    log = read_obp(feedback, action_dist=feedback["marginals"])
    same(utilities_of_rows(log, estimator="ht").frame, expected)
    with pytest.raises(cmp.PositivityError, match="is in a slate does not follow from pscore"):
        read_obp(feedback)


@pytest.mark.parametrize("known", ["pscore", "pscore_item_position"])
def test_uniform_slates_are_known_from_either_score(known):
    feedback = slates(logits=False)
    for name in ("pscore", "pscore_item_position", "marginals"):
        if name != known:
            del feedback[name]
    log = read_obp(feedback)
    assert log.roster is not None
    assert log.roster["propensity"].to_list() == [2 / 5] * 5
    drawn = np.zeros((60, 5), bool)
    drawn[feedback["slate_id"], feedback["action"]] = True
    reward = np.bincount(feedback["slate_id"], weights=feedback["reward"])
    same(utilities_of_rows(log).frame, cmp.estimate(drawn, reward, propensity=2 / 5).frame)


def test_slates_in_any_order_of_rows_are_the_same():
    feedback = slates(logits=False)
    order = np.random.default_rng(1).permutation(120)
    mixed = {name: value[order] if np.shape(value) == (120,) else value for name, value in feedback.items()}
    assert utilities_of_rows(read_obp(mixed)).frame.equals(utilities_of_rows(read_obp(feedback)).frame)


@pytest.mark.parametrize(
    ("change", "kind", "said"),
    [
        ({"action": None}, ForeignLogError, "no 'action'"),
        ({"action": np.zeros(80)}, ForeignLogError, "whole numbers"),
        ({"action": np.full(80, 9)}, ForeignLogError, "action 9 at index 0 is not one of 0 to 3"),
        ({"action": np.full(80, -1)}, ForeignLogError, "whole numbers from 0"),
        ({"action": np.array([object()] * 80)}, ForeignLogError, "array of object"),
        ({"reward": np.ones(79)}, ForeignLogError, r"reward has shape \(79,\)"),
        ({"reward": np.full(80, np.inf)}, ForeignLogError, "infinite at index 0"),
        ({"reward": np.array(["1"] * 80)}, ForeignLogError, "give numbers"),
        ({"pscore": np.full(80, 0.4)}, cmp.PositivityError, "80 entries of pscore are not what the distribution says"),
        ({"pi_b": np.full((80, 4, 1), 0.3), "pscore": np.full(80, 0.3)}, cmp.PositivityError, "do not add up"),
        ({"pi_b": np.full((80, 4, 1), 1.3)}, cmp.PositivityError, "outside 0 to 1"),
        ({"pi_b": np.full((80, 4, 1), np.nan)}, cmp.PositivityError, "outside 0 to 1 or NaN"),
        ({"pi_b": np.full((7, 4), 0.25)}, ForeignLogError, r"distribution has shape \(7, 4\)"),
        ({"pi_b": None, "n_actions": None}, ForeignLogError, "how many actions"),
    ],
)  # fmt: skip
def test_feedback_that_does_not_hold_together_is_refused(change, kind, said):
    assert len(read_obp(single())) == 80
    with pytest.raises(kind, match=said):
        read_obp(single() | change)


def test_slates_that_do_not_hold_together_are_refused():
    feedback = slates(logits=False)
    for change, said in (
        ({"position": np.zeros(120, int)}, "each of their 1 positions once"),
        ({"slate_id": np.r_[0, 0, 0, np.repeat(np.arange(1, 60), 2)[1:]]}, "each of their 2 positions once"),
        ({"action": np.zeros(120, int)}, "shows an action twice"),
    ):
        with pytest.raises(ForeignLogError, match=said):
            read_obp(feedback | change)
    with pytest.raises(ForeignLogError, match="not numbered 0, 1"):
        read_obp(feedback | {"slate_id": feedback["slate_id"] + 1}, action_dist=feedback["marginals"])
    with pytest.raises(ForeignLogError, match="distribution has 3 positions"):
        read_obp(feedback, action_dist=np.full((60, 5, 3), 0.2))
    with pytest.raises(cmp.PositivityError, match="pscore_item_position are not what"):
        read_obp(
            feedback | {"pscore_item_position": np.full(120, 1 / math.pi)}, action_dist=feedback["marginals"]
        )


def test_names_are_ids_and_files_are_not_opened():
    feedback = single()
    assert read_obp(feedback, names=list("abcd")).memories.to_list() == list("abcd")
    for names, kind, said in (
        (list("abc"), ForeignLogError, "3 different ids for 4"),
        (list("abca"), ForeignLogError, "3 different ids for 4"),
        ([1, "1", 2, 3], cmp.InvalidIdError, "would write"),
    ):
        with pytest.raises(kind, match=said):
            read_obp(feedback, names=names)
    with pytest.raises(ForeignLogError, match="not unpickled"):
        read_obp("feedback.pkl")  # type: ignore[arg-type]


def test_a_missing_reward_is_missing():
    feedback = single()
    reward = feedback["reward"].astype(float)
    reward[3] = np.nan
    log = read_obp(feedback | {"reward": reward})
    assert log.per_round["outcome"].null_count() == 1
