"""What a caller of ``retrieve`` sees, and what the log then holds."""

from __future__ import annotations

import json
from collections import Counter

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cmp
from tests.serving.stores import Document, Store, documents, store, wrapped


def exposures(memory, arm="random"):
    return memory.log.exposures().filter(pl.col("arm") == arm).collect()


def test_a_round_is_logged_before_its_context_is_returned(location):
    memory = wrapped(location, store(20, ["m1", "m2", "m3", "m4"]))
    context = memory.retrieve("q", scope="s", episode_id="talk-1")
    row = memory.log.rounds().collect().row(0, named=True)
    assert row["round_id"] == context.round_id
    assert (row["scope"], row["n_roster"], row["k"], row["randomized"], row["attempts"]) == (
        "s",
        20,
        1,
        True,
        1,
    )
    assert row["episode_id"] == "talk-1"
    assert row["asked_at"].tzinfo is not None
    logged = memory.log.exposures().collect()
    assert logged["memory_id"].to_list() == [item.id for item in context.items]
    assert [document.id for document in context] == [item.id for item in context.items]


def test_the_log_holds_no_text_of_queries_or_memories(tmp_path):
    memory = wrapped(tmp_path, store(20, ["m1"]))
    memory.retrieve("a very private question", scope="s")
    memory.close()
    stored = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"private" not in stored
    assert b"text of" not in stored


def test_items_carry_the_logged_propensity_of_planned_over_length(location):
    memory = wrapped(location, store(7), slots=2, random_slots=2, max_block_rounds=5)
    items = [item for _ in range(10) for item in memory.retrieve("q", scope="s").items]
    design = memory.log.rosters().join(memory.log.blocks(), on="block_id").collect()
    assert {item.propensity for item in items} <= set((design["planned"] / design["length"]).to_list())
    assert cmp.validate_log(memory.log) == []


def test_repeats_of_a_ranking_take_one_slot_and_one_row(location):
    """Ranked a, b, a, c, d with B = 4, k = 1: served a, b, c; the pool stays what it is."""
    data = {i: Document(i, "the same text") for i in "abcdefghij"}
    order = ["a", "b", "a", "c", "d"]
    memory = wrapped(
        location,
        lambda query: [data[i] for i in order],
        list_ids=lambda scope: data,
        get=lambda ids, scope: [data[i] for i in ids],
    )
    for _ in range(20):
        context = memory.retrieve("q", scope="s")
        served = [item.id for item in context.items]
        assert len(served) == len(set(served)) == 4
        assert [i for i in served if i in "abc"] == ["a", "b", "c"]
    assert cmp.validate_log(memory.log) == []


@pytest.mark.parametrize(
    ("hits", "pool", "length", "random"),
    [
        (2, 6, (2, 4), (0, 2)),
        (0, 4, (2, 2), (2, 2)),
        (3, 3, (3, 3), (0, 0)),
        (0, 0, (0, 0), (0, 0)),
        (9, 12, (5, 5), (0, 2)),
    ],
)
def test_short_empty_and_long_rankings_are_served_as_they_are(location, hits, pool, length, random):
    """B = 5, k = 2. A drawn memory that is ranked stays ranked, so a short ranking can give a shorter context."""
    held = store(max(pool, hits), [f"m{i}" for i in range(hits)])
    held.scopes["s"] = documents(pool) if pool else {}
    memory = wrapped(location, held, slots=5, random_slots=2)
    for _ in range(12):
        context = memory.retrieve("q", scope="s")
        arms = Counter(item.arm for item in context.items)
        assert length[0] <= len(context) <= length[1]
        assert random[0] <= arms["random"] <= random[1]
    rounds = memory.log.rounds().collect()
    assert rounds.height == 12
    if pool == 0:
        assert set(rounds["fallback_reason"]) == {"roster_too_small"}


@pytest.mark.parametrize(("pool", "drawn"), [(1, 0), (2, 1), (5, 4)])
def test_the_draw_leaves_at_least_one_memory_out(location, pool, drawn):
    memory = wrapped(location, store(pool), slots=5, random_slots=5)
    context = memory.retrieve("q", scope="s")
    assert len(context) == drawn
    assert context.randomized is (drawn > 0)


def test_no_random_slots_returns_the_wrapped_ranking_itself(tmp_path):
    base = [Document("a", "x"), Document("b", "y"), Document("a", "x"), Document(None, "no id")]
    memory = wrapped(tmp_path, lambda query: base, random_slots=0, slots=2)
    context = memory.retrieve("q", scope="s")
    assert list(context) == base
    assert all(given is served for given, served in zip(base, context, strict=True))
    assert not context.randomized
    assert memory.log.rounds().collect()["fallback_reason"].to_list() == ["no_random_slots"]


def test_objects_are_the_callers_own(location):
    held = store(8, ["m0", "m1", "m2"])
    for document in wrapped(location, held).retrieve("q", scope="s"):
        assert document is held.scopes["s"][document.id]


def test_a_repeated_round_id_gives_the_same_assignment_and_counts_the_attempt(location):
    held = store(30, ["m1", "m2", "m3"])
    memory = wrapped(location, held)
    first = memory.retrieve("q", scope="s", round_id="r")
    held.ranking = ["m9", "m8", "m7"]
    for _ in range(2):
        again = memory.retrieve("q", scope="s", round_id="r")
        assert again.items == pytest.approx(again.items)
        assert [(i.id, i.slot, i.arm) for i in again.items] == [(i.id, i.slot, i.arm) for i in first.items]
        assert list(again) == list(first)
    assert memory.log.rounds().collect()["attempts"].to_list() == [3]
    assert memory.log.exposures().collect().height == len(first.items)
    assert memory.stats()["attempts_repeated"] == 2


def test_logged_propensities_weigh_a_constant_to_itself_whatever_is_retried(tmp_path):
    """Over a whole block the Horvitz-Thompson mean of a constant 1 is 1, also where one memory's rounds are retried."""
    memory = wrapped(tmp_path, store(4), slots=1)
    for number in range(8):
        context = memory.retrieve("q", scope="s", round_id=f"r{number}")
        for _ in range(2 if context.items[0].id == "m3" else 0):
            memory.retrieve("q", scope="s", round_id=f"r{number}")
    drawn = exposures(memory)
    means = drawn.group_by("memory_id").agg((1 / pl.col("propensity")).sum() / 8)
    assert dict(means.iter_rows()) == {f"m{i}": 1.0 for i in range(4)}
    attempts = memory.log.rounds().collect()["attempts"].value_counts().sort("attempts")
    assert attempts.rows() == [(1, 6), (3, 2)]


def test_a_round_id_of_another_scope_is_refused(location):
    memory = wrapped(location, Store({"a": documents(5, "a"), "b": documents(5, "b")}))
    memory.retrieve("q", scope="a", round_id="r")
    with pytest.raises(cmp.ScopeError, match="another scope"):
        memory.retrieve("q", scope="b", round_id="r")


def test_foreign_scope_ids_are_never_drawn(location):
    memory = wrapped(
        location, Store({"A": documents(4, "a"), "B": documents(96, "b")}), slots=3, random_slots=2
    )
    for number in range(300):
        scope = "AB"[number % 2]
        assert all(item.id.startswith(scope.lower()) for item in memory.retrieve("q", scope=scope).items)
    rosters = memory.log.rosters().join(memory.log.blocks(), on="block_id").collect()
    assert rosters.filter(pl.col("scope").str.to_lowercase() != pl.col("memory_id").str.head(1)).height == 0


def test_an_item_nobody_asked_for_is_never_served(location):
    data, other = documents(6), Document("b1", "another tenant's")
    memory = wrapped(
        location, lambda query: [], list_ids=lambda scope: data, get=lambda ids, scope: [data[ids[0]], other]
    )
    context = memory.retrieve("q", scope="s")
    assert list(context) == []
    assert memory.stats()["fallback.foreign"] == 1
    with pytest.raises(cmp.ScopeError, match="nobody asked for"):
        memory.with_policy(on_error="raise").retrieve("q", scope="s")


@pytest.mark.parametrize(
    "scope", [None, "", {}, {"user": ""}, {"user": None}, 7, "*", '{"user": "1"}', "\ud800"]
)
def test_an_empty_or_ambiguous_scope_is_an_error(location, scope):
    with pytest.raises(cmp.ScopeError):
        wrapped(location, store()).retrieve("q", scope=scope)


def test_scopes_may_be_mappings_and_are_handed_on_as_they_came(location):
    seen = []
    data = documents(6)

    def list_ids(scope):
        seen.append(scope)
        return data

    memory = wrapped(
        location, lambda query: [], list_ids=list_ids, get=lambda ids, scope: [data[i] for i in ids]
    )
    memory.retrieve("q", scope={"user": "1", "app": "mail"})
    assert seen == [{"user": "1", "app": "mail"}]
    assert json.loads(memory.log.rounds().collect()["scope"][0]) == {"app": "mail", "user": "1"}


def test_a_listing_that_takes_no_scope_serves_a_single_tenant_only(location):
    data = documents(6)
    memory = wrapped(
        location, lambda query: [], list_ids=lambda: data, get=lambda ids: [data[i] for i in ids]
    )
    assert memory.retrieve("q", scope=cmp.EVERYTHING).randomized
    with pytest.raises(cmp.ScopeError, match="every tenant"):
        memory.retrieve("q", scope="user-1")


def test_a_fixed_scope_holds_for_all_calls(location):
    memory = wrapped(location, store(), scope="s")
    assert memory.retrieve("q").randomized
    with pytest.raises(cmp.ScopeError, match="fixed to scope"):
        memory.retrieve("q", scope="t")


def test_groups_have_blocks_of_their_own(location):
    memory = wrapped(location, store(6), balance_within="group", rounds_per_block=12)
    for _ in range(12):
        for group in ("q1", "q2"):
            memory.retrieve(group, scope="s", group=group)
    counts = (
        exposures(memory)
        .join(memory.log.rounds().collect(), on="round_id")
        .group_by("group", "memory_id")
        .len()
    )
    assert counts.height == 12
    assert set(counts["len"]) == {2}
    memory.retrieve("unnamed", scope="s")
    assert memory.log.blocks().collect().height == 3
    with pytest.raises(cmp.ScopeError, match="group"):
        memory.retrieve([0.1, 0.2], scope="s")


def test_new_memories_join_at_the_next_block(location):
    held = store(4)
    memory = wrapped(location, held, slots=1)
    for _ in range(3):
        memory.retrieve("q", scope="s")
    held.scopes["s"]["new"] = Document("new", "text")
    drawn = [memory.retrieve("q", scope="s").items[0].id for _ in range(20)]
    assert "new" not in drawn[:5]
    assert "new" in drawn[5:]
    assert len(held.listed) == memory.log.blocks().collect().height


def test_a_memory_found_deleted_is_not_served_and_stays_assigned(location):
    held = store(5, ["m0", "m1"])
    memory = wrapped(location, held, slots=2, exposures_per_block=4)
    memory.retrieve("q", scope="s")
    del held.scopes["s"]["m4"]
    for _ in range(19):
        context = memory.retrieve("q", scope="s")
        assert "m4" not in [document.id for document in context]
        assert len(context) == 2
    lost = exposures(memory).filter(pl.col("memory_id") == "m4", ~pl.col("delivered"))
    assert set(lost["reason"]) == {"deleted"}
    assert lost.height >= 3
    assert lost["assigned"].all()
    assert memory.log.rosters().filter(pl.col("memory_id") == "m4").collect()["removed_row"][0] is None
    assert cmp.validate_log(memory.log) == []


def test_forgotten_ids_are_not_served_from_that_moment(location):
    held = store(5, ["m0", "m1"])
    memory = wrapped(location, held, slots=2, exposures_per_block=8)
    for _ in range(3):
        memory.retrieve("q", scope="s")
    memory.forget_ids(["m4"], scope="s")
    for _ in range(20):
        assert "m4" not in [document.id for document in memory.retrieve("q", scope="s")][1:]
    assert memory.log.rosters().filter(pl.col("memory_id") == "m4").collect()["removed_row"].to_list() == [3]


def test_trimmed_memories_are_marked_and_stay_assigned(location):
    memory = wrapped(location, store(20))
    context = memory.retrieve("q", scope="s")
    memory.mark_undelivered(context.round_id, [context.items[0].id])
    row = memory.log.exposures().collect().row(0, named=True)
    assert (row["assigned"], row["delivered"], row["reason"]) == (True, False, "trimmed")
    with pytest.raises(cmp.InvalidIdError):
        memory.mark_undelivered(context.round_id, ["nobody"])
    with pytest.raises(cmp.UnknownRoundError, match="no round 'r9'"):
        memory.mark_undelivered("r9", ["m1"])


def test_changed_contents_show_in_the_exposures(location):
    held = store(3)
    memory = wrapped(location, held, slots=1)
    for version in ("one", "two"):
        for _ in range(6):
            memory.retrieve("q", scope="s")
        held.scopes["s"] = {i: Document(i, version) for i in held.scopes["s"]}
    memory.flush()
    hashes = exposures(memory).group_by("memory_id").agg(pl.col("content_hash").n_unique())
    assert set(hashes["content_hash"]) == {2}
    assert exposures(memory)["content_hash"].null_count() == 0


AWKWARD = [
    "caf\u00e9",
    "cafe\u0301",
    "m1",
    " m1",
    "M1",
    '"m1"',
    "\u00e9" * 40,
    "x" * 5000,
    "a\nb",
    "a,b",
    "a\tb",
    "a\0b",
    "nan",
    "None",
    "null",
    "true",
    "\U0001f469\u200d\U0001f680",
    "'; DROP TABLE rounds; --",
    "=1+1",
]


def test_awkward_ids_go_through_log_and_export_byte_for_byte(tmp_path):
    data = {i: Document(i, "t") for i in AWKWARD}
    memory = wrapped(
        tmp_path,
        lambda query: [],
        slots=1,
        list_ids=lambda scope: data,
        get=lambda ids, scope: [data[i] for i in ids],
    )
    served = {memory.retrieve("q", scope="s").items[0].id for _ in range(2 * len(AWKWARD))}
    assert served == set(AWKWARD)
    memory.log.export(tmp_path / "out")
    for log in (memory.log, cmp.open_log(tmp_path / "out")):
        assert set(log.exposures().collect()["memory_id"]) == set(AWKWARD)


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
@settings(max_examples=60, deadline=None)
def test_any_valid_text_is_an_id(text):
    from cmp.protocols import canonical_id

    assert canonical_id(text) == text


@pytest.mark.parametrize("bad", [None, True, 1.5, float("nan"), "", "\ud800", b"m1", ("a",)])
@pytest.mark.parametrize("place", ["ranking", "roster"])
def test_an_unusable_id_is_named_before_anything_is_drawn(tmp_path, bad, place):
    good = documents(4)
    ranking = [Document(bad, "likes tea")] if place == "ranking" else []
    roster = [*good, bad] if place == "roster" else list(good)
    memory = wrapped(
        tmp_path,
        lambda query: ranking,
        list_ids=lambda scope: roster,
        get=lambda ids, scope: [good[i] for i in ids],
    )
    with pytest.raises(cmp.InvalidIdError, match="id"):
        memory.retrieve("q", scope="s")
    assert memory.log.rounds().collect().height == 0


def test_memories_without_ids_are_told_apart_by_an_id_of(tmp_path):
    """Three documents without ids, two of the same text: an id_of over text and source keeps them three."""
    data = [{"text": "likes tea", "src": 1}, {"text": "likes tea", "src": 2}, {"text": "has a dog", "src": 3}]
    by_id = {f"{d['src']}": d for d in data}
    memory = cmp.wrap(
        lambda query: data,
        id_of=lambda d: d["src"],
        list_ids=lambda scope: [d["src"] for d in data],
        get=lambda ids, scope: [by_id[i] for i in ids],
        slots=2,
        random_slots=1,
        log=tmp_path / "x.db",
    )
    for _ in range(6):
        memory.retrieve("q", scope="s")
    assert set(memory.log.rosters().collect()["memory_id"]) == {"1", "2", "3"}


def test_an_int_and_a_string_that_render_alike_are_an_error(location):
    memory = wrapped(location, lambda q: [], list_ids=lambda scope: [1, 2, "1"], get=lambda ids, scope: [])
    with pytest.raises(cmp.InvalidIdError, match="both the int 1 and the string '1'"):
        memory.retrieve("q", scope="s")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"random_slots": 5}, "more random slots than slots"),
        ({"random_slots": -1}, "random_slots is -1"),
        ({"random_slots": 1.5}, "random_slots is 1.5"),
        ({"slots": 0}, "slots is 0"),
        ({"slots": True}, "slots is True"),
        ({"exposures_per_block": 0}, "exposures_per_block"),
        ({"rounds_per_block": 0}, "rounds_per_block"),
        ({"balance_within": "query"}, "balance_within"),
        ({"on_error": "ignore"}, "on_error"),
        ({"seed": -1}, "seed"),
        ({"withhold": 4}, "only 3 slots are ranked"),
        ({"holdout": 1.5}, "holdout"),
        ({"roster_ttl": -1}, "roster_ttl"),
        ({"allocation": "uniform", "seed": None}, "same seed"),
        ({"reference_cards": 1.5}, "reference_cards"),
        ({"placement": "first"}, "placement"),
    ],
)
def test_settings_out_of_range_are_refused_by_name(tmp_path, settings, message):
    with pytest.raises(ValueError, match=message):
        wrapped(tmp_path, store(), **settings)


def test_random_slots_need_a_listing_and_a_fetch(tmp_path):
    with pytest.raises(TypeError, match=r"list_ids=\.\.\. and get="):
        wrapped(tmp_path, lambda query: [])
    with pytest.raises(TypeError, match="is no retriever"):
        wrapped(tmp_path, 7)


def test_scores_may_be_missing_and_are_handed_on_where_present(location):
    context = wrapped(location, store(20, ["m1", "m2", "m3"])).retrieve("q", scope="s")
    scores = {item.id: item.score for item in context.items}
    assert scores["m1"] == 1.0
    assert any(score is None for score in scores.values()) or all(
        item.arm == "ranked" for item in context.items
    )


def test_a_callable_gets_n_and_scope_as_far_as_it_takes_them(tmp_path):
    data, seen = documents(6), []

    def plain(query):
        seen.append({})
        return []

    def full(query, n, scope):
        seen.append({"n": n, "scope": scope})
        return []

    for number, retriever in enumerate((plain, full)):
        memory = wrapped(
            tmp_path,
            retriever,
            list_ids=lambda scope: data,
            get=lambda ids, scope: [data[i] for i in ids],
            log=tmp_path / f"{number}.db",
        )
        memory.retrieve("q", scope="s")
    assert seen == [{}, {"n": 4, "scope": "s"}]
