"""A log of another system, checked and brought to one form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NoReturn

import polars as pl

from cmp.foreign.problems import ForeignLogError

__all__ = ["ForeignLog"]


class NotALogError(ForeignLogError, AttributeError):
    """Rows of another system were asked for what only a log of this package has."""


@dataclass(frozen=True, slots=True, repr=False)
class ForeignLog:
    """Rounds and who might have been drawn in them, from any source; what ``cmp.utilities`` takes beside a log.

    Attributes
    ----------
    per_round
        One row a round, sorted: ``round_id``, ``scope``, ``stratum``, perhaps ``group`` (the query) and
        ``episode_id``, and ``outcome`` (null where missing).
    per_memory
        One row per round and memory that is listed: ``round`` (row of ``per_round``), ``memory`` (row of
        ``memories``), ``assigned``, ``propensity`` (probability of assignment in that round), ``eligible``.
    memories
        Ids, sorted.
    roster
        None where ``per_memory`` lists every memory that might have been drawn. Otherwise it need list only the drawn
        ones, and the others are implied: ``scope``, ``stratum``, ``memory``, ``propensity`` of whatever might have been
        drawn in each round of the stratum.
    metric
        Name of the outcome.
    notes
        What was counted on the way, such as ``certain``: rows at propensity 0 or 1, which carry no contrast.
    """

    per_round: pl.DataFrame
    per_memory: pl.DataFrame
    memories: pl.Series
    roster: pl.DataFrame | None = None
    metric: str = "outcome"
    notes: Mapping[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return self.per_round.height

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        raise NotALogError(
            f"rows of another system have no {name!r}; that takes a log that cmp.wrap wrote. cmp.utilities and "
            "cmp.diagnose take rows"
        )

    def __repr__(self) -> str:
        return f"ForeignLog({self.summary()})"

    def summary(self) -> str:
        """Return one line: how many rounds and memories, and what was counted in reading."""
        missing = self.per_round["outcome"].null_count()
        counted = {"without an outcome": missing, **self.notes}
        said = "".join(f", {count:,} {what}" for what, count in counted.items() if count)
        return f"{len(self):,} rounds, {len(self.memories):,} memories{said}"
