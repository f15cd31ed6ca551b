"""The truths that methods are measured against, and what the page says of them."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import polars as pl
import pytest
import typer
from typer.testing import CliRunner

import cmp
from cmp.protocols import Scope
from cmp.retrievers import BM25, Pool, Pooled
from cmp.study import METRIC, Question, score_support
from experiments.precision import main
from experiments.precision_draws import draws_of, question_log, thread_log
from experiments.precision_methods import CONTRAST, KEPT, METHODS, Scores, apply_method
from experiments.precision_page import verdicts
from experiments.precision_tallies import Tally, compare_tallies
from experiments.precision_worlds import PairWorld, pair_worlds, settings
from experiments.worlds import Size

#: Sums in another order.
EXACT = 1e-12

TEXTS = {
    "m0": "the red door of the old house",
    "m1": "a blue kite over the beach",
    "m2": "red kite and blue sky",
    "m3": "she keeps bees behind the house",
    "m4": "honey from the bees",
    "m5": "the sky was grey",
    "m6": "a grey door",
    "m7": "nothing of note",
}
QUESTIONS = [
    Question("what colour is the door", "pool", "q0", "red and grey"),
    Question("what flies over the beach", "pool", "q1", "the blue kite"),
]


@pytest.fixture(scope="module")
def backend() -> Pooled:
    return Pooled(BM25({"ann": TEXTS}), {"pool": Pool(Scope.of("ann"), tuple(TEXTS))})


@pytest.mark.parametrize("question", QUESTIONS)
def test_the_table_of_draws_is_what_the_wrapped_retriever_serves(backend, question, tmp_path):
    draws = draws_of(backend, question, slots=4, random_slots=2)
    place = {frozenset(members): row for row, members in enumerate(combinations(draws.ids, 2))}
    with cmp.wrap(
        backend, slots=4, random_slots=2, log=tmp_path / "log.db", seed=1, on_error="raise"
    ) as memory:
        cmp.run_rounds(memory, [question], score_support, 40, metric=METRIC, progress=False)
        exposures = memory.log.exposures().collect()
        outcomes = dict(memory.log.outcomes().select("round_id", "value").collect().rows())
    seen = set()
    for (round_id,), rows in exposures.group_by("round_id"):
        row = place[frozenset(rows.filter("assigned")["memory_id"])]
        seen.add(row)
        ranked = set(rows.filter(pl.col("arm") == "ranked")["memory_id"])
        assert {name for name, held in zip(draws.ids, draws.ranked[row], strict=True) if held} == ranked
        assert outcomes[round_id] == pytest.approx(draws.outcome[row], abs=EXACT)
    assert len(seen) > 15


def test_a_truth_is_the_mean_contrast_of_many_logs(backend):
    """600 logs of 28 rounds: five standard errors."""
    draws = draws_of(backend, QUESTIONS[0], slots=4, random_slots=2)
    rng, found = np.random.default_rng(2), []
    for _ in range(600):
        log = question_log(draws, 28, rng)
        found.append(apply_method(CONTRAST, log).utility)
    known = np.isfinite(draws.truth)
    assert 4 <= known.sum() < 8
    estimates = np.array(found)[:, known]
    error = np.nanstd(estimates, axis=0) / np.sqrt(np.isfinite(estimates).sum(axis=0))
    assert (np.abs(np.nanmean(estimates, axis=0) - draws.truth[known]) <= 5 * error + EXACT).all()


def test_a_thread_asks_its_questions_in_turn(backend):
    draws = [draws_of(backend, question, slots=4, random_slots=2) for question in QUESTIONS]
    log = thread_log(draws, 24, np.random.default_rng(3))
    assert log.queries.tolist() == [0, 1] * 12
    assert (log.assigned.sum(axis=1) == 2).all()
    assert set(log.assigned.sum(axis=0)) == {6}
    for t in range(24):
        one = draws[t % 2]
        row = int(np.flatnonzero((one.drawn == log.assigned[t]).all(axis=1))[0])
        assert log.outcomes[t] == one.outcome[row]
        assert (log.eligible[t] == ~one.ranked[row]).all()


@pytest.mark.parametrize("size", [Size(10, 7, 2), Size(10, 7, 3), Size(10, 8, 4)])
def test_the_truth_of_a_pair_is_what_listing_every_context_gives(size):
    world = PairWorld(size)
    contexts = np.array(
        [np.isin(np.arange(size.memories), c) for c in combinations(range(size.memories), size.k)]
    )
    mean = world.base + world.together * contexts[:, :2].all(axis=1)
    mean = mean + world.alone * contexts[:, 2:4].sum(axis=1)
    assert mean.max() <= 1.0
    for a, b in ((0, 1), (0, 2), (1, 5), (2, 3), (2, 4), (5, 6)):
        za, zb = contexts[:, a], contexts[:, b]
        want = mean[za & zb].mean() - mean[za & ~zb].mean() - mean[~za & zb].mean() + mean[~za & ~zb].mean()
        assert world.truth((a, b)) == pytest.approx(want, abs=EXACT)


def test_every_world_of_pairs_keeps_its_means_below_one():
    for world in pair_worlds():
        extras = world.size.k - 2
        assert world.base + world.together + world.alone * min(extras, 2) <= 1.0


def test_every_method_that_applies_scores_every_memory_of_every_world():
    applied = set()
    for setting in settings(1):
        log = setting.draw([1, 2])
        for name in METHODS:
            scores = apply_method(name, log)
            if scores is not None:
                applied.add(name)
                assert np.isfinite(scores.utility).all(), (setting.title, name)
    assert applied == set(METHODS) - {"joint of whole contexts", "joint about the ranker's score"}
    assert set(KEPT) == set(METHODS) - {CONTRAST}


def test_a_comparison_is_paired_and_counts_what_is_undefined():
    truth, ours, theirs = np.array([0.0, 1.0]), Tally(), Tally()
    for shift in (0.0, 0.1, 0.2):
        ours.add(Scores(truth + shift, truth - 0.5, np.array([0.5, np.nan])), truth, 0.8 + shift, large=0.5)
        theirs.add(Scores(truth + 2 * shift, truth - 1.0, truth + 1.0), truth, 0.7 + shift)
    row = compare_tallies(ours, theirs)
    assert row["auc_difference"] == pytest.approx(0.1)
    assert row["auc_high"] - row["auc_low"] == pytest.approx(0.0, abs=EXACT)
    assert row["width_ratio"] == pytest.approx(0.5)
    assert row["squared_error_ratio"] == pytest.approx(0.25)
    assert (row["coverage"], row["large_coverage"]) == (1.0, None)
    assert compare_tallies(theirs, theirs)["auc_difference"] is None


def test_a_verdict_counts_what_gains_and_what_fails_to_cover():
    base = {"auc_difference": 0.05, "auc_low": 0.02, "auc_high": 0.08, "width_ratio": 0.8, "width_low": 0.7}
    rows = [
        base | {"method": "companions", "width_high": 0.9, "coverage": 0.95},
        base | {"method": "companions", "width_high": 0.9, "coverage": 0.80, "auc_low": -0.01},
    ]
    said = verdicts(pl.DataFrame(rows))
    assert "2 settings: AUC higher in 1, lower in 0; narrower while covering in 1 of 2" in said
    assert "mean coverage below 0.94 in 1" in said


def test_without_the_texts_the_rest_is_measured_and_the_page_says_so(tmp_path):
    app = typer.Typer()
    app.command()(main)
    options = ["--smoke", "--allow-dirty", "--data", str(tmp_path / "none"), "--results", str(tmp_path)]
    result = CliRunner().invoke(app, options)
    assert result.exit_code == 0, result.output
    page = (tmp_path / "precision.md").read_text("utf-8")
    assert "LoCoMo was not found" in page
    assert "A smoke run" in page
    assert "TOO_FEW_COEXPOSURES" in page
    table = pl.read_csv(tmp_path / "precision.csv")
    assert table["data"].unique().to_list() == ["simulated"]
