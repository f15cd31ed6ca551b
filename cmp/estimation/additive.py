"""What a log says of utilities, as sums that merge: day by day, shard by shard, part by part."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import polars as pl

from cmp.design.cards import CARD_PREFIX
from cmp.estimation.assembly import LogStatistics
from cmp.estimation.cells import BoolArray, Cells
from cmp.estimation.cluster_sums import ClusterSums, sum_clusters, sums_of_rounds_alone
from cmp.estimation.clusters import Clusters
from cmp.estimation.estimators import combine_strata
from cmp.estimation.missing import check_range
from cmp.estimation.multiplicity import q_values
from cmp.estimation.outcome_sums import OutcomeSums
from cmp.estimation.stored_sums import (
    arrays_of,
    cluster_frames,
    clusters_of_frames,
    frame_of,
    packed,
    reading,
    summary_frames,
    summary_of_frames,
    unpacked,
)
from cmp.estimation.summary import Summary, summarize
from cmp.estimation.sums import IntArray, scattered
from cmp.estimation.table import Analysis, Utilities
from cmp.estimation.tabulation import tabulate_summary

__all__ = ["UtilityStatistics"]

#: What windows are whole numbers of.
_UNIT = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class UtilityStatistics:
    """Sums over the strata of a log, from which its utilities are made; ``a + b`` is what both logs say together.

    A block belongs to one of the logs whole; logs of other scopes, or exported in parts, keep to that. So does an
    episode: where two logs have rounds of the same, its scope gets no intervals. :func:`cmp.utility_statistics` makes
    them.

    What was added up equals what one log with all rounds gives, to rounding, but for one thing. What rounds that show
    both a memory and a card take off its variance is taken off only in logs in which the memory's rounds share
    outcomes.

    Examples
    --------
    >>> import tempfile, cmp
    >>> def served(folder, scope):
    ...     with cmp.wrap(
    ...         lambda query: "ab", list_ids=lambda scope: "abcdef", get=lambda ids, scope: ids,
    ...         slots=2, random_slots=1, log=f"{folder}/{scope}.db", scope=scope, seed=1,
    ...     ) as memory:
    ...         for number in range(24):
    ...             memory.record(memory.retrieve("q").round_id, number % 2)
    ...     return cmp.utility_statistics(memory.log)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     one, two = served(folder, "one"), served(folder, "two")
    >>> both = UtilityStatistics.from_bytes((one + two).to_bytes())
    >>> both.utilities().frame.height
    12
    """

    analysis: Analysis
    """Estimator, stratum weights and reference that the sums are for."""
    by: str
    metric: str
    keys: pl.DataFrame
    """``scope``, ``group`` (by query), ``memory_id``."""
    summary: Summary
    families: pl.DataFrame
    """The columns of ``keys`` but the last, unique, sorted."""
    outcomes: OutcomeSums
    """One a family."""
    clusters: ClusterSums | None
    """None where no two rounds share an outcome."""
    episodes: pl.DataFrame
    """``scope``, ``episode_id`` of randomized rounds, once for each of the logs that holds some."""
    content: pl.Series
    """M texts, the least hash of what was delivered; null where none was noted."""
    content_changed: BoolArray
    """Shape (M,)."""
    blocks: frozenset[str]
    """Blocks with randomized rounds."""
    window: timedelta | None = None
    """How long after its round was asked an outcome counted; None for any time."""

    @classmethod
    def of(
        cls,
        found: LogStatistics,
        cells: Cells,
        analysis: Analysis,
        *,
        by: str,
        metric: str,
        blocks: Iterable[str],
        episodes: pl.DataFrame,
        clusters: Clusters | None,
        window: timedelta | None = None,
    ) -> UtilityStatistics:
        """Return the sums of a log's statistics, their cells and clusters against the analysis's reference."""
        m = found.keys.height
        asked = {"estimator": analysis.estimator, "weights": analysis.weights}
        contrast = combine_strata(cells, m, **asked)
        summary = summarize(cells, contrast, found.tallies, found.outcomes, **asked)
        return cls(
            analysis,
            by,
            metric,
            found.keys,
            summary,
            found.keys.select(found.keys.columns[:-1]).unique(maintain_order=True),
            found.outcome_sums,
            None if clusters is None else sum_clusters(clusters, contrast, found.outcomes, summary),
            episodes,
            found.content,
            found.content_changed,
            frozenset(blocks),
            window,
        )

    def __repr__(self) -> str:
        of = f"{self.keys.height} memories by {self.by}, {self.metric!r}"
        return f"UtilityStatistics({of}, {len(self.blocks)} blocks)"

    def __add__(self, other: UtilityStatistics) -> UtilityStatistics:
        """Add the sums of another log.

        Raises
        ------
        ValueError
            Where a block is in both, or the sums are for different questions.
        """
        mine, theirs = (part._question for part in (self, other))
        if mine != theirs:
            raise ValueError(f"these are sums for different questions: {mine} and {theirs}")
        if twice := self.blocks & other.blocks:
            raise ValueError(
                f"{len(twice)} blocks have rounds in both ({min(twice)!r}): a block's rounds are compared with each "
                "other, so they belong together; gather both logs into one, or export it in parts of whole blocks"
            )
        keys, families = _both(self.keys, other.keys), _both(self.families, other.families)
        one, two = (part._moved(keys, families) for part in (self, other))
        outcomes = one.outcomes + two.outcomes
        summary = one.summary + two.summary
        agreed = outcomes.described().at_most_two[_rows(keys.select(families.columns), families)]
        differ = (one.content != two.content).fill_null(False).to_numpy()
        return UtilityStatistics(
            self.analysis,
            self.by,
            self.metric,
            keys,
            replace(summary, has_margins=summary.has_margins & agreed),
            families,
            outcomes,
            _added_clusters(one, two),
            pl.concat([self.episodes, other.episodes], rechunk=False),
            pl.select(pl.min_horizontal(one.content, two.content)).to_series().alias("content"),
            one.content_changed | two.content_changed | differ,
            self.blocks | other.blocks,
            self.window,
        )

    @property
    def torn(self) -> BoolArray:
        """Whether episodes of the memory's scope have rounds in two logs, so that no interval is known: shape (M,)."""
        twice = self.episodes.filter(pl.struct("scope", "episode_id").is_duplicated())["scope"]
        return self.keys["scope"].is_in(twice.unique().implode()).to_numpy()

    def utilities(
        self,
        interval: str = "auto",
        level: float = 0.95,
        adjust: str = "bh",
        *,
        outcome_range: tuple[float, float] | None = None,
    ) -> Utilities:
        """Return the table of utilities, as :func:`cmp.utilities` does.

        Raises
        ------
        ValueError
            For an interval that lists rounds or blocks, or outcomes outside their range.
        """
        analysis = replace(
            self.analysis, interval=interval, level=level, adjust=adjust, outcome_range=outcome_range
        )
        if outcome_range is not None and (extremes := self.outcomes.extremes) is not None:
            check_range(*extremes, *outcome_range)
        family = _rows(self.keys.select(self.families.columns), self.families)
        frame = tabulate_summary(
            self.keys.to_dict(),
            self.summary,
            outcomes=self.outcomes.described().of(family),
            family=family,
            analysis=analysis,
            clusters=self.clusters,
            clustered=self.torn,
            content_changed=self.content_changed,
        )
        memories = frame.filter(~pl.col("memory_id").str.starts_with(CARD_PREFIX))
        q = pl.Series("q_value", q_values(memories["p_value"].to_numpy(), adjust), nan_to_null=True)
        return Utilities(memories.with_columns(q), analysis, self.metric)

    @property
    def _question(self) -> dict[str, Any]:
        """What sums depend on; the rest is asked of the table."""
        names = ("estimator", "weights", "reference")
        return {
            "by": self.by,
            "metric": self.metric,
            "window": None if self.window is None else self.window // _UNIT,
            "analysis": {name: getattr(self.analysis, name) for name in names},
        }

    def _moved(self, keys: pl.DataFrame, families: pl.DataFrame) -> UtilityStatistics:
        if keys.equals(self.keys) and families.equals(self.families):
            return self
        rows, places = _rows(self.keys, keys), _rows(self.families, families)
        held = self.keys.with_columns(self.content.alias("content"))
        content = keys.join(held, on=keys.columns, how="left", maintain_order="left")["content"]
        return UtilityStatistics(
            self.analysis,
            self.by,
            self.metric,
            keys,
            self.summary.moved(rows, keys.height),
            families,
            self.outcomes.moved(places, families.height),
            None if self.clusters is None else self.clusters.moved(rows, keys.height),
            self.episodes,
            content,
            scattered(self.content_changed, rows, keys.height),
            self.blocks,
            self.window,
        )

    def to_bytes(self) -> bytes:
        """Return the sums as bytes: a zip of Arrow files and what they are, no pickle."""
        rows = {"content": self.content, "content_changed": self.content_changed}
        frames = {
            "keys": self.keys,
            "families": self.families,
            "outcomes": frame_of(self.outcomes),
            "rows": pl.DataFrame(rows),
            "blocks": pl.DataFrame({"block_id": sorted(self.blocks)}, schema={"block_id": pl.String}),
            "episodes": self.episodes,
            **summary_frames(self.summary),
            **({} if self.clusters is None else cluster_frames(self.clusters)),
        }
        return packed(frames, self._question)

    @classmethod
    def from_bytes(cls, content: bytes) -> UtilityStatistics:
        """Read what :meth:`to_bytes` wrote.

        Raises
        ------
        ValueError
            For bytes that are no such sums, or of a format that this version does not know.
        """
        with reading():
            frames, meta = unpacked(content)
            rows = frames["rows"]
            return cls(
                Analysis(**meta["analysis"]),
                meta["by"],
                meta["metric"],
                frames["keys"],
                summary_of_frames(frames),
                frames["families"],
                OutcomeSums(**arrays_of(frames["outcomes"])),
                clusters_of_frames(frames),
                frames["episodes"],
                rows["content"],
                rows["content_changed"].to_numpy(),
                frozenset(frames["blocks"]["block_id"]),
                None if meta["window"] is None else meta["window"] * _UNIT,
            )


def _both(one: pl.DataFrame, two: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of both, in their order; the first's own where the second has the same."""
    return one if one.equals(two) else pl.concat([one, two]).unique().sort(one.columns)


def _rows(part: pl.DataFrame, whole: pl.DataFrame) -> IntArray:
    """Return the row of ``whole`` that each row of ``part`` is."""
    found = part.join(whole.with_row_index("row"), on=whole.columns, how="left", maintain_order="left")
    return found["row"].cast(pl.Int64).to_numpy()


def _added_clusters(one: UtilityStatistics, two: UtilityStatistics) -> ClusterSums | None:
    if one.clusters is None and two.clusters is None:
        return None
    mine, theirs = (
        sums_of_rounds_alone(part.summary) if part.clusters is None else part.clusters for part in (one, two)
    )
    return mine + theirs
