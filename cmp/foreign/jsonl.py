"""Lines of JSON: this package's own records, or anybody's rounds and memories."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import polars as pl

from cmp.errors import CmpError
from cmp.foreign.building import build_log
from cmp.foreign.columns import named_columns
from cmp.foreign.frames import SUMS_WITHIN, checked_k, checked_slack
from cmp.foreign.lines import RowBuffer, json_objects
from cmp.foreign.logs import ForeignLog
from cmp.foreign.problems import ForeignLogError, Places, Problems, finite_number
from cmp.log.gathering import GatheredLog
from cmp.log.jsonl import read_jsonl as read_own_records
from cmp.protocols import canonical_id, check_one_type

__all__ = ["read_jsonl"]

#: How the first line of a file of this package's records begins.
_OWN: Final = b'{"crc32":"'

_FLAGS: Final = ("assigned", "eligible")
_NUMBERS: Final = ("propensity", "outcome", "k")
_IDS: Final = ("round_id", "memory_id", "scope", "stratum", "group", "episode_id")

#: Of these, what there is too much of to remember how each was spelt.
_MANY: Final = ("round_id", "episode_id")


def read_jsonl(
    *paths: str | os.PathLike[str],
    round: str = "round_id",
    memory: str = "memory_id",
    assigned: str = "assigned",
    propensity: str = "propensity",
    outcome: str = "outcome",
    scope: str | None = None,
    stratum: str | None = None,
    query: str | None = None,
    episode: str | None = None,
    eligible: str | None = None,
    k: int | str | None = None,
    memories: str = "memories",
    sums_within: float = SUMS_WITHIN,
) -> ForeignLog | GatheredLog:
    r"""Read lines of JSON: those of a :class:`cmp.JsonlSink` as the log they are, others as rounds and memories.

    Parameters
    ----------
    paths
        Files, gzipped or not, read as streams. Several are one log, all of one kind. Those of a sink are read unpacked,
        as it wrote them.
    round, memory, assigned, propensity, outcome, scope, stratum, query, episode, eligible, k, sums_within
        Names of the fields, and what they mean, as in :func:`cmp.from_frame`. A line is one row of a round and memory.
    memories
        Where a line has a list under this name, it is a whole round, and the list holds its rows: what a row does not
        say (the outcome, the scope) its round does.

    Returns
    -------
    ForeignLog or cmp.log.GatheredLog
        For ``cmp.utilities``.

    Raises
    ------
    FileNotFoundError
        Where a file is not there.
    PositivityError, InvalidIdError, ConflictingOutcomeError, ForeignLogError
        As in :func:`cmp.from_frame`, each problem with its line.

    Examples
    --------
    >>> import json, pathlib, tempfile
    >>> def line(number, drawn, y):
    ...     rows = [{"memory_id": m, "assigned": m == drawn, "propensity": 0.5} for m in "ab"]
    ...     return json.dumps({"round_id": number, "outcome": y, "memories": rows})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder) / "rounds.jsonl"
    ...     _ = path.write_text("\n".join([line(1, "a", 1), line(2, "b", 0), line(3, "a", None), line(4, "b", 1)]))
    ...     log = read_jsonl(path)
    >>> log
    ForeignLog(4 rounds, 2 memories, 1 without an outcome)
    """
    if not paths:
        raise ForeignLogError("no file was named; give the paths to read")
    if _are_own(paths):
        return read_own_records(*paths)
    slack = checked_slack(sums_within)
    names = named_columns(
        round_id=round, memory_id=memory, assigned=assigned, propensity=propensity, outcome=outcome,
        scope=scope, stratum=stratum, group=query, episode_id=episode, eligible=eligible, k=k,
    )  # fmt: skip
    kinds: dict[str, dict[str, bool]] = {name: {} for name in _IDS if name not in _MANY}
    schema = {
        name: pl.Boolean if name in _FLAGS else pl.Float64 if name in _NUMBERS else pl.String
        for name in names
    }
    rows = RowBuffer(schema)
    named = [os.fspath(path) for path in paths]
    problems, notes, starts = Problems(", ".join(named)), Counter[str](), []
    for path in named:
        starts.append((len(rows), path))
        _read(
            path,
            names,
            memories,
            rows,
            problems,
            kinds=kinds,
            notes=notes,
            prefix=f"{path}, " * (len(named) > 1),
        )
    problems.raise_any()
    table, lines = rows.frame()
    places = Places(problems.source, lines, "line", starts)
    return build_log(
        table,
        None,
        checked_k(k),
        slack,
        problems=problems,
        places=places,
        metric=outcome,
        notes=notes,
    )


def _are_own(paths: Sequence[str | os.PathLike[str]]) -> bool:
    """Return whether the files are this package's; an empty one (a sink that was given nothing yet) is of either kind.

    Raises
    ------
    ForeignLogError
        Where some are and others are not.
    """
    begins = {os.fspath(path): _beginning(path) for path in paths}
    kinds = {path: _OWN.startswith(begin) for path, begin in begins.items() if begin}
    if len(set(kinds.values())) > 1:
        own, other = (
            next(path for path, kind in kinds.items() if kind is wanted) for wanted in (True, False)
        )
        raise ForeignLogError(
            f"{own} holds records of this package, and {other} rounds of another's: they are no one log; read each "
            "kind in a call of its own"
        )
    return all(kinds.values())


def _beginning(path: str | os.PathLike[str]) -> bytes:
    with Path(path).open("rb") as file:
        return file.read(len(_OWN))


def _read(
    path: str | os.PathLike[str],
    names: Mapping[str, str],
    memories: str,
    rows: RowBuffer,
    problems: Problems,
    *,
    kinds: Mapping[str, dict[str, bool]],
    notes: Counter[str],
    prefix: str,
) -> None:
    for line, whole in json_objects(path, problems, notes, prefix):
        parts = whole.get(memories, [whole])
        if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
            problems.add(f"{prefix}line {line}: {memories!r} is no list of objects")
            continue
        for part in parts:
            try:
                row = {name: _value(name, field, part, whole, kinds) for name, field in names.items()}
                rows.extend(line, 1, row)
            except CmpError as error:
                problems.add(f"{prefix}line {line}: {error}", type(error))


def _value(
    name: str,
    field: str,
    part: Mapping[str, Any],
    whole: Mapping[str, Any],
    kinds: Mapping[str, dict[str, bool]],
) -> Any:
    if field not in part and field not in whole and name not in ("outcome", "episode_id"):
        raise ForeignLogError(f"it has no {field!r}, and no other name was given for it")
    value = part.get(field, whole.get(field))
    if name in _IDS:
        if value is None and name == "episode_id":
            return None
        text = canonical_id(value, repr(field))
        if name in kinds:
            check_one_type(text, value, kinds[name])
        return text
    if name in _FLAGS:
        if value not in (0, 1) or not isinstance(value, int | float):
            raise ForeignLogError(f"{field!r} is {value!r}; give true or false")
        return bool(value)
    return None if value is None else finite_number(value, repr(field))
