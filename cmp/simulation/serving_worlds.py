"""``cmp.simulate``: draw a world, and serve it round by round as an application would."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import polars as pl
from numpy.typing import ArrayLike

from cmp.evaluation import read_qrels
from cmp.log import GatheredLog, Log
from cmp.log.schema import TABLES
from cmp.serving import wrap
from cmp.simulation.plans import Plan
from cmp.simulation.served import Simulation
from cmp.simulation.truth import true_utilities
from cmp.simulation.worlds import WorldStore

__all__ = ["simulate"]


def simulate(
    n_memories: int = 32,
    *,
    rounds: int = 90,
    scopes: int = 1,
    queries: int = 1,
    utilities: ArrayLike | None = None,
    helpful: float = 0.2,
    harmful: float = 0.0,
    effect: float = 0.3,
    outcome: str = "binary",
    base_rate: float = 0.2,
    noise: float = 0.1,
    drift: float = 0.0,
    missing: float | tuple[float, float] = 0.0,
    reach: float = 0.5,
    skill: float = 0.0,
    additions: int = 0,
    deletions: int = 0,
    slots: int = 6,
    random_slots: int = 2,
    log: str | os.PathLike[str] | None = None,
    seed: int = 0,
    progress: bool = False,
    **design: Any,
) -> Simulation:
    """Serve a world whose utilities are known through the real wrapper, and return the log with its truth.

    A round's mean outcome is a level plus the utilities of the memories in its context. What ``cmp.utilities`` should
    find is computed by listing every set that a round may draw, so it is exact where means are cut to [0, 1] and
    where the ranker takes part: estimates of a fixed roster are unbiased for it. Where rosters, or levels under a
    binary outcome, change between blocks, the truth is the mean over eligible rounds, of which
    ``weights="precision"`` is a slightly different average.

    Parameters
    ----------
    n_memories, scopes, queries
        Memories of a scope at first; scopes; and queries of each scope, named ``"m000"``, ``"s0"``, ``"q0"`` and so on.
        All are asked in turn.
    rounds
        Rounds of each query.
    utilities
        What each memory adds to the mean outcome, additions counted: shape (memories,), (queries, memories) or
        (scopes, queries, memories). None draws them, by the next three.
    helpful, harmful, effect
        A memory adds ``effect`` to the mean for a query with chance ``helpful``, takes it away with ``harmful``.
    outcome
        ``"binary"`` (the mean is cut to [0, 1]), ``"continuous"`` (normal noise) or ``"heavy"`` (Student's t with 3
        degrees of freedom).
    base_rate
        Level: the mean outcome of an empty context.
    noise
        Scale of the noise of an outcome that is not binary.
    drift
        Standard deviation of the level between runs of rounds as long as the first block.
    missing
        Share of rounds whose outcome is never recorded; a pair gives it for contexts without a key memory, and with.
    reach
        Share of memories that the ranker ever returns.
    skill
        How much higher the ranker scores key memories, in standard deviations of its scores.
    additions, deletions
        Memories that come, and go, in each scope, evenly spaced over the rounds.
    slots, random_slots, **design
        As :func:`cmp.wrap` has them: ``allocation``, ``balance_within``, ``reference_cards``, ``card``, ``holdout``
        and the rest. With ``balance_within="group"`` a query's block has all its rounds. No ``withhold``.
    log
        Path of a log that does not exist yet, or ``postgresql://...``; None keeps the log in memory.
    seed
        Assignment, outcomes, missingness, levels, utilities and rankings each have a stream of their own. Whatever
        concerns a memory depends on no other, and a round's noise on no memory.
    progress
        Show a bar on a terminal.

    Returns
    -------
    Simulation

    Raises
    ------
    ValueError
        For a number out of range, utilities of another shape, a roster too large to list, or ``withhold``.
    FileExistsError
        Where there is something at the path ``log``.

    Examples
    --------
    >>> import cmp
    >>> from cmp.simulation import simulate
    >>> simulated = simulate(6, rounds=60, utilities=[0.5, 0, 0, 0, 0, 0], slots=2, random_slots=2, seed=1)
    >>> memory, own, pool = simulated.by_memory.select("memory_id", "true_own", "true_pool").row(0)
    >>> memory, own, round(pool, 9)
    ('m000', 0.5, 0.5)
    >>> simulated.score(cmp.utilities(simulated.log)).auc.auc
    1.0
    """
    plan = Plan(
        n_memories=n_memories,
        rounds=rounds,
        scopes=scopes,
        queries=queries,
        utilities=utilities,
        helpful=helpful,
        harmful=harmful,
        effect=effect,
        outcome=outcome,
        base_rate=base_rate,
        noise=noise,
        drift=drift,
        missing=missing,
        reach=reach,
        skill=skill,
        additions=additions,
        deletions=deletions,
        slots=slots,
        random_slots=random_slots,
        seed=seed,
        design=design,
    )
    if log is None:
        with TemporaryDirectory() as folder:
            return _served(plan, Path(folder) / "simulated.db", in_memory=True, progress=progress)
    place = os.fspath(log)
    if "://" not in place and Path(place).exists():
        raise FileExistsError(f"{place} exists; a simulation is of one world, so give it a log of its own")
    return _served(plan, place, in_memory=False, progress=progress)


def _served(plan: Plan, place: str | Path, *, in_memory: bool, progress: bool) -> Simulation:
    world = plan.world()
    store = WorldStore(world)
    with wrap(store, log=place, on_error="raise", seed=plan.wrapper_seed, **plan.settings) as memory:
        served = plan.serve(world, store, memory, progress=progress)
        memory.flush()
        written: Any = memory.log
        log: Log = _gathered(written) if in_memory else written
    by_memory, by_query = true_utilities(
        world, plan.kind, served, log, slots=plan.slots, fills_cards=plan.settings.get("card") == "ranked"
    )
    judged = by_query.select(
        pl.col("group").alias("query_id"),
        "scope",
        "memory_id",
        pl.col("key").cast(pl.Int64).alias("relevance"),
    )
    return Simulation(log, by_memory, by_query, read_qrels(judged), plan.seed)


def _gathered(log: Log) -> GatheredLog:
    """Return a log's rows in memory."""
    return GatheredLog({table: log.scan(table).collect().to_dicts() for table in TABLES})
