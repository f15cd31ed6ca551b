"""How often p-values are small, against how often they may be: shares, their standard errors, and what holds."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["GRID", "LEVELS", "TOLERANCE", "holds", "share_of_logs", "tail_of_tolerance", "tally_p_values"]

FloatArray = npt.NDArray[np.float64]

#: Levels at which people reject.
LEVELS = (0.001, 0.01, 0.05, 0.1, 0.2, 0.5)
#: Where the curve of the figure is known: ten points a decade.
GRID = tuple(float(f"{u:.4g}") for u in np.geomspace(0.001, 1.0, 31))
#: Standard errors by which a share may exceed its level.
TOLERANCE = 2.5
#: Relative distance of a p-value from a level that is rounding: an exact one of 1/20 is at most .05.
_ROUNDING = 1e-9
#: Shares below this are of too few p-values to say how far those of one log go together.
_LEAST_SHARE = 0.05


def tail_of_tolerance() -> float:
    """Return the chance that a share whose expectation is just its level is said not to hold."""
    return math.erfc(TOLERANCE / math.sqrt(2.0)) / 2.0


def holds(share: float, level: float, error: float) -> bool:
    """Whether a share is at most its level, but for chance."""
    return share <= level + TOLERANCE * error


def share_of_logs(
    hits: npt.NDArray[np.bool_], known: npt.NDArray[np.bool_], level: float
) -> dict[str, float]:
    """Return the share of hits, and the standard error that it is judged by.

    Parameters
    ----------
    hits, known
        Shape (L, M), for each log and memory: whether it is one, and whether it counts.
    level
        What the share should not exceed.

    Returns
    -------
    dict
        ``share``; ``error``, the larger of the binomial standard error at the level, of as many independent memories,
        and that of the logs' shares, as memories of one log share their rounds; ``within``, the latter over the
        binomial one at the share itself, squared (a design effect; 1 where it is not known).
    """
    n, logs = int(known.sum()), len(hits)
    if n == 0:
        return {"share": 0.0, "error": math.inf, "within": 1.0}
    share = float((hits & known).sum()) / n
    binomial = math.sqrt(level * (1.0 - level) / n)
    apart = (hits & known).sum(axis=1) - share * known.sum(axis=1)
    by_log = math.sqrt(float(apart @ apart) * logs / max(logs - 1, 1)) / n
    own = math.sqrt(share * (1.0 - share) / n)
    within = (by_log / own) ** 2 if own > 0.0 and share >= _LEAST_SHARE and logs > 1 else 1.0
    return {"share": share, "error": max(binomial, by_log), "within": within}


def tally_p_values(p: FloatArray) -> dict[str, Any]:
    """Say how often p-values of a true hypothesis are at most each level, and how far that is too often.

    Parameters
    ----------
    p
        Shape (L, M), of logs and memories; NaN where undefined, which is no p-value at all.

    Returns
    -------
    dict
        ``logs``, ``p_values``, ``undefined_share``; for each level ``share_<level>`` and ``error_<level>``;
        ``excess``, the greatest F(u) - u over all u (Kolmogorov's distance on the side of false alarms), and the u
        ``excess_at`` which it is that; ``excess_by_chance``, which it exceeds as seldom as a share its tolerance where
        p-values are uniform, ``sqrt(-log(tail) / (2 n))`` with n over the largest design effect; ``holds``; ``curve``,
        F on the grid.

    References
    ----------
    Massart, P. (1990). Annals of Probability 18(3), 1269-1283 (the distance on one side exceeds x with
    probability at most exp(-2 n x^2)).
    """
    known = ~np.isnan(p)
    row: dict[str, Any] = {
        "logs": len(p), "p_values": int(known.sum()), "undefined_share": float(1.0 - known.mean()),
    }  # fmt: skip
    effect, held = 1.0, True
    for level in LEVELS:
        found = share_of_logs(p <= level * (1.0 + _ROUNDING), known, level)
        row |= {f"share_{level:g}": found["share"], f"error_{level:g}": found["error"]}
        effect, held = max(effect, found["within"]), held and holds(found["share"], level, found["error"])
    ranked = np.sort(p[known])
    n = max(len(ranked), 1)
    over = np.searchsorted(ranked, ranked * (1.0 + _ROUNDING), side="right") / n - ranked
    excess = max(float(over.max(initial=0.0)), 0.0)
    at = float(ranked[np.argmax(over)]) if excess > 0.0 else None
    by_chance = math.sqrt(-math.log(tail_of_tolerance()) / (2.0 * n / effect))
    curve = np.searchsorted(ranked, np.array(GRID) * (1.0 + _ROUNDING), side="right") / n
    return row | {
        "excess": excess, "excess_at": at, "excess_by_chance": by_chance,
        "holds": held and excess <= by_chance, "curve": curve.tolist(),
    }  # fmt: skip
