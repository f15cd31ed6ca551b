"""Records as lines of JSON with their own length and checksum: what was torn is noticed, and costs itself alone."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from zlib import crc32

from cmp.errors import LogCorruptedError
from cmp.log.gathering import NAMED_AT_MOST, GatheredLog, PlacedRecord, gathered
from cmp.log.losses import Losses

logger = logging.getLogger("cmp.log")

__all__ = ["JsonlSink", "read_jsonl"]

#: How a line begins. JSON escapes quotation marks, so that no text within a record can look like this.
_HEAD: Final = re.compile(rb'\{"crc32":"([0-9a-f]{8})","length":([0-9]{1,18}),"record":')

_OPENING: Final = b'{"crc32":"'

_BEGINNING: Final = re.compile(b"(?=" + re.escape(_OPENING) + b")")


@dataclass(frozen=True, slots=True)
class JsonlSink:
    """A sink that appends to a file, one record a line; any number of processes of one host may share it.

    A line is ``{"crc32": ..., "length": ..., "record": {...}}``, JSON as any tool reads it, where the checksum and the
    length are those of the record's bytes. It is appended by a single write, which no other splits.

    Parameters
    ----------
    path
        The file; its directory is made. It is opened for each record, so it may be rotated. Each host writes its own.
    fsync
        Wait for the disk: survives the loss of power, and is slower.

    Examples
    --------
    >>> import tempfile, cmp
    >>> store = {f"m{i}": f"memory number {i}" for i in range(12)}
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = folder.name + "/exposures.jsonl"
    >>> memory = cmp.wrap(
    ...     lambda query: list(store)[:6], list_ids=lambda: store, get=lambda ids: ids, slots=6, random_slots=2,
    ...     log=JsonlSink(path), allocation="uniform", seed=1, scope=cmp.EVERYTHING,
    ... )
    >>> memory.record(memory.retrieve("plan my commute").round_id, 1.0)
    >>> memory.close()
    >>> log = read_jsonl(path)
    >>> log.rounds().collect().height, log.outcomes().collect().height, log.torn
    (1, 1, 0)
    >>> folder.cleanup()
    """

    path: str | os.PathLike[str]
    fsync: bool = False

    def __post_init__(self) -> None:
        Path(self.path).absolute().parent.mkdir(parents=True, exist_ok=True)

    def write(self, record: Mapping[str, object]) -> None:
        """Append a record.

        Raises
        ------
        OSError
            Where the file cannot be written, or only a part of the record could (a full disk).
        """
        line = _line(record)
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
        try:
            written = os.write(file, line)
            if written < len(line):
                raise OSError(f"{written} of {len(line)} bytes of a record were written to {self.path}")
            if self.fsync:
                os.fsync(file)
        finally:
            os.close(file)


def read_jsonl(*paths: str | os.PathLike[str]) -> GatheredLog:
    """Read the files that :class:`JsonlSink` wrote, of one host or of many, as one log.

    Parameters
    ----------
    paths
        Files, in any order. What is torn in them is skipped and counted, and never takes the record behind it along.

    Returns
    -------
    GatheredLog
        A log in memory; ``.torn`` says how many records were lost, and ``.losses`` where. A record that was cut short,
        as a crash leaves it (at the end, or with the record of the next start behind it), is counted there and warned
        of; anything else that is torn is a finding of :func:`cmp.validate_log`.

    Raises
    ------
    FileNotFoundError, LogVersionError
        Where a file is not there, or a newer version wrote it.
    LogCorruptedError
        Where a file that is not empty holds no record of a sink.

    Examples
    --------
    See :class:`JsonlSink`.

    >>> import tempfile, pathlib
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder) / "torn.jsonl"
    ...     _ = path.write_text('{"crc32":"00000000","length":99,"record":{"ty')
    ...     read_jsonl(path)
    GatheredLog(0 rounds, 1 torn, 0 conflicts)
    """
    records: list[PlacedRecord] = []
    torn: list[str] = []
    cut = 0
    for path in paths:
        file = _File(os.fspath(path))
        records += file.records
        torn += file.torn
        cut += len(file.cut)
    return gathered(records, Losses(torn=len(torn), cut=cut, torn_at=tuple(torn[:NAMED_AT_MOST])))


class _File:
    """A file of records, read.

    Attributes
    ----------
    records
        Its whole records.
    torn
        Where something else stands in it.
    cut
        Where a record was cut short as a crash leaves it; this is not counted as torn.
    """

    def __init__(self, path: str) -> None:
        self.records: list[PlacedRecord] = []
        self.torn: list[str] = []
        self.cut: list[str] = []
        with Path(path).open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                for found in _records(line):
                    if isinstance(found, bytes):
                        (self.cut if _is_cut_short(found) else self.torn).append(f"{path}, line {number}")
                    else:
                        self.records.append(PlacedRecord(found, path, number))
        if self.cut:
            logger.warning(
                "%s: a record was cut short, as a crash leaves it, and is left out%s",
                self.cut[-1],
                f"; so are {len(self.cut) - 1} before it" if len(self.cut) > 1 else "",
            )
        if self.torn and not self.records:
            raise LogCorruptedError(
                f"{path} holds no record of a sink from line 1 on, though it is not empty: it is no log of ours, or "
                "every line is damaged. Rounds of another system are read by cmp.read_jsonl, which is told the names "
                "of its fields"
            )


def _line(record: Mapping[str, object]) -> bytes:
    content = json.dumps(record, separators=(",", ":"), allow_nan=False).encode("ascii")
    return b'{"crc32":"%08x","length":%d,"record":%s}\n' % (crc32(content), len(content), content)


def _records(line: bytes) -> Iterator[Mapping[str, Any] | bytes]:
    """Yield the records of a line, which holds more than one where the first was cut short; torn ones as they are."""
    end = 0
    for head in _HEAD.finditer(line):
        yield from _torn(line[end : head.start()])
        content = line[head.end() : head.end() + int(head[2])]
        end = head.end() + len(content) + 1
        if line[end - 1 : end] == b"}" and crc32(content) == int(head[1], 16):
            yield json.loads(content)
        else:
            end = head.start()
    yield from _torn(line[end:])


def _torn(between: bytes) -> Iterator[bytes]:
    """Yield what stands between whole records: as many pieces as records began there, blanks left out."""
    return (piece for piece in _BEGINNING.split(between) if piece.strip())


def _is_cut_short(piece: bytes) -> bool:
    """Whether this is what a crash leaves of a record: its beginning, and then the file's end or the next record."""
    if piece.endswith(b"\n") or not _OPENING.startswith(piece[: len(_OPENING)]):
        return False
    head = _HEAD.match(piece)
    return head is None or len(piece) <= head.end() + int(head[2])
