"""The store that MemAware and the rebuilt LongMemEval labels share: 1,307 sessions, 14,187 turns."""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Literal, TypeAlias

import polars as pl

from cmp.datasets.benchmark import Irregularities, require
from cmp.datasets.fetching import PathLike, PublicFile, RawFile, find_file
from cmp.errors import DatasetError

__all__ = ["SESSIONS", "Place", "Session", "SessionStore", "read_sessions"]

Place: TypeAlias = tuple[str, int]

_HOME = "github.com/kevin-hs-sohn/memaware at b0888f13457367927ef869479c44569cde4c07fc"

SESSIONS = PublicFile(
    name="memaware_sessions.jsonl",
    sha256="84a25d12ad19efc23d76a061b6bb36567cda215cf6d21257b3f6b76e34a10ec1",
    url=None,
    advice=f"it re-encodes the day files of {_HOME}: clone that and give its directory, also read",
)

_DAY_FILE = "[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9].md"
_DAY_FOLDERS = ("", "sessions", "data/sessions")
_SESSION_HEAD = re.compile(r"^## Session (\S+)\nSession Date: (.+)\n", re.MULTILINE)
_TURN_HEAD = re.compile(r"^(User|Assistant): ", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Session:
    """A session: its id, its day, and its turns as ``(role, content)``."""

    session_id: str
    date: date
    turns: tuple[tuple[str, str], ...]

    def text(self) -> str:
        """Return the whole session, a paragraph a turn."""
        return "\n\n".join(f"{role.capitalize()}: {content}" for role, content in self.turns)


@dataclass(frozen=True)
class SessionStore:
    """The sessions in order, with the sha256 they were read under."""

    sessions: tuple[Session, ...]
    source: dict[str, str]

    @cached_property
    def by_id(self) -> dict[str, Session]:
        """Sessions by id."""
        return {session.session_id: session for session in self.sessions}

    @cached_property
    def _first_places(self) -> dict[tuple[str, str], Place]:
        first: dict[tuple[str, str], Place] = {}
        for session in self.sessions:
            for position, turn in enumerate(session.turns):
                first.setdefault(turn, (session.session_id, position))
        return first

    def holds(self, place: Place) -> bool:
        """Return whether a session and a turn of it, from 0, are there."""
        session = self.by_id.get(place[0])
        return session is not None and 0 <= place[1] < len(session.turns)

    def first_place(self, place: Place) -> Place:
        """Return the first place in the store where the same role says the same words."""
        return self._first_places[self.by_id[place[0]].turns[place[1]]]

    def memories(self, scope: str, kind: Literal["sessions", "turns"]) -> pl.DataFrame:
        """Return the store as memories; ``twin_of`` is the first of the same text, where another."""
        rows = [(scope, *row) for row in (self._session_rows() if kind == "sessions" else self._turn_rows())]
        names = ["scope", "memory_id", "text", "session", "role"]
        schema: dict[str, pl.DataType] = {**dict.fromkeys(names, pl.String()), "date": pl.Date()}
        frame = pl.DataFrame(rows, schema=schema, orient="row")
        first = pl.col("memory_id").first().over("role", "text")
        return frame.with_columns(twin_of=pl.when(first != pl.col("memory_id")).then(first))

    def note_irregularities(self, notes: Irregularities) -> None:
        """Note what of the store a reader should know of: twins, odd beginnings, days without fillers."""
        first_of: dict[tuple[tuple[str, str], ...], str] = {}
        for session in self.sessions:
            where, roles = session.session_id, [role for role, _ in session.turns]
            twin = first_of.setdefault(session.turns, where)
            if twin != where:
                notes.note("session twice, word for word", where, twin, "kept")
            if roles[0] == "assistant":
                notes.note("session starts with the assistant", where, len(roles), "kept")
            if len(roles) == 1:
                notes.note("session of one turn", where, roles[0], "kept")
            if any(a == b for a, b in pairwise(roles)):
                notes.note("session with a role twice running", where, "-".join(roles[:4]), "kept")
        for (_, content), times in Counter(turn for s in self.sessions for turn in s.turns).items():
            if times > 1:
                notes.note("turn said again, word for word", content[:60], times, "kept")
        days: dict[date, list[str]] = {}
        for session in self.sessions:
            days.setdefault(session.date, []).append(session.session_id)
        for day, ids in days.items():
            if all(i.startswith("answer_") for i in ids):
                notes.note("day without fillers", day.isoformat(), len(ids), "kept")

    def _session_rows(self) -> Iterator[tuple[object, ...]]:
        for session in self.sessions:
            yield session.session_id, session.text(), session.session_id, None, session.date

    def _turn_rows(self) -> Iterator[tuple[object, ...]]:
        for session in self.sessions:
            for position, (role, content) in enumerate(session.turns):
                yield f"{session.session_id}:{position}", content, session.session_id, role, session.date


def read_sessions(path: PathLike | None = None) -> SessionStore:
    """Read the store: ``memaware_sessions.jsonl``, plain or packed, or the day files of MemAware.

    Parameters
    ----------
    path
        The file, or a directory that holds it, or one that holds ``2023-04-01.md`` and so on, itself or in
        ``sessions`` or ``data/sessions``. None: ``$CMP_DATA``.

    Raises
    ------
    DatasetError
        Where there is neither, or what is there cannot be read.
    """
    try:
        found = find_file(SESSIONS, path)
    except DatasetError:
        place = path if path is not None else os.environ.get("CMP_DATA")
        days = _day_files(Path(place).expanduser()) if place else []
        if not days:
            raise
        return _from_days(days)
    file = RawFile.read(found)
    with file.named_in_errors():
        sessions = [_from_record(record, f"line {number}") for number, record in file.json_lines()]
        return _store(sessions, SESSIONS.provenance(file))


def _store(sessions: list[Session], source: dict[str, str]) -> SessionStore:
    ids = Counter(session.session_id for session in sessions)
    repeated = [session_id for session_id, times in ids.items() if times > 1]
    if not sessions or repeated:
        raise DatasetError(f"session ids repeat: {repeated[:5]}" if repeated else "there is no session in it")
    return SessionStore(tuple(sessions), source)


def _from_record(record: object, where: str) -> Session:
    session_id, day = require(record, "session_id", str, where), require(record, "date", str, where)
    turns = []
    for position, turn in enumerate(require(record, "turns", list, where)):
        place = f"{where}, turn {position}"
        turns.append((require(turn, "role", str, place), require(turn, "content", str, place)))
    return _session(session_id, day, turns, where)


def _session(session_id: str, day: str, turns: list[tuple[str, str]], where: str) -> Session:
    if not turns:
        raise DatasetError(f"{where}: session {session_id} has no turns")
    try:
        return Session(session_id, date.fromisoformat(day[:10].replace("/", "-")), tuple(turns))
    except ValueError as error:
        raise DatasetError(f"{where}: session {session_id} has the date {day!r}, not YYYY-MM-DD") from error


def _day_files(directory: Path) -> list[Path]:
    return next(
        (days for folder in _DAY_FOLDERS if (days := sorted((directory / folder).glob(_DAY_FILE)))), []
    )


def _from_days(days: list[Path]) -> SessionStore:
    digest, sessions = hashlib.sha256(), []
    for path in days:
        file = RawFile.read(path)
        digest.update(file.raw)
        with file.named_in_errors():
            sessions += _from_day(file.text())
    return _store(sessions, {f"{len(days)} day files, joined": digest.hexdigest()})


def _from_day(text: str) -> list[Session]:
    sessions = []
    pieces = _SESSION_HEAD.split(text)[1:]
    for session_id, day, body in zip(pieces[::3], pieces[1::3], pieces[2::3], strict=True):
        said = _TURN_HEAD.split(body)[1:]
        turns = [(role.lower(), words.strip()) for role, words in zip(said[::2], said[1::2], strict=True)]
        sessions.append(_session(session_id, day, turns, f"session {session_id}"))
    return sessions
