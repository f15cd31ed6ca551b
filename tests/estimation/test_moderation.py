from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cmp.design import balanced_table
from cmp.estimation import estimate, moderate_variances
from tests.estimation.golden import golden

#: limma iterates its inverse trigamma to 1e-8.
LIMMA = 1e-8


@pytest.mark.parametrize("case", [0, 1])
def test_shrinkage_is_limmas(case):
    want = golden("moderated")[case]
    got = moderate_variances(want["variances"], want["df"])
    assert math.isclose(got.prior_df, float(want["prior_df"]), rel_tol=LIMMA)
    assert math.isclose(got.prior_variance, want["prior_variance"], rel_tol=LIMMA)
    if "moderated" in want:
        np.testing.assert_allclose(got.moderated, want["moderated"], rtol=LIMMA)
    else:
        np.testing.assert_allclose(got.moderated, want["prior_variance"], rtol=LIMMA)


def test_the_fit_recovers_the_prior_it_was_drawn_from():
    # 20,000 scaled-F variances: the moment estimate of d0 = 4 has a standard error near 0.1; 6 of them is 0.6
    rng = np.random.default_rng(11)
    variances = 2.0 / rng.chisquare(4, 20_000) * 4 * rng.chisquare(5, 20_000) / 5
    got = moderate_variances(variances, np.full(20_000, 5))
    assert abs(got.prior_df - 4) < 0.6
    assert abs(got.prior_variance - 2) < 0.12


@given(st.lists(st.floats(0.01, 100), min_size=2, max_size=30), st.sampled_from(["smyth", "mean", "auto"]))
def test_a_moderated_variance_lies_between_its_own_and_the_prior(variances, prior):
    got = moderate_variances(variances, np.full(len(variances), 4.0), prior=prior)
    low, high = np.minimum(variances, got.prior_variance), np.maximum(variances, got.prior_variance)
    assert (got.moderated >= low * (1 - 1e-12)).all()
    assert (got.moderated <= high * (1 + 1e-12)).all()


def test_a_memory_without_a_variance_gets_the_prior():
    got = moderate_variances([0.2, 0.4, np.nan], [3, 3, 0], prior="mean")
    assert got.moderated[2] == got.prior_variance == pytest.approx(0.3)


def test_tied_variances_are_shrunk_to_their_mean():
    got = moderate_variances([0.2] * 5 + [0.8] * 5, [4] * 10, prior="auto")
    assert (got.prior_df, got.prior_variance) == (4.0, pytest.approx(0.5))


def test_zero_variances_are_shrunk_to_their_mean():
    got = moderate_variances([0.0, 0.0, 0.3, 0.5, 0.21, 0.6], [4] * 6, prior="auto")
    assert got.prior_df == 4.0


def test_one_variance_or_none_is_left_alone():
    got = moderate_variances([0.5], [4])
    assert got.moderated.tolist() == [0.5]
    assert got.prior_df == 0.0
    assert np.isnan(moderate_variances([np.nan], [0]).moderated).all()


def test_all_zero_variances_stay_zero():
    assert moderate_variances([0.0, 0.0], [4, 4]).moderated.tolist() == [0.0, 0.0]


def test_very_unequal_and_nearly_equal_variances_both_fit():
    assert moderate_variances([1e-12, 1e12, 1.0], [400, 400, 400]).prior_df < 1
    spread = np.exp(np.random.default_rng(1).normal(0, 1e-2, 50))
    assert moderate_variances(spread, np.full(50, 1e6)).prior_df > 1000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1.0], [1, 2]), "one df for each"),
        (([-1.0, 1.0], [1, 2]), "not negative"),
        (([np.inf, 1.0], [1, 2]), "finite"),
        (([1.0, 1.0], [1, np.inf]), "degrees of freedom are finite"),
        (([1.0, 1.0], [1, np.nan]), "degrees of freedom are finite"),
    ],
)
def test_impossible_variances_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        moderate_variances(*arguments)
    with pytest.raises(ValueError, match="use 'smyth'"):
        moderate_variances([1.0], [1.0], prior="flat")


@given(st.floats(1e-9, 1e9))
def test_the_inverse_of_trigamma_inverts_it(x):
    from scipy.special import polygamma

    from cmp.estimation.moderation import _inverse_trigamma

    # beyond 1e7 and below 1e-6 the asymptotes stand in, good to their own size
    assert float(polygamma(1, _inverse_trigamma(x))) == pytest.approx(x, rel=1e-3)


def test_a_rare_success_over_many_strata_does_not_pass_for_certainty():
    """One memory of each stratum decides its outcome. Without an exposure that met it, an arm's variance is 0.

    Exact expectation: beside a memory that decides nothing, a decisive one is drawn with probability 1/(N-1), and
    without it 2/(N-1), in the strata that have one. 60 logs x 56 memories; the bound is what a coverage of .95 with
    logs as clusters falls below with probability below 1e-6.
    """
    rng, n, rounds, strata = np.random.default_rng(8), 60, 90, 12
    decisive = np.where(np.arange(strata) % 3 < 2, np.arange(strata), -1)
    useless = np.arange(strata, n)
    truth = -0.7 * float((decisive >= 0).mean()) / (n - 1)
    covered = []
    for _ in range(60):
        assigned = np.zeros((strata * rounds, n), dtype=bool)
        outcomes = np.zeros(strata * rounds)
        for s in range(strata):
            table = balanced_table(n, rounds, 2, rng)
            rows = np.arange(s * rounds, (s + 1) * rounds)
            assigned[rows[:, None], table] = True
            outcomes[rows] = 0.25 * (s % 2) + (assigned[rows, decisive[s]] * 0.7 if decisive[s] >= 0 else 0.0)
        f = estimate(assigned, outcomes, strata=np.repeat(np.arange(strata), rounds)).frame[useless]
        assert set(f["interval"]) == {"moderated"}
        covered.append(((f["ci_low"] <= truth) & (truth <= f["ci_high"])).mean())
    assert np.mean(covered) > 0.90
