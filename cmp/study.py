"""One study from end to end: support, randomized rounds, utilities, and AUCs beside those of the usual ways.

It is what ``cmpolicy demo`` and the identification experiment run.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from cmp.datasets import answer_support
from cmp.estimation import Utilities, utilities
from cmp.evaluation import Auc, Qrels, SupportReport, auc, read_qrels, support
from cmp.evaluation.store_randomization import store_randomization
from cmp.protocols import MemoryBackend, Scope
from cmp.retrievers import StoredMemory
from cmp.serving import Context, run_rounds, wrap
from cmp.serving.offline import progress_bar

__all__ = ["METRIC", "Question", "Study", "questions_of", "run_study", "score_support", "store_utilities"]

#: The outcome, named for what it is: it reads the gold answer.
METRIC = "answer_support"


@dataclass(frozen=True, slots=True)
class Question:
    """A task of the study; ``group`` is its ``query_id``."""

    query: str
    scope: str
    group: str
    answer: str


@dataclass(frozen=True, slots=True)
class Study:
    """What a study found.

    Attributes
    ----------
    support
        What the ranker reaches.
    by_memory, by_query
        Utilities over all questions of a scope, and for each question.
    ranker, store
        ``scope, group, memory_id`` with the ranker's ``score``, and with the ``utility`` under store randomization.
    aucs
        By name: ``"by query"``, ``"by memory"``, ``"ranker"`` and ``"store randomization"`` on all memories, and the
        last two once more on the memories that ``"by query"`` could score, ending in ``", same memories"``.
    unchanged
        Share of store randomizations that left the context as it was.
    n_rounds
        Rounds in the log.
    """

    support: SupportReport
    by_memory: Utilities
    by_query: Utilities
    ranker: pl.DataFrame
    store: pl.DataFrame
    aucs: Mapping[str, Auc]
    unchanged: float
    n_rounds: int


def run_study(
    backend: MemoryBackend[StoredMemory],
    questions: pl.DataFrame,
    qrels: pl.DataFrame,
    log: str | os.PathLike[str],
    *,
    slots: int = 6,
    random_slots: int = 2,
    rounds: int = 90,
    deleted_share: float = 0.1,
    seed: int = 0,
    progress: bool = True,
) -> Study:
    """Run a study: each question ``rounds`` times through a wrapped retriever, outcome = answer support.

    Store randomization gets the same budget: ``rounds`` rounds a question, each with ``deleted_share`` of the store
    away.

    Parameters
    ----------
    backend
        A retriever that also gives ``scores(query, *, scope)``.
    questions
        ``query_id, scope, text, answer``; answers are not null.
    qrels
        ``query_id, scope, memory_id, relevance``.
    log
        Path of the log; a study interrupted there goes on.
    """
    report = support(backend, questions, qrels, cutoff=slots)
    tasks = questions_of(questions)
    with wrap(
        backend,
        slots=slots,
        random_slots=random_slots,
        log=log,
        text_of=lambda memory: memory.text,
        seed=seed,
        on_error="raise",
    ) as memory:
        run_rounds(memory, tasks, score_support, rounds, metric=METRIC, progress=progress)
        by_query = utilities(memory.log, by="query", metric=METRIC)
        by_memory = utilities(memory.log, by="memory", metric=METRIC)
        n_rounds = memory.log.rounds().select(pl.len()).collect().item()
    labels = read_qrels(qrels)
    ranker = pl.concat([_ranker_scores(backend, task) for task in tasks])
    store = pl.concat(list(store_utilities(backend, tasks, slots, rounds, deleted_share, seed, progress)))
    return Study(
        report,
        by_memory,
        by_query,
        ranker,
        store,
        _aucs(by_query, by_memory, ranker, store, labels),
        float(store["unchanged"].mean()),  # type: ignore[arg-type]
        n_rounds,
    )


def _aucs(
    by_query: Utilities, by_memory: Utilities, ranker: pl.DataFrame, store: pl.DataFrame, labels: Qrels
) -> dict[str, Auc]:
    key = ["scope", "group", "memory_id"]
    scored = by_query.frame.filter(pl.col("utility").is_not_null()).select(key)
    return {
        "by query": auc(by_query, labels),
        "by memory": auc(by_memory, labels),
        "ranker": auc(ranker, labels),
        "store randomization": auc(store, labels),
        "ranker, same memories": auc(ranker.join(scored, on=key, how="semi"), labels),
        "store randomization, same memories": auc(store.join(scored, on=key, how="semi"), labels),
    }


def questions_of(questions: pl.DataFrame) -> list[Question]:
    """Return the tasks of a frame with ``query_id, scope, text, answer``."""
    return [Question(*row) for row in questions.select("text", "scope", "query_id", "answer").iter_rows()]


def score_support(task: Question, context: Context) -> float:
    """Return the answer support of a context of stored memories."""
    return answer_support(task.answer, [memory.text for memory in context])


def _ranker_scores(backend: Any, task: Question) -> pl.DataFrame:
    scope = Scope.of(task.scope)
    ids = list(backend.list_ids(scope=scope))
    scores = [float(score) for score in backend.scores(task.query, scope=scope)]
    return pl.DataFrame({"scope": task.scope, "group": task.group, "memory_id": ids, "score": scores})


def store_utilities(
    backend: Any,
    tasks: list[Question],
    slots: int,
    rounds: int,
    deleted_share: float,
    seed: int,
    progress: bool,
) -> Iterator[pl.DataFrame]:
    """Yield each question's utilities under store randomization: ``scope, group, memory_id, utility, unchanged``."""
    with progress_bar("store randomization", len(tasks), progress) as advance:
        for number, task in enumerate(tasks):
            scope = Scope.of(task.scope)
            ids = list(backend.list_ids(scope=scope))
            ranking = [hit.id for hit in backend.search(task.query, len(ids), scope=scope)]
            texts = {memory_id: hit.item.text for memory_id, hit in backend.get(ids, scope=scope).items()}

            def score(shown: Any, answer: str = task.answer, texts: Mapping[str, str] = texts) -> float:
                return answer_support(answer, [texts[memory_id] for memory_id in shown])

            deleted = max(1, round(deleted_share * len(ids)))
            stream = _stream(seed, number)
            table = store_randomization(
                ranking, score, slots=slots, rounds=rounds, deleted=deleted, seed=stream
            )
            yield table.select(
                pl.lit(task.scope).alias("scope"),
                pl.lit(task.group).alias("group"),
                "memory_id",
                "utility",
                "unchanged",
            )
            advance()


def _stream(seed: int, number: int) -> np.random.Generator:
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(1, number)))
