"""LoCoMo: ten long conversations, 1,986 questions and the turns that answer them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

import polars as pl

from cmp.datasets.benchmark import (
    QUESTION_COLUMNS,
    Benchmark,
    Irregularities,
    label_frame,
    require,
    require_choice,
)
from cmp.datasets.conversations import Turn, observations_of, turns_of
from cmp.datasets.evidence import Correction, read_corrections, read_evidence, resolve
from cmp.datasets.fetching import PathLike, PublicFile, RawFile, open_file
from cmp.errors import DatasetError

__all__ = ["LOCOMO", "LocomoMemories", "load_locomo"]

LocomoMemories: TypeAlias = Literal["turns", "turns_with_captions", "observations"]

LOCOMO = PublicFile(
    name="locomo10.json",
    sha256="79fa87e90f04081343b8c8debecb80a9a6842b76a7aa537dc9fdf651ea698ff4",
    url="https://raw.githubusercontent.com/snap-research/locomo/"
    "3eb6f2c585f5e1699204e3c3bdf7adc5c28cb376/data/locomo10.json",
    advice="LoCoMo is github.com/snap-research/locomo, licensed CC BY-NC 4.0: not for commercial use",
)

#: The numbers of the file, which do not follow the order of the paper.
_CATEGORIES = MappingProxyType(
    {1: "multi-hop", 2: "temporal", 3: "open-domain", 4: "single-hop", 5: "adversarial"}
)
_ADVERSARIAL = 5

_MEMORIES = {
    "scope": pl.String(),
    "memory_id": pl.String(),
    "text": pl.String(),
    "speaker": pl.String(),
    "session": pl.Int64(),
    "date": pl.Datetime("us"),
    "turns": pl.List(pl.String()),
}
_QUESTIONS = {
    **QUESTION_COLUMNS,
    "category_name": pl.String(),
    "adversarial_answer": pl.String(),
}


@dataclass(frozen=True, slots=True)
class _Reading:
    """What is gathered while the conversations are read."""

    corrections: dict[str, Correction] = field(default_factory=dict)
    notes: Irregularities = field(default_factory=Irregularities)
    memories: list[dict[str, Any]] = field(default_factory=list)
    questions: list[dict[str, Any]] = field(default_factory=list)
    labelled: list[str] = field(default_factory=list)
    labels: list[tuple[str, str, str]] = field(default_factory=list)
    overridden: list[str] = field(default_factory=list)


def load_locomo(
    path: PathLike | None = None,
    *,
    memories: LocomoMemories = "turns",
    corrections: PathLike | None = None,
) -> Benchmark:
    """Read LoCoMo: a scope is a conversation, ``conv-26``; a query id a place in it, ``conv-26:q37``.

    All five categories are loaded, with the evidence that the file gives. In category 5, the adversarial
    questions, that evidence is the turn which makes a false answer tempting: it says what the question is
    about, not what answers it. These questions are ``answerable = False``; their trap stands in
    ``adversarial_answer`` and is never the answer. Score answers on ``.select(answerable=True)``, which
    leaves them and their labels out.

    Parameters
    ----------
    path
        ``locomo10.json``, plain or packed, or a directory that holds it. None: ``$CMP_DATA``, else fetched.
    memories
        ``"turns"``: a memory is the text of a turn, its id the turn's, ``D1:3``. ``"turns_with_captions"``:
        the same, the speaker before it and the caption of a shared photo after it. ``"observations"``: the
        facts that a model drew from the turns, ``D1:3#1`` the first drawn from ``D1:3``; a key memory is one
        that has a turn of the question's evidence among its sources.
    corrections
        A file that overrides labels, such as ``errors.json`` of dial481/locomo-audit. Answers it disputes are
        noted, not replaced. Its sha256 and the number of questions overridden are in ``source``.

    Returns
    -------
    Benchmark
        ``memories`` also has ``speaker, session, date`` (no time zone; null where unreadable) and ``turns``,
        the source turns; ``questions`` also has ``category_name`` and ``adversarial_answer``.

    Raises
    ------
    DatasetError
        Where a file is absent, damaged, or not what it should be.
    GranularityError
        Where not one label names a memory.

    References
    ----------
    Maharana, Lee, Tulyakov, Bansal, Barbieri and Fang (2024). Evaluating very long-term conversational memory
    of LLM agents. ACL. The data are licensed CC BY-NC 4.0.

    Examples
    --------
    >>> load_locomo(memories="sentences")
    Traceback (most recent call last):
    ValueError: memories is 'sentences'; choose one of turns, turns_with_captions, observations
    """
    require_choice("memories", memories, LocomoMemories)
    file = open_file(LOCOMO, path)
    source = LOCOMO.provenance(file)
    samples = _samples(file)
    reading = _Reading()
    if corrections is not None:
        fixes = RawFile.read(Path(corrections))
        reading.corrections.update(read_corrections(fixes, list(samples)))
        source[fixes.path.name] = fixes.sha256
    with file.named_in_errors():
        for scope, sample in samples.items():
            _read_sample(reading, scope, sample, memories)
    if corrections is not None:
        source["overrides"] = f"labels of {len(reading.overridden)} questions"
        asked = {question["query_id"] for question in reading.questions}
        for query_id in sorted(reading.corrections.keys() - asked):
            reading.notes.note("correction of no such question", query_id, fixes.path.name, "ignored")
    return Benchmark(
        name=f"locomo/{memories}",
        memories=pl.DataFrame(reading.memories, schema=_MEMORIES),
        questions=pl.DataFrame(reading.questions, schema=_QUESTIONS),
        qrels=label_frame(reading.labels, len(reading.labelled), LOCOMO.name),
        irregularities=reading.notes.frame(),
        source=source,
    )


def _samples(file: RawFile) -> dict[str, dict[str, Any]]:
    content = file.json()
    samples: dict[str, dict[str, Any]] = {}
    with file.named_in_errors():
        if not isinstance(content, list) or not content:
            raise DatasetError("a list of conversations was expected; is this locomo10.json?")
        for position, sample in enumerate(content):
            scope = require(sample, "sample_id", str, f"conversation {position}")
            if scope in samples:
                raise DatasetError(f"conversation {position}: sample_id {scope!r} is an earlier one's")
            samples[scope] = sample
    return samples


def _read_sample(reading: _Reading, scope: str, sample: dict[str, Any], kind: LocomoMemories) -> None:
    turns = turns_of(sample, scope, reading.notes)
    if kind == "observations":
        store = list(observations_of(sample, turns, scope, reading.notes))
    else:
        store = [turn.memory(with_caption=kind == "turns_with_captions") for turn in turns.values()]
    reading.memories.extend({"scope": scope, **asdict(memory)} for memory in store)
    drawn_from: dict[str, list[str]] = {}
    for memory in store:
        for turn in memory.turns:
            drawn_from.setdefault(turn, []).append(memory.memory_id)
    seen: set[str] = set()
    for position, record in enumerate(require(sample, "qa", list, scope)):
        query_id = f"{scope}:q{position}"
        question = _question(record, query_id, scope, reading.notes)
        if question["text"] in seen:
            reading.notes.note("question asked again", query_id, question["text"], "kept")
        seen.add(question["text"])
        reading.questions.append(question)
        ids = _labels(reading, record, question, turns)
        reading.labelled.extend([query_id] if ids else [])
        for turn in (turn for turn in ids if turn not in drawn_from):
            reading.notes.note("evidence without an observation", query_id, turn, "no label")
        keys = dict.fromkeys(key for turn in ids for key in drawn_from.get(turn, ()))
        reading.labels.extend((query_id, scope, key) for key in keys)


def _question(record: object, query_id: str, scope: str, notes: Irregularities) -> dict[str, Any]:
    text, category = require(record, "question", str, query_id), require(record, "category", int, query_id)
    assert isinstance(record, dict)
    if text != text.strip():
        notes.note("question with outer space", query_id, text, "stripped")
    if category not in _CATEGORIES:
        notes.note("category unknown", query_id, category, "kept")
    answer, trap = record.get("answer"), record.get("adversarial_answer")
    if answer is None:
        notes.note("question without an answer", query_id, f"category {category}", "null")
    elif category == _ADVERSARIAL:
        notes.note("adversarial question with an answer", query_id, answer, "kept")
    if answer is not None and not isinstance(answer, str):
        notes.note("answer not a string", query_id, answer, "written as text")
    return {
        "query_id": query_id,
        "scope": scope,
        "text": text.strip(),
        "answer": None if answer is None else str(answer),
        "category": str(category),
        "answerable": answer is not None and category != _ADVERSARIAL,
        "category_name": _CATEGORIES.get(category),
        "adversarial_answer": None if trap is None else str(trap),
    }


def _labels(
    reading: _Reading, record: dict[str, Any], question: dict[str, Any], turns: dict[str, Turn]
) -> list[str]:
    query_id, notes = question["query_id"], reading.notes
    ids = resolve(read_evidence(record.get("evidence"), query_id, notes), turns, query_id, notes)
    fix = reading.corrections.get(query_id)
    if fix is not None and fix.question not in (None, record["question"]):
        notes.note("correction of another question", query_id, fix.question, "ignored")
    elif fix is not None:
        if fix.disputed_answer is not None:
            notes.note("answer disputed", query_id, fix.disputed_answer, "kept")
        if fix.evidence is not None:
            ids = _overridden(reading, ids, fix.evidence, query_id, turns)
    if question["category"] == str(_ADVERSARIAL):
        for turn in _said_by_another(ids, question["text"], turns):
            notes.note("adversarial evidence said by another speaker", query_id, turn, "kept")
    return ids


def _overridden(
    reading: _Reading, ids: list[str], evidence: list[str], query_id: str, turns: dict[str, Turn]
) -> list[str]:
    corrected = read_evidence(evidence, query_id, reading.notes) if evidence else []
    corrected = resolve(corrected, turns, query_id, reading.notes)
    if set(corrected) != set(ids):
        reading.overridden.append(query_id)
        change = f"{', '.join(ids) or 'none'} -> {', '.join(corrected) or 'none'}"
        reading.notes.note("label overridden", query_id, change, "replaced")
    return corrected


def _said_by_another(ids: list[str], question: str, turns: dict[str, Turn]) -> list[str]:
    """Return the turns not said by the one speaker that the question names."""
    named = [who for who in {turn.speaker for turn in turns.values()} if who.lower() in question.lower()]
    return [turn for turn in ids if len(named) == 1 and turns[turn].speaker != named[0]]
