"""Utilities from a log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import polars as pl

from cmp.design.cards import CARD_PREFIX
from cmp.estimation.carryover import CARRYOVER
from cmp.estimation.engines import ENGINES, Engine, engine_named
from cmp.estimation.from_parts import cells_against, condenses, has_parts, statistics_for, sum_of_parts
from cmp.estimation.from_rows import RowLog, utilities_of_rows
from cmp.estimation.intervals import INTERVALS
from cmp.estimation.merging import STRATA, merge_short_strata
from cmp.estimation.multiplicity import q_values
from cmp.estimation.settled import LogFrames
from cmp.estimation.summary import margins_of_cells, p_values_of_missing
from cmp.estimation.table import Analysis, Utilities
from cmp.estimation.tabulation import tabulate
from cmp.estimation.versions import with_dating_sightings

__all__ = ["utilities"]


def utilities(
    log: LogFrames | RowLog,
    by: str = "memory",
    estimator: str = "difference",
    interval: str = "auto",
    level: float = 0.95,
    reference: str = "pool",
    metric: str | Sequence[str] = "reward",
    adjust: str = "bh",
    engine: str = "polars",
    *,
    weights: str = "precision",
    outcome_range: tuple[float, float] | None = None,
    carryover: str = "include",
    window: timedelta | None = None,
    strata: str = "block",
) -> Utilities:
    """Estimate every memory's utility from a log, each with its interval or the reason why it has none.

    The estimand is the mean over a memory's eligible rounds of the outcome expected with the memory assigned
    less that without, over the design's other draws. Eligible are the randomized rounds of blocks whose
    roster holds the memory, before its deletion, in which it is not ranked anyway. Analysis is by assignment,
    delivered or not.

    Parameters
    ----------
    log
        What ``cmp.open_log`` returns, any object with its five frames, or what ``cmp.from_frame`` made of another
        system's rounds.
    by
        ``"memory"``: one row a memory, strata are blocks. ``"query"``: one row per memory and the caller's
        ``group`` (the query itself where none was given); strata are blocks within it. ``"version"``: one row per
        memory and content hash, for memories that are rewritten under one id. Exposures are of the version they
        showed; a control round is of the version in effect when it was asked, and of none between the last sighting
        of one version and the first of the next. The draws that date a rewrite so are left out, and counted as
        ``n_left_out``, or a drift of outcomes would bias: see :class:`cmp.estimation.versions.VersionedLog`.
    estimator
        ``"difference"``, ``"hajek"`` or ``"ht"``; with complete blocks and outcomes they agree. ``"ht"`` is unbiased
        over all draws: a memory that happened to have no exposure has an estimate too, without an interval.
    interval
        ``"auto"``, ``"newcombe"``, ``"moderated"``, ``"pooled"``, ``"neyman"``, ``"welch"``, ``"randomization"`` (by
        inverting the test of what other assignments might have been) or ``"sequence"`` (holds at every look, block by
        block).
    level
        Confidence level.
    reference
        What utilities are relative to: ``"pool"``, the other memories that might have had the slot (a useful
        memory below their mean has a negative number), or ``"card"``, a blank: absolute, with additive utilities;
        it needs ``reference_cards`` in the log and leaves rounds of withholding out.
    metric
        Name of the outcome, or several: then one table, with a leading column ``metric``.
    adjust
        How q-values are made: ``"bh"``, ``"by"`` or ``"holm"``, over the whole table, all metrics together.
    engine
        Where rows are read and filtered, to be summed in polars: ``"polars"``, ``"duckdb"`` (extra ``[duckdb]``) or
        ``"spark"`` (extra ``[spark]``; the session that is running, or a local one).
    weights
        How strata combine: ``"precision"``, n1 n0 / (n1 + n0), or ``"rounds"``.
    outcome_range
        Least and greatest value an outcome may have: adds ``bound_low, bound_high``, the least and greatest
        difference that the missing outcomes allow.
    carryover
        ``"include"`` every round of an episode, or ``"exclude"`` a memory's rounds after the first of the same
        episode in which it was ranked or drawn. Then only rounds that come after as many others of their episode are
        compared (strata are those of a block): the chance to be drawn, given that one was not, rises
        with their number, and outcomes may change as an episode goes on.
    window
        How long after a round was asked an outcome counts: a later revision is as if it were not there, and a round
        with none in time is missing its outcome. One that was recorded before its round was asked counts.
    strata
        ``"block"``: each block on its own. ``"query"``: the rounds of a block that ask one query (the caller's
        ``group``, or the query itself), so that differences between queries enter no contrast: narrower where queries
        come back within a block, and no contrast at all where none does. ``"merged"``: neighbouring blocks together
        until they have ten rounds, for logs whose blocks are short because the roster changed (the uniform design in a
        store that grows). Needs ``estimator="hajek"``, as propensities differ within such a stratum, and widens
        intervals where outcomes drift fast: see :func:`cmp.estimation.merging.merge_short_strata`.

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
    Where two eligible rounds of a memory are of one ``episode_id`` and so share an outcome, its interval is
    *clustered* by episode and says so: see :func:`cmp.estimation.clustered.clustered_inference`. Memories of the same
    scope whose eligible rounds are all of different episodes keep the interval for rounds on their own.

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
        ("engine", engine, ENGINES),
        ("carryover", carryover, CARRYOVER),
        ("strata", strata, STRATA),
    ):
        if value not in supported:
            raise ValueError(f"{name}={value!r} is not supported; use {' or '.join(map(repr, supported))}")
    if isinstance(log, RowLog):
        _check_rows(log, metric=metric, engine=engine, carryover=carryover, window=window, strata=strata)
        asked = (by, estimator, interval, level, reference, adjust)
        return utilities_of_rows(log, *asked, weights=weights, outcome_range=outcome_range)
    analysis = Analysis(
        estimator=estimator,
        interval=interval,
        level=level,
        weights=weights,
        adjust=adjust,
        reference=reference,
        outcome_range=outcome_range,
    )
    _check_together(analysis, by, carryover, strata, engine, window)
    names = _metrics(metric)
    is_additive = by != "version" and strata == "block" and carryover == "include"
    with engine_named(engine) as opened:
        if is_additive and analysis.interval in INTERVALS and has_parts(log):
            frames = [_from_sums(log, opened, by, name, analysis, window) for name in names]
        else:
            tables = opened(log)
            frames = [_table(tables, by, name, analysis, carryover, window, strata) for name in names]
    if not isinstance(metric, str):
        labelled = zip(names, frames, strict=True)
        frames = [frame.select(pl.lit(name).alias("metric"), pl.all()) for name, frame in labelled]
    table = pl.concat(frames)
    q = pl.Series("q_value", q_values(table["p_value"].to_numpy(), adjust), nan_to_null=True)
    return Utilities(table.with_columns(q), analysis, ", ".join(names))


def _check_rows(log: RowLog, **options: object) -> None:
    """Refuse what only a log of our own can answer."""
    defaults = {
        "metric": log.metric,
        "engine": "polars",
        "carryover": "include",
        "window": None,
        "strata": "block",
    }
    for name, value in options.items():
        if value != defaults[name] and not (name == "metric" and value == "reward"):
            raise ValueError(
                f"{name}={value!r} needs a log that cmp.wrap wrote; rows of another system have {defaults[name]!r}"
            )


def _check_together(
    analysis: Analysis, by: str, carryover: str, strata: str, engine: str, window: timedelta | None
) -> None:
    """Refuse options that do not go together."""
    _check_reference(analysis, by)
    _check_versions(analysis, by, strata)
    _check_carryover(analysis, by, carryover)
    _check_strata(analysis, strata, carryover)
    _check_engine(engine, by, carryover, window)


def _check_engine(engine: str, by: str, carryover: str, window: timedelta | None) -> None:
    """Refuse what goes through rounds one after the other, which polars alone does."""
    for wrong, what in (
        (by == "version", "by='version'"),
        (carryover == "exclude", "carryover='exclude'"),
        (window is not None, "window"),
    ):
        if wrong and engine != "polars":
            raise ValueError(f"engine={engine!r} does not go with {what}; use engine='polars'")


def _metrics(metric: str | Sequence[str]) -> list[str]:
    names = [metric] if isinstance(metric, str) else list(metric)
    if not names or len(set(names)) < len(names):
        raise ValueError(f"metric={metric!r} names none, or one twice; give a name or several different ones")
    return names


def _from_sums(
    log: LogFrames, engine: Engine, by: str, metric: str, analysis: Analysis, window: timedelta | None
) -> pl.DataFrame:
    """Return the table for one metric from a log's parts, one after the other."""
    sums = sum_of_parts(log, engine, by, metric, analysis, window)
    if sums.torn.any():  # episodes run from one part into another, which only the log as one can tell
        return _table(engine(log), by, metric, analysis, "include", window, "block")
    asked = (analysis.interval, analysis.level, analysis.adjust)
    return sums.utilities(*asked, outcome_range=analysis.outcome_range).frame


def _table(
    log: LogFrames,
    by: str,
    metric: str,
    analysis: Analysis,
    carryover: str,
    window: timedelta | None,
    strata: str,
) -> pl.DataFrame:
    """Return the table for one metric, without cards: they are no hypotheses, and count in no family."""
    merged = strata == "merged"
    found = statistics_for(
        log,
        by,
        metric,
        analysis,
        carryover=carryover,
        window=window,
        within_query=strata == "query",
        condense=condenses(analysis) and not merged,
        in_both_arms=analysis.estimator != "ht" and not merged,
    )
    cells, clusters = cells_against(found, analysis.reference)
    blocks = cells
    if merged:
        cells, clusters = cells_against(replace(found, cells=merge_short_strata(found)), analysis.reference)
    frame = tabulate(
        found.keys.to_dict(),
        cells,
        found.tallies,
        outcomes=found.outcomes,
        family=found.family,
        analysis=analysis,
        clustered=clusters.shared if merged and clusters is not None else None,
        clusters=None if merged else clusters,
        content_changed=found.content_changed,
        rounds_of=found.rounds_of,
        # blocks that were merged are still what is given how often each drew the memory
        exact=(lambda of: margins_of_cells(blocks, of).p_values()) if merged else None,
        missing=(lambda: p_values_of_missing(blocks, found.keys.height)) if merged else None,
    )
    if found.left_out is not None:
        frame = with_dating_sightings(frame, found.left_out)
    return frame.filter(~pl.col("memory_id").str.starts_with(CARD_PREFIX))


def _check_carryover(analysis: Analysis, by: str, carryover: str) -> None:
    """Refuse what has no meaning when rounds after an exposure are excluded."""
    if carryover == "include":
        return
    for wrong, why in (
        (by == "version", "by='version': an earlier exposure may be of another version; use by='memory'"),
        (
            analysis.estimator == "ht",
            "estimator='ht': which rounds are left depends on the draw; use estimator='difference'",
        ),
        (
            analysis.interval == "randomization",
            "interval='randomization': other assignments would leave other rounds; use interval='auto'",
        ),
    ):
        if wrong:
            raise ValueError(f"carryover='exclude' does not go with {why}")


def _check_reference(analysis: Analysis, by: str) -> None:
    """Refuse versions against cards, which were drawn in rounds of every version."""
    if analysis.reference == "card" and by == "version":
        raise ValueError(
            "reference='card' does not go with by='version': cards were drawn in rounds of every version; use "
            "by='memory'"
        )


def _check_versions(analysis: Analysis, by: str, strata: str) -> None:
    """Refuse what weighs by planned propensities, which are not those of what a version's edges leave."""
    for wrong, why in (
        (analysis.estimator == "ht", "estimator='ht': which rounds are left depends on the draw"),
        (
            strata == "merged",
            "strata='merged': propensities within a version's rounds are not the planned ones",
        ),
    ):
        if wrong and by == "version":
            raise ValueError(
                f"by='version' does not go with {why}; use estimator='difference', strata='block'"
            )


def _check_strata(analysis: Analysis, strata: str, carryover: str) -> None:
    """Refuse what merged strata cannot give."""
    if strata != "merged":
        return
    for wrong, why in (
        (
            analysis.estimator != "hajek",
            f"estimator={analysis.estimator!r}: propensities differ within merged blocks; use estimator='hajek'",
        ),
        (
            analysis.reference == "card",
            "reference='card': cards are compared within blocks; use strata='block'",
        ),
        (
            carryover == "exclude",
            "carryover='exclude': its strata follow the turns of episodes; use strata='block'",
        ),
    ):
        if wrong:
            raise ValueError(f"strata='merged' does not go with {why}")
