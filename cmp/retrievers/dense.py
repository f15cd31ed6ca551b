"""The dense retriever: cosine similarity of sentence embeddings."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from cmp.protocols import Scope, ScopeLike
from cmp.retrievers.memories import ScoringBackend, memories_of
from cmp.retrievers.minilm import MiniLM

if TYPE_CHECKING:
    import polars as pl

__all__ = ["Dense", "Encoder"]


class Encoder(Protocol):
    """Anything that turns texts into unit vectors, one a row."""

    def encode(self, texts: Sequence[str], /) -> NDArray[np.float32]:
        """Return an array of shape ``(len(texts), dimensions)`` with rows of norm 1."""
        ...


class Dense(ScoringBackend):
    """Cosine similarity of query and memory, all-MiniLM-L6-v2 by default.

    The memories of a scope are embedded when it is first searched; give the encoder a ``cache_dir`` and they
    are embedded once for all.

    Parameters
    ----------
    memories
        Texts by id by scope key.
    encoder
        What makes the vectors; :class:`MiniLM` (the extra ``dense``) where none is given.

    Examples
    --------
    >>> class Letters:
    ...     def encode(self, texts):
    ...         counts = np.array([[1 + text.count(letter) for letter in "abc"] for text in texts], float)
    ...         return counts / np.linalg.norm(counts, axis=1, keepdims=True)
    >>> store = Dense({"s": {"m1": "aaab", "m2": "bbbc"}}, encoder=Letters())
    >>> [hit.id for hit in store.search("b", 2, scope="s")]
    ['m2', 'm1']
    """

    def __init__(self, memories: Mapping[str, Mapping[str, str]], *, encoder: Encoder | None = None) -> None:
        super().__init__(memories)
        self.encoder: Encoder = MiniLM() if encoder is None else encoder
        self._vectors: dict[str, NDArray[np.float32]] = {}
        self._lock = threading.Lock()

    @classmethod
    def from_frame(cls, frame: pl.DataFrame, *, encoder: Encoder | None = None) -> Dense:
        """Return the retriever over a frame with ``scope``, ``memory_id`` and ``text``."""
        return cls(memories_of(frame), encoder=encoder)

    def scores(self, query: str, *, scope: ScopeLike) -> NDArray[np.float64]:
        """Return the cosine of the query with each memory of the scope, in pool order."""
        if not self._in(scope):
            return np.zeros(0)
        return np.asarray(self._of(scope) @ self.encoder.encode([query])[0], dtype=np.float64)

    def _of(self, scope: ScopeLike) -> NDArray[np.float32]:
        memories, key = self._in(scope), Scope.of(scope).key
        with self._lock:
            if key not in self._vectors:
                self._vectors[key] = self.encoder.encode([memory.text for memory in memories.values()])
            return self._vectors[key]
