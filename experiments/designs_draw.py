"""Logs of a design, many at once, and what their estimates are of."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cmp.design import plan_block
from experiments.designs import RANKED_SLOTS, WITHHELD, Design
from experiments.designs_withheld import Shown, lay_out_all, withheld_contrasts
from experiments.worlds import World, contrasts

__all__ = ["Batch", "contrasts_of", "draw_batch", "draw_tables", "round_contrasts"]

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Batch:
    """S logs of one design."""

    tables: IntArray
    """(S, T, k) who was drawn."""
    planned: IntArray
    """(S, B, N) exposures planned in each block's table."""
    outcomes: FloatArray
    """(S, T), NaN where missing."""
    shown: Shown | None
    """Who else was in the context, where memories are ranked too."""
    truth: FloatArray
    """(S, M) what each estimate is of, strata weighted as the estimate weights them; memories only, no cards."""
    even_truth: FloatArray
    """(M,) the mean over all rounds in which the memory may be drawn, whatever is missing; NaN if not of one kind."""


def draw_batch(
    design: Design, world: World, episodes: IntArray, parts: list[FloatArray], logs: int, seed: list[int]
) -> Batch:
    """Draw logs, and work out the truth of each given its counts.

    Parameters
    ----------
    design, world
        Of each other.
    episodes
        Shape (T,), codes; all different where rounds have outcomes of their own.
    parts
        What :func:`contrasts_of` returns of the same.
    logs
        S.
    seed
        Assignments, noise and missing outcomes have streams of their own.
    """
    chance, noise, gaps = (np.random.default_rng([*seed, stream]) for stream in range(3))
    tables, planned = draw_tables(design, logs, chance)
    drawn = np.zeros((logs, design.rounds, design.memories), dtype=bool)
    np.put_along_axis(drawn, tables, values=True, axis=2)
    shown = lay_out_all(drawn, queries(design), chance) if design.withheld else None
    mean = world.level + (drawn if shown is None else shown.in_context) @ world.effect
    if design.longest > 1:
        size = np.bincount(episodes)
        codes = np.arange(logs)[:, None] * len(size) + episodes
        mean = (np.bincount(codes.ravel(), mean.ravel()).reshape(logs, -1) / size)[:, episodes]
    mean = np.clip(mean, 0.0, 1.0) if world.bounded else mean
    if design.longest > 1:
        first = np.unique(episodes, return_index=True)[1]
        of_episode = world.noise(mean[:, first].ravel(), noise).reshape(logs, -1)
        outcomes = of_episode[:, episodes]
    else:
        outcomes = world.noise(mean.ravel(), noise).reshape(mean.shape)
    known = gaps.random(mean.shape) >= chance_missing(design, world.level)
    outcomes = np.where(known, outcomes, np.nan)
    truth = _truth(design, drawn, known, shown, parts)[:, design.cards :]
    return Batch(tables, planned, outcomes, shown, truth, _even_truth(design, parts)[design.cards :])


def contrasts_of(design: Design, world: World, episodes: IntArray) -> list[FloatArray]:
    """Return each round's contrasts, (T, N): those of drawing a memory, and those of withholding it if any are."""
    if design.withheld:
        return list(withheld_contrasts(world, queries(design), design.k))
    return [round_contrasts(design, world, episodes)]


def draw_tables(design: Design, logs: int, rng: np.random.Generator) -> tuple[IntArray, IntArray]:
    """Return who is drawn in the rounds used, (S, T, k), and what each block planned, (S, B, N)."""
    n, k = design.memories, design.k
    if design.uniform:
        rosters = design.rosters
        keys = np.where(rosters[design.block_of_round], rng.random((logs, design.rounds, n)), 2.0)
        tables = np.argpartition(keys, k - 1, axis=2)[:, :, :k]
        return tables, np.broadcast_to(np.where(rosters, k, 0), (logs, *rosters.shape))
    tables = np.empty((logs, design.rounds, k), dtype=np.int64)
    planned = np.empty((logs, len(design.blocks), n), dtype=np.int64)
    for log in range(logs):
        before, row = np.zeros(n, dtype=np.int64), 0
        for nth, (length, used) in enumerate(design.blocks):
            block = plan_block(n, k, length, rng, before)
            assert block.table is not None
            tables[log, row : row + used] = block.table[:used]
            planned[log, nth] = block.planned
            before, row = before + block.planned, row + used
    return tables, planned


def queries(design: Design) -> IntArray:
    """Return which of the queries each round asks, (T,): in turn, as many as there are sets of ranked memories."""
    found: IntArray = np.arange(design.rounds) % (design.memories // (RANKED_SLOTS + WITHHELD))
    return found


def chance_missing(design: Design, level: FloatArray) -> FloatArray:
    """Return the probability that a round's outcome goes missing, (T,)."""
    if design.missing == "level":
        rank: FloatArray = np.argsort(np.argsort(level, kind="stable"), kind="stable").astype(np.float64)
        return 0.4 * rank / (len(level) - 1)
    return np.full(len(level), 0.2 if design.missing == "random" else 0.0)


def round_contrasts(design: Design, world: World, episodes: IntArray) -> FloatArray:
    """Return E[outcome | drawn in the round] - E[outcome | not drawn in it], (T, N).

    In an episode of s rounds a draw counts 1/s, and makes one more draw in another of its rounds less likely: given a
    memory's count, by 1 / (L - 1).

    Against cards it is (N - 1)/N times the difference from a card's.
    """
    rosters = design.rosters[design.block_of_round]
    if design.longest == 1:
        tau = contrasts(world.level, world.effect, design.k, bounded=world.bounded, present=rosters)
    else:  # means are capped, so that they are additive
        tau = contrasts(world.level, world.effect, design.k, bounded=False, present=rosters)
        size = np.bincount(episodes)[episodes]
        length = np.array([length for length, _ in design.blocks])[design.block_of_round]
        tau = tau * ((1.0 - (size - 1.0) / (length - 1.0)) / size)[:, None]
    if design.cards:
        n = design.memories
        tau = (n - 1) / n * (tau - tau[:, :1])
    return tau


def _even_truth(design: Design, parts: list[FloatArray]) -> FloatArray:
    if design.withheld:
        return np.full(design.memories, np.nan)
    rosters = design.rosters[design.block_of_round]
    even: FloatArray = (parts[0] * rosters).sum(axis=0) / rosters.sum(axis=0)
    return even


def _truth(
    design: Design, drawn: BoolArray, known: BoolArray, shown: Shown | None, parts: list[FloatArray]
) -> FloatArray:
    """Weight strata as the estimate does: given its counts, each is unbiased for its rounds with an outcome."""
    if shown is not None:
        arms = ((drawn & ~shown.ranked, ~drawn & ~shown.ranked), (shown.kept, shown.withheld))
        return _combined([_stratum(one, none, of) for (one, none), of in zip(arms, parts, strict=True)])
    tau = parts[0]
    present = design.rosters[design.block_of_round]
    if design.weighted:
        rounds = np.broadcast_to(present, drawn.shape)
        weighted: FloatArray = (rounds * tau).sum(axis=1) / rounds.sum(axis=1)
        return weighted
    found = []
    for block, roster in enumerate(design.rosters):
        rows = design.block_of_round == block
        seen = known[:, rows, None] & roster
        found.append(_stratum(drawn[:, rows] & seen, ~drawn[:, rows] & seen, tau[rows]))
    return _combined(found)


def _stratum(exposed: BoolArray, control: BoolArray, tau: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return a stratum's weight n1 n0 / (n1 + n0), and its mean contrast over the rounds of both arms; (S, N) each."""
    n1, n0 = exposed.sum(axis=1), control.sum(axis=1)
    n = np.maximum(n1 + n0, 1)
    total = np.einsum("stn,tn->sn", exposed | control, tau)
    return n1 * n0 / n, total / n


def _combined(strata: list[tuple[FloatArray, FloatArray]]) -> FloatArray:
    """Return the weighted mean over strata; NaN where none holds both arms."""
    weight = sum(weight for weight, _ in strata)
    total = sum(weight * tau for weight, tau in strata)
    with np.errstate(invalid="ignore"):
        found: FloatArray = np.asarray(total) / np.asarray(weight)
    return found
