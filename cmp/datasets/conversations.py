"""The memories of a LoCoMo conversation: its turns, or the observations drawn from them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from cmp.datasets.benchmark import Irregularities, require
from cmp.datasets.evidence import parse_evidence, resolve

__all__ = ["Memory", "Turn", "observations_of", "turns_of"]

_SESSION = re.compile(r"session_([0-9]+)")
_SESSION_DATE = re.compile(r"session_([0-9]+)_date_time")
_OBSERVATIONS = re.compile(r"session_([0-9]+)_observation")
_DATE = "%I:%M %p on %d %B, %Y"


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn: its id, who said what, in which session and when (null where unreadable)."""

    dia_id: str
    session: int
    date: datetime | None
    speaker: str
    text: str
    caption: str | None

    def memory(self, *, with_caption: bool) -> Memory:
        """Return the turn as a memory: its bare text, or speaker, text and the caption of a shared photo."""
        caption = f" [{self.caption}]" if self.caption else ""
        text = f"{self.speaker}: {self.text}{caption}" if with_caption else self.text
        return Memory(self.dia_id, text, self.speaker, self.session, self.date, [self.dia_id])


@dataclass(frozen=True, slots=True)
class Memory:
    """A memory with the turns it comes from."""

    memory_id: str
    text: str
    speaker: str
    session: int
    date: datetime | None
    turns: list[str]


def turns_of(sample: Mapping[str, Any], where: str, notes: Irregularities) -> dict[str, Turn]:
    """Return the turns of a conversation by id, session by session."""
    conversation = require(sample, "conversation", dict, where)
    sessions = _numbered(conversation, _SESSION)
    for number, key in _numbered(conversation, _SESSION_DATE).items():
        if number not in sessions:
            notes.note("date without a session", where, key, "ignored")
    turns: dict[str, Turn] = {}
    for number, key in sessions.items():
        date = _date(conversation.get(f"{key}_date_time"), f"{where} {key}", notes)
        for position, record in enumerate(require(conversation, key, list, where)):
            turn = _turn(record, number, date, f"{where} {key}, turn {position}", notes)
            if turn.dia_id in turns:
                notes.note("turn id repeated", where, turn.dia_id, "first kept")
            turns.setdefault(turn.dia_id, turn)
    said = Counter((turn.speaker, turn.text) for turn in turns.values())
    for (speaker, text), times in said.items():
        if times > 1:
            notes.note("same words said again", where, f"{speaker}: {text}", "kept")
    return turns


def observations_of(
    sample: Mapping[str, Any], turns: Mapping[str, Turn], where: str, notes: Irregularities
) -> Iterator[Memory]:
    """Yield the observations in file order; ``D1:3#2`` is the second whose first source is turn ``D1:3``."""
    groups = require(sample, "observation", dict, where)
    serial: Counter[str] = Counter()
    for number, key in _numbered(groups, _OBSERVATIONS).items():
        for speaker, facts in require(groups, key, dict, where).items():
            for position, fact in enumerate(facts):
                place = f"{where} {key}, {speaker} {position}"
                pair = (
                    {"fact": fact[0], "source": fact[1]}
                    if isinstance(fact, list) and len(fact) == 2
                    else fact
                )
                text = require(pair, "fact", str, place)
                sources = _sources(require(pair, "source", (str, list), place), turns, place, notes)
                first = sources[0] if sources else f"D{number}:?"
                serial[first] += 1
                date = turns[sources[0]].date if sources else None
                yield Memory(f"{first}#{serial[first]}", text.strip(), speaker, number, date, sources)


def _numbered(record: Mapping[str, Any], pattern: re.Pattern[str]) -> dict[int, str]:
    matches = ((pattern.fullmatch(key), key) for key in record)
    return dict(sorted((int(match[1]), key) for match, key in matches if match))


def _turn(record: object, session: int, date: datetime | None, where: str, notes: Irregularities) -> Turn:
    dia_id, speaker, text = (require(record, key, str, where) for key in ("dia_id", "speaker", "text"))
    assert isinstance(record, dict)
    if text != text.strip():
        notes.note("turn text with outer space", where, dia_id, "stripped")
    caption = record.get("blip_caption")
    if caption and not record.get("img_url"):
        notes.note("caption without an image address", where, dia_id, "kept")
    return Turn(dia_id, session, date, speaker, text.strip(), str(caption) if caption else None)


def _date(value: object, where: str, notes: Irregularities) -> datetime | None:
    try:
        return datetime.strptime(str(value), _DATE)
    except ValueError:
        notes.note("session date unreadable", where, value, "null")
        return None


def _sources(
    value: str | list[object], turns: Mapping[str, Turn], where: str, notes: Irregularities
) -> list[str]:
    if isinstance(value, list):
        notes.note("observation source a list", where, value, "read")
    text = value if isinstance(value, str) else " ".join(map(str, value))
    ids, rejected = parse_evidence(text)
    if isinstance(value, str) and len(ids) > 1:
        notes.note("observation source joined", where, value, "split")
    for piece in rejected:
        notes.note("observation source malformed", where, piece, "dropped")
    return resolve(list(dict.fromkeys(ids)), turns, where, notes)
