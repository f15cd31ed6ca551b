"""Trials of mutants: a copy of the tree, the tests of one subpackage, and what was found so far.

Each trial runs pytest in a fork of a server that has imported the heavy libraries, and nothing of this project; so it
needs a system that forks.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from importlib import import_module
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any

from cmp.errors import CmpError
from experiments.mutants import Mutant

__all__ = [
    "Bench",
    "FailingTestsError",
    "Known",
    "Trial",
    "bench",
    "files_that_test",
    "fingerprint",
    "trials",
]

#: A mutant may loop for ever, or ask for all memory there is.
SLACK, LEAST_SECONDS, MEMORY = 4.0, 20.0, 8 << 30
BASELINE_SECONDS = 3600.0

#: Tests that take longer, simulations mostly, are run last, on what all others let live.
SLOW_SECONDS = 1.0

_COPIED = ("cmp", "tests", "experiments", "pyproject.toml")
#: Tests of a subpackage that stand beside those of another.
_ELSEWHERE = {"estimation": ("tests/foreign/test_enumeration.py", "tests/foreign/test_rows_against_logs.py")}

_PRELOADED = (
    "numpy",
    "polars",
    "scipy.stats",
    "scipy.optimize",
    "hypothesis",
    "pytest",
    "statsmodels.api",
    "typer",
)

#: Exit code of a process that could not import the module at all.
NO_MODULE = 70
#: Pytest's where every test was left out.
NO_TESTS = 5
_OUTCOMES = {0: "survived", NO_TESTS: "survived", NO_MODULE: "incompetent"}


@dataclass(frozen=True, slots=True)
class Trial:
    """What the tests made of a mutant.

    Attributes
    ----------
    outcome
        ``"killed"``: a test failed. ``"timeout"``: the tests took too long, which finds it too. ``"survived"``: all
        passed. ``"incompetent"``: the module could no longer be imported.
    killer
        The test that failed.
    seconds
        Wall time.
    """

    outcome: str
    killer: str
    seconds: float


class FailingTestsError(CmpError, RuntimeError):
    """A test fails with nothing changed, so that its failing would say nothing of a mutant."""


class Bench:
    """A copy of the tree in which one subpackage's mutants are tried; made by :func:`bench`."""

    def __init__(self, place: Path, package: str, files: Sequence[str]) -> None:
        self.place = place
        self.package = package
        self._files = list(files)
        self._scratch = place.parent / "output.txt"
        self._durations: dict[str, float] | None = None
        self._process: Any = None
        self._is_stopped = False

    @property
    def durations(self) -> dict[str, float]:
        """Seconds that each test takes with nothing changed; measured once, or told.

        Raises
        ------
        FailingTestsError
            Where a test fails with nothing changed.
        """
        if self._durations is None:
            code, _ = self._run(self._files, BASELINE_SECONDS)
            if code != 0:
                raise FailingTestsError(
                    f"{self._first_failure() or 'pytest'} fails with nothing changed (it ended with {code}); "
                    f"mutants say nothing until it passes:\n{self._scratch.read_text('utf-8')[-2000:]}"
                )
            self._durations = json.loads(self._scratch.with_suffix(".json").read_text("utf-8"))
        return self._durations

    @durations.setter
    def durations(self, durations: dict[str, float]) -> None:
        self._durations = durations

    @property
    def slow(self) -> dict[str, float]:
        """Seconds that each of the slow tests takes with nothing changed."""
        return {test: seconds for test, seconds in self.durations.items() if seconds > SLOW_SECONDS}

    @property
    def times(self) -> dict[str, float]:
        """Seconds that each test file takes, without its slow tests."""
        times, slow = dict.fromkeys(self._files, 0.0), self.slow
        for test, seconds in self.durations.items():
            if test not in slow:
                times[_file_of(test)] += seconds
        return times

    def tests_for(self, module: str) -> list[str]:
        """Return the test files in the order they are run: the module's own first, then the quick ones."""
        own, times = {module, f"tests/{self.package}/test_{Path(module).name}"}, self.times
        return sorted(self._files, key=lambda file: (file not in own, times[file]))

    def try_out(self, mutant: Mutant) -> Trial:
        """Run the tests with the mutant in place, until the first failure; the slow ones where no other fails."""
        module, slow = mutant.site.module, self.slow
        place = self.place / module
        original = place.read_text("utf-8")
        place.write_text(mutant.source, "utf-8")
        try:
            trial = self._tried(self.tests_for(module), sum(self.times.values()), module, list(slow))
            if trial.outcome == "survived" and slow:
                files = sorted({_file_of(test) for test in slow})
                quick = [test for test in self.durations if test not in slow]
                last = self._tried(files, sum(slow.values()), module, quick)
                trial = replace(last, seconds=trial.seconds + last.seconds)
        finally:
            place.write_text(original, "utf-8")
        return trial

    def _tried(self, files: Sequence[str], usual: float, module: str, left_out: Sequence[str]) -> Trial:
        """Run tests that usually take ``usual`` seconds."""
        code, seconds = self._run(files, max(LEAST_SECONDS, SLACK * usual), module, left_out)
        if code is None:
            return Trial("timeout", "", seconds)
        # a failing test, an error in collecting one, or a crash of the interpreter
        outcome = _OUTCOMES.get(code, "killed")
        return Trial(outcome, self._first_failure() if outcome == "killed" else "", seconds)

    def _run(
        self, files: Sequence[str], limit: float, module: str = "", left_out: Sequence[str] = ()
    ) -> tuple[int | None, float]:
        """Return pytest's exit code, None after ``limit`` seconds, and the wall time."""
        begun = time.monotonic()
        process = _context().Process(
            target=run_tests,
            args=(str(self.place), list(files), str(self._scratch), module, list(left_out)),
        )
        process.start()
        self._process = process
        if self._is_stopped:  # while it was being started
            self._kill()
        try:
            process.join(limit)
        finally:
            is_late = process.is_alive()
            self._kill()
            process.join()
        if self._is_stopped:
            raise InterruptedError("the trial was stopped, so it says nothing")
        return None if is_late else process.exitcode, time.monotonic() - begun

    def stop(self) -> None:
        """End the trial under way, from another thread, and allow no more."""
        self._is_stopped = True
        self._kill()

    def _kill(self) -> None:
        """Kill the tests that still run, and whatever they started."""
        if self._process is not None and self._process.is_alive():
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.kill()  # it may have no group of its own yet

    def _first_failure(self) -> str:
        lines = self._scratch.read_text("utf-8", "replace").splitlines()
        failed = (line.split(" ", 1)[1] for line in lines if line.startswith(("FAILED ", "ERROR ")))
        return next(failed, "").split(" - ")[0]


def _file_of(test: str) -> str:
    return test.split("::")[0]


@contextmanager
def bench(root: Path, package: str, files: Sequence[str] = ()) -> Iterator[Bench]:
    """Copy the tree, to try mutants of ``cmp/<package>``: by ``tests/<package>``, and by the modules' examples."""
    with TemporaryDirectory() as folder:
        place = Path(folder) / "tree"
        place.mkdir()
        for name in _COPIED:
            copy = shutil.copytree if (root / name).is_dir() else shutil.copy2
            options: dict[str, Any] = (
                {"ignore": shutil.ignore_patterns("__pycache__")} if copy is shutil.copytree else {}
            )
            copy(root / name, place / name, **options)
        yield Bench(place, package, list(files) or files_that_test(place, package))


def files_that_test(root: Path, package: str) -> list[str]:
    """Return the files that test a subpackage, its own modules' examples among them."""
    paths = [*(root / "cmp" / package).glob("*.py"), *(root / "tests" / package).glob("test_*.py")]
    paths += [root / name for name in _ELSEWHERE.get(package, ())]
    return sorted(path.relative_to(root).as_posix() for path in paths)


def fingerprint(root: Path, package: str) -> str:
    """Return a name for all that a trial's outcome depends on: the package, its tests and their settings."""
    digest = blake2b(digest_size=8)
    paths = [
        *(root / "cmp").rglob("*.py"),
        *(root / "tests" / package).rglob("*.py"),
        *(root / "tests").glob("*.py"),
        *(root / name for name in _ELSEWHERE.get(package, ())),
    ]
    for path in sorted(paths):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


class Known:
    """Trials done, kept in a file of JSON lines, so that an interrupted run goes on where it stopped."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._trials: dict[str, Trial] = {}
        self._lock = Lock()
        if path.exists():
            for line in path.read_text("utf-8").splitlines():
                with suppress(ValueError):  # empty, or half written when the run was interrupted
                    row = json.loads(line)
                    key = row.pop("key")
                    self._trials[key] = Trial(**row)

    def __len__(self) -> int:
        return len(self._trials)

    def __contains__(self, mutant: Mutant) -> bool:
        return mutant.key in self._trials

    def trial_of(self, mutant: Mutant, tried: Bench) -> Trial:
        """Return a mutant's trial, done now where it is not known."""
        trial = self._trials.get(mutant.key)
        if trial is None:
            trial = tried.try_out(mutant)
            with self._lock, self._path.open("a", encoding="utf-8") as stream:
                self._trials[mutant.key] = trial
                stream.write("\n" + json.dumps({"key": mutant.key, **asdict(trial)}) + "\n")
        return trial


def trials(drawn: Sequence[Mutant], benches: Sequence[Bench], known: Known) -> Iterator[Trial]:
    """Yield each mutant's trial in order, as many at a time as there are benches."""
    free: SimpleQueue[Bench] = SimpleQueue()
    is_new = any(mutant not in known for mutant in drawn)
    for tried in benches:
        if is_new:  # to time the tests takes minutes
            tried.durations = benches[0].durations
        free.put(tried)

    def one(mutant: Mutant) -> Trial:
        mine = free.get()
        try:
            return known.trial_of(mutant, mine)
        finally:
            free.put(mine)

    with ThreadPoolExecutor(len(benches)) as pool:
        try:
            yield from pool.map(one, drawn)
        except BaseException:  # an interrupt does not wait for trials of minutes
            pool.shutdown(wait=False, cancel_futures=True)
            for tried in benches:
                tried.stop()
            raise


def _context() -> Any:
    context: Any = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(_PRELOADED))
    return context


class _Plugin:
    """For pytest: examples are not shrunk, for a failure is all that is asked; some tests left out; times noted."""

    def __init__(self, place: Path, left_out: Sequence[str]) -> None:
        self._place = place
        self._left_out = set(left_out)
        self._times: dict[str, float] = {}

    def pytest_collection_modifyitems(self, config: Any, items: list[Any]) -> None:
        left_out = [item for item in items if item.nodeid in self._left_out]
        items[:] = [item for item in items if item.nodeid not in self._left_out]
        config.hook.pytest_deselected(items=left_out)

    def pytest_sessionstart(self) -> None:
        from hypothesis import Phase, settings

        settings.register_profile(
            "mutation", deadline=None, database=None, phases=(Phase.explicit, Phase.generate)
        )
        settings.load_profile("mutation")

    def pytest_runtest_logreport(self, report: Any) -> None:
        self._times[report.nodeid] = self._times.get(report.nodeid, 0.0) + report.duration

    def pytest_sessionfinish(self) -> None:
        self._place.write_text(json.dumps(self._times), "utf-8")


def run_tests(place: str, files: list[str], output: str, module: str, left_out: list[str]) -> None:
    """Run pytest in a copy of the tree, and end this process with its exit code."""
    import resource

    os.setsid()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    # bytecode is told apart by second and size, which two mutants may share
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    stream = os.open(output, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    os.dup2(stream, 1)
    os.dup2(stream, 2)
    os.chdir(place)
    sys.path.insert(0, place)
    for name in [name for name in sys.modules if name.split(".")[0] in ("cmp", "tests", "experiments")]:
        del sys.modules[name]
    if module and not _is_importable(module):
        os._exit(NO_MODULE)
    import pytest

    options = ["-x", "-q", "--tb=line", "-p", "no:cacheprovider", "--hypothesis-seed=0", "--rootdir", place]
    code = pytest.main([*options, *files], plugins=[_Plugin(Path(output).with_suffix(".json"), left_out)])
    loaded = sys.modules.get("cmp")
    if loaded is not None and not str(loaded.__file__).startswith(place):
        code = pytest.ExitCode.INTERNAL_ERROR
    sys.stdout.flush()
    os._exit(int(code))


def _is_importable(module: str) -> bool:
    """Return whether a module (a path) can be imported, without a warning of its syntax."""
    try:
        with warnings.catch_warnings(action="error", category=SyntaxWarning):
            import_module(module.removesuffix(".py").replace("/", "."))
    except Exception:  # noqa: BLE001 (whatever it is, no test can run)
        return False
    return True
