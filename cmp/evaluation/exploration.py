"""What exploring costs: all other rounds against the rounds held out from randomization."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

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

#: Rounds of a scope that are compared with one another, at most. A stretch of n costs 1/n of the information.
STRETCH: Final = 20

#: Moments, evenly spread over the rounds, at each of which the share held out is tested for a change.
MOMENTS: Final = 9

#: Up to this p-value a share that changed, or outcomes missing from one arm, are noted.
NOTED: Final = 1e-3


@dataclass(frozen=True, slots=True)
class ExposureCost:
    """Mean outcome of rounds not held out less that of rounds held out, within stretches of each scope's rounds.

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
        share these are many; the information lost is 1/20 all the same.
    n_missing
        Rounds without an outcome, left out.
    p_share
        Of the hypothesis that one share of each scope's rounds was held out from first to last, exact, whatever the
        number of moments looked at; None where nothing can be compared.
    note
        What to bear in mind: a share that changed, outcomes missing from one arm more than from the other; None where
        there is nothing.
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
    Assumed: all that serve a scope at one time hold out one share, and rounds missing from the log or without an
    outcome are missing for reasons that have nothing to do with the holdout. Rounds served with no random slots
    (``random_slots=0``) had no chance of being held out and are no part of it.

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
        rounds = _rounds(now, metric)
    # the smaller arm is the exposed one: its variance needs no two rounds in a stretch
    table = estimate(
        rounds["held"].to_numpy(),
        rounds["y"].to_numpy(),
        strata=rounds["stretch"].to_numpy(),
        level=level,
    )
    row = table.frame.row(0, named=True)
    known = rounds.drop_nulls("y")
    held, randomized = pl.col("held"), pl.col("randomized")
    p_share, changed = _share(rounds)
    notes = [said for said in (changed, _missing(rounds, row["p_missing"])) if said]
    return ExposureCost(
        cost=_negative(row["utility"]),
        ci_low=_negative(row["ci_high"]),
        ci_high=_negative(row["ci_low"]),
        **{name: row[name] for name in ("std_error", "p_value", "reason")},
        n_randomized=known.filter(randomized).height,
        n_holdout=known.filter(held).height,
        n_fallback=known.filter(~held & ~randomized).height,
        n_left_out=known.filter(held.n_unique().over("stretch") == 1).height,
        n_missing=rounds.height - known.height,
        p_share=p_share,
        note="; ".join(notes) or None,
    )


def _rounds(log: LogFrames, metric: str) -> pl.DataFrame:
    """Return ``scope, randomized, held, y, stretch``, in order of time, of rounds that might have been held out."""
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
    n, place = pl.len().over("scope"), pl.int_range(pl.len()).over("scope")
    # as even as can be: a short last one would tell little
    part = place * ((n + STRETCH - 1) // STRETCH) // n
    stretch = (pl.col("scope").rank("dense").cast(pl.Int64) - 1) * rounds.height + part
    return ordered.select("scope", "randomized", "held", "y", stretch=stretch)


def _share(rounds: pl.DataFrame) -> tuple[float | None, str | None]:
    """Test whether the share held out before each of some moments is that after it, within scopes, exactly."""
    moments = np.unique(np.arange(1, MOMENTS + 1) * rounds.height // (MOMENTS + 1))
    placed = rounds.select("scope", "held").with_row_index("place")
    total = placed.group_by("scope").agg(held=pl.col("held").sum(), n=pl.len()).sort("scope")
    parts = [
        total.join(
            placed.head(int(moment)).group_by("scope").agg(x1=pl.col("held").sum(), n1=pl.len()), on="scope"
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
