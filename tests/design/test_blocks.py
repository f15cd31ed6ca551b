"""Blocks: lengths, who gets the odd exposure, propensities, and reproducible draws."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections import Counter
from dataclasses import FrozenInstanceError
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cmp.design import block_generator, block_length, drawable_slots, plan_block, uniform_block


@pytest.mark.parametrize(
    ("n", "k", "allowed"), [(1, 1, 0), (2, 5, 1), (5, 5, 4), (0, 3, 0), (10, 0, 0), (32, 2, 2), (3, 2, 2)]
)
def test_at_least_one_memory_is_left_out_of_every_draw(n, k, allowed):
    assert drawable_slots(n, k) == allowed


@given(
    n=st.integers(2, 50),
    k=st.integers(1, 6),
    before=st.lists(st.integers(0, 9), min_size=50, max_size=50),
    length=st.integers(1, 60),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=100, deadline=None)
def test_propensities_are_counts_over_length_and_sum_to_k(n, k, before, length, seed):
    slots = drawable_slots(n, k)
    block = plan_block(n, slots, length, np.random.default_rng(seed), np.array(before[:n]))
    shares = [Fraction(int(count), block.length) for count in block.planned]
    assert sum(shares) == slots
    assert block.planned.max() - block.planned.min() <= 1
    assert (np.bincount(block.table.ravel(), minlength=n) == block.planned).all()


@given(
    n=st.integers(2, 30),
    k=st.integers(1, 3),
    length=st.integers(1, 40),
    seed=st.integers(0, 2**32),
    data=st.data(),
)
@settings(max_examples=100, deadline=None)
def test_the_odd_exposure_goes_to_the_least_exposed(n, k, length, seed, data):
    slots = drawable_slots(n, k)
    before = data.draw(st.lists(st.integers(0, 5), min_size=n, max_size=n))
    block = plan_block(n, slots, length, np.random.default_rng(seed), np.array(before))
    more = [before[i] for i in range(n) if block.planned[i] > length * slots // n]
    less = [before[i] for i in range(n) if block.planned[i] <= length * slots // n]
    assert not more or not less or max(more) <= min(less)


def test_capped_blocks_rotate_the_remainder_until_all_are_even():
    exposures = np.zeros(10, dtype=np.int64)
    for ordinal in range(5):
        block = plan_block(10, 2, 3, block_generator(1, "s", ordinal), exposures)
        assert set(block.planned.tolist()) <= {0, 1}
        exposures += block.planned
        assert exposures.max() - exposures.min() <= 1
    assert set(exposures.tolist()) == {3}


def test_used_rows_of_a_stopped_block_are_still_a_simple_random_sample():
    """Exact: over all orders of the rows, the first rows used hold every sample of them equally often."""
    table = np.array([[0], [1], [1], [0], [2], [2]])
    used: Counter[tuple[int, ...]] = Counter()
    for order in itertools.permutations(range(6)):
        first_four = table[list(order)][:4]
        where = tuple(np.flatnonzero(first_four[:, 0] == 0).tolist())
        used[where] += 1
    for count in (0, 1, 2):
        assert len({used[where] for where in itertools.combinations(range(4), count)}) == 1


def test_block_length_is_what_the_contract_says():
    assert block_length(32, 2) == 32
    assert block_length(33, 2) == 33
    assert block_length(5, 4, 1) == 2
    assert block_length(1_000_000, 2, 2, 500) == 500


def test_a_block_has_one_round_at_least():
    """One memory a slot and one exposure each is a single round; so is a cap of one, and so would be no roster."""
    assert block_length(2, 2, 1) == 1
    assert block_length(32, 2, max_block_rounds=1) == 1
    assert block_length(0, 2) == 1


def test_fractions_of_an_exposure_are_counted_exactly():
    """0.3 is a little less than 3/10 as a float, and 0.1 a little more than 1/10: the float is what counts."""
    assert block_length(10, 3, 0.3) == 1
    assert block_length(10, 1, 0.1) == 2
    assert block_length(12, 1, 0.5) == 6


def test_a_block_cannot_be_changed_and_is_equal_to_itself_alone():
    """Its arrays compare element by element, which is neither a truth value nor a hash."""
    block, same = uniform_block(4, 2), uniform_block(4, 2)
    with pytest.raises(FrozenInstanceError):
        block.length = 5
    assert block != same
    assert {block, same, block} == {same, block}


DRAW = """
from pathlib import Path
import sys, cmp
ids = [f"m{i}" for i in range(12)]
for number, given in enumerate((ids, ids[::-1], set(ids))):
    for pool in (lambda: given, lambda: iter(given)):
        path = Path(sys.argv[1]) / f"{number}{pool().__class__.__name__}.db"
        for allocation in ("balanced", "uniform"):
            memory = cmp.wrap(lambda q: [], list_ids=pool, get=list, slots=2, random_slots=2, seed=5,
                allocation=allocation, log=path, scope=cmp.EVERYTHING)
            print(allocation, [[i.id for i in memory.retrieve("q", round_id=f"{allocation}{r}").items]
                for r in range(15)])
"""


def test_draws_do_not_depend_on_hash_seed_or_order_or_kind_of_the_listing(tmp_path):
    printed = set()
    for salt in ("0", "1", "2"):
        (tmp_path / salt).mkdir()
        out = subprocess.run(
            [sys.executable, "-c", DRAW, str(tmp_path / salt)],
            env={**os.environ, "PYTHONHASHSEED": salt},
            capture_output=True,
            text=True,
            check=True,
        )
        printed |= set(out.stdout.splitlines())
    assert len(printed) == 2


def test_blocks_and_streams_draw_from_independent_generators():
    firsts = {
        int(block_generator(7, stream, ordinal).integers(2**60))
        for stream in ("a", "b")
        for ordinal in range(500)
    }
    assert len(firsts) == 1000
    assert block_generator(None, "a", 0).integers(2**60) != block_generator(None, "a", 0).integers(2**60)


def test_a_thousand_seeded_blocks_expose_each_memory_at_its_propensity():
    """Each memory is in a given round with probability k/N = 0.2; the bound is 4.9 sigma (1e-6 a memory)."""
    hits: Counter[int] = Counter()
    for ordinal in range(1000):
        hits.update(plan_block(10, 2, 10, block_generator(3, "s", ordinal)).table[4].tolist())
    sigma = (1000 * 0.2 * 0.8) ** 0.5
    assert all(abs(hits[i] - 200) < 4.9 * sigma for i in range(10))


def test_the_uniform_design_has_the_same_propensity_for_all():
    block = uniform_block(10, 3)
    assert set((block.planned / block.length).tolist()) == {0.3}
    assert block.table is None
