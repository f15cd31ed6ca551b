"""What the page says holds, and that faults put in on purpose are said not to."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import polars as pl
import pytest
import typer
from scipy.stats import binom, kstest
from typer.testing import CliRunner

from cmp.estimation import estimate
from cmp.estimation.sequences import confidence_sequence
from experiments.cells import KeptCells, hash_sources
from experiments.validity import curves, main, measure_null
from experiments.validity_families import FAMILIES, tally_family
from experiments.validity_nulls import NULL_TESTS, NullTest
from experiments.validity_page import figure, verdicts
from experiments.validity_sequences import (
    STREAMS,
    Stream,
    crossing,
    measure_stream,
    sequence_limits_at_looks,
    usual_limits_at_looks,
)
from experiments.validity_tallies import (
    GRID,
    LEVELS,
    TOLERANCE,
    holds,
    share_of_logs,
    tail_of_tolerance,
    tally_p_values,
)

#: Sums of a few doubles in another order.
EXACT = 1e-12


def drop(_: int) -> None:
    """Take no notice of progress."""


def found(test: str, setting: str, p: np.ndarray) -> dict:
    return {"test": test, "setting": setting, "outcomes": "drawn"} | tally_p_values(p)


def planted(change) -> NullTest:
    """Return a test whose p-values are those of 20 independent memories, changed."""
    return NullTest("planted", "p", lambda fixed, seed: change(np.random.default_rng(seed).random((1, 20))))


EMPTY = {
    "discoveries": pl.DataFrame(schema={"holds": pl.Boolean}),
    "sequences": pl.DataFrame(schema={"holds": pl.Boolean}),
    "tables": pl.DataFrame(schema={"holds": pl.Boolean}),
}


# How shares are judged


def test_a_share_holds_up_to_the_tolerance_and_no_further():
    assert holds(0.05 + TOLERANCE * 0.01, 0.05, 0.01)
    assert not holds(0.05 + TOLERANCE * 0.01 + 1e-9, 0.05, 0.01)
    assert holds(0.0, 0.05, 0.0)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda p: p / 2, "P(p <= 0.05)"),
        (lambda p: np.where(p < 0.004, p / 8, p), "P(p <= 0.001)"),
        (lambda p: np.where(p > 0.2, np.maximum(p - 0.1, 0.2001), p), "F(u) - u"),
        (lambda p: p**1.5, "P(p <= 0.01)"),
    ],
)
def test_p_values_that_are_too_small_are_reported_as_not_holding(change, said):
    row = measure_null(planted(change), False, 400, drop)
    assert not row["holds"]
    frame = pl.DataFrame([row]).drop("curve")
    page = verdicts(frame, EMPTY)
    assert "* planted, p, outcomes drawn" in page
    assert ("every lower level hold" in page) == (said == "F(u) - u")
    assert said in page
    assert "1 of 1 rows, which make 7 comparisons" in page


def test_a_fault_between_the_levels_is_said_to_spare_them():
    row = measure_null(planted(lambda p: np.where((p > 0.25) & (p < 0.45), 0.25, p)), False, 400, drop)
    assert (row["excess_at"], row["holds"]) == (0.25, False)
    assert "p <= 0.1 and every lower level hold" in verdicts(pl.DataFrame([row]).drop("curve"), EMPTY)


@pytest.mark.parametrize(
    "change",
    [
        lambda p: p,
        lambda p: np.minimum(2 * p, 1.0),
        lambda p: np.ceil(p * 20) / 20,
        lambda p: np.where(p < 0.5, np.nan, 2 * p - 1),
    ],
)
def test_p_values_that_are_valid_hold(change):
    """Uniform ones fail one of seven comparisons by chance in fewer than .05 of seeds; this one was not chosen."""
    row = measure_null(planted(change), False, 400, drop)
    assert row["holds"]
    assert verdicts(pl.DataFrame([row]).drop("curve"), EMPTY).startswith("* Nothing.")


def test_the_excess_is_kolmogorovs_distance_on_the_side_of_false_alarms():
    p = np.random.default_rng(1).random((30, 7)) ** 1.1
    row = tally_p_values(p)
    want = kstest(p.ravel(), "uniform", alternative="greater")
    assert row["excess"] == pytest.approx(want.statistic, abs=EXACT)
    assert row["excess_at"] == want.statistic_location
    assert tally_p_values(np.ones((3, 3)))["excess"] == 0.0


def test_memories_that_go_together_are_judged_by_their_logs():
    """Twenty copies of one p-value a log: as sure as the logs, not as the memories."""
    rng = np.random.default_rng(2)
    apart, copies = rng.random((300, 20)) <= 0.2, np.repeat(rng.random((300, 1)) <= 0.2, 20, axis=1)
    known = np.ones_like(apart)
    # memories are apart, so both standard errors estimate the same; that of 300 logs is known to 4 %
    assert share_of_logs(apart, known, 0.2)["error"] == pytest.approx(math.sqrt(0.16 / 6000), rel=0.15)
    one = share_of_logs(copies, known, 0.2)
    assert one["error"] == pytest.approx(math.sqrt(one["share"] * (1 - one["share"]) / 299), rel=EXACT)
    assert one["within"] == pytest.approx(20 * 300 / 299, rel=1e-9)


def test_the_share_counts_only_what_is_defined_and_nothing_at_all_says_nothing():
    p = np.array([[0.01, np.nan], [0.9, np.nan]])
    row = tally_p_values(p)
    assert (row["p_values"], row["undefined_share"], row["share_0.05"]) == (2, 0.5, 0.5)
    nothing = tally_p_values(np.full((2, 2), np.nan))
    assert (nothing["p_values"], nothing["share_0.05"], nothing["holds"]) == (0, 0.0, True)


def test_a_p_value_that_rounding_moved_past_its_level_counts():
    assert tally_p_values(np.array([[0.05 * (1 + 1e-15)]]))["share_0.05"] == 1.0


def test_the_tail_is_that_of_the_normal_at_the_tolerance():
    assert tail_of_tolerance() == pytest.approx(0.00621, abs=1e-5)


def test_the_curve_is_known_at_every_level_that_people_use():
    assert {0.001, 0.01, 0.1, 1.0} <= set(GRID)
    p = np.random.default_rng(3).random((50, 4))
    row = found("a", "b", p)
    curve = curves([row])
    assert curve["share"].to_list() == [float((p <= u * (1 + 1e-9)).mean()) for u in GRID]
    assert curve["share"][-1] == 1.0
    lines = [axes.get_lines() for axes in figure(curve, pl.DataFrame([row]).drop("curve")).axes]
    assert [len(drawn) for drawn in lines] == [1, 2]  # the line at 1, and what was drawn


# P-values where nothing has an effect


@pytest.mark.parametrize("test", NULL_TESTS, ids=lambda test: f"{test.test}, {test.setting}")
def test_fixed_outcomes_leave_the_draw_to_chance_and_a_draw_can_be_repeated(test):
    one, again, other = test.p_values(True, 0), test.p_values(True, 0), test.p_values(True, 1)
    np.testing.assert_array_equal(one, again)
    assert not np.array_equal(one, other, equal_nan=True)
    assert one.ndim == 2
    assert len(one) == test.logs_a_draw
    assert np.nanmin(one) >= 0.0
    assert np.nanmax(one) <= 1.0
    assert np.isfinite(one).any()


def test_every_test_that_utilities_may_carry_is_there_under_a_name_of_its_own():
    names = [(test.test, test.setting) for test in NULL_TESTS]
    assert len(set(names)) == len(names)
    assert {test.test for test in NULL_TESTS} == {
        "exact", "exact in strata", "moderated t", "randomization, listed", "randomization, lattice",
        "randomization, drawn", "pairs, enumerated", "pairs, rearranged", "episodes", "episodes drawn together",
        "uniform design",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("test", "fixed"), [("exact", True), ("exact in strata", True), ("randomization, listed", True)]
)
def test_exact_tests_of_fixed_outcomes_hold(test, fixed):
    """40 logs; a valid test fails each of 7 comparisons with a chance of at most .0062. The seed is the page's."""
    for one in NULL_TESTS:
        if one.test == test:
            assert measure_null(one, fixed, 40, drop)["holds"]


# Families


@pytest.mark.parametrize("family", [f for f in FAMILIES if f.size.memories < 480], ids=str)
def test_half_of_a_family_is_worth_nothing_exactly_and_the_rest_something(family):
    """By listing every context of two: mean with the memory less mean without."""
    n, k = family.size.memories, family.size.k
    contexts = np.array([np.isin(np.arange(n), chosen) for chosen in combinations(range(n), k)])
    mean = family.mean(contexts)
    shown, times = contexts.T @ mean, contexts.sum(axis=0)
    contrast = shown / times - (mean.sum() - shown) / (len(mean) - times)
    null = family.effects == 0.0
    assert np.abs(contrast[null]).max() < EXACT
    assert null.sum() == (n if family.effect == 0.0 else n / 2)
    if family.effect:
        assert np.abs(contrast[~null]).min() > 0.01
        assert family.effects.max() == family.effect
    if family.kind in ("binary", "rare"):
        assert mean.min() >= 0.0
        assert mean.max() <= 1.0


def test_no_rare_chance_of_success_is_cut():
    for family in FAMILIES:
        if family.kind == "rare":
            least = 0.065 + family.size.k * family.effects.min()
            assert least > 0.0
            assert 0.065 + family.size.k * family.effects.max() <= 1.0


def test_false_discoveries_are_counted_as_shares_and_as_any():
    null, large = np.array([True, True, False, False]), np.array([False, False, True, False])
    p = np.array([[1e-9, 1.0, 1e-9, 1.0], [1.0, 1.0, 1e-9, 1.0], [1.0] * 4, [np.nan, 1.0, 1.0, 1e-9]])
    row = tally_family(p, "bh", null, large)
    assert row["false_discovery_rate"] == pytest.approx(0.125)
    assert (row["any_false"], row["power"], row["families"]) == (0.25, 0.5, 4)


@pytest.mark.parametrize("method", ["bh", "by", "holm"])
def test_uniform_p_values_hold_and_halved_ones_do_not(method):
    """600 families of 30 without effects. BH rejects some in .05 of them, and in .1 if p-values are halved."""
    p = np.random.default_rng(4).random((600, 30))
    null = np.ones(30, dtype=bool)
    assert tally_family(p, method, null, ~null)["holds"]
    assert tally_family(p, method, null, ~null)["power"] is None
    shrunk = p / (2 if method != "by" else 16)
    assert not tally_family(shrunk, method, null, ~null)["holds"]


def test_a_family_that_does_not_hold_is_listed():
    p = np.random.default_rng(5).random((600, 30)) / 3
    null = np.ones(30, dtype=bool)
    rows = [
        {"kind": "binary", "memories": 30, "effect": 0.0, "method": method}
        | tally_family(p, method, null, ~null)
        for method in ("bh", "holm")
    ]
    page = verdicts(
        pl.DataFrame([found("a", "b", np.ones((2, 2)))]).drop("curve"),
        EMPTY | {"discoveries": pl.DataFrame(rows)},
    )
    assert "Benjamini-Hochberg, 30 memories, binary" in page
    assert "Holm, 30 memories, binary, effects of 0: any false discovery" in page
    assert "2 of 3 rows" in page


# Sequences


@pytest.mark.parametrize("stream", [Stream("binary 30 %", 2, True), Stream("normal", 1), Stream("t(3)", 2)])
def test_the_usual_limits_at_a_look_are_those_of_the_table_of_the_blocks_so_far(stream):
    """Of one memory, so that its rounds can be listed."""
    y = stream.draw(1, 9, np.random.default_rng(6))
    low, high = usual_limits_at_looks(y, stream.exposures)
    rounds = y.shape[2]
    for look in (3, 9):
        assigned = np.tile(np.arange(rounds) < stream.exposures, look)
        outcomes, block = y[0, :look].ravel(), np.repeat(np.arange(look), rounds)
        row = estimate(assigned, outcomes, block).frame.row(0, named=True)
        for limit, name in ((low, "ci_low"), (high, "ci_high")):
            assert limit[0, look - 1] == (
                pytest.approx(row[name], rel=1e-9) if row[name] is not None else None
            )


def test_the_sequence_at_a_look_is_that_of_the_table_of_the_blocks_so_far():
    stream = Stream("lognormal", 2, drifts=True)
    y = stream.draw(3, 30, np.random.default_rng(7))
    low, high = sequence_limits_at_looks(y, 2)
    for look in (8, 30):
        assigned = np.tile(np.arange(y.shape[2]) < 2, look)
        block = np.repeat(np.arange(look), y.shape[2])
        row = estimate(assigned, y[1, :look].ravel(), block, interval="sequence").frame.row(0, named=True)
        assert (row["ci_low"], row["ci_high"]) == (
            pytest.approx(low[1, look - 1], rel=1e-9),
            pytest.approx(high[1, look - 1], rel=1e-9),
        )


@pytest.mark.parametrize("stream", STREAMS, ids=str)
def test_the_truth_of_a_stream_is_its_effect(stream):
    """400 memories, 60 blocks: five standard errors of the mean gap, a chance of 6e-7 each."""
    y = stream.draw(400, 60, np.random.default_rng(8))
    gap = (y[..., : stream.exposures].mean(-1) - y[..., stream.exposures :].mean(-1)).ravel()
    assert abs(gap.mean() - stream.effect) < 5 * gap.std() / math.sqrt(len(gap))


def test_limits_that_leave_the_truth_out_once_have_crossed():
    low = np.array([[-1.0, -1.0, -1.0], [-1.0, 0.1, -1.0], [np.nan, -1.0, -1.0], [np.nan, -1.0, -1.0]])
    high = np.array([[1.0, 1.0, 1.0], [1.0, 1.0, 1.0], [np.nan, 1.0, -0.1], [np.nan, 1.0, 0.0]])
    assert crossing(low, high, 0.0, "x")["x_share"] == 0.5
    assert crossing(low, high, 0.05, "x")["x_share"] == 0.75


def test_a_sequence_whose_variance_is_halved_does_not_hold(monkeypatch):
    """Normal blocks without floors of variance: the sequence is exact, .05 at most; at 1/3 of its width far above."""

    def narrow(gaps, weights=None, variances=None, *, level):
        one = confidence_sequence(gaps, level=level)
        third = (one.high - one.low) / 6.0
        return one._replace(low=one.estimate - third, high=one.estimate + third)

    monkeypatch.setattr("experiments.validity_sequences.confidence_sequence", narrow)
    (row,) = measure_stream(Stream("normal", 1), 100, 100, 0, drop)
    assert binom.sf(round(100 * row["sequence_share"]) - 1, 100, 0.05) < 1e-3
    assert not row["holds"]
    page = verdicts(
        pl.DataFrame([found("a", "b", np.ones((2, 2)))]).drop("curve"),
        EMPTY | {"sequences": pl.DataFrame([row])},
    )
    assert "Confidence sequence, normal, after every block: the truth was left out" in page


# Cells that are kept


def test_a_cell_is_measured_once_for_its_key_and_its_sources(tmp_path):
    source = tmp_path / "one.py"
    source.write_text("1")
    calls: list[str] = []

    def measure() -> list[dict]:
        calls.append("measured")
        return [{"x": 1.5, "y": None}]

    kept = KeptCells(tmp_path / "cells" / hash_sources(["one.py"], tmp_path))
    skipped: list[int] = []
    for key in (["a", 1], ["a", 1], ["a", 2]):
        assert kept.rows(key, measure, skipped=lambda: skipped.append(1)) == [{"x": 1.5, "y": None}]
    assert (len(calls), len(skipped)) == (2, 1)
    before = hash_sources(["one.py"], tmp_path)
    source.write_text("2")
    assert hash_sources(["one.py"], tmp_path) != before
    assert [path.suffix for path in kept.folder.iterdir()] == [".json", ".json"]


def test_all_files_of_a_folder_and_their_names_are_sources(tmp_path):
    (tmp_path / "part").mkdir()
    (tmp_path / "part" / "a.py").write_text("x")
    first = hash_sources(["part"], tmp_path)
    (tmp_path / "part" / "notes.txt").write_text("no source")
    assert hash_sources(["part"], tmp_path) == first
    (tmp_path / "part" / "a.py").rename(tmp_path / "part" / "b.py")
    assert hash_sources(["part"], tmp_path) != first


def test_a_cell_that_fails_is_not_kept(tmp_path):
    def fails() -> list[dict]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        KeptCells(tmp_path).rows(["a"], fails)
    assert list(tmp_path.iterdir()) == []


# The whole


def test_a_smoke_run_writes_every_table_and_takes_its_cells_from_where_they_were_kept(tmp_path):
    app = typer.Typer()
    app.command()(main)
    options = ["--smoke", "--allow-dirty", "--results", str(tmp_path), "--cache", str(tmp_path / "cells")]
    result = CliRunner().invoke(app, options)
    assert result.exit_code == 0, result.output
    page = (tmp_path / "validity.md").read_text("utf-8")
    assert "A smoke run" in page
    assert "## What does not hold" in page
    names = ("", "_discoveries", "_sequences", "_tables")
    tables = {name: pl.read_csv(tmp_path / f"validity{name}.csv") for name in names}
    rows = sum(table.height for table in tables.values())
    assert page.count("| holds |") + page.count("| **does not hold**") == rows
    assert f"of {rows} rows, which make" in page
    assert tables[""].height == 2 * len(NULL_TESTS)
    assert tables["_discoveries"].height == 3 * len(FAMILIES)
    assert tables["_sequences"].height == len(STREAMS)
    assert {f"share_{level:g}" for level in LEVELS} <= set(tables[""].columns)
    assert (tmp_path / "validity.png").stat().st_size > 10_000
    assert pl.read_csv(tmp_path / "validity_curve.csv").height == 2 * len(NULL_TESTS) * len(GRID)
    again = CliRunner().invoke(app, options)
    assert again.exit_code == 0, again.output
    assert (tmp_path / "validity.md").read_text("utf-8") == page


def test_rows_that_are_not_to_be_kept_are_computed_again(tmp_path):
    kept, asked = KeptCells(tmp_path), []

    def measure():
        asked.append(len(asked))
        return [{"failed": len(asked) == 1}]

    for _ in range(3):
        found = kept.rows(["a"], measure, unless=lambda rows: rows[0]["failed"])
    assert found == [{"failed": False}]
    assert asked == [0, 1]
