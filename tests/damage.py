"""Statements that damage a log on purpose."""

from __future__ import annotations


def exposure(where: str = "true") -> str:
    """Return SQL for one exposure among those a condition holds for."""
    return f"(round_id, memory_id) = (SELECT round_id, memory_id FROM exposures WHERE {where} LIMIT 1)"
