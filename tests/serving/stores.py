"""Small real stores for tests of the wrapper."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cmp
from cmp.protocols import Hit, Scope


@dataclass(frozen=True)
class Document:
    id: Any
    text: str


def documents(n: int, prefix: str = "m") -> dict[str, Document]:
    return {f"{prefix}{i}": Document(f"{prefix}{i}", f"text of {prefix}{i}") for i in range(n)}


@dataclass
class Store:
    """A store of several scopes whose ranking is fixed; memories can be deleted under the wrapper."""

    scopes: dict[str, dict[str, Document]]
    ranking: Sequence[str] = ()
    listed: list[str] = field(default_factory=list)

    def search(self, query: str, n: int, *, scope: Scope) -> list[Hit[Document]]:
        held = self.scopes[scope.key]
        return [Hit(i, held[i], score=1.0 / (1 + r)) for r, i in enumerate(self.ranking) if i in held][:n]

    def list_ids(self, *, scope: Scope) -> Iterable[str]:
        self.listed.append(scope.key)
        return iter(self.scopes[scope.key])

    def get(self, ids: Sequence[str], *, scope: Scope) -> Mapping[str, Hit[Document]]:
        held = self.scopes[scope.key]
        return {i: Hit(i, held[i]) for i in reversed(ids) if i in held}


@dataclass
class AsyncStore:
    """The same, natively asynchronous and nothing else."""

    store: Store

    async def asearch(self, query: str, n: int, *, scope: Scope) -> list[Hit[Document]]:
        return self.store.search(query, n, scope=scope)

    async def alist_ids(self, *, scope: Scope) -> AsyncIterator[str]:
        for memory_id in self.store.list_ids(scope=scope):
            yield memory_id

    async def aget(self, ids: Sequence[str], *, scope: Scope) -> Mapping[str, Hit[Document]]:
        return self.store.get(ids, scope=scope)


def store(n: int = 10, ranking: Sequence[str] = (), scope: str = "s") -> Store:
    return Store({scope: documents(n)}, ranking)


def wrapped(location: Path | str, retriever: Any, **settings: Any) -> cmp.RandomizedRetriever:
    """Wrap a retriever over a log in a folder, or at a URL."""
    log = location / "x.db" if isinstance(location, Path) else location
    settings = {"slots": 4, "random_slots": 1, "seed": 1, "log": log, **settings}
    return cmp.wrap(retriever, text_of=lambda document: document.text, **settings)
