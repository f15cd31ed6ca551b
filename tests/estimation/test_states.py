"""What is said of a memory agrees with its row: no reason against numbers that are there, no blank without one."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from cmp.design import balanced_table
from cmp.estimation import estimate
from cmp.estimation.adjustment import adjusted_estimate
from cmp.estimation.joint import joint_utilities

ROUNDS, PLAIN = 60, 5
STRATA = np.repeat(np.arange(3), 20)
#: Memories beside the plain ones, by what is odd about them.
ONCE, UNANSWERED, NEVER, ALWAYS, TORN, BARRED = range(PLAIN, PLAIN + 6)

OUTCOMES = {
    "bits": lambda rng: rng.random(ROUNDS) < 0.4,
    "zeros": lambda rng: np.zeros(ROUNDS),
    "ones": lambda rng: np.ones(ROUNDS),
    "sevens": lambda rng: np.full(ROUNDS, 7.0),
    "tenths": lambda rng: np.full(ROUNDS, 0.1),
    "threes and sevens": lambda rng: np.where(rng.random(ROUNDS) < 0.4, 3.0, 7.0),
    "bits that strata decide": lambda rng: STRATA == 1,
    "tenths that strata decide": lambda rng: 0.1 * STRATA + 0.1,
    "numbers": lambda rng: rng.normal(size=ROUNDS),
}


def log_of(kind: str) -> dict[str, np.ndarray]:
    """Return the arrays of a log of ordinary memories and odd ones."""
    rng = np.random.default_rng(7)
    z = np.zeros((ROUNDS, BARRED + 1), dtype=bool)
    np.put_along_axis(z, balanced_table(PLAIN, ROUNDS, 2, rng), values=True, axis=1)
    y = OUTCOMES[kind](rng).astype(float)
    y[[3, 25]] = np.nan
    eligible = np.ones_like(z)
    z[30, ONCE] = True
    z[[3, 25], UNANSWERED] = True
    z[:, ALWAYS] = True
    z[[10, 50], TORN] = True
    eligible[STRATA == 0, TORN] = np.arange(20) == 10
    eligible[:, BARRED] = False
    return {"assigned": z, "outcomes": y, "strata": STRATA, "eligible": eligible}


def check_rows(frame: pl.DataFrame, *, limits: tuple[str, ...]) -> None:
    for row in frame.iter_rows(named=True):
        blank = row["std_error"] is None
        assert [row[name] is None for name in limits] == [blank] * len(limits), row
        if row["state"] == "ESTIMATED":
            assert row["utility"] is not None, row
            assert (row["reason"] is None) == (not blank), row
        else:
            assert row["reason"], row
            assert ("variance from" in row["reason"]) == (not blank), row


@pytest.mark.parametrize("kind", OUTCOMES)
def test_an_adjusted_estimate_says_what_the_plain_one_says(kind):
    log = log_of(kind)
    frame, plain = (f(**log).frame for f in (adjusted_estimate, estimate))
    check_rows(frame, limits=("ci_low", "ci_high", "p_value"))
    for name in ("state", "reason", "interval"):
        assert frame[name].to_list() == plain[name].to_list()
    assert frame["state"][UNANSWERED] == "NO_OUTCOMES"
    assert frame["n_exposed"][TORN] == 2
    assert frame["reason"][TORN].startswith("n1=1")


@pytest.mark.parametrize("kind", OUTCOMES)
def test_a_joint_estimate_is_there_or_its_reason_is(kind):
    frame = joint_utilities(**log_of(kind)).frame
    check_rows(frame, limits=("df", "ci_low", "ci_high", "reliability"))
    varies = kind in ("bits", "threes and sevens", "numbers")
    plain = frame[:PLAIN]
    assert set(plain["state"]) == {"ESTIMATED" if varies else "UNDEREXPOSED"}
    assert set(plain["reason"]) == {None if varies else "no variance: outcomes constant"}
    assert plain["utility"].null_count() == (0 if varies else PLAIN)
    said = dict(zip(frame["memory_id"], frame.select("state", "reason").rows(), strict=True))
    assert said[UNANSWERED] == ("NO_OUTCOMES", "no outcome in any exposed round")
    assert said[NEVER] == ("NEVER_EXPOSED", "n1=0")
    assert said[ALWAYS] == ("UNDEREXPOSED", "n0=0")
    assert said[BARRED] == ("NEVER_EXPOSED", "no eligible round")


def test_where_no_stratum_holds_two_rounds_a_joint_estimate_has_no_contrast():
    log = log_of("numbers") | {"strata": np.arange(ROUNDS)}
    frame = joint_utilities(**log).frame
    check_rows(frame, limits=("df", "ci_low", "ci_high", "reliability"))
    assert set(frame["reason"][:PLAIN]) == {"no stratum holds both arms"}
    assert "ESTIMATED" not in set(frame["state"])


def test_a_memory_whose_every_round_lacks_its_outcome_has_no_outcomes():
    log = log_of("numbers")
    only = np.zeros(ROUNDS, dtype=bool)
    only[[3, 25]] = True
    log["eligible"][~only, 0] = False
    row = joint_utilities(**log).frame.row(0, named=True)
    assert (row["state"], row["reason"]) == ("NO_OUTCOMES", "no outcome in any eligible round")


def test_what_rounding_leaves_of_a_constant_is_no_outcome_that_varies():
    """The mean of thirty tenths is not a tenth."""
    assigned = np.eye(5, dtype=bool)[np.arange(30) % 5]
    for level in (0.1, 1e9 + 0.1, -1e-9):
        found = joint_utilities(assigned, np.full(30, level))
        assert found.effect_sd == found.noise_sd == 0.0
        assert found.frame["utility"].null_count() == 5


def test_a_memory_without_a_contrast_has_no_joint_estimate_though_others_have():
    rng = np.random.default_rng(0)
    assigned = np.arange(60)[:, None] % 5 == np.arange(6)
    assigned[:20, 5] = True  # in every round of one stratum, in none of the others
    frame = joint_utilities(assigned, rng.normal(size=60) + assigned[:, 0], np.repeat([0, 1, 2], 20)).frame
    row = frame.row(5, named=True)
    assert (row["state"], row["reason"]) == ("UNDEREXPOSED", "no stratum holds both arms")
    assert row["utility"] is None
    assert frame["state"].to_list()[:5] == ["ESTIMATED"] * 5
