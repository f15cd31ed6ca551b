"""What the checks of a log look at, and the verdict each gives."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from types import SimpleNamespace
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from cmp.estimation.one_moment import at_one_moment
from cmp.estimation.settled import LogFrames
from cmp.log.losses import Losses

__all__ = ["ALL", "Evidence", "MissingColumnError", "Verdict", "least_p", "named"]

#: The scope of a verdict that is about no scope in particular.
ALL: Final = "*"

#: Rows named in a verdict; the rest are counted.
NAMED_AT_MOST: Final = 3


class MissingColumnError(Exception):
    """A frame lacks what a check needs; logs from elsewhere may."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one check found.

    Attributes
    ----------
    figure, expected
        What was seen, and what the design says it should be; None where there is no such number.
    p_value
        Of the check's own null hypothesis, valid whatever the number of memories it looked at; None where the check
        is no test.
    n
        Rounds, rows or memories looked at.
    failed
        For a check that is no test. None where it is not testable, or ``p_value`` decides.
    """

    check: str
    detail: str
    mend: str = ""
    figure: float | None = None
    expected: float | None = None
    p_value: float | None = None
    n: int = 0
    failed: bool | None = None
    scope: str = ALL

    @classmethod
    def untestable(cls, check: str, detail: str, mend: str = "", n: int = 0) -> Verdict:
        """Return the verdict of a check that this log cannot be put to."""
        return cls(check, detail, mend, n=n)


@dataclass(frozen=True)
class Evidence:
    """The five tables of a log, in memory."""

    log: LogFrames
    metric: str
    rounds: pl.DataFrame
    exposures: pl.DataFrame
    outcomes: pl.DataFrame
    blocks: pl.DataFrame
    rosters: pl.DataFrame

    @classmethod
    def of(cls, log: LogFrames, metric: str) -> Evidence:
        """Read a log as of one moment."""
        with at_one_moment(log) as now:
            tables = (now.rounds, now.exposures, now.outcomes, now.blocks, now.rosters)
            return cls(log, metric, *(table().collect() for table in tables))

    @property
    def losses(self) -> Losses:
        """What was lost or set aside before there were tables."""
        found = getattr(self.log, "losses", None)
        return found if isinstance(found, Losses) else Losses()

    @cached_property
    def tables(self) -> LogFrames:
        """The same five tables as a log has them, for what reads logs."""
        names = ("rounds", "exposures", "outcomes", "blocks", "rosters")
        frames = {name: getattr(self, name).lazy for name in names}
        return SimpleNamespace(**frames, has_unique_rows=getattr(self.log, "has_unique_rows", False))

    def need(self, table: str, *columns: str) -> pl.DataFrame:
        """Return some columns of a table.

        Raises
        ------
        MissingColumnError
            Where it lacks one.
        """
        frame: pl.DataFrame = getattr(self, table)
        lacking = [name for name in columns if name not in frame.columns]
        if lacking:
            raise MissingColumnError(f"the log's {table} have no {' and no '.join(lacking)}")
        return frame.select(columns)

    @cached_property
    def plan(self) -> pl.DataFrame:
        """``block_id, memory_id, planned, length``: what each block plans for each memory of its roster."""
        planned = self.need("rosters", "block_id", "memory_id", "planned")
        return planned.join(self.need("blocks", "block_id", "length"), on="block_id")

    @cached_property
    def drawn(self) -> pl.DataFrame:
        """Draws of randomized rounds: the exposure rows that were assigned, with their block's plan where it has one.

        ``round_id, scope, block_id, block_row, memory_id, arm, propensity, planned, length``.
        """
        rounds = self.randomized
        return (
            self.need("exposures", "round_id", "memory_id", "arm", "assigned", "propensity")
            .filter("assigned")
            .drop("assigned")
            .join(rounds, on="round_id", maintain_order="left")
            .join(self.plan, on=["block_id", "memory_id"], how="left", maintain_order="left")
        )

    @cached_property
    def randomized(self) -> pl.DataFrame:
        """``round_id, scope, block_id, block_row`` of randomized rounds."""
        columns = ("round_id", "scope", "block_id", "block_row")
        return self.need("rounds", *columns, "randomized").filter("randomized").select(columns)

    @cached_property
    def dealt(self) -> pl.DataFrame:
        """What the stored tables deal: ``block_id, block_row, memory_id``, for designs that have a table."""
        blocks = self.need("blocks", "block_id", "design", "k", "length", "table")
        parts = []
        for block_id, design, k, length, table in blocks.iter_rows():
            if design != "uniform" and len(table) == 4 * k * length and k > 0:
                positions = np.frombuffer(table, dtype="<u4").astype(np.int64)
                rows = {"block_row": np.repeat(np.arange(length), k), "position": positions}
                parts.append(pl.DataFrame(rows).with_columns(block_id=pl.lit(block_id)))
        if not parts:
            schema = {"block_id": pl.String, "block_row": pl.Int64, "memory_id": pl.String}
            return pl.DataFrame(schema=schema)
        places = self.need("rosters", "block_id", "memory_id", "position")
        return (
            pl.concat(parts)
            .join(places, on=["block_id", "position"])
            .select("block_id", "block_row", "memory_id")
        )

    @cached_property
    def last(self) -> pl.DataFrame:
        """``round_id, y``: the last revision of each round's outcome of the metric."""
        return (
            self.need("outcomes", "round_id", "metric", "value", "revision")
            .filter(pl.col("metric") == self.metric)
            .sort("round_id", "revision")
            .group_by("round_id", maintain_order=True)
            .agg(y=pl.col("value").last())
        )


def named(frame: pl.DataFrame) -> str:
    """Name the first rows of a frame by all their values, and count the others."""
    some = "; ".join(", ".join(map(repr, row)) for row in frame.head(NAMED_AT_MOST).iter_rows())
    more = frame.height - NAMED_AT_MOST
    return some + (f"; and {more} more" if more > 0 else "")


def least_p(p_values: Iterable[float] | npt.NDArray[np.float64]) -> tuple[float | None, int]:
    """Return a p-value of "all of these nulls hold" (Bonferroni's) and the place of the least; None without any.

    References
    ----------
    Dunn, O. J. (1961). Multiple comparisons among means. JASA 56, 52-64.

    Examples
    --------
    >>> least_p([0.5, 0.01, float("nan")])
    (0.02, 1)
    """
    values = np.asarray(p_values, dtype=np.float64)
    known = ~np.isnan(values)
    if not known.any():
        return None, -1
    place = int(np.nanargmin(values))
    return min(1.0, float(values[place]) * int(known.sum())), place
