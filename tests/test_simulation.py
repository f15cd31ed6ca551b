"""Worlds with known utilities, through the real wrapper: what is estimated is what is true.

Each check compares estimates with the truth in units of their own standard error. With 12 memories and a bound of 4.5 a
false failure has probability below 1e-4 for normal errors, a little more for t; seeds are fixed.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
import polars as pl
import pytest

import cmp
from tests.estimation.golden import golden
from tests.serving.stores import Document, Store

BOUND = 4.5
UTILITY = {f"m{i:02}": 1.0 - i / 11 for i in range(12)}


def serve(folder, rounds, *, ranking=(), utility=None, level=lambda number: 0.0, change=None, **settings):
    """Serve rounds whose outcome is the sum of the utilities in the context, a level, and noise."""
    worth = dict(UTILITY if utility is None else utility)
    held = Store({"s": {i: Document(i, i) for i in worth}}, ranking)
    noise = np.random.default_rng(99)
    settings = {"slots": 3, "random_slots": 2, "seed": 4, "log": folder / "x.db", **settings}
    memory = cmp.wrap(held, scope="s", **settings)
    for number in range(rounds):
        if change is not None:
            change(number, held.scopes["s"], memory)
        context = memory.retrieve("q", round_id=f"r{number}")
        total = sum(worth[document.id] for document in context)
        memory.record(context.round_id, total + level(number) + noise.normal(0, 0.1))
    memory.flush()
    return memory


def check(frame: pl.DataFrame, truth: dict[str, float]) -> None:
    assert frame.height == len(truth)
    for row in frame.iter_rows(named=True):
        assert row["state"] == "ESTIMATED", row
        error = row["utility"] - truth[row["memory_id"]]
        assert abs(error) < BOUND * row["std_error"], row


def pool_truth(utility: dict[str, float]) -> dict[str, float]:
    total = sum(utility.values())
    return {i: u - (total - u) / (len(utility) - 1) for i, u in utility.items()}


@pytest.mark.parametrize(("allocation", "placement"), [("balanced", "last"), ("uniform", "shuffle")])
def test_against_the_pool_a_utility_is_relative_to_the_others(tmp_path, allocation, placement):
    memory = serve(tmp_path, 900, allocation=allocation, placement=placement)
    check(cmp.utilities(memory.log).frame, pool_truth(UTILITY))


@pytest.mark.parametrize("cards", [4, "auto"])
def test_against_cards_a_utility_is_absolute(tmp_path, cards):
    memory = serve(tmp_path, 1500, reference_cards=cards)
    frame = cmp.utilities(memory.log, reference="card").frame
    check(frame, UTILITY)
    assert set(frame["reference"]) == {"card"}
    assert frame["std_error"].max() < 0.15
    relative = cmp.utilities(memory.log).frame
    assert relative.filter(pl.col("utility") < -0.1).height > 2  # useful memories with a negative number


def test_a_card_filled_by_the_next_ranked_is_what_a_utility_is_measured_against(tmp_path):
    """The blank's slot goes to a ranked memory worth 0.5: utilities are relative to that."""
    utility = {**UTILITY, "base0": 0.0, "base1": 0.5, "base2": 0.5}
    held = ["base0", "base1", "base2"]
    memory = serve(
        tmp_path,
        1500,
        utility=utility,
        ranking=held,
        reference_cards=4,
        card="ranked",
        slots=3,
        random_slots=2,
    )
    frame = cmp.utilities(memory.log, reference="card").frame.filter(pl.col("memory_id").is_in(list(UTILITY)))
    check(frame, {i: u - 0.5 for i, u in UTILITY.items()})


def test_withholding_identifies_a_memory_that_is_always_ranked(tmp_path):
    utility = {**dict.fromkeys(UTILITY, 0.0), "top0": 1.0, "top1": 0.4, "top2": 0.2, "next": 0.1}
    ranking = ["top0", "top1", "top2", "next"]
    plain = serve(tmp_path, 400, utility=utility, ranking=ranking, slots=5, log=tmp_path / "plain.db")
    alone = cmp.utilities(plain.log).frame.filter(pl.col("memory_id") == "top0")
    assert alone["state"].to_list() == ["ALWAYS_RANKED"]
    memory = serve(tmp_path, 1200, utility=utility, ranking=ranking, slots=5, withhold=1)
    frame = cmp.utilities(memory.log).frame.filter(pl.col("memory_id").is_in(["top0", "top1"]))
    check(frame, {m: _kept_against_withheld(m, utility, ranking) for m in ("top0", "top1")})
    shares = memory.log.exposures().filter(pl.col("arm") == "withheld").collect()
    assert set(shares["propensity"]) == {1 / 3, 1 / 2}  # two candidates where two of the ranked were drawn
    assert shares.height == 1200
    assert cmp.validate_log(memory.log) == []


def _kept_against_withheld(memory, utility, ranking):
    """Enumerated: every pair drawn, every candidate withheld, one ranked result filling in."""
    kept, withheld = [], []
    for drawn in combinations(sorted(utility), 2):
        undrawn = [i for i in ranking if i not in drawn]
        for away in undrawn[:3]:
            shown = [*drawn, *[i for i in undrawn[:4] if i != away]]
            if memory in undrawn[:3]:
                (withheld if away == memory else kept).append(sum(utility[i] for i in shown))
    return float(np.mean(kept) - np.mean(withheld))


def test_estimates_stay_unbiased_while_memories_come_and_go(tmp_path):
    """m00 leaves in mid-block and a new one joins; for those that stay, the pool's mean changes with its members."""

    def change(number, held, memory):
        if number == 605:
            del held["m00"]
            memory.forget_ids(["m00"])
        if number == 900:
            held["zz"] = Document("zz", "zz")
            memory.refresh()

    memory = serve(
        tmp_path,
        1500,
        utility={**UTILITY, "zz": 0.5},
        change=lambda n, h, m: _absent(n, h) or change(n, h, m),
    )
    frame = cmp.utilities(memory.log).frame
    rosters = memory.log.rosters().collect()
    assert rosters.filter(pl.col("memory_id") == "m00")["removed_row"].drop_nulls().len() == 1
    stays = frame.filter(~pl.col("memory_id").is_in(["m00", "zz"]))
    low = {i: min(pool_truth(p)[i] for p in _pools()) for i in stays["memory_id"]}
    high = {i: max(pool_truth(p)[i] for p in _pools()) for i in stays["memory_id"]}
    for row in stays.iter_rows(named=True):
        slack = BOUND * row["std_error"]
        assert low[row["memory_id"]] - slack < row["utility"] < high[row["memory_id"]] + slack
    gone = frame.filter(pl.col("memory_id") == "m00").row(0, named=True)
    assert gone["n_exposed"] + gone["n_control"] <= 606
    assert abs(gone["utility"] - pool_truth(UTILITY)["m00"]) < BOUND * gone["std_error"]


def test_a_memory_found_missing_is_not_compared_with_rounds_it_could_not_be_in(tmp_path):
    """No memory has an effect; the level falls as m00 is deleted, which is noticed only when it is drawn next.

    Had its rounds ended there, all its exposures would lie before the fall and some controls behind it: the mean of 150
    logs was 0.27. The bound is 4.5 standard errors of that mean.
    """
    found = []
    for log in range(60):

        def change(number, held, memory):
            if number == 12:
                del held["m00"]

        memory = serve(
            tmp_path,
            24,
            utility=dict.fromkeys(UTILITY, 0.0),
            level=lambda number: float(number < 12),
            change=change,
            slots=1,
            random_slots=1,
            exposures_per_block=2,
            seed=log,
            log=tmp_path / f"{log}.db",
        )
        row = cmp.utilities(memory.log).frame.filter(pl.col("memory_id") == "m00").row(0, named=True)
        assert row["n_exposed"] + row["n_control"] == 24
        found.append(row["utility"])
    assert abs(np.mean(found)) < BOUND * np.std(found) / len(found) ** 0.5


def _absent(number, held):
    if number == 0:
        held.pop("zz", None)


def _pools():
    without = {i: u for i, u in UTILITY.items() if i != "m00"}
    return [UTILITY, without, {**without, "zz": 0.5}]


def test_drift_between_blocks_biases_nothing(tmp_path):
    """A block has 12 rounds; the level moves by ten times the noise from block to block."""
    memory = serve(tmp_path, 1200, level=lambda number: np.sin(number // 12))
    check(cmp.utilities(memory.log).frame, pool_truth(UTILITY))


def test_holding_out_measures_what_exploring_costs(tmp_path):
    """The held-out context is the three ranked memories; a randomized one holds one of them and two others."""
    utility = {**dict.fromkeys(UTILITY, 0.0), "top0": 1.0, "top1": 1.0, "top2": 1.0}
    memory = serve(tmp_path, 1200, utility=utility, ranking=["top0", "top1", "top2"], holdout=0.25)
    cost = cmp.exposure_cost(memory.log)
    assert 230 < cost.n_holdout < 370
    # two random slots of 15 memories, three of them worth 1: a draw of a ranked one costs its slot nothing
    expected = 3.0 - np.mean([_served(pair) for pair in combinations(sorted(utility), 2)])
    assert abs(cost.cost + expected) < BOUND * cost.std_error
    held = memory.log.rounds().filter(pl.col("fallback_reason") == "holdout").collect()
    assert not held["randomized"].any()
    assert cmp.validate_log(memory.log) == []


def _served(drawn):
    """Value of a context of three: the drawn, and the first ranked of the others."""
    top = ["top0", "top1", "top2"]
    rest = [i for i in top if i not in drawn][:1]
    return float(sum(i in top for i in [*drawn, *rest]))


def test_the_card_contrast_is_exactly_the_absolute_utility_under_additivity():
    """Enumerated: every set of k of a pool of memories and cards, with the contrasts of a complete design."""
    for n_memories, n_cards, k in ((4, 2, 2), (3, 1, 1), (5, 2, 3)):
        worth = [*np.arange(1, n_memories + 1) / 7.0, *([0.25] * n_cards)]
        n = len(worth)

        def contrast(m, worth=worth, n=n, k=k):
            sets = list(combinations(range(n), k))
            total = {s: sum(worth[j] for j in s) for s in sets}
            inside = [total[s] for s in sets if m in s]
            outside = [total[s] for s in sets if m not in s]
            return np.mean(inside) - np.mean(outside)

        for m in range(n_memories):
            got = (n - 1) / n * (contrast(m) - contrast(n_memories))
            assert got == pytest.approx(worth[m] - 0.25, abs=1e-12)


def test_displacement_is_the_golden_figure():
    want = golden("displacement")
    worth = dict(enumerate(want["utilities"]))
    truth = pool_truth({str(i): u for i, u in worth.items()})
    assert truth["0"] == pytest.approx(want["pool_contrast_high"], abs=1e-12)
    assert truth["11"] == pytest.approx(want["pool_contrast_low"], abs=1e-12)


def test_cards_are_no_memories_of_the_table_and_compare_as_equals(tmp_path):
    """The built-in A/A check: cards differ from one another by chance only."""
    memory = serve(tmp_path, 900, reference_cards=3)
    for reference in ("pool", "card"):
        assert set(cmp.utilities(memory.log, reference=reference).frame["memory_id"]) == set(UTILITY)
    cards = memory.log.exposures().filter(pl.col("arm") == "card").collect()
    assert cards["memory_id"].n_unique() == 3
    assert cmp.validate_log(memory.log) == []


def test_decisions_are_refused_where_signs_mean_nothing(tmp_path):
    memory = serve(tmp_path, 300, reference_cards=3)
    with pytest.raises(cmp.UndecidableError, match="relative to the pool"):
        cmp.forget(cmp.utilities(memory.log))
    decisions = cmp.forget(cmp.utilities(memory.log, reference="card"))
    assert set(decisions["decision"]) <= {"keep", "forget"}
    assert decisions.filter(pl.col("memory_id") == "m00")["decision"].to_list() == ["keep"]
    assert "retention policy" in decisions["reason"][0]
    several = cmp.forget(cmp.utilities(memory.log, reference="card", metric=["reward"]))
    assert several["metric"].unique().to_list() == ["reward"]
    with pytest.raises(ValueError, match="no reference cards"):
        cmp.utilities(serve(tmp_path, 30, log=tmp_path / "y.db").log, reference="card")
    with pytest.raises(ValueError, match="no holdout"):
        cmp.exposure_cost(memory.log)
