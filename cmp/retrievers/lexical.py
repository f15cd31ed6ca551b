"""The lexical retriever: BM25 with one index a scope."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cmp.protocols import Scope, ScopeLike
from cmp.retrievers.memories import ScoringBackend, memories_of

if TYPE_CHECKING:
    import polars as pl

__all__ = ["BM25"]


class BM25(ScoringBackend):
    """Okapi BM25 with Lucene's inverse document frequency, over one index a scope.

    Statistics (document frequencies, mean length) are those of the scope alone, so one tenant's store never
    moves another's ranking. A query without a known word scores every memory 0: the pool order decides.

    Parameters
    ----------
    memories
        Texts by id by scope key.
    stem
        Whether words are reduced by the English Snowball stemmer.
    k1, b
        Saturation of a word's count, and how far length is normalised.

    References
    ----------
    Robertson, S. and Zaragoza, H. (2009). The probabilistic relevance framework: BM25 and beyond. Foundations
    and Trends in Information Retrieval 3(4), 333-389. Lu, X. H. (2024). BM25S. arXiv:2407.03618.

    Examples
    --------
    >>> store = BM25({"ann": {"m1": "Ann is allergic to walnuts.", "m2": "Ann commutes by tram."}})
    >>> [hit.id for hit in store.search("Which allergies does she have?", 1, scope="ann")]
    ['m1']
    """

    def __init__(
        self,
        memories: Mapping[str, Mapping[str, str]],
        *,
        stem: bool = True,
        k1: float = 1.5,
        b: float = 0.75,
    ) -> None:
        if not (k1 >= 0 and 0 <= b <= 1):
            raise ValueError(f"k1 is {k1} and b is {b}; BM25 takes k1 >= 0 and b from 0 to 1")
        super().__init__(memories)
        self.stem, self.k1, self.b = stem, k1, b
        self._indexes: dict[str, Any] = {}
        self._lock = threading.Lock()

    @classmethod
    def from_frame(cls, frame: pl.DataFrame, *, stem: bool = True, k1: float = 1.5, b: float = 0.75) -> BM25:
        """Return the retriever over a frame with ``scope``, ``memory_id`` and ``text``."""
        return cls(memories_of(frame), stem=stem, k1=k1, b=b)

    def scores(self, query: str, *, scope: ScopeLike) -> NDArray[np.float64]:
        """Return the BM25 score of each memory of the scope, in pool order; 0 where no word is shared."""
        memories = self._in(scope)
        index = self._index(Scope.of(scope).key)
        words = (
            [] if index is None else [word for word in self._words([query])[0] if word in index.vocab_dict]
        )
        if not words:
            return np.zeros(len(memories))
        return np.asarray(index.get_scores(words), dtype=np.float64)

    def _index(self, scope: str) -> Any:
        """Return the scope's index, made on first use; None where its texts hold no word at all."""
        import bm25s

        with self._lock:
            if scope not in self._indexes:
                corpus = self._words([memory.text for memory in self._memories[scope].values()])
                index = None
                if any(corpus):
                    index = bm25s.BM25(k1=self.k1, b=self.b, method="lucene")
                    index.index(corpus, show_progress=False)
                self._indexes[scope] = index
            return self._indexes[scope]

    def _words(self, texts: list[str]) -> list[list[str]]:
        import bm25s
        import Stemmer

        stemmer = Stemmer.Stemmer("english") if self.stem else None
        words: list[list[str]] = bm25s.tokenize(
            texts, stopwords="en", stemmer=stemmer, return_ids=False, show_progress=False
        )
        return words
