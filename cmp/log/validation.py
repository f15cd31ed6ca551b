"""What is wrong with a log: every finding names the table, the row and the mend."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from cmp.errors import CmpError, LogUnavailableError
from cmp.log.findings import NAMED_AT_MOST, Finding
from cmp.log.reading import Log
from cmp.log.schema import ARMS, TABLES

__all__ = ["Finding", "validate_log"]

#: Slack for propensities, which are quotients of small integers.
TOLERANCE: Final = 1e-9

#: What reading a damaged log raises, apart from ``LogUnavailableError``, which no restoring mends.
UNREADABLE: Final = (CmpError, pl.exceptions.PolarsError, OSError)


@dataclass(frozen=True, slots=True)
class _Frames:
    rounds: pl.DataFrame
    exposures: pl.DataFrame
    outcomes: pl.DataFrame
    blocks: pl.DataFrame
    rosters: pl.DataFrame

    @property
    def assigned(self) -> pl.DataFrame:
        """Drawn memories with their round and, where the block's roster has them, the exposures planned."""
        randomized = self.rounds.filter("randomized").select("round_id", "block_id", "block_row")
        planned = self.rosters.join(self.blocks.select("block_id", "length"), on="block_id")
        return (
            self.exposures.filter("assigned")
            .join(randomized, on="round_id")
            .join(
                planned.select("block_id", "memory_id", "planned", "length"),
                on=["block_id", "memory_id"],
                how="left",
            )
        )


def validate_log(log: Log) -> list[Finding]:
    """Check a log against its contract, as of one moment where somebody writes to it.

    Returns
    -------
    list of Finding
        Empty where nothing is wrong. A table that cannot be read is a finding, and the checks end there. Records that
        were torn, or set aside because they contradict others, are findings of a log that was gathered from records.

    Raises
    ------
    LogUnavailableError
        Where the log cannot be reached or read now (locked, its server away): that says nothing of what it holds.

    Examples
    --------
    >>> import tempfile, cmp
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     log = cmp.open_log(folder + "/x.db", create=True)
    ...     findings = cmp.validate_log(log)
    ...     log.close()
    >>> findings
    []
    """
    frames, unreadable = _read(log)
    return unreadable or [*log.losses.findings(), *findings_in(*frames)]


def _read(log: Log) -> tuple[list[pl.DataFrame], list[Finding]]:
    """Return a log's tables as of one moment, and those that cannot be read."""
    frames: list[pl.DataFrame] = []
    unreadable: list[Finding] = []

    def note(table: str, error: Exception) -> None:
        mend = "Restore it from a copy or an export"
        unreadable.append(Finding(table, "all", f"it cannot be read ({error})", mend))

    snapshot = log.snapshot  # what has none is no log, and that is no finding
    try:
        with snapshot() as now:
            for table in TABLES:
                try:
                    frames.append(now.scan(table).collect())
                except LogUnavailableError:
                    raise
                except UNREADABLE as error:
                    note(table.name, error)
    except LogUnavailableError:
        raise
    except UNREADABLE as error:
        note("meta", error)
    return frames, unreadable


def findings_in(*frames: pl.DataFrame) -> list[Finding]:
    """Check a log's five tables, read and in the order of its schema, against its contract."""
    found = _Frames(*frames)
    return [finding for check in _CHECKS for finding in check(found)]


def _named(table: str, rows: pl.DataFrame, problem: str, mend: str) -> Iterator[Finding]:
    """Name the first rows by all their columns, and count the others."""
    for row in rows.head(NAMED_AT_MOST).iter_rows(named=True):
        yield Finding(table, ", ".join(f"{key} {value!r}" for key, value in row.items()), problem, mend)
    if rows.height > NAMED_AT_MOST:
        yield Finding(table, f"{rows.height - NAMED_AT_MOST} more rows", problem, mend)


def _repeated_keys(found: _Frames) -> Iterator[Finding]:
    for table in TABLES:
        frame: pl.DataFrame = getattr(found, table.name)
        repeated = frame.select(pl.struct(table.key).alias("key")).filter(pl.col("key").is_duplicated())
        yield from _named(
            table.name,
            repeated.unique(maintain_order=True).unnest("key"),
            "its key stands more than once",
            "Remove the copies: joins would multiply rows",
        )


def _dangling_rows(found: _Frames) -> Iterator[Finding]:
    round_ids = found.rounds.select("round_id")
    orphans = found.outcomes.join(round_ids, on="round_id", how="anti").select("round_id", "metric")
    yield from _named(
        "outcomes",
        orphans,
        "it is an orphan: its round is not in the log",
        "It is kept, and left out of estimates",
    )
    stray = found.exposures.join(round_ids, on="round_id", how="anti").select("round_id", "memory_id")
    yield from _named("exposures", stray, "its round is not in the log", "Remove it, or restore the round")
    blockless = (
        found.rounds.filter("randomized").join(found.blocks, on="block_id", how="anti").select("round_id")
    )
    yield from _named(
        "rounds", blockless, "its block is not in the log", "Restore the block: its roster is the design"
    )
    crossed = (
        found.rounds.join(found.blocks.select("block_id", block_scope="scope"), on="block_id")
        .filter(pl.col("scope") != pl.col("block_scope"))
        .select("round_id", "scope", "block_scope")
    )
    yield from _named(
        "rounds", crossed, "its block belongs to another scope", "Do not analyse this log: find out why"
    )


def _values_out_of_range(found: _Frames) -> Iterator[Finding]:
    propensity = pl.col("propensity")
    bad = found.exposures.filter(
        propensity.is_null() | propensity.is_nan() | ~propensity.is_between(0, 1 + TOLERANCE)
    ).select("round_id", "memory_id", "propensity")
    yield from _named(
        "exposures", bad, "its propensity is no probability", "Correct it from the design; never clip it"
    )
    arms = found.exposures.filter(~pl.col("arm").is_in(ARMS)).select("round_id", "memory_id", "arm")
    yield from _named("exposures", arms, "its arm is unknown", f"Use one of {', '.join(ARMS)}")
    values = found.outcomes.filter(~pl.col("value").is_finite().fill_null(False)).select(
        "round_id", "metric", "value"
    )
    yield from _named(
        "outcomes", values, "its value is not finite", "Record a number, or leave the outcome out"
    )


def _rounds_against_design(found: _Frames) -> Iterator[Finding]:
    randomized = found.rounds.filter("randomized")
    drawn = found.assigned.group_by("round_id").agg(assigned=pl.len())
    uneven = (
        randomized.join(drawn, on="round_id", how="left")
        .with_columns(pl.col("assigned").fill_null(0))
        .filter(pl.col("assigned") != pl.col("k"))
        .select("round_id", "k", "assigned")
    )
    yield from _named(
        "rounds", uneven, "it does not hold k assigned memories", "Remove the whole round, never a part"
    )
    foreign = found.assigned.filter(pl.col("planned").is_null()).select("round_id", "memory_id")
    yield from _named(
        "exposures", foreign, "it was drawn from outside its block's roster", "Remove the whole round"
    )
    wrong = found.assigned.filter(
        (pl.col("arm") == "random")
        & ((pl.col("propensity") - pl.col("planned") / pl.col("length")).abs() > TOLERANCE)
    ).select("round_id", "memory_id", "propensity", "planned", "length")
    yield from _named(
        "exposures", wrong, "its propensity is not planned / length", "Correct it from the block"
    )
    rows = randomized.join(found.blocks.select("block_id", "length", "design"), on="block_id")
    end = pl.when(pl.col("design") != "uniform").then(pl.col("length"))
    beyond = rows.filter((pl.col("block_row") < 0) | (pl.col("block_row") >= end).fill_null(False)).select(
        "round_id", "block_row"
    )
    yield from _named("rounds", beyond, "its row is not in its block's table", "Remove the whole round")
    twice = rows.filter(pl.struct("block_id", "block_row").is_duplicated()).select(
        "round_id", "block_id", "block_row"
    )
    yield from _named("rounds", twice, "its row of the table was used twice", "Keep the round asked first")


def _blocks_against_tables(found: _Frames) -> Iterator[Finding]:
    rosters = {key[0]: frame for key, frame in found.rosters.partition_by("block_id", as_dict=True).items()}
    bad = []
    columns = ("block_id", "design", "k", "length", "table")
    for block_id, *block in found.blocks.select(columns).iter_rows():
        roster = rosters.get(block_id)
        if roster is None or not _matches(
            *block, planned=roster["planned"].to_numpy(), position=roster["position"].to_numpy()
        ):
            bad.append(block_id)
    yield from _named(
        "blocks",
        pl.DataFrame({"block_id": bad}, schema={"block_id": pl.String}),
        "its table does not hold the exposures planned in its roster",
        "Restore the block from a copy; its propensities cannot be trusted",
    )


def _matches(
    design: str, k: int, length: int, table: bytes, *, planned: np.ndarray, position: np.ndarray
) -> bool:
    if sorted(position.tolist()) != list(range(planned.size)):
        return False
    if design == "uniform":  # no table: each round draws k of the roster by its key
        return not table and length == planned.size and bool((planned == k).all())
    if len(table) != 4 * k * length:
        return False
    dealt = np.frombuffer(table, dtype="<u4")
    counts = np.bincount(dealt, minlength=planned.size)
    return counts.size == planned.size and bool((counts[position] == planned).all())


_CHECKS: Final[tuple[Callable[[_Frames], Iterator[Finding]], ...]] = (
    _repeated_keys,
    _dangling_rows,
    _values_out_of_range,
    _rounds_against_design,
    _blocks_against_tables,
)
