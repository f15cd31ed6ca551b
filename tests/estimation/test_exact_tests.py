from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import fisher_exact
from statsmodels.stats.contingency_tables import StratifiedTable
from statsmodels.stats.multitest import multipletests

from cmp.estimation import exact_tests, q_values
from cmp.estimation.exact_tests import conditional_p_values, p_values_of_margins
from cmp.estimation.sums import row_codes

#: Hypergeometric probabilities by logarithms of gamma functions, at margins below 100.
LOG_GAMMA = 1e-9

table = st.tuples(st.integers(0, 12), st.integers(0, 12), st.integers(0, 40), st.integers(0, 40)).filter(
    lambda t: t[0] + t[1] > 0 and t[2] + t[3] > 0
)


def p_value(*tables: tuple[int, int, int, int]) -> float:
    x1, f1, x0, f0 = np.array(tables).T
    owner = np.zeros(len(tables), dtype=np.int64)
    return float(conditional_p_values(owner, x1, x1 + f1, x0, x0 + f0, 1)[0])


@given(table)
def test_with_one_stratum_it_is_fishers_test(cells):
    assert p_value(cells) == pytest.approx(fisher_exact(np.reshape(cells, (2, 2))).pvalue, abs=LOG_GAMMA)


small = st.lists(st.integers(0, 1), min_size=2, max_size=5)


@settings(max_examples=40)
@given(st.lists(small, min_size=1, max_size=3), st.data())
def test_with_strata_it_is_the_share_of_assignments_no_more_likely(strata, data):
    sizes = [data.draw(st.integers(1, len(y) - 1)) for y in strata]
    sums = {0: 1}
    for y, n1 in zip(strata, sizes, strict=True):
        new: dict[int, int] = {}
        for chosen in combinations(range(len(y)), n1):
            for total, ways in sums.items():
                key = total + sum(y[i] for i in chosen)
                new[key] = new.get(key, 0) + ways
        sums = new
    observed = sum(sum(y[:n1]) for y, n1 in zip(strata, sizes, strict=True))
    want = sum(w for w in sums.values() if w <= sums[observed]) / sum(sums.values())
    cells = [
        (sum(y[:n1]), n1 - sum(y[:n1]), sum(y[n1:]), len(y) - n1 - sum(y[n1:]))
        for y, n1 in zip(strata, sizes, strict=True)
    ]
    assert p_value(*cells) == pytest.approx(want, abs=LOG_GAMMA)


def test_beyond_the_exact_size_it_is_the_cmh_chi_square(monkeypatch):
    cells = [(8, 12, 20, 60), (5, 15, 30, 50), (12, 8, 44, 36)]
    want = StratifiedTable([np.reshape(c, (2, 2)) for c in cells]).test_null_odds(correction=False).pvalue
    monkeypatch.setattr(exact_tests, "MAX_EXACT_SUPPORT", 10)
    assert p_value(*cells) == pytest.approx(want, rel=1e-9)
    assert p_value((20, 0, 80, 0)) == 1.0


def test_memories_are_tested_apart_and_empty_arms_decide_nothing():
    memory = np.array([0, 2, 2, 3])
    x1, n1, x0, n0 = np.array([[3, 3, 0, 1], [3, 3, 0, 2], [1, 1, 5, 0], [7, 7, 9, 0]])
    p = conditional_p_values(memory, x1, n1, x0, n0, 4)
    assert p[0] == pytest.approx(p[2]) == pytest.approx(1 / 30)
    assert np.isnan(p[1])
    assert np.isnan(p[3])


@given(
    st.lists(st.floats(0, 1, allow_subnormal=False), min_size=1, max_size=30),
    st.sampled_from(["bh", "by", "holm"]),
)
def test_q_values_are_those_of_statsmodels(p, method):
    name = {"bh": "fdr_bh", "by": "fdr_by", "holm": "holm"}[method]
    np.testing.assert_allclose(q_values(p, method), multipletests(p, method=name)[1], rtol=1e-12)


def test_undefined_p_values_are_no_hypotheses():
    assert q_values([0.01, np.nan, 0.04])[[0, 2]].tolist() == [0.02, 0.04]
    assert np.isnan(q_values([np.nan, np.nan])).all()
    with pytest.raises(ValueError, match="lie in"):
        q_values([1.5])
    with pytest.raises(ValueError, match="use 'bh'"):
        q_values([0.5], "none")


#: A transform is right to 1e-16 of the whole; a p-value that it decides is above 1e-4.
OF_A_TRANSFORM = 1e-10


def long_sums(seed: int, n_memories: int = 40, n_strata: int = 150):
    """Strata of several sizes, and sums of their exposed successes: likely ones, and far out in both tails."""
    rng = np.random.default_rng(seed)
    owner = np.repeat(np.arange(n_memories), n_strata)
    n = rng.integers(2, 40, len(owner))
    n1 = np.minimum(rng.integers(1, 4, len(owner)), n - 1)
    k = rng.binomial(n, rng.choice([0.02, 0.3, 0.5, 1.0], len(owner)))
    margins = np.stack([n, n1, k], axis=1)
    low, high = (np.bincount(owner, v).astype(int) for v in (np.maximum(0, n1 + k - n), np.minimum(n1, k)))
    drawn = np.bincount(owner, rng.hypergeometric(k, n - k, n1)).astype(int)
    return owner, margins, np.clip(drawn + rng.choice([0, 0, 30, -30, 300], n_memories), low, high)


@pytest.mark.parametrize("seed", range(4))
def test_long_sums_have_the_p_values_of_sums_taken_term_by_term(seed, monkeypatch):
    owner, margins, observed = long_sums(seed)
    one = np.ones(len(owner), dtype=int)
    fast = p_values_of_margins(owner, margins, one, observed)
    monkeypatch.setattr("cmp.estimation.exact_tests._SHORT", 10**6)
    slow = p_values_of_margins(owner, margins, one, observed)
    assert (slow < 1e-9).any()
    assert (slow > 0.1).any()
    np.testing.assert_allclose(fast, slow, rtol=OF_A_TRANSFORM)


def test_the_p_value_of_a_memory_does_not_depend_on_the_others(monkeypatch):
    owner, margins, observed = long_sums(0)
    one = np.ones(len(owner), dtype=int)
    together = p_values_of_margins(owner, margins, one, observed)
    alone = [
        p_values_of_margins(
            owner[owner == row] * 0, margins[owner == row], one[owner == row], observed[[row]]
        )[0]
        for row in range(len(observed))
    ]
    monkeypatch.setattr("cmp.estimation.convolution._AT_ONCE", 1)
    in_turn = p_values_of_margins(owner, margins, one, observed)
    np.testing.assert_allclose(together, alone, rtol=OF_A_TRANSFORM)
    np.testing.assert_allclose(together, in_turn, rtol=OF_A_TRANSFORM)


def test_strata_that_are_alike_may_be_counted():
    owner, margins, observed = long_sums(1)
    again = np.concatenate([owner] * 3), np.concatenate([margins] * 3)
    listed = p_values_of_margins(*again, np.ones(3 * len(owner), dtype=int), observed * 3)
    counted = p_values_of_margins(owner, margins, np.full(len(owner), 3), observed * 3)
    np.testing.assert_allclose(counted, listed, rtol=OF_A_TRANSFORM)


@pytest.mark.parametrize("span", [3, 2**40])
def test_codes_of_rows_are_in_their_order_however_large_they_are(span):
    rows = np.random.default_rng(0).integers(0, 3, (50, 3)) * (span // 3 + 1)
    codes = row_codes(rows)
    order = np.argsort(codes, kind="stable")
    assert order.tolist() == np.lexsort(rows.T[::-1]).tolist()
    assert len(np.unique(codes)) == len(np.unique(rows, axis=0))
