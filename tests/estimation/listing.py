"""Every eligible round of every memory, listed one by one, as sums that take runs of rows must have them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np

from cmp.estimation.assembly import LogStatistics
from tests.estimation.logs import HandMadeLog

Key = tuple[str, ...]

ROUNDS = 9
"""A block's."""


@dataclass
class Listed:
    """A memory's rounds."""

    eligible: dict[Any, list[tuple[float | None, bool]]] = field(default_factory=lambda: defaultdict(list))
    """Outcome and whether it was drawn, by stratum."""
    episodes: list[str] = field(default_factory=list)
    """Of eligible rounds with an outcome."""
    ranked: int = 0
    ineligible: int = 0

    @property
    def shares(self) -> bool:
        """Whether two eligible rounds share an outcome."""
        return len(set(self.episodes)) < len(self.episodes)

    def rounds(self) -> list[tuple[float, bool]]:
        """Return every eligible round with an outcome."""
        return sorted((y, drawn) for rounds in self.eligible.values() for y, drawn in rounds if y is not None)

    def arms(self) -> list[tuple[float, ...]]:
        """Return rounds with and without an outcome, their total and squares, exposed and control, by stratum."""
        return sorted(
            tuple(
                number
                for arm in (True, False)
                for ys in [[y for y, drawn in rounds if drawn == arm]]
                for known in [[y for y in ys if y is not None]]
                for number in (len(known), len(ys) - len(known), sum(known))
            )
            for rounds in self.eligible.values()
        )


def random_log(seed: int, *, versions: bool = False, episodes: bool = True, rows: bool = True) -> HandMadeLog:
    """Return three blocks of nine rounds that draw two of six, and everything that may befall a memory.

    Outcomes are multiples of 1/8, so that every sum of them is exact in any order.
    """
    rng, log = np.random.default_rng(seed), HandMadeLog()
    for b in range(3):
        table = [rng.permutation(6)[:2].tolist() for _ in range(ROUNDS)]
        planned = {f"m{m}": sum(m in drawn for drawn in table) for m in range(6)}
        removed = {f"m{m}": int(rng.integers(0, 11)) for m in range(6) if rng.random() < 0.3}
        log.block(f"b{b}", ROUNDS, planned, **removed)
        for i, drawn in enumerate(table):
            content = f"v{(ROUNDS * b + i + int(rng.integers(0, 2))) // int(rng.integers(6, 12))}"
            log.round(
                f"r{b}{i}", f"b{b}", i if rows or rng.random() < 0.9 else None, [f"m{m}" for m in drawn],
                None if rng.random() < 0.15 else float(rng.integers(-16, 17)) / 8,
                ranked=[f"m{m}" for m in range(6) if rng.random() < 0.1], group=f"q{rng.integers(2)}",
                episode_id=f"e{rng.integers(9)}" if episodes and rng.random() < 0.8 else None,
                content=content if versions and rng.random() < 0.8 else None,
            )  # fmt: skip
    return log


def listed(log: HandMadeLog, *, by_query: bool = False, carryover: bool = False) -> dict[Key, Listed]:
    """List a log's memories by (scope and group and) id."""
    found: dict[Key, Listed] = defaultdict(Listed)
    barred = _after_exposures(log) if carryover else set()
    earlier = _earlier(log) if carryover else {}
    for entry, turn, roster in _placed(log):
        for memory in roster:
            key = ("s", *([turn["group"]] if by_query else []), memory)
            stratum = (turn["block_id"], earlier.get(turn["round_id"]))
            _enter(found[key], memory, entry, turn, roster[memory], stratum, barred)
    return found


def listed_by_version(log: HandMadeLog) -> dict[Key, Listed]:
    """List a log's memories by id and content, '' where none was ever seen."""
    found: dict[Key, Listed] = defaultdict(Listed)
    windows = _windows(log)
    for entry, turn, roster in _placed(log):
        for memory in roster:
            for content, chosen in windows[memory].items():
                mine = found["s", memory, content]
                if chosen is None or turn["round_id"] in chosen[0]:
                    _enter(mine, memory, entry, turn, roster[memory], turn["block_id"], set())
                elif turn["block_id"] in chosen[1]:
                    mine.ineligible += not _is_gone(turn, roster[memory][1])
    return found


def arms_of(found: LogStatistics, row: int) -> list[tuple[float, ...]]:
    """Return what statistics say of a row's strata with an eligible round, as :meth:`Listed.arms`."""
    cells = found.cells.select(found.cells.memory == row)
    strata = [
        tuple(
            number
            for arm in (cells.exposed, cells.control)
            for number in (arm.n[i], arm.missing[i], arm.total[i] + arm.n[i] * cells.offset[i])
        )
        for i in range(len(cells.memory))
    ]
    return sorted(numbers for numbers in strata if any(numbers))


def _placed(log: HandMadeLog) -> Iterator[tuple[dict[str, dict[str, Any]], dict[str, Any], dict[str, Any]]]:
    """Go through rounds with their exposures by memory, and the roster by memory, and its outcome."""
    outcomes = {row["round_id"]: row["value"] for row in log.rows["outcomes"]}
    exposures: dict[str, dict[str, Any]] = defaultdict(dict)
    for row in log.rows["exposures"]:
        exposures[row["round_id"]][row["memory_id"]] = row
    rosters: dict[str, dict[str, Any]] = defaultdict(dict)
    for row in log.rows["rosters"]:
        rosters[row["block_id"]][row["memory_id"]] = (row["planned"], row["removed_row"])
    for turn in log.rows["rounds"]:
        y = outcomes.get(turn["round_id"])
        yield exposures[turn["round_id"]], {**turn, "y": y}, rosters[turn["block_id"]]


def _is_gone(turn: dict[str, Any], removed: int | None) -> bool:
    return removed is not None and (turn["block_row"] is None or turn["block_row"] >= removed)


def _enter(
    mine: Listed, memory: str, entry: dict[str, Any], turn: dict[str, Any], planned: tuple[int, int | None],
    stratum: Any, barred: set[tuple[str, str]],
) -> None:  # fmt: skip
    if _is_gone(turn, planned[1]):
        return
    arm = entry[memory]["arm"] if memory in entry else None
    mine.ranked += arm == "ranked"
    if arm == "ranked" or (turn["round_id"], memory) in barred:
        mine.ineligible += 1
        return
    if not 0 < planned[0] < ROUNDS:
        return
    mine.eligible[stratum].append((turn["y"], arm == "random"))
    if turn["y"] is not None and turn["episode_id"] is not None:
        mine.episodes.append(turn["episode_id"])


def _in_order(log: HandMadeLog) -> list[dict[str, Any]]:
    return sorted(
        log.rows["rounds"],
        key=lambda r: (r["block_id"], -1 if r["block_row"] is None else r["block_row"], r["round_id"]),
    )


def _after_exposures(log: HandMadeLog) -> set[tuple[str, str]]:
    shown = {(row["round_id"], row["memory_id"]) for row in log.rows["exposures"]}
    barred, seen = set(), set()
    for turn in _in_order(log):
        if (episode := turn["episode_id"]) is None:
            continue
        for memory in (f"m{m}" for m in range(6)):
            if (episode, memory) in seen:
                barred.add((turn["round_id"], memory))
            if (turn["round_id"], memory) in shown:
                seen.add((episode, memory))
    return barred


def _earlier(log: HandMadeLog) -> dict[str, int]:
    counts: dict[Any, int] = defaultdict(int)
    found = {}
    for turn in _in_order(log):
        at = (turn["episode_id"], turn["block_id"])
        found[turn["round_id"]] = counts[at] if at[0] is not None else 0
        counts[at] += 1
    return found


def _windows(log: HandMadeLog) -> dict[str, dict[str, tuple[set[str], set[str]] | None]]:
    """Return, by memory and content, the ids of rounds in its windows and of blocks these touch; None for all."""
    turns = {row["round_id"]: row for row in log.rows["rounds"]}
    found: dict[str, dict[str, Any]] = {}
    for memory in (f"m{m}" for m in range(6)):
        own = [e for e in log.rows["exposures"] if e["memory_id"] == memory and e["content_hash"] is not None]
        contents = sorted({e["content_hash"] for e in own})
        if len(contents) < 2:
            found[memory] = dict.fromkeys(contents or [""])
            continue
        sightings = [(turns[e["round_id"]], e) for e in own]
        if any(turn["block_row"] is None for turn, _ in sightings):
            found[memory] = {c: (set(), {"b0"}) for c in contents}
            continue
        sightings.sort(key=lambda s: (s[0]["block_id"], s[0]["block_row"]))
        runs = [list(run) for _, run in groupby(sightings, key=lambda s: s[1]["content_hash"])]
        mine: dict[str, tuple[set[str], set[str]]] = {c: (set(), set()) for c in contents}
        for nth, run in enumerate(runs):
            rounds, blocks = mine[run[0][1]["content_hash"]]
            for turn in turns.values():
                if _within(turn, run, is_first=nth == 0, is_last=nth == len(runs) - 1):
                    rounds.add(turn["round_id"])
                low, high = (run[i][0]["block_id"] for i in (0, -1))
                if (nth == 0 or turn["block_id"] >= low) and (
                    nth == len(runs) - 1 or turn["block_id"] <= high
                ):
                    blocks.add(turn["block_id"])
        found[memory] = mine
    return found


def _within(turn: dict[str, Any], run: list[Any], *, is_first: bool, is_last: bool) -> bool:
    """Return whether a round is of a run of sightings, whose edges are not where they were drawn."""
    low, high = (None if is_first else run[0]), (None if is_last else run[-1])
    for edge, sign in ((low, 1), (high, -1)):
        if edge is None:
            continue
        there, exposure = edge
        if turn["block_id"] == there["block_id"]:
            if turn["block_row"] is None:
                return False
            ahead = sign * (turn["block_row"] - there["block_row"])
            if ahead < 0 or (ahead == 0 and exposure["arm"] != "ranked"):
                return False
        elif (turn["block_id"] < there["block_id"]) == (sign == 1):
            return False
    return True
