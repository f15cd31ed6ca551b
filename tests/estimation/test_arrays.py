from __future__ import annotations

from fractions import Fraction
from itertools import combinations

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cmp.estimation import Utilities, estimate, null_variance
from tests.estimation.golden import golden

#: Differences of means of a few small numbers.
ARITHMETIC = 1e-12
#: The same where intervals and p-values go through square roots and special functions.
SPECIAL = 1e-9

NUMBERS = ("utility", "std_error", "df", "ci_low", "ci_high", "p_value", "q_value")


def first(result: Utilities) -> dict:
    return result.frame.row(0, named=True)


def draws(rng: np.random.Generator, rounds: int, memories: int, k: int = 2) -> np.ndarray:
    z = np.zeros((rounds, memories), bool)
    for row in z:
        row[rng.choice(memories, k, replace=False)] = True
    return z


@pytest.mark.parametrize("estimator", ["difference", "hajek", "ht"])
def test_three_estimators_agree_under_a_fixed_count(estimator):
    case = golden("equality")
    pi = np.full((8, 1), case["propensity"])
    got = first(estimate(case["assigned"], case["outcome"], propensity=pi, estimator=estimator))
    assert got["utility"] == pytest.approx(case["all_three"], abs=ARITHMETIC)


@given(st.integers(0, 2**32 - 1), st.integers(4, 10), st.sampled_from([0.0, 1e9]))
def test_three_estimators_agree_with_strata_and_offsets(seed, rounds, offset):
    rng = np.random.default_rng(seed)
    z = np.concatenate([rng.permutation(np.arange(rounds) < n) for n in (1, 2, 3)])[:, None]
    y = rng.normal(size=3 * rounds) + offset
    strata, pi = np.repeat([0, 1, 2], rounds), np.repeat([1, 2, 3], rounds)[:, None] / rounds
    values = [
        first(estimate(z, y, strata, propensity=pi, estimator=e)) for e in ("difference", "hajek", "ht")
    ]
    for name in ("utility", "std_error", "ci_low"):
        assert values[0][name] == pytest.approx(values[1][name], abs=ARITHMETIC * max(1, offset * 1e-3))
        assert values[0][name] == pytest.approx(values[2][name], abs=ARITHMETIC * max(1, offset * 1e-3))


@given(st.lists(st.tuples(*[st.integers(-4, 4)] * 2), min_size=3, max_size=7), st.data())
def test_the_difference_is_unbiased_over_every_assignment(pairs, data):
    y1, y0 = np.array(pairs, dtype=float).T
    n1 = data.draw(st.integers(1, len(pairs) - 1))
    values = []
    for chosen in combinations(range(len(pairs)), n1):
        z = np.isin(np.arange(len(pairs)), chosen)
        values.append(first(estimate(z, np.where(z, y1, y0)))["utility"])
    assert np.mean(values) == pytest.approx((y1 - y0).mean(), abs=ARITHMETIC)


def test_hajek_is_the_difference_of_weighted_means():
    rng = np.random.default_rng(15)
    pi, y = rng.uniform(0.1, 0.9, 30), rng.normal(size=30)
    z = rng.random(30) < pi
    want = np.average(y[z], weights=1 / pi[z]) - np.average(y[~z], weights=1 / (1 - pi[~z]))
    assert first(estimate(z, y, propensity=pi[:, None], estimator="hajek"))["utility"] == pytest.approx(want)


def test_levels_that_follow_the_propensity_bias_a_plain_difference_and_not_hajek():
    # 2,000 Bernoulli logs of 60 rounds: standard errors of the means below near 0.01; 5 of them is 0.05
    rng = np.random.default_rng(16)
    pi = np.tile([0.2, 0.5, 0.8], 20)
    z = rng.random((60, 2000)) < pi[:, None]
    y = 2 * pi + rng.normal(0, 0.1, 60)
    shared = [estimate(z[:, i], y, propensity=pi[:, None], estimator="hajek") for i in range(2000)]
    assert abs(np.mean([first(u)["utility"] for u in shared])) < 0.05
    assert estimate(z, y).frame["utility"].mean() > 0.4


def test_utilities_are_bit_equal_whatever_the_row_order():
    rng = np.random.default_rng(0)
    z, y = draws(rng, 60, 5), rng.choice([0.1, 0.2, 0.3], 60)
    strata, order = rng.integers(0, 4, 60), rng.permutation(60)
    straight, shuffled = estimate(z, y, strata).frame, estimate(z[order], y[order], strata[order]).frame
    assert straight.equals(shuffled)


def test_memories_with_equal_outcomes_have_bit_equal_utilities():
    y = [0.1, 0.2, 0.3, 0.3, 0.2, 0.1, 0.7, 0.7]
    z = np.zeros((8, 2), bool)
    z[:3, 0] = z[3:6, 1] = True
    a, b = estimate(z, y).frame["utility"]
    assert a == b


def test_weighted_utilities_are_bit_equal_whatever_the_row_order():
    rng = np.random.default_rng(3)
    z, y, pi = draws(rng, 30, 3, 1), rng.choice([0.1, 0.2, 0.3], 30), rng.uniform(0.1, 0.6, (30, 3))
    order = rng.permutation(30)
    for estimator in ("hajek", "ht"):
        straight = estimate(z, y, propensity=pi, estimator=estimator).frame
        assert straight.equals(estimate(z[order], y[order], propensity=pi[order], estimator=estimator).frame)


@pytest.mark.parametrize("kind", ["binary", "continuous"])
def test_adding_a_constant_and_rescaling_change_nothing_that_matters(kind):
    rng = np.random.default_rng(5)
    z = draws(rng, 40, 4)
    y = (rng.random(40) < 0.4).astype(float) if kind == "binary" else rng.normal(size=40)
    plain = estimate(z, y).frame
    # outcomes near 1e9 hold 2**-23 = 1.2e-7 of a unit; exact for the two values 1e9 and 1e9 + 1
    moved = estimate(z, y + 1e9).frame
    scaled = estimate(z, 8 * y - 3).frame
    for name in NUMBERS:
        size = 8 if name in ("utility", "std_error", "ci_low", "ci_high") else 1
        a, b, c = (frame[name].fill_null(-9).to_numpy() for frame in (plain, moved, scaled))
        np.testing.assert_allclose(b, a, atol=1e-6 if kind == "continuous" else SPECIAL, rtol=1e-6)
        np.testing.assert_allclose(np.where(c == -9, -9 * size, c), size * a, atol=SPECIAL, rtol=SPECIAL)
    assert plain["interval"].to_list() == moved["interval"].to_list() == scaled["interval"].to_list()


def test_levels_of_strata_never_enter_a_contrast():
    rng = np.random.default_rng(6)
    z, y, strata = draws(rng, 40, 4), rng.normal(size=40), np.repeat([0, 1], 20)
    plain, drifted = estimate(z, y, strata).frame, estimate(z, y + 100 * strata, strata).frame
    for name in ("utility", "std_error"):
        np.testing.assert_allclose(plain[name], drifted[name], atol=1e-11)


def test_strata_combine_by_precision_or_by_rounds():
    case = golden("strata")
    z, y, s = [], [], []
    for i, block in enumerate(case["blocks"]):
        ones, zeros = round(block["m1"] * block["n1"]), round(block["m0"] * block["n0"])
        z += [1] * block["n1"] + [0] * block["n0"]
        y += [1] * ones + [0] * (block["n1"] - ones) + [1] * zeros + [0] * (block["n0"] - zeros)
        s += [i] * (block["n1"] + block["n0"])
    gaps = [(b["m1"] - b["m0"], b["n1"], b["n0"]) for b in case["blocks"]]
    precision = sum(g * a * b / (a + b) for g, a, b in gaps) / sum(a * b / (a + b) for _, a, b in gaps)
    rounds = sum(g * (a + b) for g, a, b in gaps) / sum(a + b for _, a, b in gaps)
    assert first(estimate(z, y, s))["utility"] == pytest.approx(precision, abs=ARITHMETIC)
    assert precision == pytest.approx(case["difference"], abs=ARITHMETIC)
    assert first(estimate(z, y, s, weights="rounds"))["utility"] == pytest.approx(rounds, abs=ARITHMETIC)


def test_utility_is_the_difference_of_the_means_shown():
    rng = np.random.default_rng(7)
    frame = estimate(draws(rng, 50, 5), rng.normal(size=50) + 1000, rng.integers(0, 3, 50)).frame
    np.testing.assert_allclose(frame["mean_exposed"] - frame["mean_control"], frame["utility"], atol=1e-10)


def test_splitting_a_control_only_stratum_off_changes_nothing():
    z, y = np.array([1, 1, 0, 0, 0, 0], bool), np.array([1.0, 0, 1, 0, 5, 6])
    with_empty = first(estimate(z, y, [0, 0, 0, 0, 1, 1]))
    without = first(estimate(z[:4], y[:4]))
    assert with_empty["utility"] == without["utility"]
    assert (with_empty["n_strata"], with_empty["n_strata_empty"]) == (2, 1)


# Missing outcomes


def test_missing_outcomes_leave_both_arms_and_are_counted():
    case = golden("missing")
    row = first(estimate([1] * 4 + [0] * 4, [*case["assigned"], *case["control"]], interval="neyman"))
    assert row["utility"] == pytest.approx(case["difference"], abs=ARITHMETIC)
    assert row["std_error"] ** 2 == pytest.approx(case["neyman"], abs=ARITHMETIC)
    assert [row["n_missing_exposed"], row["n_exposed"] + 1] == case["missing"][:2]
    assert [row["n_missing_control"], row["n_control"] + 2] == case["missing"][2:]


def test_a_recorded_zero_is_not_missing():
    assert first(estimate([1, 1, 0, 0], [0, 0, 0, 1]))["n_exposed"] == 2


@pytest.mark.parametrize("bad", [np.inf, -np.inf])
def test_infinite_outcomes_are_refused(bad):
    with pytest.raises(ValueError, match="outcome of round 1 is infinite"):
        estimate([1, 0], [0.0, bad])


@pytest.mark.parametrize("bad", [["1", "0"], np.array(["1", None], dtype=object)])
def test_text_outcomes_are_refused(bad):
    with pytest.raises(ValueError, match="give numbers"):
        estimate([1, 0], bad)


# States


@pytest.mark.parametrize(
    ("assigned", "outcomes", "utility", "state", "reason"),
    [
        ([1, 0, 0, 0], [1, 0, 0, 1], Fraction(2, 3), "UNDEREXPOSED", "n1=1"),
        ([0, 0], [0, 1], None, "NEVER_EXPOSED", "n1=0"),
        ([1, 0], [1, 0], 1, "UNDEREXPOSED", "n1=1"),
        ([1, 1, 0], [1, 0, 0], Fraction(1, 2), "UNDEREXPOSED", "n0=1"),
        ([1, 1], [1, 0], None, "UNDEREXPOSED", "n0=0"),
        ([1, 0], [None, None], None, "NO_OUTCOMES", "no outcome in any eligible round"),
        ([1, 0, 0], [None, 1, 0], None, "NO_OUTCOMES", "no outcome in any exposed round"),
        (np.zeros((0, 1), bool), [], None, "NEVER_EXPOSED", "no randomized round"),
    ],
)
def test_too_little_is_said_and_never_a_zero(assigned, outcomes, utility, state, reason):
    row = first(estimate(assigned, outcomes))
    assert (row["state"], row["reason"]) == (state, reason)
    assert row["utility"] == (None if utility is None else pytest.approx(float(utility), abs=ARITHMETIC))
    assert row["std_error"] is row["ci_low"] is row["ci_high"] is row["df"] is None


def test_one_exposure_takes_its_variance_from_the_prior_where_there_is_one():
    rng = np.random.default_rng(8)
    z = np.zeros((40, 4), bool)
    for m, rows in enumerate((range(8), range(8, 16), range(16, 24), range(24, 25))):
        z[list(rows), m] = True
    row = estimate(z, rng.normal(size=40)).frame.row(3, named=True)
    assert row["state"] == "UNDEREXPOSED"
    assert row["std_error"] > 0
    assert "prior" in row["reason"]


def test_a_memory_that_is_not_eligible_is_not_called_ranked():
    frame = estimate([[1, 0], [0, 1], [1, 0]], [1.0, 0, 1], eligible=[[0, 1], [0, 1], [0, 1]]).frame
    assert frame["state"].to_list() == ["NEVER_EXPOSED", "UNDEREXPOSED"]
    assert frame["reason"][0] == "no eligible round"
    left = estimate([1, 1, 0, 0], [1.0, 0, 1, 0], eligible=[1, 1, 0, 0]).frame
    assert left.select("state", "reason").row(0) == ("UNDEREXPOSED", "n0=0")


def test_exposures_in_different_strata_than_the_controls_make_no_contrast():
    row = first(estimate([1, 1, 0, 0], [1.0, 0, 1, 0], [0, 0, 1, 1]))
    assert (row["state"], row["reason"], row["utility"]) == (
        "UNDEREXPOSED",
        "no stratum holds both arms",
        None,
    )


@pytest.mark.parametrize("interval", ["auto", "pooled", "neyman", "welch"])
def test_a_constant_outcome_has_no_variance_and_says_so(interval):
    frame = estimate(draws(np.random.default_rng(9), 30, 3), np.full(30, 7.0), interval=interval).frame
    assert frame["utility"].to_list() == [0.0] * 3
    assert frame["std_error"].null_count() == frame["p_value"].null_count() == 3
    assert all("constant" in reason for reason in frame["reason"])


def test_a_constant_zero_is_no_success_in_any_round():
    frame = estimate(draws(np.random.default_rng(9), 30, 3), np.zeros(30)).frame
    assert frame["interval"].to_list() == ["newcombe"] * 3
    assert (frame["ci_low"] < 0).all()
    assert frame["p_value"].to_list() == [1.0] * 3


def test_undefined_numbers_are_null_and_never_nan():
    frame = estimate([[1, 0], [0, 0], [0, 0]], [1.0, 0, 0]).frame
    assert frame.select(pl.selectors.float().is_nan().any()).sum_horizontal().item() in (0, None)
    assert frame["utility"].to_list() == [1.0, None]


# Shapes


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([2, 0], [1, 0]), "other than True and False"),
        (([[[1]]], [1]), "has shape"),
        (([1, 0], [1, 0, 1]), "give one a round"),
        (([1, 0], [1, 0], [0]), "strata have shape"),
        (([1, 0], [1, 0], None, [[1, 0, 1]]), "eligible has shape"),
        (([1, 0], [1, 0], None, None, [0.1, 0.2, 0.3]), "propensity has shape"),
        (([1, 0], [1, 0], None, None, None, "ipw"), "estimator='ipw'"),
        (([1, 0], [1, 0], None, None, None, "ht", "bayes"), "interval='bayes'"),
        (([1, 0], [1, 0], None, None, None, "ht", "auto", 95), "level=95"),
    ],
)
def test_arrays_that_do_not_fit_are_refused_with_the_reason(arguments, message):
    with pytest.raises(ValueError, match=message):
        estimate(*arguments)


def test_the_columns_are_those_of_the_contract():
    assert estimate([1, 0], [1, 0]).frame.columns == [
        "scope",
        "memory_id",
        "n_exposed",
        "n_control",
        "mean_exposed",
        "mean_control",
        "utility",
        "std_error",
        "df",
        "ci_low",
        "ci_high",
        "p_value",
        "q_value",
        "state",
        "reason",
        "reference",
        "interval",
        "n_missing_exposed",
        "n_missing_control",
        "p_missing",
        "n_certain",
        "n_strata",
        "n_strata_empty",
        "content_changed",
    ]


def test_the_exact_p_value_is_the_randomization_test():
    case = golden("null")
    row = first(estimate(case["assigned"], case["outcome"]))
    assert row["p_value"] == pytest.approx(case["randomization_p_two_sided"], abs=SPECIAL)
    assert row["utility"] == pytest.approx(case["difference"], abs=ARITHMETIC)
    assert null_variance(case["outcome"], 3) == pytest.approx(case["null_variance"], abs=ARITHMETIC)


def test_a_table_has_a_summary_a_plot_and_a_pandas_form():
    rng = np.random.default_rng(14)
    z = draws(rng, 60, 5)
    y = (rng.random(60) < 0.3 + 0.6 * z[:, 0]).astype(float)
    y[0] = np.nan
    u = estimate(z, y)
    assert len(u) == 5
    assert "5 ESTIMATED" in u.summary()
    assert "without an outcome" in repr(u)
    assert len(u.plot().get_yticks()) == 5
    assert u.to_pandas().shape == u.frame.shape


@pytest.mark.parametrize("n", [3, 5])
def test_outcomes_are_one_a_round(n):
    with pytest.raises(ValueError, match="for 4 rounds; give one a round"):
        estimate([[1, 0], [0, 1], [1, 0], [0, 1]], np.arange(n, dtype=float))
