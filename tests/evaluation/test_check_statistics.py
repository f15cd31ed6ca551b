"""The tests among a log's checks: each p-value is that of the design, enumerated or in closed form."""

from __future__ import annotations

from collections import Counter
from itertools import permutations
from math import comb

import numpy as np
import polars as pl
import pytest
from scipy.stats import binom, hypergeom

from cmp.evaluation.design_checks import check_lost_rounds
from cmp.evaluation.diagnostics import _table
from cmp.evaluation.evidence import Evidence, Verdict, least_p
from cmp.evaluation.outcome_checks import HITS_ENOUGH, PERMUTATIONS, PERMUTED_AT_MOST, _exchanged_p
from tests.damage import exposure
from tests.evaluation.served import damage, serve, verdict
from tests.serving.stores import store, wrapped

#: Sums of exact probabilities: rounding only.
EXACT = 1e-12


def _two_sided(points, seen):
    return points[points <= points[seen] * (1 + 1e-7)].sum()


def test_sample_ratio_p_values_are_those_of_the_design(tmp_path):
    """One started block: hypergeometric; by key: binomial. Bonferroni over the memories of the roster."""
    memory = serve(tmp_path, 31, n=6, rounds_per_block=50, random_slots=1)
    counts = Counter(memory.log.exposures().filter(pl.col("assigned")).collect()["memory_id"].to_list())
    planned = dict(memory.log.rosters().collect().select("memory_id", "planned").iter_rows())
    ps = []
    for memory_id, total in planned.items():
        law = hypergeom(50, total, 31)
        points = law.pmf(np.arange(total + 1))
        ps.append(points[points <= law.pmf(counts[memory_id]) * (1 + 1e-7)].sum())
    assert verdict(memory.log, "sample ratio")["p_value"] == pytest.approx(min(1, 6 * min(ps)), abs=EXACT)
    keyed = serve(tmp_path, 40, n=6, random_slots=2, allocation="uniform", name="u.db")
    counts = Counter(keyed.log.exposures().filter(pl.col("assigned")).collect()["memory_id"].to_list())
    points = binom(40, 1 / 3).pmf(np.arange(41))
    ps = [points[points <= points[counts[f"m{i}"]] * (1 + 1e-7)].sum() for i in range(6)]
    assert verdict(keyed.log, "sample ratio")["p_value"] == pytest.approx(min(1, 6 * min(ps)), abs=EXACT)


def test_a_sample_ratio_over_two_rosters_is_the_sum_of_its_binomials(tmp_path):
    """Drawn by key from 6 memories, then from 7: a convolution, whatever the order of blocks."""
    base = store(6)
    memory = wrapped(tmp_path, base, random_slots=2, allocation="uniform")
    for number in range(50):
        if number == 20:
            base.scopes["s"]["new"] = base.scopes["s"]["m0"]
            memory.refresh("s")
        memory.retrieve("q", scope="s", round_id=f"r{number}")
    memory.flush()
    counts = Counter(memory.log.exposures().filter(pl.col("assigned")).collect()["memory_id"].to_list())
    sizes = memory.log.rounds().collect().group_by("n_roster").len().sort("n_roster")
    assert sizes.rows() == [(6, 20), (7, 30)]
    both = np.convolve(binom(20, 2 / 6).pmf(np.arange(21)), binom(30, 2 / 7).pmf(np.arange(31)))
    ps = [_two_sided(both, counts[f"m{i}"]) for i in range(6)]
    ps.append(_two_sided(binom(30, 2 / 7).pmf(np.arange(31)), counts["new"]))
    assert verdict(memory.log, "sample ratio")["p_value"] == pytest.approx(min(1, 7 * min(ps)), abs=EXACT)


def test_lost_rounds_are_tested_exactly(tmp_path):
    """Of 30 rows, 8 lost: how many of them held a memory is hypergeometric, given how many rows did."""
    memory = serve(tmp_path, 30, n=6, rounds_per_block=30, random_slots=1)
    lost = [f"r{number:03}" for number in (1, 2, 3, 5, 8, 13, 21, 22)]
    rows = memory.log.exposures().filter(pl.col("assigned")).collect()
    gone = Counter(rows.filter(pl.col("round_id").is_in(lost))["memory_id"].to_list())
    ps = []
    for memory_id, total in Counter(rows["memory_id"].to_list()).items():
        ps.append(_two_sided(hypergeom(30, total, 8).pmf(np.arange(total + 1)), gone[memory_id]))
    for table in ("rounds", "exposures", "outcomes"):
        damage(memory, f"DELETE FROM {table} WHERE round_id IN {tuple(lost)}")
    found = check_lost_rounds(Evidence.of(memory.log, "reward"))
    assert found.p_value == pytest.approx(min(1.0, 6 * min(ps)), abs=EXACT)


def test_cards_are_compared_over_every_exchange_of_their_labels():
    """Enumerated: 2 blocks of 4 rounds and 3 cards, whichever of the 144 arrangements was drawn.

    An estimate that stops at h hits has a relative error of 1 / sqrt(h), and counts itself as a hit. At 5 standard
    errors 144 comparisons fail falsely with probability below 1e-3; the seed of the permutations is fixed.
    """
    y = np.array([0.3, 1.2, 0.1, 2.0, 0.9, 0.4, 1.1, 0.2])
    label, block = np.array([0, 1, 2, 1, 0, 1, 0, 2]), np.repeat([0, 1], 4)
    centred = y - np.repeat([y[:4].mean(), y[4:].mean()], 4)
    arrangements = [
        np.array([*first, *second])
        for first in sorted(set(permutations(label[:4].tolist())))
        for second in sorted(set(permutations(label[4:].tolist())))
    ]
    squares = np.array(
        [sum(centred[a == c].sum() ** 2 / (a == c).sum() for c in range(3)) for a in arrangements]
    )
    for labels, seen in zip(arrangements, squares, strict=True):
        exact = np.mean(squares >= seen - EXACT)
        error = (exact**2 * (1 - exact) / HITS_ENOUGH) ** 0.5
        assert abs(_exchanged_p(y, labels, block) - exact) < 5 * error + exact / HITS_ENOUGH + EXACT
    assert _exchanged_p(np.ones(8), label, block) == 1.0


def test_many_cards_are_compared_as_the_permutations_would():
    """Beyond some thousand rounds the statistic's chi-square takes over. At p = 0.003 they agree to 0.003."""
    rng = np.random.default_rng(5)
    label, block = rng.integers(0, 4, PERMUTED_AT_MOST), np.repeat(np.arange(PERMUTED_AT_MOST // 20), 20)
    y = rng.exponential(size=PERMUTED_AT_MOST) + block % 7 + 0.04 * label
    permuted = _exchanged_p(y, label, block)
    more = _exchanged_p(np.r_[y, 1.0], np.r_[label, 0], np.r_[block, block[-1] + 1])
    assert permuted < 0.01
    assert abs(permuted - more) < 0.003


def test_cards_that_differ_for_certain_are_found_at_any_level_and_never_have_a_p_value_of_0():
    """What no permutation reaches has the p-value of the chi-square: here e^-29.5, of 59 on 2 degrees of freedom."""
    label = np.arange(60) % 3
    found = _exchanged_p(label.astype(float), label, np.zeros(60, dtype=int))
    assert found == pytest.approx(np.exp(-59 / 2), rel=1e-9)


def test_no_p_value_of_cards_is_below_the_share_of_one_arrangement():
    """15 rounds of two cards, one held 5 times: of 3003 arrangements one is the most extreme, whatever a chi-square."""
    for sizes in ((5, 10), (7, 8), (9, 9)):
        label = np.repeat([0, 1], sizes)
        found = _exchanged_p(label.astype(float), label, np.zeros(len(label), dtype=int))
        assert found >= 1 / comb(sum(sizes), sizes[0])


def test_alike_cards_get_no_p_value_below_the_resolution_of_permutations_more_often_than_that():
    """3000 logs of skewed outcomes in two blocks: P(p < 1/10000) <= 1/10000, more than 4 with probability 2e-5."""
    rng = np.random.default_rng(2)
    block, label = np.repeat([0, 1], 20), np.tile([0, 1, 2, 3], 10)
    found = [
        _exchanged_p(rng.exponential(size=40) ** 2, np.r_[rng.permutation(label[:20]), label[20:]], block)
        for _ in range(3000)
    ]
    assert sum(p < 1 / (PERMUTATIONS + 1) for p in found) <= 4


def test_only_rounds_of_one_card_compare_cards(tmp_path):
    memory = serve(tmp_path, 60, n=4, reference_cards=3, random_slots=3, rounds_per_block=60)
    held = memory.log.exposures().filter(pl.col("arm") == "card").collect()
    sizes = Counter(Counter(held["round_id"].to_list()).values())
    assert len(sizes) > 1
    assert verdict(memory.log, "cards are alike (A/A)")["n"] == sizes[1]


def test_delivery_by_slot_is_tested_within_rounds_exactly(tmp_path):
    """Of two random slots one was trimmed in 12 rounds, the last in 10 of them: as many heads of 12 coins."""
    memory = serve(tmp_path, 60, n=40, rounds_per_block=60)
    whole = memory.log.exposures().filter(pl.col("arm") == "random").collect().group_by("round_id").len()
    rounds = whole.filter(pl.col("len") == 2)["round_id"].sort().head(12).to_list()
    for place, round_id in enumerate(rounds):
        chosen = f"round_id = '{round_id}' AND arm = 'random' ORDER BY slot {'DESC' if place < 10 else 'ASC'}"
        damage(memory, f"UPDATE exposures SET delivered = 0 WHERE {exposure(chosen)}")
    found = verdict(memory.log, "delivery does not depend on the slot")
    assert (found["figure"], found["expected"]) == (10.0, 6.0)
    assert found["p_value"] == pytest.approx(_two_sided(binom(12, 0.5).pmf(np.arange(13)), 10), abs=EXACT)


def test_tests_of_one_call_are_one_family():
    """Holm's: the least of three p-values times three, the next times two, and none below the one before."""
    tested = [Verdict(name, "", p_value=p) for name, p in (("a", 0.03), ("b", 0.004), ("c", 0.005))]
    table = _table([*tested, Verdict("d", "", failed=False), Verdict.untestable("e", "")], 0.99)
    assert table["p_value"].to_list() == pytest.approx([0.03, 0.012, 0.012, None, None], abs=EXACT)
    assert table["state"].to_list() == ["PASS", "PASS", "PASS", "PASS", "NOT TESTABLE"]
    assert _table(tested, 0.98)["state"].to_list() == ["PASS", "FAIL", "FAIL"]


def test_many_nulls_share_one_p_value():
    assert least_p([]) == (None, -1)
    assert least_p([float("nan"), 0.02, 0.5]) == (0.04, 1)
