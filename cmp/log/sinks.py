"""A log that is only written: each round handed, as one record, to whatever pipeline the caller has.

Nothing is shared between workers but the seed, so this goes with ``allocation="uniform"`` alone: a round's memories are
a function of its key and of the roster, and a block is known by a hash of its roster, the same in every process.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, NoReturn, Protocol, TypeVar, runtime_checkable

import polars as pl

from cmp.design import Block, key_of, keyed_sample
from cmp.errors import ScopeError, UnknownRoundError
from cmp.forking import around_fork
from cmp.log.reading import Log
from cmp.log.records import AssignedRound, Compose, Drawn, Exposure, Request, Staged
from cmp.log.schema import SCHEMA_VERSION, Table
from cmp.log.thread import REST_SECONDS, WriterThread, refusal_after_fork

__all__ = ["NO_COUNTER", "Sink", "SinkLog"]

T = TypeVar("T")

logger = logging.getLogger("cmp.log")

#: Rounds a process remembers, so that a retry is known as one and a trimmed context can be marked.
ROUNDS_KEPT: Final = 4096


@runtime_checkable
class Sink(Protocol):
    """Where records go: one method.

    A record is a mapping that ``json.dumps`` takes; its ``type`` is ``round`` (with its exposures), ``outcome``,
    ``amendment`` or ``block`` (with its roster), its fields are the columns of the log's tables. Records may come
    twice: :func:`cmp.log.gathering.read_records` collapses them. ``write`` is called by one thread of each process,
    and never while it forks. It raises where the record is not kept, and then only: the base ranking is served in
    place of such a round.
    """

    def write(self, record: Mapping[str, object]) -> None:
        """Keep a record; durable, to whatever degree is wanted, when this returns."""
        ...


@dataclass(frozen=True, slots=True)
class _Open:
    """A block in use: its roster as this process listed it."""

    block_id: str
    scope: str
    k: int
    roster: Sequence[str]

    def holds(self, memory_id: str) -> bool:
        place = bisect_left(self.roster, memory_id)
        return place < len(self.roster) and self.roster[place] == memory_id


@dataclass(frozen=True, slots=True)
class _Served:
    """A round of this process: its record, what it is after amendments, and how often it was asked for."""

    record: Mapping[str, object]
    round: AssignedRound
    attempts: int = 1


class SinkLog(Log):
    """What :class:`cmp.log.records.LogStore` asks, over a :class:`Sink`. It cannot be read.

    Parameters
    ----------
    sink
        Where the records go. With a ``close`` method, it is called by :meth:`close`.
    """

    #: Draws need no salt: the uniform design has a seed.
    salt: Final = ""

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self._open: dict[str, _Open] = {}
        self._staged: dict[str, Sequence[str]] = {}
        self._rounds: OrderedDict[str, _Served] = OrderedDict()
        self._dropped = 0
        self._thread = WriterThread()
        around_fork(
            self,
            before=SinkLog._rest,
            after_in_parent=lambda log: log._thread.wake(),
            after_in_child=SinkLog._restart,
        )

    def __repr__(self) -> str:
        return f"SinkLog({self.sink!r})"

    def __reduce__(self) -> tuple[type[SinkLog], tuple[Sink]]:
        return SinkLog, (self.sink,)

    # -- rounds -------------------------------------------------------------------------------------------------

    def assign(self, request: Request, compose: Compose) -> Future[AssignedRound | None]:
        """Draw by the request's key from the stream's roster and write the round; None where there is no roster."""
        return self._thread.submit(lambda: self._assign(request, compose))

    def _assign(self, request: Request, compose: Compose) -> AssignedRound | None:
        served = self._rounds.get(request.round_id)
        if served is not None:
            return self._repeat(request, served)
        block = None if request.stream is None else self._open.get(request.stream)
        if request.stream is not None and block is None:
            return None
        exposures = compose(_drawn(block, request.key))
        record = _round_record(request, block, exposures)
        self.sink.write(record)
        assigned = AssignedRound(
            request.round_id, request.scope, block is not None, request.fallback_reason, exposures, False
        )
        self._remember(_Served(record, assigned))
        return assigned

    def _repeat(self, request: Request, served: _Served) -> AssignedRound:
        if served.round.scope != request.scope:
            raise ScopeError(
                f"round {request.round_id!r} was asked in another scope before; a round_id belongs to one retrieval: "
                "give each its own, or none"
            )
        self.sink.write(served.record)
        self._remember(replace(served, attempts=served.attempts + 1))
        return replace(served.round, repeated=True)

    def amend(self, round_id: str, exposures: Sequence[Exposure]) -> Future[None]:
        """Write exposure rows that replace or add to those of a round."""
        return self._thread.submit(lambda: self._amend(round_id, exposures))

    def withdraw(self, round_id: str, reason: str) -> Future[None]:
        """Mark a round undelivered, unless it has been asked again since."""

        def job() -> None:
            served = self._rounds.get(round_id)
            if served is not None and served.attempts == 1:
                shown = [row for row in served.round.exposures if row.delivered]
                self._amend(round_id, [row._replace(delivered=False, reason=reason) for row in shown])

        return self._thread.submit(job)

    def _amend(self, round_id: str, exposures: Sequence[Exposure]) -> None:
        rows = [row._asdict() for row in exposures]
        self.sink.write(_record("amendment", round_id=round_id, exposures=rows))
        served = self._rounds.get(round_id)
        if served is not None:
            amended = {row.memory_id: row for row in (*served.round.exposures, *exposures)}
            now = replace(served.round, exposures=tuple(amended.values()))
            self._remember(replace(served, round=now))

    def note_contents(self, round_id: str, hashes: Mapping[str, str]) -> None:
        """Write content hashes when there is time: nobody waits for them."""
        record = _record("amendment", round_id=round_id, content_hashes=dict(hashes))

        def count(done: Future[None]) -> None:
            if not done.cancelled() and (error := done.exception()) is not None:
                self._dropped += len(hashes)
                logger.debug("content hashes were not written: %s", error)

        self._thread.submit(lambda: self.sink.write(record)).add_done_callback(count)

    @property
    def drops(self) -> Mapping[str, int]:
        """What the sink did not take and nobody waited for, by kind: ``content_hashes``."""
        return {"content_hashes": self._dropped} if self._dropped else {}

    def exposures_of(self, round_id: str) -> Future[tuple[Exposure, ...]]:
        """Return the exposures of a round that this process served lately (raises ``UnknownRoundError``)."""

        def job() -> tuple[Exposure, ...]:
            if round_id not in self._rounds:
                raise UnknownRoundError(
                    f"round {round_id!r} is none of the last {ROUNDS_KEPT} of this process, and a sink cannot be read"
                )
            return self._rounds[round_id].round.exposures

        return self._thread.submit(job)

    def outcome(self, round_id: str, metric: str, value: float, at: datetime, correct: bool) -> Future[bool]:
        """Write an outcome. Unknown rounds and conflicting outcomes come out when the records are read."""
        record = _record(
            "outcome",
            round_id=round_id,
            metric=metric,
            value=value,
            recorded_at=at.isoformat(),
            correct=correct,
        )

        def job() -> bool:
            self.sink.write(record)
            return True

        return self._thread.submit(job)

    def _remember(self, served: _Served) -> None:
        self._rounds[served.round.round_id] = served
        self._rounds.move_to_end(served.round.round_id)
        if len(self._rounds) > ROUNDS_KEPT:
            self._rounds.popitem(last=False)

    # -- blocks -------------------------------------------------------------------------------------------------

    def stage(self, stream: str, roster: Sequence[str], planned: int, *, counted: bool) -> Staged | None:
        """Keep a sorted roster for the stream's next block; None where the stream has one."""
        if stream in self._open:
            return None
        block_id = f"{key_of('roster', stream, planned, *roster):032x}"
        self._staged[block_id] = tuple(roster)
        return Staged(block_id, 0, None)

    def open_block(
        self, staged: Staged, stream: str, scope: str, group: str | None, block: Block
    ) -> Future[bool]:
        """Write a block and draw from it from now on."""
        if block.table is not None:
            raise ValueError(NO_COUNTER)
        roster = self._staged.pop(staged.block_id)
        record = _record(
            "block",
            block_id=staged.block_id,
            scope=scope,
            group=group,
            design=block.design,
            k=block.k,
            length=block.length,
            created_at=datetime.now(UTC).isoformat(),
            roster=roster,
        )

        def job() -> bool:
            self.sink.write(record)
            self._open[stream] = _Open(staged.block_id, scope, block.k, roster)
            return True

        return self._thread.submit(job)

    def end_blocks(self, scope: str) -> Future[int]:
        """Let go of a scope's rosters; the next round lists it anew."""
        return self._thread.submit(lambda: self._end(lambda block: block.scope == scope))

    def open_rosters(self, scope: str) -> Future[frozenset[str]]:
        """Return the ids that this process may still draw in a scope."""
        return self._thread.submit(
            lambda: frozenset(
                memory_id
                for block in self._open.values()
                if block.scope == scope
                for memory_id in block.roster
            )
        )

    def remove(self, scope: str, ids: Sequence[str]) -> Future[int]:
        """Let go of a scope's rosters that hold deleted memories. Other processes find out when they list or fetch."""
        return self._thread.submit(
            lambda: self._end(lambda block: block.scope == scope and any(map(block.holds, ids)))
        )

    def _end(self, is_over: Callable[[_Open], bool]) -> int:
        over = [stream for stream, block in self._open.items() if is_over(block)]
        for stream in over:
            del self._open[stream]
        return len(over)

    # -- the writer thread ----------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Return when the sink has everything that was handed over."""
        if self._thread.is_awake:
            self._thread.submit(lambda: None).result()

    def close(self) -> None:
        """Flush, and close the sink where it can be closed; it is written to again when next used."""
        self._thread.end(self._close_sink)

    def _close_sink(self) -> None:
        close = getattr(self.sink, "close", None)
        if callable(close):
            close()

    def _rest(self) -> None:
        self._thread.rest(REST_SECONDS)

    def _restart(self) -> None:
        """Begin anew in a forked child; or not at all, where the sink was being written to."""
        self._thread = WriterThread(refusal_after_fork(self) if self._thread.is_busy else None)

    # -- reading ------------------------------------------------------------------------------------------------

    def scan(self, table: Table) -> pl.LazyFrame:
        """Raise: a sink is written only."""
        self._refuse()

    def meta(self) -> Mapping[str, str]:
        """Raise: a sink is written only."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise TypeError(
            f"{self!r} is written only; gather its records and read them with cmp.log.read_jsonl "
            "or cmp.log.read_records"
        )


NO_COUNTER: Final = (
    "a sink has no counter to share, so no block's table can be dealt through it; pass allocation='uniform' and a "
    "seed, or keep the log in SQLite or Postgres"
)


def _drawn(block: _Open | None, key: int) -> list[Drawn]:
    if block is None:
        return []
    n = len(block.roster)
    return [Drawn(block.roster[place], block.k / n) for place in keyed_sample(key, n, block.k)]


def _round_record(request: Request, block: _Open | None, exposures: Sequence[Exposure]) -> dict[str, object]:
    return _record(
        "round",
        round_id=request.round_id,
        scope=request.scope,
        block_id=None if block is None else block.block_id,
        episode_id=request.episode_id,
        group=request.group,
        query_hash=request.query_hash,
        asked_at=request.asked_at.isoformat(),
        n_roster=0 if block is None else len(block.roster),
        k=0 if block is None else block.k,
        n_ranked=sum(row.arm == "ranked" for row in exposures),
        randomized=block is not None,
        fallback_reason=request.fallback_reason,
        exposures=[row._asdict() for row in exposures],
    )


def _record(kind: str, **fields: Any) -> dict[str, object]:
    return {"type": kind, "schema_version": SCHEMA_VERSION, **fields}
