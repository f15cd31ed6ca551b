"""Vowpal Wabbit's decision-service JSON: one decision a line, joined with its cost."""

from __future__ import annotations

import os
from collections import Counter
from typing import Final

import polars as pl

from cmp.errors import CmpError
from cmp.foreign.building import build_log
from cmp.foreign.decisions import Of, columns_of_decision, is_dangling, label_of
from cmp.foreign.frames import checked_slack, fixed_scope
from cmp.foreign.lines import RowBuffer, json_objects
from cmp.foreign.logs import ForeignLog
from cmp.foreign.problems import Places, Problems
from cmp.protocols import ScopeLike

__all__ = ["read_dsjson"]

#: Slack of probabilities, which are written in single precision or to a few digits.
_SINGLE_PRECISION: Final = 1e-4

_SCHEMA: Final = {
    "round_id": pl.String,
    "memory_id": pl.String,
    "assigned": pl.Boolean,
    "propensity": pl.Float64,
    "outcome": pl.Float64,
    "k": pl.Float64,
    "group": pl.String,
    "episode_id": pl.String,
}


def read_dsjson(
    path: str | os.PathLike[str],
    *,
    id_of: Of | None = None,
    query_of: Of | None = None,
    episode_of: Of | None = None,
    scope: ScopeLike | None = None,
    sums_within: float = _SINGLE_PRECISION,
) -> ForeignLog:
    """Read a file of contextual-bandit decisions as Vowpal Wabbit and Azure Personalizer log them.

    Each line has actions ``a`` (numbers into ``c._multi``, from 1), their probabilities ``p``, the action taken
    (``_label_Action``; the first of ``a`` where there is no label) and its ``_label_cost``; the outcome is the cost's
    negative. An action is a memory, its probability that of being drawn, and k is 1. Slates (``_outcomes``, each slot
    with actions of its own and the probability of each) are rounds of as many draws as slots, with one cost. Estimates
    are unbiased where ``p`` is what the action was drawn with (all of the exploration, not the branch taken).

    Conditional contextual bandits (CCB), whose slots share their actions, are refused: the probabilities of a slot are
    given what those before it took, and that of being taken at all is not in the file.

    Parameters
    ----------
    path
        The file, gzipped or not. It is read as a stream.
    id_of
        Given an entry of ``_multi``, returns the action's stable id. None takes its ``_tag``, else ``i.id``: the
        position in the list is none, since lists change.
    query_of, episode_of
        Given a whole decision, return its query, and what shares an outcome with it (None: nothing).
    scope
        The scope of all decisions; None is one single-tenant store.
    sums_within
        Slack of each decision's sum of probabilities.

    Returns
    -------
    ForeignLog
        For ``cmp.utilities``. Its ``notes`` count: decisions without an observation (no ``o``: their cost is what the
        system assumes then, taken as logged), decisions marked ``_skipLearn`` (never activated: their outcome is
        missing, not the assumed one), and observations without a decision.

    Raises
    ------
    FileNotFoundError
        Where there is no file.
    PositivityError, InvalidIdError, ForeignLogError
        For lines that are no decision of this form, each named; see :func:`cmp.from_frame`.

    References
    ----------
    Vowpal Wabbit wiki, "DSJSON". Agarwal, A. et al. (2016). Making contextual decisions with low technical debt,
    arXiv:1606.03966, section 4.

    Examples
    --------
    >>> import json, pathlib, tempfile
    >>> actions = [{"_tag": "news", "topic": 1}, {"_tag": "sports", "topic": 2}]
    >>> def decision(number, taken, cost):
    ...     return {"_label_cost": cost, "_label_probability": 0.5, "_label_Action": taken, "_labelIndex": taken - 1,
    ...             "EventId": f"e{number}", "a": [taken, 3 - taken], "c": {"_multi": actions}, "p": [0.5, 0.5]}
    >>> lines = [decision(0, 1, -1.0), decision(1, 2, 0.0), decision(2, 1, -1.0), decision(3, 2, -1.0)]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder) / "decisions.json"
    ...     _ = path.write_text("".join(json.dumps(line) + chr(10) for line in lines))
    ...     log = read_dsjson(path)
    >>> from cmp.estimation.from_rows import utilities_of_rows
    >>> utilities_of_rows(log).frame.select("memory_id", "utility").rows()
    [('news', 0.5), ('sports', -0.5)]
    """
    slack = checked_slack(sums_within)
    problems, notes = Problems(os.fspath(path)), Counter[str]()
    rows = RowBuffer(_SCHEMA)
    for line, decision in json_objects(path, problems, notes):
        if is_dangling(decision):
            notes["observations without a decision"] += 1
            continue
        try:
            columns, n = columns_of_decision(decision, id_of, slack)
            columns |= {"group": label_of(decision, query_of), "episode_id": label_of(decision, episode_of)}
        except CmpError as error:
            problems.add(f"line {line}: {error}", type(error))
            continue
        notes["decisions never activated"] += decision.get("_skipLearn") is True
        notes["decisions without an observation"] += not decision.get("o")
        rows.extend(line, n, columns)
    problems.raise_any()
    table, lines = rows.frame()
    absent = [name for name, of in (("group", query_of), ("episode_id", episode_of)) if of is None]
    table = table.drop(absent).with_columns(scope=pl.lit(fixed_scope(scope)))
    places = Places(os.fspath(path), lines, "line")
    return build_log(table, None, None, slack, problems=problems, places=places, metric="reward", notes=notes)
