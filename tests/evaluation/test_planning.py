"""What a plan promises is what a study of that size gives."""

from __future__ import annotations

from itertools import product

import numpy as np
import polars as pl
import pytest
from scipy.stats import binom, fisher_exact

import cmp
from cmp.design import balanced_table
from cmp.estimation import estimate, newcombe_interval
from cmp.evaluation.detection import (
    MAX_TABLES,
    Arms,
    binary_half_width,
    binary_power,
    fisher_rejects,
    mean_half_width,
    mean_power,
)
from cmp.evaluation.planning import plan

#: Sums of exact probabilities: rounding only.
EXACT = 1e-12

#: A normal test in place of Fisher's beyond a million tables: it is the less conservative by about this much.
NORMAL_FOR_EXACT = 0.01


@pytest.mark.parametrize("arms", [Arms(2, 3), Arms(5, 9), Arms(6, 6)])
@pytest.mark.parametrize("alpha", [0.05, 0.2])
def test_power_of_the_exact_test_is_its_enumeration(arms, alpha):
    total = 0.0
    for x1, x0 in product(range(arms.exposed + 1), range(arms.control + 1)):
        p = fisher_exact([[x1, arms.exposed - x1], [x0, arms.control - x0]])[1]
        assert fisher_rejects(arms, alpha)[x1, x0] == (p <= alpha)
        total += (p <= alpha) * binom.pmf(x1, arms.exposed, 0.8) * binom.pmf(x0, arms.control, 0.3)
    assert binary_power(arms, 0.8, 0.3, alpha) == pytest.approx(total, abs=EXACT)


def test_width_of_the_score_interval_is_its_enumeration():
    arms, total = Arms(5, 12), 0.0
    for x1, x0 in product(range(6), range(13)):
        limits = newcombe_interval(x1, 5, x0, 12, level=0.9)
        weight = binom.pmf(x1, 5, 0.4) * binom.pmf(x0, 12, 0.2)
        total += weight * (limits.high - limits.low) / 2
    assert binary_half_width(arms, 0.4, 0.2, 0.9) == pytest.approx(total, abs=EXACT)


def test_published_power_of_the_t_test():
    """Cohen (1988), table 2.3.5: n = 20 a group, d = .50 and .80, two-sided .05: .33 and .69, to two digits."""
    for d, power in ((0.5, 0.33), (0.8, 0.69)):
        assert abs(mean_power(Arms(20, 20), d, 1.0, 38, 0.05) - power) < 0.01
    assert mean_power(Arms(5, 50), 1e-9, 1.0, 40, 0.05) == pytest.approx(0.05, abs=1e-6)
    assert mean_half_width(Arms(5, 50), 1.0, 1e4, 0.95) == pytest.approx(
        mean_half_width(Arms(5, 50), 1.0, 1e7, 0.95), rel=1e-3
    )


def test_too_many_tables_to_sum_are_as_good_as_normal():
    inside, outside = Arms(90, 10_000), Arms(90, 12_000)
    assert (inside.exposed + 1) * (inside.control + 1) < MAX_TABLES < 91 * 12_001
    exact, normal = (binary_power(arms, 0.35, 0.2, 0.05) for arms in (inside, outside))
    assert abs(exact - normal) < 3 * NORMAL_FOR_EXACT
    assert binary_power(outside, 1.0, 0.0, 0.05) == 1.0


def _logs(n_logs, outcome, *, n=16, k=2, rounds=60, effect=0.0):
    """Return half widths under no effect, and how often an effect of memory 0 is found."""
    rng = np.random.default_rng(20_261_130)
    widths, found, looked = [], 0, 0
    for _ in range(n_logs):
        table = balanced_table(n, rounds, k, rng)
        assigned = np.zeros((rounds, n), dtype=bool)
        assigned[np.arange(rounds)[:, None], table] = True
        frame = estimate(assigned, outcome(rng, np.zeros(rounds))).frame
        widths.append(((frame["ci_high"] - frame["ci_low"]) / 2).mean())
        p = estimate(assigned, outcome(rng, effect * assigned[:, 0])).frame["p_value"]
        found, looked = found + int(p[0] <= 0.05), looked + 1
    return float(np.mean(widths)), found, looked


def _agrees(found, looked, power):
    """Within the binomial's interval of 0.9999: false failure 1e-4."""
    low, high = binom.interval(0.9999, looked, power)
    return low <= found <= high


def test_a_plan_for_two_valued_outcomes_holds_in_simulation():
    """400 logs; memories have 7 or 8 exposures. The mean half width is known within 1 %."""
    width, found, looked = _logs(
        400, lambda rng, lift: (rng.random(len(lift)) < 0.25 + lift).astype(float), effect=0.45
    )
    promised = plan(16, 4, 2, 60, base_rate=0.25, effect=0.45)
    assert (promised.row["exposures_least"], promised.row["exposures_most"]) == (7, 8)
    assert abs(width / promised.row["half_width"] - 1) < 0.01
    assert _agrees(found, looked, promised.row["power"]), (found, looked, promised.row["power"])


def test_a_plan_for_other_outcomes_holds_in_simulation():
    """300 logs of normal outcomes; the fitted prior is not quite as good as one variance known to be common."""
    width, found, looked = _logs(300, lambda rng, lift: lift + rng.normal(0, 0.5, len(lift)), effect=0.6)
    promised = plan(16, 4, 2, 60, sd=0.5, effect=0.6)
    assert abs(width / promised.row["half_width"] - 1) < 0.03
    assert _agrees(found, looked, promised.row["power"]), (found, looked, promised.row["power"])


def test_a_plan_with_cards_holds_in_simulation(tmp_path):
    """The table's own half widths against cards, over 20 logs through the wrapper."""
    widths = []
    for seed in range(20):
        with cmp.wrap(
            lambda query: [], list_ids=lambda: [f"m{i}" for i in range(10)], get=list, slots=2, random_slots=2,
            log=tmp_path / f"{seed}.db", scope=cmp.EVERYTHING, seed=seed, reference_cards=4, rounds_per_block=70,
        ) as memory:  # fmt: skip
            rng = np.random.default_rng(seed)
            for _ in range(70):
                memory.record(memory.retrieve("q").round_id, rng.normal())
            frame = cmp.utilities(memory.log, reference="card").frame
        widths.append(((frame["ci_high"] - frame["ci_low"]) / 2).mean())
    promised = plan(10, 2, 2, 70, sd=1.0, reference_cards=4)
    assert promised.reference == "card"
    assert abs(np.mean(widths) / promised.row["half_width"] - 1) < 0.1


def test_against_cards_the_controls_are_the_cards_and_the_scale_is_theirs():
    """12 memories and 4 cards, 80 rounds of 2: 10 exposures each, 40 of cards; utilities are 15/16 of a difference."""
    row = plan(12, 4, 2, 80, base_rate=0.3, reference_cards=4, effect=0.3).row
    assert (row["exposures_least"], row["exposures_most"], row["n_control"]) == (10, 10, 40)
    arms = Arms(10, 40)
    assert row["half_width"] == pytest.approx(15 / 16 * binary_half_width(arms, 0.3, 0.3, 0.95), abs=EXACT)
    assert row["power"] == pytest.approx(binary_power(arms, 0.3 + 0.3 * 16 / 15, 0.3, 0.05), abs=1e-9)


def test_detectable_effects_are_where_power_is_reached():
    for options in ({}, {"sd": 0.3}, {"reference_cards": "auto"}):
        promised = plan(rounds=400, **options)
        gain = promised.row["detectable_gain"]
        assert plan(rounds=400, effect=gain, **options).row["power"] == pytest.approx(0.8, abs=1e-3)
        below = plan(rounds=400, effect=0.95 * gain, **options).row["power"]
        assert below < 0.8
    assert plan(rounds=90).row["detectable_loss"] is None
    assert plan(rounds=900).row["detectable_loss"] < 0


@pytest.mark.parametrize("options", [{"effect": 0.4}, {"effect": -0.15}, {"effect": 0.1, "sd": 0.2}])
def test_rounds_needed_have_the_power_and_half_of_them_do_not(options):
    needed = plan(**options).rounds_needed
    assert plan(rounds=needed, **options).row["power"] >= 0.8
    assert plan(rounds=needed // 2, **options).row["power"] < 0.8
    assert plan(rounds=needed - 16, **options).row["power"] < 0.8  # one exposure fewer: 32 memories, k = 2


def test_more_hypotheses_need_more():
    alone, many = plan(effect=0.4), plan(effect=0.4, family=32)
    assert many.alpha == pytest.approx(0.05 / 32)
    assert many.rounds_needed > alone.rounds_needed
    assert many.row["detectable_gain"] > alone.row["detectable_gain"]


def test_a_study_too_short_for_intervals_says_so():
    short = plan(rounds=20)
    assert (short.row["exposures_least"], short.row["exposures_most"]) == (1, 2)
    assert short.row["half_width"] is None
    assert "none for some memories" in short.summary()
    assert "no gain however large" in plan(rounds=5).summary()
    assert "no gain however large" in plan(rounds=5, sd=1.0).summary()


def test_the_price_is_the_slots_that_gave_way():
    row = plan(slots=6, random_slots=2, rounds=90).row
    assert (row["slots_spent"], row["share_spent"]) == (180, 2 / 6)
    frame = plan(curve=[45, 180]).frame
    assert frame["rounds"].to_list() == [45, 90, 180]
    assert frame["half_width"].drop_nulls().is_sorted(descending=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_memories": 0}, "n_memories is 0"),
        ({"rounds": 1.5}, "rounds is 1.5"),
        ({"random_slots": 7}, "no more random slots"),
        ({"base_rate": 1.0}, "base_rate is 1.0"),
        ({"level": 0}, "level is 0"),
        ({"power": 1}, "power is 1"),
        ({"sd": 0.0}, "sd is 0.0"),
        ({"effect": 0.0}, "effect is 0.0"),
        ({"effect": 0.9}, "no rate of successes"),
        ({"reference_cards": -1}, "reference_cards is -1"),
        ({"family": True}, "family is True"),
        ({"n_memories": 1}, "randomizes nothing"),
    ],
)
def test_what_cannot_be_planned_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        plan(**options)


def test_a_plan_is_a_table_of_known_columns():
    assert plan().frame.columns == [
        *("rounds", "exposures_least", "exposures_most", "n_control", "half_width", "detectable_gain"),
        *("detectable_loss", "power", "slots_spent", "share_spent"),
    ]
    assert plan(np.int64(32)).frame.schema["power"] == pl.Float64
