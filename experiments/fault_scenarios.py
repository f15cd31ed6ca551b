"""Faults of the machine and of the file: each makes its own log, breaks it, and accounts for what is left."""

from __future__ import annotations

import os
import random
import resource
import shutil
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from cmp.errors import LogCorruptedError
from cmp.log import open_log, validate_log
from cmp.serving import RandomizedRetriever
from experiments.children import joined, started
from experiments.fault_account import Account, account, read_notes
from experiments.fault_writer import SIZES, Notes, Store, wrapped, write

__all__ = [
    "FULL",
    "SEEDS",
    "SMOKE",
    "Reported",
    "Scale",
    "accounted",
    "clock_set_back",
    "disk_full",
    "eight_processes",
    "locked",
    "read_only",
    "torn_files",
    "writers_killed",
]

#: An account, and what happened in words made of figures.
Reported = tuple[Account, str]


@dataclass(frozen=True, slots=True)
class Scale:
    """How much of everything: the full run, or a corner of it in seconds."""

    kills: int
    server_kills: int
    seconds: float
    locked_seconds: float
    log_timeout: float
    cuts: int
    draws: int
    wrapper_draws: int


SEEDS = {"instants": 20_261_130, "cuts": 1, "deletions": 3}

FULL = Scale(200, 5, 10.0, 10.0, 2.0, 200, 10_000_000, 1_000_000)
SMOKE = Scale(6, 1, 1.0, 1.0, 0.2, 12, 200_000, 20_000)


def accounted(folder: Path, log: str | None = None) -> Account:
    """Account for the log of a folder against all notes in it."""
    return account(open_log(log or folder / "x.db"), read_notes(folder.glob("*.notes")))


# -- processes ----------------------------------------------------------------------------------------------------


def writers_killed(folder: Path, scale: Scale, *, durability: str = "process") -> Reported:
    """Kill writers at random instants, from their first moment on, four at a time on one file."""
    log = str(folder / "x.db")
    write(log, folder / "w.notes", "w", 0.1, durability=durability)
    instants = random.Random(SEEDS["instants"])
    writers: list[BaseProcess] = []
    for number in range(scale.kills):
        while len(writers) < 4:
            name = f"w{number}-{len(writers)}"
            writers.append(started(write, log, folder / f"{name}.notes", name, 3600.0, durability=durability))
        time.sleep(instants.uniform(0.0, 0.4))
        victim = writers.pop(instants.randrange(4))
        victim.kill()
        victim.join()
    for writer in writers:
        writer.kill()
        writer.join()
    found = accounted(folder)
    stored = found.rounds - found.acknowledged
    return found, f"{scale.kills + len(writers)} kills; {stored} rounds stored that nobody was told of"


def eight_processes(folder: Path, scale: Scale) -> Reported:
    """Let eight processes write to one file."""
    log = str(folder / "x.db")
    writers = [started(write, log, folder / f"w{i}.notes", f"w{i}", scale.seconds) for i in range(8)]
    joined(writers)
    found = accounted(folder)
    return found, f"{found.rounds} rounds in {scale.seconds:g} s"


# -- the file -----------------------------------------------------------------------------------------------------


def before_and_after(
    folder: Path,
    during: Callable[[RandomizedRetriever, Notes], object],
    log: Path | None = None,
    **settings: Any,
) -> str:
    """Ask before, during and after a fault that ``during`` makes and mends; return whether service came back whole."""
    memory = wrapped(Store(SIZES), log or folder / "x.db", **settings)
    with memory, Notes(folder / "one.notes", "one") as notes:
        for _ in range(60):
            notes.ask(memory, "a")
        during(memory, notes)
        memory.flush()
        after = [notes.ask(memory, "a") for _ in range(60)]
    back = sum(context is not None and context.randomized for context in after)
    return f"{back} of 60 requests after it were randomized again"


def locked(folder: Path, scale: Scale) -> Reported:
    """Hold the write lock of the file in another connection."""

    def during(memory: RandomizedRetriever, notes: Notes) -> None:
        with closing(sqlite3.connect(folder / "x.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            until = time.monotonic() + scale.locked_seconds
            while time.monotonic() < until:
                notes.ask(memory, "a")

    back = before_and_after(folder, during, log_timeout=scale.log_timeout)
    found = accounted(folder)
    words = f"locked for {scale.locked_seconds:g} s, log_timeout {scale.log_timeout:g} s"
    return found, f"{words}: slowest answer {found.slowest_ms / 1e3:.2f} s; {back}"


def disk_full(folder: Path, scale: Scale) -> Reported:
    """Fill the disk the file is on, and free it again."""
    with small_disk(folder) as (disk, kind):
        if disk is None:
            return _in_child(folder, _file_limited), kind
        ballast = disk / "ballast"

        def during(memory: RandomizedRetriever, notes: Notes) -> None:
            _fill(ballast)
            for _ in range(200):
                notes.ask(memory, "b")
            ballast.unlink()

        back = before_and_after(folder, during, disk / "x.db")
        return accounted(folder, str(disk / "x.db")), f"{kind}; {back}"


@contextmanager
def small_disk(folder: Path) -> Iterator[tuple[Path | None, str]]:
    """Mount a file system of 4 MB, where one may; else say what is done instead."""
    disk = folder / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        yield None, "no right to mount a small disk: the size of the file was limited instead"
        return
    try:
        yield disk, "a file system of 4 MB"
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def _fill(ballast: Path) -> None:
    with ballast.open("wb", buffering=0) as stream:
        for size in (1 << 16, 1 << 10, 1):
            try:
                while stream.write(b"\0" * size):
                    pass
            except OSError:
                continue


def _file_limited(folder: Path) -> None:
    """Forbid the file to grow, with the limit of a process on the size of its files."""
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)

    def during(memory: RandomizedRetriever, notes: Notes) -> None:
        size = max(path.stat().st_size for path in folder.glob("x.db*"))
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, unlimited[1]))
        for _ in range(200):
            notes.ask(memory, "b")
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)

    before_and_after(folder, during)


def _in_child(folder: Path, function: Callable[[Path], object]) -> Account:
    joined([started(function, folder)])
    return accounted(folder)


def read_only(folder: Path, scale: Scale) -> Reported:
    """Take away the right to write to the file and its folder while it is in use, and give it back."""
    return _in_child(folder, _without_rights), "the file was reopened while nobody might write to it"


def _without_rights(folder: Path) -> None:
    def during(memory: RandomizedRetriever, notes: Notes) -> None:
        memory.log.close()
        _allow(folder, False)
        if os.getuid() == 0:
            os.seteuid(65_534)  # root may write to anything
        for _ in range(100):
            notes.ask(memory, "a")
        os.seteuid(os.getuid())
        _allow(folder, True)

    before_and_after(folder, during)


def _allow(folder: Path, writing: bool) -> None:
    for path in [folder, *folder.glob("x.db*")]:
        path.chmod((0o755 if writing else 0o555) if path.is_dir() else (0o644 if writing else 0o444))


def clock_set_back(folder: Path, scale: Scale) -> Reported:
    """Set the clock an hour back at every request."""
    write(str(folder / "x.db"), folder / "w.notes", "w", scale.seconds / 5, prepare=_set_back)
    found = accounted(folder)
    return found, "the clock lost an hour at every request"


class _Falling(datetime):
    """A clock that goes back."""

    asked = 0

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> _Falling:
        cls.asked += 1
        return cls.fromtimestamp(1.8e9, tz or UTC) - timedelta(hours=cls.asked)


def _set_back() -> None:
    from cmp.serving import retrieval, wrapper

    retrieval.datetime = wrapper.datetime = _Falling  # type: ignore[attr-defined]


def torn_files(folder: Path, scale: Scale) -> Reported:
    """Cut copies of the file and of its write-ahead log at random places, as a copy or a crash of a disk would."""
    write(str(folder / "whole.db"), folder / "w.notes", "w", 0.5)
    source = folder / "whole.db"
    memory = wrapped(Store(SIZES), source)
    with memory, Notes(folder / "w2.notes", "w2") as notes:
        for _ in range(200):
            notes.ask(memory, "a")
        _copy(source, folder / "x.db")
        outcomes = {"read": 0, "refused": 0, "named": 0, "half": 0}
        places = random.Random(SEEDS["cuts"])
        for number in range(scale.cuts):
            copy = folder / f"torn{number}.db"
            _copy(source, copy)
            torn = copy if number % 2 else Path(f"{copy}-wal")
            os.truncate(torn, places.randrange(torn.stat().st_size))
            outcomes[_read_torn(copy)] += 1
    words = ", ".join(f"{count} {name}" for name, count in outcomes.items())
    found = accounted(folder)
    if outcomes["half"]:
        raise RuntimeError(f"half rounds were read without a word: {words}")
    return found, f"{scale.cuts} cuts: {words} (named: validate_log says what is damaged)"


def _copy(source: Path, target: Path) -> None:
    for suffix in ("", "-wal"):
        shutil.copyfile(f"{source}{suffix}", f"{target}{suffix}")


def _read_torn(path: Path) -> str:
    """Read a damaged copy: whole rounds of a prefix, a refusal, or damage that is named; anything else is wrong."""
    try:
        log = open_log(path)
        if validate_log(log):
            return "named"
        rounds = log.rounds().filter("randomized").collect()
        assigned = log.exposures().filter("assigned").collect()
    except LogCorruptedError:
        return "refused"
    return "read" if assigned.height == rounds["k"].sum() else "half"
