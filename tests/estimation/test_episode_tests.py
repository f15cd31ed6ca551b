"""Where whole episodes are drawn together, an exact test has as many draws as there are episodes, not rounds."""

from __future__ import annotations

from collections import defaultdict
from itertools import combinations, product

import numpy as np
import pytest
from scipy.stats import fisher_exact

from cmp.estimation import utilities
from cmp.estimation.clustered import newcombe_p_values
from cmp.estimation.exact_tests import conditional_p_values
from tests.estimation.logs import HandMadeLog, two_arms
from tests.estimation.test_clustered import listed, row

#: Sums of a few hundred doubles of order 1.
EXACT = 1e-12

#: Rounds of the episodes of two blocks, and whether each ends well.
SIZES = ((1, 2, 3, 2, 1), (3, 1, 2, 2, 4, 1))
ENDS = ((1, 1, 0, 1, 0), (0, 1, 0, 1, 1, 0))


def add_blocks(log: HandMadeLog, chosen, scope="s", sizes=SIZES, ends=ENDS) -> None:
    """Append blocks of whole episodes, those chosen drawn for ``m``."""
    for block, (mine, size, end) in enumerate(zip(chosen, sizes, ends, strict=True)):
        name, t = f"{scope}{block}", 0
        n1 = sum(size[e] for e in mine)
        log.block(name, sum(size), {"m": n1, "other": sum(size) - n1}, scope)
        for e, (n, y) in enumerate(zip(size, end, strict=True)):
            for _ in range(n):
                drawn = ["m" if e in mine else "other"]
                log.round(
                    f"{name}-{t}", name, t, drawn, float(y), scope=scope, episode_id=f"{scope}{block}{e}"
                )
                t += 1


@pytest.mark.parametrize(
    "ends", [ENDS, ((1, 0, 0, 0, 0), (0, 0, 0, 0, 1, 0)), ((1, 0, 1, 0, 0), (0, 1, 0, 1, 1, 1))]
)
def test_over_every_draw_of_whole_episodes_no_p_value_comes_too_often(ends):
    log = HandMadeLog()
    draws = list(product(combinations(range(5), 2), combinations(range(6), 2)))
    for i, chosen in enumerate(draws):
        add_blocks(log, chosen, f"s{i:03}", ends=ends)
    p = np.sort(utilities(log).frame.filter(memory_id="m")["p_value"].to_numpy())
    assert len(p) == len(draws) == 150
    last = np.searchsorted(p, p, side="right")  # how many are as small
    assert (last / len(p) <= p + EXACT).all()
    assert p.min() < 0.4


def test_it_is_fishers_test_of_episodes_where_that_is_the_larger():
    rng, larger = np.random.default_rng(3), 0
    for _ in range(40):
        ys = (rng.random(13) < 0.4).astype(float)
        log = two_arms(np.repeat(ys[:4], 3), np.repeat(ys[4:], 3))
        for t, entry in enumerate(log.rows["rounds"]):
            entry["episode_id"] = f"e{t // 3}"
        x1, x0 = ys[:4].sum(), ys[4:].sum()
        fisher = fisher_exact([[x1, 4 - x1], [x0, 9 - x0]]).pvalue
        score = newcombe_p_values(*(np.array([v]) for v in (x1 / 4, 4.0, x0 / 9, 9.0)))[0]
        larger += fisher > score
        assert row(log)["p_value"] == pytest.approx(max(fisher, score), abs=1e-9)
    assert larger >= 5


def random_whole_episodes(seed: int) -> HandMadeLog:
    """Two blocks of whole episodes, some of one round, with ranked rounds and outcomes that are missing."""
    rng, log = np.random.default_rng(seed), HandMadeLog()
    sizes = [rng.integers(1, 4, 7).tolist() for _ in range(2)]
    ends = [rng.integers(0, 2, 7).tolist() for _ in range(2)]
    add_blocks(log, [rng.choice(7, 3, replace=False) for _ in range(2)], sizes=sizes, ends=ends)
    for exposure in log.rows["exposures"]:
        if exposure["memory_id"] == "other" and rng.random() < 0.15:
            log.add(
                "exposures", round_id=exposure["round_id"], memory_id="m", arm="ranked", assigned=False,
                delivered=True,
            )  # fmt: skip
    log.rows["outcomes"] = [outcome for outcome in log.rows["outcomes"] if rng.random() < 0.85]
    return log


def by_episode(log: HandMadeLog) -> float:
    """Return the p-value by going through the rounds."""
    found = defaultdict(dict)
    for block, episode, drawn, y in listed(log, "m"):
        found[block][episode] = (drawn, y)
    strata = np.zeros((len(found), 4), dtype=np.int64)  # x1, n1, x0, n0
    for counts, episodes in zip(strata, found.values(), strict=True):
        for drawn, y in episodes.values():
            counts[0 if drawn else 2] += int(y)
            counts[1 if drawn else 3] += 1
    return float(conditional_p_values(np.zeros(len(strata), dtype=np.int64), *strata.T, 1)[0])


@pytest.mark.parametrize("seed", range(12))
def test_it_is_what_going_through_every_round_gives(seed, monkeypatch):
    monkeypatch.setattr(
        "cmp.estimation.clustered.score_p_values", lambda sums, outcomes: np.zeros(len(sums.gap))
    )
    log = random_whole_episodes(seed)
    want = by_episode(log)
    got = row(log)["p_value"]
    for entry in log.rows["rounds"]:
        entry["episode_id"] = None
    assert got == pytest.approx(max(want, row(log)["p_value"]), abs=EXACT)


@pytest.mark.parametrize("change", ["torn", "mixed", "across"])
def test_episodes_that_are_not_whole_are_not_counted_as_one(change, monkeypatch):
    """One lies in both arms, has two outcomes, or runs on into the next block."""
    monkeypatch.setattr(
        "cmp.estimation.clustered.score_p_values", lambda sums, outcomes: np.zeros(len(sums.gap))
    )
    log = HandMadeLog()
    add_blocks(log, ((0, 1), (3, 4)))
    whole = row(log)["p_value"]
    if change == "torn":
        log.rows["rounds"][0]["episode_id"] = log.rows["rounds"][4]["episode_id"]
    elif change == "mixed":
        log.rows["outcomes"][1]["value"] = 0.0
    else:
        log.rows["rounds"][-1]["episode_id"] = "s01"
    got = row(log)["p_value"]
    for entry in log.rows["rounds"]:
        entry["episode_id"] = None
    assert got == row(log)["p_value"]
    assert whole != got
