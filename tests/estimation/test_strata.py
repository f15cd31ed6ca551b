"""Stratified designs over every assignment: what the estimate and its variance are on average."""

from __future__ import annotations

from collections import defaultdict
from itertools import combinations, product

import numpy as np
import polars as pl
import pytest

from cmp.estimation import randomization_variance, utilities
from tests.estimation.logs import HandMadeLog

#: Means of up to a few hundred doubles of order 10.
EXACT = 1e-12


def every_scope(log: HandMadeLog, counts: list, **options) -> dict:
    """Return what each scope's ``m`` got, ``utility`` and squared ``std_error``, by its counts."""
    frame = (
        utilities(log, interval="neyman", **options).frame.filter(pl.col("memory_id") == "m").sort("scope")
    )
    groups = defaultdict(list)
    for key, utility, error in zip(counts, frame["utility"], frame["std_error"], strict=True):
        groups[key].append((utility, error**2))
    return groups


def shares(counts: list[tuple[int, int]], weights: str) -> np.ndarray:
    raw = np.array([n1 * n0 / (n1 + n0) if weights == "precision" else n1 + n0 for n1, n0 in counts], float)
    return raw / raw.sum()


def neyman(y1: np.ndarray, y0: np.ndarray, n1: int, n0: int) -> float:
    """Return the expectation of the Neyman estimate of one stratum, all of whose rounds might have been exposed."""
    return float(y1.var(ddof=1) / n1 + y0.var(ddof=1) / n0)


def check(groups: dict, strata: list[tuple[np.ndarray, np.ndarray]], weights: str) -> None:
    """Check, for each set of counts, both expectations and the true variance, over the assignments with it."""
    assert len(groups) > 1
    for counts, found in groups.items():
        share = shares(counts, weights)
        estimates, variances = np.array(found).T
        effects = np.array([(y1 - y0).mean() for y1, y0 in strata])
        true = sum(
            s**2 * randomization_variance(*y, n1) for s, y, (n1, _) in zip(share, strata, counts, strict=True)
        )
        usual = sum(s**2 * neyman(*y, *n) for s, y, n in zip(share, strata, counts, strict=True))
        assert estimates.mean() == pytest.approx(share @ effects, abs=EXACT)
        assert estimates.var() == pytest.approx(true, abs=EXACT)
        assert variances.mean() == pytest.approx(usual, abs=EXACT)
        assert usual >= true


@pytest.mark.parametrize("weights", ["precision", "rounds"])
def test_blocks_with_a_last_partial_one(weights):
    # the second block's table has six rows, of which five were used: two or three of them expose the memory
    rng = np.random.default_rng(0)
    strata = [(rng.normal(size=4), rng.normal(size=4)), (rng.normal(size=5) + 50, rng.normal(size=5) + 50)]
    log, counts = HandMadeLog(), []
    for nth, draws in enumerate(product(combinations(range(4), 2), combinations(range(6), 3))):
        scope, of_scope = f"s{nth:04}", []
        for chosen, length, (one, none) in zip(draws, (4, 6), strata, strict=True):
            block = f"{scope}-{length}"
            log.block(block, length, {"m": len(chosen), "other": length - len(chosen)}, scope)
            for t in range(len(one)):
                drawn = t in chosen
                name, y = ("m", one[t]) if drawn else ("other", none[t])
                log.round(f"{block}-{t}", block, t, [name], float(y), scope=scope)
            n1 = sum(t < len(one) for t in chosen)
            of_scope.append((n1, len(one) - n1))
        counts.append(tuple(of_scope))
    check(every_scope(log, counts, weights=weights), strata, weights)


@pytest.mark.parametrize("weights", ["precision", "rounds"])
def test_drawn_and_withheld_strata_of_one_memory(weights):
    # drawn among six rounds; ranked in five more, and kept there by the toss of a coin
    rng = np.random.default_rng(1)
    y1, y0 = rng.normal(size=11), rng.normal(size=11)
    tosses = [kept for kept in product([True, False], repeat=5) if sum(kept) in (2, 3)]
    log, counts = HandMadeLog(), []
    for nth, (chosen, kept) in enumerate(product(combinations(range(6), 3), tosses)):
        scope = f"s{nth:04}"
        log.block(scope, 11, {"m": 3, "other": 8}, scope)
        for t in range(11):
            shown = t in chosen if t < 6 else kept[t - 6]
            name, y = f"{scope}-{t}", float(y1[t] if shown else y0[t])
            log.round(name, scope, t, ["m" if t in chosen else "other"], y, scope=scope)
            if t >= 6:
                arm = "ranked" if shown else "withheld"
                more = {"assigned": False, "propensity": 0.5, "delivered": shown}
                log.add("exposures", round_id=name, memory_id="m", arm=arm, **more)
        counts.append(((3, 3), (sum(kept), 5 - sum(kept))))
    groups = every_scope(log, counts, weights=weights)
    check(groups, [(y1[:6], y0[:6]), (y1[6:], y0[6:])], weights)
