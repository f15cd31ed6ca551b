"""One decision of Vowpal Wabbit's decision service: what it says of each action."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from cmp.errors import PositivityError
from cmp.foreign.problems import ForeignLogError, finite_number
from cmp.protocols import canonical_id

__all__ = ["Of", "columns_of_decision", "is_dangling", "label_of"]

_OF_A_DECISION: Final = frozenset({"a", "p", "c", "_outcomes", "_label_cost"})

#: Says what an action's id is, or what a decision is of: its query, or its episode.
Of = Callable[[Mapping[str, Any]], object]


def is_dangling(line: Mapping[str, Any]) -> bool:
    """Return whether a line is an observation whose decision is not there."""
    return "EventId" in line and _OF_A_DECISION.isdisjoint(line)


def columns_of_decision(
    decision: Mapping[str, Any], id_of: Of | None, within: float
) -> tuple[dict[str, Any], int]:
    """Return the columns of one decision's rows, and how many there are.

    Raises
    ------
    PositivityError, InvalidIdError, ForeignLogError
        For what is no decision.
    """
    if "_outcomes" in decision:
        return _slates(decision, id_of, within)
    event = _event(decision)
    actions, chances = _actions(decision)
    taken = _taken(decision, actions)
    _check_chances(decision, chances, taken, within)
    features = _features(decision)
    if max(actions) > len(features):
        raise ForeignLogError(
            f"a names action {max(actions)}, and c._multi lists {len(features)}; actions are numbers into it, from 1"
        )
    ids = [_id(features[action - 1], id_of, action) for action in actions]
    columns = {
        "round_id": event,
        "memory_id": ids,
        "assigned": [place == taken for place in range(len(actions))],
        "propensity": chances,
        "outcome": _outcome(decision),
        "k": 1.0,
    }
    return columns, len(actions)


def _slates(decision: Mapping[str, Any], id_of: Of | None, within: float) -> tuple[dict[str, Any], int]:
    """Return the same of slates: slots with actions of their own, drawn each with its probability."""
    features, slots = _features(decision), decision["_outcomes"]
    if not isinstance(slots, list) or not all(isinstance(slot, Mapping) for slot in slots) or not slots:
        raise ForeignLogError("_outcomes is no list of slots")
    homes = [action.get("_slot_id") if isinstance(action, Mapping) else None for action in features]
    if not all(type(home) is int and 0 <= home < len(slots) for home in homes):
        raise ForeignLogError(
            "it has several slots that share their actions (CCB): the probabilities of a slot are given what those "
            "before it took, and that of being taken at all is not in the file. Compute it, and use cmp.from_frame"
        )
    taken, chances = [False] * len(features), [0.0] * len(features)
    for number, slot in enumerate(slots):
        own = [place for place, home in enumerate(homes) if home == number]
        for order, (place, chance) in enumerate(_of_slot(number, slot, own, within)):
            taken[place], chances[place] = order == 0, chance
    columns = {
        "round_id": _event(decision),
        "memory_id": [_id(action, id_of, number) for number, action in enumerate(features, start=1)],
        "assigned": taken,
        "propensity": chances,
        "outcome": _outcome(decision),
        "k": float(len(slots)),
    }
    return columns, len(features)


def _of_slot(number: int, slot: Mapping[str, Any], own: list[int], within: float) -> list[tuple[int, float]]:
    """Return the place in c._multi and the probability of each of a slot's actions, the one taken first."""
    order, chances = (
        value if isinstance(value, list) else [value] for value in (slot.get("_a"), slot.get("_p"))
    )
    if len(order) != len(chances) or not all(type(at) is int and 0 <= at < len(own) for at in order):
        raise ForeignLogError(
            f"_a and _p of slot {number} are not as many, or _a names none of its {len(own)} actions (from 0)"
        )
    if sorted(order) != list(range(len(own))):
        raise PositivityError(
            f"slot {number} has {len(own)} actions and the probabilities of {len(set(order))}: those of the others "
            "are needed for their controls; have the whole list written"
        )
    numbers = [finite_number(chance, f"a probability of slot {number}") for chance in chances]
    if abs(sum(numbers) - 1.0) > within:
        raise PositivityError(f"the probabilities of slot {number} add up to {sum(numbers):.6g}")
    return [(own[at], chance) for at, chance in zip(order, numbers, strict=True)]


def _event(decision: Mapping[str, Any]) -> str:
    return canonical_id(decision.get("EventId"), "the decision (EventId)")


def _features(decision: Mapping[str, Any]) -> list[Any]:
    context = decision.get("c")
    features = context.get("_multi") if isinstance(context, Mapping) else None
    if not isinstance(features, list) or not features:
        raise ForeignLogError("c._multi lists no actions")
    return features


def _actions(decision: Mapping[str, Any]) -> tuple[list[int], list[float]]:
    actions, chances = decision.get("a"), decision.get("p")
    if not isinstance(actions, list) or not isinstance(chances, list) or not actions:
        raise ForeignLogError("it has no list of actions a, or none of probabilities p")
    if len(actions) != len(chances):
        raise ForeignLogError(f"it has {len(actions)} actions in a and {len(chances)} probabilities in p")
    if not all(type(action) is int and action >= 1 for action in actions) or len(set(actions)) < len(actions):
        raise ForeignLogError(f"its actions a are not different whole numbers from 1: {str(actions)[:80]}")
    return actions, [finite_number(chance, "a probability of p") for chance in chances]


def _taken(decision: Mapping[str, Any], actions: list[int]) -> int:
    """Return the place in ``a`` of the action that was taken."""
    label = decision.get("_label_Action", actions[0])
    if label not in actions or isinstance(label, bool):
        raise ForeignLogError(f"the action taken, _label_Action {label!r}, is not one of a")
    index = decision.get("_labelIndex", label - 1)
    if index != label - 1:
        raise ForeignLogError(
            f"_labelIndex is {index!r} and _label_Action {label!r}; the index counts from 0"
        )
    return actions.index(label)


def _check_chances(decision: Mapping[str, Any], chances: list[float], taken: int, within: float) -> None:
    if abs(sum(chances) - 1.0) > within:
        raise PositivityError(
            f"its probabilities p add up to {sum(chances):.6g}; list every action with what it was drawn with"
        )
    drop = decision.get("pdrop", 0.0)
    if not 0.0 <= finite_number(drop, "pdrop") < 1.0:
        raise PositivityError(f"pdrop is {drop!r}; it is the share of decisions left out, from 0 to below 1")
    label = decision.get("_label_probability")
    label = None if label is None else finite_number(label, "_label_probability")
    # some writers have multiplied the label's probability by the share of decisions kept
    if label is not None and not any(
        abs(label - chances[taken] * kept) <= within for kept in (1.0, 1.0 - drop)
    ):
        raise PositivityError(
            f"_label_probability is {label!r}, and p of the action taken {chances[taken]!r}: one of them is not what "
            "the action was drawn with (the branch taken, perhaps)"
        )


def _outcome(decision: Mapping[str, Any]) -> float | None:
    cost = decision.get("_label_cost")
    if decision.get("_skipLearn") is True or cost is None:
        return None
    return 0.0 - finite_number(cost, "_label_cost")


def _id(features: Any, id_of: Of | None, action: int) -> str:
    where = f"action {action}"
    if id_of is not None:
        return canonical_id(_asked(id_of, features), where)
    found = features.get("_tag") if isinstance(features, Mapping) else None
    if found is None and isinstance(features, Mapping) and isinstance(features.get("i"), Mapping):
        found = features["i"].get("id")
    if found is None:
        raise ForeignLogError(
            f"{where} has neither _tag nor i.id; its number is no stable id: pass id_of=, which is given its entry in "
            "c._multi"
        )
    return canonical_id(found, where)


def _asked(of: Of, value: Mapping[str, Any]) -> object:
    """Ask the caller's function, so that what it raises names the line too."""
    try:
        return of(value)
    except Exception as error:
        raise ForeignLogError(f"{getattr(of, '__name__', 'a function')} raised {error!r}") from error


def label_of(decision: Mapping[str, Any], of: Of | None) -> str | None:
    """Return what the caller's function says of a decision, as an id; None without a function or for None.

    Raises
    ------
    InvalidIdError, ForeignLogError
        Where that is no id, or the function raised.
    """
    value = None if of is None else _asked(of, decision)
    return None if value is None else canonical_id(value, "the decision's query or episode")
