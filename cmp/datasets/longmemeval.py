"""LongMemEval's questions with their evidence turns, rebuilt over the store of MemAware."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
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
from cmp.datasets.sessions import Place, SessionStore, read_sessions

__all__ = ["EVIDENCE", "Evidence", "Twins", "load_longmemeval", "read_evidence_turns"]

Twins: TypeAlias = Literal["first", "listed"]

EVIDENCE = PublicFile(
    name="longmemeval_questions_evidence.jsonl",
    sha256="825200d57d7b61188ad8325da693496a2117e324772ef01aea44ecc2bdc52e9d",
    url=None,
    advice="it was rebuilt from logs in github.com/Hunk0724/LongMemEval at 6dc5c81; ask a holder for a copy",
)

_SCOPE = "longmemeval"
_QUESTIONS = {
    **QUESTION_COLUMNS,
    "asked_on": pl.String(),
}


@dataclass(frozen=True, slots=True)
class Evidence:
    """A question, the places of the store that hold its evidence, and how many turns the store lacks."""

    question: dict[str, Any]
    places: tuple[Place, ...]
    missing: int

    @property
    def complete(self) -> bool:
        """Whether there is evidence and the store holds all of it."""
        return bool(self.places) and not self.missing


def load_longmemeval(
    path: PathLike | None = None,
    sessions: PathLike | None = None,
    *,
    include_abstention: bool = False,
    twins: Twins = "first",
) -> Benchmark:
    """Read the LongMemEval questions whose evidence turns are all in MemAware's store, which they share.

    The one scope is ``"longmemeval"``, a memory is a turn, its id ``<session>:<turn>`` counted from 0, and a
    question's category its type. This is not LongMemEval-S: its haystacks cannot be rebuilt from public
    parts.

    Parameters
    ----------
    path
        ``longmemeval_questions_evidence.jsonl``, plain or packed, or a directory that holds it. None:
        ``$CMP_DATA``.
    sessions
        The store, as :func:`~cmp.datasets.sessions.read_sessions` takes it. None: in ``path`` if that is a
        directory, or next to it; without ``path``, ``$CMP_DATA``.
    include_abstention
        Whether to keep the questions (``_abs``) whose right answer is that it was never said. Left out and
        counted.
    twins
        Some turns stand in the store more than once, word for word, and only one of the places is labelled.
        ``"first"``: the label is moved to the first place with the same role and words, which a stable ranker
        puts before its twins, so that retrieving the words is what counts. ``"listed"``: labels stay. Either
        way ``memories.twin_of`` names each turn's first place where that is another.

    Returns
    -------
    Benchmark
        ``memories`` also has ``session, role, date, twin_of``; ``questions`` also has ``asked_on``.

    Raises
    ------
    DatasetError
        Where a file is absent, damaged, or not what it should be.
    GranularityError
        Where not one label names a turn of the store.

    References
    ----------
    Wu, Wang, Yu, Zhang, Chang and Yu (2025). LongMemEval: benchmarking chat assistants on long-term
    interactive memory. ICLR. Questions and sessions are MIT.

    Examples
    --------
    >>> load_longmemeval(twins="all")
    Traceback (most recent call last):
    ValueError: twins is 'all'; choose one of first, listed
    """
    require_choice("twins", twins, Twins)
    file = open_file(EVIDENCE, path)
    store = read_sessions(beside(path, sessions))
    notes = Irregularities()
    store.note_irregularities(notes)
    questions: list[dict[str, Any]] = []
    labels: list[tuple[str, str, str]] = []
    for evidence in read_evidence_turns(file, store, twins, notes):
        query_id = evidence.question["query_id"]
        if query_id.endswith("_abs") and not include_abstention:
            notes.note("abstention question", query_id, evidence.question["answer"], "left out")
        elif not evidence.complete:
            notes.note("evidence not all in the store", query_id, f"{evidence.missing} missing", "left out")
        else:
            questions.append(evidence.question)
            labels += [(query_id, _SCOPE, f"{session}:{turn}") for session, turn in evidence.places]
    return Benchmark(
        name="longmemeval/turns",
        memories=store.memories(_SCOPE, "turns"),
        questions=pl.DataFrame(questions, schema=_QUESTIONS),
        qrels=label_frame(labels, len(questions), EVIDENCE.name),
        irregularities=notes.frame(),
        source={**EVIDENCE.provenance(file), **store.source},
    )


def read_evidence_turns(
    file: RawFile, store: SessionStore, twins: Twins, notes: Irregularities
) -> Iterator[Evidence]:
    """Yield each question of the file with the places of its evidence, distinct, in order."""
    with file.named_in_errors():
        for number, record in file.json_lines():
            question = _question(record, f"line {number}", notes)
            found: list[Place] = []
            listed = require(record, "evidence", list, f"line {number}")
            for position, turn in enumerate(listed):
                place = _place(turn, store, f"line {number}, evidence {position}", notes)
                if place is None:
                    continue
                first = store.first_place(place)
                if first != place:
                    action = "label moved to it" if twins == "first" else "kept"
                    notes.note("evidence said before, word for word", question["query_id"], first, action)
                found.append(first if twins == "first" else place)
            yield Evidence(question, tuple(dict.fromkeys(found)), len(listed) - len(found))


def _question(record: object, where: str, notes: Irregularities) -> dict[str, Any]:
    query_id = require(record, "question_id", str, where)
    answer = require(record, "answer", (str, int, float), where)
    if not isinstance(answer, str):
        notes.note("answer not a string", query_id, answer, "written as text")
    asked_on = require(record, "question_date", (str, type(None)), where)
    if asked_on is None:
        notes.note("question without a date", query_id, asked_on, "null")
    return {
        "query_id": query_id,
        "scope": _SCOPE,
        "text": require(record, "question", str, where).strip(),
        "answer": str(answer),
        "category": require(record, "question_type", str, where),
        "answerable": not query_id.endswith("_abs"),
        "asked_on": asked_on,
    }


def _place(record: object, store: SessionStore, where: str, notes: Irregularities) -> Place | None:
    session = require(record, "memaware_session", (str, type(None)), where)
    turn = require(record, "memaware_turn", (int, type(None)), where)
    if session is None or turn is None:
        return None
    if not store.holds((session, turn)):
        notes.note("evidence of no such turn", where, f"{session}:{turn}", "dropped")
        return None
    return session, turn
