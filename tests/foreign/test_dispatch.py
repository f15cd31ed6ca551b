"""Another system's rows go where a log goes: the same functions take both."""

from __future__ import annotations

from datetime import timedelta

import polars as pl
import pytest

import cmp
from cmp.estimation.from_rows import utilities_of_rows


@pytest.fixture
def rows():
    frame = pl.DataFrame(
        {
            "round_id": [number // 2 for number in range(40)],
            "memory_id": ["a", "b"] * 20,
            "assigned": [(number // 2 + number) % 2 for number in range(40)],
            "propensity": [0.5] * 40,
            "outcome": [number // 2 % 3 / 2 for number in range(40)],
        }
    )
    return cmp.from_frame(frame)


def test_utilities_and_diagnose_take_rows(rows):
    assert cmp.utilities(rows).frame.equals(utilities_of_rows(rows).frame)
    assert cmp.utilities(rows, by="memory", interval="pooled").analysis.interval == "pooled"
    found = cmp.diagnose(rows)
    assert found.frame["check"].to_list()[0] == "sample ratio"
    assert found.passed


@pytest.mark.parametrize(
    "option",
    [
        {"metric": "clicks"},
        {"engine": "duckdb"},
        {"carryover": "exclude"},
        {"window": timedelta(days=1)},
        {"strata": "merged"},
    ],
)
def test_what_only_a_log_can_answer_is_refused_of_rows(rows, option):
    with pytest.raises(ValueError, match=f"{next(iter(option))}=.* needs a log that cmp.wrap wrote"):
        cmp.utilities(rows, **option)
