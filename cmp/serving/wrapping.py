"""``cmp.wrap``: from a retriever and a few settings to the middleware."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Literal, cast

from cmp.log import Log, open_log
from cmp.log.records import LogStore
from cmp.log.sinks import Sink, SinkLog
from cmp.log.writing import WritingLog
from cmp.protocols import Scope, ScopeLike
from cmp.serving.backends import IdOf, OwnerOf, Source, backend_of
from cmp.serving.policy import Policy
from cmp.serving.telemetry import require_opentelemetry
from cmp.serving.wrapper import RandomizedRetriever

__all__ = ["wrap"]


def wrap(
    retriever: Any,
    *,
    slots: int,
    random_slots: int,
    log: str | os.PathLike[str] | Log | Sink,
    list_ids: Callable[..., Any] | None = None,
    get: Callable[..., Any] | None = None,
    id_of: IdOf | None = None,
    text_of: Callable[[Any], str | None] | None = None,
    owner_of: OwnerOf | None = None,
    allocation: Literal["balanced", "uniform"] = "balanced",
    balance_within: Literal["scope", "group"] = "scope",
    exposures_per_block: float = 2,
    rounds_per_block: int | None = None,
    max_block_rounds: int | None = None,
    reference_cards: int | Literal["auto"] = 0,
    card: Literal["empty", "ranked"] = "empty",
    withhold: int = 0,
    holdout: float = 0.0,
    placement: Literal["last", "shuffle"] = "last",
    roster_ttl: float | None = None,
    log_timeout: float = 2.0,
    telemetry: bool = False,
    on_error: Literal["serve", "raise"] = "serve",
    scope: ScopeLike | None = None,
    seed: int | None = None,
) -> RandomizedRetriever:
    """Wrap any retriever so that ``random_slots`` of its ``slots`` context positions are randomized.

    Parameters
    ----------
    retriever
        A callable ``retriever(query)``, given ``n=`` and ``scope=`` as far as it takes them, that returns its
        items best first; or an object of the protocols in ``cmp.protocols``. Synchronous or asynchronous.
    slots, random_slots
        ``B`` and ``k``: of ``B`` positions, ``B - k`` keep the ranked results. ``random_slots=0`` serves the base
        list itself, unchanged.
    log
        Path of a SQLite file, ``postgresql://...`` (the extra ``postgres``), an open log, or a :class:`cmp.log.Sink`
        of your own pipeline (with ``allocation="uniform"`` only: a sink has no counter to share).
    list_ids, get
        For a callable: ``list_ids(scope=...)`` returns every id of a scope, ``get(ids, scope=...)`` the items of
        some (in any order, or as a mapping; what is gone is left out).
    id_of, text_of
        How to read an item's id and text. Text is hashed, to notice changed contents, and never logged.
    owner_of
        How to read the scope an item says it belongs to, where it does: one more check that nothing crosses scopes.
    allocation, balance_within, exposures_per_block, rounds_per_block, max_block_rounds, reference_cards, card, \
    withhold, holdout, placement, roster_ttl, log_timeout, telemetry, on_error, seed
        See :class:`cmp.serving.Policy`.
    scope
        A fixed scope for all calls.

    Returns
    -------
    RandomizedRetriever

    Raises
    ------
    ValueError, TypeError
        Where a setting is out of range, or something needed for random slots is missing.
    LogVersionError, LogCorruptedError
        Where there is something at the log's path that this version cannot append to.

    Examples
    --------
    >>> import tempfile, cmp
    >>> store = {f"m{i}": f"memory number {i}" for i in range(12)}
    >>> folder = tempfile.TemporaryDirectory()
    >>> memory = cmp.wrap(
    ...     lambda query: list(store)[:6],
    ...     list_ids=lambda: store, get=lambda ids: [i for i in ids if i in store],
    ...     slots=6, random_slots=2, log=folder.name + "/exposures.db", scope=cmp.EVERYTHING,
    ... )
    >>> context = memory.retrieve("plan my commute")
    >>> len(context), context.randomized
    (6, True)
    >>> memory.record(context.round_id, 1.0)
    >>> memory.close(); folder.cleanup()
    """
    policy = Policy(
        slots=slots,
        random_slots=random_slots,
        allocation=allocation,
        balance_within=balance_within,
        exposures_per_block=exposures_per_block,
        rounds_per_block=rounds_per_block,
        max_block_rounds=max_block_rounds,
        reference_cards=reference_cards,
        card=card,
        withhold=withhold,
        holdout=holdout,
        placement=placement,
        roster_ttl=roster_ttl,
        log_timeout=log_timeout,
        telemetry=telemetry,
        on_error=on_error,
        seed=seed,
    )
    source = Source(retriever, list_ids, get, id_of, owner_of)
    backend_of(source, random=random_slots > 0)  # what it refuses must be refused before a log is made
    if telemetry:
        require_opentelemetry()
    fixed = None if scope is None else Scope.of(scope)
    store = _writable(log)
    if policy.layout.is_drawn or holdout:
        _ = store.salt  # read now, and not within a request
    return RandomizedRetriever(policy, source, store, text_of, fixed)


def _writable(log: str | os.PathLike[str] | Log | Sink) -> WritingLog | SinkLog:
    if isinstance(log, Sink) and not isinstance(log, Log):
        return SinkLog(log)
    opened = open_log(log, create=True)
    if not isinstance(opened, LogStore):
        raise TypeError(
            f"{opened!r} is read only; give the path of a SQLite file, a postgresql:// URL or a sink"
        )
    return cast("WritingLog | SinkLog", opened)
