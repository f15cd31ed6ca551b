"""Files of one JSON object a line, read as a stream: any size, gzipped or not, every fault with its line."""

from __future__ import annotations

import gzip
import json
import os
import re
import warnings
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NoReturn

import numpy as np
import numpy.typing as npt
import polars as pl

from cmp.foreign.problems import Problems

__all__ = ["RowBuffer", "json_objects"]

_GZIP: Final = b"\x1f\x8b"
_UTF8_MARK: Final = b"\xef\xbb\xbf"

#: What may be left of a line that was cut: nothing, or of a word, of a number's end, of an escape.
_TOKEN: Final = re.compile(r"(t(ru?)?|f(a(ls?)?)?|n(ul?)?|-|\.|[eE][+-]?)?")
_ESCAPE: Final = re.compile(r"\\?(u[0-9a-fA-F]{0,4})?")

#: Rows kept as Python lists before they become a part of a frame.
_PORTION: Final = 1 << 17


def json_objects(
    path: str | os.PathLike[str], problems: Problems, notes: Counter[str], prefix: str = ""
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield line numbers (from 1) and objects; blank lines are passed over.

    A last line that was torn (no newline behind it, and the beginning of an object) is left out with a warning: whole
    rounds lost so bias nothing. Any other line that is no JSON object in UTF-8 is a problem.

    Raises
    ------
    CmpError
        Where problems reach their limit.
    """
    number = 0
    with _open(path) as file:
        try:
            for number, line in enumerate(file, start=1):
                if not line.strip():
                    continue
                try:
                    found = json.loads(_text(line, number), parse_constant=_refuse)
                except (ValueError, RecursionError) as error:
                    if not line.endswith(b"\n") and _is_beginning(line, error):
                        _leave_out(path, number, notes)
                        return
                    problems.add(f"{prefix}line {number}: {_said(error)}")
                    continue
                if isinstance(found, dict):
                    yield number, found
                else:
                    problems.add(f"{prefix}line {number}: it is a JSON {type(found).__name__}, not an object")
        except EOFError:
            _leave_out(path, number + 1, notes)
        except (gzip.BadGzipFile, zlib.error) as error:
            problems.add(f"{prefix}after line {number}: its gzip is damaged ({error}); fetch it again")


@contextmanager
def _open(path: str | os.PathLike[str]) -> Iterator[Iterable[bytes]]:
    with Path(path).open("rb") as file:
        if file.peek(2)[:2] != _GZIP:
            yield file
            return
        with gzip.GzipFile(fileobj=file) as unpacked:
            yield unpacked


def _text(line: bytes, number: int) -> str:
    return line.removeprefix(_UTF8_MARK if number == 1 else b"").decode("utf-8")


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON; a missing value is null")


def _said(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.start} of it is no UTF-8 ({error.reason}); write the file in UTF-8"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return f"it is no JSON ({error})"


def _is_beginning(line: bytes, error: Exception) -> bool:
    """Return whether a line is an object up to where it ends, so that more of it would mend it."""
    if isinstance(error, UnicodeDecodeError):
        return error.reason == "unexpected end of data" and error.end == len(error.object)
    if not isinstance(error, json.JSONDecodeError) or not line.removeprefix(_UTF8_MARK).lstrip().startswith(
        b"{"
    ):
        return False
    rest = error.doc[error.pos :]
    if error.msg.startswith("Unterminated string"):
        return True
    return (_ESCAPE if "escape" in error.msg else _TOKEN).fullmatch(rest.rstrip()) is not None


def _leave_out(path: str | os.PathLike[str], number: int, notes: Counter[str]) -> None:
    notes["torn lines left out"] += 1
    warnings.warn(
        f"{os.fspath(path)}, line {number}: the file ends within it, so that 1 record was left out",
        stacklevel=4,
    )


class RowBuffer:
    """Rows of (round, memory) as they are read, kept in columns.

    Parameters
    ----------
    schema
        Columns and their polars types; ``line`` is added.
    """

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._schema: dict[str, Any] = {"line": pl.Int64, **schema}
        self._parts: list[pl.DataFrame] = []
        self._clear()

    def _clear(self) -> None:
        self._columns: dict[str, list[Any]] = {name: [] for name in self._schema}

    def __len__(self) -> int:
        return sum(part.height for part in self._parts) + len(self._columns["line"])

    def extend(self, line: int, n: int, columns: Mapping[str, Any]) -> None:
        """Add ``n`` rows of one line; a column is a list of ``n`` values, or the one value of all."""
        for name in self._schema:
            value = line if name == "line" else columns[name]
            self._columns[name].extend(value if isinstance(value, list) else [value] * n)
        if len(self._columns["line"]) >= _PORTION:
            self._parts.append(pl.DataFrame(self._columns, schema=self._schema))
            self._clear()

    def frame(self) -> tuple[pl.DataFrame, npt.NDArray[np.int64]]:
        """Return all rows, and the line of each."""
        whole = pl.concat([*self._parts, pl.DataFrame(self._columns, schema=self._schema)])
        return whole.drop("line"), whole["line"].to_numpy()
