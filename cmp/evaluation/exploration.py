"""What exploring costs: all other rounds against the rounds held out from randomization."""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from cmp.estimation import estimate
from cmp.estimation.exact_tests import conditional_p_values
from cmp.estimation.one_moment import at_one_moment
from cmp.estimation.settled import LogFrames, last_outcomes
from cmp.evaluation.evidence import least_p

if TYPE_CHECKING:
    from cmp.log.reading import Log

__all__ = ["ExposureCost", "exposure_cost"]

#: Rounds that are compared with one another, at most. A stretch of n costs 1/n of the information: (n - 1) h (1 - h) is
#: what is expected of n1 n0 / n, where each round is held out with probability h.
STRETCH: Final = 20

#: Scopes of fewer rounds are compared with one another: by itself one round compares nothing, and two rounds, one of
#: each arm, say nothing of how outcomes vary within an arm.
SHORTEST: Final = 3

#: Moments, evenly spread over the rounds, at each of which the share held out is tested for a change.
MOMENTS: Final = 9

#: Up to this p-value a share that changed or differs, or outcomes missing from one arm, are noted.
NOTED: Final = 1e-3


@dataclass(frozen=True, slots=True)
class ExposureCost:
    """Mean outcome of rounds not held out less that of rounds held out, within stretches of rounds.

    Attributes
    ----------
    cost
        Outcome units; negative where exploring costs. None where unknown, and ``reason`` says why.
    std_error, ci_low, ci_high, p_value
        Of the difference.
    n_randomized, n_holdout, n_fallback
        Rounds with an outcome: randomized; held out; and neither, because they fell back to the base ranking. The
        first and the last are compared, together, with the second.
    n_left_out
        Of all these, rounds of stretches in which every round was held out or none: they compare nothing. At a small
        share these are many. What is lost by comparing within stretches of n rounds is 1/n of the information, however
        many these are: at most a tenth in scopes of ten rounds or more, a third in scopes of three.
    n_missing
        Rounds without an outcome, left out.
    p_share
        Of the hypothesis that one share of each scope's rounds (of scopes compared with one another, one share of all
        of theirs) was held out from first to last, exact, whatever the number of moments looked at; None where nothing
        can be compared.
    note
        What to bear in mind: a share that changed or differs, outcomes missing from one arm more than from the other;
        None where there is nothing.
    n_across
        Rounds, with an outcome or without, of scopes of one or two rounds, which are compared with those of other such
        scopes; 0 where such scopes hold out shares that differ.
    """

    cost: float | None
    std_error: float | None
    ci_low: float | None
    ci_high: float | None
    p_value: float | None
    n_randomized: int
    n_holdout: int
    reason: str | None
    n_fallback: int = 0
    n_left_out: int = 0
    n_missing: int = 0
    p_share: float | None = None
    note: str | None = None
    n_across: int = 0


def exposure_cost(log: Log, metric: str = "reward", level: float = 0.95) -> ExposureCost:
    """Compare the outcomes of all other rounds with those of holdout rounds.

    A hash of its id decides whether a round is held out, before anything else is known of it: before its roster is
    looked at and before it can fail. So all rounds that were not held out are compared, those too that fell back to
    the base ranking (intention to treat); the figure is the cost of the service as it was, with its fallbacks.

    The estimand is the mean difference over the rounds of the comparison, each stretch weighted by ``n1 n0 / (n1 +
    n0)``. Stretches are up to 20 consecutive rounds of a scope, because the log does not hold the share. Given how many
    rounds of a stretch were held out, any as many were as likely, so that the estimate is unbiased where the share is
    constant within stretches, whatever it is between them and however levels, rosters and effects drift. A change of
    the share inside a stretch leaves a bias of that one stretch's weight; a changed share is tested for and noted.

    Scopes of one or two rounds are too short for that. The hash does not look at the scope, so their rounds are
    compared with those of other such scopes: in the order they were asked, 20 at a time. This takes one share in all
    such scopes at one time, whatever their levels; where scopes of two rounds show otherwise it is noted, and scopes
    are compared with themselves alone, which leaves single rounds out and may leave no interval.

    Assumed: all that serve a scope at one time hold out one share, and so do all that serve the shortest scopes; and
    rounds missing from the log or without an outcome are missing for reasons that have nothing to do with the holdout.
    Rounds served with no random slots (``random_slots=0``) had no chance of being held out and are no part of it.

    Parameters
    ----------
    log
        What ``cmp.open_log`` returns.
    metric
        Name of the outcome.
    level
        Confidence level.

    Returns
    -------
    ExposureCost
        The difference with its interval, and the rounds it rests on.

    Raises
    ------
    TypeError
        For rows of another system, which know no holdout.
    ValueError
        Where the log has no holdout rounds, other metrics only, or a round twice.

    References
    ----------
    Neyman, J. (1923), translated in Statistical Science 5 (1990), 465-472: a difference of means over a simple random
    sample of the rounds.

    Examples
    --------
    >>> import tempfile, cmp
    >>> with tempfile.TemporaryDirectory() as folder, cmp.wrap(
    ...     lambda query: ["a", "b"], list_ids=lambda: "abcdef", get=list, slots=2, random_slots=1,
    ...     log=folder + "/x.db", scope=cmp.EVERYTHING, holdout=0.5, seed=1,
    ... ) as memory:
    ...     for number in range(40):
    ...         context = memory.retrieve("q", round_id=f"r{number}")
    ...         memory.record(context.round_id, 0.5 if context.randomized else 1.0)
    ...     cost = exposure_cost(memory.log)
    >>> cost.cost
    -0.5
    """
    if not callable(getattr(log, "rounds", None)):
        raise TypeError(
            f"{type(log).__name__} has no rounds(): pass what cmp.open_log returns. Rows of another system know no "
            "holdout; give those rounds an arm of their own and compare it with cmp.estimate"
        )
    with at_one_moment(log) as now:
        ordered = _ordered(now, metric)
    rounds, differing = _compared(ordered)
    row = _contrast(rounds, level)
    known = rounds.drop_nulls("y")
    held, randomized = pl.col("held"), pl.col("randomized")
    p_share, changed = _share(rounds)
    notes = [said for said in (changed, differing, _missing(rounds, row["p_missing"])) if said]
    return ExposureCost(
        **{name: row[name] for name in ("cost", "std_error", "ci_low", "ci_high", "p_value", "reason")},
        n_randomized=known.filter(randomized).height,
        n_holdout=known.filter(held).height,
        n_fallback=known.filter(~held & ~randomized).height,
        n_left_out=known.filter(held.n_unique().over("stretch") == 1).height,
        n_missing=rounds.height - known.height,
        p_share=p_share,
        note="; ".join(notes) or None,
        n_across=int(rounds["is_across"].sum()),
    )


def _contrast(rounds: pl.DataFrame, level: float) -> dict[str, Any]:
    """Return the table's row of the contrast, with ``cost`` and its limits.

    Of the arms that are compared the rarer is the exposed one: its variance needs no two rounds in a stretch.
    """
    compared = rounds.drop_nulls("y").filter(pl.col("held").n_unique().over("stretch") == 2)
    is_held_rarer = 2 * int(compared["held"].sum()) <= compared.height
    exposed = rounds["held"] if is_held_rarer else ~rounds["held"]
    table = estimate(
        exposed.to_numpy(), rounds["y"].to_numpy(), strata=rounds["stretch"].to_numpy(), level=level
    )
    row = table.frame.row(0, named=True)
    cost, low, high = row["utility"], row["ci_low"], row["ci_high"]
    if is_held_rarer:
        cost, low, high = _negative(cost), _negative(high), _negative(low)
    return {**row, "cost": cost, "ci_low": low, "ci_high": high}


def _ordered(log: LogFrames, metric: str) -> pl.DataFrame:
    """Return ``scope, randomized, held, y``, in order of time, of rounds that might have been held out."""
    reason = pl.col("fallback_reason").fill_null("")
    chosen = ("round_id", "scope", "asked_at", "randomized", "fallback_reason")
    last = last_outcomes(log, metric).to_native()
    rounds = log.rounds().select(chosen).collect()
    if (twice := rounds.filter(pl.col("round_id").is_duplicated())).height:
        raise ValueError(
            f"{twice.height} rows of rounds share a round_id ({twice['round_id'][0]!r}); a round is one row: see "
            "cmp.validate_log"
        )
    rounds = rounds.filter(reason != "no_random_slots").with_columns(
        held=~pl.col("randomized") & (reason == "holdout")
    )
    if not rounds["held"].any():
        raise ValueError("this log has no holdout rounds; serve with cmp.wrap(..., holdout=0.1)")
    ordered = rounds.sort("asked_at", "round_id").join(last, on="round_id", how="left", maintain_order="left")
    return ordered.select("scope", "randomized", "held", "y")


def _compared(ordered: pl.DataFrame) -> tuple[pl.DataFrame, str | None]:
    """Add ``is_across``, ``group`` (a scope, or all short ones) and ``stretch``; say so where shares differ."""
    rounds = ordered.with_columns(is_across=pl.len().over("scope") < SHORTEST)
    p = _differs(rounds.filter("is_across"))
    differing = None
    if p is not None and p <= NOTED:
        rounds = rounds.with_columns(is_across=pl.lit(value=False))
        differing = (
            f"scopes of two rounds hold out shares that differ (p = {p:.2g}), so that scopes are compared with "
            "themselves alone: single rounds are left out, and there may be no interval. Serve all with one holdout, "
            "or give each service a log of its own"
        )
    group = pl.when("is_across").then(0).otherwise(pl.col("scope").rank("dense").cast(pl.Int64))
    rounds = rounds.with_columns(group=group)
    n, place = pl.len().over("group"), pl.int_range(pl.len()).over("group")
    # as even as can be: a short last one would tell little
    part = place * ((n + STRETCH - 1) // STRETCH) // n
    return rounds.with_columns(stretch=pl.col("group") * rounds.height + part), differing


def _differs(rounds: pl.DataFrame) -> float | None:
    """Test whether of two rounds of one scope both or none are held out more often than by chance.

    Given how many first and how many second rounds were held out, the number of scopes with both is hypergeometric. It
    is so within each pair of portions of the rounds that a scope's two rounds fall in: a share that moves in time is no
    share that differs between scopes. Exact where the share is constant within portions: tenths, or smaller ones where
    there are so many scopes that each pair of portions would still have four.
    """
    n_pairs = int(rounds["scope"].is_duplicated().sum()) // 2
    n_portions = max(MOMENTS + 1, isqrt(n_pairs) // 2)
    pairs = (
        rounds.with_columns(portion=pl.int_range(pl.len()) * n_portions // pl.len())
        .group_by("scope")
        .agg(
            pl.len(),
            *(pl.col("held", "portion").slice(at, 1).first().name.suffix(f"_{at}") for at in (0, 1)),
        )
        .filter(pl.col("len") == SHORTEST - 1)
    )
    first, both = pl.col("held_0"), pl.col("held_0") & pl.col("held_1")
    cells = pairs.group_by("portion_0", "portion_1").agg(
        x1=both.sum(), n1=first.sum(), x0=pl.col("held_1").sum() - both.sum(), n0=(~first).sum()
    )
    x1, n1, x0, n0 = (cells[name].to_numpy().astype(np.int64) for name in ("x1", "n1", "x0", "n0"))
    return least_p(conditional_p_values(np.zeros(cells.height, dtype=np.int64), x1, n1, x0, n0, 1))[0]


def _share(rounds: pl.DataFrame) -> tuple[float | None, str | None]:
    """Test whether the share held out before each of some moments is that after it, within groups, exactly."""
    moments = np.unique(np.arange(1, MOMENTS + 1) * rounds.height // (MOMENTS + 1))
    placed = rounds.select("group", "held").with_row_index("place")
    total = placed.group_by("group").agg(held=pl.col("held").sum(), n=pl.len()).sort("group")
    parts = [
        total.join(
            placed.head(int(moment)).group_by("group").agg(x1=pl.col("held").sum(), n1=pl.len()), on="group"
        ).with_columns(moment=pl.lit(place, pl.Int64))
        for place, moment in enumerate(moments)
    ]
    cells = pl.concat(parts).with_columns(x0=pl.col("held") - pl.col("x1"), n0=pl.col("n") - pl.col("n1"))
    moment, x1, n1, x0, n0 = (
        cells[name].to_numpy().astype(np.int64) for name in ("moment", "x1", "n1", "x0", "n0")
    )
    p, worst = least_p(conditional_p_values(moment, x1, n1, x0, n0, len(moments)))
    if p is None or p > NOTED:
        return p, None
    at = int(moments[worst])
    return p, (
        f"the share of rounds held out changed: {_percent(placed.head(at)['held'])} of the first {at} rounds, "
        f"{_percent(placed.slice(at)['held'])} of the others (p = {p:.2g}). Rounds are compared within stretches of at "
        f"most {STRETCH}, so that no more than one stretch a change and scope compares rounds across it"
    )


def _missing(rounds: pl.DataFrame, p: float | None) -> str | None:
    """Say so where outcomes are missing from one arm more than from the other."""
    if p is None or p > NOTED:
        return None
    of_held, of_others = (_percent(rounds.filter(held=held)["y"].is_null()) for held in (True, False))
    return (
        f"{of_held} of the rounds held out and {of_others} of the others lack an outcome (p = {p:.2g}): what is "
        "compared may be no fair picture of either. Record one for every round"
    )


def _percent(flags: pl.Series) -> str:
    return f"{flags.sum() / len(flags):.1%}"


def _negative(value: float | None) -> float | None:
    return None if value is None else 0.0 - value
