"""LoCoMo is read whole: nothing is lost to a malformed string, and nothing becomes a key that is none."""

from __future__ import annotations

import copy
import gzip
import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from cmp.datasets import Benchmark, load_locomo
from cmp.errors import DatasetError, GranularityError
from tests.datasets.shared_data import published


def _turn(number: int, text: str, **more: Any) -> dict[str, Any]:
    return {"speaker": "Ana" if number % 2 else "Ben", "dia_id": f"D1:{number}", "text": text, **more}


def _sample(scope: str, questions: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "sample_id": scope,
        "conversation": {
            "speaker_a": "Ana",
            "speaker_b": "Ben",
            "session_1_date_time": "1:56 pm on 8 May, 2023",
            "session_1": [
                _turn(1, " I moved to Oslo. "),
                _turn(2, "Lovely!", blip_caption="a red house"),
                _turn(3, "With my cat Tove."),
            ],
            "session_10_date_time": "sometime",
            "session_10": [{"speaker": "Ben", "dia_id": "D10:1", "text": "Lovely!"}],
            "session_11_date_time": "1:56 pm on 9 May, 2023",
        },
        "observation": {
            "session_1_observation": {
                "Ana": [
                    ["Ana lives in Oslo.", "D1:1"],
                    ["Ana has moved.", "D1:1"],
                    ["Ana and her cat live in Oslo.", ["D1:1", "D1:3"]],
                ],
                "Ben": [["Ben likes news.", "D1:2, D10:1"], ["Ben is kind.", "D7:7 somewhere"]],
            }
        },
        "qa": questions,
    }


def _question(evidence: Any, category: int = 4, **more: Any) -> dict[str, Any]:
    return {
        "question": "Where does Ana live?",
        "answer": "Oslo",
        "evidence": evidence,
        "category": category,
    } | more


def _written(directory: Path, samples: object) -> Path:
    path = directory / "locomo10.json"
    path.write_text(json.dumps(samples), encoding="utf-8")
    return path


def _loaded(directory: Path, *questions: dict[str, Any], **options: Any) -> Benchmark:
    return load_locomo(_written(directory, [_sample("conv-1", list(questions))]), **options)


def _keys(benchmark: Benchmark, query_id: str = "conv-1:q0") -> list[str]:
    return benchmark.qrels.filter(pl.col("query_id") == query_id)["memory_id"].to_list()


def _count(benchmark: Benchmark, kind: str, action: str | None = None) -> int:
    rows = benchmark.irregularities.filter(pl.col("kind") == kind)
    return rows.height if action is None else rows.filter(pl.col("action") == action).height


@pytest.mark.parametrize(
    ("evidence", "keys"),
    [
        (["D1:1"], ["D1:1"]),
        (["D1:1; D1:3"], ["D1:1", "D1:3"]),
        (["D1:1 D1:2 D1:3"], ["D1:1", "D1:2", "D1:3"]),
        (["D1:1,D1:3"], ["D1:1", "D1:3"]),
        (["D:1:3"], ["D1:3"]),
        (["D1:03"], ["D1:3"]),
        ([" D1:3 "], ["D1:3"]),
        (["d1:3"], ["D1:3"]),
        ("D1:3", ["D1:3"]),
        (["D1:3", "D1:3", "D1:1"], ["D1:3", "D1:1"]),
        (["D1:3", "D"], ["D1:3"]),
        (["D1:3", 7], ["D1:3"]),
        (["D1:3", "D1:99"], ["D1:3"]),
    ],
)
def test_evidence_strings_that_are_not_ids_keep_their_question_and_its_real_keys(
    tmp_path: Path, evidence: Any, keys: list[str]
) -> None:
    assert _keys(_loaded(tmp_path, _question(evidence))) == keys


@pytest.mark.parametrize("evidence", [None, [], ["D"], [""], ["D1:99"], {"D1:1": 1}])
def test_a_question_whose_evidence_names_nothing_survives_without_a_label(
    tmp_path: Path, evidence: Any
) -> None:
    benchmark = _loaded(tmp_path, _question(evidence), _question(["D1:1"]))
    assert benchmark.questions["query_id"].to_list() == ["conv-1:q0", "conv-1:q1"]
    assert _keys(benchmark) == []
    place = benchmark.irregularities.filter(
        pl.col("where") == "conv-1:q0", pl.col("kind").str.contains("evidence")
    )
    assert place["action"].is_in(["dropped", "no label"]).sum() == 1


def test_an_adversarial_trap_is_never_the_answer(tmp_path: Path) -> None:
    trap = _question(["D1:2"], category=5, adversarial_answer="Bergen")
    del trap["answer"]
    kept = _question(["D1:1"], category=5, answer="No", adversarial_answer="Yes")
    benchmark = _loaded(tmp_path, trap, kept, _question(["D1:1"]))
    assert benchmark.questions["answer"].to_list() == [None, "No", "Oslo"]
    assert benchmark.questions["adversarial_answer"].to_list() == ["Bergen", "Yes", None]
    assert benchmark.questions["answerable"].to_list() == [False, False, True]
    assert benchmark.select(answerable=True).qrels["query_id"].to_list() == ["conv-1:q2"]
    assert _count(benchmark, "adversarial evidence said by another speaker") == 1


def test_integer_answers_become_text_and_outer_space_goes(tmp_path: Path) -> None:
    benchmark = _loaded(tmp_path, _question(["D1:1"], answer=2022, question=" Since when? "))
    assert benchmark.questions.select("answer", "text").row(0) == ("2022", "Since when?")
    assert benchmark.texts("conv-1")["D1:1"] == "I moved to Oslo."


def test_a_question_asked_twice_is_two_questions(tmp_path: Path) -> None:
    benchmark = _loaded(tmp_path, _question(["D1:1"]), _question(["D1:3"]))
    assert (_keys(benchmark, "conv-1:q0"), _keys(benchmark, "conv-1:q1")) == (["D1:1"], ["D1:3"])
    assert _count(benchmark, "question asked again", "kept") == 1


def test_the_same_turn_id_in_two_conversations_is_two_memories(tmp_path: Path) -> None:
    samples = [_sample("A", [_question(["D1:3"])]), _sample("B", [_question([])])]
    benchmark = load_locomo(_written(tmp_path, samples))
    assert benchmark.memories.filter(pl.col("memory_id") == "D1:3")["scope"].to_list() == ["A", "B"]
    assert benchmark.qrels.rows() == [("A:q0", "A", "D1:3", 1)]
    assert benchmark.select(scope="B").qrels.is_empty()


def test_a_corrections_file_moves_and_removes_keys_and_is_named_with_its_hash(tmp_path: Path) -> None:
    fixes = tmp_path / "fixes.json.gz"
    entries = [
        {"question_id": "locomo_0_qa0", "correct_evidence": ["D1:3"], "error_type": "WRONG_CITATION"},
        {"question_id": "conv-1:q1", "correct_evidence": []},
        {"question_id": "conv-1:q2", "correct_answer": "Bergen", "error_type": "HALLUCINATION"},
        {"question_id": "conv-1:q3", "correct_evidence": ["D1:2"], "question": "Another?"},
        {"question_id": "conv-9:q0", "correct_evidence": ["D1:2"]},
    ]
    fixes.write_bytes(gzip.compress(json.dumps(entries).encode()))
    benchmark = _loaded(tmp_path, *[_question(["D1:1"])] * 4, corrections=fixes)
    assert [_keys(benchmark, f"conv-1:q{i}") for i in range(4)] == [["D1:3"], [], ["D1:1"], ["D1:1"]]
    assert benchmark.questions["answer"].unique().to_list() == ["Oslo"]
    assert benchmark.source["overrides"] == "labels of 2 questions"
    assert len(benchmark.source["fixes.json.gz"]) == 64
    assert _count(benchmark, "label overridden") == 2
    assert _count(benchmark, "answer disputed", "kept") == 1
    assert _count(benchmark, "correction of another question", "ignored") == 1
    assert _count(benchmark, "correction of no such question", "ignored") == 1


@pytest.mark.parametrize("entries", [{}, [{"question_id": "conv-1:q0"}] * 2, [{}], ["locomo_0_qa0"]])
def test_a_malformed_corrections_file_is_an_error_that_names_it(tmp_path: Path, entries: object) -> None:
    (tmp_path / "fixes.json").write_text(json.dumps(entries))
    with pytest.raises(DatasetError, match=r"fixes\.json"):
        _loaded(tmp_path, _question(["D1:1"]), corrections=tmp_path / "fixes.json")


def test_captions_and_speakers_are_in_the_text_when_asked_for(tmp_path: Path) -> None:
    texts = _loaded(tmp_path, _question(["D1:1"]), memories="turns_with_captions").texts("conv-1")
    assert texts["D1:2"] == "Ben: Lovely! [a red house]"
    assert texts["D1:3"] == "Ana: With my cat Tove."


def test_an_observation_is_key_where_any_of_its_sources_is_evidence(tmp_path: Path) -> None:
    benchmark = _loaded(tmp_path, _question(["D1:1"]), _question(["D1:3"]), memories="observations")
    assert benchmark.memories["memory_id"].to_list() == ["D1:1#1", "D1:1#2", "D1:1#3", "D1:2#1", "D1:?#1"]
    assert benchmark.memories["turns"].to_list()[2:] == [["D1:1", "D1:3"], ["D1:2", "D10:1"], []]
    assert _keys(benchmark) == ["D1:1#1", "D1:1#2", "D1:1#3"]
    assert _keys(benchmark, "conv-1:q1") == ["D1:1#3"]
    assert _count(benchmark, "observation source a list", "read") == 1
    assert _count(benchmark, "observation source joined", "split") == 1
    assert _count(benchmark, "observation source malformed", "dropped") == 1


def test_sessions_are_in_number_order_and_unreadable_dates_are_null(tmp_path: Path) -> None:
    benchmark = _loaded(tmp_path, _question(["D1:1"]))
    assert benchmark.memories["session"].to_list() == [1, 1, 1, 10]
    assert benchmark.memories["date"].null_count() == 1
    assert _count(benchmark, "session date unreadable", "null") == 1
    assert _count(benchmark, "date without a session", "ignored") == 1
    assert _count(benchmark, "same words said again") == 1
    assert _count(benchmark, "caption without an image address") == 1


def test_an_unknown_category_is_kept_and_counted(tmp_path: Path) -> None:
    benchmark = _loaded(tmp_path, _question(["D1:1"], category=9))
    assert benchmark.questions.select("category", "category_name").row(0) == ("9", None)
    assert _count(benchmark, "category unknown", "kept") == 1


def test_evidence_that_no_observation_was_drawn_from_is_counted(tmp_path: Path) -> None:
    benchmark = _loaded(tmp_path, _question(["D1:1"]), _question(["D10:1"]), memories="observations")
    assert _keys(benchmark, "conv-1:q1") == ["D1:2#1"]
    sample = _sample("conv-1", [_question(["D1:1", "D1:3"])])
    sample["observation"]["session_1_observation"] = {"Ana": [["Ana lives in Oslo.", "D1:1"]]}
    lesser = load_locomo(_written(tmp_path, [sample]), memories="observations")
    assert _count(lesser, "evidence without an observation", "no label") == 1


def test_other_bytes_than_the_published_ones_are_remarked(tmp_path: Path) -> None:
    assert "locomo10.json, remark" in _loaded(tmp_path, _question(["D1:1"])).source


def test_a_second_turn_of_the_same_id_is_left_out_and_counted(tmp_path: Path) -> None:
    sample = _sample("conv-1", [_question(["D1:1"])])
    sample["conversation"]["session_10"] *= 2
    benchmark = load_locomo(_written(tmp_path, [sample]))
    assert benchmark.memories.height == 4
    assert _count(benchmark, "turn id repeated", "first kept") == 1


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["sample_id"], 5, "'sample_id' is int, not str"),
        (["qa"], None, "'qa' is NoneType, not list"),
        (["qa", 0, "category"], "4", "conv-1:q0: 'category' is str"),
        (["conversation", "session_1", 0], "hello", "session_1, turn 0: an object with 'dia_id'"),
    ],
)
def test_a_file_of_another_shape_is_an_error_that_names_the_place(
    tmp_path: Path, path: list[Any], value: Any, message: str
) -> None:
    sample = copy.deepcopy(_sample("conv-1", [_question(["D1:1"])]))
    node: Any = sample
    for step in path[:-1]:
        node = node[step]
    node[path[-1]] = value
    with pytest.raises(DatasetError, match=message) as caught:
        load_locomo(_written(tmp_path, [sample]))
    assert "locomo10.json" in str(caught.value)


@pytest.mark.parametrize("content", [{}, [], [_sample("A", []), _sample("A", [])]])
def test_a_file_that_is_no_list_of_conversations_is_an_error(tmp_path: Path, content: object) -> None:
    with pytest.raises(DatasetError):
        load_locomo(_written(tmp_path, content))


def test_labels_that_name_no_memory_at_all_are_of_the_wrong_unit(tmp_path: Path) -> None:
    sample = _sample("conv-1", [_question(["D1:1"])])
    sample["observation"] = {"session_1_observation": {"Ana": [["Ana has a cat.", "D1:3"]]}}
    with pytest.raises(GranularityError, match="not one of the labels of 1 questions"):
        load_locomo(_written(tmp_path, [sample]), memories="observations")


def test_the_published_file_has_its_published_counts() -> None:
    directory = published("locomo10.json.gz")
    benchmark = load_locomo(directory)
    assert benchmark.source["locomo10.json"].startswith("79fa87e9")
    assert (benchmark.memories.height, benchmark.memories["memory_id"].n_unique()) == (5_882, 1_033)
    assert (benchmark.questions.height, benchmark.qrels.height) == (1_986, 2_820)
    assert benchmark.qrels["query_id"].n_unique() == 1_982
    counts = benchmark.questions["category"].value_counts().sort("category")["count"].to_list()
    assert counts == [282, 321, 96, 841, 446]
    keys = benchmark.qrels.select("scope", "memory_id").n_unique()
    assert (keys, _key_count(benchmark.select(categories=(1, 2, 3, 4)))) == (1_430, 1_428)


def test_the_published_observations_have_their_published_counts() -> None:
    benchmark = load_locomo(published("locomo10.json.gz"), memories="observations")
    assert benchmark.memories.height == 2_541
    assert len(benchmark.texts("conv-48")) == 291
    assert _key_count(benchmark.select(categories=["1", "2", "3", "4"])) == 1_176
    assert _count(benchmark, "observation source a list") == 10
    assert _count(benchmark, "observation source joined") == 5


def test_every_irregularity_of_the_published_file_is_counted() -> None:
    benchmark = load_locomo(published("locomo10.json.gz"))
    counts = {(k, a): n for k, a, n in benchmark.irregularities.group_by("kind", "action").len().iter_rows()}
    assert counts == {
        ("evidence malformed", "repaired"): 6,
        ("evidence malformed", "dropped"): 1,
        ("evidence of no such turn", "dropped"): 2,
        ("evidence list empty", "no label"): 4,
        ("evidence id repeated", "collapsed"): 1,
        ("question without an answer", "null"): 444,
        ("adversarial question with an answer", "kept"): 2,
        ("adversarial evidence said by another speaker", "kept"): 346,
        ("answer not a string", "written as text"): 6,
        ("date without a session", "ignored"): 16,
        ("question asked again", "kept"): 12,
        ("question with outer space", "stripped"): 1,
        ("turn text with outer space", "stripped"): 209,
        ("same words said again", "kept"): 2,
        ("caption without an image address", "kept"): 316,
    }


def test_the_published_audit_overrides_the_labels_of_93_questions() -> None:
    directory = published("locomo10.json.gz", "locomo_audit_errors.json.gz")
    benchmark = load_locomo(directory, corrections=directory / "locomo_audit_errors.json.gz")
    assert benchmark.source["overrides"] == "labels of 93 questions"
    assert benchmark.source["locomo_audit_errors.json.gz"].startswith("f298ef46")
    assert _count(benchmark, "answer disputed") == 99


def _key_count(benchmark: Benchmark) -> int:
    return benchmark.qrels.select("scope", "memory_id").n_unique()
