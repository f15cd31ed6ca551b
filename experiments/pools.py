"""The pools that support is measured on: real stores, real questions, and the retrievers asked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl

from cmp.datasets import Benchmark, load_locomo, load_longmemeval, load_memaware
from cmp.datasets.locomo import LocomoMemories
from cmp.retrievers import BM25, BestPart, Dense, Fused, MiniLM, ScoringBackend
from experiments.references import CAPTIONS, OBSERVATIONS, SESSIONS, SHARED, TURNS, UNSTEMMED

__all__ = ["Pool", "load_pools"]

#: BM25's saturation: the library's default on short turns, the textbook's on MemAware's long ones, as in the
#: earlier measurement.
SHORT_K1, LONG_K1 = 1.5, 1.2

#: LoCoMo's questions that have an answer; category 5 are traps.
ANSWERABLE = (1, 2, 3, 4)

#: Where the encoder cuts a text: LoCoMo's turns are short, the others' long turns say their matter early.
LOCOMO_TOKENS, TURN_TOKENS = 256, 128

SMOKE_QUESTIONS, SMOKE_MEMORIES = 8, 16


@dataclass(frozen=True)
class Pool:
    """One store with its questions, and the retrievers to ask.

    Attributes
    ----------
    name
        What is searched.
    benchmark
        Memories, questions and labels.
    encoder
        Embeds ``texts``, all that its dense retriever will ever need.
    texts
        Texts to embed.
    retrievers
        Named retrievers over the benchmark's memories.
    """

    name: str
    benchmark: Benchmark
    encoder: MiniLM
    texts: tuple[str, ...]
    retrievers: Mapping[str, ScoringBackend]


def load_pools(data: Path | None, cache: Path, *, smoke: bool) -> Iterator[Pool]:
    """Yield the five pools, one at a time: each is read when its turn comes."""
    trim: Callable[[Benchmark], Benchmark] = _trimmed if smoke else lambda benchmark: benchmark
    short = MiniLM(max_tokens=LOCOMO_TOKENS, cache_dir=cache)
    long = MiniLM(max_tokens=TURN_TOKENS, cache_dir=cache)
    locomo: tuple[tuple[str, LocomoMemories], ...] = (
        (TURNS, "turns"),
        (CAPTIONS, "turns_with_captions"),
        (OBSERVATIONS, "observations"),
    )
    for name, memories in locomo:
        yield _flat(name, trim(_answerable(load_locomo(data, memories=memories))), short, SHORT_K1)
    yield _sessions(trim(load_memaware(data, memories="sessions", include_abstention=True)), data, long)
    yield _flat(SHARED, trim(load_longmemeval(data, include_abstention=True)), long, LONG_K1)


def _flat(name: str, benchmark: Benchmark, encoder: MiniLM, k1: float) -> Pool:
    lexical = BM25.from_frame(benchmark.memories, k1=k1)
    dense = Dense.from_frame(benchmark.memories, encoder=encoder)
    retrievers = {
        "BM25": lexical,
        UNSTEMMED: BM25.from_frame(benchmark.memories, stem=False, k1=k1),
        "dense": dense,
        "fused": Fused([lexical, dense]),
    }
    return Pool(name, benchmark, encoder, _texts(benchmark.memories, benchmark), retrievers)


def _sessions(benchmark: Benchmark, data: Path | None, encoder: MiniLM) -> Pool:
    """Sessions are too long for the encoder: the dense retriever scores each by its best turn."""
    scope = benchmark.scopes()[0]
    wholes = {scope: benchmark.texts(scope)}
    turns = load_memaware(data, memories="turns", include_abstention=True).memories
    turns = turns.filter(pl.col("session").is_in(list(wholes[scope])))
    session_of = {scope: dict(zip(turns["memory_id"], turns["session"], strict=True))}
    lexical = BM25(wholes, k1=LONG_K1)
    dense = BestPart(wholes, Dense.from_frame(turns, encoder=encoder), session_of)
    retrievers = {"BM25": lexical, "dense, best turn": dense, "fused": Fused([lexical, dense])}
    return Pool(SESSIONS, benchmark, encoder, _texts(turns, benchmark), retrievers)


def _answerable(locomo: Benchmark) -> Benchmark:
    """Return LoCoMo without its traps, each category named beside its number."""
    named = pl.concat_str("category", "category_name", separator=" ")
    kept = locomo.select(categories=ANSWERABLE)
    return replace(kept, questions=kept.questions.with_columns(category=named))


def _texts(memories: pl.DataFrame, benchmark: Benchmark) -> tuple[str, ...]:
    texts: Iterable[str] = pl.concat([benchmark.questions["text"], memories["text"]]).unique(
        maintain_order=True
    )
    return tuple(texts)


def _trimmed(benchmark: Benchmark) -> Benchmark:
    """Return a corner of a benchmark: its first labelled questions, their keys and some other memories."""
    scope = benchmark.scopes()[0]
    labelled = benchmark.questions.join(benchmark.qrels, on="query_id", how="semi", maintain_order="left")
    questions = labelled.filter(pl.col("scope") == scope).head(SMOKE_QUESTIONS)
    qrels = benchmark.qrels.join(questions, on="query_id", how="semi", maintain_order="left")
    keys = pl.col("memory_id").is_in(qrels["memory_id"].to_list())
    store = benchmark.memories.filter(pl.col("scope") == scope).with_row_index("row")
    memories = store.filter(keys | (pl.col("row") < SMOKE_MEMORIES)).drop("row")
    return replace(benchmark, memories=memories, questions=questions, qrels=qrels)
