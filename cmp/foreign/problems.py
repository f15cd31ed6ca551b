"""What is wrong with another system's log, gathered so that one run names all of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from cmp.errors import CmpError

__all__ = ["ForeignLogError", "Places", "Problems", "finite_number"]

#: Problems told in one message; reading stops at the last of them.
TOLD_AT_MOST: Final = 20

#: Rows named in one problem; the others are counted.
NAMED_AT_MOST: Final = 5


class ForeignLogError(CmpError, ValueError):
    """Another system's log is not what it should be; the message lists what, where, and what to do."""


class Places:
    """Where rows come from: their number in a frame, or a file and a line.

    Parameters
    ----------
    source
        A file or the name of a frame.
    numbers
        Shape (rows,), the line (or index) of each row; None where a row's number is its place.
    unit
        ``"row"``, ``"line"`` or ``"index"``.
    starts
        First row and name of each file, in order, where there are several.
    """

    def __init__(
        self,
        source: str,
        numbers: npt.NDArray[np.int64] | None = None,
        unit: str = "row",
        starts: Sequence[tuple[int, str]] = (),
    ) -> None:
        self.source, self.numbers, self.unit, self.starts = source, numbers, unit, starts

    def of(self, rows: pl.Series | npt.NDArray[np.int64]) -> str:
        """Name the first few rows and count the others.

        Examples
        --------
        >>> Places("x.jsonl", np.array([1, 2, 9]), "line").of(np.array([0, 2]))
        'lines 1, 9'
        """
        index = np.sort(np.asarray(rows, dtype=np.int64))
        if len(self.starts) > 1:
            ends = [*(start for start, _ in self.starts[1:]), 1 << 62]
            parts = [
                (name, index[(index >= start) & (index < end)])
                for (start, name), end in zip(self.starts, ends, strict=True)
            ]
            return "; ".join(f"{name} {self._named(part)}" for name, part in parts if part.size)
        return self._named(index)

    def _named(self, index: npt.NDArray[np.int64]) -> str:
        numbers = np.unique(index if self.numbers is None else self.numbers[index])
        named = ", ".join(map(str, numbers[:NAMED_AT_MOST].tolist()))
        more = f" and {len(numbers) - NAMED_AT_MOST} more" if len(numbers) > NAMED_AT_MOST else ""
        plural = "indices" if self.unit == "index" else f"{self.unit}s"
        return f"{self.unit if len(numbers) == 1 else plural} {named}{more}"


def finite_number(value: Any, what: str) -> float:
    """Return a number as a float.

    Raises
    ------
    ForeignLogError
        For anything else: text, null, a list, an infinite number or one beyond a float's range.

    Examples
    --------
    >>> finite_number(1, "the cost")
    1.0
    """
    if isinstance(value, int | float):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if math.isfinite(number):
            return number
    raise ForeignLogError(f"{what} is {str(value)[:80]!r}; give a finite number, or null where missing")


class Problems:
    """A list of problems that is raised once, at its limit or at the end.

    One kind of problem alone raises as that kind (a :class:`cmp.PositivityError`, say), several as
    :class:`ForeignLogError`; all are ``ValueError``.
    """

    def __init__(self, source: str, limit: int = TOLD_AT_MOST) -> None:
        self.source, self.limit = source, limit
        self.found: list[tuple[type[CmpError], str]] = []

    def add(self, text: str, kind: type[CmpError] = ForeignLogError) -> None:
        """Note a problem, and raise where the limit is reached."""
        self.found.append((kind, text))
        if len(self.found) >= self.limit:
            self.raise_any(stopped=True)

    def raise_any(self, *, stopped: bool = False) -> None:
        """Raise what was found, if anything.

        Raises
        ------
        CmpError
            Of the kind that all problems are of, else :class:`ForeignLogError`.
        """
        if not self.found:
            return
        kinds = {kind for kind, _ in self.found}
        kind = kinds.pop() if len(kinds) == 1 else ForeignLogError
        lines = "\n".join(f"  {text}" for _, text in self.found)
        counted = f"{len(self.found)} problem{'s' * (len(self.found) > 1)}"
        tail = ", and reading stopped there" if stopped else ""
        raise kind(f"{self.source}: {counted}{tail}; nothing was analysed\n{lines}")
