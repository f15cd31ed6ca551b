"""Logs in which nothing has an effect, and the p-values of each test: the design is drawn anew in every one.

Outcomes are a function of uniform numbers: drawn in each log, or the same in all, evenly spaced and in one random
order. Then only the design is left to chance, which is all that an exact test asks for.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl
from scipy.special import gammaincinv, ndtri, stdtrit
from scipy.stats import binom

from cmp.estimation import estimate, utilities
from cmp.estimation.pairs import pair_utilities
from cmp.estimation.randomization import randomization_test
from cmp.foreign import from_frame
from experiments.worlds import Size, assignment

__all__ = ["NULL_TESTS", "OUTCOMES", "SEED", "NullTest"]

SEED = 20_261_203
#: Assignments and rearrangements drawn for one p-value; the least is then 1 / 1,000.
RESAMPLES = 999
#: Logs that are analysed in one call, each in a scope of its own.
SCOPES = 50

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
#: Outcomes of uniform numbers, at the level of each round: for two-valued ones the chance of success.
Outcome = Callable[[FloatArray, FloatArray], FloatArray]
#: P-values, shape (logs, memories), of the logs of one draw; the flag says whether outcomes are fixed.
PValues = Callable[[bool, list[int]], FloatArray]

PAPER, BLOCK, SHORT, PAIRED = Size(90, 32, 2), Size(32, 32, 2), Size(16, 8, 2), Size(240, 8, 2)
_RATING = binom(4, 0.35).cdf(np.arange(4))


def _binary(u: FloatArray, level: FloatArray) -> FloatArray:
    return (u < level).astype(np.float64)


def _normal(u: FloatArray, level: FloatArray) -> FloatArray:
    return np.asarray(level + ndtri(u))


def _student(u: FloatArray, level: FloatArray) -> FloatArray:
    return np.asarray(level + stdtrit(3.0, u))


def _lognormal(u: FloatArray, level: FloatArray) -> FloatArray:
    return np.asarray(level + np.exp(ndtri(u)))


def _rating(u: FloatArray, level: FloatArray) -> FloatArray:
    return level + np.searchsorted(_RATING, u) / 4.0


def _zero_inflated(u: FloatArray, level: FloatArray) -> FloatArray:
    return level + np.where(u < 0.8, 0.0, gammaincinv(2.0, np.clip(5.0 * u - 4.0, 0.0, 1.0)))


OUTCOMES: dict[str, Outcome] = {
    "binary": _binary, "normal": _normal, "t(3)": _student, "lognormal": _lognormal, "five-point rating": _rating,
    "zero in 80 % of rounds": _zero_inflated,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class NullTest:
    """A test, and logs to which its null applies."""

    test: str
    setting: str
    draw: PValues
    share: float = 1.0
    """Of the logs asked for: what takes long gets fewer, and what has few memories a log gets more."""
    logs_a_draw: int = 1

    def p_values(self, fixed: bool, draw: int) -> FloatArray:
        """Return the p-values of the logs of one draw, (logs, memories), NaN where undefined."""
        name = zlib.crc32(f"{self.test}, {self.setting}".encode())
        return self.draw(fixed, [SEED, name, int(fixed), draw])

    def draws(self, logs: int) -> int:
        """Return how many draws make as many logs, or the share of them that is this test's."""
        least = 2 if self.logs_a_draw == 1 else 1
        return max(least, math.ceil(self.share * logs / self.logs_a_draw))


def uniforms(n: int, fixed: bool, seed: list[int]) -> FloatArray:
    """Return n numbers in (0, 1): drawn, or evenly spaced in an order that is the same in every log."""
    if fixed:
        return np.random.default_rng([*seed[:2], n]).permutation((np.arange(n) + 0.5) / n)
    return np.random.default_rng([*seed, 1]).random(n)


def _blocks(size: Size, n_blocks: int, seed: list[int]) -> tuple[BoolArray, npt.NDArray[np.int64]]:
    """Return who is assigned in blocks of one size after another, and the block of each round."""
    tables = [assignment(size, [*seed, 10 + block]) for block in range(n_blocks)]
    return np.concatenate(tables), np.repeat(np.arange(n_blocks), size.rounds)


def _column(frame: pl.DataFrame) -> FloatArray:
    return frame["p_value"].fill_null(np.nan).to_numpy()


def of_tables(outcome: Outcome, size: Size, levels: tuple[float, ...]) -> PValues:
    """Return the p-values of a table of utilities; one block a level."""

    def draw(fixed: bool, seed: list[int]) -> FloatArray:
        assigned, block = _blocks(size, len(levels), seed)
        y = outcome(uniforms(len(assigned), fixed, seed), np.array(levels)[block])
        return _column(estimate(assigned, y, block).frame)[None]

    return draw


def of_randomization(outcome: Outcome, size: Size, levels: tuple[float, ...], memories: int) -> PValues:
    """Return the p-values of the randomization test, of the first few memories."""

    def draw(fixed: bool, seed: list[int]) -> FloatArray:
        assigned, block = _blocks(size, len(levels), seed)
        y = outcome(uniforms(len(assigned), fixed, seed), np.array(levels)[block])
        found = [
            randomization_test(y, assigned[:, m], block, draws=RESAMPLES, seed=seed[-1])
            for m in range(memories)
        ]
        return np.array([[np.nan if test is None else test.p_value for test in found]])

    return draw


def of_pairs(outcome: Outcome, size: Size, levels: tuple[float, ...], helper: float = 0.0) -> PValues:
    """Return the p-values of pairs: disjoint ones, or, where memory 0 helps, four that it is in."""
    pairs = [(0, 1), (0, 2), (0, 3), (0, 4)] if helper else [(0, 1), (2, 3), (4, 5), (6, 7)]

    def draw(fixed: bool, seed: list[int]) -> FloatArray:
        assigned, block = _blocks(size, len(levels), seed)
        level = np.array(levels)[block] + helper * assigned[:, 0]
        y = outcome(uniforms(len(assigned), fixed, seed), level)
        frame = pair_utilities(assigned, y, block, pairs=pairs, resamples=RESAMPLES, seed=seed[-1])
        return _column(frame)[None]

    return draw


def of_uniform_draws(outcome: Outcome, level: float, drift: float) -> PValues:
    """Return the p-values of a uniform design, its roster growing from 20 to 40, two drawn a round."""
    size = np.linspace(20, 40, 200).astype(np.int64)
    eligible = np.arange(40) < size[:, None]
    propensity = np.broadcast_to(2.0 / size[:, None], eligible.shape)

    def draw(fixed: bool, seed: list[int]) -> FloatArray:
        keys = np.where(eligible, np.random.default_rng([*seed, 0]).random(eligible.shape), 2.0)
        assigned = np.zeros(eligible.shape, dtype=bool)
        np.put_along_axis(assigned, np.argsort(keys, axis=1)[:, :2], values=True, axis=1)
        y = outcome(uniforms(200, fixed, seed), level + np.linspace(0.0, drift, 200))
        found = estimate(assigned, y, eligible=eligible, propensity=propensity, estimator="hajek")
        return _column(found.frame)[None]

    return draw


def of_episodes(outcome: Outcome, level: float, size: Size, longest: int, together: int = 1) -> PValues:
    """Return the p-values of logs whose episodes share an outcome.

    Parameters
    ----------
    outcome, level, size
        Of each log; rounds are those that are drawn.
    longest
        Episodes have 1 to so many of these, equally likely.
    together
        Rounds that share a draw, and an episode: whole episodes are drawn together.
    """
    rounds = size.rounds * together

    def draw(fixed: bool, seed: list[int]) -> FloatArray:
        drawn = np.stack([assignment(size, [*seed, scope]) for scope in range(SCOPES)]).repeat(
            together, axis=1
        )
        streams = [[*seed[:2], scope] if fixed else [*seed, scope] for scope in range(SCOPES)]
        ends = [
            np.cumsum(np.random.default_rng([*s, 2]).integers(1, longest + 1, size.rounds)) for s in streams
        ]
        episode = np.array([np.searchsorted(e, np.arange(size.rounds), side="right") for e in ends])
        episode = episode.repeat(together, axis=1)
        y = np.stack(
            [
                outcome(uniforms(rounds, fixed, s), np.full(rounds, level))[of]
                for s, of in zip(streams, episode, strict=True)
            ]
        )
        return _of_scopes(drawn, y, episode)

    return draw


def _of_scopes(drawn: BoolArray, y: FloatArray, episode: npt.NDArray[np.int64]) -> FloatArray:
    """Analyse logs of shape (S, T, N) in one call; return p-values (S, N)."""
    scopes, rounds, n = drawn.shape
    scope, row, memory = np.nonzero(drawn)
    chance = drawn.mean(axis=1)
    rows = pl.DataFrame(
        {
            "scope": scope, "round_id": scope * rounds + row, "memory_id": memory, "assigned": np.full(len(row), True),
            "propensity": chance[scope, memory], "outcome": y[scope, row],
            "episode": scope * rounds + episode[scope, row],
        }
    )  # fmt: skip
    roster = pl.DataFrame(
        {
            "scope": np.repeat(np.arange(scopes), n), "memory_id": np.tile(np.arange(n), scopes),
            "propensity": chance.ravel(),
        }
    )  # fmt: skip
    text = pl.col("scope").cast(pl.String)
    log = from_frame(
        rows.with_columns(text), roster=roster.with_columns(text), scope="scope", episode="episode"
    )
    frame = utilities(log).frame.select(pl.col("scope", "memory_id").cast(pl.Int64), "p_value")
    return _column(frame.sort("scope", "memory_id")).reshape(scopes, n)


_DRIFT, _RARE_DRIFT, _FLAT = (0.1, 0.2, 0.3, 0.35, 0.4, 0.5), (0.02, 0.03, 0.04, 0.05, 0.06, 0.1), (0.0,)
_STEPS = (0.0, 1.0, -1.0, 2.0, 0.5, 3.0)
_ONE, _SIX = f"{PAPER}", f"6 blocks of {BLOCK}, levels drift"
_FEW, _MORE = 0.25, 3.0

NULL_TESTS: list[NullTest] = [
    NullTest("exact", f"binary 30 %, {_ONE}", of_tables(_binary, PAPER, (0.3,))),
    NullTest("exact", f"binary 5 %, {_ONE}", of_tables(_binary, PAPER, (0.05,))),
    NullTest("exact in strata", f"binary 10 to 50 %, {_SIX}", of_tables(_binary, BLOCK, _DRIFT)),
    NullTest("exact in strata", f"binary 2 to 10 %, {_SIX}", of_tables(_binary, BLOCK, _RARE_DRIFT)),
    *(
        NullTest("moderated t", f"{kind}, {_ONE}", of_tables(outcome, PAPER, _FLAT))
        for kind, outcome in OUTCOMES.items()
        if kind != "binary"
    ),
    NullTest("moderated t", f"normal, {_SIX}", of_tables(_normal, BLOCK, _STEPS)),
    NullTest("moderated t", f"t(3), {_SIX}", of_tables(_student, BLOCK, _STEPS)),
    NullTest("randomization, listed", f"normal, {SHORT}", of_randomization(_normal, SHORT, _FLAT, 4), _MORE),
    NullTest("randomization, lattice", f"rating, {_ONE}", of_randomization(_rating, PAPER, _FLAT, 4), _MORE),
    NullTest("randomization, drawn", f"lognormal, {_ONE}", of_randomization(_lognormal, PAPER, _FLAT, 4), _MORE),
    NullTest("randomization, drawn", f"t(3), {_SIX}", of_randomization(_student, BLOCK, _STEPS, 4), _MORE),
    NullTest("pairs, enumerated", f"binary 30 %, {PAIRED}", of_pairs(_binary, PAIRED, (0.3,)), _FEW),
    NullTest(
        "pairs, enumerated",
        f"binary 10 %, one of the two adds .5, {PAIRED}",
        of_pairs(_binary, PAIRED, (0.1,), 0.5),
        _FEW,
    ),
    NullTest("pairs, rearranged", f"normal, {PAIRED}", of_pairs(_normal, PAIRED, _FLAT), _FEW),
    NullTest(
        "pairs, rearranged",
        f"t(3), one of the two adds 1, 4 blocks of {(part := Size(60, 8, 2))}",
        of_pairs(_student, part, _STEPS[:4], 1.0),
        _FEW,
    ),
    *(
        NullTest(
            "episodes", f"{kind}, {_ONE}, episodes of 1 to 4", of_episodes(outcome, level, PAPER, 4), 1.0, SCOPES
        )
        for kind, outcome, level in (
            ("normal", _normal, 0.0), ("t(3)", _student, 0.0), ("binary 30 %", _binary, 0.3),
            ("binary 5 %", _binary, 0.05),
        )
    ),
    *(
        NullTest(
            "episodes drawn together",
            f"{kind}, 60 episodes of 3, N=12, k=2",
            of_episodes(outcome, level, Size(60, 12, 2), 1, 3),
            1.0,
            SCOPES,
        )
        for kind, outcome, level in (("normal", _normal, 0.0), ("binary 30 %", _binary, 0.3))
    ),
    *(
        NullTest("uniform design", f"{kind}, T=200, N=20 to 40, k=2", of_uniform_draws(outcome, level, drift))
        for kind, outcome, level, drift in (
            ("normal", _normal, 0.0, 1.0), ("t(3)", _student, 0.0, 1.0), ("binary 20 to 40 %", _binary, 0.2, 0.2),
            ("binary 5 %", _binary, 0.05, 0.0),
        )
    ),
]  # fmt: skip
