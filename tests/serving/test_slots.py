"""Who stands in which slot."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from cmp.log.records import Drawn
from cmp.serving.slots import Layout, lay_out, stand_in

ids = st.lists(st.sampled_from("abcdefghij"), unique=True, max_size=10)


def shown(rows):
    return [row.memory_id for row in sorted((r for r in rows if r.delivered), key=lambda r: r.slot)]


@given(ranked=ids, drawn=ids.filter(lambda d: len(d) <= 4), extra=st.integers(0, 4))
def test_a_context_holds_the_drawn_and_the_first_of_the_others_ranked(ranked, drawn, extra):
    slots = max(1, len(drawn) + extra)
    rows = lay_out(ranked, [Drawn(i, 0.1) for i in drawn], Layout(slots))
    others = [i for i in ranked if i not in drawn][: slots - len(drawn)]
    assert set(shown(rows)) == set(drawn) | set(others)
    assert [row.slot for row in rows] == list(range(len(rows)))
    assert len(rows) <= slots
    assert {row.memory_id for row in rows if row.assigned} == set(drawn)
    assert all(row.propensity == 1.0 for row in rows if row.arm == "ranked")


@given(ranked=ids, n=st.integers(2, 10), k=st.integers(1, 3), extra=st.integers(1, 4))
def test_whether_a_memory_is_in_the_ranked_part_does_not_depend_on_its_own_draw(ranked, n, k, extra):
    """It depends on how many of those ranked before it were drawn, and on nothing else."""
    slots, roster = k + extra, "abcdefghij"[:n]
    for draw in combinations(roster, min(k, n - 1)):
        rows = lay_out(ranked, [Drawn(i, 0.1) for i in draw], Layout(slots))
        in_part = {row.memory_id for row in rows if row.arm == "ranked"}
        for rank, memory_id in enumerate(ranked):
            undrawn_before = sum(i not in draw for i in ranked[:rank])
            assert (memory_id in in_part) == (undrawn_before < slots - len(draw))


def test_a_drawn_memory_that_is_ranked_stays_and_its_slot_goes_to_the_next():
    rows = lay_out(list("abcdef"), [Drawn("b", 0.2), Drawn("z", 0.2)], Layout(4))
    assert [(r.memory_id, r.arm, r.assigned, r.slot) for r in rows] == [
        ("a", "ranked", False, 0),
        ("b", "ranked", True, 1),
        ("c", "ranked", False, 2),
        ("z", "random", True, 3),
    ]


def test_short_rankings_are_not_topped_up_with_random_memories():
    rows = lay_out(["a", "b"], [Drawn("y", 0.5), Drawn("z", 0.5)], Layout(5))
    assert shown(rows) == ["a", "b", "y", "z"]
    assert shown(lay_out([], [Drawn("z", 0.5)], Layout(5))) == ["z"]
    assert lay_out([], [], Layout(5)) == ()


def test_a_deleted_memory_gives_its_slot_to_the_next_ranked_and_keeps_its_row():
    rows = lay_out(list("abcdef"), [Drawn("y", 0.5), Drawn("z", 0.5, deleted=True)], Layout(4))
    assert shown(rows) == ["a", "b", "y", "c"]
    lost = next(row for row in rows if row.memory_id == "z")
    assert (lost.delivered, lost.reason, lost.slot, lost.arm, lost.assigned) == (
        False,
        "deleted",
        None,
        "random",
        True,
    )


def test_with_nobody_to_stand_in_the_context_is_shorter():
    rows = stand_in(lay_out(["a"], [Drawn("y", 0.5)], Layout(2)), ["y"], "fetch_failed", ["a"])
    assert shown(rows) == ["a"]
