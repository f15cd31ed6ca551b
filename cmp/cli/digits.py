"""How many digits a column of numbers needs: enough that none reads as nought, and no more than mean something."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Final

import polars as pl

__all__ = ["number_formats"]

#: Decimals of a column that needs no more, and the most it may have; beyond, numbers are written with an exponent.
DECIMALS: Final = 3
DECIMALS_AT_MOST: Final = 9

#: Columns in the unit of the utility, which its standard error or its interval tells the digits of.
IN_ITS_UNIT: Final = (
    *("utility", "std_error", "ci_low", "ci_high", "bound_low", "bound_high", "mean_exposed", "mean_control"),
    *("auc", "AUC"),
)

#: Columns of probabilities under a null: below this they are only said to be.
P_VALUES: Final = ("p_value", "q_value")
LEAST_P: Final = 0.001

#: So small a share of the greatest standard error is rounding: nobody needs its digits.
NOTHING_BESIDE: Final = 1e-6

#: Standard errors in the width of an interval of 95 %.
_WIDTH: Final = 4.0


def number_formats(frame: pl.DataFrame) -> dict[str, Callable[[float], str]]:
    """Return, for each column of floats, what writes one.

    A column in the unit of the utility has two digits of the least standard error (of the least width, where there is
    no such column); any other three of its greatest number. Whatever would still read as nought is written with an
    exponent, and only nought itself is 0.000.

    Examples
    --------
    >>> frame = pl.DataFrame(
    ...     {"utility": [2e-4, -3e-7, 0.0], "std_error": [4e-5, 5e-5, None], "p_value": [0.0, 0.0314, 1.0]}
    ... )
    >>> formats = number_formats(frame)
    >>> [formats["utility"](value) for value in frame["utility"]]
    ['0.000200', '-3e-07', '0.000000']
    >>> [formats["p_value"](value) for value in frame["p_value"]]
    ['<0.001', '0.031', '1.000']
    """
    names = [name for name, dtype in frame.schema.items() if dtype.is_float()]
    shared = _decimals(_spreads(frame), digits=2, pick=min)
    formats: dict[str, Callable[[float], str]] = {}
    for name in names:
        if name in P_VALUES:
            formats[name] = _probability
        elif name in IN_ITS_UNIT and shared is not None:
            formats[name] = _fixed(shared)
        else:
            own = _decimals(frame[name].drop_nulls().abs(), digits=3, pick=max)
            formats[name] = _fixed(DECIMALS if own is None else own)
    return formats


def _spreads(frame: pl.DataFrame) -> Iterable[float]:
    if "std_error" in frame.columns and (frame["std_error"] > 0).any():
        return frame["std_error"].drop_nulls()
    if {"ci_low", "ci_high"} <= set(frame.columns):
        return ((frame["ci_high"] - frame["ci_low"]) / _WIDTH).drop_nulls()
    return ()


def _decimals(
    values: Iterable[float], *, digits: int, pick: Callable[[Iterable[float]], float]
) -> int | None:
    """Return decimals that write so many digits of the picked one of the positive values; None without any."""
    positive = [value for value in values if 0 < value < math.inf]
    if not positive:
        return None
    positive = [value for value in positive if value >= NOTHING_BESIDE * max(positive)]
    return max(DECIMALS, digits - 1 - math.floor(math.log10(pick(positive))))


def _fixed(decimals: int) -> Callable[[float], str]:
    def written(value: float) -> str:
        text = f"{value:.{decimals}f}"
        if decimals > DECIMALS_AT_MOST:
            return "0" if value == 0 else f"{value:.3g}"
        if math.isfinite(value) and float(text) == 0:
            return f"{abs(value):.{decimals}f}" if value == 0 else f"{value:.1g}"
        return text

    return written


def _probability(value: float) -> str:
    return f"<{LEAST_P:g}" if value < LEAST_P else f"{value:.{DECIMALS}f}"
