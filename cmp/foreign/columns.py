"""Columns of any dataframe, read strictly: ids that are ids, flags that are flags, numbers that are numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import narwhals.stable.v2 as nw
import numpy as np
import polars as pl

from cmp.errors import CmpError, InvalidIdError
from cmp.foreign.problems import ForeignLogError, Places, Problems
from cmp.protocols import canonical_id, check_one_type

__all__ = ["named_columns", "read_flags", "read_ids", "read_labels", "read_numbers"]


def read_ids(series: nw.Series[Any], name: str, problems: Problems, places: Places) -> pl.Series:
    """Return ids as the log writes them: strings byte-exact, integers in decimal; what is neither is a problem."""
    found = _in_polars(series)
    if found is None:
        return _by_value(series, name, problems, places, _id_of)
    if found.dtype.is_integer() or found.dtype in (pl.Categorical, pl.Enum):
        found = found.cast(pl.String)
    elif found.dtype != pl.String and found.null_count() < len(found):
        hint = (
            "; whole numbers beside missing ones turn into floats: drop those rows, or use a nullable integer"
        )
        problems.add(
            f"column {name!r} holds {found.dtype}; ids are strings or integers"
            + (hint if found.dtype.is_float() else ""),
            InvalidIdError,
        )
        return pl.Series(name, [None] * len(found), dtype=pl.String)
    found = found.cast(pl.String)
    bad = (found.is_null() | (found == "")).arg_true()
    if len(bad):
        problems.add(
            f"{len(bad)} ids of column {name!r} are null or empty ({places.of(bad)}); name every round and memory",
            InvalidIdError,
        )
    return found


def read_labels(
    series: nw.Series[Any], name: str, problems: Problems, places: Places, *, missing: bool = False
) -> pl.Series:
    """Return labels of groups: ids, or days and flags as text; missing ones only where they may be."""
    found = _in_polars(series)
    if found is not None and (found.dtype == pl.Boolean or found.dtype.is_temporal()):
        found = found.cast(pl.String)
    if found is None or not missing:
        return read_ids(
            series if found is None else nw.from_native(found, series_only=True), name, problems, places
        )
    given = found.is_not_null().arg_true()
    known = nw.from_native(found.gather(given), series_only=True)
    numbers = given.cast(pl.Int64).to_numpy()
    within = Places(
        places.source, numbers if places.numbers is None else places.numbers[numbers], places.unit
    )
    labels = read_ids(known, name, problems, within)
    return pl.Series(name, [None] * len(found), dtype=pl.String).scatter(given, labels)


def read_flags(series: nw.Series[Any], name: str, problems: Problems, places: Places) -> pl.Series:
    """Return True and False, or 1 and 0 as such; anything else, missing ones too, is a problem."""
    found = _in_polars(series)
    if found is None:
        return _by_value(series, name, problems, places, _flag_of).cast(pl.Boolean)
    if found.dtype != pl.Boolean and not found.dtype.is_numeric() and found.null_count() < len(found):
        problems.add(f"column {name!r} holds {found.dtype}; give True and False (or 1 and 0)")
        return pl.Series(name, [False] * len(found))
    numbers = found.cast(pl.Float64)
    bad = (~numbers.is_in([0.0, 1.0]).fill_null(False)).arg_true()
    if len(bad):
        problems.add(
            f"{len(bad)} values of column {name!r} are neither True nor False ({places.of(bad)}); "
            "say of every row whether the memory was drawn"
        )
    return (numbers == 1.0).fill_null(False).rename(name)


def read_numbers(series: nw.Series[Any], name: str, problems: Problems, places: Places) -> pl.Series:
    """Return floats, null where None or NaN; text and infinite values are problems, and nothing is filled in."""
    found = _in_polars(series)
    if found is None:
        found = _by_value(series, name, problems, places, _number_of).cast(pl.Float64)
    elif found.dtype != pl.Boolean and not found.dtype.is_numeric() and found.null_count() < len(found):
        problems.add(f"column {name!r} holds {found.dtype}; give numbers, null or NaN where missing")
        return pl.Series(name, [None] * len(found), dtype=pl.Float64)
    numbers = found.cast(pl.Float64).fill_nan(None)
    bad = numbers.is_infinite().fill_null(False).arg_true()
    if len(bad):
        problems.add(
            f"{len(bad)} values of column {name!r} are infinite ({places.of(bad)}); a missing value is null or NaN"
        )
    return numbers


def _in_polars(series: nw.Series[Any]) -> pl.Series | None:
    """Return the column in polars; None where its values are Python objects of several types."""
    try:
        found = series.to_polars()
    except Exception:  # noqa: BLE001  whatever the library says of mixed objects, they are read one by one
        return None
    return None if found.dtype == pl.Object else found


def _by_value(
    series: nw.Series[Any], name: str, problems: Problems, places: Places, read: Callable[[Any], Any]
) -> pl.Series:
    values: list[Any] = []
    kinds: dict[str, bool] = {}
    for row, value in enumerate(series.to_list()):
        try:
            said = read(value)
            if isinstance(said, str):
                check_one_type(said, value, kinds)
        except CmpError as error:
            problems.add(f"column {name!r}, {places.of(np.array([row]))}: {error}", type(error))
            said = None
        values.append(said)
    return pl.Series(name, values)


def _id_of(value: Any) -> str:
    return canonical_id(value, "the row")


def _flag_of(value: Any) -> bool:
    if isinstance(value, bool | int | float | np.number | np.bool_) and value in (0, 1):
        return bool(value)
    raise ForeignLogError(f"{value!r} is neither True nor False")


def _number_of(value: Any) -> float | None:
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return None
    if isinstance(value, bool | int | float | np.number | np.bool_):
        return None if math.isnan(value) else float(value)
    raise ForeignLogError(f"{value!r} ({type(value).__name__}) is no number")


def named_columns(*, k: int | str | None, **columns: str | None) -> dict[str, str]:
    """Return the columns that are there by our names for them; ``k`` is one where it is no number.

    Examples
    --------
    >>> named_columns(round_id="request", scope=None, k=2)
    {'round_id': 'request'}
    """
    given = {name: column for name, column in columns.items() if column is not None}
    return given | ({"k": k} if isinstance(k, str) else {})
