"""The true utilities of a world that was served: averages over the rounds that bear on each memory."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from cmp.design.cards import is_card
from cmp.log import Log
from cmp.simulation.contrasts import Listing
from cmp.simulation.worlds import Noise, World

__all__ = ["Served", "true_utilities"]


@dataclass(frozen=True, slots=True)
class Served:
    """A round that was asked: where, the level of its mean outcome, and who had been deleted before it."""

    scope: int
    query: int
    level: float
    gone: frozenset[str]


@dataclass(slots=True)
class _Sums:
    rounds: float = 0.0
    pool: float = 0.0
    card_rounds: float = 0.0
    card: float = 0.0


def true_utilities(
    world: World, noise: Noise, served: dict[str, Served], log: Log, *, slots: int, fills_cards: bool
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the truth by memory and by query.

    A row is a mean over the rounds in which the memory is eligible, of what its contrast is in that round's roster, at
    that round's level.

    Parameters
    ----------
    world, noise
        What was served.
    served
        By round id.
    log
        What came of it.
    slots
        ``B``.
    fills_cards
        Whether a card's slot goes to the next ranked.
    """
    rosters, planned, ks = _blocks(log)
    rounds = log.rounds().filter("randomized").select("round_id", "block_id").collect()
    # where means are not cut, the level changes no contrast
    kept = served if noise.is_cut else {name: replace(one, level=0.0) for name, one in served.items()}
    alike = Counter((block, kept[round_id]) for round_id, block in rounds.iter_rows())
    sums: dict[tuple[int, int, str], _Sums] = defaultdict(_Sums)
    listings: dict[Any, Listing] = {}
    found: dict[Any, list[tuple[str, float, float, float | None]]] = {}
    for (block, where), number in alike.items():
        roster, scope, query = rosters[block], world.scopes[where.scope], world.queries[where.query]
        ranking = world.rankings[scope, query]
        key = (roster, where.gone, ranking, ks[block])
        if key not in listings:
            listings[key] = Listing(
                roster,
                where.gone,
                _held(ranking, roster),
                slots=slots,
                k=ks[block],
                fills_cards=fills_cards,
            )
        if (key, where) not in found:
            found[key, where] = list(_rows(listings[key], world, noise, where))
        for memory, contrast, eligible, against_card in found[key, where]:
            if planned[block, memory]:
                _add(sums[where.scope, where.query, memory], number * eligible, contrast, against_card)
    return _frames(world, sums)


def _held(ranking: Iterable[str], roster: Iterable[str]) -> list[str]:
    """Return the ranking without those that had not come yet when the block was opened."""
    there = set(roster)
    return [memory for memory in ranking if memory in there]


def _blocks(log: Log) -> tuple[dict[str, tuple[str, ...]], dict[tuple[str, str], int], dict[str, int]]:
    rosters: dict[str, list[str]] = defaultdict(list)
    planned = {}
    for block, memory, number in (
        log.rosters().select("block_id", "memory_id", "planned").collect().iter_rows()
    ):
        rosters[block].append(memory)
        planned[block, memory] = number
    ks = dict(log.blocks().select("block_id", "k").collect().iter_rows())
    return {block: tuple(sorted(ids)) for block, ids in rosters.items()}, planned, ks


def _rows(
    listing: Listing, world: World, noise: Noise, where: Served
) -> Iterable[tuple[str, float, float, float | None]]:
    """Yield (memory, contrast with the pool, share of sets that are eligible, contrast with a card)."""
    means = listing.means(world.utility_of(where.scope, where.query), where.level, is_cut=noise.is_cut)
    found = listing.contrasts(means)
    n = len(listing.roster)
    rows = list(zip(listing.roster, found.contrast.tolist(), found.eligible.tolist(), strict=True))
    cards = [contrast for memory, contrast, _ in rows if is_card(memory)]
    for memory, contrast, eligible in rows:
        if eligible and not is_card(memory):
            yield memory, contrast, eligible, (n - 1) / n * (contrast - cards[0]) if cards else None


def _add(sums: _Sums, weight: float, contrast: float, against_card: float | None) -> None:
    sums.rounds += weight
    sums.pool += weight * contrast
    if against_card is not None:
        sums.card_rounds += weight
        sums.card += weight * against_card


def _frames(world: World, sums: dict[tuple[int, int, str], _Sums]) -> tuple[pl.DataFrame, pl.DataFrame]:
    rows = []
    for s, scope in enumerate(world.scopes):
        for q, query in enumerate(world.queries):
            for memory, own in world.utility_of(s, q).items():
                found = sums.get((s, q, memory), _Sums())
                rows.append(
                    (scope, query, memory, own, found.rounds, found.pool, found.card_rounds, found.card)
                )
    schema = {
        **dict.fromkeys(("scope", "group", "memory_id"), pl.String),
        **dict.fromkeys(("own", "rounds", "pool", "card_rounds", "card"), pl.Float64),
    }
    frame = pl.DataFrame(rows, schema=schema, orient="row")
    return _averaged(frame, ["scope", "memory_id"]), _averaged(frame, ["scope", "group", "memory_id"])


def _averaged(frame: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    def mean(total: str, weight: str) -> pl.Expr:
        return pl.when(pl.col(weight).sum() > 0).then(pl.col(total).sum() / pl.col(weight).sum())

    return frame.group_by(keys, maintain_order=True).agg(
        pl.col("own").mean().alias("true_own"),
        mean("pool", "rounds").alias("true_pool"),
        mean("card", "card_rounds").alias("true_card"),
        (pl.col("own") > 0).any().alias("key"),
        pl.col("rounds").sum().alias("eligible_rounds"),
    )
