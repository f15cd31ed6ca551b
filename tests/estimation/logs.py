"""Small logs by hand: the five frames an analysis reads, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl

_SCHEMAS: dict[str, dict[str, Any]] = {
    "rounds": {
        "round_id": pl.String, "scope": pl.String, "block_id": pl.String, "block_row": pl.Int64,
        "episode_id": pl.String, "group": pl.String, "query_hash": pl.String, "randomized": pl.Boolean,
    },
    "exposures": {
        "round_id": pl.String, "memory_id": pl.String, "arm": pl.String, "assigned": pl.Boolean,
        "propensity": pl.Float64, "delivered": pl.Boolean, "content_hash": pl.String,
    },
    "outcomes": {"round_id": pl.String, "metric": pl.String, "value": pl.Float64, "revision": pl.Int64},
    "blocks": {"block_id": pl.String, "scope": pl.String, "length": pl.Int64},
    "rosters": {
        "block_id": pl.String, "memory_id": pl.String, "planned": pl.Int64, "removed_row": pl.Int64,
    },
}  # fmt: skip


@dataclass
class HandMadeLog:
    """Rows of the five tables."""

    rows: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: {name: [] for name in _SCHEMAS})

    def add(self, table: str, **values: Any) -> None:
        """Append a row; columns not named are null."""
        self.rows[table].append({name: values.get(name) for name in _SCHEMAS[table]})

    def block(
        self, block: str, length: int, planned: dict[str, int], scope: str = "s", **removed: int
    ) -> None:
        """Append a block and its roster."""
        self.add("blocks", block_id=block, scope=scope, length=length)
        for memory, count in planned.items():
            self.add(
                "rosters", block_id=block, memory_id=memory, planned=count, removed_row=removed.get(memory)
            )

    def round(
        self, name: str, block: str | None, row: int | None, drawn: Iterable[str], y: float | None = None, *,
        ranked: Sequence[str] = (), scope: str = "s", content: str | None = None, delivered: bool = True, **more: Any,
    ) -> None:  # fmt: skip
        """Append a round, its exposures and its outcome; a memory drawn and ranked has its one ranked row."""
        more = {"query_hash": "q", "randomized": block is not None, **more}
        self.add("rounds", round_id=name, scope=scope, block_id=block, block_row=row, **more)
        exposed = {"round_id": name, "delivered": delivered, "content_hash": content}
        drawn = list(drawn)
        for memory in ranked:
            self.add("exposures", memory_id=memory, arm="ranked", assigned=memory in drawn, **exposed)
        for memory in drawn:
            if memory not in ranked:
                self.add("exposures", memory_id=memory, arm="random", assigned=True, **exposed)
        if y is not None:
            self.add("outcomes", round_id=name, metric="reward", value=y, revision=0)

    def table(self, name: str) -> pl.DataFrame:
        """Return a table as a frame."""
        return pl.DataFrame(self.rows[name], schema=_SCHEMAS[name], orient="row")

    def rounds(self) -> pl.LazyFrame:
        return self.table("rounds").lazy()

    def exposures(self) -> pl.LazyFrame:
        return self.table("exposures").lazy()

    def outcomes(self) -> pl.LazyFrame:
        return self.table("outcomes").lazy()

    def blocks(self) -> pl.LazyFrame:
        return self.table("blocks").lazy()

    def rosters(self) -> pl.LazyFrame:
        return self.table("rosters").lazy()


def two_arms(exposed: Sequence[float | None], control: Sequence[float | None], **more: Any) -> HandMadeLog:
    """Return a log of one block and memories ``m`` and ``other``, of which each round draws one."""
    log = HandMadeLog()
    outcomes = [*exposed, *control]
    log.block("b", len(outcomes), {"m": len(exposed), "other": len(control)})
    for row, y in enumerate(outcomes):
        log.round(f"r{row}", "b", row, ["m" if row < len(exposed) else "other"], y, **more)
    return log


@dataclass
class SimulatedLog:
    """A log and the same rounds as plain arrays."""

    log: HandMadeLog
    assigned: np.ndarray
    outcomes: np.ndarray
    strata: np.ndarray
    eligible: np.ndarray
    propensity: np.ndarray


def simulated(seed: int, *, n: int = 6, length: int = 9, blocks: int = 3, k: int = 2) -> SimulatedLog:
    """Return rounds with ranked memories, missing outcomes, and a memory deleted in the second block."""
    rng = np.random.default_rng(seed)
    log = HandMadeLog()
    total = length * blocks
    assigned, eligible = np.zeros((total, n), bool), np.ones((total, n), bool)
    propensity = np.zeros((total, n))
    outcomes = np.where(rng.random(total) < 0.1, np.nan, np.round(rng.normal(size=total), 1))
    for block in range(blocks):
        table = np.array([rng.permutation(n)[:k] for _ in range(length)])
        counts = np.bincount(table.ravel(), minlength=n)
        removed = {"m2": 5} if block == 1 else {}
        propensity[block * length : (block + 1) * length] = counts / length
        log.block(f"b{block}", length, {f"m{m}": int(counts[m]) for m in range(n)}, **removed)
        for row in range(length):
            t, ranked = block * length + row, int(rng.integers(n))
            assigned[t, table[row]] = True
            eligible[t, ranked] = False
            y = None if np.isnan(outcomes[t]) else float(outcomes[t])
            log.round(f"r{t}", f"b{block}", row, [f"m{m}" for m in table[row]], y, ranked=[f"m{ranked}"])
        if removed:
            eligible[block * length + 5 : (block + 1) * length, 2] = False
    return SimulatedLog(log, assigned, outcomes, np.repeat(np.arange(blocks), length), eligible, propensity)
