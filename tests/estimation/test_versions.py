from __future__ import annotations

import polars as pl
import pytest

from cmp.estimation import utilities
from tests.estimation.logs import HandMadeLog


def history(*rounds: tuple[str | None, float], per_block: int | None = None) -> HandMadeLog:
    """Return rounds that each draw ``m`` with a content (or None: another memory) and have an outcome."""
    log, size = HandMadeLog(), per_block or len(rounds)
    for start in range(0, len(rounds), size):
        part, block = rounds[start : start + size], f"b{start // size}"
        drawn = sum(content is not None for content, _ in part)
        log.block(block, len(part), {"m": drawn, "other": len(part) - drawn})
        for i, (content, y) in enumerate(part):
            log.round(f"r{start + i}", block, i, ["m" if content else "other"], y, content=content)
    return log


def versions(log: HandMadeLog, *names: str) -> list[tuple]:
    frame = utilities(log, by="version").frame
    assert frame.columns[:3] == ["scope", "memory_id", "content_hash"]
    return frame.filter(pl.col("memory_id") == "m").select("content_hash", *names).rows()


V1 = [(None, 1.0), ("v1", 1.0), (None, 0.0), ("v1", 1.0), (None, 1.0), ("v1", 1.0), (None, 0.0), ("v1", 0.0)]
V2 = [("v2", 0.0), (None, 0.0), ("v2", 0.0), (None, 1.0), ("v2", 1.0), (None, 1.0), ("v2", 0.0), (None, 0.0)]


@pytest.mark.parametrize("per_block", [8, 16])
def test_each_version_has_its_own_utility_and_the_pooled_row_keeps_its_flag(per_block):
    log = history(*V1, *V2, per_block=per_block)
    got = versions(log, "utility", "n_exposed", "n_control", "content_changed")
    assert got == [("v1", 0.5, 3, 4, False), ("v2", pytest.approx(-1 / 6), 3, 4, False)]
    pooled = utilities(log).frame.filter(pl.col("memory_id") == "m").row(0, named=True)
    assert (pooled["utility"], pooled["content_changed"]) == (0.0, True)


def test_controls_between_two_versions_are_of_neither():
    log = history(("v1", 1.0), (None, 0.0), ("v1", 1.0), (None, 5.0), (None, 5.0), ("v2", 2.0), (None, 1.0))
    assert versions(log, "n_exposed", "n_control", "mean_control") == [("v1", 1, 1, 0.0), ("v2", 0, 1, None)]


def test_a_version_that_comes_back_counts_from_its_sightings_again():
    log = history(("v1", 1.0), (None, 0.0), ("v1", 1.0), ("v2", 2.0), ("v1", 1.0), (None, 4.0))
    assert versions(log, "n_exposed", "n_control", "mean_control") == [("v1", 1, 2, 2.0), ("v2", 0, 0, None)]


def test_a_version_without_controls_is_not_called_ranked():
    log = history((None, 0.0), ("v1", 1.0), ("v2", 2.0), (None, 4.0), ("v2", 1.0))
    assert versions(log, "state") == [("v1", "UNDEREXPOSED"), ("v2", "UNDEREXPOSED")]


def test_a_version_seen_only_by_rank_is_always_ranked():
    log = history(("v1", 1.0), (None, 0.0), ("v1", 1.0), (None, 0.0))
    log.block("b9", 2, {"m": 1, "other": 1})
    for i in range(2):
        log.round(f"s{i}", "b9", i, ["other"] if i else ["m"], 1.0, ranked=["m"], content="v2")
    assert versions(log, "state", "n_exposed")[1] == ("v2", "ALWAYS_RANKED", 0)


def test_memories_of_one_version_or_none_are_as_by_memory():
    log = history(*V1)
    for entry in log.rows["exposures"]:
        if entry["memory_id"] == "other":
            entry["content_hash"] = None
    by_version = utilities(log, by="version").frame
    assert by_version["content_hash"].to_list() == ["v1", None]
    assert by_version["n_left_out"].to_list() == [0, 0]
    assert by_version.drop("content_hash", "n_left_out").equals(utilities(log).frame)


def test_an_exposure_without_a_hash_is_of_the_version_in_effect():
    log = history(*V1, *V2)
    log.rows["exposures"][3]["content_hash"] = None
    log.rows["exposures"][3]["delivered"] = False
    assert versions(log, "utility", "n_exposed") == [("v1", 0.5, 3), ("v2", pytest.approx(-1 / 6), 3)]


def test_equal_ids_and_hashes_of_two_scopes_are_apart():
    log = history(*V1, *V2)
    other = history(*V2[:4])
    for rows in other.rows.values():
        for entry in rows:
            for name in ("scope", "block_id", "round_id"):
                if name in entry:
                    entry[name] = f"t{entry[name]}"
    merged = HandMadeLog({t: log.rows[t] + other.rows[t] for t in log.rows})
    frame = utilities(merged, by="version").frame.filter(pl.col("memory_id") == "m")
    assert frame.select("scope", "content_hash", "n_exposed").rows() == [
        ("s", "v1", 3),
        ("s", "v2", 3),
        ("ts", "v2", 2),
    ]
