"""Open Bandit Pipeline's dictionary of logged feedback: single actions, and slates."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from cmp.errors import PositivityError
from cmp.foreign.building import build_log
from cmp.foreign.frames import fixed_scope
from cmp.foreign.logs import ForeignLog
from cmp.foreign.problems import ForeignLogError, Places, Problems
from cmp.protocols import ScopeLike, canonical_ids

__all__ = ["read_obp"]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

#: Slack between two ways the source says one probability, which it may have written in single precision.
_AGREE: Final = 1e-5


def read_obp(
    feedback: Mapping[str, Any],
    *,
    action_dist: npt.ArrayLike | None = None,
    names: Sequence[str | int] | None = None,
    scope: ScopeLike | None = None,
) -> ForeignLog:
    """Take the dictionary of Open Bandit Pipeline: ``action``, ``reward``, ``pscore``, perhaps ``position``.

    An action is a memory. A control's weight needs the probability that the memory *would* have been taken there, which
    ``pscore`` does not give: it is of the action taken. It is known from the logging policy's distribution, where the
    policy is uniform, or where an action's ``pscore`` is the same in all rounds and those of all actions add up to 1.
    Otherwise it cannot be known, and the dictionary is refused. Estimates are unbiased where it is the design's.

    Parameters
    ----------
    feedback
        Without ``slate_id``: each entry is a round with one action, and positions are strata. With ``slate_id``: a
        slate is a round, its outcome the sum of its rewards, and a memory's propensity that of being in any position;
        neither ``pscore`` (of the whole slate) nor ``pscore_item_position`` (of one position) is that.
    action_dist
        The logging policy's probabilities, shape (rounds, actions, positions) (one position may be left out), where the
        dictionary has no ``pi_b``. For slates: of each action in each position.
    names
        Ids of actions 0, 1, ...; None takes the numbers.
    scope
        The scope of all rounds; None is one single-tenant store.

    Returns
    -------
    ForeignLog
        For ``cmp.utilities``.

    Raises
    ------
    PositivityError
        For probabilities that are none, disagree, or cannot be known.
    ForeignLogError
        For arrays that are missing, of other lengths, or not of numbers; files are not opened, let alone unpickled.

    References
    ----------
    Saito, Y., Aihara, S., Matsutani, M. and Narita, Y. (2021). Open Bandit Dataset and Pipeline. NeurIPS Datasets and
    Benchmarks, section 3.

    Examples
    --------
    >>> feedback = {"n_rounds": 4, "n_actions": 2, "action": np.array([0, 1, 0, 1]), "position": None,
    ...             "reward": np.array([1, 0, 1, 1]), "pscore": np.full(4, 0.5)}
    >>> log = read_obp(feedback, names=["a", "b"])
    >>> from cmp.estimation.from_rows import utilities_of_rows
    >>> utilities_of_rows(log).frame.select("memory_id", "utility").rows()
    [('a', 0.5), ('b', -0.5)]
    """
    if not isinstance(feedback, Mapping):
        raise ForeignLogError(
            f"feedback is a {type(feedback).__name__}; give the dictionary itself (files are not unpickled)"
        )
    problems = Problems("this feedback")
    read = _slates if feedback.get("slate_id") is not None else _singles
    table, roster, numbers, k = read(feedback, action_dist)
    ids = pl.Series(_names(names, feedback, numbers), dtype=pl.String)
    key = fixed_scope(scope)

    def named(part: pl.DataFrame) -> pl.DataFrame:
        return part.with_columns(memory_id=ids.gather(part["memory"]), scope=pl.lit(key)).drop("memory")

    listed = None if roster is None else named(roster)
    places = Places("feedback", table["index"].to_numpy(), "index")
    return build_log(
        named(table).drop("index"), listed, k, _AGREE, problems=problems, places=places, metric="reward"
    )


_Parts = tuple[pl.DataFrame, pl.DataFrame | None, IntArray, int]


def _singles(feedback: Mapping[str, Any], action_dist: npt.ArrayLike | None) -> _Parts:
    action = _integers(feedback, "action")
    reward, pscore = (_numbers(feedback, name, len(action)) for name in ("reward", "pscore"))
    position = (
        np.zeros_like(action)
        if feedback.get("position") is None
        else _integers(feedback, "position", len(action))
    )
    given = feedback.get("pi_b") if action_dist is None else action_dist
    rounds = np.arange(len(action))
    if given is None:
        roster = _implied(action, position, pscore, _n_actions(feedback, action))
        taken = np.ones(len(action), dtype=bool)
        table = _table(rounds, action, taken, pscore, reward, position, rounds)
        # the roster's own number, where single precision has several of one
        table = table.drop("propensity").join(
            roster, on=["stratum", "memory"], how="left", maintain_order="left"
        )
        return table, roster, action, 1
    dist = _distribution(given, len(action))
    n = dist.shape[1]
    _check_range(action, n, "action")
    _check_range(position, dist.shape[2], "position", one=dist.shape[2] == 1)
    chances = dist[rounds, :, position if dist.shape[2] > 1 else 0]
    _agree(chances[rounds, action], pscore, "pscore")
    at: IntArray = np.repeat(rounds, n)
    memory = np.tile(np.arange(n), len(action))
    table = _table(at, memory, memory == action[at], chances.ravel(), reward[at], position[at], at)
    return table, None, np.arange(n), 1


def _slates(feedback: Mapping[str, Any], action_dist: npt.ArrayLike | None) -> _Parts:
    slate = _integers(feedback, "slate_id")
    action, position = (_integers(feedback, name, len(slate)) for name in ("action", "position"))
    reward = _numbers(feedback, "reward", len(slate))
    named, at = np.unique(slate, return_inverse=True)
    length = int(position.max(initial=0)) + 1
    n = _n_actions(feedback, action)
    _check_slates(at, position, action, length)
    total = np.bincount(at, weights=reward).astype(np.float64)
    given = feedback.get("pi_b") if action_dist is None else action_dist
    order = np.lexsort((position, at))
    first = order[::length]
    if given is None:
        _check_uniform(feedback, n, length, len(slate))
        chance = np.full(len(slate), length / n)
        roster = pl.DataFrame({"memory": np.arange(n), "propensity": np.full(n, length / n)}).with_columns(
            stratum=pl.lit("0")
        )
        table = _table(
            slate, action, np.ones(len(slate), dtype=bool), chance, total[at], 0 * at, np.arange(len(slate))
        )
        return table, roster, np.arange(n), length
    dist = _distribution(given, len(total), n)
    if named[-1] != len(total) - 1:
        raise ForeignLogError(
            "slates are not numbered 0, 1, ..., so which row of the distribution is whose is not known"
        )
    if dist.shape[2] != length:
        raise ForeignLogError(f"the distribution has {dist.shape[2]} positions, and slates have {length}")
    if feedback.get("pscore_item_position") is not None:
        said = _numbers(feedback, "pscore_item_position", len(slate))
        _agree(dist[at, action, position], said, "pscore_item_position")
    drawn = np.zeros((len(total), n), dtype=bool)
    drawn[at, action] = True
    rounds = np.repeat(np.arange(len(total)), n)
    memory = np.tile(np.arange(n), len(total))
    table = _table(
        rounds, memory, drawn.ravel(), dist.sum(axis=2).ravel(), total[rounds], 0 * rounds, first[rounds]
    )
    return table, None, np.arange(n), length


def _table(
    rounds: IntArray,
    memory: IntArray,
    assigned: npt.NDArray[np.bool_],
    propensity: FloatArray,
    reward: npt.NDArray[Any],
    position: IntArray,
    index: IntArray,
) -> pl.DataFrame:
    columns = {
        "memory": memory,
        "assigned": assigned,
        "propensity": propensity,
        "outcome": reward,
        "index": index,
    }
    names = pl.Series(rounds).cast(pl.String)
    return pl.DataFrame(columns).with_columns(
        round_id=names, stratum=pl.Series(position).cast(pl.String), outcome=pl.col("outcome").fill_nan(None)
    )


def _implied(action: IntArray, position: IntArray, pscore: FloatArray, n: int) -> pl.DataFrame:
    """Return every action's probability by position where what was logged implies those of the actions not taken."""
    frame = pl.DataFrame({"position": position, "memory": action, "propensity": pscore})
    by = frame.group_by("position", "memory").agg(
        pl.col("propensity").min(), pl.col("propensity").max().alias("most")
    )
    steady = (by["most"] - by["propensity"] <= _AGREE * by["most"]).all()
    parts = []
    for (place,), group in by.sort("position", "memory").group_by("position", maintain_order=True):
        chances = group["propensity"]
        if steady and bool(((n * chances - 1.0).abs() <= _AGREE).all()):
            whole = pl.DataFrame({"memory": np.arange(n), "propensity": np.full(n, 1.0 / n)})
        elif steady and abs(float(chances.to_numpy().sum()) - 1.0) <= _AGREE:
            whole = group.select("memory", "propensity")
        else:
            raise PositivityError(
                "pscore is of the action taken, and what the others' probabilities were does not follow from it "
                f"(position {place}); pass action_dist= with the logging policy's, shape (rounds, actions, positions)"
            )
        parts.append(whole.with_columns(stratum=pl.lit(str(place))))
    return pl.concat(parts)


def _check_slates(at: IntArray, position: IntArray, action: IntArray, length: int) -> None:
    n = len(action)
    if n % length or not (np.bincount(at) == length).all() or len(np.unique(at * length + position)) < n:
        raise ForeignLogError(f"slates do not have each of their {length} positions once; list whole slates")
    if len(np.unique(at * (int(action.max(initial=0)) + 1) + action)) < n:
        raise ForeignLogError(
            "a slate shows an action twice (a factored policy): the probability of being in any position is then no "
            "sum over positions. Compute it, and use cmp.from_frame"
        )


def _check_uniform(feedback: Mapping[str, Any], n: int, length: int, rows: int) -> None:
    """Accept slates without a distribution where they were drawn uniformly, by what was logged of those shown."""
    for name, uniform in (("pscore_item_position", 1.0 / n), ("pscore", 1.0 / math.perm(n, length))):
        if feedback.get(name) is not None and np.allclose(
            _numbers(feedback, name, rows), uniform, rtol=_AGREE, atol=0.0
        ):
            return
    raise PositivityError(
        "the probability that an action is in a slate does not follow from pscore (of the slate) or "
        "pscore_item_position (of a position); pass action_dist= with the logging policy's probability of each action "
        "in each position, shape (slates, actions, positions)"
    )


def _distribution(given: npt.ArrayLike, rounds: int, n: int | None = None) -> FloatArray:
    dist = _array(given, "the distribution").astype(np.float64)
    if dist.ndim == 2:
        dist = dist[:, :, None]
    if dist.ndim != 3 or len(dist) != rounds or (n is not None and dist.shape[1] != n):
        raise ForeignLogError(
            f"the distribution has shape {np.shape(given)}; give ({rounds} rounds, {n or 'all'} actions, positions)"
        )
    bad = np.flatnonzero(~((dist >= 0.0) & (dist <= 1.0)).all(axis=(1, 2)))
    if bad.size:
        raise PositivityError(
            f"probabilities of {bad.size} rounds are outside 0 to 1 or NaN (round {bad[0]}); give the logging policy's"
        )
    return dist


def _agree(one: FloatArray, two: FloatArray, name: str) -> None:
    torn = np.flatnonzero(~(np.abs(one - two) <= _AGREE * np.maximum(one, two)))
    if torn.size:
        at = torn[0]
        raise PositivityError(
            f"{torn.size} entries of {name} are not what the distribution says of the action taken (index {at}: "
            f"{two[at]:.6g}, and {one[at]:.6g}); it must be the logging policy's, not the one to be evaluated"
        )


def _n_actions(feedback: Mapping[str, Any], action: IntArray) -> int:
    n = feedback.get("n_unique_action", feedback.get("n_actions"))
    if n is None:
        raise ForeignLogError("neither n_actions nor n_unique_action says how many actions there are")
    _check_range(action, int(n), "action")
    return int(n)


def _check_range(values: IntArray, n: int, name: str, *, one: bool = False) -> None:
    if values.size and not one and values.max() >= n:
        at = int(np.argmax(values >= n))
        raise ForeignLogError(f"{name} {values[at]} at index {at} is not one of 0 to {n - 1}")


def _names(names: Sequence[str | int] | None, feedback: Mapping[str, Any], numbers: IntArray) -> list[str]:
    n = max(
        int(numbers.max(initial=-1)) + 1, int(feedback.get("n_unique_action", feedback.get("n_actions")) or 0)
    )
    if names is None:
        return [str(number) for number in range(n)]
    ids = canonical_ids(names, "names")
    if len(ids) != len(names) or len(ids) < n:
        raise ForeignLogError(f"names has {len(ids)} different ids for {n} actions; give one each")
    return ids


def _array(values: Any, name: str) -> npt.NDArray[Any]:
    array = np.asarray(values)
    if array.dtype.kind not in "biuf":
        raise ForeignLogError(f"{name} is an array of {array.dtype}; give numbers")
    return array


def _numbers(feedback: Mapping[str, Any], name: str, n: int) -> FloatArray:
    array = _of_length(feedback, name, n).astype(np.float64)
    if np.isinf(array).any():
        raise ForeignLogError(
            f"{name} is infinite at index {int(np.argmax(np.isinf(array)))}; missing is NaN"
        )
    return array


def _integers(feedback: Mapping[str, Any], name: str, n: int | None = None) -> IntArray:
    array = _of_length(feedback, name, n)
    if array.dtype.kind not in "iu" or (array.size and array.min() < 0):
        raise ForeignLogError(f"{name} is not of whole numbers from 0 ({array.dtype})")
    return array.astype(np.int64)


def _of_length(feedback: Mapping[str, Any], name: str, n: int | None) -> npt.NDArray[Any]:
    if feedback.get(name) is None:
        raise ForeignLogError(f"feedback has no {name!r}; it has {', '.join(map(repr, feedback))}")
    array = _array(feedback[name], name)
    if array.ndim != 1 or (n is not None and len(array) != n):
        raise ForeignLogError(
            f"{name} has shape {array.shape}; give one number a row" + (f", {n}" if n else "")
        )
    return array
