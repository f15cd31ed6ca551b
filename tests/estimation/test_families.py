"""What one scope's outcomes are never shows in another's numbers."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from cmp.design import balanced_table
from cmp.errors import ScopeError
from cmp.estimation import estimate, utilities
from tests.estimation.logs import HandMadeLog

KINDS = {
    "binary": lambda rng: float(rng.random() < 0.4),
    "continuous": lambda rng: float(rng.normal()),
    "large": lambda rng: float(rng.normal() * 1e9),
    "tiny": lambda rng: float(rng.normal() * 1e-9),
    "constant": lambda rng: 7.0,
    "zero": lambda rng: 0.0,
    "levels": lambda rng: float(rng.choice([0.3, 0.7])),
}


def tenant(scope: str, kind: str, seed: int) -> HandMadeLog:
    rng, log = np.random.default_rng(seed), HandMadeLog()
    for block in range(3):
        name = f"{scope}-{block}"
        table = balanced_table(6, 12, 2, rng)
        counts = np.bincount(table.ravel(), minlength=6)
        log.block(name, 12, {f"m{i}": int(counts[i]) for i in range(6)}, scope=scope)
        for i, row in enumerate(table):
            y = None if rng.random() < 0.1 else KINDS[kind](rng)
            log.round(f"{name}-{i}", name, i, [f"m{m}" for m in row], y, scope=scope, group=f"q{i % 2}")
    return log


@pytest.mark.parametrize(
    ("by", "estimator"),
    [
        ("memory", "difference"),
        ("query", "difference"),
        ("version", "difference"),
        ("memory", "ht"),
        ("query", "ht"),
    ],
)
def test_merging_the_logs_of_tenants_changes_no_number_but_q_values(by, estimator):
    logs = [tenant(f"s{i}", kind, i) for i, kind in enumerate(KINDS)]
    merged = HandMadeLog({t: [row for log in logs for row in log.rows[t]] for t in logs[0].rows})
    apart = pl.concat([utilities(log, by=by, estimator=estimator).frame for log in logs])
    whole = utilities(merged, by=by, estimator=estimator).frame
    assert whole.drop("q_value").equals(apart.drop("q_value"))
    if (by, estimator) == ("memory", "difference"):
        chosen = dict(whole.group_by("scope").agg(pl.col("interval").first()).iter_rows())
        proportions = {kind for i, kind in enumerate(KINDS) if chosen[f"s{i}"] == "newcombe"}
        assert proportions == {"binary", "zero", "levels"}


def test_a_level_of_each_query_is_no_proportion():
    log = HandMadeLog()
    for q, level in (("q1", 0.3), ("q2", 0.7)):
        log.block(f"b-{q}", 8, {"m": 4, "x": 4})
        for i in range(8):
            log.round(f"{q}-{i}", f"b-{q}", i, ["m" if i % 2 else "x"], level, group=q)
    for by in ("memory", "query"):
        frame = utilities(log, by=by).frame
        assert set(frame["interval"]) == {"moderated"}
        assert frame["std_error"].null_count() == frame["p_value"].null_count() == frame.height
        assert all("constant" in reason for reason in frame["reason"])


def test_two_values_within_one_stratum_are_proportions():
    y, s = [0.3, 0.7, 0.3, 0.7, 0.3, 0.3, 0.3, 0.3], [0, 0, 0, 0, 1, 1, 1, 1]
    assert estimate([1, 1, 0, 0] * 2, y, s).frame["interval"][0] == "newcombe"
    assert estimate([1, 1, 0, 0] * 2, [0.3] * 4 + [0.7] * 4, s).frame["interval"][0] == "moderated"
    assert estimate([1, 1, 0, 0] * 2, [0.0] * 4 + [1.0] * 4, s).frame["interval"][0] == "newcombe"


def test_newcombe_is_refused_where_one_tenants_outcomes_are_not_two_valued():
    logs = [tenant("a", "binary", 1), tenant("b", "continuous", 2)]
    merged = HandMadeLog({t: logs[0].rows[t] + logs[1].rows[t] for t in logs[0].rows})
    with pytest.raises(ValueError, match="two-valued"):
        utilities(merged, interval="newcombe")


def test_a_round_in_another_tenants_block_is_an_error():
    log = tenant("a", "binary", 1)
    log.rows["rounds"][3]["scope"] = "b"
    with pytest.raises(ScopeError, match=r"'a-0-3'.*validate_log"):
        utilities(log)
