"""Utilities from plain arrays, for people with their own logs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from cmp.errors import PositivityError
from cmp.estimation.cells import Arm, BoolArray, Cells, Outcomes, Tallies
from cmp.estimation.independent_draws import Draws, missingness_of_draws, p_values_of_draws
from cmp.estimation.inputs import read_booleans, read_outcomes, read_strata
from cmp.estimation.outcome_sums import describe_outcomes
from cmp.estimation.randomization import MemoryRounds
from cmp.estimation.sums import FloatArray, IntArray, split_into_limbs
from cmp.estimation.table import Analysis, Utilities
from cmp.estimation.tabulation import tabulate
from cmp.estimation.terms import Terms, least_outcomes

__all__ = ["estimate"]

#: How far above 1 a propensity may be by rounding.
_ABOVE_ONE = 1e-9


def estimate(
    assigned: npt.ArrayLike,
    outcomes: npt.ArrayLike,
    strata: npt.ArrayLike | None = None,
    eligible: npt.ArrayLike | None = None,
    propensity: npt.ArrayLike | None = None,
    estimator: str = "difference",
    interval: str = "auto",
    level: float = 0.95,
    *,
    weights: str = "precision",
    adjust: str = "bh",
) -> Utilities:
    """Estimate every memory's utility from who was drawn when, and what came of it.

    The estimand is the mean over a memory's eligible rounds of the outcome expected with the memory assigned
    less that without, over the design's other draws. Within a stratum it is a difference of two means,
    unbiased where every set of rounds of the same size was as likely to be the memory's.

    Parameters
    ----------
    assigned
        Shape (T, N), True where memory ``m`` was drawn for a random slot of round ``t``; (T,) for one memory.
    outcomes
        Shape (T,), NaN, None or masked where missing. A missing outcome leaves both arms and is counted, never filled
        in.
    strata
        Shape (T,), the block (or block and query) of each round: levels of different strata are never
        compared.
    eligible
        Shape (T, N) or (T,), False where the memory was in the context anyway, or not in the store.
    propensity
        Probability of assignment: a number, shape (N,), or (T, N); (T,) for one memory. Rounds at 0 or 1 are left
        out and counted. None takes the realized share of each stratum.
    estimator
        ``"difference"``, ``"hajek"`` or ``"ht"``. They agree where propensities are the realized shares.
    interval
        ``"auto"``, ``"newcombe"``, ``"moderated"``, ``"pooled"``, ``"neyman"``, ``"welch"``, ``"randomization"`` (the
        test of a constant effect, inverted) or ``"sequence"`` (holds at every look: strata are blocks, and each a
        replicate).
    level
        Confidence level.
    weights
        How strata combine: ``"precision"``, n1 n0 / (n1 + n0), or ``"rounds"``.
    adjust
        ``"bh"``, ``"by"`` or ``"holm"``, over all memories.

    Returns
    -------
    Utilities
        ``.frame`` has a row a memory, ``memory_id`` 0 to N-1, ``scope`` ``"*"``.

    Raises
    ------
    ValueError
        For shapes that do not fit, outcomes that are infinite or no numbers, assignments or eligibilities that are
        not True or False, or propensities that differ inside a stratum under ``estimator="difference"``.
    PositivityError
        For a propensity that is NaN, negative or above 1, a draw at 0, or an eligible round without a draw at 1.

    References
    ----------
    Intervals: Newcombe (1998), Statistics in Medicine 17, 873-890; Smyth (2004), SAGMB 3(1), article 3.

    Examples
    --------
    >>> assigned = [[1, 0], [0, 1], [1, 0], [0, 1], [0, 0], [0, 0]]
    >>> u = estimate(assigned, [1.0, 0.0, 1.0, 1.0, 0.0, 0.0])
    >>> u.frame["utility"].to_list()
    [0.75, 0.0]
    """
    analysis = Analysis(estimator=estimator, interval=interval, level=level, weights=weights, adjust=adjust)
    drawn = _assignment(assigned)
    y = _outcomes(outcomes, len(drawn))
    stratum, n_strata = read_strata(strata, len(drawn))
    allowed = _eligible(eligible, drawn.shape)
    pi = _propensities(propensity, drawn.shape, allowed)
    certain = np.zeros((1, 1), dtype=bool) if pi is None else (pi <= 0.0) | (pi >= 1.0)
    if pi is not None and certain.any():
        _check_certain(pi, drawn, allowed)
    rounds = np.ones_like(drawn) if allowed is None else allowed
    tallies = _tallies(rounds, certain, pi)
    if certain.any():
        allowed = rounds & ~certain
    cell_propensity = _cell_propensity(
        pi, drawn if allowed is None else allowed, allowed is None, stratum, n_strata
    )
    if cell_propensity is not None:
        cells = _counted_cells(drawn, y, stratum, n_strata, allowed, cell_propensity)
    elif estimator == "difference":
        raise ValueError(
            "propensities differ inside a (memory, stratum), where a plain difference of means is biased; "
            "use estimator='hajek', or pass strata within which they are constant"
        )
    else:
        assert pi is not None
        cells = _weighted_cells(drawn, y, stratum, n_strata, rounds if allowed is None else allowed, pi)
    n = drawn.shape[1]
    frame = tabulate(
        {"scope": ["*"] * n, "memory_id": np.arange(n)},
        cells,
        tallies,
        outcomes=_describe(y, stratum).of(family := np.zeros(n, dtype=np.int64)),
        family=family,
        analysis=analysis,
        rounds_of=_rounds_of(drawn, y, stratum, allowed),
        exact=None
        if pi is None
        else lambda of: p_values_of_draws(_draws(drawn, y, stratum, allowed, pi), of),
        missing=None
        if pi is None or not cells.weighted
        else lambda: missingness_of_draws(
            _draws(drawn, np.isnan(y).astype(np.float64), stratum, allowed, pi), n
        ),
    )
    return Utilities(frame, analysis)


def _rounds_of(
    drawn: BoolArray, y: FloatArray, stratum: IntArray, allowed: BoolArray | None
) -> Callable[[int], MemoryRounds]:
    known = ~np.isnan(y)

    def rounds_of(row: int) -> MemoryRounds:
        rows = known if allowed is None else known & allowed[:, row]
        return MemoryRounds(y[rows], drawn[rows, row], stratum[rows])

    return rounds_of


def _draws(
    drawn: BoolArray, y: FloatArray, stratum: IntArray, allowed: BoolArray | None, pi: FloatArray
) -> Draws:
    known = np.broadcast_to(~np.isnan(y)[:, None], drawn.shape)
    rows, memory = np.nonzero(known if allowed is None else known & allowed)
    z = drawn[rows, memory].astype(np.float64)
    chance = np.broadcast_to(pi, drawn.shape)[rows, memory]
    return Draws(memory, stratum[rows], chance, np.ones(len(rows)), z, y[rows], y[rows] * z)


def _tallies(rounds: BoolArray, certain: BoolArray, pi: FloatArray | None) -> Tallies:
    return Tallies(
        ranked=np.zeros(
            rounds.shape[1], dtype=np.int64
        ),  # plain arrays do not say why a round is not eligible
        ineligible=(~rounds).sum(axis=0),
        certain=(rounds & certain).sum(axis=0),
        always_drawn=(rounds & (False if pi is None else pi >= 1.0)).sum(axis=0),
    )


def _describe(y: FloatArray, stratum: IntArray) -> Outcomes:
    known = ~np.isnan(y)
    return describe_outcomes(y[known], stratum[known], np.zeros(int(known.sum()), dtype=np.int64), 1)


def _assignment(assigned: npt.ArrayLike) -> BoolArray:
    array = read_booleans(assigned, "assigned")
    if array.ndim == 1:
        array = array[:, None]
    if array.ndim != 2:
        raise ValueError(f"assigned has shape {array.shape}; give (rounds, memories)")
    return array


def _outcomes(outcomes: npt.ArrayLike, n_rounds: int) -> FloatArray:
    y = read_outcomes(outcomes)
    if y.shape != (n_rounds,):
        raise ValueError(f"outcomes have shape {y.shape} for {n_rounds} rounds; give one a round")
    return y


def _eligible(eligible: npt.ArrayLike | None, shape: tuple[int, ...]) -> BoolArray | None:
    if eligible is None:
        return None
    array = read_booleans(eligible, "eligible")
    if array.ndim == 1 and len(array) == shape[0]:
        array = array[:, None]
    try:
        return np.broadcast_to(array, shape)
    except ValueError:
        raise ValueError(f"eligible has shape {array.shape}; give {shape} or ({shape[0]},)") from None


def _propensities(
    propensity: npt.ArrayLike | None, shape: tuple[int, ...], allowed: BoolArray | None
) -> FloatArray | None:
    """Return probabilities of shape (1, 1), (1, N) or (T, N), checked where a memory is eligible."""
    if propensity is None:
        return None
    pi = np.atleast_2d(np.asarray(propensity, dtype=np.float64))
    if shape[1] == 1 and pi.shape == (1, shape[0]):
        pi = pi.T
    if pi.shape not in ((1, 1), (1, shape[1]), shape):
        raise ValueError(
            f"propensity has shape {np.shape(propensity)}; give a number, ({shape[1]},) or {shape}"
        )
    bad = ~((pi >= 0.0) & (pi <= 1.0 + _ABOVE_ONE))
    if allowed is not None and pi.shape == shape:
        bad &= allowed
    if bad.any():
        row, column = np.argwhere(bad)[0]
        rows = np.flatnonzero(bad.any(axis=1))
        where = f"rows {', '.join(map(str, rows[:5]))}" if pi.shape == shape else f"memory {column}"
        raise PositivityError(
            f"{int(bad.sum())} of {pi.size} propensities are no probabilities ({where}; the first is "
            f"{pi[row, column]:g}). Pass the design's probability of assignment, between 0 and 1"
        )
    return np.minimum(pi, 1.0)


def _check_certain(pi: FloatArray, drawn: BoolArray, allowed: BoolArray | None) -> None:
    """Refuse draws that were impossible, and rounds without a draw that was certain."""
    rounds = np.broadcast_to(True, drawn.shape) if allowed is None else allowed
    for torn, what in (
        ((pi <= 0.0) & drawn & rounds, "drawn at propensity 0"),
        ((pi >= 1.0) & ~drawn & rounds, "not drawn at propensity 1"),
    ):
        if torn.any():
            rows = np.flatnonzero(torn.any(axis=1))
            raise PositivityError(
                f"{int(torn.sum())} rounds of memories are {what} (rows {', '.join(map(str, rows[:5]))}; the first is "
                f"memory {np.argwhere(torn)[0][1]}). Pass the design's probability of assignment in the round itself"
            )


def _cell_propensity(
    pi: FloatArray | None, allowed: BoolArray, all_allowed: bool, stratum: IntArray, n_strata: int
) -> FloatArray | None:
    """Return the propensity of each (stratum, memory), NaN where unknown; None if it differs inside one."""
    shape = (n_strata, allowed.shape[1])
    if pi is None or len(pi) == 1:
        return np.broadcast_to(np.nan if pi is None else pi, shape).ravel()
    least, most = np.full(shape, np.inf), np.full(shape, -np.inf)
    np.minimum.at(least, stratum, pi if all_allowed else np.where(allowed, pi, np.inf))
    np.maximum.at(most, stratum, pi if all_allowed else np.where(allowed, pi, -np.inf))
    if (most > least).any():
        return None
    return np.where(np.isfinite(least), least, np.nan).ravel()


def _counted_cells(
    drawn: BoolArray,
    y: FloatArray,
    stratum: IntArray,
    n_strata: int,
    allowed: BoolArray | None,
    pi: FloatArray,
) -> Cells:
    """Sum over exposed and over barred rounds; the control arm is what is left of each stratum's totals."""
    n = drawn.shape[1]
    terms = Terms.of(y, stratum, np.zeros(n_strata, dtype=np.int64))

    def over(pairs: BoolArray) -> FloatArray:
        rows, memories = np.nonzero(pairs)
        return terms.sums(stratum[rows] * n + memories, rows, n_strata * n)

    rest = np.repeat(terms.sums(stratum, np.arange(len(y)), n_strata), n, axis=1)
    exposed = over(drawn if allowed is None else drawn & allowed)
    if allowed is not None and not allowed.all():
        rest = rest - over(~allowed)
    memory, place = np.tile(np.arange(n), n_strata), np.repeat(np.arange(n_strata), n)
    arms = terms.arm(exposed), terms.arm(rest - exposed)
    return Cells.unweighted(memory, np.repeat(terms.offset, n), pi, *arms, place=place)


def _weighted_cells(
    drawn: BoolArray, y: FloatArray, stratum: IntArray, n_strata: int, allowed: BoolArray, pi: FloatArray
) -> Cells:
    """The same with weights 1/pi and 1/(1 - pi), which differ from round to round."""
    n = drawn.shape[1]
    offset, known = least_outcomes(y, stratum, n_strata), ~np.isnan(y)
    d = np.where(known, y - offset[stratum], 0.0)

    def add(values: npt.NDArray[Any]) -> FloatArray:
        parts = []
        for limb in split_into_limbs(values.astype(np.float64), len(y)):
            total = np.zeros((n_strata, n))
            np.add.at(total, stratum, limb)
            parts.append(total.ravel())
        return sum(parts, np.zeros(n_strata * n))

    arms, moments = [], np.zeros(n_strata * n)
    for member, chance in ((drawn & allowed, pi), (~drawn & allowed, 1.0 - pi)):
        seen = member & known[:, None]
        w = np.divide(1.0, chance, out=np.zeros_like(chance), where=seen)
        weighted = w, w**2, w * d[:, None], w * d[:, None] ** 2
        lost = member & ~known[:, None]
        gone = np.divide(1.0, chance, out=np.zeros_like(chance), where=lost)
        arms.append(Arm(*map(add, (seen, lost, *weighted, gone))))
        moments += add((w * np.where(known, y, 0.0)[:, None]) ** 2)
    return Cells(
        memory=np.tile(np.arange(n), n_strata),
        offset=np.repeat(offset, n),
        propensity=np.full(n_strata * n, np.nan),
        weighted=True,
        exposed=arms[0],
        control=arms[1],
        second_moment=moments,
        centre=np.full(n_strata * n, np.nan),
        scale=np.ones(n_strata * n),
        information=add(np.where(allowed & known[:, None], pi * (1.0 - pi), 0.0)),
        missing_information=add(np.where(allowed & ~known[:, None], pi * (1.0 - pi), 0.0)),
        strata=np.ones(n_strata * n),
        place=np.repeat(np.arange(n_strata), n),
    )
