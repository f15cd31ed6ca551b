"""Was what is in the log drawn as its design says: tables, propensities, balance, sample ratios, lost rounds."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from cmp.design.cards import CARD_PREFIX
from cmp.estimation.exact_tests import conditional_p_values, two_sided
from cmp.evaluation.evidence import Evidence, Verdict, least_p, named
from cmp.evaluation.row_checks import verdict_on_positivity
from cmp.log.validation import TOLERANCE

__all__ = [
    "check_balance",
    "check_draws",
    "check_lost_rounds",
    "check_positivity",
    "check_propensities",
    "check_propensity_sums",
    "check_sample_ratio",
]

#: Binomial counts are summed over this many standard deviations and 30 more: what is left out is below 1e-30.
TAIL_SDS: Final = 12.0

FloatArray = npt.NDArray[np.float64]


def check_draws(found: Evidence) -> Verdict:
    """Whether each round holds what its row of the stored table dealt."""
    check = "draws are those of the table"
    taken = found.randomized.join(found.dealt, on=["block_id", "block_row"])
    if not taken.height:
        return Verdict.untestable(check, "no round was dealt from a stored table")
    key = ["round_id", "memory_id"]
    with_table = found.drawn.join(taken.select("round_id").unique(), on="round_id", how="semi")
    lacking = taken.join(with_table, on=key, how="anti")
    beyond = with_table.join(taken, on=key, how="anti")
    wrong = (
        pl.concat([lacking.select("scope", "round_id"), beyond.select("scope", "round_id")])
        .unique()
        .sort("round_id")
    )
    n = taken["round_id"].n_unique()
    return Verdict(
        check,
        f"{wrong.height} of {n} rounds hold other memories than the table dealt"
        + (f": {named(wrong.select('round_id'))}" if wrong.height else ""),
        "A draw was made again, or rows were lost or added. Give a retry the round_id of the first try; remove these "
        "rounds whole, never a part of one",
        figure=wrong.height / n,
        expected=0.0,
        n=n,
        failed=wrong.height > 0,
        scope=_one_scope(wrong),
    )


def check_propensities(found: Evidence) -> Verdict:
    """Whether every logged propensity is the one of the design, for every arm."""
    check = "propensities are those of the design"
    rows = found.drawn.filter(pl.col("arm").is_in(["random", "card"]))
    p = pl.col("propensity")
    planned = pl.col("planned") / pl.col("length")
    off = rows.filter(
        p.is_null() | p.is_nan() | (p <= 0) | (p >= 1) | ((p - planned).abs() > TOLERANCE).fill_null(True)
    )
    others = _off_ranked(found)
    n = rows.height
    if not n:
        return Verdict.untestable(check, "no memory was drawn")
    wrong = pl.concat(
        [
            off.select("scope", "round_id", "memory_id", "propensity", expected=planned),
            others.select("scope", "round_id", "memory_id", "propensity", expected=pl.lit(None, pl.Float64)),
        ]
    )
    first = off.select(p, planned.alias("expected")).drop_nulls().head(1)
    return Verdict(
        check,
        f"{wrong.height} of {n} draws have a propensity that is not planned / length"
        + (f" (round, memory, logged, by design): {named(wrong.drop('scope'))}" if wrong.height else ""),
        "Log the probability of being drawn under the whole design, n_m / L (k / N where each round draws by its key): "
        "not that of one slot, of the branch that was taken, or k / B. Correct it from the block; never clip it",
        figure=first["propensity"].first() if first.height else None,  # type: ignore[arg-type]
        expected=first["expected"].first() if first.height else None,  # type: ignore[arg-type]
        n=n,
        failed=wrong.height > 0,
        scope=_one_scope(wrong),
    )


def _off_ranked(found: Evidence) -> pl.DataFrame:
    """Return ranked and withheld rows whose propensities do not agree with how many were withheld.

    Of c candidates w are withheld: each was kept with probability 1 - w/c and withheld with w/c. What filled in, and
    what was drawn and ranked as well, was certain.
    """
    rows = found.need("exposures", "round_id", "memory_id", "arm", "propensity").join(
        found.randomized.select("round_id", "scope"), on="round_id"
    )
    shown = rows.filter(pl.col("arm") == "ranked")
    withheld = rows.filter(pl.col("arm") == "withheld")
    share = withheld.group_by("round_id").agg(
        chance=pl.col("propensity").first(), w=pl.len(), alike=pl.col("propensity").n_unique() == 1
    )
    uncertain = (1 - pl.col("propensity")).abs() > TOLERANCE
    kept = shown.filter(uncertain).group_by("round_id").agg(kept=pl.len(), kept_p=pl.col("propensity").mean())
    told = share.join(kept, on="round_id", how="left").with_columns(pl.col("kept").fill_null(0))
    candidates = pl.col("kept") + pl.col("w")
    bad = told.filter(
        ~pl.col("alike")
        | ((pl.col("chance") * candidates - pl.col("w")).abs() > TOLERANCE * candidates).fill_null(True)
        | ((pl.col("kept_p") + pl.col("chance") - 1).abs() > TOLERANCE).fill_null(False)
    )
    unexplained = shown.filter(uncertain | pl.col("propensity").is_null()).join(
        share, on="round_id", how="anti"
    )
    return pl.concat([withheld.join(bad, on="round_id", how="semi"), unexplained])


def check_propensity_sums(found: Evidence) -> Verdict:
    """Whether the propensities of each block's roster sum to k, so that each round's do."""
    check = "propensities sum to k"
    blocks = found.need("blocks", "block_id", "scope", "k", "length")
    sums = (
        found.need("rosters", "block_id", "planned").group_by("block_id").agg(planned=pl.col("planned").sum())
    )
    joined = blocks.join(sums, on="block_id", how="left").with_columns(
        total=pl.col("planned").fill_null(0) / pl.col("length")
    )
    used = found.randomized.group_by("block_id").agg(rounds=pl.len())
    off = joined.filter((pl.col("total") - pl.col("k")).abs() > TOLERANCE * pl.col("k")).join(
        used, on="block_id", how="left"
    )
    if not joined.height:
        return Verdict.untestable(check, "the log has no block")
    rounds = int(off["rounds"].sum())
    first = off.head(1)
    return Verdict(
        check,
        f"in {off.height} of {joined.height} blocks ({rounds} rounds) the roster's propensities do not sum to k"
        + (f" (block, k, sum): {named(off.select('block_id', 'k', 'total'))}" if off.height else ""),
        "These are no inclusion probabilities: use those of the whole draw, or restore the roster",
        figure=first["total"].first() if off.height else None,  # type: ignore[arg-type]
        expected=first["k"].first() if off.height else None,  # type: ignore[arg-type]
        n=joined.height,
        failed=off.height > 0,
        scope=_one_scope(off),
    )


def check_balance(found: Evidence) -> Verdict:
    """Whether the exposures planned in a block differ by at most one."""
    check = "balance within one"
    blocks = found.need("blocks", "block_id", "scope", "design").filter(pl.col("design") != "uniform")
    if not blocks.height:
        return Verdict.untestable(check, "no block was dealt from a table")
    spread = (
        found.need("rosters", "block_id", "planned")
        .group_by("block_id")
        .agg(spread=pl.col("planned").max() - pl.col("planned").min())
    )
    judged = blocks.join(spread, on="block_id")
    uneven = judged.filter(pl.col("spread") > 1)
    return Verdict(
        check,
        f"{uneven.height} of {judged.height} blocks plan counts that differ by more than one"
        + (f": {named(uneven.select('block_id', 'spread'))}" if uneven.height else ""),
        "The tables were not dealt by this design: analyse with estimator='hajek', and find out who wrote them",
        figure=float(judged["spread"].max() or 0),  # type: ignore[arg-type]
        expected=1.0,
        n=judged.height,
        failed=uneven.height > 0,
        scope=_one_scope(uneven),
    )


def check_sample_ratio(found: Evidence) -> Verdict:
    """Test each memory's realized exposures against the design, exactly.

    A table's rows are in random order, so that of a block in which P of L rounds are in the log a memory has a
    hypergeometric share; where all are, its count is fixed and says nothing. By key, each round is a trial of its own.

    References
    ----------
    Fabijan, A. et al. (2019). Diagnosing sample ratio mismatch in online controlled experiments. KDD, 2156-2164.
    """
    check = "sample ratio"
    columns = ("block_id", "scope", "design", "k", "length")
    present = found.randomized.group_by("block_id").agg(present=pl.len())
    counts = found.drawn.group_by("block_id", "memory_id").agg(x=pl.len())
    cells = (
        found.need("rosters", "block_id", "memory_id", "planned")
        .join(found.need("blocks", *columns), on="block_id")
        .join(present, on="block_id")
        .join(counts, on=["block_id", "memory_id"], how="left")
        .with_columns(pl.col("x").fill_null(0))
        .filter((pl.col("design") == "uniform") | (pl.col("present") != pl.col("length")))
        .sort("scope", "memory_id")
    )
    if not cells.height:
        return Verdict.untestable(
            check, "every block is complete: counts are fixed by its table, and nothing is left to chance"
        )
    is_keyed = pl.col("design") == "uniform"
    judged = pl.concat([_dealt_p_values(cells.filter(~is_keyed)), _keyed_p_values(cells.filter(is_keyed))])
    p, place = least_p(judged["p"].to_numpy())
    worst = judged.row(max(place, 0), named=True)
    return Verdict(
        check,
        f"of {judged.height} memories the furthest from the design, {worst['memory_id']!r}, was drawn {worst['x']} "
        f"times where {worst['expected']:.1f} are expected",
        "Rounds were lost, repeated or drawn again depending on what was drawn: look for retries that draw anew, for "
        "errors and limits that some memories provoke, and for filters behind the log",
        figure=float(worst["x"]),
        expected=float(worst["expected"]),
        p_value=p,
        n=int(cells.unique("block_id")["present"].sum()),
        scope=worst["scope"],
    )


_JUDGED: Final[dict[str, Any]] = {
    "scope": pl.String, "memory_id": pl.String, "x": pl.Int64, "expected": pl.Float64, "p": pl.Float64,
}  # fmt: skip


def _dealt_p_values(cells: pl.DataFrame) -> pl.DataFrame:
    """Hypergeometric, summed over blocks; counts that no table allows have p = 0."""
    if not cells.height:
        return pl.DataFrame(schema=_JUDGED)
    keys, memory = _coded(cells)
    x1, n1, planned, length = (
        cells[name].to_numpy().astype(np.int64) for name in ("x", "present", "planned", "length")
    )
    possible = (x1 <= planned) & (n1 <= length) & (x1 <= n1) & (x1 >= planned + n1 - length)
    n0 = np.where(possible, length - n1, 0)
    p = conditional_p_values(memory, x1, n1, np.where(possible, planned - x1, 0), n0, keys.height)
    p[memory[~possible]] = 0.0
    return _judged(keys, memory, x1, n1 * planned / length, p)


def _keyed_p_values(cells: pl.DataFrame) -> pl.DataFrame:
    """Binomial, summed over blocks."""
    if not cells.height:
        return pl.DataFrame(schema=_JUDGED)
    keys, memory = _coded(cells)
    x, trials, chance = (
        cells["x"].to_numpy(), cells["present"].to_numpy(), (cells["k"] / cells["length"]).to_numpy()
    )  # fmt: skip
    total = np.bincount(memory, weights=x, minlength=keys.height).astype(np.int64)
    known: dict[tuple[tuple[int, float], ...], tuple[int, FloatArray]] = {}
    p = np.empty(keys.height)
    for row, places in enumerate(np.split(np.arange(len(x)), np.flatnonzero(np.diff(memory)) + 1)):
        kind = tuple(sorted(zip(trials[places].tolist(), chance[places].tolist(), strict=True)))
        if kind not in known:
            known[kind] = _binomial_sum(kind)
        first, pmf = known[kind]
        at = total[row] - first
        p[row] = two_sided(pmf[None], np.array([at]))[0] if 0 <= at < len(pmf) else 0.0
    return _judged(keys, memory, x, trials * chance, p)


def _binomial_sum(kind: tuple[tuple[int, float], ...]) -> tuple[int, FloatArray]:
    """Return the least count kept and the probabilities from there on, of a sum of binomials."""
    from scipy.stats import binom

    first, pmf = 0, np.ones(1)
    for trials, chance in kind:
        mean, sd = trials * chance, (trials * chance * (1 - chance)) ** 0.5
        low = max(0, int(mean - TAIL_SDS * sd - 30))
        high = min(trials, int(mean + TAIL_SDS * sd + 30))
        first, pmf = first + low, np.convolve(pmf, binom.pmf(np.arange(low, high + 1), trials, chance))
    return first, pmf


def check_lost_rounds(found: Evidence) -> Verdict:
    """Test whether the rows of tables that are not in the log held some memory more than the others.

    Rows are handed out in order, so that a row before the last used one has had a round. To lose whole rounds at random
    harms nothing; to lose them because of what was drawn does.
    """
    check = "lost rounds"
    rounds = found.randomized
    used = rounds.group_by("block_id", "scope").agg(
        handed=pl.col("block_row").max() + 1, present=pl.col("block_row").n_unique()
    )
    short = used.filter(pl.col("present") < pl.col("handed"))
    rows = found.dealt.join(short, on="block_id").filter(pl.col("block_row") < pl.col("handed"))
    if not rows.height:
        return Verdict.untestable(
            check, "no row of a table was passed over", n=int(used["handed"].sum() or 0)
        )
    here = rounds.select("block_id", "block_row", here=pl.lit(True)).unique()
    cells = (
        rows.join(here, on=["block_id", "block_row"], how="left")
        .group_by("scope", "memory_id", "block_id")
        .agg(
            x1=pl.col("here").fill_null(False).sum(),
            x0=(~pl.col("here").fill_null(False)).sum(),
            n1=pl.col("present").first(),
            n0=(pl.col("handed") - pl.col("present")).first(),
        )
        .sort("scope", "memory_id")
    )
    keys, memory = _coded(cells)
    x1, n1, x0, n0 = (cells[name].to_numpy().astype(np.int64) for name in ("x1", "n1", "x0", "n0"))
    p, place = least_p(conditional_p_values(memory, x1, n1, x0, n0, keys.height))
    lost = int((short["handed"] - short["present"]).sum())
    handed = int(used["handed"].sum())
    scope, memory_id = keys.row(max(place, 0))
    held = int(x0[memory == place].sum())
    chance = float(((x1 + x0) * n0 / (n1 + n0))[memory == place].sum())
    return Verdict(
        check,
        f"{lost} of {handed} rounds handed out are not in the log; {memory_id!r} was drawn in {held} of these, "
        f"{chance:.1f} expected",
        "Find out what removes rounds after the draw (an error, a time limit, a filter, a deletion by memory), and "
        "keep every round: those without an outcome too",
        figure=float(held),
        expected=chance,
        p_value=p,
        n=handed,
        scope=scope,
    )


def check_positivity(found: Evidence) -> Verdict:
    """Which memories no round compares: always in the context, never planned, or drawn for certain."""
    check = "positivity"
    rounds = found.randomized.group_by("block_id", "scope").agg(rounds=pl.len())
    arms = found.need("exposures", "round_id", "memory_id", "arm")
    ranked = arms.filter(pl.col("arm").is_in(["ranked", "withheld"])).join(found.randomized, on="round_id")
    counted = ranked.group_by("block_id", "memory_id").agg(
        ranked=pl.len(), withheld=(pl.col("arm") == "withheld").any()
    )
    plan = found.plan.filter(~pl.col("memory_id").str.starts_with(CARD_PREFIX))
    cells = plan.join(rounds, on="block_id").join(counted, on=["block_id", "memory_id"], how="left")
    open_ = (pl.col("planned") > 0) & (pl.col("planned") < pl.col("length"))
    memories = (
        cells.group_by("scope", "memory_id")
        .agg(
            planned=open_.any(),
            free=(open_ & (pl.col("ranked").fill_null(0) < pl.col("rounds"))).any(),
            withheld=pl.col("withheld").fill_null(False).any(),
        )
        .sort("scope", "memory_id")
    )
    if not memories.height:
        return Verdict.untestable(check, "no round was randomized", "Serve with random slots")
    always = memories.filter(pl.col("planned") & ~pl.col("free") & ~pl.col("withheld"))
    never = memories.filter(~pl.col("planned") & ~pl.col("withheld"))
    parts = [
        f"{frame.height} {what} ({named(frame.select('memory_id'))})"
        for frame, what in ((always, "are ranked in every round"), (never, "have a propensity of 0 or 1"))
        if frame.height
    ]
    return verdict_on_positivity(
        f"of {memories.height} memories {' and '.join(parts or ['all might have been shown or not'])}",
        memories.height, always.height + never.height,
        "For what is always ranked serve with withhold=1; for the others go on to the next blocks, or lengthen blocks",
    )  # fmt: skip


def _coded(cells: pl.DataFrame) -> tuple[pl.DataFrame, npt.NDArray[np.int64]]:
    """Return the memories of cells sorted by scope and memory, and which one each cell is of."""
    codes = cells.select(pl.struct("scope", "memory_id").rle_id()).to_series().to_numpy().astype(np.int64)
    return cells.select("scope", "memory_id").unique(maintain_order=True), codes


def _judged(
    keys: pl.DataFrame, memory: npt.NDArray[np.int64], x: Any, expected: FloatArray, p: FloatArray
) -> pl.DataFrame:
    total, wanted = (np.bincount(memory, weights=values, minlength=keys.height) for values in (x, expected))
    return keys.with_columns(
        pl.Series("x", total.astype(np.int64)), pl.Series("expected", wanted), pl.Series("p", p)
    )


def _one_scope(rows: pl.DataFrame) -> str:
    scopes = rows["scope"].unique()
    return str(scopes[0]) if len(scopes) == 1 else "*"
