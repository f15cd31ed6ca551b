"""What the wrapper asks of a store, whatever it wraps: callables or an object of the backend protocols."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from cmp.errors import ScopeError
from cmp.protocols import (
    EVERYTHING,
    AsyncMemoryBackend,
    Hit,
    MemoryBackend,
    Scope,
    ScopeLike,
    SupportsRevision,
    canonical_id,
)

__all__ = ["Backend", "IdOf", "OwnerOf", "Source", "backend_of"]

IdOf: TypeAlias = Callable[[Any], object]
OwnerOf: TypeAlias = Callable[[Any], ScopeLike | None]


@dataclass(frozen=True, slots=True)
class Backend:
    """Search, listing and fetching, each synchronous, asynchronous or both, and how to read an id.

    ``search(query, n, scope)`` and ``get(ids, scope)`` return the store's own objects; ``list_ids(scope)`` ids.
    """

    id_of: IdOf
    search: Callable[[Any, int, Scope], Iterable[Any]] | None = None
    list_ids: Callable[[Scope], Iterable[object]] | None = None
    get: Callable[[Sequence[str], Scope], Any] | None = None
    asearch: Callable[[Any, int, Scope], Awaitable[Iterable[Any]]] | None = None
    alist_ids: Callable[[Scope], Awaitable[Iterable[object]]] | None = None
    aget: Callable[[Sequence[str], Scope], Awaitable[Any]] | None = None
    revision: Callable[[Scope], Hashable] | None = None
    arevision: Callable[[Scope], Awaitable[Hashable]] | None = None
    owner_of: OwnerOf | None = None

    def hits(self, found: Iterable[Any]) -> list[Hit[Any]]:
        """Return a ranking as hits, without the repeats of an id (the first wins).

        Raises
        ------
        InvalidIdError
            Where an item has no usable id; the message names the item's position and the mend.
        """
        first: dict[str, Hit[Any]] = {}
        for position, item in enumerate(found):
            hit = self._hit(item, "result {} of the retriever", position)
            first.setdefault(hit.id, hit)
        return list(first.values())

    @property
    def has_revision(self) -> bool:
        """Whether the store has a cheap change token."""
        return self.revision is not None or self.arevision is not None

    def foreign(self, hits: Iterable[Hit[Any]], scope: Scope) -> set[str]:
        """Return the ids of the items that say they belong to another scope."""
        if self.owner_of is None or scope == EVERYTHING:
            return set()
        owners = ((hit.id, self.owner_of(hit.item)) for hit in hits)
        return {memory_id for memory_id, owner in owners if owner is not None and Scope.of(owner) != scope}

    def fetched(self, found: Any, wanted: Sequence[str], scope: Scope) -> dict[str, Hit[Any]]:
        """Return what ``get`` found by id.

        Raises
        ------
        ScopeError
            Where it holds an id that was not asked for, or an item that says it belongs to another scope.
        """
        items = found.values() if isinstance(found, Mapping) else found
        hits = {
            hit.id: hit
            for hit in (self._hit(item, "item {} that get() returned", i) for i, item in enumerate(items))
        }
        foreign = hits.keys() - set(wanted)
        if foreign:
            raise ScopeError(
                f"get() returned {sorted(foreign)[:3]!r}, which nobody asked for; it must return only the ids it is "
                "given, and only those of the scope"
            )
        crossed = self.foreign(hits.values(), scope)
        if crossed:
            raise ScopeError(
                f"get() returned {sorted(crossed)[:3]!r} of another scope than {scope.key!r}; its listing or its "
                "filter leaks. Nothing of it was served"
            )
        return hits

    def _hit(self, item: Any, where: str, position: int) -> Hit[Any]:
        if isinstance(item, Hit):
            if not (
                type(item.id) is str and item.id and item.id.isascii()
            ):  # a common id need not be read twice
                canonical_id(item.id, where.format(position))
            return item
        return Hit(canonical_id(self.id_of(item), where.format(position)), item)


def own_id(item: Any) -> object:
    """Read an item's id where ``id_of`` is not given: an id itself, or the ``id`` key or attribute."""
    if isinstance(item, (str, int)):
        return item
    if isinstance(item, Mapping):
        return item.get("id")
    return getattr(item, "id", None)


@dataclass(frozen=True, slots=True)
class Source:
    """What the caller handed over; picklable where that is."""

    retriever: Any
    list_ids: Callable[..., Any] | None = None
    get: Callable[..., Any] | None = None
    id_of: IdOf | None = None
    owner_of: OwnerOf | None = None


def backend_of(source: Source, *, random: bool) -> Backend:
    """Return the backend for a callable with its ``list_ids`` and ``get``, or for an object of the protocols.

    Raises
    ------
    TypeError
        Where the retriever is neither, or cannot be listed or fetched from and ``random`` slots need it to be.
    """
    backend = _backend(source)
    if random:
        _require_random_slots(backend)
    return backend


def _backend(source: Source) -> Backend:
    retriever, reader = source.retriever, source.id_of or own_id
    if isinstance(retriever, (MemoryBackend, AsyncMemoryBackend)):
        return _of_protocol(retriever, reader, source.owner_of)
    search = retriever if callable(retriever) else getattr(retriever, "search", None)
    if callable(search):
        return _of_callables(search, source.list_ids, source.get, reader, source.owner_of)
    raise TypeError(
        f"{type(retriever).__name__} is no retriever: pass a callable retriever(query), or an object with "
        "search(query, n, *, scope), list_ids(*, scope) and get(ids, *, scope)"
    )


def _of_protocol(retriever: Any, id_of: IdOf, owner_of: OwnerOf | None) -> Backend:
    synchronous = isinstance(retriever, MemoryBackend)
    asynchronous = isinstance(retriever, AsyncMemoryBackend)

    async def alist_ids(scope: Scope) -> list[object]:
        return [memory_id async for memory_id in retriever.alist_ids(scope=scope)]

    return Backend(
        id_of,
        search=(lambda query, n, scope: retriever.search(query, n, scope=scope)) if synchronous else None,
        list_ids=(lambda scope: retriever.list_ids(scope=scope)) if synchronous else None,
        get=(lambda ids, scope: retriever.get(ids, scope=scope)) if synchronous else None,
        asearch=(lambda query, n, scope: retriever.asearch(query, n, scope=scope)) if asynchronous else None,
        alist_ids=alist_ids if asynchronous else None,
        aget=(lambda ids, scope: retriever.aget(ids, scope=scope)) if asynchronous else None,
        **_revision(retriever),
        owner_of=owner_of,
    )


def _revision(retriever: Any) -> dict[str, Any]:
    if not isinstance(retriever, SupportsRevision):
        return {}
    name = "arevision" if inspect.iscoroutinefunction(retriever.revision) else "revision"
    return {name: lambda scope: retriever.revision(scope=scope)}


def _of_callables(
    retriever: Callable[..., Any],
    list_ids: Callable[..., Any] | None,
    get: Callable[..., Any] | None,
    id_of: IdOf,
    owner_of: OwnerOf | None,
) -> Backend:
    takes = _keywords(retriever)
    slots: dict[str, Any] = {}

    def search(query: Any, n: int, scope: Scope) -> Any:
        return retriever(
            query, **{name: value for name, value in _offered(n, scope).items() if name in takes}
        )

    slots["asearch" if _is_async(retriever) else "search"] = search
    if list_ids is not None:
        listing = _scoped(list_ids, "list_ids")
        slots["alist_ids" if _is_async(list_ids) else "list_ids"] = listing
    if get is not None:
        fetching = _scoped(get, "get")
        slots["aget" if _is_async(get) else "get"] = lambda ids, scope: fetching(scope, list(ids))
    return Backend(id_of, owner_of=owner_of, **slots)


def _offered(n: int, scope: Scope) -> dict[str, Any]:
    return {"n": n} if scope == EVERYTHING else {"n": n, "scope": scope.native()}


def _scoped(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return ``function(*args, scope=...)`` as a function of (scope, *args); refuse to drop a scope silently."""
    takes_scope = "scope" in _keywords(function)

    def call(scope: Scope, *args: Any) -> Any:
        if scope == EVERYTHING:
            return function(*args)
        if not takes_scope:
            raise ScopeError(
                f"{name} takes no scope, so it would reach every tenant's memories; give it a scope keyword, or pass "
                "scope=cmp.EVERYTHING for a store with a single tenant"
            )
        return function(*args, scope=scope.native())

    return call


def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


class _Any:
    """Holds every name."""

    def __contains__(self, name: object) -> bool:
        return True


def _keywords(function: Callable[..., Any]) -> frozenset[str] | _Any:
    """Return the keywords a callable takes."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return frozenset()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return _Any()
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return frozenset(parameter.name for parameter in parameters if parameter.kind in named)


def _require_random_slots(backend: Backend) -> None:
    """Refuse random slots over a store that cannot be listed or fetched from.

    Raises
    ------
    TypeError
        Naming what is missing.
    """
    missing = [
        name
        for name in ("list_ids", "get")
        if getattr(backend, name) is None and getattr(backend, f"a{name}") is None
    ]
    if missing:
        raise TypeError(
            f"random slots need {' and '.join(f'{name}=...' for name in missing)}: list_ids(scope=...) returns the ids "
            "of a scope and get(ids, scope=...) their items. Without them only random_slots=0 can be served"
        )
