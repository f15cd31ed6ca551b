"""Rankings made of other rankings: reciprocal-rank fusion, and memories scored by their best part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from cmp.errors import ScopeError
from cmp.protocols import Scope, ScopeLike
from cmp.retrievers.memories import ScoringBackend, midranks

__all__ = ["BestPart", "Fused"]


class Fused(ScoringBackend):
    """Reciprocal-rank fusion of the full rankings of several retrievers over the same memories.

    A memory scores ``sum over retrievers of 1 / (constant + rank)``. Memories that a retriever scores alike
    share their mean rank, so that the pool order of those it knows nothing about carries no weight.

    Parameters
    ----------
    retrievers
        At least two, holding the same memories in the same scopes.
    constant
        How little the very first ranks dominate; 60 in the paper.

    References
    ----------
    Cormack, G. V., Clarke, C. L. A. and Büttcher, S. (2009). Reciprocal rank fusion outperforms Condorcet and
    individual rank learning methods. SIGIR, 758-759.

    Examples
    --------
    >>> from cmp.retrievers import BM25
    >>> texts = {"s": {"m1": "green tea", "m2": "a tram"}}
    >>> store = Fused([BM25(texts), BM25(texts, stem=False)])
    >>> store.scores("tea", scope="s").tolist() == [2 / 61, 2 / 62]
    True
    """

    def __init__(self, retrievers: Sequence[ScoringBackend], *, constant: float = 60.0) -> None:
        if len(retrievers) < 2:
            raise ValueError(f"fusion takes at least two retrievers, not {len(retrievers)}")
        if not constant >= 0:
            raise ValueError(f"the constant of reciprocal-rank fusion is {constant}; it is 0 or more")
        first, *others = retrievers
        for other in others:
            _check_same_memories(first, other)
        super().__init__({})
        self._memories = first._memories
        self.retrievers, self.constant = tuple(retrievers), constant

    def scores(self, query: str, *, scope: ScopeLike) -> NDArray[np.float64]:
        """Return the fused score of each memory of the scope, in the first retriever's pool order."""
        ids = self.list_ids(scope=scope)
        total = np.zeros(len(ids))
        for retriever in self.retrievers:
            ranks = midranks(retriever.scores(query, scope=scope))
            by_id = dict(zip(retriever.list_ids(scope=scope), ranks.tolist(), strict=True))
            total += 1.0 / (self.constant + np.array([by_id[id_] for id_ in ids]))
        return total


class BestPart(ScoringBackend):
    """Long memories scored by their best part: sessions by their turns, documents by their passages.

    Parameters
    ----------
    memories
        Texts of the whole memories, by id by scope key.
    parts
        A retriever over the parts, in the same scopes.
    whole_of
        For each scope key, the memory each part belongs to. A memory without a part scores minus infinity.

    References
    ----------
    Dai, Z. and Callan, J. (2019). Deeper text understanding for IR with contextual neural language modeling.
    SIGIR, 985-988 (where it is called MaxP).

    Examples
    --------
    >>> from cmp.retrievers import BM25
    >>> turns = BM25({"s": {"d1/0": "hello", "d1/1": "green tea", "d2/0": "a tram"}})
    >>> wholes = {"s": {"d1": "hello green tea", "d2": "a tram"}}
    >>> store = BestPart(wholes, turns, {"s": {"d1/0": "d1", "d1/1": "d1", "d2/0": "d2"}})
    >>> [hit.id for hit in store.search("tea", 1, scope="s")]
    ['d1']
    """

    def __init__(
        self,
        memories: Mapping[str, Mapping[str, str]],
        parts: ScoringBackend,
        whole_of: Mapping[str, Mapping[str, str]],
    ) -> None:
        super().__init__(memories)
        self.parts = parts
        self._owners: dict[str, NDArray[np.int64]] = {}
        for scope, wholes in self._memories.items():
            places = {id_: place for place, id_ in enumerate(wholes)}
            held = parts.list_ids(scope=scope)
            strays = [part for part in held if whole_of[scope].get(part) not in places]
            if strays:
                raise ScopeError(
                    f"{len(strays)} parts of scope {scope!r} belong to no memory of it: {strays[:5]}"
                )
            self._owners[scope] = np.array([places[whole_of[scope][part]] for part in held], dtype=np.int64)

    def scores(self, query: str, *, scope: ScopeLike) -> NDArray[np.float64]:
        """Return the best part's score of each memory of the scope, in pool order."""
        best = np.full(len(self._in(scope)), -np.inf)
        np.maximum.at(best, self._owners[Scope.of(scope).key], self.parts.scores(query, scope=scope))
        return best


def _check_same_memories(first: ScoringBackend, other: ScoringBackend) -> None:
    for scope in sorted({*first.scopes(), *other.scopes()}):
        here = set(first._memories.get(scope, ()))
        there = set(other._memories.get(scope, ()))
        if here != there:
            raise ScopeError(
                f"the retrievers to fuse hold different memories in scope {scope!r}: "
                f"{len(here - there)} are only in the first, {len(there - here)} only in another; "
                "build them from the same store"
            )
