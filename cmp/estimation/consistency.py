"""What a log must not say: cheap joins that keep an impossible row from becoming a number."""

from __future__ import annotations

from typing import Any

import narwhals.stable.v2 as nw
import polars as pl

from cmp.errors import PositivityError, ScopeError
from cmp.estimation.cells import BoolArray

__all__ = ["check_blocks", "check_certain", "check_drawn"]

_SEE = "see cmp.validate_log"


def check_blocks(rounds: nw.DataFrame[Any], blocks: nw.DataFrame[Any], rosters: nw.DataFrame[Any]) -> None:
    """Check that rounds are of blocks of their own scope, and that rosters plan no more rows than a block has.

    Parameters
    ----------
    rounds
        ``round_id, scope, block_id`` of randomized rounds.
    blocks
        ``block_id, scope, length``.
    rosters
        ``block_id, memory_id, planned``.

    Raises
    ------
    PositivityError
        For planned counts that make no probability.
    ScopeError
        For a round of another scope than its block's.
    ValueError
        For a round of a block that is not there.
    """
    planned = rosters.join(blocks.select("block_id", "length"), on="block_id", how="inner")
    torn = planned.filter(
        nw.col("planned").is_null() | (nw.col("planned") < 0) | (nw.col("planned") > nw.col("length"))
    )
    if len(torn):
        row = torn.row(0)
        said = dict(zip(torn.columns, row, strict=True))
        raise PositivityError(
            f"{len(torn)} rows of rosters plan an impossible number of exposures (block {said['block_id']!r}, memory "
            f"{said['memory_id']!r}: {said['planned']} of {said['length']} rows), so propensities are unknown; {_SEE}"
        )
    placed = rounds.select("round_id", "scope", "block_id").join(
        blocks.select("block_id", nw.col("scope").alias("scope_of_block")), on="block_id", how="left"
    )
    lost = placed.filter(nw.col("scope_of_block").is_null())
    if len(lost):
        raise ValueError(
            f"{len(lost)} randomized rounds are of blocks that the log does not hold (round {lost['round_id'][0]!r}, "
            f"block {lost['block_id'][0]!r}); {_SEE}"
        )
    crossed = placed.filter(nw.col("scope") != nw.col("scope_of_block"))
    if len(crossed):
        raise ScopeError(
            f"{len(crossed)} rounds have another scope than their block (round {crossed['round_id'][0]!r}: "
            f"{crossed['scope'][0]!r} in a block of {crossed['scope_of_block'][0]!r}); {_SEE}"
        )


def check_drawn(
    sums: nw.DataFrame[Any], rows: nw.DataFrame[Any], rounds: nw.DataFrame[Any], rosters: nw.DataFrame[Any]
) -> None:
    """Check that whatever was drawn stood in its block's roster with a chance.

    Parameters
    ----------
    sums
        ``block_id, memory_id, drawn_rounds``: what was drawn, by stratum.
    rows
        ``round_id, memory_id, drawn``, to name a round by.
    rounds
        ``round_id, block_id``.
    rosters
        ``block_id, memory_id, planned``.

    Raises
    ------
    PositivityError
        For ids outside the roster, or with no exposure planned.
    """
    key = ["block_id", "memory_id"]
    drawn = sums.filter(nw.col("drawn_rounds") > 0).select(key)
    planned = drawn.join(rosters.select(*key, "planned"), on=key, how="left")
    if not (planned["planned"].fill_null(0) <= 0).any():
        return
    named = rows.filter(nw.col("drawn")).select("round_id", "memory_id")
    named = named.join(rounds.select("round_id", "block_id"), on="round_id", how="inner")
    torn = named.join(rosters.select(*key, "planned"), on=key, how="left")
    torn = torn.filter(nw.col("planned").fill_null(0) <= 0)
    raise PositivityError(
        f"{len(torn)} exposures were drawn without a chance: memory {torn['memory_id'][0]!r} in round "
        f"{torn['round_id'][0]!r} has no exposure planned in the roster of block {torn['block_id'][0]!r}; {_SEE}"
    )


def check_certain(cells: pl.DataFrame, not_drawn: BoolArray) -> None:
    """Check that what each row of a table was to hold was drawn in each.

    Parameters
    ----------
    cells
        ``memory_id``, ``block_id``, ``planned`` and ``length`` of each cell.
    not_drawn
        Shape (C,), whether the memory was eligible in a round and not drawn.

    Raises
    ------
    PositivityError
        For a round without a draw that was certain.
    """
    torn = cells.filter((pl.col("planned") >= pl.col("length")) & pl.Series(not_drawn))
    if torn.height:
        raise PositivityError(
            f"memory {torn['memory_id'][0]!r} was planned for every row of block {torn['block_id'][0]!r} and not drawn "
            f"in one of its rounds, so propensities are not what rosters say; {_SEE}"
        )
