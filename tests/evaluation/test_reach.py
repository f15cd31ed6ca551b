"""Support: its shares against a plain count, its definitions on small cases, and the two kinds of source."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import cmp
from cmp.errors import GranularityError
from cmp.evaluation.reach import support
from cmp.protocols import Hit, Scope
from cmp.retrievers import BM25, ScoringBackend


class Given(ScoringBackend):
    """A retriever whose query is its list of scores."""

    def scores(self, query: Any, *, scope: cmp.Scope | str) -> NDArray[np.float64]:
        return np.array([float(score) for score in query.split()])


class Plain:
    """The same ranking behind the bare protocol: no scores, and a list that may stop early."""

    def __init__(self, inner: Given, longest: int) -> None:
        self.inner, self.longest = inner, longest

    def search(self, query: str, n: int, *, scope: Scope) -> list[Hit[Any]]:
        return self.inner.search(query, min(n, self.longest), scope=scope)

    def list_ids(self, *, scope: Scope) -> list[str]:
        return self.inner.list_ids(scope=scope)

    def get(self, ids: Sequence[str], *, scope: Scope) -> dict[str, Hit[Any]]:
        return self.inner.get(ids, scope=scope)


def frame(columns: str, rows: list[tuple[Any, ...]]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=columns.split(), orient="row", infer_schema_length=None)


@st.composite
def worlds(draw: st.DrawFn) -> tuple[dict[str, int], list[tuple[str, str, list[int], list[int]]], int]:
    """Pool sizes by scope; queries as (id, scope, scores with ties, key positions); a cutoff."""
    pools = draw(st.dictionaries(st.sampled_from("ab"), st.integers(1, 6), min_size=1))
    queries = []
    for number in range(draw(st.integers(1, 6))):
        scope = draw(st.sampled_from(sorted(pools)))
        size = pools[scope]
        scores = draw(st.lists(st.integers(0, 3), min_size=size, max_size=size))
        keys = draw(st.lists(st.integers(0, size - 1), unique=True))
        queries.append((f"q{number}", scope, scores, keys))
    return pools, queries, draw(st.integers(1, 4))


@settings(max_examples=150, deadline=None)
@given(worlds())
def test_every_share_is_what_a_plain_count_gives(world: Any) -> None:
    pools, queries, cutoff = world
    store = Given({scope: {f"m{i}": "" for i in range(size)} for scope, size in pools.items()})
    asked = frame("query_id scope text", [(q, s, " ".join(map(str, scores))) for q, s, scores, _ in queries])
    labels = frame("query_id scope memory_id", [(q, s, f"m{i}") for q, s, _, keys in queries for i in keys])
    if labels.is_empty():
        return
    report = support(store, asked, labels, cutoff=cutoff)

    tops, ranks = {}, []
    for q, _, scores, keys in queries:
        tops[q] = sorted(range(len(scores)), key=lambda i: (-scores[i], i))[:cutoff]
        better = {i: sum(score > scores[i] for score in scores) for i in keys}
        ranks += [better[i] + (scores.count(scores[i]) + 1) / 2 for i in keys if i not in tops[q]]
    keys = {(s, i) for _, s, _, held in queries for i in held}
    own = {(s, i) for q, s, _, held in queries for i in held if i in tops[q]}
    anyone = {(s, i) for q, s, _, _ in queries for i in tops[q]}
    needy = [(q, held) for q, _, _, held in queries if held]
    asked_scopes = {s for _, s, _, _ in queries}
    pool = {(s, i) for s in asked_scopes for i in range(pools[s])}

    row = report.overview.row(0, named=True)
    assert (row["n_keys"], row["n_never_own"], row["n_never_any"]) == (
        len(keys),
        len(keys - own),
        len(keys - anyone),
    )
    assert report.never_own == len(keys - own) / len(keys)
    assert row["n_any_key"] == sum(any(i in tops[q] for i in held) for q, held in needy)
    assert row["n_all_key"] == sum(all(i in tops[q] for i in held) for q, held in needy)
    assert (row["n_labelled"], row["n_missed"]) == (len(needy), len(ranks))
    assert row["median_rank_missed"] == (median(ranks) if ranks else None)
    assert report.never_retrieved == len(pool - anyone) / len(pool)


def test_never_any_is_over_all_queries_and_never_own_over_those_of_the_category() -> None:
    store = Given({"s": {"a": "", "b": ""}})
    queries = frame("query_id scope text category", [("q1", "s", "1 0", "easy"), ("q2", "s", "0 1", "hard")])
    labels = frame("query_id memory_id", [("q1", "b"), ("q2", "b")])
    report = support(store, queries, labels, cutoff=1)
    by_category = {row["category"]: row for row in report.overview.rows(named=True)}
    assert [by_category[name]["never_own"] for name in ("all", "easy", "hard")] == [0.0, 1.0, 0.0]
    assert [by_category[name]["never_any"] for name in ("all", "easy", "hard")] == [0.0, 0.0, 0.0]
    assert by_category["easy"]["n_queries_asked"] == 2


def test_the_bare_protocol_gives_the_same_shares_and_the_same_ranks_without_ties() -> None:
    store = Given({"s": {f"m{i}": "" for i in range(5)}})
    queries = frame("query_id scope text", [("q1", "s", "5 4 3 2 1"), ("q2", "s", "1 2 3 4 5")])
    labels = frame("query_id memory_id", [("q1", "m3"), ("q2", "m0"), ("q2", "m4")])
    scored = support(store, queries, labels, cutoff=2)
    assert support(Plain(store, 99), queries, labels, cutoff=2).pairs.equals(scored.pairs)
    short = support(Plain(store, 2), queries, labels, cutoff=2)
    assert short.overview["never_own"].equals(scored.overview["never_own"])
    assert short.pairs["rank"].to_list() == [4.0, 4.0, 1.0]  # ranks 3 to 5 are tied behind a list of 2


def test_relevance_of_zero_is_no_label_and_an_object_with_a_frame_will_do() -> None:
    store = Given({"s": {"a": "", "b": ""}})
    queries = frame("query_id scope text", [("q1", "s", "1 0")])
    labels = frame("query_id scope memory_id relevance", [("q1", "s", "a", 2), ("q1", "s", "b", 0)])
    report = support(store, queries, SimpleNamespace(frame=labels), cutoff=1)
    assert report.pairs["memory_id"].to_list() == ["a"]
    assert report.never_own == 0.0


def test_strays_and_labels_of_other_queries_are_counted_and_in_no_share() -> None:
    store = Given({"s": {"a": "", "b": ""}})
    queries = frame("query_id scope text", [("q1", "s", "1 0")])
    labels = frame("query_id memory_id", [("q1", "a"), ("q1", "gone"), ("q9", "a")])
    report = support(store, queries, labels, cutoff=1)
    assert report.strays.rows() == [("q1", "s", "gone")]
    assert (report.n_unasked, report.overview["n_keys"][0]) == (1, 1)
    assert "1 labels of memories not in the pool, 1 labels of queries not asked" in report.summary()


def test_labels_of_another_granularity_are_an_error_and_not_a_share_of_one() -> None:
    store = Given({"s": {"session_1:3": ""}})
    queries = frame("query_id scope text", [("q1", "s", "1")])
    with pytest.raises(GranularityError, match="sessions against turns"):
        support(store, queries, frame("query_id memory_id", [("q1", "session_1")]))
    with pytest.raises(GranularityError, match="names a query that was asked"):
        support(store, queries, frame("query_id memory_id", [("other", "session_1:3")]))


def test_without_labels_the_memories_alone_are_reported() -> None:
    queries = frame("query_id scope text", [("q1", "s", "1 0 0")])
    report = support(Given({"s": dict.fromkeys("abc", "")}), queries, cutoff=1)
    assert report.never_own is None
    assert report.never_any is None
    assert report.never_retrieved == 2 / 3
    assert report.summary().splitlines()[-1].startswith("never retrieved 66.7 %: 2 of 3 memories")


def test_the_summary_puts_never_own_first_with_counts_and_the_number_of_queries() -> None:
    store = Given({"s": {"a": "", "b": ""}})
    queries = frame("query_id scope text category", [("q1", "s", "1 0", "easy"), ("q2", "s", "1 0", "hard")])
    lines = (
        support(store, queries, frame("query_id memory_id", [("q1", "b")]), cutoff=1).summary().splitlines()
    )
    assert lines[1] == (
        "never own 100.0 %: 1 of 1 key memories are in the top 1 of none of the queries that need them"
    )
    assert lines[2] == "never any 100.0 %: 1 of 1 are in the top 1 of none of all 2 queries"
    assert lines[3] == "missed evidence: 1 of 1 (query, key) pairs, median rank 2 of 2 (100.0 % of the pool)"


def test_what_cannot_be_asked_is_said() -> None:
    store = Given({"s": {"a": ""}})
    queries = frame("query_id scope text", [("q1", "s", "1")])
    with pytest.raises(ValueError, match="a retriever is asked queries"):
        support(store)
    with pytest.raises(ValueError, match="cutoff is 0"):
        support(store, queries, cutoff=0)
    with pytest.raises(ValueError, match=r"the queries lack \['text'\]"):
        support(store, queries.drop("text"))
    with pytest.raises(ValueError, match="they need memory_id"):
        support(store, queries, queries)
    with pytest.raises(ValueError, match="share a query_id"):
        support(store, pl.concat([queries, queries]))
    with pytest.raises(TypeError, match=r"a memory backend .* or a log, not str"):
        support("exposures.db")  # type: ignore[arg-type]


def test_scopes_of_every_kind_are_asked_as_what_they_are() -> None:
    keys = ["plain", Scope.of({"user": "7"}).key, cmp.EVERYTHING.key, "{no json"]
    store = Given({key: {"a": ""} for key in keys})
    queries = frame("query_id scope text", [(f"q{i}", key, "1") for i, key in enumerate(keys)])
    assert support(store, queries).never_retrieved == 0.0


TEXTS = {"ann": {"tram": "Ann commutes by tram.", "nuts": "Ann is ill from walnuts.", "choir": "She sings."}}


def _log(path: Path, *, group: bool, **design: Any) -> Any:
    memory = cmp.wrap(BM25(TEXTS), slots=2, random_slots=1, log=path, seed=3, **design)
    for number in range(6):
        query = ("Is the tram late?", "walnuts in the cake")[number % 2]
        memory.retrieve(query, scope="ann", group=f"q{number % 2}" if group else None)
    memory.close()
    return cmp.open_log(path)


def test_a_log_says_what_was_ranked_and_not_what_was_drawn(tmp_path: Path) -> None:
    labels = frame("query_id scope memory_id", [("q0", "ann", "nuts"), ("q1", "ann", "nuts")])
    log = _log(tmp_path / "log.db", group=True)
    categories = frame("query_id scope category", [("q0", "ann", "indirect"), ("q1", "ann", "direct")])
    report = support(log, categories, labels)
    assert report.cutoff is None
    assert report.overview["category"].to_list() == ["all", "direct", "indirect"]
    assert report.never_own == 0.0
    assert report.overview["never_own"].to_list()[1:] == [0.0, 1.0]
    assert report.pairs["rank"].null_count() == 2
    assert report.memories.filter(pl.col("n_queries") == 0)["memory_id"].to_list() == ["choir"]
    assert "ranks unknown" in report.summary()
    with pytest.raises(ValueError, match="leave cutoff out"):
        support(log, qrels=labels, cutoff=6)


def test_cards_are_no_memories_of_the_store_whether_they_were_drawn_or_not(tmp_path: Path) -> None:
    """16 memories, 4 cards and 6 rounds: one card at most a round, so that some card was never shown."""
    with cmp.wrap(
        lambda query: ["a"], list_ids=lambda: "abcdefghijklmnop", get=list, slots=2, random_slots=1,
        log=tmp_path / "x.db", scope=cmp.EVERYTHING, seed=1, reference_cards=4,
    ) as memory:  # fmt: skip
        for _ in range(6):
            memory.retrieve("q")
        memory.flush()
        drawn = memory.log.exposures().filter(pl.col("arm") == "card").collect()["memory_id"].n_unique()
        found = support(memory.log)
    assert drawn < 4
    assert found.memories["memory_id"].sort().to_list() == list("abcdefghijklmnop")


def test_a_log_without_groups_has_a_query_for_each_text(tmp_path: Path) -> None:
    report = support(_log(tmp_path / "log.db", group=False))
    assert report.overview["n_queries"].to_list() == [2]
    assert report.never_retrieved == 1 / 3


def test_the_earlier_measurement_of_locomo_is_reproduced_to_the_printed_digit() -> None:
    from cmp.datasets import load_locomo
    from tests.datasets.shared_data import published

    data = published("locomo10.json.gz")
    locomo = load_locomo(data, memories="observations").select(categories=(1, 2, 3, 4))
    report = support(BM25.from_frame(locomo.memories), locomo.questions, locomo.qrels)
    row = report.overview.row(0, named=True)
    assert row["n_keys"] == 1_176
    assert [round(100 * row[name], 1) for name in ("never_any", "never_own")] == [6.6, 36.0]
    assert round(100 * row["median_share_missed"], 1) == 21.5


def test_the_top_is_what_a_search_of_its_size_returns() -> None:
    class Approximate(Plain):
        def search(self, query, n, *, scope):
            hits = super().search(query, n, scope=scope)
            return hits if n <= 2 else hits[::-1]  # a deeper search may order its head otherwise

    store = Given({"s": {f"m{i}": "" for i in range(5)}})
    queries = frame("query_id scope text", [("q1", "s", "5 4 3 2 1")])
    labels = frame("query_id memory_id", [("q1", "m0"), ("q1", "m4")])
    report = support(Approximate(store, 99), queries, labels, cutoff=2)
    assert report.pairs.select("memory_id", "retrieved").rows() == [("m0", True), ("m4", False)]
    assert report.memories.filter(pl.col("n_queries") > 0)["memory_id"].to_list() == ["m0", "m1"]
    assert report.pairs["rank"].to_list() == [1.0, 3.0]
