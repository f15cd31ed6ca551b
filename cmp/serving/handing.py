"""What is handed over: contexts from logged exposures, and the hashes by which texts are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final, TypeAlias

from cmp.log.records import Drawn, Exposure
from cmp.protocols import Hit
from cmp.serving.context import Context, Item
from cmp.serving.slots import Layout, lay_out

__all__ = ["Objects", "compose", "context_of", "delivered_after_all", "query_hash", "text_hash"]

Objects: TypeAlias = Mapping[str, Hit[Any]]

#: Why a round was withdrawn: its caller had gone, or had been served the base ranking. A retry delivers it after all.
WITHDRAWN: Final = ("cancelled", "interrupted", "timeout")


def context_of(
    round_id: str,
    exposures: Sequence[Exposure],
    objects: Objects,
    randomized: bool,
    fallback_reason: str | None,
) -> Context:
    """Return the context of a round: what was fetched, in slot order, blanks left out."""
    items = [_item(row, objects.get(row.memory_id)) for row in exposures]
    shown = [item for item in items if item.delivered and item.arm != "card"]
    shown.sort(key=lambda item: item.slot or 0)
    return Context(round_id, randomized, tuple(items), tuple(item.item for item in shown), fallback_reason)


def _item(row: Exposure, hit: Hit[Any] | None) -> Item:
    if row.arm == "card":
        return Item(row.memory_id, None, row.slot, row.arm, row.propensity, row.delivered)
    shown = row.delivered and hit is not None
    return Item(
        row.memory_id,
        hit.item if hit is not None and shown else None,
        row.slot if shown else None,
        row.arm,
        row.propensity,
        shown,
        hit.score if hit is not None else None,
    )


def delivered_after_all(exposures: Sequence[Exposure]) -> tuple[Exposure, ...]:
    """Return a logged round's rows with those that had been withdrawn delivered."""
    return tuple(
        row._replace(delivered=True, reason=None) if row.reason in WITHDRAWN else row for row in exposures
    )


def compose(ranked: Sequence[str], layout: Layout, key: int, drawn: Sequence[Drawn]) -> tuple[Exposure, ...]:
    """Lay a context out from what was drawn last of all."""
    return lay_out(ranked, drawn, layout, key)


def query_hash(query: Any) -> str | None:
    """Return a hash of a query's text; None where the query is not text. The text itself is never logged."""
    return text_hash(query) if isinstance(query, str) else None


def text_hash(text: str) -> str:
    """Return the 128-bit BLAKE2b of a text, as the log writes it."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
