from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from cmp.estimation import estimate, utilities
from tests.estimation.logs import HandMadeLog, two_arms

#: Relative; weighted sums about two different offsets.
SAME = 1e-11

OPTIONS = {"strata": "merged", "estimator": "hajek"}


class UniformLog(HandMadeLog):
    """A log whose blocks are of the uniform design."""

    def blocks(self) -> pl.LazyFrame:
        return super().blocks().with_columns(design=pl.lit("uniform"))


def growing(seed: int, lengths: list[int], *, start: int = 4, k: int = 2, missing: float = 0.1):
    """Return a log whose roster grows by one a block, and its rounds as arrays."""
    rng, log = np.random.default_rng(seed), UniformLog()
    n, total = start + len(lengths) - 1, sum(lengths)
    assigned, eligible = np.zeros((total, n), bool), np.zeros((total, n), bool)
    propensity, ys, block_of, t = np.full((total, n), 0.5), np.full(total, np.nan), np.zeros(total, int), 0
    for block, length in enumerate(lengths):
        size = start + block
        log.block(f"b{block:02}", size, {f"m{m}": k for m in range(size)})
        for i in range(length):
            drawn, ranked = rng.permutation(size)[:k], int(rng.integers(size))
            y = None if rng.random() < missing else 100.0 + block + float(rng.normal())
            names = [f"m{m}" for m in drawn]
            log.round(f"r{t}", f"b{block:02}", i, names, y, ranked=[f"m{ranked}"])
            assigned[t, drawn], eligible[t, :size], eligible[t, ranked] = True, True, False
            propensity[t], block_of[t] = k / size, block
            ys[t] = np.nan if y is None else y
            t += 1
    return log, (assigned, ys, eligible, propensity, block_of)


@pytest.mark.parametrize("seed", range(3))
def test_merged_strata_are_those_of_arrays_with_a_propensity_a_round(seed):
    # ten rounds close a stratum, and the last three join the one before
    lengths, run = [3, 4, 5, 11, 2, 9, 3], [0, 0, 0, 1, 2, 2, 2]
    log, (assigned, ys, eligible, propensity, block) = growing(seed, lengths)
    want = estimate(assigned, ys, np.array(run)[block], eligible, propensity, "hajek").frame
    got = utilities(log, **OPTIONS).frame
    for name in ("n_exposed", "n_control", "n_missing_exposed", "n_strata", "n_strata_empty", "state"):
        assert got[name].to_list() == want[name].to_list(), name
    for name in ("utility", "mean_exposed", "std_error", "df", "ci_low", "ci_high", "p_value"):
        pairs = zip(got[name], want[name], strict=True)
        assert all(a == (None if b is None else pytest.approx(b, rel=SAME, abs=1e-9)) for a, b in pairs), name


@pytest.mark.parametrize("lengths", [[10, 12, 11], [11, 12, 10]])
def test_blocks_of_ten_rounds_or_more_stay_as_they_are(lengths):
    log, _ = growing(5, lengths, missing=0.0)
    got, want = utilities(log, **OPTIONS).frame, utilities(log, estimator="hajek").frame
    assert got["utility"].to_numpy() == pytest.approx(want["utility"].to_numpy(), rel=SAME)
    assert got["n_strata"].to_list() == want["n_strata"].to_list()


def test_exposures_whose_own_block_has_no_control_count_once_it_is_merged():
    log, _ = growing(6, [1] * 24, missing=0.0)
    alone, merged = utilities(log).frame, utilities(log, **OPTIONS).frame
    assert alone["utility"].is_null().all()
    assert merged["utility"].is_not_null().sum() > 10


def test_scopes_are_never_merged():
    log = HandMadeLog()
    for scope in ("A", "B"):
        log.block(scope, 4, {"m": 2, "other": 2}, scope=scope)
        for i in range(4):
            y = float(i) + 100.0 * (scope == "B")
            log.round(f"{scope}{i}", scope, i, ["m" if i < 2 else "other"], y, scope=scope)
    assert utilities(log, **OPTIONS).frame.filter(memory_id="m")["utility"].to_list() == [-2.0, -2.0]


def test_no_row_order_shows_and_no_name_matters():
    log, _ = growing(7, [3] * 8)
    straight = utilities(log, **OPTIONS).frame
    rng = np.random.default_rng(0)
    for rows in log.rows.values():
        rng.shuffle(rows)
    assert utilities(log, **OPTIONS).frame.equals(straight)


def test_rounds_of_one_episode_have_no_interval_in_merged_strata():
    log, _ = growing(8, [3] * 8)
    for i, entry in enumerate(log.rows["rounds"]):
        entry["episode_id"] = f"e{i // 4}"
    frame = utilities(log, **OPTIONS).frame
    assert frame["utility"].is_not_null().any()
    assert frame["ci_low"].is_null().all()


def test_what_merged_strata_cannot_give_is_refused():
    log = two_arms([1.0, 0.0], [0.0, 1.0])
    for option in ({"estimator": "difference"}, {"reference": "card"}, {"carryover": "exclude"}):
        with pytest.raises(ValueError, match="strata='merged' does not go with"):
            utilities(log, **{**OPTIONS, **option})


def test_under_the_uniform_design_an_earlier_turn_changes_no_chance():
    log = UniformLog()
    log.block("b", 2, {"m": 1, "other": 1})
    for i, name in enumerate(["m", "other", "other", "other", "other", "m"]):
        log.round(f"r{i}", "b", i, [name], float(i), episode_id=f"e{i // 2}")
    got = utilities(log, carryover="exclude").frame.filter(memory_id="m").row(0, named=True)
    # r1 follows an exposure; the other turns stand together
    assert (got["n_exposed"], got["n_control"], got["n_strata"]) == (2, 3, 1)
    assert got["utility"] == pytest.approx((0 + 5) / 2 - (2 + 3 + 4) / 3)


def test_a_p_value_of_merged_blocks_is_that_of_each_block_given_how_often_it_drew():
    """Counts are fixed in every balanced block, so no other test is exact; enumeration of four blocks of five."""
    log = HandMadeLog()
    for block in range(4):
        log.block(f"b{block}", 5, {"m": 1, "other": 4})
        for t in range(5):
            log.round(
                f"r{block}{t}",
                f"b{block}",
                t,
                ["m" if t == 0 else "other"],
                float(t == (0 if block < 3 else 1)),
            )
    merged = utilities(log, estimator="hajek", strata="merged").frame
    plain = utilities(log, estimator="hajek").frame
    # each block shows the success with probability 1/5: at least three of four do
    expected = 4 * 0.2**3 * 0.8 + 0.2**4
    assert merged.filter(memory_id="m")["p_value"][0] == pytest.approx(expected, rel=1e-9)
    assert merged["p_value"].to_list() == plain["p_value"].to_list()


def test_a_p_value_of_merged_blocks_counts_the_rounds_that_kept_or_withheld():
    rng = np.random.default_rng(0)
    log = HandMadeLog()
    for block in range(8):
        log.block(f"b{block}", 5, {"m": 1, "other": 4})
        for t in range(5):
            name, kept = f"r{block}{t}", bool(rng.random() < 0.5)
            log.round(name, f"b{block}", t, ["other"], float(kept))
            arm = "ranked" if kept else "withheld"
            log.add("exposures", round_id=name, memory_id="m", arm=arm, assigned=False, propensity=0.5)
    for strata in ("block", "merged"):
        row = utilities(log, estimator="hajek", strata=strata).frame.filter(memory_id="m").row(0, named=True)
        assert row["ci_low"] > 0, strata
        assert row["p_value"] < 0.01, strata
