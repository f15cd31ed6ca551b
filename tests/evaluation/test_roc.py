from __future__ import annotations

import math
from itertools import permutations

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom
from sklearn.metrics import roc_auc_score

from cmp.errors import GranularityError
from cmp.evaluation import auc, auc_arrays, read_qrels
from tests.estimation.golden import golden

#: Mid-ranks are exact; what is left is one division.
EXACT = 1e-12


def test_the_golden_auc_and_delongs_variance_are_met():
    case = golden("auc")
    result = auc_arrays(case["key"] + case["other"], [1] * len(case["key"]) + [0] * len(case["other"]))
    assert result.auc == pytest.approx(case["auc"], abs=EXACT)
    assert result.std_error**2 == pytest.approx(case["delong_variance"], abs=EXACT)
    assert result.ci_low < result.auc < result.ci_high < 1


scored = st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=2, max_size=40)


@given(scored.filter(lambda rows: 0 < sum(key for _, key in rows) < len(rows)))
def test_it_is_the_share_of_pairs_in_order_with_ties_one_half(rows):
    score, key = np.array([s for s, _ in rows], float), np.array([k for _, k in rows])
    gaps = score[key][:, None] - score[~key][None, :]
    result = auc_arrays(score, key)
    assert result.auc == pytest.approx((np.sign(gaps) / 2 + 0.5).mean(), abs=EXACT)
    assert result.auc == pytest.approx(roc_auc_score(key, score), abs=EXACT)
    assert result.tied == int((gaps == 0).sum())


def test_delongs_variance_is_unbiased_enough_to_cover():
    # 400 samples of 12 keys and 30 others, AUC .76 exactly (binormal shift 1): logit limits cover near .95.
    # Acceptance [.915, .98]: 3.2 binomial standard errors below .95 and 2.8 above; false failure below 0.004.
    rng = np.random.default_rng(31)
    truth = 0.5 * (1 + math.erf(1 / 2))
    hits = 0
    for _ in range(400):
        score = np.r_[rng.normal(1, 1, 12), rng.normal(0, 1, 30)]
        result = auc_arrays(score, [1] * 12 + [0] * 30)
        hits += result.ci_low <= truth <= result.ci_high
    assert 0.915 <= hits / 400 <= 0.98


@pytest.mark.parametrize(
    ("scores", "labels", "reason"),
    [([1.0, 2, 3], [1, 1, 1], "no other"), ([1.0, 2], [0, 0], "no key"), ([], [], "no memory")],
)
def test_one_class_only_is_undefined_and_never_a_half(scores, labels, reason):
    result = auc_arrays(scores, labels)
    assert result.auc is result.std_error is result.ci_low is None
    assert reason in result.reason


def test_the_mean_is_over_the_strata_where_it_is_defined_and_says_how_many():
    scores, labels = [2.0, 1, 5, 6, 1, 1], [1, 0, 1, 1, 1, 0]
    result = auc_arrays(scores, labels, strata=["q1", "q1", "q2", "q2", "q3", "q3"])
    assert (result.auc, result.n_strata, result.n_undefined) == (0.75, 2, 1)
    assert result.std_error == pytest.approx(0.25, abs=EXACT)


@pytest.mark.parametrize("order", list(permutations(range(4)))[::5])
def test_ties_are_one_half_in_every_order(order):
    labels = np.array([1, 0, 1, 0])[list(order)]
    assert auc_arrays([0.5] * 4, labels).auc == 0.5


def test_near_ties_are_no_ties():
    assert auc_arrays([1e-10, 0, 0], [1, 0, 0]).auc == 1.0


def test_levels_of_strata_never_mix():
    score, label, strata = [0.1, 0.2, 10.1, 10.2], [0, 1, 0, 1], [0, 0, 1, 1]
    result = auc_arrays(score, label, strata)
    assert (result.auc, result.pooled.auc, result.pooled.pooled) == (1.0, 0.75, None)
    assert result.std_error is None
    assert "agree" in result.reason


def test_a_single_member_in_a_class_has_no_standard_error():
    result = auc_arrays([3.0, 1, 2, 4], [1, 0, 0, 0])
    assert result.auc == pytest.approx(2 / 3, abs=EXACT)
    assert result.std_error is result.ci_low is None
    assert "single member" in result.reason


def test_the_only_defined_stratum_has_delongs_error():
    case = golden("auc")
    scores = case["key"] + case["other"]
    labels = [1] * len(case["key"]) + [0] * len(case["other"])
    result = auc_arrays([*scores, 1.0], [*labels, 1], strata=[0] * len(scores) + [1])
    assert result.std_error**2 == pytest.approx(case["delong_variance"], abs=EXACT)
    assert (result.n_strata, result.n_undefined) == (1, 1)


def test_clusters_widen_the_error_of_repeated_questions():
    rng = np.random.default_rng(32)
    score, label = rng.normal(size=80), np.tile([1, 0, 0, 0], 20)
    strata = np.repeat(np.arange(20), 4)
    once = auc_arrays(score, label, strata)
    copies = auc_arrays(np.tile(score, 3), np.tile(label, 3), np.r_[strata, strata + 20, strata + 40])
    kept = auc_arrays(
        np.tile(score, 3),
        np.tile(label, 3),
        np.r_[strata, strata + 20, strata + 40],
        clusters=np.tile(strata, 3),
    )
    assert copies.std_error < once.std_error
    assert kept.std_error == pytest.approx(once.std_error, rel=1e-9)
    with pytest.raises(ValueError, match="several clusters"):
        auc_arrays(score, label, strata, clusters=np.arange(80))
    assert "single cluster" in auc_arrays(score, label, strata, clusters=np.zeros(80)).reason


def test_scores_that_are_missing_are_left_out_and_counted():
    result = auc_arrays([0.4, 0.1, np.nan, 0.2], [1, 0, 1, 0])
    assert (result.auc, result.left_out, result.left_out_key) == (1.0, 1, 1)
    nothing = auc_arrays([np.nan] * 4, [1, 0, 1, 0])
    assert (nothing.auc, nothing.left_out, nothing.n_undefined) == (None, 4, 1)


def test_pairs_beyond_32_bits_are_counted_right():
    n = 250_000
    result = auc_arrays(np.arange(n) // 2, np.arange(n) % 2)
    assert (result.n_key, result.n_other) == (125_000, 125_000)
    assert result.auc == pytest.approx(0.5, abs=EXACT)
    assert auc_arrays(np.zeros(n), np.arange(n) % 2).tied == 15_625_000_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1.0], [1, 0]), "one length"),
        (([1.0, 2], [1, 2]), "cut graded"),
        (([1.0], [1], [1, 2]), "one length"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        auc_arrays(*arguments)
    with pytest.raises(ValueError, match="level"):
        auc_arrays([1.0], [1], level=2)


@pytest.mark.parametrize("n_strata", [2, 3, 5, 10, 30])
def test_limits_over_few_strata_cover(n_strata):
    # 300 tables of 3 keys among 23, AUC .76 exactly. Were coverage .95, the binomial falls below the bound with
    # probability under 2e-4; with 2 strata the limits are wider than they need be (.99).
    rng = np.random.default_rng(33)
    truth, hits, defined = 0.5 * (1 + math.erf(1 / 2)), 0, 0
    label, strata = np.tile([1] * 3 + [0] * 20, n_strata), np.repeat(np.arange(n_strata), 23)
    for _ in range(300):
        result = auc_arrays(rng.normal(size=len(label)) + label, label, strata)
        if result.ci_low is not None:
            defined += 1
            hits += result.ci_low <= truth <= result.ci_high
    assert defined > 280
    assert hits >= binom.ppf(2e-4, defined, 0.95)


def test_the_only_defined_stratum_keeps_to_the_clusters_it_was_given():
    score, label, strata = [4.0, 3, 1, 2, 5, 9], [1, 1, 0, 0, 0, 1], [0, 0, 0, 0, 0, 1]
    assert auc_arrays(score, label, strata).std_error is not None
    given = auc_arrays(score, label, strata, clusters=[7, 7, 7, 7, 7, 8])
    assert (given.std_error, given.reason) == (None, "no standard error: a single cluster")


def test_one_stratum_by_name_is_as_none_named():
    case = golden("auc")
    scores, key = case["key"] + case["other"], [1] * len(case["key"]) + [0] * len(case["other"])
    assert auc_arrays(scores, key, strata=["q"] * len(key)) == auc_arrays(scores, key)
    named = table(memory_id=[f"m{i}" for i in range(len(key))], utility=scores)
    wanted = labels(*[("q", f"m{i}") for i, is_key in enumerate(key) if is_key])
    assert auc(named, wanted).std_error ** 2 == pytest.approx(case["delong_variance"], abs=EXACT)


def test_a_result_reads_as_a_line_or_a_few():
    rng = np.random.default_rng(34)
    label, strata = np.tile([1, 1, 0, 0, 0], 6), np.repeat(np.arange(6), 5)
    score = np.where(rng.random(30) < 0.1, np.nan, rng.normal(size=30) + label)
    said = str(auc_arrays(score, label, strata)).splitlines()
    assert said[0].startswith("AUC 0.")
    assert "(95%), mean over 6 strata" in said[0]
    assert "key memories" in said[1]
    assert "left out without a score" in said[1]
    assert said[2].startswith("pooled over all strata: 0.")
    assert str(auc_arrays([1.0], [1])) == "AUC undefined: no other memory has a score"
    assert str(auc_arrays([3.0, 1, 2], [1, 0, 0])).splitlines()[-1].startswith("no standard error")


# Tables against qrels


def table(**columns) -> pl.DataFrame:
    return pl.DataFrame(columns)


def labels(*rows: tuple[str, str], scope: str | None = None) -> pl.DataFrame:
    frame = pl.DataFrame(rows, schema=["query_id", "memory_id"], orient="row")
    return frame.with_columns(scope=pl.lit(scope)) if scope else frame


def test_labels_are_counted_by_kind():
    u = table(memory_id=["a", "b", "c", "d"], utility=[0.4, 0.1, None, 0.2])
    result = auc(u, read_qrels(labels(("q", "a"), ("q", "a"), ("q", "c"), ("q", "z"))))
    assert (result.auc, result.duplicates, result.left_out_key) == (1.0, 1, 1)
    assert (result.unknown_labels, result.left_out) == (("z",), 1)


def test_a_query_without_labels_leaves_the_next_one_alone():
    u = table(
        group=["q1", "q1", "q2", "q2", "q3", "q3"], memory_id=["a", "b"] * 3, utility=[2.0, 1, 2, 1, 1, 2]
    )
    result = auc(u, read_qrels(labels(("q1", "a"), ("q3", "a"))))
    assert (result.auc, result.n_strata, result.n_undefined) == (0.5, 2, 1)


def test_a_memory_key_is_scope_and_id():
    u = table(scope=["A", "A", "B", "B"], memory_id=["D1:3", "D1:4"] * 2, utility=[0.9, 0.1, -0.2, 0.3])
    result = auc(u, read_qrels(labels(("q", "D1:3"), scope="A")))
    assert (result.auc, result.n_key, result.n_strata, result.n_undefined) == (1.0, 1, 1, 1)
    with pytest.raises(GranularityError, match="several scopes"):
        auc(u, read_qrels(labels(("q", "D1:3"))))


def test_labels_without_a_scope_do_where_ids_are_unique():
    u = table(scope=["A", "A", "B", "B"], memory_id=["a1", "a2", "b1", "b2"], utility=[2.0, 1.0, 1.0, 2.0])
    assert auc(u, read_qrels(labels(("q", "a1"), ("q", "b1")))).auc == 0.5


def test_labels_of_queries_that_were_not_run_are_not_unknown_memories():
    u = table(group=["q1", "q1"], memory_id=["a", "b"], utility=[2.0, 1])
    result = auc(u, read_qrels(labels(("q1", "a"), ("q9", "x"), ("q9", "a"))))
    assert (result.unknown_labels, result.labels_elsewhere) == ((), 2)


def test_labels_that_match_nothing_are_an_error_with_both_ids():
    u = table(memory_id=["turn-1", "turn-2"], utility=[1.0, 2.0])
    with pytest.raises(GranularityError, match=r"'session-1'.*'turn-1'"):
        auc(u, read_qrels(labels(("q", "session-1"))))
    by_query = table(group=["task-1"], memory_id=["a"], utility=[1.0])
    with pytest.raises(GranularityError, match="group"):
        auc(by_query, read_qrels(labels(("q", "a"))))


def test_strata_can_be_scopes_and_scores_any_column():
    u = table(
        scope=["A"] * 4, group=["q1", "q1", "q2", "q2"], memory_id=["a", "b"] * 2, score=[1.0, 0.5, 0.1, 0.2],
        rank=[1.0, 2.0, 1.0, 2.0],
    )  # fmt: skip
    qrels = read_qrels(labels(("q1", "a"), ("q2", "b"), scope="A"))
    assert auc(u, qrels).auc == 1.0
    assert auc(u, qrels, within="scope").auc == 0.75
    assert auc(u, qrels, score="rank").auc == 0.5
    assert auc(u, qrels, clusters="scope").reason is not None
    assert auc(u.drop("scope"), read_qrels(labels(("q1", "a"), ("q2", "b"))), within="scope").n_strata == 2


def test_bad_options_are_refused():
    u = table(memory_id=["a"], utility=[1.0])
    qrels = read_qrels(labels(("q", "a")))
    with pytest.raises(ValueError, match="no column nope"):
        auc(u, qrels, score="nope")
    with pytest.raises(ValueError, match="use 'query'"):
        auc(u, qrels, within="block")


@given(st.randoms())
def test_shuffling_and_renaming_change_nothing(random):
    names, scores = [f"m{i}" for i in range(8)], [3.0, 1.0, 1.0, 2.0, 0.0, 5.0, 1.0, 1.0]
    qrels = read_qrels(labels(("q", "m0"), ("q", "m2"), ("q", "m5")))
    want = auc(table(memory_id=names, utility=scores), qrels).auc
    order = list(range(8))
    random.shuffle(order)
    shuffled = table(memory_id=[names[i] for i in order], utility=[scores[i] for i in order])
    assert auc(shuffled, qrels).auc == want


def test_labels_without_any_score_leave_every_stratum_undefined():
    result = auc_arrays([np.nan, 1.0, np.nan, 2.0], [1, 0, 1, 0], strata=[0, 0, 1, 1])
    assert (result.auc, result.n_undefined, result.left_out_key) == (None, 2, 2)
    assert "no stratum" in result.reason


def test_clusters_that_hold_one_class_alone_still_count():
    result = auc_arrays([4.0, 3, 1, 2, 5, 0], [1, 1, 0, 0, 0, 0], clusters=["a", "a", "b", "b", "c", "c"])
    assert result.auc == 0.75
    assert "single member or cluster" in result.reason


def test_a_table_of_several_metrics_is_refused_and_one_of_them_taken():
    table = pl.DataFrame(
        {"metric": ["a", "a", "b", "b"], "memory_id": ["x", "y"] * 2, "utility": [1.0, 0.0, 0.0, 1.0]}
    )
    labels = pl.DataFrame({"query_id": ["q"], "memory_id": ["x"]})
    with pytest.raises(ValueError, match="metrics \\['a', 'b'\\]"):
        auc(table, labels)
    assert auc(table.filter(metric="b"), labels).auc == 0.0
