"""A log's rounds and rosters with their names replaced by codes: of rounds in the order they come in, else of names."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from cmp.estimation.cells import BoolArray
from cmp.estimation.consistency import check_planned, check_rounds, check_unique
from cmp.estimation.sums import FloatArray, IntArray, places

__all__ = ["CodedLog", "code_log", "integers"]


@dataclass(frozen=True, slots=True)
class CodedLog:
    """T randomized rounds in S strata of B blocks, whose rosters have R rows for N ids of memories."""

    rounds: pl.DataFrame
    """T rows with the log's own names; a round's code is its row."""
    strata: pl.DataFrame
    """S rows: scope (and group), block and what else names a stratum."""
    families: pl.DataFrame
    """F rows: the scopes (and groups) that have a roster."""
    ids: pl.Series
    """N texts."""
    y: FloatArray
    """(T,), outcomes, NaN where missing."""
    stratum: IntArray
    """(T,)."""
    block_row: FloatArray
    """(T,), a round's row of its block; NaN where the log does not say."""
    block: IntArray
    """(S,)."""
    scope: IntArray
    """(S,)."""
    family: IntArray
    """(S,), -1 where there is no roster."""
    length: IntArray
    """(S,), rounds that the block was planned to have, less those that cannot be of the stratum."""
    nth: IntArray
    """(S,), the block's place in the order of creation."""
    cards: IntArray
    """(S,), how many reference cards each round of the stratum drew; -1 where strata are not told apart by that."""
    base: IntArray
    """(S,), a code that strata share which nothing but these cards tells apart."""
    first: IntArray
    """(B + 1,), where each block's roster begins; its rows are in the order of ids."""
    block_of_member: IntArray
    """(R,)."""
    memory: IntArray
    """(R,)."""
    planned: IntArray
    """(R,)."""
    removed: FloatArray
    """(R,), the row of the block from which on a memory was gone; infinite where it stayed."""

    def members(self, block: IntArray, memory: IntArray) -> tuple[IntArray, BoolArray]:
        """Return the row of the roster that each (block, memory) is, and whether there is one."""
        n = len(self.ids)
        known = self.block_of_member * n + self.memory
        place, found = places(known, block * n + memory, (len(self.first) - 1) * n)
        return place, found & (memory >= 0)

    def codes_of(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return rows with codes, ``round`` and ``memory``, for ``round_id`` and ``memory_id``; null where unknown."""
        if not rows.height:
            nothing = {"round": pl.UInt32, "memory": pl.UInt32}
            return rows.drop("round_id", "memory_id").with_columns(
                pl.lit(None, dtype).alias(name) for name, dtype in nothing.items()
            )
        rounds = self.rounds.select("round_id").with_row_index("round")
        memories = pl.DataFrame({"memory_id": self.ids}).with_row_index("memory")
        left = {"how": "left", "maintain_order": "left"}
        coded = rows.join(rounds, on="round_id", **left).drop("round_id")  # type: ignore[arg-type]
        return coded.join(memories, on="memory_id", **left).drop("memory_id")  # type: ignore[arg-type]


def integers(series: pl.Series) -> IntArray:
    """Return a column of whole numbers."""
    return series.cast(pl.Int64).to_numpy()


def code_log(
    rounds: pl.DataFrame, blocks: pl.DataFrame, rosters: pl.DataFrame, strata: list[str], key: list[str]
) -> CodedLog:
    """Replace names by codes.

    Parameters
    ----------
    rounds
        ``round_id, scope, block_id, block_row, episode_id, y`` and whatever else names a stratum.
    blocks
        ``block_id, scope, length, nth``.
    rosters
        ``block_id, memory_id, planned, removed_row``.
    strata, key
        Columns that name a stratum, and a memory: ``scope``, perhaps ``group``, ``memory_id``.

    Raises
    ------
    PositivityError
        For planned counts that make no probability.
    ScopeError
        For a round of another scope than its block's.
    ValueError
        For a round of a block that is not there, or a block or a row of a roster that is there twice.
    """
    check_unique(blocks, ["block_id"], "blocks")
    if rounds["episode_id"].null_count() < rounds.height:
        rounds = rounds.sort("round_id")  # episodes are told apart by their rounds' codes
    blocks = blocks.sort("block_id").with_row_index("block")
    placed = rounds.join(
        blocks.select("block_id", "block", scope_of_block="scope"),
        on="block_id",
        how="left",
        maintain_order="left",
    )
    check_rounds(placed)
    members = rosters.join(blocks.select("block_id", "block", "length"), on="block_id")
    ids = members["memory_id"].unique().sort()
    members = members.join(pl.DataFrame({"memory_id": ids}).with_row_index("memory"), on="memory_id")
    members = members.sort("block", "memory")
    block_of_member, memory = integers(members["block"]), integers(members["memory"])
    if ((np.diff(block_of_member) == 0) & (np.diff(memory) == 0)).any():
        check_unique(members, ["block_id", "memory_id"], "rosters")
    check_planned(members)
    sizes = np.bincount(block_of_member, minlength=blocks.height)
    names = _strata_of(placed, blocks, strata, key[:-1])
    families = names.filter(pl.Series(sizes[integers(names["block"])] > 0))
    families = families.select(key[:-1]).unique().sort(key[:-1])
    codes = names.join(families.with_row_index("family"), on=key[:-1], how="left", maintain_order="left")
    stratum = placed.select(strata).join(
        names.select(strata).with_row_index("stratum"), on=strata, how="left", maintain_order="left"
    )
    return CodedLog(
        rounds=rounds,
        strata=names.select(*key[:-1], *(name for name in strata if name not in key)),
        families=families,
        ids=ids,
        y=rounds["y"].fill_null(np.nan).to_numpy(),
        stratum=integers(stratum["stratum"]),
        block_row=rounds["block_row"].cast(pl.Float64).fill_null(np.nan).to_numpy(),
        block=integers(names["block"]),
        scope=integers(names["scope"].rank("dense")) - 1,
        family=integers(codes["family"].cast(pl.Int64).fill_null(-1)),
        length=integers(names["length"]),
        nth=integers(names["nth"]),
        cards=integers(names["cards"]) if "cards" in strata else np.full(names.height, -1),
        base=_bases(names, [name for name in strata if name != "cards"]),
        first=np.concatenate([[0], np.cumsum(sizes)]),
        block_of_member=block_of_member,
        memory=memory,
        planned=integers(members["planned"]),
        removed=members["removed_row"].cast(pl.Float64).fill_null(np.inf).to_numpy(),
    )


def _bases(names: pl.DataFrame, columns: list[str]) -> IntArray:
    """Return a code for each run of strata that have the same of these columns, which they are sorted by."""
    other = [pl.col(name).ne_missing(pl.col(name).shift()) for name in columns]
    return integers(names.select(pl.any_horizontal(other).cum_sum()).to_series()) - 1


def _strata_of(
    placed: pl.DataFrame, blocks: pl.DataFrame, strata: list[str], family: list[str]
) -> pl.DataFrame:
    """Return the strata in their order; a block without rounds is one too, unless memories are told apart by query."""
    columns = list(dict.fromkeys([*family, *strata]))
    seen = placed.select(*columns, "block").unique()
    seen = seen.join(blocks.select("block", "length", "nth"), on="block")
    if "group" not in family:
        idle = blocks.join(seen, on="block", how="anti").with_columns(
            earlier=pl.lit(0, placed["earlier"].dtype if "earlier" in strata else None),
            group=pl.lit(None, pl.String),
            cards=pl.lit(-1, pl.Int64),
        )
        seen = pl.concat([seen, idle.select(seen.columns)])
    if "earlier" in strata:
        seen = seen.with_columns(length=pl.col("length") - pl.col("earlier").cast(pl.Int64))
    return seen.sort(columns)
