"""LoCoMo's evidence strings, read as turn ids, and files that correct them."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cmp.datasets.benchmark import Irregularities, require
from cmp.datasets.fetching import RawFile
from cmp.errors import DatasetError

__all__ = ["Correction", "parse_evidence", "read_corrections", "read_evidence", "resolve"]

_EXACT = re.compile(r"D[1-9][0-9]*:[1-9][0-9]*")
_LOOSE = re.compile(r"[Dd]:?([0-9]+):([0-9]+)")
_BETWEEN = re.compile(r"[;,\s]+")
_AUDIT_ID = re.compile(r"locomo_([0-9]+)_qa([0-9]+)")


def parse_evidence(text: str) -> tuple[list[str], list[str]]:
    """Return the turn ids a string holds, in order, and the pieces that are none.

    Examples
    --------
    >>> parse_evidence("D8:6; D9:17"), parse_evidence("D:11:26"), parse_evidence(" d30:05 ")
    ((['D8:6', 'D9:17'], []), (['D11:26'], []), (['D30:5'], []))
    >>> parse_evidence("D")
    ([], ['D'])
    """
    ids, rejected = [], []
    for piece in filter(None, _BETWEEN.split(text)):
        match = _LOOSE.fullmatch(piece)
        if match:
            ids.append(f"D{int(match[1])}:{int(match[2])}")
        else:
            rejected.append(piece)
    return ids, rejected


def read_evidence(value: object, where: str, notes: Irregularities) -> list[str]:
    """Return the distinct turn ids of an ``evidence`` entry, noting whatever had to be mended or dropped."""
    if isinstance(value, str):
        notes.note("evidence not a list", where, value, "repaired")
        value = [value]
    if value is None or value == []:
        notes.note("evidence list empty", where, value, "no label")
        return []
    if not isinstance(value, list):
        notes.note("evidence malformed", where, value, "dropped")
        return []
    ids: list[str] = []
    for item in value:
        ids += _ids_of_item(item, where, notes)
    distinct = list(dict.fromkeys(ids))
    for repeated in sorted({i for i in ids if ids.count(i) > 1}):
        notes.note("evidence id repeated", where, repeated, "collapsed")
    return distinct


def resolve(ids: Sequence[str], known: Container[str], where: str, notes: Irregularities) -> list[str]:
    """Return the ids of turns that exist; the others are unknown labels, neither positive nor negative."""
    for unknown in (i for i in ids if i not in known):
        notes.note("evidence of no such turn", where, unknown, "dropped")
    return [i for i in ids if i in known]


@dataclass(frozen=True, slots=True)
class Correction:
    """What a corrections file says of one question.

    Attributes
    ----------
    question : str or None
        The question's text, to recognise it by.
    evidence : list of str or None
        The labels that replace the file's; empty removes them, None leaves them.
    disputed_answer : str or None
        The answer the corrector would give, where the gold one is called wrong. It is prose: noted, never
        scored.
    """

    question: str | None
    evidence: list[str] | None
    disputed_answer: str | None


def read_corrections(file: RawFile, scopes: Sequence[str]) -> Mapping[str, Correction]:
    """Return corrections by query id.

    The file is a JSON list of objects: ``question_id`` (``conv-26:q1``, or ``locomo_0_qa1`` with the
    conversation's number in the file), and, each optional, ``question``, ``correct_evidence`` (a list of turn
    ids; an empty one removes the question's labels), ``error_type`` and ``correct_answer``.

    Raises
    ------
    DatasetError
        Where the file is no such list, or corrects a question twice.
    """
    entries = file.json()
    corrections: dict[str, Correction] = {}
    with file.named_in_errors():
        if not isinstance(entries, list):
            raise DatasetError(f"a list of corrections was expected, not {type(entries).__name__}")
        for position, entry in enumerate(entries):
            where = f"correction {position}"
            query_id = _query_id(require(entry, "question_id", str, where), scopes)
            if query_id in corrections:
                raise DatasetError(f"{where}: {query_id} is corrected twice; keep one of the two")
            corrections[query_id] = _correction(entry, where)
    return corrections


def _ids_of_item(item: object, where: str, notes: Irregularities) -> list[str]:
    if not isinstance(item, str):
        notes.note("evidence malformed", where, item, "dropped")
        return []
    if _EXACT.fullmatch(item):
        return [item]
    ids, rejected = parse_evidence(item)
    if ids:
        notes.note("evidence malformed", where, item, "repaired")
    for piece in rejected or ([] if ids else [item]):
        notes.note("evidence malformed", where, piece, "dropped")
    return ids


def _correction(entry: dict[str, Any], where: str) -> Correction:
    evidence, answer = entry.get("correct_evidence"), entry.get("correct_answer")
    if evidence is not None:
        require(entry, "correct_evidence", list, where)
    called_wrong = answer is not None and entry.get("error_type") not in (None, "WRONG_CITATION")
    return Correction(entry.get("question"), evidence, str(answer) if called_wrong else None)


def _query_id(text: str, scopes: Sequence[str]) -> str:
    match = _AUDIT_ID.fullmatch(text)
    if match and int(match[1]) < len(scopes):
        return f"{scopes[int(match[1])]}:q{int(match[2])}"
    return text
