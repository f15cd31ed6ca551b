"""Did the outcomes come back as they should: joined, in time, of every round alike, and not made up."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from cmp.estimation.from_log import utilities
from cmp.evaluation.evidence import Evidence, Verdict, least_p, named

__all__ = [
    "check_cards",
    "check_episodes",
    "check_joins",
    "check_lags",
    "check_missing",
    "check_orphans",
    "check_revisions",
    "check_zeros",
]

#: Hosts whose clocks are kept agree within this many seconds; a lag below its negative is no rounding.
CLOCK_SLACK_SECONDS: Final = 1.0

#: Permutations of the test of cards: they resolve p-values down to the inverse of this, 0.01 shared by six tests.
PERMUTATIONS: Final = 9999
#: Done at once; after each lot a p-value that is large already is left as it is.
LOT: Final = 199
HITS_ENOUGH: Final = 50
#: Rounds beyond which the chi-square of the statistic is used; its error is then of the order of 1 / rounds.
PERMUTED_AT_MOST: Final = 5000

_LAST_REVISION: Final = pl.col("revision") == pl.col("revision").max().over("round_id")

FloatArray = npt.NDArray[np.float64]


def check_joins(found: Evidence) -> Verdict:
    """Share of rounds with an outcome, by arm."""
    check = "outcomes join"
    rounds = found.need("rounds", "round_id", "scope", "randomized")
    has = rounds.join(found.last.select("round_id", y=pl.lit(1)), on="round_id", how="left").with_columns(
        has=pl.col("y").is_not_null()
    )
    randomized = has.filter("randomized")
    if not found.last.height or not randomized.height:
        return Verdict.untestable(
            check, f"no round has an outcome of {found.metric!r} yet", "Record outcomes by round_id"
        )
    rows = found.need("exposures", "round_id", "arm").join(randomized, on="round_id")
    shares = rows.group_by("arm").agg(n=pl.len(), share=pl.col("has").mean()).sort("arm")
    by_arm = ", ".join(f"{arm} {share:.1%} of {n}" for arm, n, share in shares.iter_rows())
    others = has.filter(~pl.col("randomized"))["has"]
    beside = (
        f"; of rounds not randomized {others.sum() / len(others):.1%} of {len(others)}" if len(others) else ""
    )
    n_with = int(randomized["has"].sum())
    return Verdict(
        check,
        f"{n_with} of {randomized.height} randomized rounds have an outcome; by arm: {by_arm}{beside}",
        "No outcome is of a round in this log: record(context.round_id, ...) takes our id, not one of another service",
        figure=n_with / randomized.height,
        n=randomized.height,
        failed=n_with == 0,
    )


def check_missing(found: Evidence) -> Verdict:
    """Test whether a round's outcome goes missing because of what was drawn, exactly, for each memory."""
    check = "missing outcomes do not depend on the draw"
    if not found.last.height:
        return Verdict.untestable(check, f"no round has an outcome of {found.metric!r} yet")
    missing = int(found.randomized.join(found.last, on="round_id", how="anti").height)
    if not missing:
        return Verdict.untestable(check, "no randomized round lacks its outcome", n=found.randomized.height)
    table = utilities(found.tables, metric=found.metric).frame
    p, place = least_p(table["p_missing"].fill_null(np.nan).to_numpy())
    if p is None:
        return Verdict.untestable(
            check, "no memory has rounds with and without it", n=found.randomized.height
        )
    worst = table.row(place, named=True)
    gone = [worst[f"n_missing_{arm}"] for arm in ("exposed", "control")]
    rounds = [n + worst[f"n_{arm}"] for n, arm in zip(gone, ("exposed", "control"), strict=True)]
    return Verdict(
        check,
        f"{missing} of {found.randomized.height} rounds lack an outcome; the two arms differ most for "
        f"{worst['memory_id']!r}: {gone[0]} of {rounds[0]} rounds drawn, {gone[1]} of {rounds[1]} others",
        "Outcomes are lost after the draw: record one for every round, the failed and the abandoned too; "
        "until then give cmp.utilities an outcome_range and read the bounds",
        figure=gone[0] / rounds[0] if rounds[0] else None,
        expected=gone[1] / rounds[1] if rounds[1] else None,
        p_value=p,
        n=found.randomized.height,
        scope=worst["scope"],
    )


def check_lags(found: Evidence) -> Verdict:
    """Whether outcomes are stamped after their rounds. They are joined by id: a clock moves no estimate."""
    check = "outcomes come after their rounds"
    lags = (
        _of_metric(found, "recorded_at")
        .filter(pl.col("revision") == 0)
        .join(found.need("rounds", "round_id", "scope", "asked_at"), on="round_id")
        .with_columns(lag=(pl.col("recorded_at") - pl.col("asked_at")).dt.total_microseconds() / 1e6)
    )
    if not lags.height:
        return Verdict.untestable(check, f"no round has an outcome of {found.metric!r} yet")
    negative = lags.filter(pl.col("lag") < 0)
    early = lags.filter(pl.col("lag") < -CLOCK_SLACK_SECONDS).sort("lag")
    middle, late, most = (lags["lag"].quantile(q, "nearest") for q in (0.5, 0.99, 1.0))
    return Verdict(
        check,
        f"{negative.height} negative lags of {lags.height}, {early.height} beyond {CLOCK_SLACK_SECONDS:g} s"
        + (f" (round, seconds): {named(early.select('round_id', 'lag'))}" if early.height else "")
        + f"; median {middle:.3g} s, 99 in 100 within {late:.3g} s, longest {most:.3g} s",
        "Outcomes were recorded before their rounds: clocks disagree, or outcomes are of earlier rounds under the same "
        "ids. Set the clocks, and check which id is recorded; do not drop these rounds",
        figure=float(early.height),
        expected=0.0,
        n=lags.height,
        failed=early.height > 0,
    )


def check_orphans(found: Evidence) -> Verdict:
    """Whether outcomes are of rounds in the log."""
    check = "no outcome is an orphan"
    ids = found.need("outcomes", "round_id").unique()
    orphans = ids.join(found.need("rounds", "round_id"), on="round_id", how="anti").sort("round_id")
    return Verdict(
        check,
        f"{orphans.height} of {ids.height} rounds with an outcome are not in the log"
        + (f": {named(orphans)}" if orphans.height else ""),
        "Record the round_id of the context; rounds served while the log could not be written leave orphans too. They "
        "are kept, and left out of estimates",
        figure=float(orphans.height),
        expected=0.0,
        n=ids.height,
        failed=orphans.height > 0,
    )


def check_revisions(found: Evidence) -> Verdict:
    """Whether each round has one outcome; corrections are counted, two values that none corrects are a conflict."""
    check = "one outcome a round"
    rows = _of_metric(found, "value")
    copies = rows.group_by("round_id", "revision").agg(copies=pl.len(), values=pl.col("value").n_unique())
    doubled = copies.filter(pl.col("copies") > 1).sort("round_id")
    conflicts = int((doubled["values"] > 1).sum())
    revised = int(rows.filter(pl.col("revision") > 0)["round_id"].n_unique())
    aside = found.losses.outcomes_of(found.metric)
    return Verdict(
        check,
        f"{revised} rounds were corrected; {doubled.height} have an outcome twice, {conflicts} of these with two values"
        + (f": {named(doubled.select('round_id'))}" if doubled.height else "")
        + (f"; {aside} records of another value were set aside in gathering" if aside else ""),
        "Keep one row a round, metric and revision: copies multiply rounds. Where values differ record the right one "
        "with correct=True",
        figure=float(doubled.height + aside),
        expected=0.0,
        n=rows["round_id"].n_unique(),
        failed=doubled.height > 0 or aside > 0,
    )


def check_zeros(found: Evidence) -> Verdict:
    """Test whether outcomes written at one instant are all 0, as where missing ones were filled in.

    Each outcome has its own time where it was recorded as it came. Where some share theirs and all of these are 0, the
    chance of that among the log's own outcomes is hypergeometric.
    """
    check = "missing outcomes were not filled with 0"
    rows = _of_metric(found, "value", "recorded_at").filter(_LAST_REVISION)
    together = pl.len().over("recorded_at") > 1
    batch = rows.filter(together)
    zeros = int((rows["value"] == 0).sum())
    if not batch.height or zeros == rows.height:
        return Verdict.untestable(
            check,
            "no two outcomes were recorded at one instant" if zeros < rows.height else "all outcomes are 0",
        )
    in_batch = int((batch["value"] == 0).sum())
    return Verdict(
        check,
        f"{batch.height} of {rows.height} outcomes share their instant with another; {in_batch} of these are 0, and "
        f"{zeros - in_batch} of the {rows.height - batch.height} others",
        "A missing outcome has no row: delete what was filled in (a 0 that was observed is recorded when it is)",
        figure=in_batch / batch.height,
        expected=zeros / rows.height,
        p_value=_all_zero(rows.height, zeros, batch.height) if in_batch == batch.height else 1.0,
        n=rows.height,
    )


def _all_zero(n: int, zeros: int, drawn: int) -> float:
    from scipy.special import gammaln

    log_p = gammaln(zeros + 1) - gammaln(zeros - drawn + 1) + gammaln(n - drawn + 1) - gammaln(n + 1)
    return float(np.exp(min(0.0, log_p)))


def check_episodes(found: Evidence) -> Verdict:
    """How many rounds share an episode, and so an outcome: they are no independent rounds."""
    check = "rounds of one episode"
    rounds = found.need("rounds", "episode_id", "scope", "randomized").filter("randomized")
    named_ones = rounds.drop_nulls("episode_id")
    shared = int((named_ones.select("scope", "episode_id").is_duplicated()).sum())
    return Verdict(
        check,
        f"{shared} of {rounds.height} randomized rounds share an episode with another, and are analysed with it",
        figure=shared / rounds.height if rounds.height else None,
        n=rounds.height,
        failed=False,
    )


def check_cards(found: Evidence) -> Verdict:
    """Compare blank cards with one another: the built-in A/A test.

    Among a block's rounds that hold one card, which card it is was dealt at random and changes nothing; so the
    outcomes of the cards may be exchanged within blocks. The statistic is the sum of squares between cards.

    References
    ----------
    Phipson, B. and Smyth, G. K. (2010). Permutation p-values should never be zero. Statistical Applications in Genetics
    and Molecular Biology 9, article 39.
    """
    check = "cards are alike (A/A)"
    cards = found.drawn.filter(pl.col("arm") == "card")
    if not cards.height:
        return Verdict.untestable(
            check,
            "the log has no reference cards",
            "Serve with reference_cards='auto' for a built-in A/A test",
        )
    rows = (
        cards.filter(pl.len().over("round_id") == 1)
        .join(found.last, on="round_id")
        .filter(pl.col("memory_id").n_unique().over("block_id") > 1)
        .sort("block_id", "round_id")
    )
    if not rows.height:
        return Verdict.untestable(check, "no block has outcomes of two cards")
    block = rows["block_id"].rle_id().to_numpy().astype(np.int64)
    label = (rows["memory_id"].rank("dense") - 1).to_numpy().astype(np.int64)
    y = rows["y"].to_numpy().astype(np.float64)
    means = rows.group_by("memory_id").agg(pl.col("y").mean()).sort("y")
    return Verdict(
        check,
        f"{rows.height} rounds of {means.height} cards; their means lie between {means['y'][0]:.3g} and "
        f"{means['y'][-1]:.3g}",
        "Blanks that do nothing differ: outcomes follow the draw by some other way than the context. Do not trust this "
        "log's utilities until that is found",
        figure=float(means["y"][-1] - means["y"][0]),
        expected=0.0,
        p_value=_exchanged_p(y, label, block),
        n=rows.height,
    )


def _exchanged_p(y: FloatArray, label: npt.NDArray[np.int64], block: npt.NDArray[np.int64]) -> float:
    """Return the p-value of labels exchanged within blocks; ``block`` ascends."""
    n_blocks, n_labels = int(block[-1]) + 1, int(label.max()) + 1
    sizes = np.bincount(block, minlength=n_blocks)
    centred = y - (np.bincount(block, weights=y) / sizes)[block]
    counts = np.bincount(label, minlength=n_labels)
    used = counts > 0

    def between(labels: npt.NDArray[np.int64]) -> FloatArray:
        lots = labels.shape[0]
        where = labels + n_labels * np.arange(lots)[:, None]
        sums = np.bincount(where.ravel(), weights=np.tile(centred, lots), minlength=lots * n_labels)
        squares: FloatArray = (sums.reshape(lots, n_labels)[:, used] ** 2 / counts[used]).sum(axis=1)
        return squares

    seen = float(between(label[None, :])[0])
    total = float((centred**2).sum())
    if total <= 0.0:
        return 1.0
    from scipy.special import chdtrc

    approximate = float(chdtrc(used.sum() - 1, seen * (len(y) - n_blocks) / total))
    if len(y) > PERMUTED_AT_MOST:
        return approximate
    rng = np.random.default_rng(0)
    hits = done = 0
    while done < PERMUTATIONS and hits < HITS_ENOUGH:
        lot = min(LOT, PERMUTATIONS - done)
        order = np.argsort(block + rng.random((lot, len(y))), axis=1)
        hits += int((between(label[order]) >= seen * (1 - 1e-9)).sum())
        done += lot
    least = (hits + 1) / (done + 1)
    if hits:
        return least
    # beyond what permutations resolve the chi-square says how far, and no p-value is below one arrangement's share
    return min(least, max(approximate, _share_of_one(label, block)))


def _share_of_one(label: npt.NDArray[np.int64], block: npt.NDArray[np.int64]) -> float:
    """Return one over the number of ways to exchange labels within blocks."""
    from scipy.special import gammaln

    of_cells = np.unique(np.stack([block, label]), axis=1, return_counts=True)[1]
    return float(np.exp(gammaln(of_cells + 1.0).sum() - gammaln(np.bincount(block) + 1.0).sum()))


def _of_metric(found: Evidence, *columns: str) -> pl.DataFrame:
    """Return the metric's outcomes."""
    return found.need("outcomes", "round_id", "metric", "revision", *columns).filter(
        pl.col("metric") == found.metric
    )
