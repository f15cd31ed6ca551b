"""``check_design``: balanced and uniform designs pass, and each way to go wrong is named."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from scipy.stats import binom

import cmp
from cmp.serving.policy import Policy
from cmp.testing import PropertyError, check_design
from cmp.testing.designs import _sum_test
from tests.serving.stores import store, wrapped

#: Sums of a few probabilities, in another order.
EXACT = 1e-12

PROPENSITY = "a memory is in a round with probability k / N"
PAIRS = "two memories share a round with probability k (k - 1) / (N (N - 1))"
LARGER = "who gets the larger count is uniformly random"
SAMPLE = "the rounds of a memory are a simple random sample"
BALANCE = "counts differ by one at most"
DISTINCT = "the memories of a row are distinct"
RANGE = "a table holds positions of the roster"


@pytest.mark.parametrize(
    ("n", "rounds", "k"), [(8, 12, 2), (5, 5, 1), (6, 9, 4), (3, 1, 2), (4, 0, 2), (5, 7, 0)]
)
def test_balanced_tables_pass(n, rounds, k):
    check = check_design(lambda seed: cmp.balanced_table(n, rounds, k, seed), n, draws=400)
    assert check.n_tables == 400
    assert check.least_p >= 1e-6
    assert (check.n_tests > 0) == (rounds * k > 0)


@pytest.mark.parametrize("allocation", ["balanced", "uniform"])
def test_policies_draw_as_their_propensities_say(allocation):
    policy = Policy(slots=4, random_slots=2, allocation=allocation, seed=1)
    check = check_design(policy, 7, draws=500)
    # seven memories in each of seven rounds, twenty-one pairs; where counts are balanced, seven neighbours
    assert check.n_tests == 49 + 21 + (7 if allocation == "balanced" else 0)


def test_a_wrapped_retriever_is_checked_by_its_policy(tmp_path):
    with wrapped(tmp_path, store(), random_slots=2, rounds_per_block=5, scope="s") as memory:
        assert check_design(memory, 8, draws=100).n_tests == 5 * 8 + 28 + 8 + 8


def test_one_table_is_checked_for_what_one_can_show():
    assert check_design(cmp.balanced_table(4, 400, 1, 5), 4).n_tests == 4
    with pytest.raises(
        PropertyError, match="100 of the 100 rounds of memory 0 are among the first 200 of 400"
    ) as failure:
        check_design(np.repeat(np.arange(4), 100)[:, None], 4)
    assert failure.value.property_name == SAMPLE


def cyclic(seed):
    """The right counts, whole neighbours: memory i only ever meets i + 1 and i - 1."""
    rng = np.random.default_rng(seed)
    table = (np.arange(8)[:, None] + np.arange(2)) % 8
    return (table + rng.integers(8))[rng.permutation(8)] % 8


def unshuffled(seed):
    """Passes one after the other: nobody is in two rounds running of one pass."""
    rng = np.random.default_rng(seed)
    return np.concatenate([rng.permutation(4) for _ in range(4)])[:, None]


def favouring(seed):
    """Memory 0 always gets the odd exposure."""
    rng = np.random.default_rng(seed)
    return rng.permutation(np.concatenate([np.repeat(np.arange(4), 2), [0]]))[:, None]


def fixed(seed):
    return cmp.balanced_table(4, 8, 1, 3)


def weighted(seed):
    """``Generator.choice`` with unequal weights: its inclusion probabilities are not k w."""
    rng = np.random.default_rng(seed)
    return [rng.choice(4, 2, replace=False, p=[0.4, 0.2, 0.2, 0.2]) for _ in range(4)]


def shared(seed):
    """Two memories that always come together."""
    rng = np.random.default_rng(seed)
    return [[0, 1] if rng.random() < 0.5 else [2, 3] for _ in range(6)]


@pytest.mark.parametrize(
    ("design", "n", "balanced", "broken", "message"),
    [
        (cyclic, 8, None, PAIRS, "a cyclic table has the right counts and the wrong pairs"),
        (unshuffled, 4, None, SAMPLE, "put the rows in random order"),
        (
            favouring,
            4,
            None,
            LARGER,
            "memory 0 has the larger count in 1000 of 1000 tables, and 250.0 are expected",
        ),
        (fixed, 4, None, PROPENSITY, "label the memories of a table"),
        (weighted, 4, False, PROPENSITY, "memory 0 is in round"),
        (shared, 4, False, PAIRS, "memories (0 and 1|2 and 3) share round 0"),
        (lambda seed: [[0, 1], [2, 2]], 3, None, DISTINCT, r"row 1 holds \[2, 2\]; draw without replacement"),
        (lambda seed: [[0], [1], [0], [0]], 3, None, BALANCE, "memory 0 is in 3 rounds and memory 2 in 0"),
        (lambda seed: [[0], [3]], 3, None, RANGE, "row 1 holds 3, and positions go from 0 to 2"),
        (lambda seed: [[0], [-1]], 3, None, RANGE, "row 1 holds -1"),
        (lambda seed: [[0.5], [1.0]], 3, None, RANGE, "whole numbers"),
        (lambda seed: [0, 1], 3, None, RANGE, r"shape \(2,\)"),
    ],
)
def test_each_fault_is_named_by_its_property(design, n, balanced, broken, message):
    with pytest.raises(PropertyError, match=message) as failure:
        check_design(design, n, balanced=balanced)
    assert failure.value.property_name == broken


def test_a_good_design_is_rejected_no_more_often_than_stated():
    """At a stated false alarm of 0.2, 100 checks of good designs: 36 or more has probability 1e-4 at most."""
    rejected = 0
    for block in range(100):
        try:
            check_design(
                lambda seed, block=block: cmp.balanced_table(4, 6, 2, 1000 * block + seed),
                4,
                draws=60,
                false_alarm=0.2,
            )
        except PropertyError:
            rejected += 1
    assert binom(100, 0.2).sf(35) < 1e-3
    assert rejected <= 35


def test_the_sum_of_unequal_chances_is_tested_exactly():
    """Every outcome of six events listed."""
    chances = np.array([0.1, 0.3, 0.3, 0.5, 0.9, 0.1])
    law = np.zeros(7)
    for outcome in product((0, 1), repeat=6):
        law[sum(outcome)] += np.prod(np.where(outcome, chances, 1 - chances))
    for total in range(7):
        wanted = min(1.0, 2 * min(law[: total + 1].sum(), law[total:].sum()))
        assert _sum_test(total, chances) == pytest.approx(wanted, abs=EXACT)


@pytest.mark.parametrize(
    ("design", "settings", "message"),
    [
        (lambda seed: [[0]], {"false_alarm": 0.0}, "false_alarm is 0.0"),
        (lambda seed: [[0]] * (seed + 1), {"balanced": False}, "draw them all alike"),
        (Policy(slots=2, random_slots=0), {}, "nothing is drawn"),
    ],
)
def test_what_cannot_be_checked_is_refused(design, settings, message):
    with pytest.raises(ValueError, match=message):
        check_design(design, 3, draws=3, **settings)
