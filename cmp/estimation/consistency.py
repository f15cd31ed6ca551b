"""What a log must not say: cheap checks that keep an impossible row from becoming a number."""

from __future__ import annotations

import polars as pl

from cmp.errors import PositivityError, ScopeError

__all__ = ["check_certain", "check_drawn", "check_planned", "check_rounds", "check_unique"]

_SEE = "see cmp.validate_log"


def check_unique(table: pl.DataFrame, key: list[str], name: str) -> None:
    """Check that no row of a table stands in it twice.

    Raises
    ------
    ScopeError
        For a block of two scopes.
    ValueError
        For any other.
    """
    twice = table.filter(table.select(pl.struct(key).is_duplicated()).to_series())
    if not twice.height:
        return
    said = ", ".join(repr(value) for value in twice.select(key).row(0))
    if "scope" in table.columns and twice.filter(pl.col(key[0]) == twice[key[0]][0])["scope"].n_unique() > 1:
        raise ScopeError(f"block {said} is of two scopes, and no block may cross them; {_SEE}")
    raise ValueError(f"{twice.height} rows of {name} stand in the log more than once ({said}); {_SEE}")


def check_planned(members: pl.DataFrame) -> None:
    """Check that rosters (``block_id, memory_id, planned, length``) plan no more rows than a block has.

    Raises
    ------
    PositivityError
        For planned counts that make no probability.
    """
    planned = pl.col("planned")
    torn = members.filter(planned.is_null() | (planned < 0) | (planned > pl.col("length")))
    if torn.height:
        said = torn.row(0, named=True)
        raise PositivityError(
            f"{torn.height} rows of rosters plan an impossible number of exposures (block {said['block_id']!r}, memory "
            f"{said['memory_id']!r}: {said['planned']} of {said['length']} rows), so propensities are unknown; {_SEE}"
        )


def check_rounds(placed: pl.DataFrame) -> None:
    """Check that rounds (``round_id, scope, block_id, scope_of_block``) are of blocks of their own scope.

    Raises
    ------
    ScopeError
        For a round of another scope than its block's.
    ValueError
        For a round of a block that is not there.
    """
    if placed["scope_of_block"].null_count():
        lost = placed.filter(pl.col("scope_of_block").is_null())
        raise ValueError(
            f"{lost.height} randomized rounds are of blocks that the log does not hold (round {lost['round_id'][0]!r}, "
            f"block {lost['block_id'][0]!r}); {_SEE}"
        )
    crossed = placed.filter(pl.col("scope") != pl.col("scope_of_block"))
    if crossed.height:
        raise ScopeError(
            f"{crossed.height} rounds have another scope than their block (round {crossed['round_id'][0]!r}: "
            f"{crossed['scope'][0]!r} in a block of {crossed['scope_of_block'][0]!r}); {_SEE}"
        )


def check_drawn(without_chance: pl.DataFrame) -> None:
    """Refuse exposures (``round_id, memory_id, block_id``) of what no exposure was planned for.

    Raises
    ------
    PositivityError
        For any.
    """
    if without_chance.height:
        said = without_chance.row(0, named=True)
        raise PositivityError(
            f"{without_chance.height} exposures were drawn without a chance: memory {said['memory_id']!r} in round "
            f"{said['round_id']!r} has no exposure planned in the roster of block {said['block_id']!r}; {_SEE}"
        )


def check_certain(not_drawn: pl.DataFrame) -> None:
    """Refuse cells (``memory_id, block_id``) planned for every row and not drawn in an eligible round.

    Raises
    ------
    PositivityError
        For any.
    """
    if not_drawn.height:
        said = not_drawn.row(0, named=True)
        raise PositivityError(
            f"memory {said['memory_id']!r} was planned for every row of block {said['block_id']!r} and not drawn "
            f"in one of its rounds, so propensities are not what rosters say; {_SEE}"
        )
