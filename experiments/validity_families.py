"""Families of which half has no effect: what is falsely discovered, by which adjustment, and what is found.

A utility is relative to the pool, so effects add up to 0: half of the memories are worth exactly the mean of any
others, a quarter add ``effect`` and a quarter take it away. Where success is rare nothing can take that much away; then
one in 32 adds ``effect``, and what is left of the half takes a little each. Beside a memory without effect the others
are a simple random sample of the rest, whose effects average to 0 whether it is shown or not; where means are cut to
[0, 1] they are cut on both sides of .5 alike. So its utility is 0 exactly, in closed form.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cmp.estimation import estimate, q_values
from experiments.validity_nulls import OUTCOMES, SEED
from experiments.validity_tallies import holds
from experiments.worlds import Size, assignment

__all__ = ["FAMILIES", "RATE", "Family", "measure_family", "tally_family"]

#: What false discoveries, or the chance of any, are to stay below.
RATE = 0.05
METHODS = ("bh", "by", "holm")
#: Level of each kind's rounds, scale of its noise (0: two-valued).
KINDS = {"binary": (0.5, 0.0), "rare": (0.065, 0.0), "continuous": (0.0, 0.3), "heavy": (0.0, 0.3)}
NOISE = {"binary": "binary", "rare": "binary", "continuous": "normal", "heavy": "t(3)"}
SIZES = (Size(160, 32, 2), Size(500, 100, 2), Size(2400, 480, 2))

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Family:
    """All memories of one store, tested together; 10 exposures each."""

    kind: str
    size: Size
    effect: float

    @property
    def effects(self) -> FloatArray:
        """(N,) what each memory adds to the mean; the second half of them nothing."""
        n = self.size.memories
        gains = n // 32 if self.kind == "rare" else n // 4
        found = np.zeros(n)
        found[:gains] = self.effect
        found[gains : n // 2] = -self.effect * gains / (n // 2 - gains)
        return found

    def mean(self, assigned: BoolArray) -> FloatArray:
        """Return the mean outcome of each round, from who is assigned in it, (..., N)."""
        level, noise = KINDS[self.kind]
        mean: FloatArray = level + assigned @ self.effects
        return mean if noise else np.clip(mean, 0.0, 1.0)

    def p_values(self, draw: int) -> FloatArray:
        """Return the p-values of one log, (N,); undefined ones are no hypotheses."""
        seed = [SEED, self.size.memories, list(KINDS).index(self.kind), round(100 * self.effect), draw]
        assigned = assignment(self.size, seed)
        mean, noise = self.mean(assigned), KINDS[self.kind][1]
        u = np.random.default_rng([*seed, 1]).random(len(mean))
        outcome = OUTCOMES[NOISE[self.kind]]
        y = mean + noise * outcome(u, np.zeros(len(u))) if noise else outcome(u, mean)
        return estimate(assigned, y).frame["p_value"].fill_null(np.nan).to_numpy()


FAMILIES = [Family(kind, size, effect) for size in SIZES for kind in KINDS for effect in (0.0, 0.2, 0.45)]


def measure_family(family: Family, draws: int, advance: Callable[[int], None]) -> list[dict[str, Any]]:
    """Log a family ``draws`` times; return a row for each way to adjust."""
    p = []
    for draw in range(draws):
        p.append(family.p_values(draw))
        advance(1)
    head = {"kind": family.kind, "memories": family.size.memories, "effect": family.effect}
    large = family.effects >= max(family.effect, 1e-9)
    return [
        head | {"method": method} | tally_family(np.array(p), method, family.effects == 0.0, large)
        for method in METHODS
    ]


def tally_family(p: FloatArray, method: str, null: BoolArray, large: BoolArray) -> dict[str, Any]:
    """Say what share of discoveries is false, how often any is, and what share of large effects is found.

    Parameters
    ----------
    p
        Shape (D, N), of logs and memories.
    method
        How to adjust.
    null, large
        Shape (N,): which memories have no effect, and which the power is counted over.
    """
    found = np.array([q_values(row, method) <= RATE for row in p])
    false = (found & null).sum(axis=1)
    share = false / np.maximum(found.sum(axis=1), 1)
    power = found[:, large].mean(axis=1) if large.any() else np.full(len(p), np.nan)
    rate, any_false = float(share.mean()), float((false > 0).mean())
    error = float(share.std(ddof=1)) / math.sqrt(len(p))
    any_error = math.sqrt(RATE * (1.0 - RATE) / len(p))
    # the chance of any false discovery is what Holm bounds, its expected share what the others do
    held = holds(any_false, RATE, any_error) if method == "holm" else holds(rate, RATE, error)
    return {
        "families": len(p), "false_discovery_rate": rate, "false_discovery_error": error, "any_false": any_false,
        "any_false_error": any_error, "power": float(power.mean()) if large.any() else None,
        "power_error": float(power.std(ddof=1)) / math.sqrt(len(p)) if large.any() else None, "holds": held,
    }  # fmt: skip
