"""One design and kind of outcome: many logs, their intervals, how often these cover."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from cmp.estimation import Utilities, estimate, utilities, utility_statistics
from experiments.designs import Design, design_world
from experiments.designs_draw import Batch, contrasts_of, draw_batch
from experiments.designs_log import frames_of
from experiments.worlds import KINDS

__all__ = ["METHODS", "Found", "cell_row", "episodes_of", "measure_design", "reader", "worst_of"]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

METHODS = ("auto", "neyman")
STATES = ("ESTIMATED", "UNDEREXPOSED", "NEVER_EXPOSED", "ALWAYS_RANKED", "NO_OUTCOMES")
#: Scopes are named for logs, memories for their places.
_ORDER = ("scope", "memory_id")
#: Cells of (round, memory) held at once.
PAIRS = 300_000
#: A memory's coverage among its estimates counts for the worst one if this share of its logs have one.
LEAST_SHARE = 0.2
#: Memories with fewer estimates say nothing of a bias.
LEAST_ESTIMATES = 30


@dataclass(frozen=True, slots=True)
class Found:
    """What a batch's analysis says, (S, M) each."""

    utility: FloatArray
    low: FloatArray
    high: FloatArray
    state: npt.NDArray[np.object_]


def measure_design(
    design: Design, kind: str, draws: int, seed: int, advance: Callable[[int], None]
) -> list[dict[str, Any]]:
    """Log a design's world ``draws`` times and put every method's intervals against the truth."""
    world = design_world(design, kind, seed)
    stream = [seed, zlib.crc32(design.key.encode()), list(KINDS).index(kind)]
    episodes = episodes_of(design, np.random.default_rng(stream))
    size = max(2, PAIRS // (design.rounds * design.memories))
    found: dict[str, list[Found]] = {method: [] for method in METHODS}
    seconds = dict.fromkeys(METHODS, 0.0)
    truths, parts = [], contrasts_of(design, world, episodes)
    for start in range(0, draws, size):
        logs = min(size, draws - start)
        batch = draw_batch(design, world, episodes, parts, logs, [*stream, start])
        begun = time.perf_counter()
        table_of = reader(design, batch, episodes)
        summing = time.perf_counter() - begun
        for method in METHODS:
            begun = time.perf_counter()
            found[method].append(_found(table_of(method), batch.truth.shape))
            seconds[method] += summing + time.perf_counter() - begun
        truths.append(batch.truth)
        advance(logs)
    truth, even = np.concatenate(truths), batch.even_truth
    return [
        {
            "design": design.key, "kind": kind, "memories": design.memories, "k": design.k, "rounds": design.rounds,
            "blocks": len(design.blocks), "method": method, "draws": draws,
            **cell_row(_joined(found[method]), truth, even),
            "milliseconds_a_log": 1000 * seconds[method] / draws,
        }
        for method in METHODS
    ]  # fmt: skip


def episodes_of(design: Design, rng: np.random.Generator) -> IntArray:
    """Return which rounds share an outcome, (T,): runs of 1 to the longest, equally likely, inside blocks."""
    if design.longest == 1:
        return np.arange(design.rounds)
    starts = np.diff(design.block_of_round, prepend=-1) > 0
    left = 0
    for row in range(design.rounds):
        if starts[row] or left == 0:
            starts[row] = True
            left = int(rng.integers(1, design.longest + 1))
        left -= 1
    found: IntArray = np.cumsum(starts) - 1
    return found


def reader(design: Design, batch: Batch, episodes: IntArray) -> Callable[[str], pl.DataFrame]:
    """Return a function of an interval's name that gives a batch's table: what a user calls.

    Logs are summed up once for all intervals, unless rounds share outcomes: then each interval goes through episodes.
    """
    if design.weighted:
        return lambda method: pl.concat(
            [_weighted(design, batch, place, method).frame for place in range(len(batch.tables))]
        )
    log, reference = frames_of(design, batch, episodes), "card" if design.cards else "pool"
    if design.longest > 1:
        return lambda method: utilities(log, interval=method, reference=reference).frame.sort(_ORDER)
    sums = utility_statistics(log, reference=reference)
    return lambda method: sums.utilities(interval=method).frame.sort(_ORDER)


def _weighted(design: Design, batch: Batch, place: int, method: str) -> Utilities:
    """Return one log's, all of it one stratum: Hajek's estimator on arrays."""
    rosters = design.rosters[design.block_of_round]
    drawn = np.zeros(rosters.shape, dtype=bool)
    np.put_along_axis(drawn, batch.tables[place], values=True, axis=1)
    return estimate(
        drawn,
        batch.outcomes[place],
        eligible=rosters,
        propensity=np.broadcast_to(design.k / rosters.sum(axis=1)[:, None], rosters.shape),
        estimator="hajek",
        interval=method,
    )


def _found(table: pl.DataFrame, shape: tuple[int, ...]) -> Found:
    utility, low, high = (
        table[name].fill_null(np.nan).to_numpy().reshape(shape) for name in ("utility", "ci_low", "ci_high")
    )
    return Found(utility, low, high, table["state"].to_numpy().reshape(shape))


def _joined(parts: list[Found]) -> Found:
    return Found(
        *(
            np.concatenate([getattr(one, name) for one in parts])
            for name in ("utility", "low", "high", "state")
        )
    )


def cell_row(found: Found, truth: FloatArray, even: FloatArray) -> dict[str, Any]:
    """Return coverage, width and states of one method in one cell.

    Parameters
    ----------
    found
        Of S logs.
    truth
        Shape (S, M), what each estimate is of.
    even
        Shape (M,), the mean over all rounds.

    An undefined interval does not cover, and is not in the mean half width.
    """
    with np.errstate(invalid="ignore"):
        covered = (found.low <= truth) & (truth <= found.high)
        covers_even = (found.low <= even) & (even <= found.high)
    half = (found.high - found.low) / 2
    logs, memories = truth.shape
    estimated = found.state == "ESTIMATED"
    times = estimated.sum(axis=0)
    own = (covered & estimated).sum(axis=0) / np.maximum(times, 1)
    often = times >= LEAST_SHARE * logs
    by_memory, by_log = covered.mean(axis=0), covered.mean(axis=1)
    expected, floor = worst_of(memories, logs)
    own_floor = worst_of(int(often.sum()), int(times[often].min()))[1] if often.any() else 0.0
    shares = {f"share_{state.lower()}": float((found.state == state).mean()) for state in STATES}
    return {
        "mean_coverage": float(by_memory.mean()), "mean_coverage_se": float(by_log.std(ddof=1) / np.sqrt(logs)),
        "worst_coverage": float(by_memory.min()), "worst_expected_of_95": expected, "worst_floor": floor,
        "mean_half_width": float(np.nanmean(half)) if np.isfinite(half).any() else None,
        "undefined_share": float(np.isnan(half).mean()), **shares,
        "estimated_coverage": float((covered & estimated).sum() / times.sum()) if times.any() else None,
        "estimated_worst": float(own[often].min()) if often.any() else None, "estimated_floor": own_floor,
        "coverage_of_mean_over_rounds": None if np.isnan(even).all() else float(covers_even.mean()),
        "largest_z_against_truth": _largest_z(found.utility - truth),
    }  # fmt: skip


def worst_of(memories: int, draws: int) -> tuple[float, float]:
    """Return what the worst of so many coverages of .95 is half the time, and below what in one cell of a hundred.

    Memories are taken to be independent, which errs towards a low limit only by what they are not.
    """
    from scipy.special import bdtr

    at_most = bdtr(np.arange(draws + 1), draws, 0.95)
    one_of = [1 - (1 - chance) ** (1 / memories) for chance in (0.5, 0.01)]
    median, low = (np.searchsorted(at_most, one_of) / draws).tolist()
    return median, low


def _largest_z(gap: FloatArray) -> float | None:
    """Return the largest mean error in standard errors, over memories with estimates enough to say."""
    n = np.isfinite(gap).sum(axis=0)
    enough = gap[:, n >= LEAST_ESTIMATES]
    if enough.shape[1] == 0:
        return None
    n = np.isfinite(enough).sum(axis=0)
    error = np.nanstd(enough, axis=0, ddof=1) / np.sqrt(n)
    z = np.abs(np.nanmean(enough, axis=0)) / np.where(error > 0, error, np.inf)
    return float(z.max())
