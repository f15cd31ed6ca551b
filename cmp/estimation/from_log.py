"""Utilities from a log."""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from cmp.design.cards import CARD_PREFIX
from cmp.estimation.cards import against_cards
from cmp.estimation.cells import Cells
from cmp.estimation.missing import check_range
from cmp.estimation.multiplicity import q_values
from cmp.estimation.settled import LogFrames
from cmp.estimation.statistics import LogStatistics, statistics_of_log
from cmp.estimation.table import Analysis, Utilities
from cmp.estimation.tabulation import tabulate
from cmp.estimation.versions import VersionedLog

__all__ = ["utilities"]


def utilities(
    log: LogFrames,
    by: str = "memory",
    estimator: str = "difference",
    interval: str = "auto",
    level: float = 0.95,
    reference: str = "pool",
    metric: str = "reward",
    adjust: str = "bh",
    engine: str = "polars",
    *,
    weights: str = "precision",
    outcome_range: tuple[float, float] | None = None,
) -> Utilities:
    """Estimate every memory's utility from a log, each with its interval or the reason why it has none.

    The estimand is the mean over a memory's eligible rounds of the outcome expected with the memory assigned
    less that without, over the design's other draws. Eligible are the randomized rounds of blocks whose
    roster holds the memory, before its deletion, in which it is not ranked anyway. Analysis is by assignment,
    delivered or not.

    Parameters
    ----------
    log
        What ``cmp.open_log`` returns, or any object with its five frames.
    by
        ``"memory"``: one row a memory, strata are blocks. ``"query"``: one row per memory and the caller's
        ``group`` (the query itself where none was given); strata are blocks within it. ``"version"``: one row per
        memory and content hash, for memories that are rewritten under one id. Exposures are of the version they
        showed; a control round is of the version in effect in the order of rounds (block, then row), and of none
        between the last sighting of one version and the first of the next.
    estimator
        ``"difference"``, ``"hajek"`` or ``"ht"``; with complete blocks and outcomes they agree. ``"ht"`` is unbiased
        over all draws: a memory that happened to have no exposure has an estimate too, without an interval.
    interval
        ``"auto"``, ``"newcombe"``, ``"moderated"``, ``"pooled"``, ``"neyman"`` or ``"welch"``.
    level
        Confidence level.
    reference
        What utilities are relative to: ``"pool"``, the other memories that might have had the slot (a useful
        memory below their mean has a negative number), or ``"card"``, a blank: absolute, with additive utilities;
        it needs ``reference_cards`` in the log and leaves rounds of withholding out.
    metric
        Name of the outcome.
    adjust
        How q-values are made: ``"bh"``, ``"by"`` or ``"holm"``, over the whole table.
    engine
        ``"polars"``.
    weights
        How strata combine: ``"precision"``, n1 n0 / (n1 + n0), or ``"rounds"``.
    outcome_range
        Least and greatest value an outcome may have: adds ``bound_low, bound_high``, the least and greatest
        difference that the missing outcomes allow.

    Returns
    -------
    Utilities
        A row for every memory of every roster; see :class:`Utilities` for the columns.

    Raises
    ------
    ValueError
        For an option that is not supported, a metric that the log does not hold, outcomes outside their range, round
        ids that are not unique, randomized rounds without a block or of an unknown one.
    PositivityError
        For planned counts that make no probability, or draws from outside a roster.
    ScopeError
        For rounds of another scope than their block's.
    ConflictingOutcomeError
        Where the last revision of an outcome has two values.

    Notes
    -----
    Where two eligible rounds of a memory are of one ``episode_id`` and so share an outcome, an interval for
    independent rounds would be too narrow: that memory's estimate is shown, its interval and p-value are null, with
    the reason. Memories of the same scope whose eligible rounds are all of different episodes keep theirs.

    Examples
    --------
    With a log of one's own: ``utilities(cmp.open_log("exposures.db"))``. Here are the five frames by hand: one
    block of four rounds, and two memories.

    >>> import polars as pl
    >>> from types import SimpleNamespace
    >>> rounds = pl.DataFrame({"round_id": ["r0", "r1", "r2", "r3"], "block_row": [0, 1, 2, 3]}).with_columns(
    ...     scope=pl.lit("s"), block_id=pl.lit("b"), randomized=True,
    ...     episode_id=pl.lit(None, pl.String), group=pl.lit(None, pl.String), query_hash=pl.lit("q"),
    ... )
    >>> exposures = rounds.select("round_id").with_columns(
    ...     memory_id=pl.Series(["a", "b", "a", "b"]), arm=pl.lit("random"), assigned=True,
    ...     propensity=0.5, delivered=True, content_hash=pl.lit(None, pl.String),
    ... )
    >>> outcomes = rounds.select(
    ...     "round_id", metric=pl.lit("reward"), value=pl.Series([1.0, 0, 1, 0]), revision=0
    ... )
    >>> blocks = pl.DataFrame({"block_id": ["b"], "scope": ["s"], "length": [4]})
    >>> rosters = pl.DataFrame({"block_id": ["b", "b"], "memory_id": ["a", "b"], "planned": [2, 2]})
    >>> rosters = rosters.with_columns(removed_row=pl.lit(None, pl.Int64))
    >>> log = SimpleNamespace(
    ...     rounds=rounds.lazy, exposures=exposures.lazy, outcomes=outcomes.lazy, blocks=blocks.lazy,
    ...     rosters=rosters.lazy,
    ... )
    >>> utilities(log).frame.select("memory_id", "utility").rows()
    [('a', 1.0), ('b', -1.0)]
    """
    for name, value, supported in (
        ("by", by, ("memory", "query", "version")),
        ("reference", reference, ("pool", "card")),
        ("engine", engine, ("polars",)),
    ):
        if value not in supported:
            raise ValueError(f"{name}={value!r} is not supported; use {' or '.join(map(repr, supported))}")
    analysis = Analysis(
        estimator=estimator,
        interval=interval,
        level=level,
        weights=weights,
        adjust=adjust,
        reference=reference,
        outcome_range=outcome_range,
    )
    _check_reference(analysis, by)
    found = _statistics(log, by, metric, analysis)
    cells = _cells(found, reference)
    frame = tabulate(
        found.keys.to_dict(),
        cells,
        found.tallies,
        outcomes=found.outcomes,
        family=found.family,
        analysis=analysis,
        clustered=found.clustered,
        content_changed=found.content_changed,
    )
    memories = frame.filter(~pl.col("memory_id").str.starts_with(CARD_PREFIX))
    if memories.height < frame.height:  # cards are no hypotheses: they do not count in the family
        memories = memories.with_columns(
            pl.Series("q_value", q_values(memories["p_value"].to_numpy(), adjust), nan_to_null=True)
        )
    return Utilities(memories, analysis, metric)


def _check_reference(analysis: Analysis, by: str) -> None:
    """Refuse what has no meaning against cards."""
    if analysis.reference != "card":
        return
    for value, wrong, instead in (
        (by, "version", "by='memory'"),
        (analysis.estimator, "ht", "estimator='difference'"),
        (analysis.outcome_range is not None, True, "reference='pool' for bounds"),
    ):
        if value == wrong:
            name = "outcome_range" if wrong is True else repr(wrong)
            raise ValueError(f"{name} is not supported with reference='card'; use {instead}")


def _statistics(log: LogFrames, by: str, metric: str, analysis: Analysis) -> LogStatistics:
    source = VersionedLog(log) if by == "version" else log
    found = statistics_of_log(
        source, metric=metric, by_query=by == "query", condense=analysis.estimator != "ht"
    )
    if analysis.outcome_range is not None and found.extremes is not None:
        check_range(*found.extremes, *analysis.outcome_range)
    if not isinstance(source, VersionedLog):
        return found
    named = found.keys.select(pl.col("memory_id").alias("unit")).join(
        source.units, on="unit", how="left", maintain_order="left"
    )
    return replace(found, keys=named.select("scope", "memory_id", "content_hash"))


def _cells(found: LogStatistics, reference: str) -> Cells:
    is_card = found.keys["memory_id"].str.starts_with(CARD_PREFIX).to_numpy()
    if reference == "pool":
        return found.cells.joined(found.withholding) if len(found.withholding.memory) else found.cells
    if not is_card.any():
        raise ValueError(
            "this log has no reference cards, so utilities are relative to the pool: serve with "
            "cmp.wrap(..., reference_cards='auto') first, or pass reference='pool'"
        )
    return against_cards(found, is_card)
