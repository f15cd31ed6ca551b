"""Looking at every block: how often a confidence sequence, and how often the usual interval, leaves out the truth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cmp.estimation import estimate
from cmp.estimation.cells import Arm, Cells
from cmp.estimation.estimators import combine_strata
from cmp.estimation.intervals import confidence_limits
from cmp.estimation.moments import Moments
from cmp.estimation.outcome_sums import OutcomeSums, sum_outcomes
from cmp.estimation.sequences import confidence_sequence
from experiments.validity_nulls import SEED
from experiments.validity_tallies import holds, share_of_logs
from experiments.worlds import Size, assignment

__all__ = [
    "ALPHA", "KINDS", "LOOKS", "STREAMS", "TABLE", "TABLE_LOOKS", "WIDTHS_AT", "Stream", "crossing", "measure_stream",
    "measure_tables",
]  # fmt: skip

ALPHA = 0.05
LOOKS = 500
#: Looks at which widths are told.
WIDTHS_AT = (10, 50, 500)
#: Controls for each exposure of a block.
CONTROLS = 15
#: Sequences that are simulated, and share the prior of the fixed-time interval, at once.
AT_ONCE = 250
#: Tables of memories that share their rounds: blocks of 25 rounds, two exposures each.
TABLE, TABLE_LOOKS, BLOCKS_A_LOOK = Size(25, 100, 8), 40, 3

FloatArray = npt.NDArray[np.float64]
Limits = tuple[FloatArray, FloatArray]


@dataclass(frozen=True, slots=True)
class Stream:
    """A memory's outcomes, block after block: what it adds is the truth, and levels may drift."""

    kind: str
    exposures: int
    """A block, beside 15 controls for each."""
    drifts: bool = False
    effect: float = 0.0

    def draw(self, count: int, looks: int, rng: np.random.Generator) -> FloatArray:
        """Return outcomes of shape (count, looks, rounds of a block), exposed rounds first."""
        rounds = self.exposures * (1 + CONTROLS)
        wave = np.sin(np.arange(looks) / 8.0) if self.drifts else np.zeros(looks)
        added = self.effect * (np.arange(rounds) < self.exposures)
        return draw_outcomes(self.kind, wave[:, None] + np.zeros(rounds), added, count, rng)


def draw_outcomes(
    kind: str, wave: FloatArray, added: npt.NDArray[Any] | float, count: int, rng: np.random.Generator
) -> FloatArray:
    """Return outcomes of shape (count, *wave.shape): levels move with a wave in [-1, 1], effects are added."""
    shape = (count, *wave.shape)
    if kind.startswith("binary"):
        base = float(kind.split()[1]) / 100.0
        success: FloatArray = (rng.random(shape) < base * (1.0 + 0.8 * wave) + added).astype(np.float64)
        return success
    noise: dict[str, Callable[[tuple[int, ...]], FloatArray]] = {
        "normal": rng.standard_normal,
        "t(3)": lambda size: rng.standard_t(3.0, size),
        "lognormal": lambda size: rng.lognormal(size=size),
    }
    y: FloatArray = noise[kind](shape) + 2.0 * wave + added
    return y


KINDS = ("binary 5 %", "binary 30 %", "normal", "t(3)", "lognormal")
STREAMS = [
    *(Stream(kind, n, drifts) for kind in KINDS for n in (1, 2) for drifts in (False, True)),
    Stream("binary 30 %", 2, drifts=True, effect=0.2),
]


def measure_stream(
    stream: Stream, count: int, looks: int, number: int, advance: Callable[[int], None]
) -> list[dict[str, Any]]:
    """Look at ``count`` memories after every block; return one row.

    Parameters
    ----------
    stream
        What is logged.
    count, looks
        Memories, each with rounds of its own, and blocks.
    number
        Of the stream, for its seed.
    advance
        Told of memories done.
    """
    sequence, usual = [], []
    for start in range(0, count, AT_ONCE):
        some = min(AT_ONCE, count - start)
        rng = np.random.default_rng([SEED, 1, number, start])
        y = stream.draw(some, looks, rng)
        sequence.append(sequence_limits_at_looks(y, stream.exposures))
        usual.append(usual_limits_at_looks(y, stream.exposures))
        advance(some)
    row: dict[str, Any] = {
        "outcomes": stream.kind, "exposures": stream.exposures, "drifts": stream.drifts, "truth": stream.effect,
        "memories": count, "looks": looks,
    }  # fmt: skip
    for name, parts in (("sequence", sequence), ("usual", usual)):
        low, high = (np.concatenate(side) for side in zip(*parts, strict=True))
        row |= crossing(low, high, stream.effect, name)
        for look in WIDTHS_AT:
            row[f"{name}_half_width_{look}"] = _mean_half_width(low, high, look)
    return [row | {"holds": holds(row["sequence_share"], ALPHA, row["sequence_error"])}]


def crossing(low: FloatArray, high: FloatArray, truth: float, name: str) -> dict[str, float]:
    """Return the share of memories whose limits, (M, looks), ever leave out the truth; each a log of its own."""
    out = np.any((low > truth) | (high < truth), axis=1, keepdims=True)
    found = share_of_logs(out, np.ones_like(out), ALPHA)
    return {f"{name}_share": found["share"], f"{name}_error": found["error"]}


def _mean_half_width(low: FloatArray, high: FloatArray, look: int) -> float | None:
    if look > low.shape[1]:
        return None
    half = (high[:, look - 1] - low[:, look - 1]) / 2.0
    return float(np.nanmean(half)) if np.isfinite(half).any() else None


def sequence_limits_at_looks(y: FloatArray, exposures: int) -> Limits:
    """Return the confidence sequence of each memory, (S, looks), from outcomes (S, looks, rounds)."""
    exposed, control = y[..., :exposures], y[..., exposures:]
    gaps = exposed.mean(axis=-1) - control.mean(axis=-1)
    variances = control.var(axis=-1, ddof=1) * (1.0 / exposures + 1.0 / control.shape[-1])
    found = [
        confidence_sequence(gap, variances=one, level=1.0 - ALPHA)
        for gap, one in zip(gaps, variances, strict=True)
    ]
    return np.array([one.low for one in found]), np.array([one.high for one in found])


def usual_limits_at_looks(y: FloatArray, exposures: int) -> Limits:
    """Return the interval that ``"auto"`` gives after each block, as if it were the only look, (S, looks).

    It is that of one table of all S memories: the sums of a block are added to those of the blocks before it.
    """
    count, looks, rounds = y.shape
    family, of_round = np.zeros(count, dtype=np.int64), np.zeros(count * rounds, dtype=np.int64)
    low, high = np.empty((count, looks)), np.empty((count, looks))
    so_far: tuple[Moments, OutcomeSums] | None = None
    for look in range(looks):
        cells = _cells(y[:, look], exposures, look)
        moments = combine_strata(cells, count, estimator="difference", weights="precision").moments
        described = sum_outcomes(y[:, look].ravel(), np.repeat(np.arange(count), rounds), of_round, 1)
        so_far = (moments, described) if so_far is None else (so_far[0] + moments, so_far[1] + described)
        found = confidence_limits(
            so_far[0],
            outcomes=so_far[1].described().of(family),
            family=family,
            interval="auto",
            level=1.0 - ALPHA,
        )
        low[:, look], high[:, look] = found.low, found.high
    return low, high


def _cells(y: FloatArray, exposures: int, look: int) -> Cells:
    """Sum one block's outcomes, (S, rounds), up."""
    least = y.min(axis=1)
    d = y - least[:, None]
    exposed, control = (
        Arm.unweighted(
            np.full(len(y), float(part.shape[1])), np.zeros(len(y)), part.sum(axis=1), (part**2).sum(axis=1)
        )
        for part in (d[:, :exposures], d[:, exposures:])
    )
    memory, unknown = np.arange(len(y)), np.full(len(y), np.nan)
    return Cells.unweighted(memory, least, unknown, exposed, control, place=np.full(len(y), look))


def measure_tables(
    kind: str, tables: int, looks: int, advance: Callable[[int], None]
) -> list[dict[str, Any]]:
    """Look at tables of 100 memories that share their rounds, every three blocks; return one row."""
    crossed: dict[str, list[npt.NDArray[np.bool_]]] = {"sequence": [], "auto": []}
    for number in range(tables):
        seed = [SEED, 2, KINDS.index(kind), number]
        blocks = looks * BLOCKS_A_LOOK
        assigned = np.concatenate([assignment(TABLE, [*seed, block]) for block in range(blocks)])
        block = np.repeat(np.arange(blocks), TABLE.rounds)
        wave = np.sin(block / 8.0)
        y = draw_outcomes(kind, wave, 0.0, 1, np.random.default_rng([*seed, blocks, 1]))[0]
        out = {name: np.zeros(TABLE.memories, dtype=bool) for name in crossed}
        for look in range(BLOCKS_A_LOOK, blocks + 1, BLOCKS_A_LOOK):
            rows = block < look
            for name, ever in out.items():
                frame = estimate(assigned[rows], y[rows], block[rows], interval=name, level=1.0 - ALPHA).frame
                low, high = (frame[side].fill_null(np.nan).to_numpy() for side in ("ci_low", "ci_high"))
                ever |= (low > 0.0) | (high < 0.0)
        for name, ever in out.items():
            crossed[name].append(ever)
        advance(1)
    row: dict[str, Any] = {
        "outcomes": kind, "tables": tables, "memories": TABLE.memories * tables, "looks": looks,
    }  # fmt: skip
    for name, title in (("sequence", "sequence"), ("auto", "usual")):
        ever = np.array(crossed[name])
        found = share_of_logs(ever, np.ones_like(ever), ALPHA)
        row |= {f"{title}_share": found["share"], f"{title}_error": found["error"]}
    return [row | {"holds": holds(row["sequence_share"], ALPHA, row["sequence_error"])}]
