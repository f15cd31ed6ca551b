from __future__ import annotations

import numpy as np
import pytest

from cmp.errors import PositivityError
from cmp.estimation import estimate
from tests.estimation.test_arrays import ARITHMETIC, NUMBERS, draws, first


def test_certain_rounds_carry_no_contrast_and_are_counted():
    z = np.array([1, 1, 0, 0, 1, 0], bool)
    row = first(estimate(z, [1.0, 0, 1, 0, 9, 9], propensity=np.array([[0.5]] * 4 + [[1.0], [0.0]])))
    assert row["n_certain"] == 2
    assert (row["n_exposed"], row["n_control"]) == (2, 2)
    assert row["utility"] == 0.0
    always = first(estimate([1, 1], [1.0, 0], propensity=1.0))
    assert (always["state"], always["n_certain"]) == ("UNDEREXPOSED", 2)
    assert first(estimate([0, 0], [1.0, 0], propensity=0.0))["state"] == "NEVER_EXPOSED"


@pytest.mark.parametrize("bad", [np.nan, -0.1, 1.1])
def test_what_is_no_probability_is_an_error_naming_its_rows(bad):
    pi = np.full((4, 2), 0.5)
    pi[2, 1] = bad
    with pytest.raises(PositivityError, match="1 of 8 propensities are no probabilities"):
        estimate(np.eye(4, 2), [1.0, 0, 1, 0], propensity=pi)
    assert estimate(
        np.eye(4, 2), [1.0, 0, 1, 0], eligible=np.isfinite(pi) & (pi < 1) & (pi > 0), propensity=pi
    )
    with pytest.raises(PositivityError, match="memory 0"):
        estimate([1, 0], [1.0, 0], propensity=bad)


def test_rounding_above_one_is_forgiven_and_nothing_is_clipped():
    z, y = [1, 1, 0, 0], [1.0, 0, 1, 0]
    assert first(estimate([1, 1, 1, 1], y, propensity=1 + 1e-10))["n_certain"] == 4
    tiny = np.array([[1e-6], [0.5], [0.5], [0.5]])
    assert first(estimate(z, y, propensity=tiny, estimator="ht"))["utility"] > 1e5


def test_propensities_that_differ_in_a_stratum_ask_for_another_estimator():
    pi = np.array([[0.2], [0.4], [0.2], [0.4]])
    with pytest.raises(ValueError, match="use estimator='hajek'"):
        estimate([1, 1, 0, 0], [1.0, 0, 1, 0], propensity=pi)
    assert first(estimate([1, 1, 0, 0], [1.0, 0, 1, 0], [0, 1, 0, 1], propensity=pi))["utility"] == 0.0


def test_constant_propensities_make_the_weights_cancel():
    rng = np.random.default_rng(12)
    z, y = draws(rng, 40, 4), rng.normal(size=40)
    wobble = np.full((40, 4), 0.5)
    wobble[0] = np.nextafter(0.5, 1)  # not quite constant: the weighted path
    even, weighted = (
        estimate(z, y, propensity=pi, estimator="hajek").frame for pi in (np.full((40, 4), 0.5), wobble)
    )
    for name in NUMBERS:
        np.testing.assert_allclose(even[name], weighted[name], rtol=1e-8)


def test_slot_probabilities_do_not_pass_for_inclusion_probabilities():
    # every round shows 3 of 10; weighting by the slot's 0.1 puts the mean of a constant 1 at 3
    rng = np.random.default_rng(13)
    z, y = draws(rng, 1000, 10, 3), np.ones(1000)
    whole = estimate(z, y, propensity=0.3, estimator="ht").frame["mean_exposed"].mean()
    slot = estimate(z, y, propensity=0.1, estimator="ht").frame["mean_exposed"].mean()
    assert whole == pytest.approx(1.0, abs=ARITHMETIC)
    assert slot == pytest.approx(3.0, abs=ARITHMETIC)


def test_the_propensity_is_that_of_the_mixture_and_not_of_the_branch_taken():
    # epsilon-greedy over 10 memories, epsilon .2: the greedy one is shown in 80 + 2 of 100 rounds; outcomes are 1
    z = np.r_[np.ones(82, bool), np.zeros(18, bool)]
    branch = np.r_[np.full(80, 0.8), np.full(20, 0.02)][:, None]
    mixture = first(estimate(z, np.ones(100), propensity=0.82, estimator="ht"))
    assert mixture["mean_exposed"] == pytest.approx(1.0, abs=ARITHMETIC)
    by_branch = first(estimate(z, np.ones(100), propensity=branch, estimator="ht"))
    assert by_branch["mean_exposed"] == pytest.approx(2.0, abs=ARITHMETIC)


@pytest.mark.parametrize("estimator", ["difference", "ht"])
def test_a_draw_that_was_impossible_is_an_error_naming_its_rows(estimator):
    pi = np.array([[0.5], [0.0], [0.5], [0.0]])
    with pytest.raises(PositivityError, match=r"1 rounds of memories are drawn at propensity 0 \(rows 1;"):
        estimate([1, 1, 0, 0], [1.0, 0, 1, 0], propensity=pi, estimator=estimator)
    with pytest.raises(PositivityError, match=r"not drawn at propensity 1 \(rows 2, 3;"):
        estimate([1, 1, 0, 0], [1.0, 0, 1, 0], propensity=1.0, estimator=estimator)
    barred = estimate([1, 1, 0, 0], [1.0, 0, 1, 0], eligible=[1, 0, 1, 1], propensity=pi, estimator=estimator)
    assert first(barred)["n_certain"] == 1


def test_one_memorys_propensities_may_be_one_a_round():
    z, y, pi = [1, 0, 1, 0, 0], [1.0, 0, 1, 2, 0], np.array([0.5, 0.2, 0.4, 0.3, 0.3])
    flat, column = (estimate(z, y, propensity=p, estimator="hajek").frame for p in (pi, pi[:, None]))
    assert flat.equals(column)
