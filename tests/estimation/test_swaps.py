"""Rounds with a memory against rounds with a card in its place, where a table is not whole."""

from __future__ import annotations

from itertools import combinations, permutations, product

import numpy as np
import polars as pl
import pytest

from cmp.design.cards import CARD_PREFIX, is_card
from cmp.estimation import utilities, utility_statistics
from tests.estimation.logs import HandMadeLog
from tests.estimation.test_cards import every_table

#: Means of some thousand doubles of order 1.
EXACT = 1e-12

#: Means that both sides make of sums in an order of their own.
SAME = 1e-9

CARDS = [f"{CARD_PREFIX}1", f"{CARD_PREFIX}2"]


def with_card_arms(log: HandMadeLog) -> HandMadeLog:
    for entry in log.rows["exposures"]:
        if is_card(entry["memory_id"]):
            entry["arm"] = "card"
    return log


def draws_without_a_table(ids: list[str], k: int, rounds: int, outcome) -> HandMadeLog:
    """Return every way in which k of the ids might be drawn in each of some rounds, each a scope of its own."""
    log = HandMadeLog()
    for nth, table in enumerate(product(list(combinations(ids, k)), repeat=rounds)):
        scope = f"s{nth:05}"
        log.block(scope, len(ids), dict.fromkeys(ids, k), scope)
        for t, drawn in enumerate(table):
            log.round(f"{scope}-{t}", scope, t, drawn, outcome(t, drawn), scope=scope)
    return with_card_arms(log)


def means(log: HandMadeLog, **options) -> dict[str, float]:
    frame = utilities(log, reference="card", interval="pooled", **options).frame
    return dict(frame.group_by("memory_id").agg(pl.col("utility").mean()).sort("memory_id").iter_rows())


@pytest.mark.parametrize(
    ("k", "rounds", "n_cards"), [(1, 2, 1), (1, 3, 2), (2, 2, 1), (2, 3, 1), (2, 3, 2), (3, 2, 2)]
)
def test_draws_without_a_table_are_unbiased_over_every_draw(k, rounds, n_cards):
    truth = {"m0": 1.0, "m1": 0.3, "m2": -0.4}
    utility = truth | dict.fromkeys(CARDS, 0.0)
    level = [0.1, -2.0, 0.7]
    log = draws_without_a_table(
        [*truth, *CARDS[:n_cards]], k, rounds, lambda t, drawn: level[t] + sum(utility[m] for m in drawn)
    )
    assert means(log) == pytest.approx(truth, abs=EXACT)


def test_a_table_too_short_for_everybody_is_unbiased_over_every_table():
    truth = {"m0": 1.0, "m1": 0.3, "m2": -0.4}
    ids, log = [*truth, CARDS[0]], HandMadeLog()
    for nth, drawn in enumerate(permutations(ids, 2)):
        scope = f"s{nth:02}"
        log.block(scope, 2, {memory: int(memory in drawn) for memory in ids}, scope)
        for t, memory in enumerate(drawn):
            log.round(f"{scope}-{t}", scope, t, [memory], float(t) + truth.get(memory, 0.0), scope=scope)
    assert means(with_card_arms(log)) == pytest.approx(truth, abs=EXACT)


def test_a_table_that_was_stopped_is_unbiased_over_every_table():
    # four rounds were planned, each id in one; two came to be
    truth = {"m0": 1.0, "m1": 0.3, "m2": -0.4}
    ids, log = [*truth, CARDS[0]], HandMadeLog()
    for nth, table in enumerate(permutations(ids)):
        scope = f"s{nth:02}"
        log.block(scope, 4, dict.fromkeys(ids, 1), scope)
        for t, memory in enumerate(table[:2]):
            log.round(f"{scope}-{t}", scope, t, [memory], float(t) + truth.get(memory, 0.0), scope=scope)
    assert means(with_card_arms(log)) == pytest.approx(truth, abs=EXACT)


@pytest.mark.parametrize("served", [True, False])
def test_a_round_without_an_outcome_is_as_one_that_was_never_served(served):
    truth = {"m0": 1.0, "m1": 0.3, "m2": -0.4}
    ids, log = [*truth, CARDS[0]], HandMadeLog()
    for nth, table in enumerate(permutations(ids)):
        scope = f"s{nth:02}"
        log.block(scope, 4, dict.fromkeys(ids, 1), scope)
        for t, memory in enumerate(table):
            y = float(t) + truth.get(memory, 0.0) if t < 2 else None
            if served or y is not None:
                log.round(f"{scope}-{t}", scope, t, [memory], y, scope=scope)
    frame = utilities(with_card_arms(log), reference="card", interval="pooled").frame
    assert means(log) == pytest.approx(truth, abs=EXACT)
    missing = frame.select(pl.col("n_missing_exposed", "n_missing_control").sum()).row(0)
    assert (min(missing) > 0) == served


@pytest.mark.parametrize(("k", "rounds", "count"), [(1, 8, 2), (2, 4, 2)])
def test_a_memory_ranked_in_some_rounds_is_compared_in_the_others_alone(k, rounds, count):
    # the ranker shows m0 in the first half, which goes better by far
    truth = {"m0": 1.0, "m1": 0.4, "m2": 0.0}
    ids, log = [*truth, CARDS[0]], HandMadeLog()
    for nth, table in enumerate(every_table(4, k, rounds, count)):
        scope = f"s{nth:05}"
        log.block(scope, rounds, dict.fromkeys(ids, count), scope)
        for t, places in enumerate(table):
            drawn = [ids[i] for i in places]
            shown = {*drawn, "m0"} if t < rounds // 2 else {*drawn}
            y = 5.0 * (t < rounds // 2) + sum(truth.get(m, 0.0) for m in shown)
            log.round(
                f"{scope}-{t}", scope, t, drawn, y, scope=scope, ranked=["m0"] if t < rounds // 2 else []
            )
    found = means(with_card_arms(log))
    assert found["m0"] == pytest.approx(1.0, abs=EXACT)
    if k == 1:
        assert found["m1"] == pytest.approx(0.4, abs=EXACT)


def test_utilities_that_do_not_add_up_are_what_a_memory_does_in_a_card_s_place():
    ids = ["m0", "m1", "m2", CARDS[0]]
    of_pair = dict(zip(combinations(ids, 2), [3.0, -1.0, 0.5, 2.0, 0.0, 1.5], strict=True))
    log = draws_without_a_table(ids, 2, 3, lambda t, drawn: t + of_pair[drawn])

    def y(*pair: str) -> float:
        return of_pair[tuple(sorted(pair, key=ids.index))]

    want = {
        memory: np.mean([y(memory, other) - y(CARDS[0], other) for other in ids[:3] if other != memory])
        for memory in ids[:3]
    }
    assert means(log) == pytest.approx(want, abs=EXACT)


@pytest.mark.parametrize("n_cards", [1, 2])
def test_exact_p_values_are_no_smaller_than_they_should_be_over_every_draw(n_cards):
    ids = ["m0", "m1", *CARDS[:n_cards]]
    outcomes = [1.0, 0.0, 0.0, 1.0]
    log = draws_without_a_table(ids, 2, 4, lambda t, _: outcomes[t])
    p = utilities(log, reference="card").frame.filter(memory_id="m0")["p_value"].drop_nulls().to_numpy()
    assert p.min() < 0.5
    for level in np.unique(p):
        assert (p <= level).mean() <= level + EXACT


def uneven_log(seed: int, *, k: int, n_cards: int, episodes: bool, binary: bool) -> HandMadeLog:
    """Return blocks without a table, with ranked memories, missing outcomes, and episodes that run through blocks."""
    rng = np.random.default_rng(seed)
    ids, log = ["m0", "m1", "m2", *CARDS[:n_cards]], HandMadeLog()
    for block in range(4):
        removed = {"m2": 9} if block == 2 else {}
        log.block(f"b{block}", len(ids), dict.fromkeys(ids, k), **removed)
        for t in range(14):
            here = [m for m in ids if not (m in removed and t >= 9)]
            drawn = [here[i] for i in rng.permutation(len(here))[:k]]
            ranked = ["m1"] if rng.random() < 0.3 else []
            y = float(rng.random() < 0.4) if binary else float(rng.normal())
            log.round(
                f"r{block}-{t:02}", f"b{block}", t, drawn, None if rng.random() < 0.1 else y, ranked=ranked,
                episode_id=f"e{(14 * block + t) // 3}" if episodes else None,
            )  # fmt: skip
    return with_card_arms(log)


def swapped(log: HandMadeLog, memory: str) -> HandMadeLog:
    """Return the rounds of a memory's comparisons by hand: a roster of two, and as a query how many other cards."""
    one = HandMadeLog()
    one.rows["outcomes"] = log.rows["outcomes"]
    removed = {
        row["block_id"]: row["removed_row"] for row in log.rows["rosters"] if row["memory_id"] == memory
    }
    for row in log.rows["blocks"]:
        one.block(row["block_id"], 28, {memory: 14, "other": 14})
    for row in log.rows["rounds"]:
        own = [e for e in log.rows["exposures"] if e["round_id"] == row["round_id"]]
        drawn = {e["memory_id"] for e in own if e["assigned"] and e["arm"] != "ranked"}
        cards = sum(is_card(m) for m in drawn)
        gone = removed[row["block_id"]]
        if any(e["memory_id"] == memory and e["arm"] == "ranked" for e in own) or (
            gone is not None and row["block_row"] >= gone
        ):
            continue
        if memory not in drawn and not cards:
            continue
        others = cards if memory in drawn else cards - 1
        one.round(
            row["round_id"], row["block_id"], row["block_row"], [memory if memory in drawn else "other"],
            group=f"{others} other cards", episode_id=row["episode_id"],
        )  # fmt: skip
    return one


@pytest.mark.parametrize("episodes", [False, True])
@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize(("k", "n_cards"), [(1, 1), (2, 2), (3, 2)])
def test_the_table_is_that_of_the_rounds_compared(k, n_cards, binary, episodes):
    columns = [
        "utility",
        "n_exposed",
        "n_control",
        "p_value",
        "n_missing_exposed",
        "n_missing_control",
        "p_missing",
    ]
    compared = 0
    for seed in range(4):
        log = uneven_log(seed, k=k, n_cards=n_cards, episodes=episodes, binary=binary)
        # a prior of variances would be shared with other memories
        frame = utilities(log, reference="card", interval="pooled").frame
        for memory in ("m0", "m1", "m2"):
            got = frame.filter(memory_id=memory)
            alone = utilities(swapped(log, memory), strata="query", interval="pooled").frame
            want = alone.filter(memory_id=memory)
            names = [
                *columns,
                *(["std_error", "ci_low", "ci_high"] if not want["ci_low"].is_null().all() else []),
            ]
            assert got.select(names).rows()[0] == pytest.approx(
                want.select(names).rows()[0], abs=SAME, nan_ok=True
            )
            compared += len(names) > len(columns)
    assert compared >= 8


def test_sums_of_two_logs_are_the_table_of_both():
    logs = [uneven_log(seed, k=2, n_cards=2, episodes=False, binary=False) for seed in (0, 1)]
    for nth, log in enumerate(logs):
        for rows in log.rows.values():
            for row in rows:
                row.update({name: f"{nth}{row[name]}" for name in ("round_id", "block_id") if row.get(name)})
    both = HandMadeLog({name: logs[0].rows[name] + logs[1].rows[name] for name in logs[0].rows})
    added = utility_statistics(logs[0], reference="card") + utility_statistics(logs[1], reference="card")
    names = ["utility", "n_exposed", "n_control", "std_error", "ci_low", "p_value"]
    whole = utilities(both, reference="card").frame
    assert added.utilities().frame.select(names).rows() == [
        pytest.approx(row, abs=SAME) for row in whole.select(names).rows()
    ]


def test_where_no_card_was_drawn_the_state_says_so():
    log = HandMadeLog()
    log.block("a", 12, {"m": 4, "n": 4, CARDS[0]: 4}, "with cards")
    log.block("b", 12, {"p": 6, "q": 5, "r": 1}, "without")
    for t in range(12):
        log.round(f"a{t}", "a", t, [["m", "n", CARDS[0]][t % 3]], float(t % 2), scope="with cards")
        log.round(
            f"b{t}",
            "b",
            t,
            [["p", "q"][t % 2]],
            float(t % 3 == 0),
            scope="without",
            ranked=["q"] if t == 0 else [],
        )
    frame = utilities(with_card_arms(log), reference="card").frame
    states = {row["memory_id"]: (row["state"], row["reason"]) for row in frame.iter_rows(named=True)}
    assert states["m"] == states["n"] == ("ESTIMATED", None)
    why = "no card was drawn in its place"
    assert states["p"] == states["q"] == ("UNDEREXPOSED", f"n0=0: {why}")
    assert states["r"] == ("NEVER_EXPOSED", f"n1=0, and {why}")
    assert frame.filter(scope="without")["utility"].null_count() == 3


def test_rounds_that_withheld_a_memory_stand_beside_episodes_and_are_no_swaps():
    rng, log, card = np.random.default_rng(0), HandMadeLog(), f"{CARD_PREFIX}0"
    log.block("b", 24, {"a": 12, card: 12, "x": 0})
    for t in range(24):
        log.round(f"r{t:02}", "b", t, [["a", card][t % 2]], float(rng.normal()), episode_id=f"e{t // 3}")
        kept = bool(rng.integers(2))
        arm = "ranked" if kept else "withheld"
        log.add("exposures", round_id=f"r{t:02}", memory_id="x", arm=arm, assigned=False, propensity=0.5)
    told = ["memory_id", "utility", "std_error", "ci_low", "ci_high", "p_value", "interval"]
    with_x = utilities(with_card_arms(log), reference="card", interval="neyman").frame.select(told)
    for table in ("exposures", "rosters"):
        log.rows[table] = [row for row in log.rows[table] if row["memory_id"] != "x"]
    without = utilities(with_card_arms(log), reference="card", interval="neyman").frame.select(told)
    assert with_x.filter(pl.col("memory_id") == "a").rows() == without.rows()
    assert without["interval"].to_list() == ["clustered_neyman"]
