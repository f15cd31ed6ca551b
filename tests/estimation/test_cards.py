"""Contrasts against cards, over every table of a small design."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import polars as pl
import pytest

from cmp.design.cards import CARD_PREFIX
from cmp.estimation import utilities
from tests.estimation.logs import HandMadeLog, two_arms
from tests.estimation.worlds import with_cards

#: Means of some dozen to some hundred doubles of order 1.
EXACT = 1e-12

IDS = ["m0", "m1", f"{CARD_PREFIX}1", f"{CARD_PREFIX}2"]


def every_table(n: int, k: int, rounds: int, count: int) -> list[np.ndarray]:
    """Return every table in which each of n ids stands in ``count`` rows: as likely as one another in a design that is
    symmetric in ids and rows and so small.
    """
    rows = list(combinations(range(n), k))
    tables = [np.array(table) for table in product(rows, repeat=rounds)]
    return [table for table in tables if (np.bincount(table.ravel(), minlength=n) == count).all()]


def log_of(tables: list[np.ndarray], outcomes: np.ndarray) -> HandMadeLog:
    """Return one scope for each table; outcomes have shape (tables, rounds)."""
    log = HandMadeLog()
    for nth, (table, ys) in enumerate(zip(tables, outcomes, strict=True)):
        scope = f"s{nth:04}"
        counts = np.bincount(table.ravel(), minlength=len(IDS))
        log.block(scope, len(table), dict(zip(IDS, counts.tolist(), strict=True)), scope)
        for t, (drawn, y) in enumerate(zip(table, ys, strict=True)):
            log.round(f"{scope}-{t}", scope, t, [IDS[m] for m in drawn], float(y), scope=scope)
    for entry in log.rows["exposures"]:
        if entry["memory_id"].startswith(CARD_PREFIX):
            entry["arm"] = "card"
    return log


def of_memory(log: HandMadeLog, memory: str, **options) -> pl.DataFrame:
    return utilities(log, reference="card", interval="pooled", **options).frame.filter(memory_id=memory)


TABLES = {1: every_table(4, 1, 8, 2), 2: every_table(4, 2, 4, 2)}


@pytest.mark.parametrize("k", [1, 2])
def test_the_difference_to_a_card_is_unbiased_over_every_table(k):
    rng = np.random.default_rng(0)
    u, rounds = np.array([0.7, -1.1, 0.2, 0.2]), 8 // k
    level = rng.normal(size=rounds)
    ys = np.array([level + u[table].sum(axis=1) for table in TABLES[k]])
    log = log_of(TABLES[k], ys)
    for memory, true in (("m0", 0.5), ("m1", -1.3)):
        assert of_memory(log, memory)["utility"].mean() == pytest.approx(true, abs=EXACT)


@pytest.mark.parametrize("k", [1, 2])
def test_its_variance_where_nothing_has_an_effect_is_exact_over_every_table(k):
    y = np.random.default_rng(1).normal(size=8 // k)
    log = log_of(TABLES[k], np.tile(y, (len(TABLES[k]), 1)))
    n, n1, n_cards = len(y), 2, 4
    want = 3 / 4 * n / (n - n1) * (1 / n1 + 1 / n_cards) * y.var(ddof=1)
    assert of_memory(log, "m0")["utility"].mean() == pytest.approx(0.0, abs=EXACT)
    assert of_memory(log, "m0")["utility"].var(ddof=0) == pytest.approx(want, abs=EXACT)


def test_the_pooled_estimate_of_its_variance_is_unbiased_where_one_is_drawn_a_round():
    # exposed and card rounds are then one simple random sample, of which each arm's mean square is that of all rounds
    y = np.random.default_rng(2).normal(size=8)
    log = log_of(TABLES[1], np.tile(y, (len(TABLES[1]), 1)))
    found = of_memory(log, "m0")
    assert (found["std_error"] ** 2).mean() == pytest.approx(found["utility"].var(ddof=0), abs=EXACT)


def test_a_memory_drawn_in_each_of_its_rounds_has_no_contrast_with_cards_either():
    log = HandMadeLog()
    log.block("b", 4, {"m": 2, f"{CARD_PREFIX}1": 2})
    for t in range(4):
        log.round(
            f"r{t}", "b", t, ["m"] if t < 2 else [f"{CARD_PREFIX}1"], float(t), ranked=["m"] if t >= 2 else []
        )
    assert utilities(log, reference="card").frame["utility"].to_list() == [None]


@pytest.mark.parametrize("option", [{"by": "version"}, {"estimator": "ht"}, {"outcome_range": (0, 1)}])
def test_what_has_no_meaning_against_cards_is_refused_with_the_reason(option):
    with pytest.raises(ValueError, match=r"reference='card' does not go with .*: "):
        utilities(two_arms([1.0, 0.0], [0.0, 1.0]), reference="card", **option)


@pytest.mark.parametrize(("kind", "spread"), [("continuous", 1.0), ("binary", 0.1)])
def test_intervals_against_cards_cover(kind, spread):
    # 1,500 logs gave .951 and .944; here the standard error of the mean is .0037 (one log's intervals share its card
    # rounds), so that .93 to .97 is left in one run of 5,000. A memory of true coverage .92 is covered in fewer than
    # 344 of 400 in one of 50,000, some memory of 29 in one of 1,700
    u = np.random.default_rng(3).uniform(-1, 1, size=32) * spread
    u[:3] = 0.0
    log = with_cards(4, u, scopes=400, rounds=90, k=2, cards=3, kind=kind)
    frame = utilities(log, reference="card").frame
    low, high = (frame[name].to_numpy().reshape(400, 29) for name in ("ci_low", "ci_high"))
    covered = ((low <= u[3:]) & (u[3:] <= high)).mean(axis=0)
    assert 0.93 <= covered.mean() <= 0.97
    assert covered.min() >= 0.86


def test_a_last_stratum_whose_card_was_never_drawn_is_counted_as_empty_and_changes_nothing():
    card = f"{CARD_PREFIX}1"
    log = HandMadeLog()
    for block, drawn in (("b0", ["m0", card, "m0", card, "m1", "m1"]), ("b1", ["m0", "m1", "m0", "m1"])):
        log.block(block, len(drawn), {memory: max(drawn.count(memory), 1) for memory in ("m0", "m1", card)})
        for t, memory in enumerate(drawn):
            log.round(f"{block}{t}", block, t, [memory], float(t * t))
    for entry in log.rows["exposures"]:
        if entry["memory_id"] == card:
            entry["arm"] = "card"
    first = HandMadeLog({name: [dict(row) for row in rows] for name, rows in log.rows.items()})
    for name in ("rounds", "blocks", "rosters"):
        first.rows[name] = [row for row in first.rows[name] if row["block_id"] == "b0"]
    both, one = (utilities(each, reference="card").frame for each in (log, first))
    columns = ["memory_id", "utility", "n_control"]
    assert both.select(columns).rows() == one.select(columns).rows()
    assert (both["n_exposed"] - one["n_exposed"]).to_list() == [2, 2]
    assert (both["n_strata_empty"] - one["n_strata_empty"]).to_list() == [1, 1]


def test_a_card_that_was_never_drawn_spoils_nothing_for_the_other_of_its_stratum():
    cards = [f"{CARD_PREFIX}1", f"{CARD_PREFIX}2"]
    drawn = ["m0", cards[0], "m0", cards[0], "m1", "m1"]
    log = HandMadeLog()
    log.block("b", 6, {"m0": 2, "m1": 2, cards[0]: 2, cards[1]: 1})
    for t, memory in enumerate(drawn):
        log.round(f"r{t}", "b", t, [memory], float(t * t))
    for entry in log.rows["exposures"]:
        if entry["memory_id"] == cards[0]:
            entry["arm"] = "card"
    row = utilities(log, reference="card").frame.row(0, named=True)
    # three quarters of the difference of the two contrasts: four ids are in the roster
    y = np.arange(6.0) ** 2
    contrasts = [y[rows].mean() - np.delete(y, rows).mean() for rows in ([0, 2], [1, 3])]
    assert row["utility"] == pytest.approx(0.75 * (contrasts[0] - contrasts[1]), abs=EXACT)
