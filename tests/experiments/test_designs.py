"""What coverage in every design is measured against, and how its logs are written."""

from __future__ import annotations

import ast
from dataclasses import replace
from itertools import combinations, product

import numpy as np
import pytest

from cmp.estimation import utilities
from cmp.serving.slots import Drawn, Layout, lay_out
from experiments.designs import DESIGNS, FAMILIES, RANKED_SLOTS, WITHHELD, Design, design_world, kinds_of
from experiments.designs_draw import (
    Batch,
    chance_missing,
    contrasts_of,
    draw_batch,
    draw_tables,
    queries,
    round_contrasts,
)
from experiments.designs_log import frames_of
from experiments.designs_measure import episodes_of, measure_design, reader
from experiments.designs_withheld import ranked_part, withheld_contrasts
from experiments.intervals import DESIGN_SOURCES, SOURCES
from experiments.records import ROOT
from experiments.worlds import Size, World, contrasts, make_world

#: Closed forms against means over every table or context of a small design.
EXACT = 1e-12
#: Limbs hold outcomes to 1e-13 of the largest, and differences of sums of a few hundred of them are compared.
SUMS = 1e-10


def every_table(n: int, rounds: int, count: int) -> list[np.ndarray]:
    """Return all tables of one memory a round in which each of n stands in ``count`` rounds."""
    tables = (np.array(table) for table in product(range(n), repeat=rounds))
    return [table for table in tables if (np.bincount(table, minlength=n) == count).all()]


def additive(level: list[float], effect: list[float], k: int) -> World:
    size = Size(len(level), len(effect), k)
    return World(size, np.array(level), np.array(effect), False, lambda mean, _: mean)


def batch_of(design: Design, world: World, seed: int, logs: int = 2) -> tuple[Batch, np.ndarray]:
    """Return some logs of a design, and which rounds share outcomes."""
    episodes = episodes_of(design, np.random.default_rng(seed))
    parts = contrasts_of(design, world, episodes)
    return draw_batch(design, world, episodes, parts, logs, [seed]), episodes


def named(key: str) -> Design:
    return next(one for one in DESIGNS if one.key == key)


def mean_gap(y: np.ndarray, shown: np.ndarray) -> float:
    return float(y[shown].mean() - y[~shown].mean())


@pytest.mark.parametrize("bounded", [False, True])
def test_contrasts_in_a_roster_that_grows_are_what_listing_every_draw_gives(bounded):
    rng = np.random.default_rng(0)
    level, effect = rng.uniform(0, 1, 4), np.array([0.45, 0, 0, 0.45, 0, 0.45])
    present = np.arange(6) < np.array([3, 4, 5, 6])[:, None]
    found = contrasts(level, effect, 2, bounded=bounded, present=present)
    for t, roster in enumerate(present):
        means: dict[tuple[int, bool], list[float]] = {}
        for shown in combinations(np.flatnonzero(roster), 2):
            mean = level[t] + effect[list(shown)].sum()
            for m in np.flatnonzero(roster):
                means.setdefault((m, m in shown), []).append(np.clip(mean, 0, 1) if bounded else mean)
        for m in np.flatnonzero(roster):
            assert found[t, m] == pytest.approx(np.mean(means[m, True]) - np.mean(means[m, False]), abs=EXACT)


@pytest.mark.parametrize("episodes", [[0, 0, 0, 1, 2, 2], [0, 1, 1, 1, 1, 2], [0, 1, 2, 3, 4, 5]])
def test_the_contrast_of_shared_outcomes_is_the_mean_estimate_over_every_table(episodes):
    world = additive([0.3, 0.1, 0.5, 0.2, 0.9, 0.4], [0.7, -0.2, 0.1], 1)
    design = Design("episodes-x", "", 3, 1, ((6, 6),), longest=4)
    codes = np.array(episodes)
    estimates = []
    for table in every_table(3, 6, 2):
        mean = world.level + world.effect[table]
        y = (np.bincount(codes, mean) / np.bincount(codes))[codes]
        estimates.append([mean_gap(y, table == m) for m in range(3)])
    want = round_contrasts(design, world, codes).mean(axis=0)
    np.testing.assert_allclose(np.mean(estimates, axis=0), want, atol=EXACT)


def test_given_its_count_an_estimate_of_a_block_that_stops_is_of_the_rounds_used():
    world = additive([0.3, 0.1, 0.5, 0.2, 0.9, 0.4], [0.7, -0.2, 0.1], 1)
    bounded = replace(world, bounded=True, effect=np.array([0.7, 0.0, 0.0]))
    for one in (world, bounded):
        by_count: dict[int, list[float]] = {}
        for table in every_table(3, 6, 2):
            used = table[:4]
            mean = one.level[:4] + one.effect[used]
            y = np.clip(mean, 0, 1) if one.bounded else mean
            if (used == 0).any():
                by_count.setdefault(int((used == 0).sum()), []).append(mean_gap(y, used == 0))
        want = contrasts(one.level[:4], one.effect, 1, bounded=one.bounded)[:, 0].mean()
        assert len(by_count) == 2
        for estimates in by_count.values():
            assert np.mean(estimates) == pytest.approx(want, abs=EXACT)


@pytest.mark.parametrize("kind", ["binary", "rare", "continuous"])
def test_against_cards_the_truth_is_the_memorys_own_effect(kind):
    world = design_world(named("cards-3"), kind, 1)
    batch, _ = batch_of(named("cards-3"), world, 1)
    np.testing.assert_allclose(batch.truth, np.tile(world.effect[3:], (2, 1)), atol=EXACT)
    assert (world.effect[:3] == 0).all()


@pytest.mark.parametrize("design", DESIGNS, ids=lambda design: design.key)
def test_a_design_whose_means_are_taken_as_additive_never_cuts_them(design):
    for kind in design.kinds:
        world = design_world(design, kind, 1)
        if design.capped and world.bounded:
            assert (world.level + design.k * world.effect.max()).max() <= 1 + EXACT
            assert world.level.min() >= 0


def test_ranked_parts_are_those_of_the_servings_own_layout():
    n = 12
    for query, drawn in product(range(3), combinations(range(n), 2)):
        ranking = np.roll(np.arange(n), -(RANKED_SLOTS + WITHHELD) * query)
        rows = lay_out(
            [f"m{m}" for m in ranking],
            [Drawn(f"m{m}", 0.1) for m in drawn],
            Layout(RANKED_SLOTS + 2, WITHHELD),
            key=query,
        )
        mask = np.isin(np.arange(n), drawn)[None, :]
        ranked, candidates = ranked_part(mask, np.array([query]))
        by_rank = {row.memory_id for row in rows if row.arm in ("ranked", "withheld")}
        by_chance = {
            row.memory_id for row in rows if row.arm in ("ranked", "withheld") and row.propensity < 1.0
        }
        assert by_rank == {f"m{m}" for m in np.flatnonzero(ranked[0])}
        assert by_chance == {f"m{m}" for m in np.flatnonzero(candidates[0])}


@pytest.mark.parametrize("bounded", [False, True])
def test_contrasts_of_withholding_are_what_listing_the_servings_contexts_gives(bounded):
    n, query = 8, 1
    effect = np.where(np.arange(n) % 3 == 0, 0.3, 0.0) if bounded else np.linspace(-1, 1, n) ** 3
    world = World(Size(1, n, 2), np.array([0.35]), effect, bounded, lambda mean, _: mean)
    ranking = [f"m{m}" for m in np.roll(np.arange(n), -(RANKED_SLOTS + WITHHELD) * query)]
    arms: dict[tuple[str, int], list[float]] = {}
    for drawn in combinations(range(n), 2):
        seen = {}
        for key in range(200):  # until each of three has been withheld
            rows = lay_out(
                ranking, [Drawn(f"m{m}", 0.25) for m in drawn], Layout(RANKED_SLOTS + 2, 1), key << 100
            )
            seen[next(row.memory_id for row in rows if row.arm == "withheld")] = rows
        assert len(seen) == RANKED_SLOTS
        for rows in seen.values():
            mean = 0.35 + sum(effect[int(row.memory_id[1:])] for row in rows if row.delivered)
            y = min(max(mean, 0.0), 1.0) if bounded else mean
            arm = {int(row.memory_id[1:]): row for row in rows}
            for m in range(n):
                row = arm.get(m)
                if row is None or row.arm == "random":
                    arms.setdefault(("none" if row is None else "drawn", m), []).append(y)
                elif row.propensity < 1.0:
                    arms.setdefault(("away" if row.arm == "withheld" else "kept", m), []).append(y)
    by_draw, by_rank = withheld_contrasts(world, np.array([query]), 2)
    for m in range(n):
        for found, one, other in ((by_draw, "drawn", "none"), (by_rank, "kept", "away")):
            both = (one, m) in arms and (other, m) in arms
            want = np.mean(arms[one, m]) - np.mean(arms[other, m]) if both else 0.0
            assert found[0, m] == pytest.approx(want, abs=EXACT)
    assert (by_rank != 0).any()


@pytest.mark.parametrize("design", DESIGNS, ids=lambda design: design.key)
def test_tables_have_the_designs_counts(design):
    tables, planned = draw_tables(design, 3, np.random.default_rng(2))
    assert tables.shape == (3, design.rounds, design.k)
    assert all(len(set(row)) == design.k for row in tables.reshape(-1, design.k).tolist())
    rosters = design.rosters[design.block_of_round]
    assert np.take_along_axis(np.broadcast_to(rosters, (3, *rosters.shape)), tables, axis=2).all()
    if design.uniform:
        assert (planned == np.where(design.rosters, design.k, 0)).all()
        return
    assert (np.ptp(planned.sum(axis=1), axis=1) <= 1).all()
    for block, (length, used) in enumerate(design.blocks):
        counts = np.array([np.bincount(log.ravel(), minlength=design.memories) for log in
                           tables[:, design.block_of_round == block]])  # fmt: skip
        assert (counts <= planned[:, block]).all()
        assert (planned[:, block].sum(axis=1) == length * design.k).all()
        assert used == length or (counts < planned[:, block]).any()


def by_hand(design: Design, batch) -> np.ndarray:
    """Go through a batch's arrays for the estimate of every memory of every log."""
    logs = len(batch.tables)
    found = np.full((logs, design.memories), np.nan)
    for log, m in product(range(logs), range(design.memories)):
        y, drawn = batch.outcomes[log], (batch.tables[log] == m).any(axis=1)
        arms = []
        for block, roster in enumerate(design.rosters):
            rows = (design.block_of_round == block) & ~np.isnan(y) & roster[m]
            if batch.shown is not None:
                rows &= ~batch.shown.ranked[log, :, m]
            arms.append((y[rows & drawn], y[rows & ~drawn]))
        if batch.shown is not None:
            arms.append((y[batch.shown.kept[log, :, m]], y[batch.shown.withheld[log, :, m]]))
        arms = [(one, none) for one, none in arms if len(one) and len(none)]
        if arms:
            weights = [1 / (1 / len(one) + 1 / len(none)) for one, none in arms]
            found[log, m] = np.average([one.mean() - none.mean() for one, none in arms], weights=weights)
    return found


@pytest.mark.parametrize(
    "design",
    [one for one in DESIGNS if not one.weighted and not one.cards and one.memories < 500],
    ids=lambda design: design.key,
)
def test_the_product_reads_from_the_frames_what_the_arrays_hold(design):
    batch, episodes = batch_of(design, design_world(design, "continuous", 3), 3)
    table = reader(design, batch, episodes)("auto")
    utility = table["utility"].fill_null(np.nan).to_numpy().reshape(batch.truth.shape)
    np.testing.assert_allclose(utility, by_hand(design, batch), atol=SUMS)
    assert np.isnan(utility).tolist() == np.isnan(batch.truth).tolist()


@pytest.mark.parametrize("key", ["strata-3x32", "growing-blocks", "cards-3", "withheld", "missing-level"])
@pytest.mark.parametrize("kind", ["binary", "heavy"])
def test_sums_give_the_table_of_the_log(key, kind):
    design = named(key)
    batch, episodes = batch_of(design, design_world(design, kind, 3), 3)
    options = {"interval": "auto", "reference": "card" if design.cards else "pool"}
    whole = utilities(frames_of(design, batch, episodes), **options).frame.sort("scope", "memory_id")
    assert reader(design, batch, episodes)("auto").equals(whole)


def test_without_noise_an_estimate_is_its_truth_where_one_memory_is_drawn_from_two_and_blocks_differ_in_effect():
    # with two memories and one drawn, what is shown beside or instead is no matter of chance
    design = Design("x", "", 2, 1, ((6, 6), (5, 3), (4, 4)))
    level = np.array([0.8, 0.3, 0.6])[design.block_of_round]  # cut to 1, the effect is .2, .45 and .4
    for bounded in (False, True):
        world = World(Size(13, 2, 1), level, np.array([0.45, 0.0]), bounded, lambda mean, _: mean)
        batch, episodes = batch_of(design, world, 4, logs=5)
        utility = reader(design, batch, episodes)("auto")["utility"].to_numpy().reshape(5, 2)
        np.testing.assert_allclose(utility, batch.truth, atol=SUMS)


def test_episodes_stay_inside_blocks_share_outcomes_and_are_read_as_clusters():
    design = named("episodes-3x32")
    batch, episodes = batch_of(design, design_world(design, "continuous", 5), 5)
    size = np.bincount(episodes)
    assert size.max() == 5
    assert all(len(set(design.block_of_round[episodes == code])) == 1 for code in range(len(size)))
    assert all(len(set(batch.outcomes[0, episodes == code])) == 1 for code in range(len(size)))
    frame = utilities(frames_of(design, batch, episodes)).frame
    assert frame["interval"].str.starts_with("clustered").all()


def test_a_fifth_of_outcomes_goes_missing_and_never_by_arm():
    for key, kind in (("missing-random", "binary"), ("missing-level", "binary"), ("missing-level", "rare")):
        design = named(key)
        level = design_world(design, kind, 1).level
        chance = chance_missing(design, level)
        assert chance.mean() == pytest.approx(0.2, abs=EXACT)
        if key == "missing-level":
            assert (np.diff(chance[np.argsort(level, kind="stable")]) > 0).all()
            assert level.std() > 0
    assert (chance_missing(named("one-4"), np.zeros(3)) == 0).all()


def test_every_design_is_on_the_page_and_every_kind_has_its_world():
    assert {design.key.split("-")[0] for design in DESIGNS} == set(FAMILIES)
    assert len({design.key for design in DESIGNS}) == len(DESIGNS)
    for kind in kinds_of():
        assert make_world(kind, Size(4, 3, 1), 1).level.shape == (4,)
    assert (queries(DESIGNS[0]) == 0).all()


def test_a_cell_is_the_same_every_time_but_for_the_clock():
    rows = [measure_design(named("one-8"), "rare", 3, 7, lambda n: None) for _ in range(2)]
    for row in (*rows[0], *rows[1]):
        assert row.pop("milliseconds_a_log") > 0
    assert rows[0] == rows[1]


def used_by(module: str) -> set[str]:
    """Return the experiments' files that a module needs, its own included."""
    path = f"experiments/{module}.py"
    found = {path}
    for node in ast.walk(ast.parse((ROOT / path).read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("experiments."):
            found |= used_by(str(node.module).removeprefix("experiments."))
    return found


def test_a_kept_cell_is_forgotten_when_any_file_its_numbers_come_from_changes():
    assert used_by("designs_measure") <= set(DESIGN_SOURCES)
    assert used_by("worlds") | used_by("rivals") <= set(SOURCES)
    for name in (*SOURCES, *DESIGN_SOURCES):
        assert (ROOT / name).exists()
