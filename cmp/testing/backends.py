"""``check_backend``: what the wrapper takes for granted of a store, tried on the store itself."""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cmp.errors import InvalidIdError, ScopeError
from cmp.protocols import (
    EVERYTHING,
    AsyncMemoryBackend,
    Hit,
    MemoryBackend,
    Scope,
    ScopeLike,
    canonical_id,
    canonical_ids,
)
from cmp.serving.backends import Backend, Source, backend_of
from cmp.serving.steps import listed
from cmp.testing.event_loops import EventLoop
from cmp.testing.failures import PropertyError

__all__ = ["BackendCheck", "check_backend"]

#: Names that no store holds.
NO_SCOPE, NO_ID = "cmp.testing: no such scope", "cmp.testing: no such memory"


@dataclass(frozen=True, slots=True)
class BackendCheck:
    """What was tried.

    Attributes
    ----------
    properties
        Those that hold.
    n_memories
        By scope key, at the end.
    """

    properties: tuple[str, ...]
    n_memories: Mapping[str, int]


def check_backend(
    backend: Any,
    scopes: Sequence[ScopeLike],
    *,
    queries: Sequence[Any] = ("what do I like to eat?", ""),
    list_ids: Callable[..., Any] | None = None,
    get: Callable[..., Any] | None = None,
    id_of: Callable[[Any], object] | None = None,
    owner_of: Callable[[Any], ScopeLike | None] | None = None,
    delete: Callable[[Any, str], Any] | None = None,
) -> BackendCheck:
    """Check that a store does what the wrapper relies on; for the test-suite of whoever wrote it.

    Parameters
    ----------
    backend, list_ids, get, id_of, owner_of
        As for :func:`cmp.wrap`: an object of the protocols, synchronous or asynchronous, or a callable with its
        ``list_ids`` and ``get``.
    scopes
        Scopes that hold at least two memories each. With two or more, that nothing crosses between them is checked too.
    queries
        What to search for.
    delete
        ``delete(scope, memory_id)`` deletes a memory (the scope as it was given here); it may be asynchronous. One
        memory of the first scope is then deleted, for good. None leaves deletion unchecked.

    Returns
    -------
    BackendCheck
        The properties that hold; those that could not be tried are not among them.

    Raises
    ------
    PropertyError
        Naming the first property that fails, and how to mend it. It is an ``AssertionError``.
    TypeError
        Where ``backend`` is no retriever, or cannot be listed and fetched from.
    ValueError
        For no scope at all.

    Examples
    --------
    >>> from cmp.retrievers import BM25
    >>> store = BM25({"ann": {"a": "tea", "b": "coffee"}, "bob": {"c": "milk", "d": "rum"}})
    >>> check_backend(store, scopes=["ann", "bob"]).n_memories
    {'ann': 2, 'bob': 2}
    """
    if not scopes:
        raise ValueError("scopes is empty; name a scope that holds two memories, or cmp.EVERYTHING")
    known = backend_of(Source(backend, list_ids, get, id_of, owner_of), random=True)
    # a bare callable need not take n: the wrapper cuts its list
    takes_n = isinstance(backend, (MemoryBackend, AsyncMemoryBackend))
    with EventLoop() as loop:
        checked = _Checked(known, [Scope.of(scope) for scope in scopes], list(queries), takes_n, loop)
        held = tuple(name for name, check in _checks(checked, delete, scopes[0]) if _named(name, check))
        return BackendCheck(held, {scope.key: len(checked.ids(scope)) for scope in checked.scopes})


def _checks(
    checked: _Checked, delete: Callable[[Any, str], Any] | None, first: ScopeLike
) -> list[tuple[str, Callable[[], bool]]]:
    """Return the properties, each with what tries it."""
    checks: list[tuple[str, Callable[[], bool]]] = [
        ("ids are listed once, and the same each time", checked.listing),
        ("get returns what is asked for, and nothing else", checked.fetching),
        ("search returns distinct memories of the scope, n at most", checked.searching),
        ("an unknown scope holds nothing", checked.unknown_scope),
        ("memories of one scope are not found in another", checked.isolation),
        ("objects are left as they are", checked.objects),
        ("the revision is steady while nothing changes", checked.revision),
    ]
    if delete is not None:
        checks.append(("what is deleted is gone", lambda: checked.deletion(delete, first)))
    return checks


def _named(name: str, check: Callable[[], bool]) -> bool:
    """Return whether a property could be tried; failures that the wrapper itself would raise get its name."""
    try:
        return check()
    except _FailedError as failure:
        raise PropertyError(name, str(failure)) from failure.__cause__
    except (InvalidIdError, ScopeError) as error:
        raise PropertyError(name, str(error)) from error


#: What a store's method returns.
KINDS = {"list_ids": "list", "search": "list", "get": "mapping of ids to hits"}


class _FailedError(Exception):
    """Says what was seen and how to mend it."""


class _Checked:
    """A store under test."""

    def __init__(
        self, backend: Backend, scopes: list[Scope], queries: list[Any], takes_n: bool, loop: EventLoop
    ) -> None:
        self._backend = backend
        self._loop = loop
        self._takes_n = takes_n
        self.scopes = scopes
        self._queries = queries

    def ids(self, scope: Scope) -> list[str]:
        """List a scope."""
        return [canonical_id(memory_id, "a listed memory") for memory_id in self._listed(scope)]

    def _listed(self, scope: Scope) -> list[object]:
        return list(self._called("list_ids", scope))

    def _got(self, ids: Sequence[str], scope: Scope) -> dict[str, Hit[Any]]:
        found = self._called("get", ids, scope, what=f"get({list(ids)[:3]!r})")
        hits = self._backend.fetched(found, ids, scope)
        if isinstance(found, Mapping):
            wrong = [key for key, item in found.items() if key != getattr(item, "id", key)]
            if wrong:
                raise _FailedError(
                    f"get files a hit of another id under {wrong[0]!r}; its keys are the hits' own ids"
                )
        return hits

    def _found(self, query: Any, n: int, scope: Scope) -> list[Hit[Any]]:
        items = list(self._called("search", query, n, scope, what=f"search({query!r}, {n})"))
        hits = self._backend.hits(items)
        if len(hits) < len(items):
            raise _FailedError(
                f"search({query!r}, {n}) returned an id twice; return each memory once, best first"
            )
        return hits

    def listing(self) -> bool:
        for scope in self.scopes:
            listed = self._listed(scope)
            ids = canonical_ids(listed)
            if len(ids) < 2:
                raise _FailedError(
                    f"scope {scope.key!r} lists {len(ids)} memories; put two or more in, to check it with"
                )
            if len(ids) < len(listed):
                twice = next(i for i in self.ids(scope) if self.ids(scope).count(i) > 1)
                raise _FailedError(
                    f"list_ids yields {twice!r} of scope {scope.key!r} twice; yield every id once"
                )
            again = set(self.ids(scope))
            if torn := sorted(again ^ set(ids)):
                raise _FailedError(
                    f"two listings of scope {scope.key!r} differ by {torn[:3]!r}, and nothing was changed; list the "
                    "whole scope under stable ids, page by page if need be, or raise"
                )
        return True

    def fetching(self) -> bool:
        for scope in self.scopes:
            ids = self.ids(scope)
            missing = sorted(set(ids) - set(self._got(ids, scope)))
            if missing:
                raise _FailedError(
                    f"get finds nothing for {missing[:3]!r}, which list_ids lists in {scope.key!r}"
                )
            if self._got([], scope):
                raise _FailedError("get([]) returned memories; asked for nothing, return nothing")
            some = self._got([ids[0], NO_ID], scope)
            if set(some) != {ids[0]}:
                raise _FailedError(
                    f"asked for {ids[0]!r} and an id that does not exist, get returned {sorted(some)!r}; "
                    "leave out what is missing"
                )
        return True

    def searching(self) -> bool:
        for scope in self.scopes:
            ids = set(self.ids(scope))
            for query in self._queries:
                for n in (1, len(ids), len(ids) + 5):
                    hits = self._found(query, n, scope)
                    if self._takes_n and len(hits) > n:
                        raise _FailedError(
                            f"search({query!r}, {n}) returned {len(hits)} results; return {n} at most"
                        )
                    strangers = sorted({hit.id for hit in hits} - ids)
                    if strangers:
                        raise _FailedError(
                            f"search({query!r}) in scope {scope.key!r} returned {strangers[:3]!r}, which list_ids "
                            "does not list there; search and list the same store under the same ids and the same filter"
                        )
        return True

    def unknown_scope(self) -> bool:
        if EVERYTHING in self.scopes:
            return False
        example = self.scopes[0].value
        unknown = Scope.of(
            NO_SCOPE if isinstance(example, str) else {name: NO_SCOPE for name, _ in example or ()}
        )
        ids = self.ids(self.scopes[0])
        asked: dict[str, Callable[[], list[str]]] = {
            "list_ids": lambda: self.ids(unknown),
            "get": lambda: list(self._got(ids, unknown)),
            "search": lambda: [hit.id for hit in self._found(self._queries[0], 3, unknown)],
        }
        for what, ask in asked.items():
            try:
                found = ask()
            except _FailedError as failure:
                if failure.__cause__ is None:
                    raise
                continue  # a store may refuse a scope that it does not know
            if found:
                raise _FailedError(
                    f"{what} returned {found[:3]!r} for a scope that does not exist; it must filter by the "
                    "scope it is given"
                )
        return True

    def isolation(self) -> bool:
        if len(self.scopes) < 2:
            return False
        listed = {scope: set(self.ids(scope)) for scope in self.scopes}
        for scope in self.scopes:
            for other in self.scopes:
                foreign = sorted(listed[other] - listed[scope])
                leaked = sorted(self._got(foreign, scope)) if foreign and other != scope else []
                if leaked:
                    raise _FailedError(
                        f"get returned {leaked[:3]!r} in scope {scope.key!r}, which are memories of {other.key!r}; "
                        "get must check the scope itself, even where ids are unique"
                    )
        if len({frozenset(ids) for ids in listed.values()}) == 1 and len(self.scopes) > 1:
            raise _FailedError(
                f"all {len(self.scopes)} scopes list the same ids; list_ids must filter by the scope, and the "
                "scopes to check with must hold different memories"
            )
        return True

    def objects(self) -> bool:
        for scope in self.scopes:
            ids = self.ids(scope)
            held = {memory_id: hit.item for memory_id, hit in self._got(ids, scope).items()}
            before = {memory_id: _state(item) for memory_id, item in held.items()}
            for query in self._queries:
                self._found(query, len(ids), scope)
            self._got(ids, scope)
            for memory_id, item in held.items():
                if _state(item) != before[memory_id]:
                    raise _FailedError(
                        f"the object of {memory_id!r} was changed by searching; it belongs to the caller: "
                        "put scores into Hit(..., score=...), or return a copy"
                    )
        return True

    def revision(self) -> bool:
        if not self._backend.has_revision:
            return False
        for scope in self.scopes:
            first, second = self._revision(scope), self._revision(scope)
            if first != second:
                raise _FailedError(
                    f"revision went from {first!r} to {second!r} and nothing was changed; rosters would be "
                    "listed again in every round: derive it from the set of ids, not from the time"
                )
        return True

    def _revision(self, scope: Scope) -> Hashable:
        token: Hashable = self._called("revision", scope)
        try:
            hash(token)
        except TypeError:
            raise _FailedError(
                f"revision returned {token!r}, which has no hash; return a string or a number"
            ) from None
        return token

    def deletion(self, delete: Callable[[Any, str], Any], given: ScopeLike) -> bool:
        scope = self.scopes[0]
        token = self._revision(scope) if self._backend.has_revision else None
        victim = self.ids(scope)[0]
        self._loop.result_of(delete(given, victim))
        left = self.ids(scope)
        if victim in left:
            raise _FailedError(f"{victim!r} was deleted and list_ids still lists it; list what is there now")
        if self._got([victim], scope):
            raise _FailedError(
                f"{victim!r} was deleted and get still returns it; a random slot would show it"
            )
        for query in self._queries:
            if victim in {hit.id for hit in self._found(query, len(left) + 1, scope)}:
                raise _FailedError(
                    f"{victim!r} was deleted and search({query!r}) still returns it; drop it from the index"
                )
        if self._backend.has_revision and self._revision(scope) == token:
            raise _FailedError(
                f"{victim!r} was deleted and revision is {token!r} as before; it must change whenever "
                "the set of ids does"
            )
        return True

    def _called(self, name: str, *arguments: Any, what: str | None = None) -> Any:
        """Ask the store, whichever way it can be asked; say what was asked where it raises."""
        ask, what = getattr(self._backend, name) or getattr(self._backend, f"a{name}"), what or name
        try:
            found = listed(self._loop.result_of(ask(*arguments)))
        except Exception as error:
            raise _FailedError(f"{what} raised {type(error).__name__}: {error}") from error
        if found is None and name != "revision":
            raise _FailedError(f"{name} returned None; return a {KINDS[name]}, empty where nothing is found")
        return found


def _state(item: Any) -> Any:
    """Return a copy of what can be written on an object."""
    written: Iterable[Any] | None = getattr(item, "__dict__", None)
    content = item if isinstance(item, (dict, list, set)) else written
    try:
        return copy.deepcopy(content)
    except Exception:  # noqa: BLE001 (an object that cannot be copied is compared by its text)
        return repr(content)
