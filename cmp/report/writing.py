"""The report: what was asked, what was found, and how far it can be trusted."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import polars as pl

import cmp
from cmp.errors import CmpError, LogUnavailableError
from cmp.estimation import Utilities, utilities
from cmp.estimation.one_moment import as_of_one_moment
from cmp.evaluation import Diagnosis, Qrels, auc, diagnose, exposure_cost, read_qrels, support
from cmp.log.reading import Log
from cmp.log.replacing import write_whole
from cmp.report.forest import Estimate, draw_forest
from cmp.report.page import Html, note, page, section, table

__all__ = ["PARTS", "write_report"]

#: Steps that ``advance`` is called for.
PARTS: Final = 4

#: Rows of the utilities' table, and of the drawing: the highest and the lowest.
ROWS: Final = 500
DRAWN: Final = 40

#: Characters of a content's hash in the drawing; the table has all of it.
VERSION: Final = 8

#: What a table's zero means. Whoever reads a sign must have read this.
REFERENCES: Final = {
    "pool": "These utilities are relative to the pool: slots are fixed, so that showing a memory displaces another "
    "one, and its number is its effect less the mean effect of the others that might have had the slot. Ranks are "
    "meaningful; the sign is not. A memory with a negative number may well be useful, and must not be deleted for it. "
    "Absolute utilities need reference cards in the design.",
    "card": "These utilities are relative to a blank card: with effects that add up, they are what showing a memory "
    "does compared with showing nothing in its place (or the next ranked result, where cards are filled). They are a "
    "measurement for these queries, not a retention policy.",
}

_COLUMNS: Final = (
    *("scope", "group", "memory_id", "content_hash", "n_exposed", "n_control", "utility", "std_error"),
    *("ci_low", "ci_high", "p_value", "q_value", "state", "reason"),
)


def write_report(
    log: Log,
    path: str | os.PathLike[str],
    *,
    metric: str = "reward",
    by: str = "memory",
    reference: str = "pool",
    level: float = 0.95,
    qrels: Any = None,
    title: str = "Which memories help",
    advance: Callable[[int], None] | None = None,
) -> Path:
    """Write what a log shows to one HTML file that needs no network and runs no script.

    It holds what was asked; the states of memories; utilities with their intervals, drawn and in a table, under a
    sentence that says what their zero means; the checks of :func:`~cmp.diagnose`; what exploring cost, where rounds
    were held out; and, with labels, support and AUC. What the log does not allow is said in its place. All of it is of
    the moment the log was read, whoever writes to it meanwhile.

    Parameters
    ----------
    log
        What ``cmp.open_log`` returns.
    path
        Where to write; a file there is replaced.
    metric, by, reference, level
        As for :func:`~cmp.utilities`.
    qrels
        Key-memory labels, as :func:`~cmp.evaluation.read_qrels` reads them.
    title
        Heading of the page.
    advance
        Called with 1 after each of :data:`PARTS` parts, for a progress bar.

    Returns
    -------
    pathlib.Path
        The file.

    Raises
    ------
    ValueError
        For an option that :func:`~cmp.utilities` refuses of a log that passes its checks, or a metric it does not hold.
    LogUnavailableError
        Where the log cannot be reached.
    OSError
        Where the file cannot be written.

    Examples
    --------
    >>> import tempfile, cmp
    >>> with tempfile.TemporaryDirectory() as folder, cmp.wrap(
    ...     lambda query: ["a", "b"], list_ids=lambda: "abcdef", get=list, slots=2, random_slots=1,
    ...     log=folder + "/x.db", scope=cmp.EVERYTHING, seed=1,
    ... ) as memory:
    ...     for number in range(30):
    ...         memory.record(memory.retrieve("q").round_id, number % 2)
    ...     html = write_report(memory.log, folder + "/report.html").read_text("utf-8")
    >>> "relative to the pool" in html, "<script" in html
    (True, False)
    """
    labels = qrels if qrels is None or isinstance(qrels, Qrels) else read_qrels(qrels)
    step = advance or (lambda _: None)
    log = _read(log)
    diagnosis = diagnose(log, metric)
    step(1)
    parts = [_asked(log, metric, by, reference, level)]
    try:
        found: Utilities | None = utilities(log, by=by, reference=reference, level=level, metric=metric)
    except (CmpError, ValueError) as error:
        if diagnosis.passed:  # then it is not the log that does not allow it
            raise
        found = None
        parts.append(section("Utilities", note("The log does not allow an estimate:", error)))
    if found is not None:
        parts += _utilities(found)
    step(1)
    parts.append(_checks(diagnosis))
    parts += _cost(log, metric, level)
    step(1)
    if labels is not None:
        parts += _against_labels(log, found, labels, by, level)
    step(1)
    target = Path(path)
    write_whole(target, page(title, parts).encode())
    return target


def _read(log: Log) -> Log:
    """Read a log once, so that all parts tell of one moment; of one that is damaged each part says what it lacks."""
    try:
        return as_of_one_moment(log)
    except LogUnavailableError:
        raise
    except (CmpError, pl.exceptions.PolarsError, OSError):
        return log


def _asked(log: Log, metric: str, by: str, reference: str, level: float) -> Html:
    try:
        rounds = log.rounds().select("scope", "randomized", "asked_at").collect()
    except (CmpError, pl.exceptions.PolarsError, OSError) as error:
        return section("What was asked", note("The log cannot be read:", error))
    asked = rounds["asked_at"].sort().dt.strftime("%Y-%m-%d %H:%M")
    facts = {
        "outcome": metric,
        "a row is": {"memory": "a memory", "query": "a memory and a query"}.get(by, f"a memory and its {by}"),
        "relative to": f"the {reference}",
        "confidence": f"{level:.4g}",
        "rounds": f"{rounds.height:,}, {int(rounds['randomized'].sum()):,} of them randomized",
        "scopes": f"{rounds['scope'].n_unique():,}",
        "from, to": f"{asked[0]} to {asked[-1]} UTC" if len(asked) else "no rounds",
        "written by": f"causal-memory-policy {cmp.__version__}",
    }
    return section("What was asked", table(pl.DataFrame({"": list(facts), " ": list(facts.values())})))


def _utilities(found: Utilities) -> list[Html]:
    frame = found.frame
    states = frame["state"].value_counts(sort=True).rename({"count": "memories"})
    ordered = frame.sort("utility", "memory_id", descending=[True, False], nulls_last=True)
    known = ordered.filter(pl.col("utility").is_not_null())
    shown = (
        known
        if known.height <= DRAWN
        else pl.concat([known.head(DRAWN // 2), known.tail(DRAWN - DRAWN // 2)])
    )
    left_out = "" if known.height <= DRAWN else f"the {DRAWN // 2} highest and lowest of {known.height}"
    columns = [
        name for name in _COLUMNS if name in frame.columns and frame[name].null_count() < max(frame.height, 1)
    ]
    several = frame["scope"].n_unique() > 1
    estimates = [
        Estimate(_label(row, several), row["utility"], row["ci_low"], row["ci_high"])
        for row in shown.iter_rows(named=True)
    ]
    axis = f"utility ({found.metric}, relative to the {found.analysis.reference})"
    drawing = [draw_forest(estimates, axis)] if estimates else [note("No memory has an estimate.")]
    more = [note(f"{frame.height - ROWS:,} more rows are left out")] if frame.height > ROWS else []
    return [
        section("What is known", table(states), note(*found.summary().splitlines())),
        section(
            "Utilities",
            note(REFERENCES[found.analysis.reference]),
            *([note(left_out)] if left_out else []),
            *drawing,
            table(ordered.head(ROWS).select(columns)),
            *more,
            note("A dash is not zero: it is not known, and state and reason say why."),
        ),
    ]


def _label(row: dict[str, Any], several: bool) -> str:
    """Name a row of the drawing by all that tells it from the others; ``several``: there are several scopes."""
    parts = [row["scope"] if several else None, row["memory_id"], row.get("group")]
    version = row.get("content_hash")
    parts.append(None if version is None else version[:VERSION])
    return " \N{MIDDLE DOT} ".join(part for part in parts if part is not None)


def _checks(diagnosis: Diagnosis) -> Html:
    columns = ["check", "scope", "state", "figure", "expected", "p_value", "n", "detail", "mend"]
    verdict = (
        "No check failed." if diagnosis.passed else "A check failed: mend it before these numbers are used."
    )
    return section(
        "Can the log be trusted",
        note(verdict, *diagnosis.headline()),
        table(diagnosis.frame.select(columns)),
    )


def _cost(log: Log, metric: str, level: float) -> list[Html]:
    try:
        cost = exposure_cost(log, metric, level)
    except (
        CmpError,
        ValueError,
        pl.exceptions.PolarsError,
    ):  # no holdout, or nothing to be had from this log
        return []
    known = {name: value for name, value in asdict(cost).items() if value is not None}
    said = [note(known.pop("note"))] if cost.note else []
    return [section("What exploring cost", *said, table(pl.DataFrame([known])))]


def _against_labels(log: Log, found: Utilities | None, labels: Qrels, by: str, level: float) -> list[Html]:
    parts = []
    try:
        reached = support(log, qrels=labels)
        parts.append(section("Support", note(*reached.summary().splitlines()), table(reached.overview)))
        if found is not None and by == "version":
            parts.append(
                section(
                    "AUC of key memories against others",
                    note("Labels are of memories, not of their versions."),
                )
            )
        elif found is not None:
            within = "query" if by == "query" else "scope"
            area = auc(found, labels, within, level=level)
            names = ("auc", "std_error", "ci_low", "ci_high", "n_key", "n_other", "n_strata", "n_undefined")
            row = pl.DataFrame([{name: getattr(area, name) for name in names}])
            known = row.select(name for name in row.columns if row[name][0] is not None)
            more = [note(area.reason)] if area.reason else []
            parts.append(section(f"AUC of key memories against others, within {within}", table(known), *more))
    except (CmpError, ValueError) as error:
        parts.append(section("Against labels", note("The labels do not fit this log:", error)))
    return parts
