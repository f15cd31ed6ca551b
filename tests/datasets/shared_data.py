"""Where the published benchmark files are, for the tests that count them; these skip by name elsewhere."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_REPOSITORY = Path(__file__).resolve().parents[2]


def published(*names: str) -> Path:
    """Return the directory that holds the named files, or skip the test, saying which is absent."""
    places = [_REPOSITORY.parent / "shared" / "data"]
    if os.environ.get("CMP_DATA"):
        places.insert(0, Path(os.environ["CMP_DATA"]))
    for place in places:
        if all((place / name).is_file() for name in names):
            return place
    pytest.skip(f"{' and '.join(names)} not in $CMP_DATA nor beside the repository")
