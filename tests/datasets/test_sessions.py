"""MemAware and the rebuilt LongMemEval share one store; both label it, one by session and both by turn."""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from cmp.datasets import Benchmark, load_longmemeval, load_memaware
from cmp.datasets.sessions import read_sessions
from cmp.errors import DatasetError, GranularityError
from tests.datasets.shared_data import published

SESSIONS = "memaware_sessions.jsonl"
QUESTIONS = "memaware_questions.json"
EVIDENCE = "longmemeval_questions_evidence.jsonl"


def _session(session_id: str, *turns: str, first: str = "user", day: str = "2023-04-01") -> dict[str, Any]:
    roles = ["user", "assistant"] if first == "user" else ["assistant", "user"]
    said = [{"role": roles[i % 2], "content": words} for i, words in enumerate(turns)]
    return {"session_id": session_id, "date": day, "turns": said}


STORE = [
    _session("answer_1", "I ski.", "Where?", "In Narvik."),
    _session("hex", "Hi.", first="assistant", day="2023-04-02"),
    _session("answer_2", "Good day.", "## Session plan\nUser guide: none", day="2023-04-02"),
    _session("answer_1_abs", "I ski.", "Where?", "In Narvik.", day="2023-04-03"),
]


def _aware(number: int, sessions: list[str], source: str, **more: Any) -> dict[str, Any]:
    return {
        "question_id": f"implicit_{number}",
        "difficulty": "hard",
        "question": f"Pack my bag ({number})",
        "answer": "Skis",
        "answer_session_ids": sessions,
        "source_question_id": source,
        "should_recall": "The user skis.",
        "connection": "",
    } | more


def _long(question_id: str, *places: tuple[str, int] | None, **more: Any) -> dict[str, Any]:
    evidence = [
        {"memaware_session": place[0] if place else None, "memaware_turn": place[1] if place else None}
        for place in places
    ]
    return {
        "question_id": question_id,
        "question_type": "multi-session",
        "question": "Where do I ski?",
        "answer": "Narvik",
        "question_date": None,
        "evidence": evidence,
    } | more


AWARE = [
    _aware(0, ["answer_1", "answer_1", "gone"], "s0", answer=2),
    _aware(1, ["answer_1_abs"], "s1_abs"),
    _aware(2, ["answer_2"], "s2", should_recall=None),
]
LONG = [
    _long("s0", ("answer_1_abs", 2), ("answer_1", 2), answer=3),
    _long("s1_abs", ("answer_1", 0)),
    _long("s2", ("answer_2", 0), None),
    _long("s3"),
    _long("s4", ("answer_2", 99)),
    _long("s5", ("answer_1_abs", 0)),
]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Write a small store with a twin, a question file and an evidence file, packed each in its own way."""
    lines = "\n".join(map(json.dumps, STORE))
    (tmp_path / f"{SESSIONS}.xz").write_bytes(lzma.compress(lines.encode()))
    (tmp_path / QUESTIONS).write_text(json.dumps(AWARE))
    (tmp_path / EVIDENCE).write_text("\n".join(map(json.dumps, LONG)) + "\n\n")
    return tmp_path


def _count(benchmark: Benchmark, kind: str) -> int:
    return benchmark.irregularities.filter(pl.col("kind") == kind).height


def _pairs(benchmark: Benchmark) -> list[tuple[str, str]]:
    return benchmark.qrels.select("query_id", "memory_id").rows()


def test_session_labels_are_distinct_and_only_of_sessions_in_the_store(directory: Path) -> None:
    benchmark = load_memaware(directory)
    assert _pairs(benchmark) == [("implicit_0", "answer_1"), ("implicit_2", "answer_2")]
    assert benchmark.questions["answer"].to_list() == ["2", "Skis"]
    assert _count(benchmark, "label of no such session") == 1
    assert _count(benchmark, "blank connection") == 3
    assert _count(benchmark, "blank should_recall") == 1
    assert benchmark.texts("memaware")["answer_1"] == "User: I ski.\n\nAssistant: Where?\n\nUser: In Narvik."


def test_abstention_questions_are_left_out_and_counted_unless_asked_for(directory: Path) -> None:
    assert _count(load_memaware(directory), "abstention question") == 1
    whole = load_memaware(directory, include_abstention=True)
    assert whole.questions["answerable"].to_list() == [True, False, True]
    assert _count(whole, "abstention question") == 0
    assert _count(load_longmemeval(directory), "abstention question") == 1
    assert "s1_abs" in load_longmemeval(directory, include_abstention=True).questions["query_id"]


def test_turn_labels_come_from_the_evidence_of_the_source_question(directory: Path) -> None:
    benchmark = load_memaware(directory, memories="turns")
    assert _pairs(benchmark) == [("implicit_0", "answer_1:2")]
    assert _count(benchmark, "evidence not all in the store") == 1
    listed = load_memaware(directory, memories="turns", twins="listed")
    assert _pairs(listed) == [("implicit_0", "answer_1_abs:2"), ("implicit_0", "answer_1:2")]


def test_evidence_said_twice_is_one_key_at_its_first_place(directory: Path) -> None:
    benchmark = load_longmemeval(directory)
    assert _pairs(benchmark) == [("s0", "answer_1:2"), ("s5", "answer_1:0")]
    assert _pairs(load_longmemeval(directory, twins="listed"))[-1] == ("s5", "answer_1_abs:0")
    twins = dict(benchmark.memories.drop_nulls("twin_of").select("memory_id", "twin_of").iter_rows())
    assert twins == {f"answer_1_abs:{turn}": f"answer_1:{turn}" for turn in range(3)}


def test_questions_without_all_their_evidence_are_left_out_and_counted(directory: Path) -> None:
    benchmark = load_longmemeval(directory)
    assert benchmark.questions["query_id"].to_list() == ["s0", "s5"]
    assert _count(benchmark, "evidence not all in the store") == 3
    assert _count(benchmark, "evidence of no such turn") == 1
    assert _count(benchmark, "question without a date") == 6


def test_odd_sessions_are_kept_and_counted(directory: Path) -> None:
    benchmark = load_memaware(directory)
    assert benchmark.memories.height == 4
    assert _count(benchmark, "session starts with the assistant") == 1
    assert _count(benchmark, "session of one turn") == 1
    assert _count(benchmark, "session twice, word for word") == 1
    assert _count(benchmark, "turn said again, word for word") == 3
    assert _count(benchmark, "answer session that no question needs") == 0


def test_files_may_lie_apart(directory: Path, tmp_path: Path) -> None:
    apart = tmp_path / "apart"
    apart.mkdir()
    (directory / EVIDENCE).rename(apart / "labels")
    (directory / QUESTIONS).rename(apart / "asked")
    store = directory / f"{SESSIONS}.xz"
    assert (
        load_memaware(apart / "asked", store, memories="turns", evidence=apart / "labels").qrels.height == 1
    )
    assert load_longmemeval(apart / "labels", store).qrels.height == 2


def test_files_are_found_in_the_environment(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CMP_DATA", str(directory))
    assert load_longmemeval().qrels.height == load_longmemeval(directory).qrels.height
    assert load_memaware().qrels.height == 2


def _write_days(folder: Path, sessions: list[dict[str, Any]]) -> None:
    folder.mkdir(parents=True)
    for day in dict.fromkeys(session["date"] for session in sessions):
        lines = [f"# {day}\n"]
        for session in (s for s in sessions if s["date"] == day):
            lines.append(f"## Session {session['session_id']}\nSession Date: {day}\n")
            lines += [f"{turn['role'].capitalize()}: {turn['content']}\n" for turn in session["turns"]]
        (folder / f"{day}.md").write_text("\n".join(lines), encoding="utf-8")


def test_a_clone_with_day_files_reads_as_the_encoded_store_does(directory: Path, tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    _write_days(clone / "data" / "sessions", STORE)
    (directory / QUESTIONS).rename(clone / "data" / "questions.json")
    read = read_sessions(clone)
    assert read.sessions == read_sessions(directory).sessions
    assert list(read.source) == ["3 day files, joined"]
    assert load_memaware(clone).qrels.height == 2


def test_the_published_store_survives_the_way_through_day_files(tmp_path: Path) -> None:
    store = read_sessions(published(f"{SESSIONS}.xz"))
    records = [
        _session(s.session_id, day=s.date.isoformat())
        | {"turns": [{"role": role, "content": content} for role, content in s.turns]}
        for s in store.sessions
    ]
    _write_days(tmp_path / "days", records)
    assert read_sessions(tmp_path / "days").sessions == store.sessions


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"session_id": "a", "date": "2023-04-01", "turns": []}', "session a has no turns"),
        ('{"session_id": "a", "date": "May", "turns": [{"role": "user", "content": "x"}]}', "not YYYY-MM-DD"),
        ('{"session_id": "a", "date": "2023-04-01"}', "line 1: 'turns' is missing"),
        (
            '{"session_id": "a", "date": "2023-04-01", "turns": [{"role": "user"}]}',
            "turn 0: 'content' is missing",
        ),
        ("", "there is no session in it"),
        ('{"session_id": "a", "da', "line 1: no valid JSON"),
    ],
)
def test_a_malformed_store_is_an_error_that_names_file_and_place(
    tmp_path: Path, line: str, message: str
) -> None:
    (tmp_path / SESSIONS).write_text(line)
    with pytest.raises(DatasetError, match=message) as caught:
        read_sessions(tmp_path)
    assert SESSIONS in str(caught.value)


def test_session_ids_that_repeat_are_an_error(tmp_path: Path) -> None:
    (tmp_path / SESSIONS).write_text("\n".join(map(json.dumps, STORE[:1] * 2)))
    with pytest.raises(DatasetError, match=r"session ids repeat: .*answer_1"):
        read_sessions(tmp_path)


def test_a_store_that_is_nowhere_is_an_error_that_says_how_to_come_by_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CMP_DATA", raising=False)
    for place in (None, tmp_path):
        with pytest.raises(DatasetError, match=r"clone that and give its directory"):
            read_sessions(place)


def test_a_question_file_of_another_shape_is_an_error(directory: Path) -> None:
    (directory / QUESTIONS).write_text('{"questions": []}')
    with pytest.raises(DatasetError, match="a list of questions was expected"):
        load_memaware(directory)


def test_labels_of_another_store_are_of_the_wrong_unit(directory: Path) -> None:
    (directory / QUESTIONS).write_text(json.dumps([_aware(0, ["elsewhere"], "s0")]))
    with pytest.raises(GranularityError):
        load_memaware(directory)


PUBLISHED = (f"{QUESTIONS}.gz", f"{SESSIONS}.xz", f"{EVIDENCE}.gz")


def test_the_published_memaware_has_its_published_counts_with_abstention_items() -> None:
    whole = load_memaware(published(*PUBLISHED), include_abstention=True)
    assert (whole.questions.height, whole.memories.height) == (900, 1_307)
    assert whole.qrels["memory_id"].n_unique() == 614
    tiers = {
        tier: whole.select(categories=tier).qrels["memory_id"].n_unique()
        for tier in ("easy", "medium", "hard")
    }
    assert tiers == {"easy": 510, "medium": 545, "hard": 522}
    counts = dict(whole.irregularities.group_by("kind").len().iter_rows())
    assert counts == {
        "answer not a string": 46,
        "answer session that no question needs": 36,
        "blank connection": 28,
        "blank should_recall": 1,
        "day without fillers": 11,
        "session of one turn": 3,
        "session starts with the assistant": 65,
        "session twice, word for word": 50,
        "session with a role twice running": 1,
        "turn said again, word for word": 643,
    }


def test_the_published_memaware_without_abstention_items_is_830_questions() -> None:
    benchmark = load_memaware(published(*PUBLISHED))
    assert (benchmark.questions.height, _count(benchmark, "abstention question")) == (830, 70)


def test_the_published_implicit_questions_have_590_key_turns() -> None:
    directory = published(*PUBLISHED)
    whole = load_memaware(directory, memories="turns", include_abstention=True, twins="listed")
    assert (whole.questions.height, whole.memories.height) == (852, 14_187)
    assert whole.qrels["memory_id"].n_unique() == 590


def test_the_published_longmemeval_labels_have_their_published_counts() -> None:
    directory = published(*PUBLISHED)
    whole = load_longmemeval(directory, include_abstention=True)
    assert (whole.questions.height, whole.memories.height) == (352, 14_187)
    assert whole.qrels["memory_id"].n_unique() == 604
    without = load_longmemeval(directory)
    assert (without.questions.height, _count(without, "abstention question")) == (344, 30)
