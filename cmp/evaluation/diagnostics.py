"""Can this log be trusted: everything that must be true of it if the design was kept, each with a verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from cmp.errors import CmpError, LogUnavailableError
from cmp.estimation.from_rows import RowLog
from cmp.estimation.multiplicity import q_values
from cmp.estimation.settled import LogFrames
from cmp.evaluation import design_checks, outcome_checks, serving_checks
from cmp.evaluation.evidence import Evidence, MissingColumnError, Verdict
from cmp.evaluation.row_checks import verdicts_of_rows

__all__ = ["FAIL", "NOT_TESTABLE", "PASS", "Diagnosis", "diagnose"]

PASS: Final = "PASS"  # noqa: S105 (a verdict)
FAIL: Final = "FAIL"
NOT_TESTABLE: Final = "NOT TESTABLE"

TABLES: Final = ("rounds", "exposures", "outcomes", "blocks", "rosters")

#: Each check by the name of its verdict, in the order of the table.
CHECKS: Final[dict[str, Callable[[Evidence], Verdict]]] = {
    "log keeps its contract": serving_checks.check_readable,
    "draws are those of the table": design_checks.check_draws,
    "propensities are those of the design": design_checks.check_propensities,
    "propensities sum to k": design_checks.check_propensity_sums,
    "balance within one": design_checks.check_balance,
    "sample ratio": design_checks.check_sample_ratio,
    "lost rounds": design_checks.check_lost_rounds,
    "positivity": design_checks.check_positivity,
    "rounds are randomized": serving_checks.check_randomized,
    "retries": serving_checks.check_retries,
    "draws are delivered": serving_checks.check_delivery,
    "delivery does not depend on the slot": serving_checks.check_delivery_by_slot,
    "roster drift": serving_checks.check_rosters,
    "outcomes join": outcome_checks.check_joins,
    "missing outcomes do not depend on the draw": outcome_checks.check_missing,
    "missing outcomes were not filled with 0": outcome_checks.check_zeros,
    "outcomes come after their rounds": outcome_checks.check_lags,
    "one outcome a round": outcome_checks.check_revisions,
    "no outcome is an orphan": outcome_checks.check_orphans,
    "rounds of one episode": outcome_checks.check_episodes,
    "cards are alike (A/A)": outcome_checks.check_cards,
}

_SCHEMA: Final = {
    "check": pl.String, "scope": pl.String, "state": pl.String, "figure": pl.Float64, "expected": pl.Float64,
    "p_value": pl.Float64, "n": pl.Int64, "detail": pl.String, "mend": pl.String,
}  # fmt: skip


@dataclass(frozen=True, slots=True, repr=False)
class Diagnosis:
    """The verdicts on a log.

    Attributes
    ----------
    frame : polars.DataFrame
        One row a check: ``check``; ``scope`` where it was found (``"*"``: everywhere, or of none in particular);
        ``state``, ``"PASS"``, ``"FAIL"`` or ``"NOT TESTABLE"``; ``figure`` and ``expected``, what was seen and what the
        design says; ``p_value``, adjusted for all tests of the call (Holm), null for a check that is no test; ``n``,
        rounds, rows or memories looked at; ``detail``; ``mend``, what to do, null where it passes.
    level : float
        A log that keeps its design has no FAIL with at least this probability.
    metric : str
        Outcome looked at.

    Examples
    --------
    >>> verdicts = pl.DataFrame({"check": ["sample ratio", "lost rounds"], "state": ["PASS", "NOT TESTABLE"]})
    >>> Diagnosis(verdicts, 0.99, "reward").passed
    True
    """

    frame: pl.DataFrame
    level: float
    metric: str

    @property
    def passed(self) -> bool:
        """Whether no check failed. What is not testable has not failed."""
        return not (self.frame["state"] == FAIL).any()

    def __repr__(self) -> str:
        return self.summary()

    def headline(self) -> tuple[str, str]:
        """Return how many checks passed, and how often a log that keeps its design would not."""
        states = Counter(self.frame["state"].to_list())
        counts = ", ".join(f"{states[state]} {state}" for state in (PASS, FAIL, NOT_TESTABLE))
        return (
            f"{len(self.frame)} checks: {counts}",
            f"a log that keeps its design has any FAIL with probability {1 - self.level:.2g} at most",
        )

    def summary(self) -> str:
        """Return how many checks passed, and of those that failed what was seen and what to do."""
        lines = [*self.headline()]
        for row in self.frame.filter(pl.col("state") == FAIL).iter_rows(named=True):
            where = "" if row["scope"] == "*" else f" (scope {row['scope']!r})"
            chance = "" if row["p_value"] is None else f", p = {row['p_value']:.2g}"
            lines.append(f"FAIL {row['check']}{where}{chance}: {row['detail']}. {row['mend']}")
        return "\n".join(lines)


def diagnose(
    log: LogFrames | RowLog,
    metric: str = "reward",
    level: float = 0.99,
    *,
    advance: Callable[[int], None] | None = None,
) -> Diagnosis:
    """Check a log against its design: what was drawn, served, delivered and recorded. No utility is estimated.

    Facts are checked as such: draws are those of the stored tables, propensities are planned / length and sum to k.
    Where chance has a part the check is a test, exact given what is fixed: sample ratios of unfinished blocks
    (hypergeometric) and of the uniform design (binomial), rounds and outcomes lost by what was drawn (hypergeometric),
    cards against cards (permutations). All tests of a call are one family (Holm), each already adjusted for its
    memories, so that a log that keeps its design fails with probability ``1 - level`` at most.

    Parameters
    ----------
    log
        What ``cmp.open_log`` returns, or any object with its five frames; what these lack is not testable. Rows of
        another system, as ``cmp.from_frame`` took them, are tested for what is left to test.
    metric
        Name of the outcome.
    level
        1 less the chance of a false alarm.
    advance
        Called with 1 after each check, for a progress bar.

    Returns
    -------
    Diagnosis
        With ``frame``, ``passed`` and ``summary()``.

    Raises
    ------
    TypeError
        For what has not the five tables of a log.
    ValueError
        For a level outside (0, 1), or a metric that the log does not hold though it holds others.
    LogUnavailableError
        Where the log cannot be reached or read now; a log that is damaged is a verdict.

    References
    ----------
    Fabijan, A. et al. (2019). Diagnosing sample ratio mismatch in online controlled experiments. KDD, 2156-2164.
    Holm, S. (1979). A simple sequentially rejective multiple test procedure. Scandinavian Journal of Statistics 6,
    65-70.

    Examples
    --------
    >>> import tempfile, cmp
    >>> with tempfile.TemporaryDirectory() as folder, cmp.wrap(
    ...     lambda query: ["a", "b"], list_ids=lambda: "abcdef", get=list, slots=2, random_slots=1,
    ...     log=folder + "/x.db", scope=cmp.EVERYTHING, seed=1,
    ... ) as memory:
    ...     for number in range(30):
    ...         memory.record(memory.retrieve("q").round_id, number % 2)
    ...     diagnosis = diagnose(memory.log)
    >>> diagnosis.passed
    True
    """
    if not 0.0 < level < 1.0:
        raise ValueError(f"level={level!r}; give a probability between 0 and 1, such as 0.99")
    if isinstance(log, RowLog):
        return Diagnosis(_table(verdicts_of_rows(log), level), level, log.metric)
    if lacking := [name for name in TABLES if not callable(getattr(log, name, None))]:
        raise TypeError(
            f"{type(log).__name__} has no {lacking[0]}(): pass what cmp.open_log returns. Rounds of another system "
            "are checked as cmp.from_frame reads them; they have not the five tables of a log"
        )
    try:
        found = Evidence.of(log, metric)
    except LogUnavailableError:
        raise
    except (CmpError, pl.exceptions.PolarsError, OSError) as error:
        return _unreadable(error, level, metric)
    if "metric" in found.outcomes.columns:
        metrics = found.outcomes["metric"].unique().sort().to_list()
        if metrics and metric not in metrics:
            raise ValueError(
                f"the log holds no outcome of metric {metric!r}; it has {', '.join(map(repr, metrics))}"
            )
    verdicts = []
    for name, check in CHECKS.items():
        verdicts.append(_verdict(name, check, found))
        if advance is not None:
            advance(1)
    return Diagnosis(_table(verdicts, level), level, metric)


def _verdict(name: str, check: Callable[[Evidence], Verdict], found: Evidence) -> Verdict:
    """Return a check's verdict; where the log's own faults bar the way, it is not testable before they are mended."""
    try:
        return check(found)
    except MissingColumnError as error:
        return Verdict.untestable(name, str(error))
    except (CmpError, ValueError, pl.exceptions.PolarsError) as error:
        return Verdict.untestable(
            name, f"the log does not let it be tested: {error}", "Mend what fails first"
        )


def _unreadable(error: Exception, level: float, metric: str) -> Diagnosis:
    first, *others = CHECKS
    broken = Verdict(
        first, f"the log cannot be read ({error})", "Restore it from a copy or an export",
        figure=1.0, expected=0.0, failed=True,
    )  # fmt: skip
    rest = [Verdict.untestable(name, "the log cannot be read") for name in others]
    return Diagnosis(_table([broken, *rest], level), level, metric)


def _table(verdicts: list[Verdict], level: float) -> pl.DataFrame:
    own = np.array([np.nan if verdict.p_value is None else verdict.p_value for verdict in verdicts])
    adjusted = q_values(own, "holm")
    rows = []
    for verdict, p in zip(verdicts, adjusted.tolist(), strict=True):
        if verdict.p_value is not None:
            state = FAIL if p <= 1 - level else PASS
        elif verdict.failed is None:
            state = NOT_TESTABLE
        else:
            state = FAIL if verdict.failed else PASS
        mend = None if state == PASS else verdict.mend or None
        known = None if verdict.p_value is None else p
        rows.append(
            (
                *(verdict.check, verdict.scope, state, verdict.figure, verdict.expected),
                *(known, verdict.n, verdict.detail, mend),
            )
        )
    return pl.DataFrame(rows, schema=_SCHEMA, orient="row")
