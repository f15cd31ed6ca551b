"""What people compute from a log today, and what we do: each in a process of its own, measured there.

:func:`main` runs one; its file gets the figures, and beside it the answer.
"""

from __future__ import annotations

import json
import os
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from experiments.rivals import bootstrap_fixed_weights

__all__ = ["PEERS", "keys", "main"]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

#: An answer: scope, perhaps group, memory_id, utility; and the share of all memories that it is for.
Answer = tuple[pl.DataFrame, float]

#: Memories that a slow peer is run for at most, and how long it is given; its time is scaled to all of them.
SAMPLED: Final = 40
SECONDS: Final = 60.0
RESAMPLES: Final = 1000


def keys(by: str) -> list[str]:
    """Return the columns that name a row of the answer."""
    return ["scope", *(["group"] if by == "query" else []), "memory_id"]


def plain_polars(log: Path, by: str) -> Answer:
    """Sum exposed and other rounds of each block by hand, and combine blocks by precision."""
    tables = {name: pl.scan_parquet(log / name / "*.parquet") for name in _TABLES}
    strata = ["block_id", *(["group"] if by == "query" else [])]
    y, drawn = pl.col("y"), pl.col("drawn")
    reward = tables["outcomes"].filter(pl.col("metric") == "reward").select("round_id", y=pl.col("value"))
    seen = tables["rounds"].select("round_id", "block_id", "scope", "group").join(reward, on="round_id")
    totals = seen.group_by([*strata, "scope"]).agg(n=pl.len(), t=y.sum(), q=(y**2).sum())
    rows = tables["exposures"].select("round_id", "memory_id", drawn=pl.col("arm") == "random")
    rows = rows.join(seen.select("round_id", "y", *strata), on="round_id")
    sums = rows.group_by([*strata, "memory_id"]).agg(
        n1=drawn.sum(), t1=y.filter(drawn).sum(), q1=(y**2).filter(drawn).sum(),
        nr=(~drawn).sum(), tr=y.filter(~drawn).sum(), qr=(y**2).filter(~drawn).sum(),
    )  # fmt: skip
    cells = tables["rosters"].select("block_id", "memory_id").join(totals, on="block_id")
    cells = cells.join(sums, on=[*strata, "memory_id"])
    n1, t1, q1 = pl.col("n1"), pl.col("t1"), pl.col("q1")
    n0, t0, q0 = (pl.col(of) - pl.col(f"{of}1") - pl.col(f"{of}r") for of in "ntq")
    weight = n1 * n0 / (n1 + n0)
    answer = (
        cells.filter((n1 > 0) & (n0 > 0))
        .group_by(keys(by))
        .agg(
            utility=(weight * (t1 / n1 - t0 / n0)).sum() / weight.sum(),
            n_exposed=n1.sum(),
            n_control=n0.sum(),
            squares=(q1 - t1**2 / n1 + q0 - t0**2 / n0).sum(),
        )
    )
    return answer.collect(engine="streaming"), 1.0


_TABLES: Final = ("rounds", "exposures", "outcomes", "rosters")


def duckdb_sql(log: Path, by: str) -> Answer:
    """The same in SQL."""
    import duckdb

    group = ', "group"' if by == "query" else ""
    query = f"""
    with seen as (
      select round_id, block_id, scope, "group", value as y
      from read_parquet('{log}/rounds/*.parquet') a join read_parquet('{log}/outcomes/*.parquet') o using (round_id)
      where metric = 'reward'),
    totals as (select block_id{group}, scope, count(*) n, sum(y) t, sum(y * y) q from seen group by all),
    sums as (
      select block_id{group}, memory_id,
        count(*) filter (arm = 'random') n1, sum(y) filter (arm = 'random') t1, sum(y * y) filter (arm = 'random') q1,
        count(*) filter (arm <> 'random') nr, coalesce(sum(y) filter (arm <> 'random'), 0) tr,
        coalesce(sum(y * y) filter (arm <> 'random'), 0) qr
      from read_parquet('{log}/exposures/*.parquet') e join seen using (round_id) group by all),
    cells as (
      select scope{group}, memory_id, n1, t1, q1, n - n1 - nr n0, t - t1 - tr t0, q - q1 - qr q0
      from (select block_id, memory_id from read_parquet('{log}/rosters/*.parquet') x) r
      join totals using (block_id) join sums using (block_id{group}, memory_id))
    select {", ".join(f'"{name}"' for name in keys(by))},
      sum(n1 * n0 / (n1 + n0) * (t1 / n1 - t0 / n0)) / sum(n1 * n0 / (n1 + n0)) utility,
      sum(n1) n_exposed, sum(n0) n_control, sum(q1 - t1 * t1 / n1 + q0 - t0 * t0 / n0) squares
    from cells where n1 > 0 and n0 > 0 group by all
    """  # noqa: S608 (paths and columns of ours)
    found = duckdb.sql(query)
    assert found is not None
    return found.pl(), 1.0


def numpy_in_memory(log: Path, by: str) -> Answer:
    """The bar: integer codes already in memory, a bincount for every sum. Reading and coding are not counted."""
    coded = _coded(log, by)
    _restart()
    n_cells = len(coded["memory"])
    cell, drawn, y = coded["cell"], coded["drawn"].astype(bool), coded["y"][coded["round"]]
    t, n = np.bincount(coded["stratum"], coded["y"]), np.bincount(coded["stratum"])
    sums = [
        np.bincount(cell[rows], values[rows], n_cells)
        for rows in (drawn, ~drawn)
        for values in (np.ones(len(y)), y)
    ]
    n1, t1, nr, tr = sums
    n0, t0 = n[coded["block"]] - n1 - nr, t[coded["block"]] - t1 - tr
    with np.errstate(divide="ignore", invalid="ignore"):
        weight = np.where((n1 > 0) & (n0 > 0), n1 * n0 / (n1 + n0), 0.0)
        gap = np.where(weight > 0, t1 / n1 - t0 / n0, 0.0)
        utility = np.bincount(coded["memory"], weight * gap) / np.bincount(coded["memory"], weight)
    return pl.DataFrame({"code": np.arange(len(utility)), "utility": utility}), 1.0


def _coded(log: Path, by: str) -> Mapping[str, npt.NDArray[Any]]:
    """Return integer codes: each round's stratum, each exposure row's round and cell, each cell's block."""
    seen = pl.scan_parquet(log / "rounds/*.parquet").select("round_id", "block_id", "scope", "group")
    seen = seen.join(
        pl.scan_parquet(log / "outcomes/*.parquet").select("round_id", y=pl.col("value")), on="round_id"
    )
    rounds = (
        seen.collect()
        .with_columns(stratum=pl.col("block_id").rank("dense").cast(pl.Int64) - 1)
        .with_row_index("round")
    )
    rows = pl.scan_parquet(log / "exposures/*.parquet").select(
        "round_id", "memory_id", drawn=pl.col("arm") == "random"
    )
    joined = (
        rows.join(rounds.lazy(), on="round_id")
        .select("round", "stratum", "memory_id", "drawn", *keys(by)[:-1])
        .collect()
    )
    joined = joined.with_columns(
        memory=pl.struct(keys(by)).rank("dense").cast(pl.Int64) - 1,
        cell=pl.struct("stratum", "memory_id").rank("dense").cast(pl.Int64) - 1,
    )
    cells = joined.group_by("cell").agg(pl.col("memory").first(), pl.col("stratum").first()).sort("cell")
    return {
        "y": rounds["y"].to_numpy(),
        "stratum": rounds["stratum"].to_numpy(),
        "round": joined["round"].cast(pl.Int64).to_numpy(),
        "cell": joined["cell"].to_numpy(),
        "drawn": joined["drawn"].to_numpy(),
        "memory": cells["memory"].to_numpy(),
        "block": cells["stratum"].to_numpy(),
    }


def least_squares(log: Path, by: str) -> Answer:
    """A regression of the outcome on having been drawn, one a memory, with HC2 errors: statsmodels."""
    import statsmodels.api as sm

    def fit(z: npt.NDArray[np.bool_], y: FloatArray) -> float:
        fitted = sm.OLS(y, sm.add_constant(z.astype(np.float64))).fit(cov_type="HC2")
        fitted.conf_int()
        return float(fitted.params[-1])

    return _one_by_one(log, by, fit)


def bootstrap(log: Path, by: str) -> Answer:
    """Self-normalized weights and their bootstrap, as in Open Bandit Pipeline: a thousand resamples a memory."""
    rng = np.random.default_rng(0)

    def fit(z: npt.NDArray[np.bool_], y: FloatArray) -> float:
        bootstrap_fixed_weights(z[:, None], y, np.array([z.mean()]), rng, resamples=RESAMPLES)
        return float(y[z].mean() - y[~z].mean())

    return _one_by_one(log, by, fit)


def _one_by_one(log: Path, by: str, fit: Callable[[npt.NDArray[np.bool_], FloatArray], float]) -> Answer:
    """Fit memories one at a time, over the rounds of their scope (and query) that did not rank them anyway."""
    key = keys(by)
    rounds = (
        pl.scan_parquet(log / "rounds/*.parquet")
        .join(pl.scan_parquet(log / "outcomes/*.parquet"), on="round_id")
        .select("round_id", "scope", "group", y=pl.col("value"))
        .collect()
    )
    exposures = pl.scan_parquet(log / "exposures/*.parquet").select("round_id", "memory_id", "arm")
    rows = exposures.join(rounds.lazy().select("round_id", "scope", "group"), on="round_id").collect()
    sides = rows.partition_by(key, as_dict=True, maintain_order=True)
    places = rounds.partition_by(key[:-1], as_dict=True)
    found, started = [], time.perf_counter()
    _restart()
    for name, side in list(sides.items())[:: max(1, len(sides) // SAMPLED)]:
        mine = places[name[:-1]].join(side.select("round_id", "arm"), on="round_id", how="left")
        eligible = mine.filter(pl.col("arm").is_null() | (pl.col("arm") == "random"))
        z = (eligible["arm"] == "random").fill_null(False).to_numpy()
        if 0 < z.sum() < len(z):
            found.append((*name, fit(z, eligible["y"].to_numpy())))
        if time.perf_counter() - started > SECONDS:
            break
    return pl.DataFrame(found, schema=[*key, "utility"], orient="row"), max(len(found), 1) / len(sides)


def ours(engine: str) -> Callable[[Path, str], Answer]:
    """Return what computes the whole table of utilities: states, intervals, exact p-values, q-values."""

    def run(log: Path, by: str) -> Answer:
        import cmp

        return cmp.utilities(cmp.open_log(log), by=by, engine=engine).frame, 1.0

    return run


#: What a peer imports, before it is timed; how long that takes is told apart.
IMPORTS: Mapping[str, Sequence[str]] = {
    "ours": ("cmp.estimation.from_log", "narwhals.stable.v2", "scipy.special", "scipy.fft", "scipy.sparse"),
    "DuckDB": ("duckdb", "pyarrow"),
    "Spark": ("pyspark.sql", "pyarrow"),
    "least squares": ("statsmodels.api",),
}

PEERS: Mapping[str, Callable[[Path, str], Answer]] = {
    "ours, polars": ours("polars"),
    "ours, DuckDB": ours("duckdb"),
    "ours, Spark": ours("spark"),
    "plain polars": plain_polars,
    "DuckDB SQL": duckdb_sql,
    "numpy in memory": numpy_in_memory,
    "least squares, HC2": least_squares,
    "bootstrap": bootstrap,
}

_began = {"cpu": 0.0, "wall": 0.0}


def _restart() -> None:
    """Count from here: what came before is not the peer's work."""
    _began["cpu"] = _used()
    _began["wall"] = time.perf_counter()


def _used() -> float:
    """Return the seconds of CPU that this process has taken, with those it waited for and those that still run."""
    own, below = (resource.getrusage(of) for of in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    ticks = os.sysconf("SC_CLK_TCK")
    fields = [Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split() for pid in _running()]
    running = sum(int(values[11]) + int(values[12]) for values in fields) / ticks  # in user and system mode
    return own.ru_utime + own.ru_stime + below.ru_utime + below.ru_stime + running


def _peak_mb() -> float:
    """Return the most memory that this process held, and those below it that still run."""
    status = [Path(f"/proc/{pid}/status").read_text("utf-8") for pid in _running()]
    below = [int(text.partition("VmHWM:")[2].split()[0]) for text in status if "VmHWM:" in text]
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss + sum(below)) / 1024


def _running(pid: str = "self") -> list[str]:
    """Return the processes below one, such as the machine that runs Spark; none where the system does not say."""
    lists = Path(f"/proc/{pid}/task").glob("*/children")
    children = [child for path in lists for child in path.read_text("utf-8").split()]
    return [each for child in children for each in (child, *_running(child))]


def main(name: str, log: str, by: str, out: str) -> None:
    """Run one peer and write its figures."""
    _restart()
    for part, modules in IMPORTS.items():
        if part in name:
            for module in modules:
                import_module(module)
    importing = _used() - _began["cpu"]
    _restart()
    answer, share = PEERS[name](Path(log), by)
    begun = dict(_began)
    _restart()
    figures = {
        "cpu_seconds": (_began["cpu"] - begun["cpu"]) / share,
        "wall_seconds": (_began["wall"] - begun["wall"]) / share,
        "import_seconds": importing,
        "peak_mb": _peak_mb(),
        "share": share,
        "rows": answer.height,
    }
    Path(out).write_text(json.dumps(figures), "utf-8")
    if "memory_id" in answer.columns:
        answer.sort(keys(by)).select(*keys(by), "utility").write_parquet(Path(out).with_suffix(".parquet"))
