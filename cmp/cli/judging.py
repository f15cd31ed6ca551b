"""The commands that judge: diagnose a log, plan a study, decide what to forget, write the report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from cmp.cli.application import (
    ByOption,
    FormatOption,
    LevelOption,
    LogPath,
    MetricOption,
    OutputOption,
    QrelsOption,
    app,
    examples,
)
from cmp.cli.output import Format, console, emit, errors, harmless, working


@app.command(
    epilog=examples(
        "cmpolicy diagnose exposures.db",
        "cmpolicy diagnose exposures.db --format json -o diagnosis.json || exit 1",
    )
)
def diagnose(
    log: LogPath,
    metric: MetricOption = "reward",
    level: Annotated[
        float, typer.Option(help="1 less the chance that a faultless log fails.", min=0.5, max=0.9999)
    ] = 0.99,
    output_format: FormatOption = Format.table,
    output: OutputOption = None,
) -> None:
    """Check a log against its design: draws, propensities, sample ratios, delivery, outcomes.

    Exit code 1 where a check fails.
    """
    import polars as pl

    from cmp.evaluation import diagnose as checked
    from cmp.evaluation.diagnostics import CHECKS, FAIL
    from cmp.log import open_log
    from cmp.serving.offline import progress_bar

    with progress_bar("checks", len(CHECKS), True) as advance:
        found = checked(open_log(log), metric, level, advance=lambda _: advance())
    if output_format is not Format.table:
        emit(found.frame, output_format, output, "diagnosis")
    else:
        columns = ["check", "state", "scope", "figure", "expected", "p_value", "n", "detail"]
        everywhere = (found.frame["scope"] == "*").all()
        shown = found.frame.select([name for name in columns if not (everywhere and name == "scope")])
        title, promise = found.headline()
        emit(shown, output_format, output, f"{title}; {promise}")
        for row in found.frame.filter(pl.col("state") == FAIL).iter_rows(named=True):
            errors().print(
                f"[bold red]FAIL[/] {harmless(row['check'])}: {harmless(row['mend'])}", soft_wrap=True
            )
    if not found.passed:
        raise typer.Exit(1)


@app.command(
    epilog=examples(
        "cmpolicy plan --n-memories 32 -B 6 -k 2 --rounds 90 --base-rate 0.2",
        "cmpolicy plan --effect 0.1 --sd 0.3 --reference-cards auto --family 32",
    )
)
def plan(
    n_memories: Annotated[
        int, typer.Option("--n-memories", "-N", help="Memories in the roster.", min=1)
    ] = 32,
    slots: Annotated[int, typer.Option("--slots", "-B", help="Context positions B.", min=1)] = 6,
    random_slots: Annotated[int, typer.Option("--random-slots", "-k", help="Random slots k.", min=1)] = 2,
    rounds: Annotated[
        int, typer.Option("--rounds", "-T", help="Rounds of a scope, or of each query.", min=1)
    ] = 90,
    base_rate: Annotated[float, typer.Option(help="Share of successes, for outcomes of 0 and 1.")] = 0.2,
    sd: Annotated[
        float | None, typer.Option(help="Standard deviation, for other outcomes.", show_default=False)
    ] = None,
    effect: Annotated[
        float | None,
        typer.Option(help="A utility to be found: says how many rounds that takes.", show_default=False),
    ] = None,
    reference_cards: Annotated[str, typer.Option(help="Blank cards in the roster, or auto.")] = "0",
    family: Annotated[int, typer.Option(help="Hypotheses tested at once.", min=1)] = 1,
    level: LevelOption = 0.95,
    power: Annotated[float, typer.Option(help="Chance to find the detectable effect.")] = 0.8,
    output_format: FormatOption = Format.table,
    output: OutputOption = None,
) -> None:
    """Say what a design can find out before it runs: exposures, widths, detectable effects, rounds, price."""
    from cmp.evaluation import plan as planned

    with working("planning"):
        found = planned(
            n_memories,
            slots,
            random_slots,
            rounds,
            base_rate,
            level,
            power,
            sd=sd,
            effect=effect,
            reference_cards=_cards(reference_cards),
            family=family,
        )
    shown = found.frame.drop([] if effect is not None else "power")
    emit(shown if output_format is Format.table else found.frame, output_format, output, found.summary())


def _cards(text: str) -> int | Literal["auto"]:
    if text == "auto":
        return "auto"
    if not text.isdecimal():
        raise typer.BadParameter(f"{text!r} is no number of cards, nor auto", param_hint="--reference-cards")
    return int(text)


@app.command(
    epilog=examples(
        "cmpolicy forget exposures.db --irreversibility 20",
        "cmpolicy forget exposures.db --format csv -o forget.csv",
    )
)
def forget(
    log: LogPath,
    irreversibility: Annotated[
        float, typer.Option(help="How much worse it is to forget what helps than to keep what harms.", min=1)
    ] = 10.0,
    by: ByOption = "memory",
    metric: MetricOption = "reward",
    output_format: FormatOption = Format.table,
    output: OutputOption = None,
) -> None:
    """Say which memories cost less to forget than to keep, and why. Needs reference cards; deletes nothing."""
    import polars as pl

    from cmp.estimation import utilities
    from cmp.evaluation import forget as decided
    from cmp.log import open_log

    with working("estimating"):
        frame = decided(utilities(open_log(log), by=by, metric=metric, reference="card"), irreversibility)
    frame = frame.sort("z", "memory_id", nulls_last=True)
    n = frame.filter(pl.col("decision") == "forget").height
    emit(
        frame,
        output_format,
        output,
        f"{n} of {frame.height} memories cost less to forget; nothing was deleted",
    )


@app.command(
    epilog=examples(
        "cmpolicy report exposures.db -o report.html",
        "cmpolicy report exposures.db -o report.html --by query --qrels labels.qrels",
    )
)
def report(
    log: LogPath,
    output: Annotated[Path, typer.Option("--output", "-o", help="Write to this file.")] = Path("report.html"),
    by: ByOption = "memory",
    metric: MetricOption = "reward",
    reference: Annotated[
        Literal["pool", "card"],
        typer.Option(help="Relative to the pool, or absolute against reference cards."),
    ] = "pool",
    level: LevelOption = 0.95,
    qrels: QrelsOption = None,
) -> None:
    """Write one HTML file with everything: the log's checks, utilities with intervals, support. No network."""
    from cmp.log import open_log
    from cmp.report import PARTS, write_report
    from cmp.serving.offline import progress_bar

    with progress_bar("report", PARTS, True) as advance:
        path = write_report(
            open_log(log),
            output,
            by=by,
            metric=metric,
            reference=reference,
            level=level,
            qrels=qrels,
            advance=lambda _: advance(),
        )
    console().print(f"written to {harmless(path)}", soft_wrap=True)
