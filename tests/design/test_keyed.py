"""Keyed draws: golden vectors, exact uniformity of the method, and independence of keys."""

from __future__ import annotations

from collections import Counter
from itertools import combinations, permutations, product
from math import comb, factorial

import pytest
from scipy.stats import chi2

from cmp.design import key_of, keyed_fraction, keyed_permutation, keyed_sample
from cmp.design import keyed as module


def test_golden_vectors_hold_on_every_machine_and_version():
    """Served memories are a function of these: a change here is a change of every retry's assignment."""
    assert key_of("draw", 7, "scope", "round") == GOLDEN_KEY
    assert keyed_sample(key_of("draw", 1), 1_000_000, 3) == GOLDEN_SAMPLE
    assert keyed_permutation(key_of("draw", 2), 6) == GOLDEN_ORDER


@pytest.mark.parametrize(("n", "k"), [(4, 2), (5, 3), (4, 4), (3, 0), (6, 1)])
def test_every_ordered_sample_is_equally_likely(monkeypatch, n, k):
    """Exact: the method is run over every outcome of its uniform draws below n-k+1, ..., n."""
    seen: Counter[tuple[int, ...]] = Counter()
    for outcome in product(*(range(top + 1) for top in range(n - k, n))):
        draws = iter(outcome)
        monkeypatch.setattr(module, "_below", lambda key, bound, draws=draws: next(draws))
        seen[keyed_sample(0, n, k)] += 1
    sets: Counter[frozenset[int]] = Counter()
    for order, count in seen.items():
        sets[frozenset(order)] += count
    assert len(sets) == comb(n, k)
    assert len(set(sets.values())) == 1
    assert set(seen) == {order for chosen in combinations(range(n), k) for order in permutations(chosen)}
    assert len(set(seen.values())) == 1


def test_keys_of_different_rounds_give_uniform_samples():
    """Chi-square over the 120 orders of 5; false failure below 1e-6."""
    draws = 24_000
    seen = Counter(keyed_permutation(key_of("round", i), 5) for i in range(draws))
    expected = draws / factorial(5)
    statistic = sum((seen[order] - expected) ** 2 / expected for order in permutations(range(5)))
    assert chi2.sf(statistic, factorial(5) - 1) > 1e-6


def test_shares_of_keyed_fractions_are_the_share_asked_for():
    below = sum(keyed_fraction(key_of("holdout", i)) < 0.1 for i in range(20_000))
    assert abs(below - 2000) < 4.9 * (20_000 * 0.09) ** 0.5


def test_keys_tell_apart_what_concatenation_would_not():
    keys = {
        key_of("ab", "c"),
        key_of("a", "bc"),
        key_of("abc"),
        key_of("ab", "c", ""),
        key_of(1, 2),
        key_of(12),
    }
    assert len(keys) == 6


@pytest.mark.parametrize(("n", "k"), [(2, 3), (3, -1), (0, 1)])
def test_more_than_there_are_or_less_than_none_cannot_be_drawn(n, k):
    with pytest.raises(ValueError, match=f"cannot draw {k} of {n}"):
        keyed_sample(0, n, k)


GOLDEN_KEY = 9441383461025544874456577426245930844
GOLDEN_SAMPLE = (82079, 855067, 912508)
GOLDEN_ORDER = (1, 4, 5, 0, 2, 3)
