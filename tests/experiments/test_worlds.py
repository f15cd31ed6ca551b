"""The truth that coverage is measured against, and the rival that it is measured for."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from experiments.rivals import bootstrap_fixed_weights
from experiments.worlds import KINDS, Size, World, make_world

#: Closed forms against sums over every set of memories.
EXACT = 1e-12


def listed_truth(world: World) -> np.ndarray:
    """Every set of k memories shown in a round, equally likely, with and without each memory."""
    size = world.size
    truth = np.zeros(size.memories)
    for m in range(size.memories):
        means: dict[bool, list[float]] = {True: [], False: []}
        for shown in combinations(range(size.memories), size.k):
            mean = world.level + world.effect[list(shown)].sum()
            means[m in shown].append(float((np.clip(mean, 0, 1) if world.bounded else mean).mean()))
        truth[m] = np.mean(means[True]) - np.mean(means[False])
    return truth


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [Size(9, 6, 1), Size(9, 6, 2), Size(8, 7, 3)])
def test_the_truth_is_what_listing_every_context_gives(kind, size):
    world = make_world(kind, size, seed=3)
    np.testing.assert_allclose(world.truth, listed_truth(world), atol=EXACT)


@pytest.mark.parametrize("kind", KINDS)
def test_noise_keeps_the_mean(kind):
    # 40,000 outcomes a kind, standard deviations at most 2: 5 standard errors are 0.05
    world = make_world(kind, Size(4, 3, 1), seed=4)
    mean = np.full(40_000, 0.4)
    assert world.noise(mean, np.random.default_rng(5)).mean() == pytest.approx(0.4, abs=0.05)


def test_the_bootstrap_resamples_products_with_fixed_weights():
    # all outcomes 1: the products still vary, as the weights' sums are not resampled with them
    z = np.zeros((20, 1), bool)
    z[:4] = True
    low, high = bootstrap_fixed_weights(z, np.ones(20), np.array([0.2]), np.random.default_rng(6))
    assert low[0] < -0.5
    assert high[0] > 0.5
