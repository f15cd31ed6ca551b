"""Every design a log can hold, and worlds with known utilities for each.

A design fixes blocks, rosters, episodes and what may go missing; a log draws assignments, noise and missing outcomes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from experiments.worlds import RATES, Size, World, make_world

__all__ = ["DESIGNS", "KIND_NAMES", "Design", "design_world", "kinds_of"]

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]

#: Kinds of outcome (see :data:`experiments.worlds.KINDS`) in words that fit a table's head.
KIND_NAMES = {
    "binary": "binary", "tenth": "binary, 10 %", "rare": "binary, 5 %", "rare-null": "binary, 5 %, no effects",
    "continuous": "normal", "heavy": "t(3)", "lognormal": "lognormal",
}  # fmt: skip
#: Ranked slots of a context, and how many of these are withheld, where a design withholds.
RANKED_SLOTS, WITHHELD = 3, 1


@dataclass(frozen=True, slots=True)
class Design:
    """Who is drawn when, and what of it the analysis sees."""

    key: str
    title: str
    memories: int
    k: int
    blocks: tuple[tuple[int, int], ...]
    """Rounds of each block's table, and how many of these are used."""
    drift: bool = False
    """Whether levels rise from block to block."""
    uniform: bool = False
    """Whether every round draws on its own, not from a table."""
    first_roster: int | None = None
    """Memories in the first block's roster; each later block has one more, up to all. None: all from the start."""
    longest: int = 1
    """Rounds of the longest episodes, which lie inside blocks; 1: rounds have outcomes of their own."""
    cards: int = 0
    """How many of the memories are blank cards, which utilities are then relative to."""
    withheld: bool = False
    """Whether ranked memories are in the context beside those drawn, of which chance withholds some."""
    missing: str = "none"
    """``"random"``: a fifth of outcomes; ``"level"``: of rounds with the highest level more, the lowest none."""
    weighted: bool = False
    """Whether all rounds are one stratum, weighted by their propensities (Hajek)."""
    kinds: tuple[str, ...] = ("binary", "rare", "continuous", "heavy", "lognormal")
    share: float = 1.0
    """Of the logs asked for, how many are drawn."""
    step: float = 0.45
    """What a memory with an effect adds to a binary outcome's mean."""
    capped: bool = False
    """Whether levels leave room for effects, so that binary means are additive and never cut."""
    block_of_round: IntArray = field(init=False, repr=False, compare=False)
    """(T,)"""

    def __post_init__(self) -> None:
        used = [rounds for _, rounds in self.blocks]
        object.__setattr__(self, "block_of_round", np.repeat(np.arange(len(used)), used))

    @property
    def rounds(self) -> int:
        """T, rounds used."""
        return len(self.block_of_round)

    @property
    def rosters(self) -> BoolArray:
        """(B, N) who may be drawn in each block."""
        first = self.memories if self.first_roster is None else self.first_roster
        size = np.minimum(first + np.arange(len(self.blocks)), self.memories)
        present: BoolArray = np.arange(self.memories) < size[:, None]
        return present

    def draws(self, asked: int) -> int:
        """Return how many logs this design gets."""
        return max(2, round(asked * self.share))


def _growing(rounds: int, first: int, last: int) -> tuple[tuple[int, int], ...]:
    """Return blocks that end whenever a roster that grows evenly has one memory more."""
    size = np.linspace(first, last, rounds).astype(int)
    ends = [0, *(np.flatnonzero(np.diff(size)) + 1).tolist(), rounds]
    return tuple((end - start, end - start) for start, end in pairwise(ends))


_FOUR = ("binary", "rare", "continuous", "heavy")
_NULL = (*_FOUR, "lognormal", "rare-null")
_EPISODES = ("binary", "tenth", "rare", "rare-null", "continuous", "heavy", "lognormal")
_GROWING = _growing(200, 20, 40)

DESIGNS = (
    Design("one-4", "N = 4, k = 1, T = 22", 4, 1, ((22, 22),)),
    Design("one-8", "N = 8, k = 2, T = 22", 8, 2, ((22, 22),)),
    Design("one-32", "N = 32, k = 3, T = 60", 32, 3, ((60, 60),), kinds=_NULL),
    Design("one-100", "N = 100, k = 3, T = 183", 100, 3, ((183, 183),)),
    Design("one-500", "N = 500, k = 5, T = 550", 500, 5, ((550, 550),), kinds=_FOUR, share=4.0),
    Design("strata-3x32", "3 blocks of 32 rounds", 32, 2, ((32, 32),) * 3, drift=True, kinds=_NULL),
    Design("strata-8x32", "8 blocks of 32", 32, 2, ((32, 32),) * 8, drift=True, kinds=_NULL),
    Design("strata-20x16", "20 blocks of 16", 32, 2, ((16, 16),) * 20, drift=True, kinds=_NULL),
    Design("strata-6x16", "6 blocks of 16", 32, 2, ((16, 16),) * 6, drift=True, kinds=_NULL),
    Design("partial-90", "90 rounds, then 30 of 90", 32, 2, ((90, 90), (90, 30)), drift=True),
    Design("partial-32", "3 blocks of 32, then 11 of 32", 32, 2, (*((32, 32),) * 3, (32, 11)), drift=True),
    Design("partial-16", "6 blocks of 16, then 5 of 16", 32, 2, (*((16, 16),) * 6, (16, 5)), drift=True),
    Design("partial-only", "one block, 90 rounds of 270", 32, 2, ((270, 90),)),
    Design("episodes-3", "90 rounds, episodes of 1 to 3", 32, 2, ((90, 90),), longest=3, kinds=_EPISODES, capped=True,
           step=0.3),
    Design("episodes-5", "90 rounds, episodes of 1 to 5", 32, 2, ((90, 90),), longest=5, kinds=_EPISODES, capped=True,
           step=0.3),
    Design("episodes-3x32", "3 blocks of 32, episodes of 1 to 5", 32, 2, ((32, 32),) * 3, drift=True, longest=5,
           kinds=_EPISODES, capped=True, step=0.3),
    Design("uniform-32", "N = 32, T = 90", 32, 2, ((90, 90),), uniform=True, kinds=_NULL),
    Design("growing-blocks", "20 to 40 memories, T = 200, by block", 40, 2, _GROWING, drift=True, uniform=True,
           first_roster=20),
    Design("growing-weighted", "20 to 40 memories, T = 200, weighted", 40, 2, _GROWING, drift=True, uniform=True,
           first_roster=20, weighted=True),
    Design("cards-3", "3 cards and 29 memories, T = 96", 32, 2, ((96, 96),), cards=3, capped=True, step=0.25),
    Design("cards-6", "6 cards and 26 memories, T = 96", 32, 2, ((96, 96),), cards=6, capped=True, step=0.25),
    Design("withheld", "1 of 3 ranked withheld, T = 96", 32, 2, ((96, 96),), withheld=True, step=0.25),
    Design("missing-random", "a fifth missing, T = 112", 32, 2, ((112, 112),), missing="random", kinds=_NULL),
    Design("missing-level", "a fifth missing, by level, T = 112", 32, 2, ((112, 112),), missing="level"),
)  # fmt: skip

#: What each heading of the page shows, by the first word of a design's key.
FAMILIES = {
    "one": "One block, 5 or 6 exposures a memory",
    "strata": "Blocks with drift between them, N = 32, k = 2",
    "partial": "A last block that stops at a third, N = 32, k = 2",
    "episodes": "Episodes whose rounds share one outcome, N = 32, k = 2",
    "uniform": "Uniform design, k = 2",
    "growing": "Uniform design, rosters that grow, k = 2",
    "cards": "Utilities against reference cards, k = 2",
    "withheld": "Drawn and withheld, N = 32, k = 2",
    "missing": "Outcomes missing, N = 32, k = 2",
}

#: How far levels move from the first block to the last, for outcomes in [0, 1], for others; and rare ones' range.
_DRIFT_BOUNDED, _DRIFT, _DRIFT_OF_RATE = 0.3, 1.0, (0.4, 1.6)


def kinds_of(designs: tuple[Design, ...] = DESIGNS) -> list[str]:
    """Return every kind that some design has, in the order of :data:`KIND_NAMES`."""
    return [kind for kind in KIND_NAMES if any(kind in design.kinds for design in designs)]


def design_world(design: Design, kind: str, seed: int) -> World:
    """Return the world of a design and kind of outcome: levels and effects are fixed, from streams of their own."""
    plain = make_world(kind, Size(design.rounds, design.memories, design.k), seed)
    step = plain.effect.max() if kind in RATES else min(design.step, float(plain.effect.max()))
    effect = np.where(plain.effect > 0, step, 0.0) if plain.bounded else plain.effect.copy()
    if design.cards:
        effect = np.append(np.zeros(design.cards), effect[: design.memories - design.cards])
    level = plain.level
    if design.drift:
        level = _drifted(level, design, kind, bounded=plain.bounded)
    elif design.missing == "level" and kind in RATES:
        level = RATES[kind] * np.linspace(*_DRIFT_OF_RATE, design.rounds)
    if design.capped and plain.bounded:
        level = np.minimum(level, 1.0 - design.k * float(effect.max()))
    return World(plain.size, level, effect, plain.bounded, plain.noise)


def _drifted(level: FloatArray, design: Design, kind: str, *, bounded: bool) -> FloatArray:
    place = design.block_of_round / max(1, len(design.blocks) - 1)
    if kind in RATES:
        low, high = _DRIFT_OF_RATE
        return RATES[kind] * (low + (high - low) * place)
    shifted = level + (_DRIFT_BOUNDED if bounded else _DRIFT) * (place - 0.5)
    return np.clip(shifted, 0.02, 0.98) if bounded else shifted
