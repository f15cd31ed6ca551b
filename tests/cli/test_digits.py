"""Numbers of a table: none reads as nought that is not, and columns stay aligned."""

from __future__ import annotations

import io
import math

import polars as pl
import pytest
from rich.console import Console

from cmp.cli.digits import number_formats
from cmp.cli.output import show


def written(frame, name):
    return [number_formats(frame)[name](value) for value in frame[name]]


def table(frame):
    out = io.StringIO()
    show(frame, "title", Console(file=out, width=200))
    return out.getvalue().splitlines()[1:]


@pytest.mark.parametrize("scale", [1e-12, 1e-8, 1e-4, 1e-2, 1.0, 1e3, 1e9])
@pytest.mark.parametrize("with_error", [True, False])
def test_no_number_but_nought_reads_as_nought_whatever_the_unit(scale, with_error):
    values = [value * scale for value in (1.0, -0.31, 0.024, 0.0, -1e-9)]
    frame = pl.DataFrame(
        {
            "utility": values,
            "std_error": [0.05 * scale] * 5,
            "ci_low": [value - 0.1 * scale for value in values],
            "ci_high": [value + 0.1 * scale for value in values],
            "figure": values,
        }
    )
    frame = frame if with_error else frame.drop("std_error")
    for name in frame.columns:
        cells = written(frame, name)
        for cell, value in zip(cells, frame[name], strict=True):
            assert (float(cell) == 0) == (value == 0), (name, cell, value)
            assert math.copysign(1, float(cell)) == math.copysign(1, value)
    # two digits of the standard error at least: half of its last one is at most 5 % of it
    for cell, value in zip(written(frame, "utility")[:3], values, strict=False):
        assert abs(float(cell) - value) <= 0.0501 * 0.05 * scale


def test_small_utilities_have_digits_and_their_intervals_as_many():
    frame = pl.DataFrame(
        {
            "memory_id": ["a", "b"],
            "utility": [1.02e-4, -3.1e-5],
            "std_error": [1.1e-5, 2.4e-5],
            "ci_low": [8.1e-5, -7.8e-5],
            "ci_high": [1.23e-4, None],
            "p_value": [3e-9, 0.2],
            "q_value": [6e-9, 0.2],
        }
    )
    lines = table(frame)
    assert lines[1].split() == ["a", "0.000102", "0.000011", "0.000081", "0.000123", "<0.001", "<0.001"]
    assert lines[2].split() == ["b", "-0.000031", "0.000024", "-0.000078", "-", "0.200", "0.200"]
    ends = [[i for i in range(1, len(line)) if line[i] == " " != line[i - 1]] + [len(line)] for line in lines]
    # numbers end where their heading does
    assert ends[0][1:] == ends[1][1:] == ends[2][1:]


def test_nought_has_no_sign_and_rounding_is_no_digit():
    frame = pl.DataFrame({"utility": [-0.0, 0.25, -1e-17], "std_error": [0.05, 0.04, 1e-17]})
    assert written(frame, "utility") == ["0.000", "0.250", "-1e-17"]
    assert written(frame, "std_error") == ["0.050", "0.040", "1e-17"]


def test_a_p_value_is_never_nought_and_what_is_not_finite_is_said():
    frame = pl.DataFrame({"p_value": [0.0, 0.0009, 0.001, 0.0501, 1.0]})
    assert written(frame, "p_value") == ["<0.001", "<0.001", "0.001", "0.050", "1.000"]
    frame = pl.DataFrame({"figure": [math.nan, math.inf, -math.inf, 2.0]})
    assert written(frame, "figure") == ["nan", "inf", "-inf", "2.000"]


def test_a_table_without_numbers_or_rows_is_written():
    empty = pl.DataFrame(schema={"utility": pl.Float64, "std_error": pl.Float64, "ci_low": pl.Float64})
    assert "utility" in table(empty)[0]
    unknown = pl.DataFrame({"utility": [None], "ci_low": [None], "ci_high": [None]}, schema_overrides={
        "utility": pl.Float64, "ci_low": pl.Float64, "ci_high": pl.Float64})  # fmt: skip
    assert table(unknown)[1].split() == ["-", "-", "-"]
