"""What makes utilities more precise? ``python -m experiments.precision`` writes ``results/precision.*``.

Covariates, queries, the other memories drawn, and a joint model of all memories, against the plain contrast: AUC,
width and coverage on simulated worlds and on LoCoMo, where every draw's outcome is known and so the truth is. Then
pairs: how many rounds it takes, and what is found.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import polars as pl
import typer
from rich.console import Console

from cmp.datasets import load_locomo
from cmp.errors import CmpError
from cmp.estimation.pairs import pair_utilities
from cmp.evaluation import auc, auc_arrays, compare_auc, read_qrels
from cmp.retrievers import BM25, Pooled, Pools, cut_pools
from cmp.serving.offline import progress_bar
from cmp.study import questions_of
from experiments.identification import DATED, POOL, RANDOM_SLOTS, ROUNDS, SLOTS, first_pools
from experiments.precision_draws import Draws, by_pool, draws_of, question_log, thread_log
from experiments.precision_methods import CONTRAST, METHODS, Scores, apply_method
from experiments.precision_page import render
from experiments.precision_tallies import Tally, compare_tallies
from experiments.precision_worlds import PairWorld, Setting, pair_worlds, settings
from experiments.records import Run, data_home, plain_endings
from experiments.worlds import assignment

SEED = 20_261_202
LARGE = 0.1

FloatArray = npt.NDArray[np.float64]


def main(
    smoke: Annotated[bool, typer.Option(help="A few draws of every world and one pool, in seconds.")] = False,
    draws: Annotated[int, typer.Option(min=2, help="Logs a world.")] = 200,
    data: Annotated[Path | None, typer.Option(help="Where LoCoMo is; else $CMP_DATA.")] = None,
    pools: Annotated[int, typer.Option(help="Pools a conversation.", min=1)] = 100,
    results: Annotated[Path, typer.Option(help="Where to write.")] = Path("results"),
    allow_dirty: Annotated[bool, typer.Option(help="Run on a changed tree; marks the record.")] = False,
) -> None:
    """Measure what each method buys over the plain contrast; write results/precision.{csv,json,md}."""
    console = Console(stderr=True)
    draws = 4 if smoke else draws
    parameters = {
        "smoke": smoke, "draws": draws, "pair_draws": draws, "level": 0.95, "slots": SLOTS,
        "random_slots": RANDOM_SLOTS, "rounds": ROUNDS, "pool": POOL, "large_utility": LARGE,
        "pools_per_conversation_at_most": 1 if smoke else pools, "methods": list(METHODS),
    }  # fmt: skip
    with plain_endings(console):
        run = Run.start("precision", parameters=parameters, seeds={"all": SEED}, allow_dirty=allow_dirty)
        rows = [row for setting in settings(SEED) for row in world_rows(setting, draws)]
        pairs = pl.DataFrame([row for world in pair_worlds() for row in pair_rows(world, draws)])
        skipped = ""
        try:
            benchmark = load_locomo(data_home(data), memories="turns_with_captions").select(answerable=True)
        except (CmpError, OSError) as error:
            skipped = f"LoCoMo was not found ({type(error).__name__}): its rows are left out."
            console.print(skipped)
        else:
            for name, sha256 in benchmark.source.items():
                run.note_input(name, sha256)
            base = BM25.from_frame(benchmark.memories.with_columns(DATED))
            cut = cut_pools(base, benchmark.questions, benchmark.qrels, size=POOL)
            cut = first_pools(cut, 1 if smoke else pools, smoke)
            rows += locomo_rows(cut, base)
        frame = pl.DataFrame(rows, infer_schema_length=None)
        page = render(frame, pairs, smoke=smoke, skipped=skipped)
        run.write(frame, page, more={"pairs": pairs}, results_dir=results)
    console.print(f"Wrote {results}/precision.md and its tables.")


def world_rows(setting: Setting, draws: int) -> list[dict[str, Any]]:
    """Log a world ``draws`` times and put every method's scores and limits against the truth."""
    truth, key = setting.world.truth, setting.key
    tallies: dict[str, Tally] = {}
    with progress_bar(setting.title, draws, True) as advance:
        for draw in range(draws):
            log = setting.draw([SEED, draw])
            for name in METHODS:
                scores = apply_method(name, log)
                if scores is not None:
                    found = auc_arrays(scores.utility, key).auc if key.any() else None
                    tallies.setdefault(name, Tally()).add(scores, truth, found)
            advance()
    size = str(setting.world.size)
    return [
        {"data": "simulated", "setting": setting.title, "size": size, "method": name}
        | compare_tallies(tally, tallies[CONTRAST])
        for name, tally in tallies.items()
    ]


def pair_rows(world: PairWorld, draws: int) -> list[dict[str, Any]]:
    """Log a world of pairs, and count for each kind of pair what is estimated, covered and found."""
    size, found = world.size, []
    with progress_bar(f"pairs, {size}", draws, True) as advance:
        for draw in range(draws):
            assigned = assignment(size, [SEED, draw])
            outcomes = world.draw(assigned, np.random.default_rng([SEED, draw, 1]))
            found.append(pair_utilities(assigned, outcomes, pairs=world.pairs, seed=draw))
            advance()
    truth = pl.Series("truth", [world.truth(pair) for pair in world.pairs] * draws)
    kinds = (
        ["only together"] + ["one of them"] * 2 + ["a helper and an inert one", "two helpers"] + ["inert"] * 3
    )
    table = pl.concat(found).with_columns(truth, kind=pl.Series(kinds * draws))
    estimated = pl.col("state") == "ESTIMATED"
    covered = (pl.col("ci_low") <= pl.col("truth")) & (pl.col("truth") <= pl.col("ci_high"))
    summary = table.group_by("kind", maintain_order=True).agg(
        pairs=pl.len(),
        together=pl.col("n_together").mean(),
        estimated=estimated.mean(),
        coverage=covered.filter(estimated).mean(),
        rejected=(pl.col("p_value") <= 0.05).filter(estimated).mean(),
        half_width=((pl.col("ci_high") - pl.col("ci_low")) / 2).filter(estimated).mean(),
    )
    rows: list[dict[str, Any]] = summary.with_columns(size=pl.lit(str(size))).to_dicts()
    return rows


def locomo_rows(cut: Pools, base: BM25) -> list[dict[str, Any]]:
    """Log every question, and every pool's questions in turn, once; AUCs against the labels, coverage of the truth."""
    backend, tasks = Pooled(base, cut.pools), questions_of(cut.questions)
    with progress_bar("LoCoMo, every draw", len(tasks), True) as advance:
        tables = []
        for task in tasks:
            tables.append(draws_of(backend, task, slots=SLOTS, random_slots=RANDOM_SLOTS))
            advance()
    labels = read_qrels(cut.qrels)
    rows: list[dict[str, Any]] = []
    for title, groups in (
        ("per question", [[one] for one in tables]),
        ("per memory, questions in turn", [pool for pool in by_pool(tables) if len(pool) > 1]),
    ):
        one_each = title == "per question"
        tallies: dict[str, Tally] = {}
        scored: dict[str, list[pl.DataFrame]] = {}
        with progress_bar(f"LoCoMo, {title}", len(groups), True) as advance:
            for number, group in enumerate(groups):
                _score_group(group, number, one_each, tallies, scored)
                advance()
        frames = {name: pl.concat(parts) for name, parts in scored.items()}
        for name, tally in tallies.items():
            found = auc(frames[name], labels)
            paired = compare_auc(frames[name], frames[CONTRAST], labels) if name != CONTRAST else None
            rows.append(
                {
                    "data": "LoCoMo",
                    "setting": title,
                    "size": f"T={ROUNDS}, N={POOL}, k={RANDOM_SLOTS}",
                    "method": name,
                }
                | compare_tallies(tally, tallies[CONTRAST])
                | {
                    "auc": found.auc,
                    "auc_difference": paired and paired.difference,
                    "auc_low": paired and paired.ci_low,
                    "auc_high": paired and paired.ci_high,
                    "worst_coverage": None,
                }
            )
    return rows


def _score_group(
    group: list[Draws],
    number: int,
    one_each: bool,
    tallies: dict[str, Tally],
    scored: dict[str, list[pl.DataFrame]],
) -> None:
    """Draw one log and score it by every method that applies; constant outcomes have no width to count."""
    rng = np.random.default_rng([SEED, len(group), number])
    log = question_log(group[0], ROUNDS, rng) if one_each else thread_log(group, ROUNDS, rng)
    truth = group[0].truth if one_each else np.full(POOL, np.nan)
    keys = {"scope": group[0].question.scope} | ({"group": group[0].question.group} if one_each else {})
    known: npt.NDArray[np.bool_] | None = None
    for name in METHODS:
        scores = apply_method(name, log)
        if scores is None:
            continue
        known = np.isfinite(scores.utility) if known is None else known  # the contrast comes first
        kept = Scores(*(np.where(known, part, np.nan) for part in scores))
        if np.ptp(log.outcomes) > 0.0 and known.any():
            tallies.setdefault(name, Tally()).add(kept, truth, None, large=LARGE)
        utility = np.where(known, np.nan_to_num(scores.utility), np.nan)
        ids = {"memory_id": list(group[0].ids), "utility": utility}
        frame = pl.DataFrame(ids, nan_to_null=True).with_columns(**{k: pl.lit(v) for k, v in keys.items()})
        scored.setdefault(name, []).append(frame)


if __name__ == "__main__":
    typer.run(main)
