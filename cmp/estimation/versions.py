"""A log in which every version of a memory's content is a memory of its own."""

from __future__ import annotations

import polars as pl

from cmp.estimation.rewrites import BY_CHANCE, DRAWN, in_order, runs_of_sightings, windows_of_runs
from cmp.estimation.settled import LogFrames

__all__ = ["VersionedLog", "with_dating_sightings"]

_MEMORY = ["scope", "memory_id"]
_EXPOSURE = ("round_id", "arm", "assigned", "propensity", "delivered", "content_hash")


class VersionedLog:
    """The frames of a log, with one id a (scope, memory, content hash): a unit.

    A log says what a memory held where it was shown, a *sighting*, and not in the rounds it is compared with. So the
    order of rounds (:func:`in_order`) is cut into *windows*: one for each run of sightings of one
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
        ``unit, scope, memory_id, content_hash, n_dating, n_lost``; the hash is null for a memory never seen with one.
        Of its sightings by chance, ``n_dating`` are outside of the unit's windows, or ``n_lost`` where it has none
        because the place of one is unknown. Units sort as memories and hashes do.
    windows : polars.DataFrame
        ``block_id, memory_id`` (a unit), ``begin, end``: rows from ``begin`` on and before ``end``; for rewritten
        memories alone, of which each unit has a row for each block of its roster at least, if an empty one.
    """

    def __init__(self, log: LogFrames) -> None:
        self._log = log
        rounds = _placed(log)
        exposures = log.exposures().collect().join(rounds, on="round_id")
        scopes = log.blocks().select("block_id", "scope").collect()
        rosters = log.rosters().collect().join(scopes, on="block_id")
        units = _units(exposures, rosters)
        several = units.filter(pl.len().over(_MEMORY) > 1)
        codes = several.select(_MEMORY).unique(maintain_order=True).with_row_index("memory")
        theirs, shown = rosters.join(codes, on=_MEMORY), exposures.join(codes, on=_MEMORY)
        spans = _spans(shown, theirs, rounds, several.join(codes, on=_MEMORY))
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
        arms = [(pl.col("arm") == arm).sum().cast(pl.Int64).alias(f"n_{arm}") for arm in ("dating", "lost")]
        counts = self._exposures.group_by(unit="memory_id").agg(arms)
        self.units = units.join(counts, on="unit", how="left", maintain_order="left").with_columns(
            pl.col("n_dating", "n_lost").fill_null(0)
        )

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


def _placed(log: LogFrames) -> pl.DataFrame:
    rounds = log.rounds().filter("randomized").collect()
    timed = [name for name in ("asked_at",) if name in rounds.columns]
    return in_order(rounds.select("round_id", "block_id", "block_row", *timed), log.blocks().collect())


def _spans(
    shown: pl.DataFrame, rosters: pl.DataFrame, rounds: pl.DataFrame, units: pl.DataFrame
) -> pl.DataFrame:
    """Return ``memory, unit, block_id, begin, end``; a unit without a window has an empty one in some block."""
    runs = runs_of_sightings(shown)
    found = windows_of_runs(runs, rosters, rounds).join(units, on=["memory", "content_hash"])
    first = rosters.group_by("memory").agg(pl.col("block_id").min())
    lost = units.join(found, on="unit", how="anti").join(first, on="memory")
    columns = ["memory", "unit", "block_id", "begin", "end"]
    return pl.concat(
        [found.select(columns), lost.with_columns(begin=pl.lit(0.0), end=pl.lit(0.0)).select(columns)]
    )


def _by_window(
    shown: pl.DataFrame, rosters: pl.DataFrame, spans: pl.DataFrame, units: pl.DataFrame
) -> pl.DataFrame:
    """Return exposures of rewritten memories with the unit whose window their row is in.

    Outside of windows they are of their own content, if they tell: sightings by chance of arm ``"dating"``, or
    ``"lost"`` where the memory was seen in an unknown row and has no windows, others ``"away"``. What was drawn though
    no roster plans it keeps its arm, to be refused.
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
    lost = shown.filter(pl.col("block_row").is_null() & pl.col("content_hash").is_not_null())
    is_lost = pl.col("memory").is_in(lost["memory"].unique().implode())
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
            .then(pl.when(is_lost).then(pl.lit("lost")).otherwise(pl.lit("dating")))
            .otherwise(pl.lit("away")),
        )
        .filter(pl.col("unit").is_not_null())
    )


def with_dating_sightings(table: pl.DataFrame, left_out: pl.DataFrame) -> pl.DataFrame:
    """Count the exposures of versions that are in no window, and say where they are all that showed a version.

    Parameters
    ----------
    table
        What :func:`cmp.utilities` says of versions.
    left_out
        For each row, ``n_dating`` and ``n_lost``: see :class:`VersionedLog`.

    Returns
    -------
    polars.DataFrame
        The table with the sum of both as ``n_left_out``, and state ``UNDEREXPOSED`` in place of ``NEVER_EXPOSED`` or
        ``ALWAYS_RANKED``, which such versions are not.

    Examples
    --------
    >>> row = {"n_exposed": [0], "state": ["NEVER_EXPOSED"], "reason": ["n1=0"]}
    >>> with_dating_sightings(pl.DataFrame(row), pl.DataFrame({"n_dating": [2], "n_lost": [0]})).row(0)
    (0, 'UNDEREXPOSED', 'n1=0: each exposure that showed it (2) dates a rewrite, which takes it out', 2)
    """
    told = table.hstack(left_out)
    is_misread = pl.col("state").is_in(["NEVER_EXPOSED", "ALWAYS_RANKED"]) & (pl.col("n_exposed") == 0)
    said = (
        pl.when(pl.col("n_dating") > 0)
        .then(
            pl.format(
                "n1=0: each exposure that showed it ({}) dates a rewrite, which takes it out", "n_dating"
            )
        )
        .when(pl.col("n_lost") > 0)
        .then(
            pl.format(
                "n1=0: when its memory was rewritten is unknown, and so where it stands ({} exposures)",
                "n_lost",
            )
        )
    )
    is_misread &= pl.col("n_dating") + pl.col("n_lost") > 0
    return told.with_columns(
        state=pl.when(is_misread).then(pl.lit("UNDEREXPOSED")).otherwise("state"),
        reason=pl.when(is_misread).then(said).otherwise("reason"),
        n_left_out=pl.col("n_dating") + pl.col("n_lost"),
    ).drop("n_dating", "n_lost")
