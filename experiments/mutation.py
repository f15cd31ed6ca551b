"""Would the tests notice? ``python -m experiments.mutation`` writes ``results/mutation.*``.

Every mutant has one thing changed in ``cmp/design`` or ``cmp/estimation``; the tests of that subpackage are run until
one fails. Survivors are gaps in the tests, or changes that nothing can notice: ``mutation_explained.toml`` says which.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any

import polars as pl
import typer
from rich.console import Console

from cmp.serving.offline import progress_bar
from experiments.markdown import percent, pipe_table
from experiments.mutant_trials import SLOW_SECONDS, Known, bench, fingerprint, trials
from experiments.mutants import mutants, operators_version
from experiments.records import ROOT, Run, data_home, plain_endings

PACKAGES = ("design", "estimation")
EXPLAINED = Path(__file__).with_name("mutation_explained.toml")
LEVEL = 0.95
SMOKE_MODULE, SMOKE_SAMPLE = "cmp/design/cards.py", 2
SCHEMA = {
    "package": pl.String,
    "module": pl.String,
    "line": pl.Int64,
    "operator": pl.String,
    "before": pl.String,
    "after": pl.String,
    "outcome": pl.String,
    "killer": pl.String,
    "seconds": pl.Float64,
    "explanation": pl.String,
}


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why mutants of one line may survive.

    Attributes
    ----------
    module, line
        Path of the module, and the text of the line.
    operators
        Names of operators, ``*`` for any characters.
    after
        What the line becomes, ``*`` for any characters.
    why
        What makes the change unnoticeable, or not worth a test.
    """

    module: str
    line: str
    operators: tuple[str, ...]
    why: str
    after: str = "*"

    def covers(self, row: dict[str, Any]) -> bool:
        """Whether a mutant is one of these."""
        return (
            (row["module"], row["before"]) == (self.module, self.line)
            and any(fnmatchcase(row["operator"], pattern) for pattern in self.operators)
            and (self.after == "*" or self.after == row["after"])
        )


def explanations(path: Path = EXPLAINED) -> list[Explanation]:
    """Return what is known of survivors."""
    with path.open("rb") as stream:
        entries = tomllib.load(stream).get("survivor", [])
    return [Explanation(**entry | {"operators": tuple(entry["operators"])}) for entry in entries]


def main(
    smoke: Annotated[bool, typer.Option(help="Two mutants of one module, in seconds.")] = False,
    package: Annotated[list[str] | None, typer.Option(help="design or estimation; both by default.")] = None,
    sample: Annotated[
        list[int] | None,
        typer.Option(
            help="Mutants drawn of a subpackage that has more; 0 tries all. Once, or once a package.", min=0
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the sample.", min=0)] = 1,
    workers: Annotated[int, typer.Option(help="Trials at a time, each in a copy of its own.", min=1)] = 1,
    results: Annotated[Path, typer.Option(help="Where to write.")] = Path("results"),
    cache: Annotated[Path, typer.Option(help="Trials already done.")] = ROOT / ".cache" / "mutation",
    allow_dirty: Annotated[bool, typer.Option(help="Run on a changed tree; marks the record.")] = False,
) -> None:
    """Try mutants of the design and of the estimation; write results/mutation.*."""
    console = Console(stderr=True)
    packages = ["design"] if smoke else list(package or PACKAGES)
    if unknown := set(packages) - set(PACKAGES):
        raise typer.BadParameter(f"{unknown.pop()} is none of {', '.join(PACKAGES)}", param_hint="--package")
    drawn = [SMOKE_SAMPLE] if smoke else (sample or [0])
    if len(drawn) not in (1, len(packages)):
        raise typer.BadParameter(f"{len(drawn)} sizes for {len(packages)} packages", param_hint="--sample")
    sizes = dict(zip(packages, drawn * len(packages) if len(drawn) == 1 else drawn, strict=True))
    with plain_endings(console, "trials so far are kept, run again to go on"):
        parameters = {
            "smoke": smoke,
            "packages": packages,
            "sample": sizes,
            "workers": workers,
            "level": LEVEL,
            "slow_seconds": SLOW_SECONDS,
            "operators": f"cosmic-ray {operators_version()}",
        }
        run = Run.start("mutation", parameters=parameters, seeds={"sample": seed}, allow_dirty=allow_dirty)
        _single_threaded()
        rows = [row for name in packages for row in _tried(name, sizes[name], seed, cache, workers, smoke)]
        known = explanations()
        for row in rows:
            row["explanation"] = next((entry.why for entry in known if entry.covers(row)), None)
        frame = pl.DataFrame(rows, schema=SCHEMA, orient="row")
        run.write(frame, page(frame, sizes), more={"modules": by_module(frame, sizes)}, results_dir=results)
    console.print(f"Wrote {results}/mutation.md and its tables.")


def _single_threaded() -> None:
    """Leave the machine's other cores to others, and show the tests their data."""
    os.environ |= {"POLARS_MAX_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    beside = data_home(None)
    if beside is not None:
        os.environ.setdefault("CMP_DATA", str(beside))


def _tried(
    package: str, sample: int, seed: int, cache: Path, workers: int, smoke: bool
) -> Iterator[dict[str, Any]]:
    """Yield one row a mutant."""
    with ExitStack() as open_benches:
        files = [SMOKE_MODULE] if smoke else ()
        benches = [open_benches.enter_context(bench(ROOT, package, files)) for _ in range(workers)]
        # from a copy alone, so that nobody's edit comes between the mutants and their tests
        place = benches[0].place
        every = sorted(path.relative_to(place).as_posix() for path in (place / "cmp" / package).glob("*.py"))
        modules = [SMOKE_MODULE] if smoke else [name for name in every if not name.endswith("__init__.py")]
        known = Known(cache / f"{package}-{fingerprint(place, package)}.jsonl")
        drawn = list(mutants(place, modules, sample, seed))
        with progress_bar(f"mutants of cmp/{package}", len(drawn), True) as advance:
            for mutant, trial in zip(drawn, trials(drawn, benches, known), strict=True):
                yield {
                    "package": package,
                    "module": mutant.site.module,
                    "line": mutant.line,
                    "operator": mutant.site.operator,
                    "before": mutant.before,
                    "after": mutant.after,
                    "outcome": trial.outcome,
                    "killer": trial.killer,
                    "seconds": trial.seconds,
                }
                advance()


def by_module(frame: pl.DataFrame, sizes: Mapping[str, int]) -> pl.DataFrame:
    """Return counts and the share found, by module and by subpackage (``module`` null).

    ``n_found`` of ``n_tried`` mutants were killed or timed out; incompetent ones are in neither. Where a subpackage was
    sampled, the limits are Clopper and Pearson's for the share of all its mutants; where all were tried, there is
    nothing to be unsure of.
    """
    found = pl.col("outcome").is_in(["killed", "timeout"])
    counts = [
        *((pl.col("outcome") == name).sum().alias(f"n_{name}") for name in ("killed", "timeout", "survived")),
        (pl.col("outcome") == "incompetent").sum().alias("n_incompetent"),
        ((pl.col("outcome") == "survived") & pl.col("explanation").is_not_null()).sum().alias("n_explained"),
        found.sum().alias("n_found"),
        (pl.col("outcome") != "incompetent").sum().alias("n_tried"),
        pl.col("seconds").mean().alias("mean_seconds"),
    ]
    tables = [frame.group_by("package", "module").agg(counts), frame.group_by("package").agg(counts)]
    table = pl.concat(tables, how="diagonal_relaxed").sort("package", "module", nulls_last=True)
    numbers = frame.group_by("package").len().iter_rows()
    sampled = {name for name, number in numbers if number == sizes.get(name)}
    limits = [
        _limits(found, tried) if package in sampled else (None, None)
        for package, found, tried in table.select("package", "n_found", "n_tried").iter_rows()
    ]
    return table.with_columns(
        pl.when(pl.col("n_tried") > 0).then(pl.col("n_found") / pl.col("n_tried")).alias("share"),
        pl.Series("ci_low", [low for low, _ in limits], dtype=pl.Float64),
        pl.Series("ci_high", [high for _, high in limits], dtype=pl.Float64),
    )


def _limits(found: int, tried: int) -> tuple[float | None, float | None]:
    from scipy.stats import binomtest

    if not tried:
        return None, None
    limits = binomtest(found, tried).proportion_ci(LEVEL, "exact")
    return float(limits.low), float(limits.high)


def page(frame: pl.DataFrame, sizes: Mapping[str, int]) -> str:
    """Return the page: the shares found, then every survivor with its reason."""
    table = by_module(frame, sizes)
    how = "; ".join(
        f"of cmp/{name} {f'a simple random sample of {size}, or all where there are fewer' if size else 'all'}"
        for name, size in sizes.items()
    )
    blocks = [
        "# Would the tests notice?",
        "A mutant is a module with one thing changed: an operator, a number, a condition, a loop, a decorator. Mutants "
        f"tried: {how}. For each, the subpackage's tests and examples are run until one fails, those of more "
        f"than {SLOW_SECONDS:g} s, simulations mostly, last. *Found* are those killed by a failing test, and those "
        "whose tests never ended. A mutant that cannot be imported is *incompetent* and counts nowhere. Changes of "
        "annotations, and changes that do not compile, are no mutants.",
        pipe_table(
            [
                "module",
                "found",
                "of",
                "share",
                f"{LEVEL:.0%} limits",
                "timeouts",
                "incompetent",
                "survived",
                "explained",
            ],
            [_row(row) for row in table.iter_rows(named=True)],
        ),
    ]
    survivors = frame.filter(pl.col("outcome") == "survived")
    unexplained = survivors.filter(pl.col("explanation").is_null())
    explained = survivors.filter(pl.col("explanation").is_not_null())
    blocks += ["## Survivors that nobody has explained", *(_shown(unexplained) or ["None."])]
    blocks += ["## Survivors explained"]
    for why in explained["explanation"].unique(maintain_order=True):
        blocks += [why, *_shown(explained.filter(pl.col("explanation") == why))]
    return "\n\n".join(blocks if explained.height else [*blocks, "None."])


def _row(row: dict[str, Any]) -> list[str]:
    name = row["module"] or f"**cmp/{row['package']}**"
    limits = "–" if row["ci_low"] is None else f"{percent(row['ci_low'])} to {percent(row['ci_high'])}"
    counts = [str(row[f"n_{name}"]) for name in ("timeout", "incompetent", "survived", "explained")]
    return [name, str(row["n_found"]), str(row["n_tried"]), percent(row["share"]), limits, *counts]


def _shown(survivors: pl.DataFrame) -> Sequence[str]:
    """Return a diff of one line for each survivor, by module."""
    blocks = []
    for (module,), rows in survivors.group_by("module", maintain_order=True):
        lines = [
            f"@@ line {row['line']}, {row['operator']} @@\n-{row['before']}\n+{row['after']}"
            for row in rows.iter_rows(named=True)
        ]
        blocks += [f"`{module}`", "\n".join(["```diff", *lines, "```"])]
    return blocks


if __name__ == "__main__":
    typer.run(main)
