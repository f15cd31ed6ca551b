"""Where the golden values are: beside the repository, or beside ``$CMP_DATA``; tests skip by name without them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

_ROOT = Path(__file__).resolve().parents[2]


def golden(name: str) -> Any:
    """Return one entry of golden.json, or skip."""
    homes = [_ROOT.parent / "shared"]
    if "CMP_DATA" in os.environ:
        homes.insert(0, Path(os.environ["CMP_DATA"]).parent)
    for home in homes:
        path = home / "golden" / "golden.json"
        if path.is_file():
            return json.loads(path.read_text(encoding="utf-8"))[name]
    return pytest.skip("golden.json is not beside the repository")
