"""What a log holds against what its writers were told: the figures every fault is reported by."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

import cmp

__all__ = ["SHOULD_BE_ZERO", "Account", "account", "read_notes"]


@dataclass(frozen=True, slots=True)
class Account:
    """The figures of one fault. All counts; those of the second group should be 0.

    Attributes
    ----------
    requests, acknowledged, unlogged
        Asked; answered with a round that is said to be in the log; answered with the base ranking because it could
        not be logged.
    rounds, blocks, orphan_rosters
        In the log: rounds, blocks, and rosters of blocks that nobody opened.
    lost, half_rounds, failed_requests, slots_without_row, foreign_ids, other_findings
        Acknowledged rounds that the log does not have; rounds without all their rows, or rows without their round;
        requests that raised; random memories served without a row; ids of another scope than the round's; anything
        else that ``validate_log`` finds.
    imbalance
        Largest difference, over blocks, between two memories' planned exposures, less the one that is allowed; a
        block whose used rows have a gap or a repeat, or do not hold what its table says, counts 1 too.
    slowest_ms
        The slowest answer.
    """

    requests: int
    acknowledged: int
    unlogged: int
    rounds: int
    blocks: int
    orphan_rosters: int
    lost: int
    half_rounds: int
    failed_requests: int
    slots_without_row: int
    foreign_ids: int
    imbalance: int
    other_findings: int
    slowest_ms: float

    @property
    def is_clean(self) -> bool:
        """Whether everything that should be 0 is 0."""
        return not any(getattr(self, name) for name in SHOULD_BE_ZERO)


SHOULD_BE_ZERO = (
    "lost",
    "half_rounds",
    "failed_requests",
    "slots_without_row",
    "foreign_ids",
    "imbalance",
    "other_findings",
)

#: Answers that say themselves that they are not in the log.
UNLOGGED = ("log_failed", "log_timeout")

HALVES = (
    "it does not hold k assigned memories",
    "its round is not in the log",
    "its block is not in the log",
)


def read_notes(paths: Iterable[Path]) -> list[dict[str, Any]]:
    """Return what writers noted; a last line that was torn by a kill is no acknowledgement."""
    lines = [line for path in paths for line in path.read_text("utf-8").splitlines(keepends=True)]
    return [json.loads(line) for line in lines if line.endswith("\n")]


def account(log: cmp.Log, notes: list[dict[str, Any]]) -> Account:
    """Hold a log against what its writers were told."""
    rounds, exposures = log.rounds().collect(), log.exposures().collect()
    blocks, rosters = log.blocks().collect(), log.rosters().collect()
    answers = [note for note in notes if "error" not in note]
    told = [note for note in answers if note["fallback"] not in UNLOGGED]
    known = set(rounds["round_id"])
    assigned = set(exposures.filter("assigned").select("round_id", "memory_id").iter_rows())
    shown = {(note["round_id"], memory_id) for note in answers for memory_id in note["random"]}
    problems = [finding.problem for finding in cmp.validate_log(log)]
    halves = sum(problem.startswith(HALVES) for problem in problems)
    return Account(
        requests=len(notes),
        acknowledged=len(told),
        unlogged=len(answers) - len(told),
        rounds=rounds.height,
        blocks=blocks.height,
        orphan_rosters=len(set(rosters["block_id"]) - set(blocks["block_id"])),
        lost=len({note["round_id"] for note in told} - known),
        half_rounds=halves,
        failed_requests=len(notes) - len(answers),
        slots_without_row=len(shown - assigned),
        foreign_ids=_foreign(rounds, exposures),
        imbalance=_imbalance(rounds, exposures, blocks, rosters),
        other_findings=len(problems) - halves,
        slowest_ms=max((note["ms"] for note in notes), default=0.0),
    )


def _foreign(rounds: pl.DataFrame, exposures: pl.DataFrame) -> int:
    """Count exposures of memories that do not carry their round's scope in their id."""
    scoped = exposures.join(rounds.select("round_id", "scope"), on="round_id")
    own = pl.col("memory_id").str.starts_with(pl.concat_str("scope", pl.lit("/")))
    return scoped.filter(~own).height


def _imbalance(
    rounds: pl.DataFrame, exposures: pl.DataFrame, blocks: pl.DataFrame, rosters: pl.DataFrame
) -> int:
    drawn = exposures.filter("assigned").join(rounds.select("round_id", "block_id"), on="round_id")
    counts = {key[0]: frame for key, frame in drawn.group_by("block_id")}
    plans = {key[0]: frame for key, frame in rosters.group_by("block_id")}
    rows = {key[0]: frame["block_row"].to_list() for key, frame in rounds.group_by("block_id")}
    worst = 0
    for block_id, k, length, table in blocks.select("block_id", "k", "length", "table").iter_rows():
        plan = plans[block_id].sort("position")
        used = sorted(rows.get(block_id, []))
        dealt = np.frombuffer(table, "<u4").reshape(length, k)[: len(used)]
        expected = np.bincount(dealt.ravel(), minlength=plan.height)
        got = dict(counts[block_id]["memory_id"].value_counts().iter_rows()) if used else {}
        kept = used == list(range(len(used)))
        kept &= [got.get(memory_id, 0) for memory_id in plan["memory_id"]] == expected.tolist()
        spread = int(np.ptp(plan["planned"].to_numpy()))
        worst = max(worst, spread - 1, 0 if kept else 1)
    return worst
