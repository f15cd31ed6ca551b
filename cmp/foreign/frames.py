"""Any dataframe of randomized rounds, one row per round and memory that might have been drawn."""

from __future__ import annotations

from typing import Any, Final

import narwhals.stable.v2 as nw
import numpy as np
import polars as pl

from cmp.foreign.building import build_log
from cmp.foreign.columns import named_columns, read_flags, read_ids, read_labels, read_numbers
from cmp.foreign.logs import ForeignLog
from cmp.foreign.problems import ForeignLogError, Places, Problems
from cmp.protocols import EVERYTHING, Scope, ScopeLike

__all__ = ["SUMS_WITHIN", "checked_k", "checked_slack", "fixed_scope", "from_frame"]

#: Relative slack of a round's sum of propensities: what single precision leaves of it.
SUMS_WITHIN: Final = 1e-6


def from_frame(
    frame: Any,
    *,
    round: str = "round_id",
    memory: str = "memory_id",
    assigned: str = "assigned",
    propensity: str = "propensity",
    outcome: str = "outcome",
    scope: str | None = None,
    stratum: str | None = None,
    query: str | None = None,
    episode: str | None = None,
    eligible: str | None = None,
    k: int | str | None = None,
    roster: Any = None,
    sums_within: float = SUMS_WITHIN,
) -> ForeignLog:
    """Take randomized rounds from any dataframe: polars (eager or lazy), pandas, pyarrow, whatever narwhals reads.

    One row per round and memory that might have been drawn in it, *drawn or not*: what is compared is the outcome of
    the rounds that drew a memory with that of the rounds that might have and did not. Estimates from it are unbiased
    where propensities are those of the design: the probability, known before the outcome, that the memory is drawn
    in that round at all (not into one of its slots, not by the branch that was taken).

    Parameters
    ----------
    frame
        The rows, in any order. The result does not depend on it.
    round, memory
        Columns of ids: strings, or integers, which are written in decimal.
    assigned
        Column of True and False (or 1 and 0): whether the memory was drawn.
    propensity
        Column of probabilities of assignment. Rows at 0 or 1 carry no contrast; they are counted and left out.
    outcome
        Column of the round's outcome, the same in each of its rows; null or NaN where missing, which is never 0.
    scope
        Column of the tenant whose store was searched; None for a single one.
    stratum
        Column of what the draw was made within, or what shifts outcomes (a day, an experiment): levels are compared
        within a stratum only. None for one stratum a scope.
    query, episode
        Columns of the query, for utilities by query, and of rounds that share an outcome (null: a round alone).
        Randomized per round but measured per user or session: name that as the episode, or intervals are too narrow.
    eligible
        Column of True and False: False where the memory was in the context anyway. Such a row counts in the sum of the
        round's propensities, and in no contrast. None where such rows are not listed.
    k
        Memories drawn a round: a number, or a column. None takes the rows assigned, where that is one number.
    roster
        A dataframe that lists, once per stratum, each memory that might have been drawn (the columns of memory and,
        where they are named, of scope and stratum), perhaps with its propensity; without, it is k over their number.
        Then ``frame`` need hold only the rows drawn, k in each round, and propensities must be the same all through a
        stratum. A mere number of eligible memories does not do: it does not say which ones were the controls.
    sums_within
        Slack of each round's sum of propensities, relative to k and below 1; wider where the source rounded them.

    Returns
    -------
    ForeignLog
        For ``cmp.utilities``.

    Raises
    ------
    PositivityError
        For propensities that are no probabilities, are contradicted by a draw, or do not add up to k in a round.
    InvalidIdError
        For ids that are null, empty, no strings or integers, or alike only as text.
    ConflictingOutcomeError
        For a round with several outcomes.
    ForeignLogError
        For anything else: missing columns, repeated rows, no controls; and for problems of several kinds at once. All
        are ``ValueError``, and list what was wrong, where, and what to do.

    References
    ----------
    Horvitz, D. G. and Thompson, D. J. (1952). JASA 47, 663-685: propensities of inclusion, which add up to k.

    Examples
    --------
    >>> import polars as pl
    >>> rows = pl.DataFrame({
    ...     "round_id": [1, 1, 2, 2, 3, 3, 4, 4],
    ...     "memory_id": ["a", "b"] * 4,
    ...     "assigned": [True, False, False, True] * 2,
    ...     "propensity": [0.5] * 8,
    ...     "outcome": [1.0, 1.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0],
    ... })
    >>> log = from_frame(rows)
    >>> log
    ForeignLog(4 rounds, 2 memories)
    >>> from cmp.estimation.from_rows import utilities_of_rows
    >>> utilities_of_rows(log).frame.select("memory_id", "utility").rows()
    [('a', 0.5), ('b', -0.5)]

    The same from the rows drawn and the roster:

    >>> drawn = rows.filter("assigned")
    >>> log = from_frame(drawn, roster=pl.DataFrame({"memory_id": ["a", "b"]}))
    >>> utilities_of_rows(log).frame["utility"].to_list()
    [0.5, -0.5]
    """
    problems, places = Problems("this frame"), Places("frame")
    slack = checked_slack(sums_within)
    columns = named_columns(
        round_id=round, memory_id=memory, assigned=assigned, propensity=propensity, outcome=outcome,
        scope=scope, stratum=stratum, group=query, episode_id=episode, eligible=eligible, k=k,
    )  # fmt: skip
    table = _table(_eager(frame, list(columns.values()), "the frame"), columns, problems, places)
    listed = None
    if roster is not None:
        listed = _roster(roster, columns, problems)
    problems.raise_any()
    return build_log(table, listed, checked_k(k), slack, problems=problems, places=places, metric=outcome)


def fixed_scope(scope: ScopeLike | None) -> str:
    """Return the key of a scope given as such; None is the one single-tenant store."""
    return EVERYTHING.key if scope is None else Scope.of(scope).key


def checked_k(k: int | str | None) -> int | None:
    """Return k where it is a number; None where it is a column or not given."""
    if isinstance(k, str) or k is None:
        return None
    if isinstance(k, bool) or not hasattr(k, "__index__") or k < 1:
        raise ForeignLogError(
            f"k={k!r}; give the number of memories drawn a round, or the name of its column"
        )
    return int(k)


def checked_slack(within: float) -> float:
    """Return the slack of sums of propensities, below 1: from there on any sum would do, and nothing be checked."""
    if isinstance(within, bool) or not isinstance(within, int | float | np.number) or not 0 <= within < 1:
        raise ForeignLogError(
            f"sums_within={within!r}; give the slack of a round's sum of propensities relative to k, from 0 to below 1 "
            "(0.01, where they were rounded to two digits)"
        )
    return float(within)


def _eager(frame: Any, columns: list[str], what: str, perhaps: tuple[str, ...] = ()) -> nw.DataFrame[Any]:
    """Return the columns needed, and those that may be there, collected."""
    try:
        found = nw.from_native(frame)
    except TypeError as error:
        raise ForeignLogError(
            f"{what} is a {type(frame).__name__}; give a dataframe (polars, pandas, pyarrow, or another that narwhals "
            "reads)"
        ) from error
    names = found.collect_schema().names()
    if lacking := [name for name in columns if name not in names]:
        raise ForeignLogError(
            f"{what} has no column {', '.join(map(repr, lacking))}; it has {', '.join(map(repr, names))}. Say which "
            "column is which: from_frame(frame, round=..., memory=..., assigned=..., propensity=..., outcome=...)"
        )
    chosen = found.select(*dict.fromkeys([*columns, *(name for name in perhaps if name in names)]))
    return chosen.collect() if isinstance(chosen, nw.LazyFrame) else chosen


def _table(
    frame: nw.DataFrame[Any], columns: dict[str, str], problems: Problems, places: Places
) -> pl.DataFrame:
    def numbers(name: str) -> pl.Series:
        return read_numbers(frame[columns[name]], columns[name], problems, places)

    def flags(name: str) -> pl.Series:
        return read_flags(frame[columns[name]], columns[name], problems, places)

    table = {
        name: read_ids(frame[columns[name]], columns[name], problems, places)
        for name in ("round_id", "memory_id")
    }
    table |= {
        "assigned": flags("assigned"),
        "propensity": numbers("propensity"),
        "outcome": numbers("outcome"),
    }
    for name in ("scope", "stratum", "group", "episode_id"):
        if name in columns:
            column = columns[name]
            table[name] = read_labels(frame[column], column, problems, places, missing=name == "episode_id")
    if "eligible" in columns:
        table["eligible"] = flags("eligible")
    if "k" in columns:
        table["k"] = numbers("k")
    return pl.DataFrame({name: series.alias(name) for name, series in table.items()})


def _roster(roster: Any, columns: dict[str, str], problems: Problems) -> pl.DataFrame:
    places = Places("roster", unit="row")
    keys = {name: columns[name] for name in ("scope", "stratum", "memory_id") if name in columns}
    chance = columns["propensity"]
    frame = _eager(roster, list(keys.values()), "the roster", (chance,))
    read: dict[str, pl.Series] = {
        name: (read_ids if name == "memory_id" else read_labels)(frame[column], column, problems, places)
        for name, column in keys.items()
    }
    if chance in frame.columns:
        read["propensity"] = read_numbers(frame[chance], chance, problems, places)
    return pl.DataFrame({name: series.alias(name) for name, series in read.items()})
