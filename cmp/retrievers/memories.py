"""What the built-in retrievers share: memories by scope, and a ranking made from one score a memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cmp.errors import InvalidIdError, ScopeError
from cmp.protocols import Hit, Scope, ScopeLike, canonical_ids

if TYPE_CHECKING:
    import polars as pl

__all__ = ["ScoringBackend", "StoredMemory", "memories_of", "midranks"]


@dataclass(frozen=True, slots=True)
class StoredMemory:
    """One memory as the built-in retrievers hold it.

    Parameters
    ----------
    id
        Its stable id, unique in its scope.
    text
        What is searched and what a reader is shown.
    scope
        The key of the scope it belongs to.

    Examples
    --------
    >>> StoredMemory("D1:3", "I went to the support group.", "conv-26").id
    'D1:3'
    """

    id: str
    text: str
    scope: str


class ScoringBackend(ABC):
    """A :class:`~cmp.protocols.MemoryBackend` ranking by one score a memory, high first, ties in pool order.

    A subclass gives :meth:`scores`. Every search ranks the whole scope: even a query that matches nothing
    returns ``n`` memories (the first of the pool), so the cut is always at ``n`` and scores say what matched.

    Parameters
    ----------
    memories
        Texts by id by scope key; the order of the ids is the pool order.
    """

    def __init__(self, memories: Mapping[str, Mapping[str, str]]) -> None:
        self._memories = {
            scope: {
                id_: StoredMemory(id_, text, scope)
                for id_, text in zip(canonical_ids(texts, f"scope {scope!r}"), texts.values(), strict=True)
            }
            for scope, texts in memories.items()
        }

    @abstractmethod
    def scores(self, query: str, *, scope: ScopeLike) -> NDArray[np.float64]:
        """Return one score a memory, aligned with :meth:`list_ids`."""

    def search(self, query: str, n: int, *, scope: ScopeLike) -> list[Hit[StoredMemory]]:
        """Return the ``n`` best memories of the scope (all of them, where it holds fewer).

        Raises
        ------
        ScopeError
            Where the scope is unknown.
        """
        memories = list(self._in(scope).values())
        scores = self.scores(query, scope=scope)
        best = np.argsort(-scores, kind="stable")[: max(n, 0)]
        return [Hit(memories[place].id, memories[place], float(scores[place])) for place in best.tolist()]

    def list_ids(self, *, scope: ScopeLike) -> list[str]:
        """Return every id of the scope, in pool order."""
        return list(self._in(scope))

    def get(self, ids: Sequence[str], *, scope: ScopeLike) -> dict[str, Hit[StoredMemory]]:
        """Return the memories of the scope among ``ids``; missing and foreign ids are absent."""
        memories = self._in(scope)
        return {id_: Hit(id_, memories[id_]) for id_ in ids if id_ in memories}

    def rank_of(self, query: str, ids: Sequence[str], *, scope: ScopeLike) -> NDArray[np.float64]:
        """Return the ranks of ``ids`` for a query, from 1; equal scores share the mean of their ranks.

        Raises
        ------
        ScopeError
            Where the scope is unknown or does not hold one of the ids.
        """
        places = {id_: place for place, id_ in enumerate(self._in(scope))}
        foreign = [id_ for id_ in ids if id_ not in places]
        if foreign:
            raise ScopeError(
                f"scope {Scope.of(scope).key!r} does not hold {foreign[:5]}; list_ids says what it holds"
            )
        ranks = midranks(self.scores(query, scope=scope))
        return ranks[[places[id_] for id_ in ids]]

    def scopes(self) -> list[str]:
        """Return the keys of the scopes held."""
        return list(self._memories)

    def _in(self, scope: ScopeLike) -> dict[str, StoredMemory]:
        key = Scope.of(scope).key
        try:
            return self._memories[key]
        except KeyError:
            known = ", ".join(repr(name) for name in list(self._memories)[:5]) or "none"
            raise ScopeError(
                f"this {type(self).__name__} holds no scope {key!r} (of its {len(self._memories)}: {known}); "
                "build it with that scope's memories first"
            ) from None


def midranks(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return ranks from 1, the highest score first; equal scores share the mean of their ranks.

    Examples
    --------
    >>> midranks(np.array([0.0, 3.0, 0.0])).tolist()
    [2.5, 1.0, 2.5]
    """
    from scipy.stats import rankdata

    ranks: NDArray[np.float64] = rankdata(-np.asarray(scores), method="average")
    return ranks


def memories_of(frame: pl.DataFrame) -> dict[str, dict[str, str]]:
    """Return texts by id by scope from a frame with ``scope``, ``memory_id`` and ``text``, in its row order.

    Raises
    ------
    InvalidIdError
        Where one ``(scope, memory_id)`` stands in two rows.

    Examples
    --------
    >>> import polars as pl
    >>> memories_of(pl.DataFrame({"scope": ["s"], "memory_id": ["a"], "text": ["tea"]}))
    {'s': {'a': 'tea'}}
    """
    memories: dict[str, dict[str, str]] = {}
    rows: Any = frame.select("scope", "memory_id", "text").iter_rows()
    for scope, id_, text in rows:
        texts = memories.setdefault(scope, {})
        if id_ in texts:
            raise InvalidIdError(
                f"memory {id_!r} of scope {scope!r} stands in two rows; ids are unique in a scope"
            )
        texts[id_] = text
    return memories
