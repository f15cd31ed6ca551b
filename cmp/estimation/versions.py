"""A log in which every version of a memory's content is a memory of its own."""

from __future__ import annotations

import polars as pl

from cmp.estimation.settled import LogFrames

__all__ = ["VersionedLog"]

_MEMORY = ["scope", "memory_id"]


class VersionedLog:
    """The frames of a log, with one id a (scope, memory, content hash): a unit.

    Exposures are of the version that their ``content_hash`` names. Controls are no exposures, so what a memory would
    have said in them is read off its sightings, in the order of rounds (creation of the block, then row): a round
    between two sightings of one version belongs to it, one before the first sighting to the first version, one after
    the last to the last. Between the last sighting of one version and the first of the next nobody knows: such
    rounds are in no version's contrast. Rounds that were not randomized have no place in the order.

    Attributes
    ----------
    units : polars.DataFrame
        ``unit, scope, memory_id, content_hash``; the hash is null for a memory never seen with one. Units sort as
        memories and hashes do.
    """

    def __init__(self, log: LogFrames) -> None:
        self._log = log
        blocks = log.blocks().collect()
        if "created_at" in blocks.columns:
            blocks = blocks.sort("created_at", "block_id")
        order = blocks.select("block_id", pl.col("scope").alias("scope")).with_row_index("nth")
        rounds = log.rounds().filter("randomized").select("round_id", "block_id", "block_row").collect()
        self._rounds = (
            rounds.join(order, on="block_id")
            .sort("nth", "block_row", "round_id")
            .with_row_index("place")
            .drop("nth")
        )
        self._exposures = log.exposures().collect().join(self._rounds, on="round_id", how="inner")
        self._sightings = self._exposures.filter(pl.col("content_hash").is_not_null())
        self._rosters = log.rosters().collect().join(order.select("block_id", "scope"), on="block_id")
        seen = self._sightings.select(*_MEMORY, "content_hash").unique()
        everyone = pl.concat([self._rosters.select(_MEMORY), self._exposures.select(_MEMORY)]).unique()
        units = (
            everyone.join(seen, on=_MEMORY, how="left").sort(*_MEMORY, "content_hash").with_row_index("unit")
        )
        self.units = units.with_columns(pl.col("unit").cast(pl.String).str.zfill(10))

    def rounds(self) -> pl.LazyFrame:
        """Return the log's own."""
        return self._log.rounds()

    def outcomes(self) -> pl.LazyFrame:
        """Return the log's own."""
        return self._log.outcomes()

    def blocks(self) -> pl.LazyFrame:
        """Return the log's own."""
        return self._log.blocks()

    def rosters(self) -> pl.LazyFrame:
        """Return rosters with a row a unit."""
        placed = self._rosters.join(self.units.drop("content_hash"), on=_MEMORY, how="inner")
        return placed.with_columns(pl.col("unit").alias("memory_id")).drop("unit", "scope").lazy()

    def exposures(self) -> pl.LazyFrame:
        """Return exposures by unit, and rows of arm ``"elsewhere"`` where a unit's version was not in effect."""
        columns = ["round_id", "memory_id", "arm", "assigned", "propensity", "delivered", "content_hash"]
        seen = self._in_effect(self._exposures).with_columns(
            pl.coalesce("content_hash", "effective").alias("effective")
        )
        known = seen.join(
            self.units.rename({"content_hash": "effective"}), on=[*_MEMORY, "effective"], nulls_equal=True
        )
        known = known.with_columns(pl.col("unit").alias("memory_id")).select(columns)
        return pl.concat([known, self._elsewhere().select(columns)]).lazy()

    def _in_effect(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Add the version in effect, ``effective``, to rows of (scope, memory, place); null where unknown."""
        sighted = self._sightings.select(*_MEMORY, "place", pl.col("content_hash").alias("seen")).sort(
            "place"
        )
        found = rows.sort("place")
        last, following = sighted.rename({"seen": "last"}), sighted.rename({"seen": "next"})
        found = found.join_asof(last, on="place", by=_MEMORY, strategy="backward", check_sortedness=False)
        found = found.join_asof(following, on="place", by=_MEMORY, strategy="forward", check_sortedness=False)
        agreed = pl.col("last").is_null() | pl.col("next").is_null() | (pl.col("last") == pl.col("next"))
        return found.with_columns(pl.when(agreed).then(pl.coalesce("last", "next")).alias("effective")).drop(
            "last", "next"
        )

    def _elsewhere(self) -> pl.DataFrame:
        several = self.units.filter(pl.struct(_MEMORY).is_duplicated())
        rounds = self._rosters.join(several.select(_MEMORY).unique(), on=_MEMORY, how="semi").select(
            *_MEMORY, "block_id"
        )
        rounds = rounds.join(self._rounds.select("block_id", "round_id", "place"), on="block_id")
        apart = self._in_effect(rounds).join(several, on=_MEMORY)
        apart = apart.filter(pl.col("content_hash").ne_missing(pl.col("effective")))
        return apart.select(
            "round_id",
            pl.col("unit").alias("memory_id"),
            pl.lit("elsewhere").alias("arm"),
            pl.lit(False).alias("assigned"),
            pl.lit(None, pl.Float64).alias("propensity"),
            pl.lit(False).alias("delivered"),
            pl.lit(None, pl.String).alias("content_hash"),
        )
