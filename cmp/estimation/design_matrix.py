"""A log's rounds as arrays, for estimators that look at all memories of a scope at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from cmp.estimation.cells import BoolArray
from cmp.estimation.log_codes import CodedLog
from cmp.estimation.log_events import events_of
from cmp.estimation.one_moment import as_of_one_moment
from cmp.estimation.settled import LogFrames
from cmp.estimation.spans import absent_rounds
from cmp.estimation.statistics import coded_log
from cmp.estimation.sums import FloatArray, IntArray

__all__ = ["LogArrays", "log_arrays"]

#: Entries of an array of rounds and memories, beyond which a laptop has no room for what is made of it.
_MOST_ENTRIES = 200_000_000


@dataclass(frozen=True, slots=True, eq=False)
class LogArrays:
    """The randomized rounds of one scope: T rounds, N memories and cards."""

    scope: str
    round_ids: list[str]
    memory_ids: list[str]
    """Every id of every roster, sorted: the columns of the arrays."""
    assigned: BoolArray
    """(T, N), drawn for a random slot in a round in which it was eligible."""
    outcomes: FloatArray
    """(T,), NaN where missing."""
    strata: IntArray
    """(T,), codes of blocks, or of blocks and queries."""
    eligible: BoolArray
    """(T, N), in the roster, not removed, and not in the context anyway."""
    propensity: FloatArray
    """(T, N), NaN outside the roster."""

    @property
    def design(self) -> dict[str, Any]:
        """What :func:`cmp.adjusted_estimate`, :func:`cmp.joint_utilities` and :func:`cmp.pair_utilities` take."""
        names = ("assigned", "outcomes", "strata", "eligible")
        return {name: getattr(self, name) for name in names}

    def named(self, table: pl.DataFrame) -> pl.DataFrame:
        """Return a table that was made of the arrays with ids in place of columns' numbers, and the scope's name."""
        ids = pl.Series(self.memory_ids, dtype=pl.String)
        columns = [name for name in ("memory_id", "memory_a", "memory_b") if name in table.columns]
        found = table.with_columns(ids.gather(table[name]).alias(name) for name in columns)
        return found.with_columns(scope=pl.lit(self.scope)) if "scope" in table.columns else found


def log_arrays(
    log: LogFrames, scope: str | None = None, metric: str = "reward", *, strata: str = "block"
) -> LogArrays:
    """Read one scope of a log as arrays, for estimators that take a design matrix.

    Parameters
    ----------
    log
        What ``cmp.open_log`` returns, or any object with its five frames.
    scope
        Which scope; may be left out of a log that has one.
    metric
        Name of the outcome.
    strata
        ``"block"``, or ``"query"``: the rounds of a block that ask one query (the caller's ``group``, where given).

    Returns
    -------
    LogArrays
        ``cmp.estimate(**arrays.design, propensity=arrays.propensity)`` is what :func:`cmp.utilities` says of the scope,
        with cards as memories, without rounds that kept or withheld a ranked memory, and with no word of the ranker:
        what is always ranked has no eligible round.

    Raises
    ------
    ValueError
        For a scope that the log does not hold, one that has to be named, rounds that share the outcome of an episode
        (arrays cannot say so, and intervals would be too narrow), more rounds and memories than make an array, or a
        log that :func:`cmp.utilities` refuses.

    Examples
    --------
    >>> import tempfile, cmp
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with cmp.wrap(
    ...         lambda query: "ab", list_ids=lambda scope: "abcdef", get=lambda ids, scope: ids,
    ...         slots=2, random_slots=1, log=f"{folder}/log.db", scope="s", seed=1,
    ...     ) as memory:
    ...         for number in range(24):
    ...             memory.record(memory.retrieve("q").round_id, number % 2)
    ...     arrays = log_arrays(memory.log)
    >>> arrays.assigned.shape, arrays.memory_ids
    ((24, 6), ['a', 'b', 'c', 'd', 'e', 'f'])
    >>> arrays.named(cmp.joint_utilities(**arrays.design).frame)["memory_id"].to_list() == arrays.memory_ids
    True
    """
    if strata not in ("block", "query"):
        raise ValueError(f"strata={strata!r} is not supported; use 'block' or 'query'")
    log = as_of_one_moment(log)
    coded, bars = coded_log(log, metric=metric, by_query=False, within_query=strata == "query")
    chosen, own = _scope_of(coded, scope)
    rounds = np.flatnonzero(own[coded.stratum])
    episodes = coded.rounds["episode_id"].gather(rounds).drop_nulls()
    if episodes.n_unique() < len(episodes):
        raise ValueError(
            f"rounds of scope {chosen!r} share an episode's outcome, of which arrays know nothing; use cmp.utilities"
        )
    member = np.flatnonzero(np.isin(coded.block_of_member, coded.block[own]))
    ids = np.unique(coded.memory[member])
    if len(rounds) * len(ids) > _MOST_ENTRIES:
        raise ValueError(
            f"scope {chosen!r} has {len(rounds):,} rounds and {len(ids):,} memories, which do not fit into an array; "
            "cmp.utilities goes without"
        )
    column = np.searchsorted(ids, coded.memory)
    blocks, block_of_member = np.unique(coded.block_of_member[member], return_inverse=True)
    planned = np.full((len(blocks), len(ids)), np.nan)
    planned[block_of_member, column[member]] = coded.planned[member]
    stratum = coded.stratum[rounds]
    place = np.searchsorted(blocks, coded.block[stratum])
    propensity = planned[place]
    propensity /= coded.length[stratum][:, None]
    eligible, assigned = ~np.isnan(propensity), np.zeros(propensity.shape, dtype=bool)
    row = np.full(len(coded.y), -1)
    row[rounds] = np.arange(len(rounds))
    events = events_of(log, coded, bars)
    mine = row[events.round] >= 0
    at = row[events.round[mine]], column[events.member[mine]]
    assigned[at], eligible[at] = events.drawn[mine], events.drawn[mine]
    gone, member_gone = absent_rounds(coded, events.windows.ended(coded), own[coded.stratum])
    eligible[row[gone], column[member_gone]] = False
    return LogArrays(
        scope=chosen,
        round_ids=coded.rounds["round_id"].gather(rounds).to_list(),
        memory_ids=coded.ids.gather(ids).to_list(),
        assigned=assigned,
        outcomes=coded.y[rounds],
        strata=np.unique(stratum, return_inverse=True)[1],
        eligible=eligible,
        propensity=propensity,
    )


def _scope_of(coded: CodedLog, scope: str | None) -> tuple[str, BoolArray]:
    """Return the scope to read, and which strata are of it."""
    names = coded.rounds["scope"].unique().sort().to_list()
    if scope is None and len(names) != 1:
        shown = ", ".join(map(repr, names[:5]))
        raise ValueError(
            f"the log holds {len(names)} scopes with randomized rounds ({shown}); pass scope= one of them"
        )
    if scope is not None and scope not in names:
        raise ValueError(f"the log holds no randomized round of scope {scope!r}")
    chosen = names[0] if scope is None else scope
    return chosen, (coded.strata["scope"] == chosen).to_numpy()
