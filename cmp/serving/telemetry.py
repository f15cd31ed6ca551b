"""Attributes of a round for the active OpenTelemetry span, opt-in (the extra ``[otel]``).

What stands in which slot and why is never among them: a judge that reads traces would be unblinded.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, Final

from cmp.errors import MissingExtraError
from cmp.protocols import Scope
from cmp.serving.context import Context
from cmp.serving.policy import Policy

__all__ = ["ATTRIBUTES", "annotate_span", "require_opentelemetry"]

#: What we know of a round, and the attribute it is written to. The conventions for ``gen_ai`` are in development: a
#: name that changes there changes here and nowhere else.
ATTRIBUTES: Final[Mapping[str, str]] = {
    "operation": "gen_ai.operation.name",
    "records": "gen_ai.memory.record.count",
    "round_id": "cmp.round_id",
    "randomized": "cmp.randomized",
    "fallback_reason": "cmp.fallback_reason",
    "slots": "cmp.slots.total",
    "random_slots": "cmp.slots.random",
    "scope_hash": "cmp.scope_hash",
}


def require_opentelemetry() -> None:
    """Check that the API is installed.

    Raises
    ------
    MissingExtraError
        Naming the extra.
    """
    try:
        import opentelemetry.trace  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(
            "telemetry=True needs opentelemetry-api: pip install 'causal-memory-policy[otel]'"
        ) from error


def annotate_span(context: Context, policy: Policy, scope: Scope) -> None:
    """Write a round's attributes to the span that is active, if one is recording."""
    from opentelemetry import trace

    span = trace.get_current_span()
    if not span.is_recording():
        return
    known: dict[str, Any] = {
        "operation": "search_memory",
        "records": len(context),
        "round_id": context.round_id,
        "randomized": context.randomized,
        "fallback_reason": context.fallback_reason,
        "slots": policy.slots,
        "random_slots": policy.random_slots,
        "scope_hash": blake2b(scope.key.encode(), digest_size=8).hexdigest(),
    }
    span.set_attributes({ATTRIBUTES[name]: value for name, value in known.items() if value is not None})
