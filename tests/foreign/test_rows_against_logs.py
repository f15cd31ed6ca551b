"""The same rounds give the same table: as a log of ours, as plain arrays, as rows of any dataframe."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

import cmp
from cmp.estimation.from_rows import utilities_of_rows
from cmp.foreign import ForeignLog, from_frame
from tests.estimation.logs import simulated
from tests.foreign.rows import rows_of, small

#: Sums are exact, and so equal; what is left is the rounding of one division more or less.
ROUNDING = 1e-12

#: Columns that say why a round was not eligible, or of content: rows do not know.
OF_THE_LOG = ["scope", "content_changed"]


def log_of(frame: pl.DataFrame, **more: object) -> ForeignLog:
    """Take rows with their strata and eligibility, sums unchecked where ranked memories have propensities of a draw."""
    return from_frame(frame, stratum="stratum", eligible="eligible", **more)  # type: ignore[arg-type]


def same(one: pl.DataFrame, two: pl.DataFrame, but: list[str] | None = None) -> None:
    drop = but or []
    assert_frame_equal(one.drop(drop), two.drop(drop), abs_tol=ROUNDING, rel_tol=ROUNDING, check_dtypes=False)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("estimator", ["difference", "hajek", "ht"])
@pytest.mark.parametrize("weights", ["precision", "rounds"])
def test_rows_of_a_log_give_the_table_of_the_log(seed, estimator, weights):
    made = simulated(seed)
    options = {"estimator": estimator, "weights": weights, "outcome_range": (-9.0, 9.0)}
    ours = cmp.utilities(made.log, **options).frame
    # a log knows that barred rounds were ranked ones: that shows in the reasons alone
    rows = utilities_of_rows(log_of(rows_of(made)), **options).frame
    same(ours, rows, [*OF_THE_LOG, "reason"])


@pytest.mark.parametrize("interval", ["auto", "newcombe", "moderated", "pooled", "neyman", "welch"])
def test_rows_and_arrays_have_the_same_intervals(interval):
    made = simulated(7)
    outcomes = (made.outcomes > 0).astype(float) if interval == "newcombe" else made.outcomes
    outcomes = np.where(np.isnan(made.outcomes), np.nan, outcomes)
    arrays = cmp.estimate(
        made.assigned,
        outcomes,
        made.strata,
        made.eligible,
        made.propensity,
        interval=interval,
    ).frame
    frame = rows_of(made).with_columns(outcome=np.repeat(outcomes, made.assigned.shape[1]))
    rows = utilities_of_rows(log_of(frame), interval=interval).frame
    same(arrays, rows, ["memory_id"])


@pytest.mark.parametrize("estimator", ["hajek", "ht"])
@pytest.mark.parametrize("binary", [True, False])
def test_propensities_that_differ_inside_a_stratum_are_weighted_as_arrays_are(estimator, binary):
    """One stratum over rosters that grow: 1/pi and 1/(1 - pi), and some rows certain."""
    made = simulated(3, blocks=4)
    outcomes = np.where(np.isnan(made.outcomes), np.nan, made.outcomes > 0) if binary else made.outcomes
    frame = rows_of(made).with_columns(outcome=np.repeat(outcomes, made.assigned.shape[1])).drop("stratum")
    rows = utilities_of_rows(from_frame(frame, eligible="eligible"), estimator=estimator).frame
    arrays = cmp.estimate(
        made.assigned, outcomes, None, made.eligible, made.propensity, estimator=estimator
    ).frame
    same(arrays, rows, ["memory_id"])
    with pytest.raises(ValueError, match="propensities differ inside a"):
        utilities_of_rows(from_frame(frame, eligible="eligible"))
    pairs = made.strata // 2
    frame = frame.with_columns(pair=np.repeat(pairs, made.assigned.shape[1]))
    arrays = cmp.estimate(
        made.assigned, outcomes, pairs, made.eligible, made.propensity, estimator=estimator
    ).frame
    log = from_frame(frame, eligible="eligible", stratum="pair")
    same(arrays, utilities_of_rows(log, estimator=estimator).frame, ["memory_id"])
    shared = from_frame(
        frame.with_columns(user=pl.col("round_id").str.slice(1).cast(pl.Int64) // 2),
        eligible="eligible", stratum="pair", episode="user",
    )  # fmt: skip
    table = utilities_of_rows(shared, estimator=estimator).frame
    assert table["utility"].to_list() == arrays["utility"].to_list()
    assert table["ci_low"].is_null().all()


def test_the_order_of_rows_leaves_no_trace():
    frame = rows_of(simulated(5)).with_columns(outcome=pl.col("outcome") * 0.1 + 1e9)
    one = utilities_of_rows(log_of(frame)).frame
    for seed in range(3):
        other = utilities_of_rows(log_of(frame.sample(fraction=1.0, shuffle=True, seed=seed))).frame
        assert_frame_equal(one, other, check_exact=True)


def test_a_roster_and_the_drawn_rows_are_the_rows_of_all():
    """Controls by subtraction; rows that are not eligible are listed beside the drawn ones."""
    made = simulated(2)
    frame = rows_of(made)
    roster = frame.select("stratum", "memory_id", "propensity").unique()
    part = frame.filter(pl.col("assigned") | ~pl.col("eligible"))
    for options in ({}, {"estimator": "ht"}, {"outcome_range": (-9.0, 9.0)}):
        whole = utilities_of_rows(log_of(frame), **options).frame
        same(whole, utilities_of_rows(log_of(part, roster=roster), **options).frame)


def test_by_query_a_roster_is_that_of_its_stratum():
    frame = small(rounds=24).with_columns(
        query=pl.col("round_id").str.slice(1).cast(pl.Int64) % 3,
        stratum=pl.col("round_id").str.slice(1).cast(pl.Int64) % 2,
    )
    roster = frame.select("stratum", "memory_id").unique()
    columns = {"stratum": "stratum", "query": "query"}
    whole = utilities_of_rows(from_frame(frame, **columns), by="query").frame
    part = utilities_of_rows(from_frame(frame.filter("assigned"), roster=roster, **columns), by="query").frame
    same(whole, part)
    assert whole.columns[:3] == ["scope", "group", "memory_id"]
    # by hand: within a query, strata apart, weighted by n1 n0 / n
    for row in whole.filter(pl.col("utility").is_not_null()).iter_rows(named=True):
        top = bottom = 0.0
        mine = frame.filter(
            (pl.col("query") == int(row["group"])) & (pl.col("memory_id") == row["memory_id"])
        )
        for _, cell in mine.group_by("stratum"):
            y1, y0 = (cell.filter(pl.col("assigned") == z)["outcome"] for z in (True, False))
            if len(y1) and len(y0):
                weight = len(y1) * len(y0) / cell.height
                top, bottom = top + weight * (y1.mean() - y0.mean()), bottom + weight
        assert row["utility"] == pytest.approx(top / bottom, abs=ROUNDING)


def test_scopes_are_apart_and_never_round_each_other():
    one, two = rows_of(simulated(1), scope="a"), rows_of(simulated(2), scope="b")
    two = two.with_columns(pl.col("round_id") + "'", outcome=pl.col("outcome") * 1e12)
    both = log_of(pl.concat([one, two]), scope="scope")
    table = utilities_of_rows(both).frame
    for scope, part in (("a", one), ("b", two)):
        alone = utilities_of_rows(log_of(part, scope="scope")).frame
        assert_frame_equal(table.filter(scope=scope).drop("q_value"), alone.drop("q_value"), check_exact=True)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("listed", ["all rows", "a roster"])
def test_rounds_that_share_an_outcome_are_not_taken_for_independent_ones(listed, size):
    """Eight rounds of few users (episodes), measured once a user: no interval for independent rounds is shown."""
    frame = small(n=2, rounds=8).with_columns(user=pl.col("round_id").str.slice(1).cast(pl.Int64) // size)
    more = {}
    if listed == "a roster":
        more["roster"] = frame.select("memory_id").unique()
        frame = frame.filter("assigned")
    plain = utilities_of_rows(from_frame(frame, **more)).frame
    shared = utilities_of_rows(from_frame(frame, episode="user", **more)).frame
    assert plain["ci_low"].is_not_null().all()
    assert shared["utility"].to_list() == plain["utility"].to_list()
    assert not (shared["interval"] == plain["interval"]).any() or shared["ci_low"].is_null().all()
    alone = frame.with_columns(user=pl.col("round_id"))
    same(plain, utilities_of_rows(from_frame(alone, episode="user", **more)).frame)


@pytest.mark.parametrize("kind", ["lazy", "pandas", "pandas of objects", "pyarrow", "categorical", "duckdb"])
def test_every_dataframe_gives_the_same_table(kind):
    frame = small(rounds=20).with_columns(outcome=pl.when(pl.col("round_id") != "r3").then("outcome"))
    if kind == "lazy":
        other = frame.lazy()
    elif kind == "pandas":
        other = frame.to_pandas()
    elif kind == "pandas of objects":
        other = frame.to_pandas().astype(object)
    elif kind == "pyarrow":
        other = frame.to_arrow()
    elif kind == "duckdb":
        other = pytest.importorskip("duckdb").sql("select * from frame")
    else:
        other = frame.with_columns(pl.col("round_id", "memory_id").cast(pl.Categorical))
    assert_frame_equal(
        utilities_of_rows(from_frame(frame)).frame,
        utilities_of_rows(from_frame(other)).frame,
        check_exact=True,
    )


def test_what_cannot_be_asked_of_rows_is_refused():
    log = from_frame(small())
    for options, said in (
        ({"by": "version"}, "by='version'"),
        ({"by": "query"}, "name no query"),
        ({"reference": "card"}, "reference='card'"),
        ({"outcome_range": (0.0, 0.5)}, "range"),
        ({"estimator": "magic"}, "magic"),
    ):
        with pytest.raises(ValueError, match=said):
            utilities_of_rows(log, **options)


def test_episodes_of_rows_are_the_episodes_of_the_log():
    """Clustered intervals agree: drawn, ranked and deleted memories, and rounds in episodes of one to three."""
    made = simulated(4, length=12)
    episodes = [f"e{t // 3}" if t % 12 < 9 else None for t in range(len(made.outcomes))]
    for row, episode in zip(made.log.rows["rounds"], episodes, strict=True):
        row["episode_id"] = episode
    shared = np.round(np.sin(np.arange(len(episodes)) // 3), 1)
    outcomes = np.where(
        np.isnan(made.outcomes), np.nan, np.where([e is None for e in episodes], made.outcomes, shared)
    )
    made.log.rows["outcomes"].clear()
    for t in np.flatnonzero(~np.isnan(outcomes)):
        made.log.add("outcomes", round_id=f"r{t}", metric="reward", value=float(outcomes[t]), revision=0)
    frame = rows_of(made).with_columns(
        outcome=np.repeat(outcomes, 6),
        session=pl.Series(np.repeat(np.array(episodes, dtype=object), 6).tolist()),
    )
    ours = cmp.utilities(made.log).frame
    assert ours["interval"].str.contains("cluster").any()
    same(ours, utilities_of_rows(log_of(frame, episode="session")).frame, [*OF_THE_LOG, "reason"])
    # a row that is not listed at all is in no arm either
    listed = frame.filter("eligible")
    unlisted = from_frame(listed, stratum="stratum", episode="session", sums_within=0.99)
    same(ours, utilities_of_rows(unlisted).frame, [*OF_THE_LOG, "reason"])
    roster = frame.select("stratum", "memory_id", "propensity").unique()
    part = frame.filter(pl.col("assigned") | ~pl.col("eligible"))
    implied = log_of(part, episode="session", roster=roster)
    same(ours, utilities_of_rows(implied).frame, [*OF_THE_LOG, "reason"])


@pytest.mark.parametrize("kind", ["randomization", "sequence"])
def test_intervals_that_look_at_rounds_or_at_their_order_are_those_of_arrays(kind):
    made = simulated(6, blocks=8)
    arrays = cmp.estimate(
        made.assigned, made.outcomes, made.strata, made.eligible, made.propensity, interval=kind
    ).frame
    frame = rows_of(made)
    same(arrays, utilities_of_rows(log_of(frame), interval=kind).frame, ["memory_id"])
    roster = frame.select("stratum", "memory_id", "propensity").unique()
    part = log_of(frame.filter(pl.col("assigned") | ~pl.col("eligible")), roster=roster)
    same(arrays, utilities_of_rows(part, interval=kind).frame, ["memory_id"])


def test_days_and_flags_are_strata_as_labels_are():
    frame = small(rounds=24)
    number = pl.col("round_id").str.slice(1).cast(pl.Int64)
    expected = utilities_of_rows(from_frame(frame.with_columns(at=number % 2), stratum="at")).frame
    for label in (number % 2 == 1, pl.date(2026, 1, 1) + pl.duration(days=number % 2)):
        same(expected, utilities_of_rows(from_frame(frame.with_columns(at=label), stratum="at")).frame)
    with pytest.raises(cmp.InvalidIdError, match="null or empty"):
        from_frame(frame.with_columns(at=pl.when(number > 0).then(number)), stratum="at")


def test_cells_found_by_sorting_are_those_found_by_a_table(monkeypatch):
    log = log_of(rows_of(simulated(5)))
    expected = utilities_of_rows(log).frame
    monkeypatch.setattr("cmp.estimation.sums._SPARSE", 0)
    assert_frame_equal(utilities_of_rows(log).frame, expected, check_exact=True)
