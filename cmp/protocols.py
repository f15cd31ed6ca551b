"""What a user must satisfy, on one page: ids, scopes, hits, and the retriever and backend protocols."""

from __future__ import annotations

import json
from collections.abc import AsyncIterable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeAlias, TypeVar, runtime_checkable

from cmp.errors import InvalidIdError, ScopeError

__all__ = [
    "EVERYTHING",
    "AsyncMemoryBackend",
    "Hit",
    "MemoryBackend",
    "Retriever",
    "Scope",
    "ScopeLike",
    "SupportsRevision",
    "canonical_id",
    "canonical_ids",
    "check_one_type",
]

T_co = TypeVar("T_co", covariant=True)


def canonical_id(value: object, where: str = "memory") -> str:
    """Return an id as the log writes it: a non-empty UTF-8 string, byte-exact; an int in decimal.

    Parameters
    ----------
    value
        A ``str`` or an integer (Python's or numpy's). Nothing is trimmed, lowered or normalised.
    where
        What the id belongs to, for the message.

    Raises
    ------
    InvalidIdError
        For None, bool, float, bytes, any other type, the empty string, and lone surrogates.

    Examples
    --------
    >>> canonical_id(42), canonical_id(" M1")
    ('42', ' M1')
    """
    if isinstance(value, str):
        if not value:
            raise InvalidIdError(
                f"the id of {where} is an empty string; give each memory a stable, non-empty id"
            )
        if not value.isascii():
            try:
                value.encode("utf-8")
            except UnicodeEncodeError as error:
                raise InvalidIdError(
                    f"the id of {where}, {value!r}, holds a lone surrogate at position {error.start} and is no "
                    "valid UTF-8; decode the source properly, or escape the id reversibly in id_of"
                ) from None
        return value if type(value) is str else str.__str__(value)
    if isinstance(value, (bool, float)) or value is None or not hasattr(value, "__index__"):
        raise InvalidIdError(
            f"the id of {where} is {value!r} ({type(value).__name__}); ids are strings or integers: "
            "pass id_of=... to say where each memory keeps its stable id"
        )
    number = value.__index__()
    if type(value).__name__ in ("bool_", "bool"):
        raise InvalidIdError(f"the id of {where} is the boolean {value!r}; ids are strings or integers")
    return str(number)


def canonical_ids(values: Iterable[object], where: str = "roster") -> list[str]:
    """Return a roster's ids in order, each once written as :func:`canonical_id` writes it.

    Raises
    ------
    InvalidIdError
        Where an id is invalid, and where an int and a str of the same text would become one memory.

    Examples
    --------
    >>> canonical_ids(["b", "a", "b"])
    ['b', 'a']
    """
    kinds: dict[str, bool] = {}
    for position, value in enumerate(values):
        text = (
            value
            if type(value) is str and value and value.isascii()
            else canonical_id(value, f"item {position} of the {where}")
        )
        is_text = isinstance(value, str)
        if kinds.setdefault(text, is_text) is not is_text:
            raise InvalidIdError(
                f"the {where} holds both the int {text} and the string {text!r}, which the log would write "
                "alike; make the ids of one store all ints or all strings"
            )
    return list(kinds)


def check_one_type(text: str, value: object, kinds: dict[str, bool]) -> None:
    """Refuse an int and a str that would be written alike, with an ``InvalidIdError``; ``kinds`` holds those before.

    Examples
    --------
    >>> kinds = {}
    >>> check_one_type("1", 1, kinds), check_one_type("2", "2", kinds), kinds
    (None, None, {'1': False, '2': True})
    """
    is_text = isinstance(value, str)
    if kinds.setdefault(text, is_text) is not is_text:
        raise InvalidIdError(f"the int {text} and the string {text!r} would be one id; make ids all one type")


@dataclass(frozen=True, slots=True)
class Scope:
    """The tenant, user, namespace or conversation whose store is searched.

    ``key`` is what the log writes; ``value`` is what the caller passed, handed on to the retriever as it came.
    Make one with :meth:`Scope.of`; randomization never crosses it.
    """

    key: str
    value: str | tuple[tuple[str, str], ...] | None

    @classmethod
    def of(cls, value: ScopeLike | None) -> Scope:
        """Return the scope for a non-empty str or a non-empty mapping of str to str.

        Raises
        ------
        ScopeError
            Where the value is empty, None or of another type, or would collide with another scope's key.

        Examples
        --------
        >>> Scope.of({"user": "42", "app": "mail"}).key
        '{"app":"mail","user":"42"}'
        """
        if isinstance(value, Scope):
            return value
        if isinstance(value, str):
            return cls(_checked_scope_text(value), str(value))
        if isinstance(value, Mapping) and value:
            for field, content in value.items():
                if not (isinstance(field, str) and isinstance(content, str) and field and content):
                    raise ScopeError(
                        f"scope field {field!r}: {content!r} is not a non-empty str under a non-empty str"
                    )
                _check_utf8(field)
                _check_utf8(content)
            items = tuple(sorted(value.items()))
            return cls(json.dumps(dict(items), ensure_ascii=False, separators=(",", ":")), items)
        raise ScopeError(
            f"a scope is a non-empty str or a mapping of str to str, not {value!r}; give scope=... to wrap() or to "
            "retrieve(), or scope=cmp.EVERYTHING for a store with a single tenant"
        )

    def native(self) -> str | dict[str, str] | None:
        """Return the scope as the caller gave it (None for :data:`EVERYTHING`)."""
        return dict(self.value) if isinstance(self.value, tuple) else self.value


ScopeLike: TypeAlias = str | Mapping[str, str] | Scope

#: One single-tenant store: the only way to say "the whole store".
EVERYTHING = Scope("*", None)


def _check_utf8(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise ScopeError(f"scope {text!r} holds a lone surrogate and is no valid UTF-8") from None


def _checked_scope_text(text: str) -> str:
    if not text:
        raise ScopeError(
            "the scope is an empty string; name the tenant whose store is searched, or pass scope=cmp.EVERYTHING "
            "for a store with a single tenant"
        )
    _check_utf8(text)
    if text == EVERYTHING.key:
        raise ScopeError(
            "the scope '*' is reserved; pass scope=cmp.EVERYTHING for a store with a single tenant"
        )
    if text.startswith("{"):
        try:
            collides = isinstance(json.loads(text), dict)
        except ValueError:
            collides = False
        if collides:
            raise ScopeError(f"the scope {text!r} is a mapping written as a string; pass the mapping itself")
    return text


@dataclass(frozen=True, slots=True)
class Hit(Generic[T_co]):
    """One result of a backend: a canonical id, the backend's own object (never mutated), and what is known of it.

    ``score`` is raw and its direction is the backend's; ``version`` is a content hash or change stamp.
    """

    id: str
    item: T_co
    score: float | None = None
    version: str | None = None


@runtime_checkable
class Retriever(Protocol[T_co]):
    """Anything that ranks the memories of one scope for a query."""

    def search(self, query: Any, n: int, *, scope: Scope) -> Sequence[Hit[T_co]]:
        """Return at most ``n`` hits, best first, unique ids; fewer or none where there are no more."""
        ...


@runtime_checkable
class MemoryBackend(Protocol[T_co]):
    """A retriever that can also list and fetch what it holds: what random slots need.

    ``list_ids`` yields every id of the scope once or raises, never a silent prefix. ``get`` re-checks the
    scope itself; ids that are missing, deleted or foreign are absent from the mapping.
    """

    def search(self, query: Any, n: int, *, scope: Scope) -> Sequence[Hit[T_co]]: ...

    def list_ids(self, *, scope: Scope) -> Iterable[str]: ...

    def get(self, ids: Sequence[str], *, scope: Scope) -> Mapping[str, Hit[T_co]]: ...


@runtime_checkable
class AsyncMemoryBackend(Protocol[T_co]):
    """The same, natively asynchronous."""

    async def asearch(self, query: Any, n: int, *, scope: Scope) -> Sequence[Hit[T_co]]: ...

    def alist_ids(self, *, scope: Scope) -> AsyncIterable[str]: ...

    async def aget(self, ids: Sequence[str], *, scope: Scope) -> Mapping[str, Hit[T_co]]: ...


@runtime_checkable
class SupportsRevision(Protocol):
    """Optional: a cheap token that changes whenever the scope's set of ids does."""

    def revision(self, *, scope: Scope) -> Hashable: ...
