"""What a new log says of who made it."""

from __future__ import annotations

import platform
from uuid import uuid4

import numpy as np

from cmp.design import GENERATOR
from cmp.log.schema import SCHEMA_VERSION

__all__ = ["written_by"]


def written_by(**database: str) -> dict[str, str]:
    """Return the ``meta`` of a log created here."""
    from cmp import __version__

    return {
        "schema_version": str(SCHEMA_VERSION),
        "causal-memory-policy": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        **database,
        "generator": GENERATOR,
        "salt": uuid4().hex,
    }
