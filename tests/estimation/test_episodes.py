from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from cmp.estimation import utilities
from tests.estimation.logs import HandMadeLog, two_arms


def clustered(log: HandMadeLog, **options) -> dict[str, bool]:
    frame = utilities(log, **options).frame
    return {
        memory: interval.startswith("clustered")
        for memory, interval in frame.select("memory_id", "interval").iter_rows()
    }


def shares(rounds: list[tuple[int, bool, str]]) -> bool:
    """Say whether two rounds of one episode are of blocks that have an exposed and a control round."""
    arms = {(block, drawn) for block, drawn, _ in rounds}
    used = [name for block, _, name in rounds if {(block, True), (block, False)} <= arms]
    return len(set(used)) < len(used)


def in_episodes(log: HandMadeLog, *episodes: str | None) -> HandMadeLog:
    for entry, episode in zip(log.rows["rounds"], episodes, strict=False):
        entry["episode_id"] = episode
    return log


def test_only_memories_with_two_rounds_of_one_episode_have_a_clustered_interval():
    log = in_episodes(two_arms([1.0, 0.0, 1.0], [0.0, 0.0, 1.0]), "e", "e")
    log.block("b2", 6, {"x": 3, "y": 3})
    for i in range(6):
        log.round(f"s{i}", "b2", i, ["x" if i < 3 else "y"], float(i % 2), episode_id=f"f{i}")
    assert clustered(log) == {"m": True, "other": True, "x": False, "y": False}


def test_an_episode_across_two_blocks_counts_for_those_in_both():
    log = HandMadeLog()
    for block, roster in (("b1", ["m", "x"]), ("b2", ["m", "y"])):
        log.block(block, 6, dict.fromkeys(roster, 3))
        for i in range(6):
            log.round(
                f"{block}{i}",
                block,
                i,
                [roster[i % 2]],
                float(i // 2 % 2),
                episode_id="e" if i == 0 else None,
            )
    assert clustered(log) == {"m": True, "x": False, "y": False}


@pytest.mark.parametrize("hinder", ["ranked", "removed", "missing"])
def test_rounds_that_are_in_no_contrast_share_nothing(hinder):
    log = HandMadeLog()
    removed = {"m": 7} if hinder == "removed" else {}
    log.block("b", 8, {"m": 3, "x": 5}, **removed)
    for i, memory in enumerate(["m", "x"] * 3 + ["x", "x"]):
        y = None if hinder == "missing" and i == 7 else float(i // 2 % 2)
        ranked = ["m"] if hinder == "ranked" and i == 7 else []
        log.round(f"r{i}", "b", i, [memory], y, ranked=ranked, episode_id="e" if i >= 6 else None)
    assert clustered(log) == {"m": False, "x": hinder != "missing"}


def test_by_query_an_episode_is_shared_within_its_query():
    log = two_arms([1.0, 0.0, 1.0, 0.0], [0.0, 0.0, 1.0, 1.0])
    for (i, entry), group in zip(enumerate(log.rows["rounds"]), ["q1", "q2"] * 4, strict=True):
        entry["group"], entry["episode_id"] = group, f"e{i // 2}"
    assert all(clustered(log).values())
    assert not any(clustered(log, by="query").values())


def test_it_is_what_listing_every_eligible_round_of_blocks_with_both_arms_says():
    rng = np.random.default_rng(3)
    for _ in range(30):
        log, eligible = HandMadeLog(), {f"m{i}": [] for i in range(4)}
        for block in range(3):
            roster = sorted(rng.choice(4, 3, replace=False).tolist())
            log.block(f"b{block}", 4, {f"m{m}": 1 + (m == roster[0]) for m in roster})
            for row, drawn in enumerate([roster[0], *roster]):
                episode, ranked = f"e{rng.integers(9)}", int(rng.integers(8))
                shown = [f"m{ranked}"] if ranked in roster else []
                name = f"r{block}-{row}"
                log.round(name, f"b{block}", row, [f"m{drawn}"], float(row), ranked=shown, episode_id=episode)
                for m in roster:
                    if m != ranked:
                        eligible[f"m{m}"].append((block, m == drawn, episode))
        frame = utilities(log).frame.filter(pl.col("utility").is_not_null())
        want = {m: shares(rounds) for m, rounds in eligible.items()}
        found = clustered(log)
        assert {memory: found[memory] for memory in frame["memory_id"]} == {
            m: want[m] for m in frame["memory_id"]
        }
