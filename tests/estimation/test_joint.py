from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import spearmanr

from cmp.design import balanced_table
from cmp.estimation import estimate
from cmp.estimation.joint import centred_within, fit_jointly, joint_utilities
from experiments.worlds import Size, make_world

#: Two ways to solve the same normal equations.
SOLVED = 1e-8


def one_log(rounds: int = 40, n: int = 9, k: int = 2, seed: int = 0):
    rng = np.random.default_rng(seed)
    shown = np.zeros((rounds, n))
    np.put_along_axis(shown, balanced_table(n, rounds, k, rng), values=1.0, axis=1)
    stratum = np.repeat(np.arange(2), rounds // 2)
    x = rng.normal(size=(rounds, 2))
    y = shown @ rng.normal(size=n) + 0.5 * stratum + x @ [0.3, -0.2] + rng.normal(0, 0.5, rounds)
    return shown, y, stratum, x


def by_definition(shown, y, stratum, x, ratio):
    """Generalized least squares, then the best linear predictor: no decomposition, no centring."""
    fixed = np.hstack([np.eye(stratum.max() + 1)[stratum], x])
    inverse = np.linalg.inv(np.eye(len(y)) + ratio * shown @ shown.T)
    slopes = np.linalg.solve(fixed.T @ inverse @ fixed, fixed.T @ inverse @ y)
    return ratio * shown.T @ inverse @ (y - fixed @ slopes), slopes[-x.shape[1] :]


def test_effects_are_the_best_linear_predictor_at_the_fitted_ratio():
    log = one_log()
    fit = fit_jointly(*log)
    effects, slopes = by_definition(*log, fit.effect_variance / fit.noise_variance)
    np.testing.assert_allclose(fit.effects, effects, atol=SOLVED)
    np.testing.assert_allclose(fit.slopes, slopes, atol=SOLVED)
    np.testing.assert_allclose(fit.weights @ log[1], effects, atol=SOLVED)
    np.testing.assert_allclose(fit.slope_weights @ centred_within(log[1], log[2]), slopes, atol=SOLVED)


def test_leaving_a_round_out_is_fitting_without_it():
    shown, y, stratum, x = one_log()
    fit = fit_jointly(shown, y, stratum, x)
    effects, slopes = fit.without_each_round()
    for t in range(len(y)):
        kept = np.arange(len(y)) != t
        want = by_definition(
            shown[kept], y[kept], stratum[kept], x[kept], fit.effect_variance / fit.noise_variance
        )
        np.testing.assert_allclose(effects[t], want[0], atol=SOLVED)
        np.testing.assert_allclose(slopes[t], want[1], atol=SOLVED)


def test_the_ratio_maximizes_the_restricted_likelihood_times_itself():
    shown, y, stratum, x = one_log()
    fit = fit_jointly(shown, y, stratum, x)
    fixed = np.hstack([np.eye(2)[stratum], x])
    df = len(y) - fixed.shape[1]

    def log_likelihood(ratio: float) -> float:
        variance = np.eye(len(y)) + ratio * shown @ shown.T
        inverse = np.linalg.inv(variance)
        gram = fixed.T @ inverse @ fixed
        left = y - fixed @ np.linalg.solve(gram, fixed.T @ inverse @ y)
        parts = (
            np.linalg.slogdet(variance)[1],
            np.linalg.slogdet(gram)[1],
            df * np.log(left @ inverse @ left),
        )
        return -0.5 * sum(parts) + np.log(ratio)

    best = fit.effect_variance / fit.noise_variance
    assert all(log_likelihood(best) > log_likelihood(best * f) for f in (0.5, 0.9, 1.1, 2.0))


def test_the_posterior_variance_is_its_definition():
    shown, y, stratum, x = one_log()
    fit = fit_jointly(shown, y, stratum, x)
    fixed = np.hstack([np.eye(2)[stratum], x])
    clear = np.eye(len(y)) - fixed @ np.linalg.pinv(fixed)
    ratio = fit.effect_variance / fit.noise_variance
    want = np.eye(9) - np.linalg.inv(np.eye(9) + ratio * shown.T @ clear @ shown)
    np.testing.assert_allclose(fit.explained, want, atol=SOLVED)


def test_with_one_random_slot_and_equal_counts_it_ranks_as_the_contrast_does():
    rng = np.random.default_rng(1)
    assigned = np.zeros((60, 12), dtype=bool)
    np.put_along_axis(assigned, balanced_table(12, 60, 1, rng), values=True, axis=1)
    y = rng.normal(size=60)
    scores = joint_utilities(assigned, y).frame["utility"], estimate(assigned, y).frame["utility"]
    assert spearmanr(*scores).statistic == pytest.approx(1.0)


def test_noise_alone_leaves_an_order_and_no_certainty():
    rng = np.random.default_rng(2)
    for _ in range(20):
        assigned = np.zeros((40, 10), dtype=bool)
        np.put_along_axis(assigned, balanced_table(10, 40, 2, rng), values=True, axis=1)
        u = joint_utilities(assigned, rng.normal(size=40))
        assert u.effect_sd > 0.0
        assert u.frame["utility"].n_unique() == 10
        assert u.frame["reliability"].is_between(0.0, 1.0).all()


def test_limits_hold_on_average_over_memories_and_errors_are_smaller_than_the_contrasts():
    # memories of one log share its ratio, so a log counts as one: mean coverage over 150 logs, of sd about .05 each
    world = make_world("continuous", Size(90, 32, 2), 5)
    covered, errors = [], []
    for draw in range(150):
        assigned, y = world.draw([6, draw])
        frame, plain = joint_utilities(assigned, y).frame, estimate(assigned, y).frame
        inside = (frame["ci_low"].to_numpy() <= world.truth) & (world.truth <= frame["ci_high"].to_numpy())
        covered.append(inside.mean())
        errors.append([((f["utility"].to_numpy() - world.truth) ** 2).mean() for f in (frame, plain)])
    assert 0.92 <= np.mean(covered) <= 0.98
    ours, contrasts = np.mean(errors, axis=0)
    assert ours < 0.7 * contrasts


def test_what_is_not_known_is_null():
    assigned, y = make_world("continuous", Size(60, 12, 2), 4).draw([4])
    assigned[:, 0] = False
    frame = joint_utilities(assigned, y).frame
    assert frame["state"].to_list() == ["NEVER_EXPOSED"] + ["ESTIMATED"] * 11
    assert frame["utility"].null_count() == 1
    assert joint_utilities(assigned, np.ones(60)).frame["utility"].null_count() == 12


def test_units_and_large_offsets_change_nothing():
    assigned, y = make_world("continuous", Size(60, 12, 2), 5).draw([5])
    plain, moved = (joint_utilities(assigned, values).frame for values in (y, 8.0 * y + 1e7))
    for name in ("utility", "std_error", "ci_low"):
        np.testing.assert_allclose(moved[name].to_numpy(), 8.0 * plain[name].to_numpy(), rtol=1e-4, atol=1e-5)


def test_a_covariate_that_strata_explain_changes_nothing():
    shown, y, stratum, _ = one_log()
    plain = fit_jointly(shown, y, stratum, np.zeros((40, 0)))
    with_it = fit_jointly(shown, y, stratum, 1e6 + 3.3 * stratum[:, None].astype(float))
    np.testing.assert_allclose(with_it.effects, plain.effects, atol=SOLVED)
    assert with_it.slopes.tolist() == [0.0]


def test_draws_of_memories_that_were_ranked_have_an_effect_of_their_own():
    """Drawing a ranked memory frees its slot for another: what comes of it is not the drawn memory's doing."""
    rng = np.random.default_rng(6)
    assigned = np.zeros((400, 6), dtype=bool)
    np.put_along_axis(assigned, balanced_table(6, 400, 2, rng), values=True, axis=1)
    eligible = np.ones_like(assigned)
    eligible[:200, 0] = False
    y = (assigned & eligible) @ [1.0, 0, 0, 0, 0, 0] - (assigned & ~eligible)[:, 0] + rng.normal(0, 0.1, 400)
    strata = np.repeat([0, 1], 200)
    frame = joint_utilities(assigned, y, strata, eligible=eligible).frame
    assert frame["utility"][0] == pytest.approx(1.0, abs=0.1)
    assert frame["n_exposed"][0] == assigned[200:, 0].sum()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"level": 0.0}, "level=0.0 is no probability"),
        ({"covariates": [[1.0], [2.0]]}, "for 4 rounds"),
        ({"covariates": [1.0, 2.0, 3.0, 4.0]}, "at most one for every 10 rounds"),
        ({"outcomes": ["a"] * 4}, "give numbers"),
    ],
)
def test_wrong_input_is_refused(changes, said):
    given = {"assigned": [[1, 0], [0, 1], [1, 0], [0, 1]], "outcomes": [1.0, 2.0, 3.0, 5.0]} | changes
    with pytest.raises(ValueError, match=said):
        joint_utilities(**given)
