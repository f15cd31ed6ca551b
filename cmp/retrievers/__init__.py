"""Retrievers that come with the package: BM25, dense MiniLM, and their fusion. Loaded when first named."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cmp.retrievers.dense import Dense, Encoder
    from cmp.retrievers.fusion import BestPart, Fused
    from cmp.retrievers.lexical import BM25
    from cmp.retrievers.memories import ScoringBackend, StoredMemory
    from cmp.retrievers.minilm import MiniLM
    from cmp.retrievers.pooled import Pool, Pooled, Pools, cut_pools

__all__ = [
    "BM25",
    "BestPart",
    "Dense",
    "Encoder",
    "Fused",
    "MiniLM",
    "Pool",
    "Pooled",
    "Pools",
    "ScoringBackend",
    "StoredMemory",
    "cut_pools",
]

_HOMES = {
    "BM25": "lexical",
    "BestPart": "fusion",
    "Dense": "dense",
    "Encoder": "dense",
    "Fused": "fusion",
    "MiniLM": "minilm",
    "Pool": "pooled",
    "Pooled": "pooled",
    "Pools": "pooled",
    "ScoringBackend": "memories",
    "StoredMemory": "memories",
    "cut_pools": "pooled",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
