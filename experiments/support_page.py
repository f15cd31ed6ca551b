"""The page of :mod:`experiments.support`: its tables as people read them."""

from __future__ import annotations

from collections.abc import Iterator
from math import sqrt

import polars as pl

from cmp.evaluation.deletions import unchanged_share
from experiments.markdown import count, percent, pipe_table, points, rank
from experiments.references import IDENTICAL, REASONS, SESSIONS, UNSTEMMED

__all__ = ["render"]

#: How far a share may be from an earlier measurement of the same files before a reason is owed.
ONE_POINT = 0.01

QUANTITIES = {
    "never_own": "never own",
    "never_any": "never any",
    "any_key_recall": "any key in the top",
    "median_rank_missed": "median rank missed",
}
TIERS = ("all", "easy", "medium", "hard")


INTRODUCTION = """\
*Never own*: the key memory is in the top of none of the questions that need it. *Never any*: in the top of no
question at all, so it falls as questions are added. *Missed evidence*: (question, key) pairs with the key
outside the top; equal scores share their mean rank, and the pool is the median one. A memory that is never
shown has no contrast: its utility is unknown, not zero."""

BY_CATEGORY = """\
MemAware's tiers: *easy* questions share words with the session they need, *medium* its domain, *hard*
neither. Never any is over the questions of all categories. Shares of BM25 / dense / fused."""

FEWER = """\
Questions drawn at random from each conversation, and the key memories they need; means over the draws.
Shares of BM25 / dense / fused."""

BESIDE_PUBLISHED = """\
Theirs is on other models, stores and questions, which are not public; ours is on what the row says. The
phenomenon is compared, not the digits."""

DELETING = """\
Shares of (question, deletion) trials with the same retrieved set, beside C(N-m, k) / C(N, k), which knows
nothing of retriever, question or memory. Indexing again moves BM25's statistics, so its set can change though
nothing in it was deleted. ± is one standard error, clustered by deletion."""

BESIDE_EARLIER = """\
Made apart from this code, with the same retrievers. Shares should agree within one point."""


def render(
    overview: pl.DataFrame,
    *,
    agreement: pl.DataFrame,
    published: pl.DataFrame,
    queries: pl.DataFrame,
    deletions: pl.DataFrame,
    smoke: bool,
) -> str:
    """Return the page as Markdown; every number in it is computed from the tables."""
    top = f"The top {overview['cutoff'][0]} of real stores under real questions."
    parts = [
        "# What the ranker never reaches",
        "A smoke run, on a corner of each benchmark: no figure here is a result." if smoke else top,
        INTRODUCTION,
        _reach(overview),
        "## By category",
        BY_CATEGORY,
        _categories(overview),
        "## Never any falls as questions are added",
        FEWER,
        _queries(queries),
        "## Beside the published figures",
        BESIDE_PUBLISHED,
        _published(published),
        "## Deleting from the store changes little that is retrieved",
        DELETING,
        _identical(),
        _deletions(deletions),
    ]
    if not smoke:
        parts += ["## Beside an earlier measurement of the same files", BESIDE_EARLIER]
        parts.append(_agreement(agreement))
    return "\n\n".join(parts)


def _identical() -> str:
    pool, deleted, cutoff = 100, 10, 6
    return (
        f"Published: {IDENTICAL} of store randomizations leave the retrieval identical. The formula gives "
        f"{percent(unchanged_share(pool, deleted, cutoff))} where {deleted} of {pool} memories are deleted "
        f"and {cutoff} retrieved."
    )


def _reach(overview: pl.DataFrame) -> str:
    rows = []
    for row in overview.filter(pl.col("category") == "all").rows(named=True):
        missed = "–"
        if row["n_missed"]:
            share = percent(row["median_share_missed"])
            missed = f"{rank(row['median_rank_missed'])} of {rank(row['median_pool'])} ({share})"
        recall = " / ".join(percent(row[name]) for name in ("any_key_recall", "all_key_recall"))
        rows.append(
            [
                row["pool"],
                row["retriever"],
                percent(row["never_own"]),
                percent(row["never_any"]),
                count(row["n_keys"]),
                count(row["n_queries_asked"]),
                missed,
                f"{recall} of {count(row['n_labelled'])}",
                f"{percent(row['never_retrieved'])} of {count(row['n_memories'])}",
            ]
        )
    headers = ["never own", "never any", "key memories", "questions", "median rank of missed evidence"]
    recall_headers = ["any / every key in the top", "never retrieved, key or not"]
    return pipe_table(["pool", "retriever", *headers, *recall_headers], rows)


def _categories(overview: pl.DataFrame) -> str:
    parts = overview.filter((pl.col("category") != "all") & (pl.col("retriever") != UNSTEMMED))
    tier = pl.col("category").replace_strict({name: n for n, name in enumerate(TIERS)}, default=0)
    ordered = parts.sort(pl.col("pool") != SESSIONS, tier, maintain_order=True)
    rows = []
    for (pool, category), group in ordered.group_by(["pool", "category"], maintain_order=True):
        counts = [count(group["n_keys"][0]), count(group["n_labelled"][0])]
        shares = [_slashed(group[name]) for name in ("never_own", "never_any", "any_key_recall")]
        rows.append([f"{pool}, {category}", *counts, *shares])
    headers = ["key memories", "questions", "never own", "never any", "any key in the top"]
    return pipe_table(["pool, category", *headers], rows)


def _queries(queries: pl.DataFrame) -> str:
    rows = []
    for (pool, size), group in queries.group_by(["pool", "queries_a_scope"], maintain_order=True):
        means = group.group_by("retriever", maintain_order=True).agg(
            pl.len().alias("draws"), pl.col("n_queries", "n_keys", "never_own", "never_any").mean()
        )
        first = means.row(0, named=True)
        counts = [count(round(first[name])) for name in ("n_queries", "draws", "n_keys")]
        shares = [_slashed(means[name]) for name in ("never_own", "never_any")]
        rows.append([str(pool), "all" if size is None else f"{size}", *counts, *shares])
    headers = ["questions a conversation", "questions", "draws", "key memories", "never own", "never any"]
    return pipe_table(["pool", *headers], rows)


def _slashed(shares: pl.Series) -> str:
    """Return the shares of BM25, dense and fused in one cell."""
    return " / ".join(percent(share) for share in shares)


def _published(published: pl.DataFrame) -> str:
    return pipe_table(
        ["published: what", "figure", "ours: pool", "quantity", "figure by retriever"],
        (
            [claim, figure, pool, QUANTITIES[quantity], "; ".join(_ours(rows))]
            for (claim, figure, pool, quantity), rows in published.group_by(
                ["claim", "published", "pool", "quantity"], maintain_order=True
            )
        ),
    )


def _ours(rows: pl.DataFrame) -> Iterator[str]:
    for row in rows.rows(named=True):
        if row["median_pool"] is None:
            yield f"{row['retriever']} {percent(row['ours'])}"
        else:
            yield f"{row['retriever']} {rank(row['ours'])} of {rank(row['median_pool'])}"


def _deletions(deletions: pl.DataFrame) -> str:
    by = ["store", "share", "ranking"]
    strata = deletions.group_by(*by, "scope", maintain_order=True).agg(
        pl.col("n_queries", "n_unchanged").sum(),
        expected=(pl.col("expected") * pl.col("n_queries")).sum(),
        variance=pl.col("n_unchanged").var() * pl.len(),
        deletions=pl.len(),
    )
    totals = strata.group_by(by, maintain_order=True).agg(pl.col("*").exclude("scope").sum())
    rows = []
    for (store, share), group in totals.group_by(["store", "share"], maintain_order=True):
        first = group.row(0, named=True)
        formula = percent(first["expected"] / first["n_queries"])
        counts = [count(first["deletions"]), count(first["n_queries"])]
        measured = [_with_error(row) for row in group.rows(named=True)]
        rows.append(
            [str(store), f"{100 * share:g} %" if share else "one memory", formula, *measured, *counts]
        )
    rankings = deletions["ranking"].unique(maintain_order=True)
    return pipe_table(["store", "deleted", "formula", *rankings, "deletions", "trials"], rows)


def _with_error(row: dict[str, float]) -> str:
    error = sqrt(row["variance"]) / row["n_queries"]
    return f"{percent(row['n_unchanged'] / row['n_queries'])} ± {100 * error:.1f}"


def _agreement(agreement: pl.DataFrame) -> str:
    return pipe_table(
        [
            "pool, category",
            "retriever",
            "quantity",
            "ours",
            "earlier",
            "difference",
            "why, where more than a point",
        ],
        (
            [
                f"{row['pool']}, {row['category']}",
                row["retriever"],
                QUANTITIES[row["quantity"]],
                *_compared(row["quantity"], row["ours"], row["earlier"], row["difference"]),
                _reason(row),
            ]
            for row in agreement.rows(named=True)
        ),
    )


def _compared(quantity: str, ours: float | None, earlier: float, difference: float | None) -> list[str]:
    if quantity == "median_rank_missed":
        return [rank(ours), rank(earlier), "–" if difference is None else f"{difference:+g}"]
    return [percent(ours), percent(earlier), points(difference)]


def _reason(row: dict[str, object]) -> str:
    difference = row["difference"]
    if (
        not isinstance(difference, float)
        or abs(difference) <= ONE_POINT
        or row["quantity"] == "median_rank_missed"
    ):
        return ""
    return REASONS.get((str(row["pool"]), str(row["retriever"])), "unexplained")
