"""MemAware: 900 questions that need a memory which nobody asks for."""

from __future__ import annotations

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
from cmp.datasets.fetching import PathLike, PublicFile, RawFile, beside, open_file
from cmp.datasets.longmemeval import EVIDENCE, Twins, read_evidence_turns
from cmp.datasets.sessions import SessionStore, read_sessions
from cmp.errors import DatasetError

__all__ = ["MEMAWARE_QUESTIONS", "MemawareMemories", "load_memaware"]

MemawareMemories: TypeAlias = Literal["sessions", "turns"]

MEMAWARE_QUESTIONS = PublicFile(
    name="memaware_questions.json",
    sha256="9863ba3ae4dc1c1838e6483577a0a86d9c8c55c4b4037016351b799e7c24f65b",
    url="https://raw.githubusercontent.com/kevin-hs-sohn/memaware/"
    "b0888f13457367927ef869479c44569cde4c07fc/data/questions.json",
    advice="MemAware is github.com/kevin-hs-sohn/memaware, licensed MIT",
    aliases=("questions.json",),
)

_SCOPE = "memaware"
_COLUMNS = {
    **QUESTION_COLUMNS,
    "source_question": pl.String(),
    "should_recall": pl.String(),
    "connection": pl.String(),
}


def load_memaware(
    path: PathLike | None = None,
    sessions: PathLike | None = None,
    *,
    memories: MemawareMemories = "sessions",
    include_abstention: bool = False,
    evidence: PathLike | None = None,
    twins: Twins = "first",
) -> Benchmark:
    """Read MemAware; its one scope is ``"memaware"``, a question's category its tier: easy, medium or hard.

    Parameters
    ----------
    path
        ``memaware_questions.json`` (``questions.json`` in its own repository), plain or packed, or a
        directory that holds it; a clone of the repository will do. None: ``$CMP_DATA``, else fetched.
    sessions
        The store, as :func:`~cmp.datasets.sessions.read_sessions` takes it. None: in ``path`` if that is a
        directory, or next to it; without ``path``, ``$CMP_DATA``.
    memories
        ``"sessions"``: a memory is a whole session, labelled by MemAware itself. ``"turns"``: a memory is a
        turn, labelled by the evidence of the LongMemEval question each was made from; questions whose
        evidence is not all in the store are left out and counted.
    include_abstention
        Whether to keep the questions made from abstention items, whose answer says that the fact was never
        mentioned: 70 of 900. They are not ``answerable``. Left out and counted by default.
    evidence
        For ``"turns"``: ``longmemeval_questions_evidence.jsonl`` or its directory, found as ``sessions`` is.
    twins
        For ``"turns"``, as in :func:`~cmp.datasets.load_longmemeval`.

    Returns
    -------
    Benchmark
        ``memories`` also has ``session, role, date`` and ``twin_of``, the first memory of the very same text;
        ``questions`` also has ``source_question, should_recall, connection``. Dates are not those the
        questions were written for: do not test time reasoning on them.

    Raises
    ------
    DatasetError
        Where a file is absent, damaged, or not what it should be.
    GranularityError
        Where not one label names a memory.

    References
    ----------
    Son (2026). MemAware. MIT. Derived from LongMemEval (Wu et al., ICLR 2025).

    Examples
    --------
    >>> load_memaware(memories="days")
    Traceback (most recent call last):
    ValueError: memories is 'days'; choose one of sessions, turns
    """
    require_choice("memories", memories, MemawareMemories)
    file = open_file(MEMAWARE_QUESTIONS, path)
    store = read_sessions(beside(path, sessions))
    source = {**MEMAWARE_QUESTIONS.provenance(file), **store.source}
    notes = Irregularities()
    store.note_irregularities(notes)
    questions = _questions(file, store, include_abstention, notes)
    if memories == "sessions":
        keys = _session_keys(questions, store, notes)
    else:
        turns = open_file(EVIDENCE, beside(path, evidence))
        source |= EVIDENCE.provenance(turns)
        keys = _turn_keys(questions, turns, store, twins, notes)
        questions = [question for question in questions if question["query_id"] in keys]
    labels = [(query_id, _SCOPE, key) for query_id, found in keys.items() for key in found]
    return Benchmark(
        name=f"memaware/{memories}",
        memories=store.memories(_SCOPE, memories),
        questions=pl.DataFrame(questions, schema=_COLUMNS),
        qrels=label_frame(labels, len(questions), MEMAWARE_QUESTIONS.name),
        irregularities=notes.frame(),
        source=source,
    )


def _questions(
    file: RawFile, store: SessionStore, include_abstention: bool, notes: Irregularities
) -> list[dict[str, Any]]:
    content = file.json()
    with file.named_in_errors():
        if not isinstance(content, list):
            raise DatasetError("a list of questions was expected; is this MemAware's questions.json?")
        read = [_question(record, f"question {number}", notes) for number, record in enumerate(content)]
    needed = {session for question in read for session in question["sessions"]}
    for session in (s.session_id for s in store.sessions):
        if session.startswith("answer_") and session not in needed:
            notes.note("answer session that no question needs", session, "", "kept")
    kept = [question for question in read if question["answerable"] or include_abstention]
    for question in read:
        if not question["answerable"] and not include_abstention:
            notes.note("abstention question", question["query_id"], question["answer"], "left out")
    return kept


def _question(record: object, where: str, notes: Irregularities) -> dict[str, Any]:
    query_id = require(record, "question_id", str, where)
    answer = require(record, "answer", (str, int, float), where)
    if not isinstance(answer, str):
        notes.note("answer not a string", query_id, answer, "written as text")
    told = {}
    for name in ("should_recall", "connection"):
        told[name] = require(record, name, (str, type(None)), where) or None
        if told[name] is None:
            notes.note(f"blank {name}", query_id, "", "null")
    origin = require(record, "source_question_id", str, where)
    return {
        "query_id": query_id,
        "scope": _SCOPE,
        "text": require(record, "question", str, where).strip(),
        "answer": str(answer),
        "category": require(record, "difficulty", str, where),
        "answerable": not origin.endswith("_abs"),
        "source_question": origin,
        **told,
        "sessions": require(record, "answer_session_ids", list, where),
    }


def _session_keys(
    questions: list[dict[str, Any]], store: SessionStore, notes: Irregularities
) -> dict[str, list[str]]:
    keys: dict[str, list[str]] = {}
    for question in questions:
        listed = list(dict.fromkeys(question["sessions"]))
        for session in listed:
            if session not in store.by_id:
                notes.note("label of no such session", question["query_id"], session, "dropped")
        keys[question["query_id"]] = [session for session in listed if session in store.by_id]
    return keys


def _turn_keys(
    questions: list[dict[str, Any]], file: RawFile, store: SessionStore, twins: Twins, notes: Irregularities
) -> dict[str, list[str]]:
    read = read_evidence_turns(file, store, twins, Irregularities())
    complete = {e.question["query_id"]: e.places for e in read if e.complete}
    keys: dict[str, list[str]] = {}
    for question in questions:
        origin = question["source_question"]
        if origin in complete:
            keys[question["query_id"]] = [f"{session}:{turn}" for session, turn in complete[origin]]
        else:
            notes.note("evidence not all in the store", question["query_id"], origin, "left out")
    return keys
