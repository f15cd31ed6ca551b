"""What does randomizing identify? ``python -m experiments.identification`` writes ``results/identification.*``.

LoCoMo, pools of 32 turns, BM25, 6 slots. Key memories against others: scored by randomized slots (per question, per
memory), by a randomized store at the same number of rounds, and by the ranker itself. The outcome is answer support.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import polars as pl
import typer
from matplotlib.figure import Figure
from rich.console import Console

import cmp
from cmp.datasets import answer_support, load_locomo
from cmp.design import balanced_table
from cmp.evaluation import Auc, auc, read_qrels
from cmp.protocols import Scope
from cmp.retrievers import BM25, Pooled, Pools, cut_pools
from cmp.serving.offline import progress_bar
from cmp.study import METRIC, Question, Study, questions_of, run_study, score_support, store_utilities
from experiments.markdown import percent, pipe_table
from experiments.records import ROOT, Run, data_home, plain_endings

SLOTS, RANDOM_SLOTS, ROUNDS, POOL, QUESTIONS_PER_POOL = 6, 2, 90, 32, 5
SEEDS = {"assignment": 1, "store": 2, "assignment_per_memory": 3, "store_per_memory": 4}
DELETED = {"store randomization, 10 % away": 0.1, "store randomization, 50 % away": 0.5}
RANDOMIZED = "randomized slots"

#: AUC of the paper (arXiv 2610.02070), on other data and with a large model as reader.
PUBLISHED = {
    ("per memory", "store randomization, 10 % away"): 0.542,
    ("per memory", RANDOMIZED): 0.664,
    ("per question", RANDOMIZED): 0.784,
}
PUBLISHED_UNCHANGED = 0.522


#: A turn as it is searched and served. Most answers about time need the date of their turn.
DATED = pl.concat_str(pl.lit("["), pl.col("date").dt.strftime("%-d %B %Y"), pl.lit("] "), "text").alias(
    "text"
)


@dataclass(frozen=True)
class Setting:
    """Pools and their questions, ranked by BM25 with the statistics of the whole conversation."""

    cut: Pools
    backend: Pooled
    rounds: int

    @property
    def tasks(self) -> list[Question]:
        """The questions."""
        return questions_of(self.cut.questions)


def main(
    smoke: Annotated[bool, typer.Option(help="One pool and few rounds, in seconds.")] = False,
    data: Annotated[Path | None, typer.Option(help="Where LoCoMo is; else $CMP_DATA.")] = None,
    results: Annotated[Path, typer.Option(help="Where to write.")] = Path("results"),
    cache: Annotated[Path, typer.Option(help="Logs of rounds already run.")] = ROOT
    / ".cache"
    / "identification",
    pools: Annotated[int, typer.Option(help="Pools a conversation.", min=1)] = 100,
    allow_dirty: Annotated[bool, typer.Option(help="Run on a changed tree; marks the record.")] = False,
) -> None:
    """Measure AUCs of randomized slots, randomized stores and the ranker; write results/identification.*."""
    console = Console(stderr=True)
    rounds = 24 if smoke else ROUNDS
    parameters = {
        "smoke": smoke,
        "slots": SLOTS,
        "random_slots": RANDOM_SLOTS,
        "rounds": rounds,
        "pool": POOL,
        "questions_per_pool": QUESTIONS_PER_POOL,
        "pools_per_conversation_at_most": 1 if smoke else pools,
        "deleted_shares": list(DELETED.values()),
        "outcome": METRIC,
        "retriever": "BM25, k1 1.5, b 0.75, statistics of the whole conversation",
    }
    with plain_endings(console, "rounds so far are kept, run again to go on"):
        run = Run.start("identification", parameters=parameters, seeds=SEEDS, allow_dirty=allow_dirty)
        benchmark = load_locomo(data_home(data), memories="turns_with_captions").select(answerable=True)
        for name, sha256 in benchmark.source.items():
            run.note_input(name, sha256)
        base = BM25.from_frame(benchmark.memories.with_columns(DATED))
        cut = first_pools(
            cut_pools(base, benchmark.questions, benchmark.qrels, size=POOL), 1 if smoke else pools, smoke
        )
        setting = Setting(cut, Pooled(base, cut.pools), rounds)
        with tempfile.TemporaryDirectory() as scratch:
            frame, unchanged = measure(setting, Path(scratch) if smoke else cache)
        run.write(frame, page(frame, unchanged, setting, smoke), figure=figure(frame), results_dir=results)
    console.print(f"Wrote {results}/identification.md and its table.")


def first_pools(cut: Pools, number: int, smoke: bool) -> Pools:
    """Keep the first pools of each conversation (of one conversation for a smoke run)."""
    kept = [name for name in cut.pools if int(name.rsplit("/", 1)[1]) < number]
    kept = kept[:1] if smoke else kept
    inside = pl.col("scope").is_in(kept)
    return Pools(
        {name: cut.pools[name] for name in kept},
        cut.questions.filter(inside),
        cut.qrels.filter(inside),
        cut.left_out,
    )


def measure(setting: Setting, cache: Path) -> tuple[pl.DataFrame, dict[str, float]]:
    """Return the AUC of each scorer for each target, and how often deletions left the context as it was."""
    cache.mkdir(parents=True, exist_ok=True)
    name = f"{len(setting.cut.pools)}-{setting.rounds}"
    study = run_study(
        setting.backend,
        setting.cut.questions,
        setting.cut.qrels,
        cache / f"per-question-{name}.db",
        slots=SLOTS,
        random_slots=RANDOM_SLOTS,
        rounds=setting.rounds,
        seed=SEEDS["assignment"],
    )
    stores = {
        title: pl.concat(
            store_utilities(
                setting.backend, setting.tasks, SLOTS, setting.rounds, share, SEEDS["store"], True
            )
        )
        for title, share in DELETED.items()
    }
    per_memory = _per_memory(setting, cache / f"per-memory-{name}.db")
    rows = [*_question_rows(study, stores, setting), *_memory_rows(study, stores, per_memory, setting)]
    unchanged = {title: float(np.mean(table["unchanged"].to_numpy())) for title, table in stores.items()}
    return pl.DataFrame(rows, infer_schema_length=None), unchanged


def _question_rows(
    study: Study, stores: dict[str, pl.DataFrame], setting: Setting
) -> Iterator[dict[str, Any]]:
    """Yield AUCs within question: on the memories randomized slots could score, and on those never shown."""
    labels = read_qrels(setting.cut.qrels)
    key = ["scope", "group", "memory_id"]
    randomized = study.by_query.frame
    estimated = randomized.filter(pl.col("utility").is_not_null()).select(key)
    shown = pl.concat([_shown(setting.backend, task) for task in setting.tasks])
    scorers = {RANDOMIZED: randomized, **stores, "ranker's score": study.ranker}
    for memories, kept in (
        ("all", study.ranker.select(key)),
        ("estimated", estimated),
        ("never shown", estimated.join(shown, on=key, how="anti")),
    ):
        for scorer, table in scorers.items():
            result = auc(table.join(kept, on=key, how="semi"), labels)
            yield _row("per question", memories, scorer, setting.rounds, result)


def _shown(backend: Pooled, task: Question) -> pl.DataFrame:
    hits = backend.search(task.query, SLOTS, scope=Scope.of(task.scope))
    return pl.DataFrame({"scope": task.scope, "group": task.group, "memory_id": [hit.id for hit in hits]})


def _memory_rows(
    study: Study, stores: dict[str, pl.DataFrame], few: dict[str, pl.DataFrame], setting: Setting
) -> Iterator[dict[str, Any]]:
    """Yield AUCs within pool: a memory is key where any question of the pool needs it."""
    labels = read_qrels(setting.cut.qrels)
    shown = pl.concat([_shown(setting.backend, task) for task in setting.tasks]).select("scope", "memory_id")
    every = {RANDOMIZED: study.by_memory.frame.select("scope", "memory_id", "utility")}
    for title, table in stores.items():
        every[title] = table.group_by("scope", "memory_id").agg(pl.col("utility").mean())
    for target, rounds, scorers in (
        ("per memory", setting.rounds, few),
        ("per memory, all rounds of its questions", QUESTIONS_PER_POOL * setting.rounds, every),
    ):
        for memories in ("all", "never shown"):
            for scorer, table in scorers.items():
                kept = (
                    table if memories == "all" else table.join(shown, on=["scope", "memory_id"], how="anti")
                )
                yield _row(target, memories, scorer, rounds, auc(kept, labels))


def _per_memory(setting: Setting, log: Path) -> dict[str, pl.DataFrame]:
    """Return utilities per memory from as many rounds a pool as a question gets above, its questions in turn."""
    by_pool: dict[str, list[Question]] = {}
    for task in setting.tasks:
        by_pool.setdefault(task.scope, []).append(task)
    memory = cmp.wrap(
        setting.backend,
        slots=SLOTS,
        random_slots=RANDOM_SLOTS,
        rounds_per_block=setting.rounds,
        log=log,
        seed=SEEDS["assignment_per_memory"],
        on_error="raise",
    )
    with memory, progress_bar("rounds per memory", len(by_pool), True) as advance:
        for tasks in by_pool.values():
            for number in range(setting.rounds):
                task = tasks[number % len(tasks)]
                round_id = f"{task.scope}-{number}"
                context = memory.retrieve(task.query, scope=task.scope, round_id=round_id, group=task.group)
                memory.record(round_id, score_support(task, context), metric=METRIC)
            advance()
        tables = {RANDOMIZED: cmp.utilities(memory.log, by="memory", metric=METRIC).frame}
    for title, share in DELETED.items():
        tables[title] = pl.concat(
            [
                _store_per_memory(setting, tasks, share, number)
                for number, tasks in enumerate(by_pool.values())
            ]
        )
    return tables


def _store_per_memory(setting: Setting, tasks: list[Question], share: float, number: int) -> pl.DataFrame:
    """Return utilities per memory from balanced deletions, the pool's questions asked in turn."""
    scope = Scope.of(tasks[0].scope)
    ids = setting.backend.list_ids(scope=scope)
    place = {memory_id: position for position, memory_id in enumerate(ids)}
    rankings = [
        [place[hit.id] for hit in setting.backend.search(t.query, len(ids), scope=scope)] for t in tasks
    ]
    texts = [hit.item.text for hit in setting.backend.get(ids, scope=scope).values()]
    generator = np.random.default_rng(np.random.SeedSequence(SEEDS["store_per_memory"], spawn_key=(number,)))
    kept = np.ones((setting.rounds, len(ids)), dtype=bool)
    away = balanced_table(len(ids), setting.rounds, max(1, round(share * len(ids))), generator)
    np.put_along_axis(kept, away, values=False, axis=1)
    outcomes = []
    for row, present in enumerate(kept):
        which = row % len(tasks)
        top = [memory for memory in rankings[which] if present[memory]][:SLOTS]
        outcomes.append(answer_support(tasks[which].answer, [texts[memory] for memory in top]))
    table = cmp.estimate(kept, np.array(outcomes)).frame
    return table.select(
        pl.lit(scope.key).alias("scope"),
        pl.Series("memory_id", [ids[i] for i in table["memory_id"]]),
        "utility",
    )


def _row(target: str, memories: str, scorer: str, rounds: int, result: Auc) -> dict[str, Any]:
    names = ("auc", "std_error", "ci_low", "ci_high", "n_key", "n_other", "n_strata", "n_undefined")
    numbers = {name: getattr(result, name) for name in (*names, "left_out", "left_out_key")}
    published = PUBLISHED.get((target, scorer)) if memories in ("all", "estimated") else None
    return {
        "target": target, "memories": memories, "scorer": scorer, "rounds": rounds, **numbers, "published": published
    }  # fmt: skip


def page(frame: pl.DataFrame, unchanged: dict[str, float], setting: Setting, smoke: bool) -> str:
    """Return the page of results."""
    heads = [
        "target",
        "memories",
        "scored by",
        "rounds",
        "AUC",
        "95 %",
        "key",
        "other",
        "strata",
        "key left out",
        "paper",
    ]
    rows = [
        [
            row["target"], row["memories"], row["scorer"], str(row["rounds"]), _number(row["auc"]),
            f"{_number(row['ci_low'])} to {_number(row['ci_high'])}", str(row["n_key"]), str(row["n_other"]),
            str(row["n_strata"]), str(row["left_out_key"]), _number(row["published"]),
        ]
        for row in frame.iter_rows(named=True)
    ]  # fmt: skip
    same = "; ".join(f"{title}: {percent(share)}" for title, share in unchanged.items())
    questions = setting.cut.questions.height
    return f"""# What randomizing identifies

LoCoMo, {len(setting.cut.pools)} pools of {POOL} turns (date, speaker, text, caption), {questions} questions of all
answerable categories; {setting.cut.left_out} of the data set are left out, which have no key memory or more than
{POOL // 4}. A pool holds the key memories of {QUESTIONS_PER_POOL} questions and the turns that BM25 ranks best for
them in the whole conversation: what BM25 never reaches there it does not reach here. B = {SLOTS},
k = {RANDOM_SLOTS}. The outcome is answer support (the share of the gold answer's words in the context; it reads the
gold answer and no model).
{"**A smoke run: the numbers mean nothing.**" if smoke else ""}

{pipe_table(heads, rows)}

* *per question*: within question. *per memory*: within pool; a memory is key where a question of the pool needs it.
* *estimated*: memories for which randomized slots give an estimate. The others were ranked in every round of the
  question: slots alone cannot say what they do (withholding could), and a ranker's score favours them.
* *never shown*: of these, the ones outside the ranker's top {SLOTS} for the question (*per memory*: for every
  question of the pool).
* With 50 % of a pool away, the top {SLOTS} of what is left reaches some {2 * SLOTS} deep: such a store randomization
  shows what the ranker would not, and so does randomize what is retrieved, at the price of serving half a store.
  With 10 % away, as in a store one would dare to serve, it says next to nothing of a memory that is never shown.
* *per memory*, {ROUNDS} rounds are shared by {QUESTIONS_PER_POOL} questions with levels of their own: five or six
  exposures of a memory, of which one may meet the question that needs it.
* Intervals are clustered by question (*per question*) or by pool (*per memory*).
* Store deletions that left the context as it was: {same} (paper: {percent(PUBLISHED_UNCHANGED)}).
* The paper's figures are of other data and of a large model's answers, beside ours for the phenomenon, not as a target.

![AUC with intervals](identification.png)
"""


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def figure(frame: pl.DataFrame) -> Figure:
    """Return the AUCs with their intervals."""
    drawn = frame.filter(pl.col("auc").is_not_null())
    result = Figure(figsize=(8, 0.6 + 0.3 * drawn.height), layout="constrained")
    axes = result.subplots()
    for place, row in enumerate(drawn.iter_rows(named=True)):
        colour = "C0" if row["scorer"] == RANDOMIZED else "C1" if "store" in row["scorer"] else "0.5"
        axes.plot(row["auc"], place, "o", color=colour)
        if row["ci_low"] is not None:
            axes.plot([row["ci_low"], row["ci_high"]], [place, place], color=colour)
    labels = [f"{row['target']} ({row['memories']}): {row['scorer']}" for row in drawn.iter_rows(named=True)]
    axes.set_yticks(range(drawn.height), labels, fontsize=8)
    axes.axvline(0.5, color="0.8", linewidth=1)
    axes.invert_yaxis()
    axes.set_xlabel("AUC, key memories against others")
    return result


if __name__ == "__main__":
    typer.run(main)
