"""The commands that run, estimate, compare and keep: demo, estimate, auc, support, validate, export."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from cmp.cli.application import (
    LOGS,
    ByOption,
    FormatOption,
    LevelOption,
    LogPath,
    MetricOption,
    OutputOption,
    app,
    examples,
)
from cmp.cli.output import Format, console, emit, errors, harmless, printable, working
from cmp.log.replacing import write_whole

if TYPE_CHECKING:
    import polars as pl

    from cmp.evaluation import SupportReport
    from cmp.retrievers import Fused, ScoringBackend


@app.command(epilog=examples("cmpolicy demo", "cmpolicy demo --data data/locomo --log demo.db"))
def demo(
    data: Annotated[
        Path | None,
        typer.Option(help="LoCoMo (locomo10.json, .gz, or its directory) in place of the built-in store."),
    ] = None,
    conversation: Annotated[
        str | None, typer.Option(help="Which LoCoMo conversation; the first by default.")
    ] = None,
    slots: Annotated[int, typer.Option("--slots", "-B", help="Context positions B.", min=1)] = 6,
    random_slots: Annotated[int, typer.Option("--random-slots", "-k", help="Random slots k.", min=1)] = 2,
    rounds: Annotated[int, typer.Option("--rounds", "-T", help="Rounds a question.", min=2)] = 90,
    pool: Annotated[int, typer.Option(help="Memories in a pool, where the store is large.", min=8)] = 32,
    log: Annotated[
        Path | None, typer.Option(help="Keep the log here; a run interrupted there goes on.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the assignment tables.", min=0)] = 0,
) -> None:
    """Run the main job on a small store: support, randomized rounds, utilities and AUCs. Offline, under a minute."""
    from cmp.cli.demonstration import demonstrate

    demonstrate(
        data,
        conversation,
        slots=slots,
        random_slots=random_slots,
        rounds=rounds,
        pool=pool,
        log=log,
        seed=seed,
    )


@app.command(
    epilog=examples(
        "cmpolicy estimate exposures.db",
        "cmpolicy estimate exposures.db --by query --format csv -o utilities.csv",
    )
)
def estimate(
    log: LogPath,
    by: Annotated[
        Literal["memory", "query", "version"],
        typer.Option(
            help="A row for each memory, for each memory and query, or for each content a memory had."
        ),
    ] = "memory",
    metric: MetricOption = "reward",
    estimator: Annotated[
        Literal["difference", "hajek", "ht"], typer.Option(help="Estimator.")
    ] = "difference",
    interval: Annotated[
        str, typer.Option(help="Interval, by any name cmp.utilities knows: auto, newcombe, moderated, ...")
    ] = "auto",
    reference: Annotated[
        Literal["pool", "card"],
        typer.Option(help="Relative to the pool, or absolute against reference cards."),
    ] = "pool",
    adjust: Annotated[Literal["bh", "by", "holm"], typer.Option(help="How q-values are made.")] = "bh",
    level: LevelOption = 0.95,
    outcome_range: Annotated[
        tuple[float, float] | None,
        typer.Option(
            help="Least and greatest outcome possible: adds bounds for outcomes that are missing.",
            show_default=False,
        ),
    ] = None,
    carryover: Annotated[
        Literal["include", "exclude"],
        typer.Option(help="Rounds of an episode after a memory was first shown in it."),
    ] = "include",
    window: Annotated[
        float | None,
        typer.Option(help="Days after a round in which an outcome counts.", min=0, show_default=False),
    ] = None,
    strata: Annotated[
        Literal["block", "query", "merged"],
        typer.Option(
            help="What is compared within: blocks, queries in a block, or short blocks put together."
        ),
    ] = "block",
    engine: Annotated[
        Literal["polars", "duckdb", "spark"], typer.Option(help="What reads and filters the rows.")
    ] = "polars",
    output_format: FormatOption = Format.table,
    output: OutputOption = None,
) -> None:
    """Estimate the utility of every memory in a log, with intervals."""
    import polars as pl

    from cmp.estimation import utilities
    from cmp.log import open_log

    with working("estimating"):
        result = utilities(
            open_log(log),
            by=by,
            metric=metric,
            estimator=estimator,
            interval=interval,
            reference=reference,
            adjust=adjust,
            level=level,
            outcome_range=outcome_range,
            carryover=carryover,
            window=_days(window),
            strata=strata,
            engine=engine,
        )
    frame = result.frame.sort("utility", descending=True, nulls_last=True)
    if output_format is not Format.table:
        emit(frame, output_format, output, "utilities")
        return
    columns = [
        "scope",
        "group",
        "memory_id",
        "content_hash",
        "n_exposed",
        "n_control",
        "utility",
        "std_error",
        "ci_low",
        "ci_high",
    ]
    columns += ["bound_low", "bound_high", "p_value", "q_value", "state", "reason"]
    shown = frame.select([name for name in columns if name in frame.columns])
    kept = shown.select([name for name in shown.columns if shown[name].null_count() < max(shown.height, 1)])
    emit(kept, output_format, output, result.summary())
    if output is None and frame.filter(pl.col("utility").is_null()).height:
        errors().print("A dash is not zero: it is not known, and state and reason say why.")


def _days(number: float | None) -> timedelta | None:
    try:
        return None if number is None else timedelta(days=number)
    except (OverflowError, ValueError):
        raise typer.BadParameter(
            f"{number:g} is no span of days from 0 to 999,999,999; leave it out to take outcomes however late",
            param_hint="--window",
        ) from None


@app.command(epilog=examples("cmpolicy auc exposures.db --qrels labels.qrels"))
def auc(
    log: LogPath,
    qrels: Annotated[
        Path,
        typer.Option(help="Key-memory labels: TREC qrels (query, 0, memory, relevance).", show_default=False),
    ],
    by: ByOption = "query",
    within: Annotated[Literal["query", "scope"], typer.Option(help="Strata of the comparison.")] = "query",
    metric: MetricOption = "reward",
    level: LevelOption = 0.95,
    output_format: FormatOption = Format.table,
    output: OutputOption = None,
) -> None:
    """Compare utilities with key-memory labels: the AUC, within query first, then pooled."""
    import polars as pl

    from cmp.estimation import utilities
    from cmp.evaluation import auc as area
    from cmp.evaluation import read_qrels
    from cmp.log import open_log

    with working("estimating"):
        found = utilities(open_log(log), by=by, metric=metric)
        result = area(found, read_qrels(qrels), within=within, level=level)
    rows = [("within " + within, result)] + ([("pooled", result.pooled)] if result.pooled is not None else [])
    names = [
        "auc",
        "std_error",
        "ci_low",
        "ci_high",
        "n_key",
        "n_other",
        "n_strata",
        "n_undefined",
        "tied",
        "left_out",
        "left_out_key",
        "reason",
    ]
    schema = {
        "auc": pl.Float64,
        "std_error": pl.Float64,
        "ci_low": pl.Float64,
        "ci_high": pl.Float64,
        "reason": pl.String,
    }
    frame = pl.DataFrame(
        [{"compared": title, **{name: getattr(value, name) for name in names}} for title, value in rows],
        schema_overrides=schema,
    )
    emit(frame, output_format, output, "AUC of key memories against others")
    if result.unknown_labels:
        some = ", ".join(map(repr, result.unknown_labels[:5]))
        errors().print(
            harmless(f"{len(result.unknown_labels)} labels name memories that are not in the log: {some}")
        )


@app.command(
    epilog=examples(
        "cmpolicy support exposures.db --qrels labels.qrels",
        "cmpolicy support --data data/locomo --retriever fused --cutoff 10",
    )
)
def support(
    log: Annotated[str | None, typer.Argument(help=LOGS + " Or give --data.", show_default=False)] = None,
    qrels: Annotated[
        Path | None, typer.Option(help="Key-memory labels, for a log.", show_default=False)
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="LoCoMo, a file or its directory, to report on a retriever over it.", show_default=False
        ),
    ] = None,
    retriever: Annotated[
        Literal["bm25", "dense", "fused"] | None, typer.Option(help="With --data; bm25 by default.")
    ] = None,
    memories: Annotated[
        Literal["turns", "turns_with_captions", "observations"] | None,
        typer.Option(help="What a memory is, with --data; turns_with_captions by default."),
    ] = None,
    cutoff: Annotated[
        int | None, typer.Option(help="Results that count as retrieved, with --data; 6 by default.", min=1)
    ] = None,
    output_format: FormatOption = Format.table,
    output: OutputOption = None,
) -> None:
    """Report which memories the ranker never reaches. Needs no outcome and no model."""
    from cmp.evaluation import read_qrels
    from cmp.evaluation import support as report
    from cmp.log import open_log

    if (log is None) == (data is None):
        raise typer.BadParameter("give either a log, or --data")
    strays = (
        {"--qrels": qrels}
        if log is None
        else {"--retriever": retriever, "--memories": memories, "--cutoff": cutoff}
    )
    for name, value in strays.items():
        if value is not None:
            raise typer.BadParameter(f"{name} does not go with {'--data' if log is None else 'a log'}")
    if log is not None:
        with working("reading the log"):
            found = report(open_log(log), qrels=None if qrels is None else read_qrels(qrels))
    else:
        found = _support_on_locomo(data, retriever or "bm25", memories or "turns_with_captions", cutoff or 6)
    if output_format is not Format.table:
        emit(found.overview, output_format, output, "support")
    elif output is not None:
        write_whole(output, (printable(found.summary(), but="\n") + "\n").encode())
    else:
        console().print(harmless(found.summary()), soft_wrap=True)


def _support_on_locomo(
    data: Path | None,
    retriever: str,
    memories: Literal["turns", "turns_with_captions", "observations"],
    cutoff: int,
) -> SupportReport:
    from cmp.datasets import load_locomo
    from cmp.evaluation import support as report
    from cmp.serving.offline import progress_bar

    benchmark = load_locomo(data, memories=memories).select(answerable=True)
    with progress_bar("queries", benchmark.questions.height, True) as advance:
        return report(
            _retriever(retriever, benchmark.memories),
            benchmark.questions,
            benchmark.qrels,
            cutoff=cutoff,
            advance=lambda _: advance(),
        )


@app.command(epilog=examples("cmpolicy validate exposures.db"))
def validate(
    log: LogPath,
    output_format: FormatOption = Format.table,
    output: OutputOption = None,
) -> None:
    """Check a log against its contract; exit code 1 where something is wrong."""
    import polars as pl

    from cmp.log import open_log, validate_log

    with working("checking"):
        findings = validate_log(open_log(log))
    names = ("table", "row", "problem", "mend")
    frame = pl.DataFrame(
        [[getattr(finding, name) for name in names] for finding in findings],
        schema=dict.fromkeys(names, pl.String),
        orient="row",
    )
    if findings or output_format is not Format.table:
        emit(frame, output_format, output, f"{len(findings)} findings")
    else:
        console().print("no findings")
    if findings:
        raise typer.Exit(1)


@app.command(epilog=examples("cmpolicy export exposures.db exported/"))
def export(
    log: LogPath,
    directory: Annotated[
        Path, typer.Argument(help="Where to; it must not exist, or be empty.", show_default=False)
    ],
    overwrite: Annotated[bool, typer.Option(help="Replace an exported log that is there.")] = False,
) -> None:
    """Export a log to Parquet, one folder a table. `cmp.open_log` and the other commands read it back."""
    from cmp.log import open_log

    with working("exporting"):
        target = open_log(log).export(directory, overwrite=overwrite)
    console().print(f"exported to {harmless(target)}")


def _retriever(name: str, memories: pl.DataFrame) -> ScoringBackend | Fused:
    from cmp.retrievers import BM25, Dense, Fused

    if name == "bm25":
        return BM25.from_frame(memories)
    if name == "dense":
        return Dense.from_frame(memories)
    return Fused([BM25.from_frame(memories), Dense.from_frame(memories)])
