from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from cmp.design.cards import CARD_PREFIX
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


def in_blocks_of_one_arm(of_block, rounds: int, *, length: int) -> HandMadeLog:
    """Return twelve blocks, each stopped while all of its rounds, which share an outcome, drew one memory."""
    log, ys = HandMadeLog(), np.random.default_rng(0).normal(size=12)
    for b in range(12):
        log.block(f"b{b:02}", length, {"m": length // 2, "other": length // 2})
        for t in range(rounds):
            name = "m" if b % 2 else "other"
            log.round(
                f"r{b:02}-{t}", f"b{b:02}", t, [name], float(ys[of_block(b)]), episode_id=f"e{of_block(b)}"
            )
    return log


@pytest.mark.parametrize("reference", ["pool", "card"])
def test_where_strata_of_one_arm_are_in_the_contrast_their_episodes_are_counted(reference):
    """Totals count every stratum; merged blocks have both arms; a card's rounds stand in other strata."""
    log = in_blocks_of_one_arm(lambda b: b, 4, length=16)
    options = {"estimator": "ht"} if reference == "pool" else {"reference": "card"}
    if reference == "card":
        for table in ("rosters", "exposures"):
            for entry in log.rows[table]:
                if entry["memory_id"] == "other":
                    entry["memory_id"] = f"{CARD_PREFIX}0"
                    entry.update({"arm": "card"} if table == "exposures" else {})
        # one table, that was stopped
        log.rows["rounds"] = [
            {**entry, "block_id": "b00", "block_row": row} for row, entry in enumerate(log.rows["rounds"])
        ]
        log.rows["blocks"] = [{**log.rows["blocks"][0], "length": 96}]
        log.rows["rosters"] = [{**entry, "planned": 48} for entry in log.rows["rosters"][:2]]
    assert clustered(log, **options)["m"]


def test_blocks_that_are_merged_share_outcomes_where_none_did_alone():
    log = in_blocks_of_one_arm(lambda b: b // 3 * 3, 1, length=2)
    frame = utilities(log, strata="merged", estimator="hajek").frame
    assert frame["ci_low"].null_count() == frame.height
    assert all("share an outcome" in reason for reason in frame["reason"])


def test_against_cards_rounds_that_no_card_is_compared_with_share_nothing():
    log, card = HandMadeLog(), f"{CARD_PREFIX}0"
    for block, drawn in (("b1", ["m", card] * 4), ("b2", ["m", "m"])):
        log.block(block, 20, {"m": 10, card: 10})
        for t, name in enumerate(drawn):
            episode = "e" if block == "b2" else None
            log.round(f"{block}-{t}", block, t, [name], float(t), episode_id=episode)
    for entry in log.rows["exposures"]:
        entry["arm"] = "card" if entry["memory_id"] == card else "random"
    assert clustered(log, reference="card") == {"m": False}
