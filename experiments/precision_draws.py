"""LoCoMo's randomized rounds as a table: the outcome of every set of memories that may be drawn, and so the truth.

The outcome reads no model, so a question has one outcome for each set of k memories drawn. With all of them known, a
log is a balanced table and a look-up, and the utility of a memory is a mean over sets: coverage can be counted on
real texts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

from cmp.datasets import answer_support
from cmp.design import balanced_table
from cmp.protocols import Scope
from cmp.retrievers import Pooled
from cmp.study import Question

__all__ = ["Draws", "Log", "by_pool", "draws_of", "question_log", "thread_log"]

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Log:
    """Rounds as arrays: what every method is given."""

    assigned: BoolArray
    """(T, N)"""
    outcomes: FloatArray
    """(T,)"""
    eligible: BoolArray
    """(T, N)"""
    queries: IntArray
    """(T,) which query each round asked; all 0 for one."""
    covariates: FloatArray
    """(T, p) known before the draw."""
    scores: FloatArray
    """(T, N) the ranker's, of each memory for the round's query; no columns where there is none."""


@dataclass(frozen=True, slots=True)
class Draws:
    """One question: S sets of k of N memories, each as likely as another."""

    question: Question
    ids: tuple[str, ...]
    drawn: BoolArray
    """(S, N) the sets, in the order of ``itertools.combinations``."""
    ranked: BoolArray
    """(S, N) which memories the ranked part holds."""
    outcome: FloatArray
    """(S,) answer support of the context."""
    scores: FloatArray
    """(N,) the ranker's."""

    @property
    def truth(self) -> FloatArray:
        """(N,) the utility over rounds in which the memory is not ranked; NaN where it always is."""
        shown, hidden = self.drawn & ~self.ranked, ~self.drawn & ~self.ranked
        with np.errstate(invalid="ignore"):
            mean1, mean0 = (self.outcome @ arm / arm.sum(axis=0) for arm in (shown, hidden))
        gap: FloatArray = mean1 - mean0
        return gap


def draws_of(backend: Pooled, question: Question, *, slots: int, random_slots: int) -> Draws:
    """List every draw of a question: the ranked part, the context, its outcome."""
    scope = Scope.of(question.scope)
    ids = tuple(backend.list_ids(scope=scope))
    place = {memory_id: number for number, memory_id in enumerate(ids)}
    order = [place[hit.id] for hit in backend.search(question.query, len(ids), scope=scope)]
    order += sorted(set(range(len(ids))) - set(order))
    items = backend.get(ids, scope=scope)
    holds = _words_held(question.answer, [items[memory_id].item.text for memory_id in ids])
    sets = np.array(list(combinations(range(len(ids)), random_slots)))
    drawn = np.zeros((len(sets), len(ids)), dtype=bool)
    np.put_along_axis(drawn, sets, values=True, axis=1)
    plain = np.cumsum(~drawn[:, order], axis=1)  # undrawn results down to each rank
    ahead = plain - ~drawn[:, order]
    ranked = np.zeros_like(drawn)
    ranked[:, order] = ahead < slots - random_slots
    outcome = ((drawn | ranked).astype(np.float64) @ holds > 0).mean(axis=1)
    return Draws(
        question, ids, drawn, ranked, outcome, np.asarray(backend.scores(question.query, scope=scope))
    )


def _words_held(answer: str, texts: list[str]) -> FloatArray:
    """Return (N, W) which of the answer's words each text holds, as answer support counts words."""
    words = [
        word for word in sorted(set(re.findall(r"\w+", answer.lower()))) if answer_support(answer, [word])
    ]
    return np.array([[answer_support(word, [text]) for word in words] for text in texts])


def question_log(draws: Draws, rounds: int, rng: np.random.Generator) -> Log:
    """Draw one balanced block of a question's rounds."""
    return thread_log([draws], rounds, rng)


def thread_log(questions: list[Draws], rounds: int, rng: np.random.Generator) -> Log:
    """Draw one balanced block in which a pool's questions are asked in turn."""
    first = questions[0]
    n, k = first.drawn.shape[1], int(first.drawn[0].sum())
    table = np.sort(balanced_table(n, rounds, k, rng), axis=1)
    place = {tuple(members): number for number, members in enumerate(combinations(range(n), k))}
    rows = np.array([place[tuple(row)] for row in table.tolist()])
    asked = np.arange(rounds) % len(questions)
    one = [questions[query] for query in asked]
    return Log(
        np.array([draws.drawn[row] for draws, row in zip(one, rows, strict=True)]),
        np.array([draws.outcome[row] for draws, row in zip(one, rows, strict=True)]),
        ~np.array([draws.ranked[row] for draws, row in zip(one, rows, strict=True)]),
        asked,
        np.array([[np.log1p(draws.scores.max())] for draws in one]),
        np.array([draws.scores for draws in one]),
    )


def by_pool(draws: list[Draws]) -> Iterator[list[Draws]]:
    """Yield the questions of each pool."""
    pools: dict[str, list[Draws]] = {}
    for one in draws:
        pools.setdefault(one.question.scope, []).append(one)
    yield from pools.values()
