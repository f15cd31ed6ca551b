"""A log in which every version of a memory's content is a memory of its own."""

from __future__ import annotations

import polars as pl

from cmp.estimation.rewrites import BY_CHANCE, DRAWN, runs_of_sightings, windows_of_runs
from cmp.estimation.settled import LogFrames

__all__ = ["VersionedLog", "with_dating_sightings"]

_MEMORY = ["scope", "memory_id"]
_EXPOSURE = ("round_id", "arm", "assigned", "propensity", "delivered", "content_hash")


class VersionedLog:
    """The frames of a log, with one id a (scope, memory, content hash): a unit.

    A log says what a memory held where it was shown, a *sighting*, and not in the rounds it is compared with. So the
    order of rounds (creation of the block, then row) is cut into *windows*: one for each run of sightings of one
    version between sightings of others. A window runs from the first sighting of its run to the last; the first run's
    begins with the memory's first block, the last run's ends with its last. Between windows nobody knows which version
    was in effect.

    **A window does not hold the sightings that date its edges**, unless they were certain. Where the edge is a draw it
    was found by looking for a draw: that round is exposed whatever its outcome, and under a drift of outcomes
    the early version's exposures would be late ones (or the other way round). Given the edge, and how many
    rounds of each block drew the memory within, the draws before a last sighting (after a first one) are a
    simple random sample of the eligible rounds there: every set of as many is as likely. Hence each version's
    difference in means is unbiased within each block, given the edges, for the mean effect of that version over the
    eligible rounds of its windows, and exact tests are exact. A ranked memory that chance might have withheld is a draw
    in this sense; one that the ranker showed for certain is not, and its round is in no arm anyway.

    Eligible rounds of a version, the estimand's: those of its windows in which the memory is eligible. A
    version whose sightings all date edges has none with an exposure, which :func:`with_dating_sightings` says.

    This holds given that every version in effect was seen while it was. A rewrite that is taken back before anybody
    saw it leaves no trace, nor does a version before the first or after the last one seen: their rounds count as
    the neighbour's, and always as controls. What is in effect for a whole block that draws the memory is always
    seen. Rounds of an unknown row have no place in the order, and are of a
    version only where its window holds the whole block; where a rewritten memory was seen in one, nothing is known
    of its versions. Rounds that were not randomized have no place either.

    Attributes
    ----------
    units : polars.DataFrame
        ``unit, scope, memory_id, content_hash, n_dating``; the hash is null for a memory never seen with one, and
        ``n_dating`` how many sightings by chance are outside of the unit's windows. Units sort as memories and hashes
        do.
    windows : polars.DataFrame
        ``block_id, memory_id`` (a unit), ``begin, end``: rows from ``begin`` on and before ``end``; for rewritten
        memories alone, of which each unit has a row for each block of its roster at least, if an empty one.
    """

    def __init__(self, log: LogFrames) -> None:
        self._log = log
        blocks = log.blocks().collect()
        if "created_at" in blocks.columns:
            blocks = blocks.sort("created_at", "block_id")
        order = blocks.select("block_id", "scope").with_row_index("nth")
        rounds = log.rounds().filter("randomized").select("round_id", "block_id", "block_row").collect()
        exposures = log.exposures().collect().join(rounds.join(order, on="block_id"), on="round_id")
        rosters = log.rosters().collect().join(order, on="block_id")
        units = _units(exposures, rosters)
        several = units.filter(pl.len().over(_MEMORY) > 1)
        codes = several.select(_MEMORY).unique(maintain_order=True).with_row_index("memory")
        theirs, shown = rosters.join(codes, on=_MEMORY), exposures.join(codes, on=_MEMORY)
        spans = _spans(shown, theirs, several.join(codes, on=_MEMORY))
        blocks_of = spans.select("block_id", "unit", "memory").unique()
        members = [
            rosters.join(codes, on=_MEMORY, how="anti").join(units, on=_MEMORY),
            blocks_of.join(theirs, on=["memory", "block_id"]),
        ]
        exposed = [
            exposures.join(codes, on=_MEMORY, how="anti").join(units.drop("content_hash"), on=_MEMORY),
            _by_window(shown, theirs, spans, several),
        ]
        self.windows = spans.select("block_id", pl.col("unit").alias("memory_id"), "begin", "end")
        self._rosters = pl.concat(_by_unit(frame, "block_id", "planned", "removed_row") for frame in members)
        self._exposures = pl.concat(_by_unit(frame, *_EXPOSURE) for frame in exposed)
        dating = self._exposures.filter(pl.col("arm") == "dating").group_by(unit="memory_id")
        self.units = units.join(
            dating.agg(n_dating=pl.len()), on="unit", how="left", maintain_order="left"
        ).with_columns(pl.col("n_dating").fill_null(0))

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
        """Return rosters with a row a unit; a version's in the blocks that its runs touch."""
        return self._rosters.lazy()

    def exposures(self) -> pl.LazyFrame:
        """Return exposures by unit; outside of its windows they are of arms that no contrast knows."""
        return self._exposures.lazy()


def _by_unit(frame: pl.DataFrame, *columns: str) -> pl.DataFrame:
    return frame.select(*columns, pl.col("unit").alias("memory_id"))


def _units(exposures: pl.DataFrame, rosters: pl.DataFrame) -> pl.DataFrame:
    seen = exposures.filter(pl.col("content_hash").is_not_null()).select(*_MEMORY, "content_hash").unique()
    everyone = pl.concat([rosters.select(_MEMORY), exposures.select(_MEMORY)]).unique()
    units = everyone.join(seen, on=_MEMORY, how="left").sort(*_MEMORY, "content_hash").with_row_index("unit")
    return units.with_columns(pl.col("unit").cast(pl.String).str.zfill(10))


def _spans(shown: pl.DataFrame, rosters: pl.DataFrame, units: pl.DataFrame) -> pl.DataFrame:
    """Return ``memory, unit, block_id, begin, end``; a unit without a window has an empty one in its first block."""
    found = windows_of_runs(runs_of_sightings(shown), rosters).join(units, on=["memory", "content_hash"])
    first = rosters.sort("nth").group_by("memory").agg(pl.col("block_id").first())
    lost = units.join(found, on="unit", how="anti").join(first, on="memory")
    columns = ["memory", "unit", "block_id", "begin", "end"]
    return pl.concat(
        [found.select(columns), lost.with_columns(begin=pl.lit(0.0), end=pl.lit(0.0)).select(columns)]
    )


def _by_window(
    shown: pl.DataFrame, rosters: pl.DataFrame, spans: pl.DataFrame, units: pl.DataFrame
) -> pl.DataFrame:
    """Return exposures of rewritten memories with the unit whose window their row is in.

    Outside of windows they are of their own content, if they tell: sightings by chance of arm ``"dating"``, others
    ``"away"``. What was drawn though no roster plans it keeps its arm, to be refused.
    """
    by = ["memory", "block_id"]
    real = spans.filter(pl.col("begin") < pl.col("end")).select(*by, "begin", "end", within="unit")
    whole = real.filter(pl.col("begin").is_infinite() & pl.col("end").is_infinite())
    rows = shown.with_columns(row=pl.col("block_row").cast(pl.Float64))
    placed = rows.filter(pl.col("row").is_not_null()).sort("row")
    placed = placed.join_asof(
        real.sort("begin"), left_on="row", right_on="begin", by=by, check_sortedness=False
    )
    unplaced = rows.filter(pl.col("row").is_null()).join(whole, on=by, how="left")
    found = pl.concat([placed, unplaced.select(placed.columns)])
    found = found.with_columns(
        pl.when(pl.col("row").is_null() | (pl.col("row") < pl.col("end"))).then("within")
    )
    planned = rosters.filter(pl.col("planned") > 0).select(*by, planned=pl.lit(value=True))
    own = units.select(*_MEMORY, "content_hash", own="unit")
    found = found.join(own, on=[*_MEMORY, "content_hash"], how="left").join(planned, on=by, how="left")
    any_unit = units.group_by(_MEMORY).agg(pl.col("unit").min().alias("some"))
    is_refused = DRAWN & pl.col("planned").is_null()
    return (
        found.join(any_unit, on=_MEMORY)
        .with_columns(
            unit=pl.coalesce("within", "own", pl.when(is_refused).then("some")),
            arm=pl.when(pl.col("within").is_not_null() | is_refused)
            .then("arm")
            .when(BY_CHANCE)
            .then(pl.lit("dating"))
            .otherwise(pl.lit("away")),
        )
        .filter(pl.col("unit").is_not_null())
    )


def with_dating_sightings(table: pl.DataFrame, n_dating: pl.Series) -> pl.DataFrame:
    """Say of versions that have no exposure in their windows how often they were seen: to date a rewrite.

    Parameters
    ----------
    table
        What :func:`cmp.utilities` says of versions.
    n_dating
        For each row, the sightings by chance outside of the version's windows.

    Returns
    -------
    polars.DataFrame
        The table with state ``UNDEREXPOSED`` in place of ``NEVER_EXPOSED`` or ``ALWAYS_RANKED``, which they are not.

    Examples
    --------
    >>> row = {"n_exposed": [0], "state": ["NEVER_EXPOSED"], "reason": ["n1=0"]}
    >>> with_dating_sightings(pl.DataFrame(row), pl.Series([2])).row(0)
    (0, 'UNDEREXPOSED', 'n1=0: each exposure that showed it (2) dates a rewrite, which takes it out')
    """
    is_misread = pl.col("state").is_in(["NEVER_EXPOSED", "ALWAYS_RANKED"]) & (pl.col("n_exposed") == 0)
    said = pl.format("n1=0: each exposure that showed it ({}) dates a rewrite, which takes it out", n_dating)
    is_misread &= pl.lit(n_dating) > 0
    return table.with_columns(
        state=pl.when(is_misread).then(pl.lit("UNDEREXPOSED")).otherwise("state"),
        reason=pl.when(is_misread).then(said).otherwise("reason"),
    )
