"""``cmpolicy demo``: the main job on a small store, or on a LoCoMo conversation."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from shlex import quote
from uuid import uuid4

import polars as pl
from rich.console import Console

from cmp.cli.output import console, harmless, show
from cmp.datasets import Benchmark, load_demo, load_locomo
from cmp.evaluation import Auc
from cmp.retrievers import BM25, Pooled, cut_pools
from cmp.study import METRIC, Study, run_study

__all__ = ["demonstrate"]

#: A store larger than this is cut into pools, or its memories would be drawn less than once or twice a question.
WHOLE_STORE = 100

SHOWN = 5


def demonstrate(
    data: Path | None,
    conversation: str | None,
    *,
    slots: int,
    random_slots: int,
    rounds: int,
    pool: int,
    log: Path | None,
    seed: int,
) -> Study:
    """Run the study and print what it found."""
    out = console()
    benchmark = _benchmark(data, conversation)
    questions = benchmark.questions.filter(pl.col("answer").is_not_null() & pl.col("answerable"))
    asked = questions.join(
        benchmark.qrels.select("query_id").unique(), on="query_id", how="semi", maintain_order="left"
    )
    base = BM25.from_frame(benchmark.memories)
    out.print(
        f"[bold]{harmless(benchmark.name)}[/]: {benchmark.memories.height} memories, {asked.height} labelled questions",
        soft_wrap=True,
    )
    backend: BM25 | Pooled = base
    qrels = benchmark.qrels.join(asked.select("query_id"), on="query_id", how="semi")
    if benchmark.memories.height > WHOLE_STORE:
        cut = cut_pools(base, asked, qrels, size=pool)
        backend, asked, qrels = Pooled(base, cut.pools), cut.questions, cut.qrels
        out.print(
            f"cut into {len(cut.pools)} pools of up to {pool} memories (five questions each: their key memories and "
            f"what BM25 ranks best for them); {cut.left_out} questions with too many key memories left out",
            soft_wrap=True,
        )
    where = log or Path(tempfile.gettempdir()) / f"cmpolicy-demo-{uuid4().hex[:8]}.db"
    out.print(
        f"wrapped BM25, B = {slots} slots, k = {random_slots} of them random, {rounds} balanced rounds a question\n"
        "outcome: answer support, the share of the gold answer's words in the context (no model reads it)\n"
        f"log: {harmless(where)} (interrupted, the same call with --log {harmless(quote(str(where)))} goes on)\n",
        soft_wrap=True,
    )
    started = time.monotonic()
    study = run_study(
        backend, asked, qrels, where, slots=slots, random_slots=random_slots, rounds=rounds, seed=seed
    )
    _print(study, benchmark, out)
    out.print(
        f"\n{study.n_rounds:,} rounds in {time.monotonic() - started:.1f} s. The log is at {harmless(where)}\n"
        f"Look further:  cmpolicy estimate {harmless(quote(str(where)))} --by query --metric {METRIC}",
        soft_wrap=True,
    )
    return study


def _benchmark(data: Path | None, conversation: str | None) -> Benchmark:
    if data is None and conversation is None:
        return load_demo()
    benchmark = load_locomo(data)
    return benchmark.select(scope=conversation if conversation is not None else benchmark.scopes()[0])


def _print(study: Study, benchmark: Benchmark, out: Console) -> None:
    out.print(harmless(study.support.summary()), soft_wrap=True)
    out.print()
    texts = benchmark.memories.select("memory_id", "text").unique("memory_id")
    _ends(study.by_memory.frame, texts, "Utility of a memory over all questions", out)
    keys = study.by_query.frame.filter(pl.col("utility").is_not_null())
    _ends(keys, texts, "Utility of a memory for one question", out)
    show(_auc_table(study), "AUC of key memories against others, within question", out)
    out.print(
        f"Store randomization left the context unchanged in {study.unchanged:.1%} of its rounds.\n"
        "Utilities are relative to the pool: a memory shown displaces another, so ranks are meaningful, signs are not.",
        soft_wrap=True,
    )


def _ends(frame: pl.DataFrame, texts: pl.DataFrame, title: str, out: Console) -> None:
    ordered = frame.filter(pl.col("utility").is_not_null()).sort(
        "utility", "memory_id", descending=[True, False]
    )
    columns = [name for name in ("group", "memory_id") if name in ordered.columns]
    numbers = ["n_exposed", "utility", "ci_low", "ci_high", "q_value", "state"]
    table = ordered.join(texts, on="memory_id", how="left", maintain_order="left").select(
        *columns, *numbers, pl.col("text").str.slice(0, 60)
    )
    ends = table if table.height <= 2 * SHOWN else pl.concat([table.head(SHOWN), table.tail(SHOWN)])
    show(ends, f"{title}: top and bottom {SHOWN} of {frame.height}", out)
    out.print()


def _auc_table(study: Study) -> pl.DataFrame:
    names = {
        "by query": "random slots, per question",
        "ranker, same memories": "ranker's own score, same memories",
        "store randomization, same memories": "store randomization, same memories and budget",
        "ranker": "ranker's own score, all memories",
        "store randomization": "store randomization, all memories",
        "by memory": "random slots, per memory over all questions",
    }
    return pl.DataFrame([_auc_row(title, study.aucs[name]) for name, title in names.items()])


def _auc_row(title: str, result: Auc) -> dict[str, object]:
    return {
        "scored by": title,
        "AUC": result.auc,
        "ci_low": result.ci_low,
        "ci_high": result.ci_high,
        "keys": result.n_key,
        "others": result.n_other,
        "strata": result.n_strata,
        "keys left out": result.left_out_key,
    }
