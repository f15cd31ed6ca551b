"""One thing wrong with a log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["NAMED_AT_MOST", "Finding"]

#: Rows of one kind named one by one; the rest are counted in one more finding.
NAMED_AT_MOST: Final = 20


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing wrong with a log: where it stands, what it is, and what to do."""

    table: str
    row: str
    problem: str
    mend: str

    def __str__(self) -> str:
        return f"{self.table}, {self.row}: {self.problem}. {self.mend}"
