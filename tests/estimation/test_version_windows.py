"""Utilities by version over every assignment of a small design: the draws that date a rewrite are in no contrast."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import combinations, groupby, permutations, product

import numpy as np
import polars as pl
import pytest

from cmp.estimation import utilities
from tests.estimation.logs import HandMadeLog

#: Means over some thousand assignments of differences of doubles of order 100.
EXACT = 1e-10

#: Outcomes that rise by more from round to round.
DRIFT = [float(t * t) for t in range(20)]


@dataclass
class World:
    """Blocks of rounds that each draw ``m`` so often, what ``m`` then holds, and what is certain whatever is drawn."""

    blocks: Sequence[tuple[str, int]]
    """A content a round, and how many rounds draw ``m``."""
    effects: dict[str, float] = field(default_factory=dict)
    ranked: Sequence[int] = ()
    without_outcome: Sequence[int] = ()
    without_hash: Sequence[int] = ()
    removed: dict[str, int] = field(default_factory=dict)
    """Row of the last block."""

    def __post_init__(self) -> None:
        self.contents = "".join(contents for contents, _ in self.blocks)
        self.starts = np.cumsum([0, *(len(contents) for contents, _ in self.blocks)]).tolist()

    def assignments(self) -> list[tuple[int, ...]]:
        """Return every set of rounds that may draw ``m``."""
        choices = [
            combinations(range(start, start + len(contents)), n)
            for start, (contents, n) in zip(self.starts[:-1], self.blocks, strict=True)
        ]
        return [tuple(t for part in parts for t in part) for parts in product(*choices)]

    def shows_every_version(self, drawn: tuple[int, ...]) -> bool:
        """Whether each content was seen each time it was in effect."""
        gone = self.starts[-2] + self.removed["m"] if self.removed else len(self.contents)
        seen = {t for t in (*drawn, *self.ranked) if t not in self.without_hash and t < gone}
        runs = groupby(range(gone), key=lambda t: self.contents[t])
        return all(seen.intersection(rounds) for _, rounds in runs)

    def log(self, assignments: Sequence[tuple[int, ...]], outcomes: Sequence[float] = DRIFT) -> HandMadeLog:
        """Return a log with a scope an assignment."""
        log = HandMadeLog()
        for nth, drawn in enumerate(assignments):
            scope = f"s{nth:05}"
            for b, (contents, n) in enumerate(self.blocks):
                last = self.removed if b == len(self.blocks) - 1 else {}
                rest = len(contents) - n
                log.block(f"{scope}-{b}", len(contents), {"m": n, "other": rest}, scope, **last)
                for row, content in enumerate(contents):
                    t = self.starts[b] + row
                    shown = t in drawn or t in self.ranked
                    gone = last and row >= last["m"]
                    hashed = shown and t not in self.without_hash and not gone
                    log.round(
                        f"{scope}-{t}", f"{scope}-{b}", row, ["m" if t in drawn else "other"],
                        None if t in self.without_outcome else outcomes[t] + shown * self.effects.get(content, 0.0),
                        scope=scope, content=content if hashed else None, ranked=["m"] if t in self.ranked else [],
                    )  # fmt: skip
        return log


WORLDS = {
    "one block": World([("aaaabbbb", 3)]),
    "a constant effect": World([("aaaabbbb", 3)], {"a": 1.5, "b": 1.5}),
    "an effect a version": World([("aaaabbbbb", 4)], {"a": 1.5, "b": -40.0}),
    "rewritten in the second block": World([("aaaaa", 2), ("aabbbb", 2)], {"a": 1.0, "b": 3.0}),
    "rewritten between blocks": World([("aaaaa", 2), ("bbbbb", 2)], {"a": 1.0, "b": 3.0}),
    "rewritten in a block's last row": World([("aaaab", 2), ("bbbbb", 2)], {"a": 1.0, "b": 3.0}),
    "a block with a rewrite in the middle of three": World([("aaaa", 2), ("aaabbb", 2), ("bbbb", 2)], {"b": 2.0}),
    "three versions": World([("aaabbbbccc", 7)], {"a": 1.0, "b": 2.0, "c": 3.0}),
    "back to an earlier content": World([("aaabbbbaaa", 7)], {"a": 1.0, "b": 2.0}),
    "back in a later block": World([("aaabbb", 3), ("bbbaaa", 3)], {"a": 1.0, "b": 2.0}),
    "a version for more than a block": World([("aaabb", 2), ("bbb", 1), ("bbaaa", 2)], {"a": 1.0, "b": 2.0}),
    "ranked in some rounds": World([("aaaaabbbb", 4)], {"a": 1.0, "b": 2.0}, ranked=[1, 4, 7]),
    "outcomes missing in some rounds": World([("aaaaabbbb", 4)], {"a": 1.0}, without_outcome=[0, 3, 6]),
    "no hash noted in some rounds": World([("aaaaabbbb", 4)], {"a": 1.0, "b": 2.0}, without_hash=[2, 4, 5]),
    "removed in the end": World([("aaaabbbbbb", 4)], {"a": 1.0, "b": 2.0}, removed={"m": 8}),
}  # fmt: skip


def by_version(log: HandMadeLog, **options) -> pl.DataFrame:
    options = {"interval": "pooled", **options}
    frame = utilities(log, by="version", **options).frame
    return frame.filter((pl.col("memory_id") == "m") & pl.col("content_hash").is_not_null())


@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS)
@pytest.mark.parametrize("weights", ["precision", "rounds"])
def test_each_versions_mean_utility_is_its_effect_whatever_drifts(world, weights):
    seen = [drawn for drawn in world.assignments() if world.shows_every_version(drawn)]
    assert len(seen) > 5
    found = by_version(world.log(seen), weights=weights).drop_nulls("utility")
    assert found["content_hash"].n_unique() == len(set(world.contents))
    for content, rows in found.group_by("content_hash"):
        assert len(rows) > 3
        assert rows["utility"].std() > 0.1
        assert rows["utility"].mean() == pytest.approx(world.effects.get(content[0], 0.0), abs=EXACT)


def test_exact_p_values_by_version_reject_no_more_often_than_they_say():
    world = World([("aaaaaabbbbbb", 6)])
    outcomes = [float(t % 6 > 2) for t in range(12)]
    seen = [drawn for drawn in world.assignments() if world.shows_every_version(drawn)]
    found = by_version(world.log(seen, outcomes), interval="auto").drop_nulls("utility")
    for _, rows in found.group_by("content_hash"):
        p = rows["p_value"].fill_null(1.0).to_numpy()
        assert p.min() < 0.2
        for level in np.unique(p):
            assert (p <= level + EXACT).mean() <= level + EXACT


def test_randomization_tests_by_version_reject_no_more_often_than_they_say():
    world = World([("aaaaabbbbb", 5)])
    seen = [drawn for drawn in world.assignments() if world.shows_every_version(drawn)]
    found = by_version(world.log(seen), interval="randomization").drop_nulls("utility")
    for _, rows in found.group_by("content_hash"):
        p = rows["p_value"].fill_null(1.0).to_numpy()
        for level in np.unique(p):
            assert (p <= level + EXACT).mean() <= level + EXACT


def with_withheld(
    kept: Sequence[bool], contents: str, effects: dict[str, float], scope: str, log: HandMadeLog
) -> None:
    """Append rounds whose ranker shows ``m``, which chance keeps or withholds."""
    log.block(scope, len(contents), {"m": 0, "other": len(contents)}, scope)
    for t, content in enumerate(contents):
        y = DRIFT[t] + effects[content] * kept[t]
        log.round(f"{scope}-{t}", scope, t, ["other"], y, scope=scope)
        log.add(
            "exposures", round_id=f"{scope}-{t}", memory_id="m", arm="ranked" if kept[t] else "withheld",
            assigned=False, propensity=0.5, delivered=kept[t], content_hash=content if kept[t] else None,
        )  # fmt: skip


def test_kept_rounds_that_date_a_rewrite_are_left_out_as_draws_are():
    contents, effects, log = "aaaabbbb", {"a": 1.0, "b": 4.0}, HandMadeLog()
    for nth, kept in enumerate(product([False, True], repeat=8)):
        if any(kept[:4]) and any(kept[4:]):
            with_withheld(kept, contents, effects, f"s{nth:03}", log)
    found = by_version(log).drop_nulls("utility")
    for content, rows in found.group_by("content_hash"):
        assert len(rows) > 50
        assert rows["utility"].mean() == pytest.approx(effects[content[0]], abs=EXACT)


def test_a_rewrite_that_nobody_saw_leaves_its_rounds_with_what_was_seen():
    """What the theorem asks for: the rounds of a version that was not seen are controls of its neighbour's."""
    world = World([("aaaabbbb", 3)])
    unseen = [drawn for drawn in world.assignments() if min(drawn) > 3]
    found = by_version(world.log(unseen))
    assert found["content_hash"].unique().to_list() == ["b"]
    assert found["n_control"].unique().to_list() == [5]


def history(contents: str, drawn: Callable[[int], bool]) -> HandMadeLog:
    log = HandMadeLog()
    n = sum(drawn(t) for t in range(len(contents)))
    log.block("b", len(contents), {"m": n, "other": len(contents) - n})
    for t, content in enumerate(contents):
        log.round(
            f"r{t:02}",
            "b",
            t,
            ["m" if drawn(t) else "other"],
            DRIFT[t],
            content=content if drawn(t) else None,
        )
    return log


def test_a_version_seen_once_says_that_this_dates_it_and_not_that_it_was_never_exposed():
    got = by_version(history("aaaabbcccc", lambda t: t in (0, 2, 5, 7, 9))).rows_by_key(
        "content_hash", named=True
    )
    names = ("state", "n_exposed", "n_control", "utility", "reason")
    assert [tuple(got[c][0][name] for name in names) for c in "abc"] == [
        ("UNDEREXPOSED", 1, 1, -1.0, "n1=1"),
        ("UNDEREXPOSED", 0, 0, None, "n1=0: each exposure that showed it (1) dates a rewrite, which takes it out"),
        ("UNDEREXPOSED", 1, 1, 17.0, "n1=1"),
    ]  # fmt: skip


def test_a_first_version_seen_once_has_controls_and_no_exposure():
    got = by_version(history("aaaabbbb", lambda t: t in (3, 5, 7))).row(0, named=True)
    assert (got["state"], got["n_exposed"], got["n_control"]) == ("UNDEREXPOSED", 0, 3)
    assert got["reason"].startswith("n1=0: each exposure")


def test_a_rewrite_where_the_ranker_shows_the_memory_costs_no_exposure():
    log = history("aaaaabbbbb", lambda t: t in (1, 2, 7, 8))
    for t in (3, 4, 5):
        row = dict.fromkeys(("round_id", "memory_id", "arm"), f"r{t:02}") | {
            "memory_id": "m",
            "arm": "ranked",
        }
        log.add("exposures", **row, assigned=False, delivered=True, content_hash="a" if t < 5 else "b")
    got = by_version(log)
    assert got.select("n_exposed", "n_control").rows() == [(2, 1), (2, 2)]


@pytest.mark.parametrize(
    "options", [{"estimator": "ht"}, {"estimator": "hajek", "strata": "merged"}], ids=["ht", "merged"]
)
def test_what_weighs_by_planned_propensities_is_refused(options):
    with pytest.raises(ValueError, match="by='version' does not go with"):
        by_version(history("aabb", lambda t: t % 2 == 0), **options)


def test_what_was_drawn_though_nothing_planned_it_is_refused_at_an_edge_too():
    log = history("aabb", lambda t: t in (1, 2))
    log.rows["rosters"][0]["planned"] = 0
    with pytest.raises(ValueError, match="without a chance"):
        by_version(log)


class Timed(HandMadeLog):
    """A log that says when each round was asked: its name ends with the second."""

    def rounds(self):
        second = pl.col("round_id").str.extract(r"(\d+)$").cast(pl.Int64)
        return super().rounds().with_columns(asked_at=pl.from_epoch(second))


def test_versions_in_blocks_that_run_side_by_side_are_unbiased_given_that_each_was_seen():
    """Two blocks of one scope take turns; the memory is rewritten half-way, outcomes drift, nothing has an effect."""
    log, length, rewritten = Timed(), 6, 6
    for nth, draws in enumerate(product(combinations(range(length), 2), repeat=2)):
        seconds = [2 * row + block for block, rows in enumerate(draws) for row in rows]
        if not min(seconds) < rewritten <= max(seconds):
            continue  # a version that nobody saw leaves no trace
        scope = f"s{nth:04}"
        for block in range(2):
            log.block(f"{scope}-{block}", length, {"m": 2, "o": 4}, scope)
        for second in range(2 * length):
            row, block = divmod(second, 2)
            is_drawn = row in draws[block]
            content = ("old" if second < rewritten else "new") if is_drawn else None
            log.round(
                f"{scope}-{second:02}", f"{scope}-{block}", row, ["m" if is_drawn else "o"], float(second**2),
                scope=scope, group=f"g{block}", content=content,
            )  # fmt: skip
    frame = utilities(log, by="version", interval="pooled").frame.filter(
        (pl.col("memory_id") == "m") & pl.col("content_hash").is_not_null()
    )
    means = frame.group_by("content_hash").agg(pl.col("utility").mean(), n=pl.col("utility").count())
    assert means["n"].min() > 20
    assert means["utility"].to_list() == pytest.approx([0.0, 0.0], abs=EXACT)


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_blocks_without_times_may_stand_in_any_order(order):
    log = HandMadeLog()
    for nth, contents in enumerate((["old"] * 3, ["old", "new", "new"], ["new"] * 3)):
        log.block(f"b{nth}", 6, {"m": 3, "o": 3})
        for row in range(6):
            content = contents[row // 2] if row % 2 else None
            log.round(
                f"r{nth}{row}", f"b{nth}", row, ["m" if row % 2 else "o"], float(row + nth), content=content
            )
    want = utilities(log, by="version").frame
    log.rows["blocks"] = [log.rows["blocks"][i] for i in order]
    assert utilities(log, by="version").frame.equals(want)


def test_versions_whose_place_is_unknown_are_said_to_be_lost_and_counted():
    log = HandMadeLog()
    log.block("b", 12, {"m": 6, "o": 6})
    for row in range(12):
        content = ("old" if row < 6 else "new") if row % 2 else None
        log.round(f"r{row}", "b", None, ["m" if row % 2 else "o"], float(row), content=content)
    rows = utilities(log, by="version").frame.filter(memory_id="m").iter_rows(named=True)
    for row in rows:
        assert (row["state"], row["n_exposed"], row["n_left_out"]) == ("UNDEREXPOSED", 0, 3)
        assert row["reason"].startswith("n1=0: when its memory was rewritten is unknown")
