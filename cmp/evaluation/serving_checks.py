"""How the log was served: what could be read, randomized and delivered, and how its rosters moved."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Final

import numpy as np
import polars as pl

from cmp.design.cards import CARD_PREFIX
from cmp.estimation.exact_tests import conditional_p_values
from cmp.evaluation.evidence import ALL, Evidence, Verdict
from cmp.log import Log
from cmp.log.validation import findings_in

__all__ = [
    "check_delivery",
    "check_delivery_by_slot",
    "check_randomized",
    "check_readable",
    "check_retries",
    "check_rosters",
]

#: Below this share of draws delivered, more than a tenth of every utility is diluted away.
DELIVERED_AT_LEAST: Final = 0.9

#: Beyond this share of rounds that failed to be randomized, the randomized ones are no fair picture of the traffic.
FAILED_AT_MOST: Final = 0.05

#: For this long a scope may go without a block: that of a million memories is prepared within seconds.
PREPARING_AT_MOST: Final = timedelta(minutes=10)

#: Reasons for an unrandomized round that are the design's, and no failure.
INTENDED: Final = ("holdout", "no_random_slots", "roster_too_small", "block_preparing")


def check_readable(found: Evidence) -> Verdict:
    """Whether the log keeps its contract; orphan outcomes have a check of their own."""
    check = "log keeps its contract"
    if not isinstance(found.log, Log):
        return Verdict.untestable(check, "this is no exposure log of ours, only its five tables")
    frames = (found.rounds, found.exposures, found.outcomes, found.blocks, found.rosters)
    rows = [finding for finding in findings_in(*frames) if "orphan" not in finding.problem]
    kinds = Counter((finding.table, finding.problem) for finding in rows)
    kinds.update(found.losses.counts())
    findings = [*found.losses.findings(), *rows]
    said = "; ".join(f"{table}: {problem} ({n})" for (table, problem), n in kinds.most_common())
    return Verdict(
        check,
        f"{kinds.total()} findings" + (f": {said}" if said else ""),
        "; ".join(dict.fromkeys(finding.mend for finding in findings)) + ". cmpolicy validate names the rows",
        figure=float(kinds.total()),
        expected=0.0,
        n=sum(frame.height for frame in (found.rounds, found.exposures, found.outcomes)),
        failed=bool(findings),
    )


def check_randomized(found: Evidence) -> Verdict:
    """Share of rounds that failed to be randomized, why others were not, and whether a scope waits for a block."""
    check = "rounds are randomized"
    rounds = found.need("rounds", "scope", "randomized", "fallback_reason")
    if not rounds.height:
        return Verdict.untestable(check, "the log has no round")
    why = pl.col("fallback_reason").fill_null("no reason given")
    others = rounds.filter(~pl.col("randomized")).group_by(why).len().sort("len", descending=True)
    failed = others.filter(~pl.col("fallback_reason").is_in(INTENDED))
    share = int(failed["len"].sum()) / rounds.height
    said = ", ".join(f"{n} {reason}" for reason, n in others.iter_rows())
    waiting = _waiting(found.rounds)
    too_many = (
        f"More than {FAILED_AT_MOST:.0%} of rounds failed to be drawn" if share > FAILED_AT_MOST else ""
    )
    no_block = (
        f"No block was opened in {PREPARING_AT_MOST}: listing the memories may hang, or take too long"
        if waiting
        else ""
    )
    return Verdict(
        check,
        f"{rounds.height - int(others['len'].sum())} of {rounds.height} rounds are randomized"
        + (f"; not so: {said}" if said else "")
        + (f"; {len(waiting)} scopes wait for a block" if waiting else ""),
        ". ".join(filter(None, (too_many, no_block)))
        + ": see the warnings of cmp.serving and memory.stats(). The estimates hold for the rounds that were",
        figure=share,
        expected=0.0,
        n=rounds.height,
        failed=bool(too_many or no_block),
        scope=waiting[0] if len(waiting) == 1 and not too_many else ALL,
    )


def _waiting(rounds: pl.DataFrame) -> list[str]:
    """Return the scopes whose rounds have been served without a block for too long, up to their last one."""
    asked = pl.col("asked_at")
    if not isinstance(rounds.schema.get("asked_at"), pl.Datetime):
        return []
    is_waiting = (pl.col("fallback_reason") == "block_preparing").fill_null(value=False)
    drawn = rounds.filter("randomized").group_by("scope").agg(since=asked.max())
    late = (
        rounds.filter(is_waiting)
        .join(drawn, on="scope", how="left")
        .filter(pl.col("since").is_null() | (asked > pl.col("since")))
        .group_by("scope")
        .agg(waited=asked.max() - asked.min())
        .filter(pl.col("waited") > PREPARING_AT_MOST)
    )
    return late["scope"].sort().to_list()


def check_retries(found: Evidence) -> Verdict:
    """How many rounds were asked for again: they keep their draw, so that this is no fault."""
    check = "retries"
    attempts = found.need("rounds", "attempts")["attempts"]
    if not len(attempts):
        return Verdict.untestable(check, "the log has no round")
    again, most = int((attempts > 1).sum()), int(attempts.max())  # type: ignore[arg-type]
    return Verdict(
        check,
        f"{again} of {len(attempts)} rounds were asked for again, at most {most} times; each kept its draw",
        figure=again / len(attempts),
        n=len(attempts),
        failed=False,
    )


def check_delivery(found: Evidence) -> Verdict:
    """Share of what was drawn that was handed over, beside the ranked share."""
    check = "draws are delivered"
    rows = found.need("exposures", "round_id", "arm", "assigned", "delivered", "reason").join(
        found.randomized.select("round_id", "scope"), on="round_id"
    )
    rows = rows.filter((pl.col("reason") != "deleted").fill_null(True) & (pl.col("arm") != "withheld"))
    shares = rows.group_by("arm").agg(n=pl.len(), share=pl.col("delivered").mean()).sort("arm")
    drawn = rows.filter(pl.col("assigned") & (pl.col("arm") == "random"))
    if not drawn.height:
        return Verdict.untestable(check, "no memory was drawn")
    share = float(drawn["delivered"].mean())  # type: ignore[arg-type]
    lost = drawn.filter(~pl.col("delivered")).group_by(pl.col("reason").fill_null("no reason given")).len()
    why = ", ".join(f"{n} {reason}" for reason, n in lost.sort("len", descending=True).iter_rows())
    by_arm = ", ".join(f"{arm} {value:.1%} of {n}" for arm, n, value in shares.iter_rows())
    worst = drawn.group_by("scope").agg(share=pl.col("delivered").mean()).sort("share", "scope")
    return Verdict(
        check,
        f"delivered by arm: {by_arm}" + (f"; draws not delivered: {why}" if why else ""),
        f"Less than {DELIVERED_AT_LEAST:.0%} of what was drawn reached its context. Analysis by assignment stays valid "
        "and is diluted: leave room for the random slots in the prompt, or serve fewer of them",
        figure=share,
        expected=1.0,
        n=drawn.height,
        failed=share < DELIVERED_AT_LEAST,
        scope=str(worst["scope"][0]) if share < 1.0 and worst.height == 1 else ALL,
    )


def check_delivery_by_slot(found: Evidence) -> Verdict:
    """Test whether the last random slot of a round goes undelivered more than the others do."""
    check = "delivery does not depend on the slot"
    rows = (
        found.need("exposures", "round_id", "arm", "slot", "delivered")
        .join(found.randomized.select("round_id"), on="round_id")
        .filter(pl.col("slot").is_not_null() & pl.col("arm").is_in(["random", "card"]))
    )
    gone = ~pl.col("delivered")
    rounds = (
        rows.with_columns(last=pl.col("slot") == pl.col("slot").max().over("round_id"))
        .group_by("round_id")
        .agg(
            n=pl.len(),
            x1=(gone & pl.col("last")).sum(),
            gone=gone.sum(),
        )
        .filter((pl.col("gone") > 0) & (pl.col("gone") < pl.col("n")))
    )
    if not rounds.height:
        return Verdict.untestable(check, "no round delivered some of its random slots and not the others")
    x1, n, lost = (rounds[name].to_numpy().astype(np.int64) for name in ("x1", "n", "gone"))
    one = np.ones_like(n)
    p = conditional_p_values(np.zeros_like(n), x1, one, lost - x1, n - 1, 1)
    return Verdict(
        check,
        f"where a round delivered only some of its random slots, the last was undelivered in {int(x1.sum())} of "
        f"{rounds.height}, {float((lost / n).sum()):.1f} expected",
        "Prompts are trimmed from the end: serve with placement='shuffle', or leave room",
        figure=float(x1.sum()),
        expected=float((lost / n).sum()),
        p_value=float(p[0]),
        n=rounds.height,
    )


def check_rosters(found: Evidence) -> Verdict:
    """How far rosters moved: utilities are means over the rounds a memory was in, with the others of that time."""
    check = "roster drift"
    blocks = found.need("blocks", "block_id", "scope", "group", "created_at")
    memories = found.need("rosters", "block_id", "memory_id", "removed_row").filter(
        ~pl.col("memory_id").str.starts_with(CARD_PREFIX)
    )
    members = memories.join(blocks, on="block_id")
    if not members.height:
        return Verdict.untestable(check, "the log has no roster")
    stream = ["scope", "group"]
    ends = blocks.group_by(stream).agg(
        first=pl.col("block_id").sort_by("created_at", "block_id").first(),
        last=pl.col("block_id").sort_by("created_at", "block_id").last(),
    )
    at = {
        name: members.join(ends.select(pl.col(name).alias("block_id")), on="block_id", how="semi")
        for name in ("first", "last")
    }
    key = [*stream, "memory_id"]
    joined = at["last"].join(at["first"], on=key, how="anti", nulls_equal=True).height
    left = at["first"].join(at["last"], on=key, how="anti", nulls_equal=True).height
    removed = int(members["removed_row"].is_not_null().sum())
    share = (joined + left) / max(at["first"].height + joined, 1)
    return Verdict(
        check,
        f"from the first to the last block of each series {joined} memories joined and {left} left, of "
        f"{at['first'].height} at first; {removed} were deleted in mid-block",
        figure=share,
        n=blocks.height,
        failed=False,
    )
