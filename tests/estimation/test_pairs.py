from __future__ import annotations

from itertools import combinations, permutations

import numpy as np
import polars as pl
import pytest
from scipy.stats import binom, t

from cmp.design import balanced_table
from cmp.estimation.pairs import pair_utilities

#: Sums over every arrangement, in doubles.
EXACT = 1e-12
#: Odds of a false alarm of a simulation, on either side.
FALSE_ALARM = 1e-3


def drawn(n: int, rounds: int, k: int, rng: np.random.Generator) -> np.ndarray:
    assigned = np.zeros((rounds, n), dtype=bool)
    np.put_along_axis(assigned, balanced_table(n, rounds, k, rng), values=True, axis=1)
    return assigned


def two(n_both: int, n_a: int, n_b: int, n_none: int) -> np.ndarray:
    """Rounds with both, a only, b only, neither."""
    counts = (n_both, n_a, n_b, n_none)
    return np.repeat(np.array([[1, 1], [1, 0], [0, 1], [0, 0]], dtype=bool), counts, axis=0)


def interaction(z: np.ndarray, y: np.ndarray) -> float:
    a, b = z.T
    return y[a & b].mean() - y[a & ~b].mean() - y[~a & b].mean() + y[~a & ~b].mean()


def listed_p_value(z: np.ndarray, y: np.ndarray) -> float:
    """Every choice of the rounds with the partner, among those with the fixed memory and those without."""
    observed, worst = abs(interaction(z, y)), 0.0
    for fixed in (0, 1):
        other = 1 - fixed
        among = [np.flatnonzero(z[:, fixed] == shown) for shown in (True, False)]
        choices = [list(combinations(rows, int(z[rows, other].sum()))) for rows in among]
        hits = total = 0
        for one in choices[0]:
            for another in choices[1]:
                moved = z.copy()
                moved[:, other] = False
                moved[[*one, *another], other] = True
                hits += abs(interaction(moved, y)) >= observed - 1e-9
                total += 1
        worst = max(worst, hits / total)
    return worst


def test_one_stratum_gives_the_contrast_of_four_means():
    z = two(4, 5, 6, 9)
    y = np.random.default_rng(1).normal(size=len(z)) + 1e6
    row = pair_utilities(z, y, resamples=9).row(0, named=True)
    assert row["interaction"] == pytest.approx(interaction(z, y), abs=1e-8)
    means = [row[f"mean_{kind}"] for kind in ("together", "a_only", "b_only", "neither")]
    assert means == pytest.approx([part.mean() for part in np.split(y, [4, 9, 15])], rel=1e-14)


def test_strata_give_the_least_squares_coefficient_beside_their_dummies():
    rng = np.random.default_rng(2)
    z, s = np.vstack([two(2, 3, 4, 6), two(3, 3, 2, 8)]), np.repeat([0, 1], [15, 16])
    y = rng.normal(size=31) + 10 * s
    a, b = z.T.astype(float)
    want = np.linalg.lstsq(np.column_stack([np.eye(2)[s], a, b, a * b]), y, rcond=None)[0][-1]
    got = pair_utilities(z, y, s, resamples=9)["interaction"][0]
    assert got == pytest.approx(want, abs=EXACT)


def test_the_estimate_is_unbiased_over_every_arrangement_of_the_draws():
    """Outcomes are any four numbers a round."""
    outcome, z = np.random.default_rng(3).normal(size=(8, 4)), two(2, 2, 2, 2)
    kinds = np.array([[1, 1], [1, 0], [0, 1], [0, 0]], dtype=bool)
    rows = sorted(set(permutations((3 - 2 * z[:, 0] - z[:, 1]).tolist())))
    assert len(rows) == 2520
    means = [
        pair_utilities(kinds[list(row)], outcome[np.arange(8), list(row)], min_together=2, resamples=1)[
            "interaction"
        ][0]
        for row in rows
    ]
    truth = outcome.mean(axis=0) @ [1.0, -1.0, -1.0, 1.0]
    assert np.mean(means) == pytest.approx(truth, abs=EXACT)


@pytest.mark.parametrize("successes", [0b000000001111, 0b101100001111, 0b010001110011])
def test_the_p_value_of_two_valued_outcomes_is_that_of_every_rearrangement(successes):
    z = two(2, 3, 3, 4)
    y = np.array([float(successes >> t & 1) for t in range(12)])
    p = pair_utilities(z, 2 * y - 1, min_together=2)["p_value"][0]
    assert p == pytest.approx(listed_p_value(z, y), abs=EXACT)


def test_the_p_value_of_other_outcomes_converges_to_that_of_every_rearrangement():
    z, draws = two(2, 3, 3, 4), 4999
    y = np.random.default_rng(4).normal(size=12) + 2.0 * z.all(axis=1)
    want = listed_p_value(z, y)
    p = pair_utilities(z, y, min_together=2, resamples=draws)["p_value"][0]
    low, high = binom(draws, want).ppf([FALSE_ALARM, 1 - FALSE_ALARM])
    assert low <= p * (1 + draws) - 1 <= high


def test_two_that_help_only_together_are_found_among_all_pairs():
    rng = np.random.default_rng(5)
    z = drawn(12, 600, 2, rng)
    y = (rng.random(600) < 0.1 + 0.8 * z[:, :2].all(axis=1)).astype(float)
    found = pair_utilities(z, y).filter(pl.col("q_value") < 0.05)
    assert found.select("memory_a", "memory_b").rows()[0] == (0, 1)
    assert found["interaction"][0] > 0.5
    assert found.height <= 3


def test_a_memory_that_helps_alone_makes_no_pair_significant():
    """Given one helper and an inert memory, p-values are valid: at most .05 of 400 logs, one pair each."""
    rejected = estimated = 0
    for draw in range(400):
        rng = np.random.default_rng([6, draw])
        z = drawn(8, 120, 2, rng)
        y = (rng.random(120) < 0.1 + 0.8 * z[:, 0]).astype(float)
        row = pair_utilities(z, y, pairs=[(0, 1)]).row(0, named=True)
        estimated += row["state"] == "ESTIMATED"
        rejected += row["p_value"] is not None and row["p_value"] <= 0.05
    assert estimated > 200
    assert rejected <= binom(estimated, 0.05).ppf(1 - FALSE_ALARM)


@pytest.mark.parametrize("kind", ["binary", "normal", "binary in strata"])
def test_limits_cover(kind):
    hits = estimated = 0
    for draw in range(300):
        rng = np.random.default_rng([7, draw])
        z, s = drawn(8, 160, 2, rng), np.repeat(np.arange(4), 40)
        mean = 0.2 + 0.5 * z[:, :2].all(axis=1) + (0.1 * s if "strata" in kind else 0.0)
        mean = mean * 0.7
        y = mean + rng.normal(0, 0.2, 160) if kind == "normal" else (rng.random(160) < mean).astype(float)
        strata = s if "strata" in kind else None
        row = pair_utilities(z, y, strata, pairs=[(0, 1)], resamples=1).row(0, named=True)
        if row["state"] == "ESTIMATED":
            estimated += 1
            hits += row["ci_low"] <= 0.35 <= row["ci_high"]
    assert estimated > 200
    assert hits >= binom(estimated, 0.93).ppf(FALSE_ALARM)


def test_two_helpers_whose_effects_add_up_are_no_pair():
    """Both matter, so that neither exact test is of the interaction; p is then held up by that of the limits."""
    rejected = estimated = 0
    for draw in range(300):
        rng = np.random.default_rng([13, draw])
        z = drawn(8, 160, 2, rng)
        y = (rng.random(160) < 0.1 + 0.35 * z[:, 0] + 0.35 * z[:, 1]).astype(float)
        row = pair_utilities(z, y, pairs=[(0, 1)]).row(0, named=True)
        estimated += row["state"] == "ESTIMATED"
        rejected += row["p_value"] is not None and row["p_value"] <= 0.05
    assert estimated > 200
    assert rejected <= binom(estimated, 0.06).ppf(1 - FALSE_ALARM)  # limits cover .94 at these sizes


@pytest.mark.parametrize("values", [(0.0, 1.0), (0.0, 0.5, 1.0)])
def test_a_p_value_below_5_percent_has_an_interval_without_0(values):
    rng = np.random.default_rng(14)
    z = drawn(8, 240, 2, rng)
    y = rng.choice(values, 240) + z[:, :2].all(axis=1)
    y = np.minimum(y, 1.0)
    table = pair_utilities(z, y, resamples=999).filter(pl.col("state") == "ESTIMATED")
    outside = (table["ci_low"] > 0) | (table["ci_high"] < 0)
    assert outside.sum() > 0
    assert (outside | (table["p_value"] >= 0.05)).all()


def test_too_few_rounds_with_both_are_said_plainly_with_how_many_it_takes():
    z = drawn(32, 90, 2, np.random.default_rng(8))
    table = pair_utilities(z, np.random.default_rng(9).normal(size=90), resamples=9)
    assert table.height == 32 * 31 // 2
    short = table.filter(pl.col("state") == "TOO_FEW_COEXPOSURES")
    assert short.height > 490
    assert short["interaction"].null_count() == short.height
    assert short["q_value"].null_count() == short.height
    assert "a pair is drawn together once in 496 rounds, so about 1984 rounds" in short["reason"][0]


def test_one_random_slot_never_shows_a_pair():
    z = drawn(5, 40, 1, np.random.default_rng(10))
    table = pair_utilities(z, np.arange(40.0))
    assert set(table["state"]) == {"TOO_FEW_COEXPOSURES"}
    assert "draw two or more a round" in table["reason"][0]


@pytest.mark.parametrize("short", [None, 1, 2, 3])
def test_two_rounds_of_each_other_kind_are_enough_and_one_is_not(short):
    counts = [5 if kind == 0 else 1 if kind == short else 2 for kind in range(4)]
    table = pair_utilities(two(*counts), np.arange(float(sum(counts))) % 3)
    assert (table["interaction"].null_count(), table["state"][0] == "UNDEREXPOSED") == (
        (0, False) if short is None else (1, True)
    )


def test_a_pair_always_drawn_together_has_no_contrast():
    table = pair_utilities(two(6, 0, 0, 14), np.arange(20.0))
    assert table["state"].to_list() == ["UNDEREXPOSED"]
    assert table["interaction"].to_list() == [None]


def test_strata_that_hold_both_or_one_but_never_either_leave_no_contrast():
    z, s = np.vstack([two(4, 0, 0, 0), two(0, 4, 4, 4)]), np.repeat([0, 1], [4, 12])
    row = pair_utilities(z, np.arange(16.0), s).row(0, named=True)
    assert (row["state"], row["interaction"]) == ("UNDEREXPOSED", None)
    assert "strata" in row["reason"]


def test_rounds_in_which_either_was_not_eligible_are_left_out():
    rng = np.random.default_rng(11)
    z = rng.random((200, 4)) < 0.4
    y, eligible = rng.normal(size=200), np.ones_like(z)
    eligible[:60, 1] = False
    y[190:] = np.nan
    pairs = [(0, 1), (2, 3), (0, 2)]
    table = pair_utilities(z, y, pairs=pairs, eligible=eligible, resamples=99)
    alone = pair_utilities(z[60:190], y[60:190], pairs=[(0, 1)], resamples=99)
    assert table["n_together"][0] == alone["n_together"][0]
    assert table["interaction"][0] == pytest.approx(alone["interaction"][0], abs=EXACT)
    assert table["ci_high"][0] == pytest.approx(alone["ci_high"][0], abs=EXACT)
    assert table["state"].to_list() == ["ESTIMATED"] * 3


def test_the_same_seed_gives_the_same_table_and_swapping_the_two_the_same_estimate():
    rng = np.random.default_rng(12)
    z, y = rng.random((100, 3)) < 0.4, rng.normal(size=100)
    one, again = (pair_utilities(z, y, resamples=99, seed=3) for _ in range(2))
    assert one.equals(again)
    swapped = pair_utilities(z, y, pairs=[(1, 0)], resamples=99, seed=3)
    for name in ("interaction", "std_error", "ci_low"):
        assert swapped[name][0] == pytest.approx(one[name][0], abs=EXACT)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"pairs": [(0, 2)]}, r"\(0, 2\) is no pair of the 2 memories"),
        ({"pairs": [(1, 1)]}, r"\(1, 1\) is no pair"),
        ({"min_together": 1}, "min_together=1"),
        ({"adjust": "none"}, "use 'bh', 'by' or 'holm'"),
    ],
)
def test_wrong_input_is_refused(changes, said):
    with pytest.raises(ValueError, match=said):
        pair_utilities(**({"assigned": two(4, 4, 4, 4), "outcomes": np.arange(16.0)} | changes))


@pytest.mark.parametrize("level", [0, 1, -1, 95])
def test_what_is_no_level_is_refused(level):
    with pytest.raises(ValueError, match="no confidence level"):
        pair_utilities([[1, 0], [0, 1], [1, 1], [0, 0]], [1, 0, 1, 0], level=level)


def test_the_standard_error_of_two_valued_outcomes_is_that_of_the_limits():
    z = two(6, 9, 9, 16)
    y = (np.random.default_rng(1).random(len(z)) < 0.4) * 1.0
    row = pair_utilities(z, y).row(0, named=True)
    assert row["std_error"] == pytest.approx(
        (row["ci_high"] - row["ci_low"]) / (2 * 1.959963984540054), rel=EXACT
    )


def test_degrees_of_freedom_are_satterthwaite_s_of_the_two_parts():
    """By hand, one stratum: residuals are from the four means, and 4 degrees of freedom of the others are prior."""
    n = np.array([6, 9, 9, 16])
    z = two(*n)
    y = np.random.default_rng(2).normal(size=len(z)).round(2)
    group = np.repeat(np.arange(4), n)
    means = np.array([y[group == g].mean() for g in range(4)])
    squares = np.array([((y[group == g] - means[g]) ** 2).sum() for g in range(4)])
    df0 = len(y) - 4 - (n[0] - 1)
    pooled = squares[1:].sum() / df0
    together = (4 * pooled + squares[0]) / (4 + n[0] - 1)
    part1, part0 = together / n[0], pooled * (1 / n[1:]).sum()
    df = (part1 + part0) ** 2 / (part1**2 / (4 + n[0] - 1) + part0**2 / df0)
    half = t(df).ppf(0.975) * np.sqrt(part1 + part0)
    row = pair_utilities(z, y).row(0, named=True)
    assert row["std_error"] == pytest.approx(np.sqrt(part1 + part0), rel=1e-9)
    assert (row["ci_high"] - row["ci_low"]) / 2 == pytest.approx(half, rel=1e-9)
