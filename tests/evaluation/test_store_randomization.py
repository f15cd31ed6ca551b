"""Deleting from the store says nothing of what the ranker never shows, and the right thing of what it does."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest

from cmp.evaluation.deletions import unchanged_share
from cmp.evaluation.store_randomization import store_randomization

IDS = [f"m{i}" for i in range(10)]


def utilities(score, **settings):
    settings = {"slots": 3, "rounds": 200, "deleted": 2, "seed": 1, **settings}
    table = store_randomization(IDS, score, **settings)
    return dict(zip(table["memory_id"], table["utility"], strict=True)), table["unchanged"][0]


def test_a_memory_out_of_reach_has_no_effect_whatever_it_is_worth():
    found, _ = utilities(lambda ids: float("m9" in ids))
    assert set(found.values()) == {0.0}


def test_a_memory_always_shown_gets_its_whole_effect():
    found, _ = utilities(lambda ids: float("m0" in ids))
    assert found["m0"] == 1.0
    assert max(value for memory_id, value in found.items() if memory_id != "m0") < 0.2


def test_the_share_of_unchanged_contexts_is_the_hypergeometric_one():
    """Binomial bound of 4.9 standard errors (1e-6) over 4,000 rounds."""
    _, share = utilities(lambda ids: 0.0, rounds=4000)
    expected = unchanged_share(10, 2, 3)
    assert abs(share - expected) < 4.9 * (expected * (1 - expected) / 4000) ** 0.5


def test_estimates_average_to_the_effect_over_all_deletions():
    """Exact: the mean over every pair deleted of the outcome with a memory, less that without it."""
    score = lambda ids: float(len(set(ids) & {"m0", "m2", "m4"}))  # noqa: E731
    outcomes: dict[bool, list[float]] = {True: [], False: []}
    for gone in itertools.combinations(IDS, 2):
        top = [memory_id for memory_id in IDS if memory_id not in gone][:3]
        outcomes["m2" not in gone].append(score(top))
    truth = Fraction(sum(map(int, outcomes[True])), len(outcomes[True])) - Fraction(
        sum(map(int, outcomes[False])), len(outcomes[False])
    )
    draws = [utilities(score, rounds=45, seed=seed)[0]["m2"] for seed in range(200)]
    assert np.mean(draws) == pytest.approx(float(truth), abs=4.9 * np.std(draws) / 200**0.5)
