"""Mutants and their trials: on a small tree of its own, with every way a trial can end."""

from __future__ import annotations

import multiprocessing
import threading
import time
from importlib.util import find_spec
from pathlib import Path

import polars as pl
import pytest
from scipy.stats import beta

from experiments import mutant_trials
from experiments.mutant_trials import Bench, Known, Trial, bench, files_that_test, fingerprint, trials
from experiments.mutants import Mutant, Site, mutant_at, mutants, run_time_tree, sites
from experiments.mutation import SCHEMA, Explanation, by_module, explanations, page
from experiments.records import ROOT

forks = pytest.mark.skipif(
    "forkserver" not in multiprocessing.get_all_start_methods(), reason="nothing forks here"
)
generates = pytest.mark.skipif(find_spec("cosmic_ray") is None, reason="the extra mutation is not installed")

MODULE = "cmp/toy/sums.py"
SOURCE = '''"""Sums."""

from __future__ import annotations


def total(values: list[int] | None) -> int:
    """Add up.

    >>> total([1, 2])
    3
    """
    left = list(values or [])
    done = 0
    while left:
        done = done + left.pop()
    return done
'''
TEST = """from cmp.toy.sums import total


def test_nothing_adds_up_to_nothing():
    assert total(None) == 0
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A project with one module and one test."""
    files = {
        "cmp/__init__.py": "",
        "cmp/toy/__init__.py": "",
        MODULE: SOURCE,
        "tests/__init__.py": "",
        "tests/toy/__init__.py": "",
        "tests/toy/test_sums.py": TEST,
        "experiments/__init__.py": "",
        "pyproject.toml": '[tool.pytest.ini_options]\naddopts = "--doctest-modules"\n',
    }
    for name, text in files.items():
        place = tmp_path / "project" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    return tmp_path / "project"


def changed(before: str, after: str) -> Mutant:
    """The module with one thing changed by hand."""
    assert before in SOURCE
    return Mutant(Site(MODULE, "ByHand", 0), 1, before, after, SOURCE.replace(before, after))


@forks
def test_a_trial_ends_in_one_of_four_ways_and_leaves_the_tree_as_it_was(
    tree: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(mutant_trials, "LEAST_SECONDS", 8.0)
    monkeypatch.setattr(mutant_trials, "SLACK", 0.0)
    with bench(tree, "toy") as tried:
        assert tried.tests_for(MODULE)[:2] in (
            [MODULE, "tests/toy/test_sums.py"],
            ["tests/toy/test_sums.py", MODULE],
        )
        ends = {
            ("done = 0", "done = 1"): ("killed", None),
            ("done + left.pop()", "done - left.pop()"): ("killed", f"{MODULE}::cmp.toy.sums.total"),
            ("values or []", "values or ()"): ("survived", ""),
            ("left.pop()", "left[0]"): ("timeout", ""),
            ("def total(values", "import nothing_of_this_name\ndef total(values"): ("incompetent", ""),
        }
        for change, (outcome, killer) in ends.items():
            trial = tried.try_out(changed(*change))
            assert trial.outcome == outcome, change
            assert killer is None or trial.killer == killer
            assert (tried.place / MODULE).read_text() == SOURCE
    assert (tree / MODULE).read_text() == SOURCE


@forks
def test_trials_side_by_side_come_in_order_and_do_not_meet(tree: Path, tmp_path: Path):
    """Two copies: what is changed in one is not seen in the other."""
    changes = [
        ("done = 0", "done = 1"),
        ("values or []", "values or ()"),
        ("return done", "return -done"),
        ("done + left.pop()", "left.pop() + done"),
    ]
    drawn = [changed(*change) for change in changes]
    with bench(tree, "toy") as one, bench(tree, "toy") as two:
        found = list(trials(drawn, [one, two], Known(tmp_path / "known.jsonl")))
    assert [trial.outcome for trial in found] == ["killed", "survived", "killed", "survived"]
    assert len(Known(tmp_path / "known.jsonl")) == 4


@forks
def test_an_interrupt_stops_the_trial_under_way_and_records_nothing(tree: Path, tmp_path: Path):
    place = tmp_path / "known.jsonl"
    endless = changed("left.pop()", "left[0]")
    with bench(tree, "toy") as tried:
        tried.durations = dict.fromkeys(files_that_test(tree, "toy"), 0.0)  # so the limit is 20 seconds
        begun = time.monotonic()
        threading.Timer(6.0, tried.stop).start()
        with pytest.raises(InterruptedError):
            list(trials([endless], [tried], Known(place)))
        assert time.monotonic() - begun < 15.0
        assert (tried.place / MODULE).read_text() == SOURCE
    assert len(Known(place)) == 0


@forks
def test_a_test_that_fails_with_nothing_changed_is_said_so(tree: Path):
    (tree / "tests" / "toy" / "test_sums.py").write_text(TEST.replace("== 0", "== 1"))
    with (
        bench(tree, "toy") as tried,
        pytest.raises(RuntimeError, match=r"test_sums\.py::test_nothing\w+ fails with nothing changed"),
    ):
        tried.try_out(changed("done = 0", "done = 1"))
    assert (tree / MODULE).read_text() == SOURCE


def test_a_trial_that_is_known_is_not_done_again(tmp_path: Path):
    class Counting(Bench):
        def __init__(self) -> None:
            self.tried: list[str] = []

        def try_out(self, mutant: Mutant) -> Trial:
            self.tried.append(mutant.after)
            return Trial("killed", "t", 0.5)

    place = tmp_path / "state" / "known.jsonl"
    first, second = changed("done = 0", "done = 1"), changed("done = 0", "done = 2")
    before = Counting()
    assert Known(place).trial_of(first, before) == Trial("killed", "t", 0.5)
    with place.open("a") as stream:
        stream.write('{"key": "half a li')  # an interrupt in the middle of a line
    again, after = Known(place), Counting()
    assert len(again) == 1
    assert again.trial_of(first, after) == Trial("killed", "t", 0.5)
    assert after.tried == []
    again.trial_of(second, after)
    assert (before.tried, after.tried) == (["done = 1"], ["done = 2"])
    assert len(Known(place)) == 2
    # Counting has no tests that could be timed
    assert list(trials([second, first], [Counting()], Known(place))) == [Trial("killed", "t", 0.5)] * 2


def test_what_is_known_is_of_the_same_code_and_tests(tree: Path):
    before = fingerprint(tree, "toy")
    assert fingerprint(tree, "toy") == before
    (tree / "tests" / "toy" / "test_sums.py").write_text(TEST + "\n")
    after = fingerprint(tree, "toy")
    assert after != before
    (tree / MODULE).write_text(SOURCE + "\n")
    assert fingerprint(tree, "toy") not in (before, after)


@pytest.mark.parametrize(
    ("before", "after", "alike"),
    [
        ("def f(x: int | str) -> int: ...", "def f(x: int + str) -> str: ...", True),
        ("async def f(*, x: int): ...", "async def f(*, x: str): ...", True),
        ("x: int = 1", "x: str = 1", True),
        ("if TYPE_CHECKING:\n    import a", "if TYPE_CHECKING:\n    import b", True),
        ("x: int = 1", "x: int = 2", False),
        ("def f(x: int = 1): ...", "def f(x: int = 2): ...", False),
        ("if checking:\n    import a", "if checking:\n    import b", False),
        ("f(a, b)", "f(a,\n  b)  # the same", True),
    ],
)
def test_what_no_run_can_notice_is_no_change(before: str, after: str, alike: bool):
    assert (run_time_tree(before) == run_time_tree(after)) is alike


@generates
def test_mutants_compile_differ_and_are_all_different(tree: Path):
    found = list(mutants(tree, [MODULE], 0, 0))
    texts = {(mutant.before, mutant.after) for mutant in found}
    assert ("done = done + left.pop()", "done = done - left.pop()") in texts
    assert ("done = 0", "done = 1") in texts
    assert not any("->" in before or "list[int]" in before for before, _ in texts)
    trees = {run_time_tree(mutant.source) for mutant in found}
    assert len(trees) == len(found) < len(sites(tree, [MODULE]))
    assert run_time_tree(SOURCE) not in trees
    lines = SOURCE.splitlines()
    assert all(lines[mutant.line - 1].strip() == mutant.before != mutant.after for mutant in found)
    assert mutant_at(tree, found[0].site) == found[0]


@generates
def test_a_sample_is_of_the_seed_and_without_replacement(tree: Path):
    every = {mutant.key for mutant in mutants(tree, [MODULE], 0, 0)}
    one, same, other = ([m.key for m in mutants(tree, [MODULE], 5, seed)] for seed in (1, 1, 2))
    assert one == same != other
    assert len(set(one)) == 5
    assert every >= set(one)
    assert {mutant.key for mutant in mutants(tree, [MODULE], 10_000, 3)} == every


def rows(*outcomes: tuple[str, str, str | None]) -> pl.DataFrame:
    """A frame with (module, outcome, explanation)."""
    return pl.DataFrame(
        [
            ("toy", module, 3, "Op", "a | b", "a & b", outcome, "", 1.0, why)
            for module, outcome, why in outcomes
        ],
        schema=SCHEMA,
        orient="row",
    )


def test_shares_count_what_was_found_and_leave_the_incompetent_out():
    frame = rows(
        ("m", "killed", None),
        ("m", "timeout", None),
        ("m", "survived", "why"),
        ("m", "survived", None),
        ("m", "incompetent", None),
        ("n", "incompetent", None),
    )
    table = by_module(frame, {"toy": 6})
    one, none, package = table.iter_rows(named=True)
    assert (one["n_found"], one["n_tried"], one["share"], one["n_explained"]) == (2, 4, 0.5, 1)
    assert (none["n_tried"], none["share"], none["ci_low"]) == (0, None, None)
    assert (package["module"], package["n_found"], package["n_incompetent"]) == (None, 2, 2)
    # Clopper and Pearson's limits are quantiles of beta distributions
    assert one["ci_low"] == pytest.approx(beta(2, 3).ppf(0.025), abs=1e-9)
    assert one["ci_high"] == pytest.approx(beta(3, 2).ppf(0.975), abs=1e-9)
    for all_of_them in (0, 7):
        assert by_module(frame, {"toy": all_of_them})["ci_low"].null_count() == 3


def test_the_page_shows_each_survivor_once_by_whether_it_is_explained():
    text = page(
        rows(("m", "survived", "No use."), ("n", "survived", None), ("n", "killed", None)), {"toy": 0}
    )
    open_, explained = text.split("## Survivors explained")
    assert open_.count("-a | b\n+a & b") == explained.count("-a | b\n+a & b") == 1
    assert "No use." in explained
    assert "`n`" in open_
    clean = page(rows(("n", "killed", None)), {"toy": 0})
    assert clean.count("None.") == 2


def test_an_explanation_covers_its_line_and_operators_alone():
    why = Explanation("m", "a | b", ("ReplaceBinaryOperator_BitOr_*",), "Sets.")
    row = {"module": "m", "before": "a | b", "operator": "ReplaceBinaryOperator_BitOr_Add", "after": "a + b"}
    assert why.covers(row)
    for name, other in (("module", "n"), ("before", "a | c"), ("operator", "ReplaceBinaryOperator_Add_Sub")):
        assert not why.covers(row | {name: other})
    assert not Explanation("m", "a | b", ("*",), "Sets.", after="a & b").covers(row)


def test_every_explanation_is_of_a_line_that_is_there():
    for entry in explanations():
        lines = [line.strip() for line in (ROOT / entry.module).read_text("utf-8").splitlines()]
        assert entry.line in lines, f"{entry.module} holds no line {entry.line!r} any more"
        assert entry.why.endswith(".")


@forks
def test_slow_tests_are_run_on_what_all_others_let_live(tree: Path):
    """The test of nothing is slow here, the example is not."""
    example, slow = f"{MODULE}::cmp.toy.sums.total", "tests/toy/test_sums.py::test_nothing_adds_up_to_nothing"
    with bench(tree, "toy") as tried:
        measured = tried.durations
        assert not tried.slow
        tried.durations = {test: 60.0 if test == slow else 0.1 for test in measured}
        assert tried.slow == {slow: 60.0}
        for change, outcome, killer in (
            (("done = 0", "done = 1"), "killed", example),  # both notice it
            (("values or []", "values or [1]"), "killed", slow),
            (("values or []", "values or ()"), "survived", ""),
        ):
            trial = tried.try_out(changed(*change))
            assert (trial.outcome, trial.killer) == (outcome, killer)
        tried.durations = dict.fromkeys(measured, 60.0)
        assert tried.try_out(changed("done = 0", "done = 1")).outcome == "killed"
