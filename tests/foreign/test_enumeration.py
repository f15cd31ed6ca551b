"""Expectations over every draw a design might have made, through the rows people bring."""

from __future__ import annotations

from itertools import product

import numpy as np
import polars as pl
import pytest

import cmp
from cmp.estimation.from_rows import utilities_of_rows
from cmp.foreign import from_frame, read_obp

#: Rounding of sums over at most 81 draws.
EXACT = 1e-12


def rows(drawn: np.ndarray, chances: np.ndarray, outcomes: np.ndarray) -> pl.DataFrame:
    t, n = chances.shape
    at = np.repeat(np.arange(t), n)
    return pl.DataFrame(
        {
            "round_id": at,
            "memory_id": [f"m{m}" for m in range(n)] * t,
            "assigned": (drawn[:, None] == np.arange(n)).ravel(),
            "propensity": chances.ravel(),
            "outcome": outcomes[at],
        }
    )


def test_horvitz_thompson_over_rows_is_unbiased_under_propensities_that_vary_by_round():
    """Four rounds, three memories, one drawn a round with probabilities of its own; 81 draws."""
    chances = np.array([[0.2, 0.3, 0.5], [0.6, 0.1, 0.3], [0.25, 0.5, 0.25], [0.1, 0.7, 0.2]])
    # what the outcome of a round is if a memory is drawn: no two alike, and no memory's effect the same in all rounds
    potential = np.array([[0.0, 1.0, 5.0], [2.0, -1.0, 0.5], [7.0, 3.0, 3.0], [1.0, 1.0, -4.0]])
    expected, total = np.zeros(3), 0.0
    for draws in product(range(3), repeat=4):
        drawn = np.array(draws)
        probability = float(np.prod(chances[np.arange(4), drawn]))
        frame = rows(drawn, chances, potential[np.arange(4), drawn])
        found = utilities_of_rows(from_frame(frame), estimator="ht", weights="rounds").frame
        expected += probability * found["utility"].to_numpy()
        total += probability
    assert total == pytest.approx(1.0, abs=EXACT)
    for memory in range(3):
        others = [m for m in range(3) if m != memory]
        share = chances[:, others] / chances[:, others].sum(axis=1, keepdims=True)
        control = (share * potential[:, others]).sum(axis=1)
        assert expected[memory] == pytest.approx(np.mean(potential[:, memory] - control), abs=EXACT)


def test_the_chance_of_the_branch_that_was_taken_is_not_the_propensity():
    """Epsilon-greedy, epsilon .2 of ten: the greedy action has .82. Logged by branch, sums show it in every round."""
    n, rng = 10, np.random.default_rng(1)
    mixture = np.full(n, 0.02)
    mixture[0] = 0.82
    drawn = rng.choice(n, p=mixture, size=50)
    right = rows(drawn, np.tile(mixture, (50, 1)), np.ones(50))
    assert len(from_frame(right)) == 50
    # exploited: .8 for the greedy action; explored: a tenth of .2 for the action taken
    by_branch = right.with_columns(
        propensity=pl.when("assigned")
        .then(pl.when(pl.col("memory_id") == "m0").then(0.8).otherwise(0.1))
        .otherwise("propensity")
    )
    with pytest.raises(cmp.PositivityError, match="do not add up to the k = 1"):
        from_frame(by_branch)
    with pytest.raises(cmp.PositivityError, match="pscore are not what the distribution says"):
        read_obp(
            {
                "n_actions": n, "action": drawn, "reward": np.ones(50),
                "pscore": np.where(drawn == 0, 0.8, 0.02), "pi_b": np.tile(mixture, (50, 1)),
            }
        )  # fmt: skip


def test_one_outcome_of_four_and_four_rounds_has_the_standard_error_of_eight_rounds():
    """The case of record: +0.25, standard error .3818813, whatever number of rows a round has."""
    y = [1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.0]
    drawn = np.array([0] * 4 + [1, 2, 3, 4])
    frame = rows(drawn, np.full((8, 5), 0.2), np.array(y))
    row = utilities_of_rows(from_frame(frame), interval="neyman").frame.row(0, named=True)
    assert (row["n_exposed"], row["n_control"]) == (4, 4)
    assert row["utility"] == pytest.approx(0.25, abs=EXACT)
    assert row["std_error"] == pytest.approx(0.3818813, abs=5e-8)  # given to seven places
