"""Which memories does the ranker never reach? ``python -m experiments.support`` writes ``results/support.*``.

Five pools of real memories, lexical, dense and fused retrieval, the top 6; and how often deleting memories
from the store leaves what is retrieved as it was.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import polars as pl
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from cmp.evaluation.deletions import measure_unchanged
from cmp.evaluation.reach import SupportReport, support
from cmp.protocols import Scope
from cmp.retrievers import BM25
from experiments.pools import LOCOMO_TOKENS, LONG_K1, SHORT_K1, TURN_TOKENS, Pool, load_pools
from experiments.records import ROOT, Run, data_home, plain_endings
from experiments.references import CAPTIONS, MEASURED, OBSERVATIONS, PUBLISHED, TURNS, UNSTEMMED
from experiments.support_page import render

CUTOFF = 6
SEED = 20_261_130
SHARES = (0.0, 0.02, 0.05, 0.10, 0.20, 0.50)
QUERY_COUNTS = (5, 10, 20, 50, 100)


@dataclass
class Tables:
    """The tables of the page, filled pool by pool."""

    overview: list[pl.DataFrame] = field(default_factory=list)
    queries: list[dict[str, Any]] = field(default_factory=list)
    deletions: list[pl.DataFrame] = field(default_factory=list)
    sources: dict[str, str] = field(default_factory=dict)


def main(
    smoke: Annotated[bool, typer.Option(help="A corner of each benchmark, in seconds.")] = False,
    data: Annotated[Path | None, typer.Option(help="Where the benchmarks are; else $CMP_DATA.")] = None,
    results: Annotated[Path, typer.Option(help="Where to write.")] = Path("results"),
    cache: Annotated[Path, typer.Option(help="Embeddings already computed.")] = ROOT / ".cache" / "minilm",
    allow_dirty: Annotated[bool, typer.Option(help="Run on a changed tree; marks the record.")] = False,
) -> None:
    """Measure the support of BM25, dense and fused retrieval; write results/support.{csv,json,md}."""
    console = Console(stderr=True)
    draws = 2 if smoke else 10
    with plain_endings(console, "embeddings so far are kept, run again to go on"):
        run = Run.start(
            "support", parameters=parameters(smoke, draws), seeds={"draws": SEED}, allow_dirty=allow_dirty
        )
        tables = Tables()
        for pool in load_pools(data_home(data), cache, smoke=smoke):
            measure(pool, tables, draws, console)
        write(run, tables, results, smoke=smoke)
    console.print(f"Wrote {results}/support.md and its tables.")


def parameters(smoke: bool, draws: int) -> dict[str, Any]:
    """Return every setting that may move a number."""
    return {
        "smoke": smoke,
        "cutoff": CUTOFF,
        "bm25_k1": {"LoCoMo": SHORT_K1, "others": LONG_K1},
        "bm25": {"b": 0.75, "stopwords": "en", "idf": "lucene"},
        "fusion_constant": 60,
        "max_tokens": {"LoCoMo": LOCOMO_TOKENS, "others": TURN_TOKENS},
        "deleted_shares": SHARES,
        "deletion_draws": draws,
        "query_counts": QUERY_COUNTS,
        "query_draws": draws,
    }


def measure(pool: Pool, tables: Tables, draws: int, console: Console) -> None:
    """Embed, ask every question of every retriever, and delete from the stores where that is asked for."""
    benchmark = pool.benchmark
    tables.sources.update(benchmark.source)
    with progress(console, f"{pool.name}: embedding", len(pool.texts)) as advance:
        pool.encoder.encode(pool.texts, advance=advance)
    for name, retriever in pool.retrievers.items():
        with progress(console, f"{pool.name}: {name}", benchmark.questions.height) as advance:
            report = support(retriever, benchmark.questions, benchmark.qrels, cutoff=CUTOFF, advance=advance)
        tables.overview.append(overview(pool.name, name, report))
        if pool.name == CAPTIONS and name != UNSTEMMED:
            tables.queries.extend(fewer_queries(pool, name, report, draws, console))
    if pool.name in (TURNS, OBSERVATIONS):
        tables.deletions.extend(deletions(pool, draws, console))


def overview(pool: str, retriever: str, report: SupportReport) -> pl.DataFrame:
    """Return a report's overview as rows of the results table."""
    unreached = report.memories.filter(pl.col("n_queries") == 0).height
    return report.overview.select(
        pl.lit(pool).alias("pool"),
        pl.lit(retriever).alias("retriever"),
        pl.all(),
        pl.lit(CUTOFF).alias("cutoff"),
        pl.lit(report.memories.height).alias("n_memories"),
        pl.lit(unreached).alias("n_never_retrieved"),
        pl.lit(report.never_retrieved).alias("never_retrieved"),
    )


def fewer_queries(
    pool: Pool, retriever: str, full: SupportReport, draws: int, console: Console
) -> Iterator[dict[str, Any]]:
    """Yield never own and never any for some queries a conversation, drawn at random, and for all of them."""
    benchmark = pool.benchmark
    labelled = benchmark.questions.join(benchmark.qrels, on="query_id", how="semi", maintain_order="left")
    with progress(console, f"{pool.name}: {retriever}, fewer queries", len(QUERY_COUNTS) * draws) as advance:
        for size in QUERY_COUNTS:
            for draw in range(draws):
                questions = sample_by_scope(labelled, size, f"{SEED}/{size}/{draw}")
                qrels = benchmark.qrels.join(questions, on="query_id", how="semi")
                report = support(pool.retrievers[retriever], questions, qrels, cutoff=CUTOFF)
                yield query_row(pool.name, retriever, size, draw, report)
                advance(1)
    yield query_row(pool.name, retriever, None, 0, full)


def query_row(
    pool: str, retriever: str, size: int | None, draw: int, report: SupportReport
) -> dict[str, Any]:
    """Return one draw of a number of queries a scope; the number is null for all of them."""
    first = report.overview.row(0, named=True)
    kept = ("n_queries", "n_keys", "n_never_own", "never_own", "n_never_any", "never_any")
    row = {"pool": pool, "retriever": retriever, "queries_a_scope": size, "draw": draw}
    return row | {name: first[name] for name in kept}


def sample_by_scope(questions: pl.DataFrame, size: int, stream: str) -> pl.DataFrame:
    """Return ``size`` questions of each scope, those whose keyed hash is least."""
    keyed = [hashlib.sha256(f"{stream}/{query}".encode()).hexdigest() for query in questions["query_id"]]
    ordered = questions.with_columns(pl.Series("key", keyed)).sort("key")
    return ordered.group_by("scope", maintain_order=True).head(size).drop("key")


def deletions(pool: Pool, draws: int, console: Console) -> Iterator[pl.DataFrame]:
    """Yield how often deletions leave the top as it was: statistics fixed, and BM25 indexed again."""
    texts = {scope: pool.benchmark.texts(scope) for scope in pool.benchmark.scopes()}

    def reindexed(scope: Scope, ids: Sequence[str]) -> BM25:
        return BM25({scope.key: {id_: texts[scope.key][id_] for id_ in ids}}, k1=SHORT_K1)

    for ranking, retriever, rebuild in (
        ("BM25, statistics fixed", "BM25", None),
        ("BM25, indexed again", "BM25", reindexed),
        ("dense", "dense", None),
    ):
        total = len(texts) * len(SHARES) * draws
        with progress(console, f"{pool.name}: deletions, {ranking}", total) as advance:
            measured = measure_unchanged(
                pool.retrievers[retriever],
                pool.benchmark.questions,
                SHARES,
                cutoff=CUTOFF,
                draws=draws,
                seed=SEED,
                rebuild=rebuild,
                advance=advance,
            )
        yield measured.select(pl.lit(pool.name).alias("store"), pl.lit(ranking).alias("ranking"), pl.all())


def agreement(overview: pl.DataFrame) -> pl.DataFrame:
    """Return earlier measurements beside ours; a difference is theirs from ours."""
    rows = []
    for figure in MEASURED:
        ours = value_of(overview, figure.pool, figure.retriever, figure.category, figure.quantity)
        difference = None if ours is None else ours - figure.value
        rows.append(
            (figure.pool, figure.retriever, figure.category, figure.quantity, ours, figure.value, difference)
        )
    names = ["pool", "retriever", "category", "quantity", "ours", "earlier", "difference"]
    return pl.DataFrame(rows, schema=names, orient="row", infer_schema_length=None)


def beside_published(overview: pl.DataFrame) -> pl.DataFrame:
    """Return each published figure with ours for every retriever of the pool that comes nearest to theirs."""
    rows = []
    for claim in PUBLISHED:
        found = overview.filter((pl.col("pool") == claim.pool) & (pl.col("category") == "all"))
        for row in found.rows(named=True):
            pool_size = row["median_pool"] if claim.quantity == "median_rank_missed" else None
            ours = (row["retriever"], claim.quantity, row[claim.quantity], pool_size)
            rows.append((claim.claim, claim.figure, claim.pool, *ours))
    names = ["claim", "published", "pool", "retriever", "quantity", "ours", "median_pool"]
    return pl.DataFrame(rows, schema=names, orient="row", infer_schema_length=None)


def value_of(overview: pl.DataFrame, pool: str, retriever: str, category: str, quantity: str) -> float | None:
    """Return one cell of the results table, None where there is no such row."""
    keys = {"pool": pool, "retriever": retriever, "category": category}
    found = overview.filter(*(pl.col(name) == value for name, value in keys.items()))
    return None if found.is_empty() else found[quantity][0]


def write(run: Run, tables: Tables, results: Path, *, smoke: bool) -> None:
    """Write the tables, the page and the record."""
    frame = pl.concat(tables.overview)
    more = {
        "agreement": agreement(frame),
        "published": beside_published(frame),
        "queries": pl.DataFrame(tables.queries, infer_schema_length=None),
        "deletions": pl.concat(tables.deletions),
    }
    for name, sha256 in tables.sources.items():
        run.note_input(name, sha256)
    run.write(frame, render(frame, smoke=smoke, **more), more=more, results_dir=results)


@contextmanager
def progress(console: Console, what: str, total: int) -> Iterator[Any]:
    """Show a bar while the body runs; yields what to call with the number done."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(what, total=total)
        yield lambda number: bar.advance(task, number)


if __name__ == "__main__":
    typer.run(main)
