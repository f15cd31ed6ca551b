"""Finding a benchmark's files: a given path, then ``$CMP_DATA``, then the public home.

Files are data only: plain, gzip or xz; JSON, JSON lines or text. Nothing is unpickled. The checksum is always
of the decompressed bytes, so one number names a file however it is packed. A fetched file must match its
checksum; a file that somebody gave is taken as it is, and its own checksum is reported.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import lzma
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from cmp.errors import DatasetError

__all__ = ["PathLike", "PublicFile", "RawFile", "beside", "find_file", "open_file"]

PathLike: TypeAlias = str | os.PathLike[str]

_PACKED = ("", ".gz", ".xz")
_FOLDERS = ("", "data")


@dataclass(frozen=True, slots=True)
class PublicFile:
    """A file of a benchmark, and where the world keeps it.

    Attributes
    ----------
    name : str
        The file's name, unpacked: ``locomo10.json``.
    sha256 : str
        Of the unpacked bytes.
    url : str or None
        Its public home at a fixed commit; None where these exact bytes have none.
    advice : str
        How to come by the file where it has no ``url``, or what to know before fetching it: its licence.
    aliases : tuple of str
        Other names it goes by in a directory, as in its own repository.
    """

    name: str
    sha256: str
    url: str | None
    advice: str
    aliases: tuple[str, ...] = ()

    def provenance(self, found: RawFile) -> dict[str, str]:
        """Return the entries of ``Benchmark.source`` for the file that was found."""
        entries = {self.name: found.sha256}
        if found.sha256 != self.sha256:
            entries[f"{self.name}, remark"] = f"not the published bytes, whose sha256 is {self.sha256}"
        return entries


@dataclass(frozen=True, slots=True)
class RawFile:
    """The unpacked bytes of a file, its path and their sha256."""

    path: Path
    raw: bytes
    sha256: str

    @classmethod
    def read(cls, path: Path) -> RawFile:
        """Read a plain, gzip or xz file; what it is, its first bytes say, not its name.

        Raises
        ------
        DatasetError
            Where the file cannot be read, or is truncated or corrupted.
        """
        try:
            packed = path.read_bytes()
            raw = _unpacked(packed)
        except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
            raise DatasetError(
                f"{path} is truncated or corrupted ({error}); fetch or copy it again"
            ) from error
        except OSError as error:
            raise DatasetError(
                f"{path} cannot be read ({error}); check the path and its permissions"
            ) from error
        return cls(path, raw, hashlib.sha256(raw).hexdigest())

    @contextmanager
    def named_in_errors(self) -> Iterator[None]:
        """Put the file's path before the message of a :class:`DatasetError` raised over its content."""
        try:
            yield
        except DatasetError as error:
            raise type(error)(f"{self.path}: {error}") from error

    def text(self) -> str:
        """Return the content as UTF-8 text, whatever its line ends."""
        try:
            return self.raw.decode("utf-8").replace("\r\n", "\n")
        except UnicodeDecodeError as error:
            line = self.raw.count(b"\n", 0, error.start) + 1
            raise DatasetError(
                f"{self.path}, line {line}: no valid UTF-8; fetch or copy the file again"
            ) from error

    def json(self) -> Any:
        """Return the content of a JSON file."""
        return self._parsed(self.text(), 1)

    def json_lines(self) -> Iterator[tuple[int, Any]]:
        """Yield each line's number, from 1, and its content; blank lines are passed over."""
        for number, line in enumerate(self.text().split("\n"), start=1):
            if line.strip():
                yield number, self._parsed(line, number)

    def _parsed(self, text: str, first_line: int) -> Any:
        try:
            return json.loads(text)
        except (json.JSONDecodeError, RecursionError) as error:
            line = first_line + (error.lineno - 1 if isinstance(error, json.JSONDecodeError) else 0)
            raise DatasetError(
                f"{self.path}, line {line}: no valid JSON ({error}); is the file truncated? "
                "fetch or copy it again"
            ) from error


def open_file(file: PublicFile, path: PathLike | None = None) -> RawFile:
    """Find a file with :func:`find_file` and read it."""
    return RawFile.read(find_file(file, path))


def find_file(file: PublicFile, path: PathLike | None = None) -> Path:
    """Return where a file lies: the given path, else ``$CMP_DATA``, else the cache it is fetched into.

    Parameters
    ----------
    file
        What is sought.
    path
        The file itself, whatever its name, or a directory that holds it (plain, ``.gz`` or ``.xz``). A path
        that is given is the only place looked at.

    Raises
    ------
    DatasetError
        Where the file is in none of these places, cannot be fetched, or is fetched and not the file it should
        be.

    Examples
    --------
    >>> find_file(PublicFile("a.json", "00", None, "ask its author"), "/nowhere")
    Traceback (most recent call last):
    cmp.errors.DatasetError: a.json: /nowhere does not exist; give the file, or a directory that holds it
    """
    if path is not None:
        given = Path(path).expanduser()
        if given.is_file():
            return given
        if not given.is_dir():
            raise DatasetError(
                f"{file.name}: {given} does not exist; give the file, or a directory that holds it"
            )
        found = _in_directory(file, given)
        if found is None:
            raise DatasetError(f"{given} holds no {file.name}, plain, .gz or .xz; {file.advice}")
        return found
    directory = os.environ.get("CMP_DATA")
    found = _in_directory(file, Path(directory).expanduser()) if directory else None
    return found if found is not None else _fetched(file)


def beside(path: PathLike | None, other: PathLike | None) -> PathLike | None:
    """Return where a second file of a benchmark is sought: where it is said to be, else with the first."""
    if other is not None or path is None:
        return other
    first = Path(path).expanduser()
    return first if first.is_dir() else first.parent


def _in_directory(file: PublicFile, directory: Path) -> Path | None:
    names = (file.name, *file.aliases)
    places = (directory / folder / (name + end) for name in names for folder in _FOLDERS for end in _PACKED)
    return next((place for place in places if place.is_file()), None)


def _fetched(file: PublicFile) -> Path:
    ways = f"(1) give its path, (2) set $CMP_DATA to a directory that holds {file.name}, plain, .gz or .xz"
    if file.url is None:
        raise DatasetError(
            f"{file.name} was not found and has no public home to fetch it from: {ways}; {file.advice}"
        )
    import pooch

    try:
        return Path(
            pooch.retrieve(
                file.url,
                known_hash=f"sha256:{file.sha256}",
                fname=file.name,
                path=pooch.os_cache("causal-memory-policy"),
                downloader=pooch.HTTPDownloader(progressbar=_Bar(file.name)),
            )
        )
    except (OSError, ValueError) as error:  # requests' errors are OSErrors; a wrong checksum is a ValueError
        raise DatasetError(
            f"{file.name} was not found and could not be fetched from {file.url} "
            f"({type(error).__name__}: {error}): {ways}, or (3) try again with a network; {file.advice}"
        ) from error


def _unpacked(packed: bytes) -> bytes:
    if packed.startswith(b"\x1f\x8b"):
        return gzip.decompress(packed)
    if packed.startswith(b"\xfd7zXZ\x00"):
        return lzma.decompress(packed)
    return packed


class _Bar:
    """The bar that pooch moves, drawn by rich on a terminal's standard error."""

    total: float = 0.0

    def __init__(self, name: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

        console = Console(stderr=True, emoji=False)
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
        self._bar = Progress(*columns, console=console, disable=not console.is_terminal, transient=True)
        self._task = self._bar.add_task(name, total=None)

    def update(self, number: float) -> None:
        """Move on by some bytes."""
        self._bar.start()
        self._bar.update(self._task, advance=number, total=self.total or None)

    def reset(self) -> None:
        """Move back to the start."""
        self._bar.reset(self._task, total=self.total or None)

    def close(self) -> None:
        """Take the bar away."""
        self._bar.stop()
