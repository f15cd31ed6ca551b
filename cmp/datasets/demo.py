"""A small store of memories for the demonstration: one invented person, thirty questions."""

from __future__ import annotations

import hashlib
import json
from importlib import resources

import polars as pl

from cmp.datasets.benchmark import Benchmark, Irregularities, label_frame

__all__ = ["load_demo"]

_STORE = "demo_store.json"
_SCOPE = "demo"


def load_demo() -> Benchmark:
    """Return the demonstration's store: 60 memories of one invented person, and 30 questions with their keys.

    It was written for this project. Twelve questions are ``direct``, they share words with the memory they
    need; eight are ``related``, of the same domain; ten are ``indirect``: they share no word with it, only
    its consequence, as a macaron recipe and an allergy to almonds do. The words of each gold answer stand in
    the question's key memories, which makes :func:`~cmp.datasets.answer_support` an outcome for it.

    Returns
    -------
    Benchmark
        ``memories`` also has ``date``; ``questions`` also has ``bridge``, what joins the question to its
        keys.

    References
    ----------
    The indirect questions follow the idea of InMind (arXiv 2607.24368).

    Examples
    --------
    >>> demo = load_demo()
    >>> demo.memories.height, demo.questions.height
    (60, 30)
    >>> demo.texts("demo")["d51"]
    "Leo's throat swells shut when he eats almonds, so an adrenaline pen travels everywhere with him."
    """
    raw = resources.files("cmp.datasets").joinpath(_STORE).read_bytes()
    store = json.loads(raw)
    memories = pl.DataFrame(store["memories"]).select(
        pl.lit(_SCOPE).alias("scope"), pl.col("id").alias("memory_id"), "text", pl.col("date").str.to_date()
    )
    questions = pl.DataFrame(store["questions"]).select(
        pl.col("id").alias("query_id"),
        pl.lit(_SCOPE).alias("scope"),
        "text",
        "answer",
        "category",
        pl.lit(True).alias("answerable"),
        "bridge",
    )
    labels = [(question["id"], _SCOPE, key) for question in store["questions"] for key in question["keys"]]
    return Benchmark(
        name="demo",
        memories=memories,
        questions=questions,
        qrels=label_frame(labels, questions.height, _STORE),
        irregularities=Irregularities().frame(),
        source={_STORE: hashlib.sha256(raw).hexdigest()},
    )
