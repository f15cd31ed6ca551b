"""The truth of a simulated world: against the layout that serving uses, and against what estimates come to."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import polars as pl
import pytest

import cmp
from cmp.design.cards import card_ids, is_card
from cmp.log.records import Drawn
from cmp.serving.slots import Layout, lay_out
from cmp.simulation import simulate
from cmp.simulation.contrasts import Listing, check_size

#: Means over a few hundred contexts, summed in another order.
EXACT = 1e-12
#: Standard errors of a mean over simulations; normal, that is a false failure in 1.5e5 for each of a dozen checks.
BOUND = 4.5

UTILITY = {f"m{i}": round(0.7 - 0.19 * i, 2) for i in range(7)}
WORLDS = {
    "nobody is ranked": ([], 0, (), "empty"),
    "some are ranked": (["m3", "m0", "m5"], 0, (), "empty"),
    "all are ranked": (["m6", "m3", "m0", "m5", "m1", "m2", "m4"], 0, (), "empty"),
    "cards are empty": (["m3", "m0", "m5"], 2, (), "empty"),
    "cards are filled": (["m3", "m0", "m5", "m1"], 2, (), "ranked"),
    "one has been deleted": (["m3", "m0", "m5", "m2"], 0, ("m1",), "empty"),
    "a ranked one has been deleted": (["m0", "m5", "m2"], 2, ("m3",), "ranked"),
}


def listed(roster, gone, ranking, slots, k, card, mean):
    """Contrasts from contexts that serving's own layout lays out, one set at a time."""
    exposed, control = {m: [] for m in roster}, {m: [] for m in roster}
    shares = dict.fromkeys(roster, 0)
    sets = list(combinations(roster, k))
    for drawn in sets:
        rows = lay_out(ranking, [Drawn(m, 0.1, m in gone) for m in drawn], Layout(slots, card=card))
        shown = [r.memory_id for r in rows if r.delivered and r.slot is not None and not is_card(r.memory_id)]
        ranked = {r.memory_id for r in rows if r.arm == "ranked"}
        for m in roster:
            if m not in ranked:
                shares[m] += 1
                (exposed if m in drawn else control)[m].append(mean(shown))
    known = [m for m in roster if exposed[m] and control[m] and m not in gone]
    return {m: np.mean(exposed[m]) - np.mean(control[m]) for m in known}, {
        m: shares[m] / len(sets) for m in known
    }


@pytest.mark.parametrize("is_cut", [False, True])
@pytest.mark.parametrize(("slots", "k"), [(2, 2), (4, 2), (3, 1), (4, 3)])
@pytest.mark.parametrize("world", WORLDS)
def test_contrasts_are_those_of_every_context_that_serving_lays_out(world, slots, k, is_cut):
    ranking, n_cards, gone, card = WORLDS[world]
    roster = [*card_ids(n_cards), *UTILITY]
    level = 0.3

    def mean(shown):
        total = level + sum(UTILITY[m] for m in shown)
        return min(max(total, 0.0), 1.0) if is_cut else total

    wanted, shares = listed(roster, gone, ranking, slots, k, card, mean)
    listing = Listing(roster, gone, ranking, slots=slots, k=k, fills_cards=card == "ranked")
    found = listing.contrasts(listing.means(UTILITY, level, is_cut=is_cut))
    got = {m: c for m, c in zip(roster, found.contrast, strict=True) if np.isfinite(c)}
    assert got == pytest.approx(wanted, abs=EXACT)
    known = dict(zip(roster, found.eligible, strict=True))
    assert {m: known[m] for m in shares} == pytest.approx(shares, abs=EXACT)
    assert all(known[m] == 0 for m in roster if m not in shares)


@pytest.mark.parametrize("outcome", ["continuous", "heavy"])
def test_without_a_ranker_the_truth_has_its_closed_form(outcome):
    """Relative to the pool, a memory's utility less the mean of the others'; against a card, its own."""
    worth = np.linspace(-0.4, 0.6, 9)
    simulated = simulate(9, rounds=30, utilities=worth, outcome=outcome, reach=0.0, drift=3.0, seed=2)
    others = (worth.sum() - worth) / 8
    np.testing.assert_allclose(simulated.by_memory["true_pool"], worth - others, atol=EXACT)
    assert simulated.by_memory["true_card"].null_count() == 9
    simulated = simulate(9, rounds=30, utilities=worth, outcome=outcome, reach=0.0, reference_cards=3, seed=2)
    np.testing.assert_allclose(simulated.by_memory["true_card"], worth, atol=EXACT)
    others = (worth.sum() - worth) / 11  # three of the eleven are cards, worth 0
    np.testing.assert_allclose(simulated.by_memory["true_pool"], worth - others, atol=EXACT)


SETTINGS = {
    "means cut at 1": {"base_rate": 0.7, "effect": 0.4, "helpful": 0.4},
    "a ranker that reaches all": {"reach": 1.0, "slots": 4, "outcome": "continuous"},
    "a ranker and cut means": {"reach": 1.0, "base_rate": 0.6, "effect": 0.4, "helpful": 0.4, "slots": 4},
    "coming, going and drifting": {
        **{"additions": 2, "deletions": 2, "outcome": "continuous", "drift": 0.5},
        **{"reach": 0.3, "slots": 4, "rounds": 96},
    },
    "outcomes missing at random": {"missing": 0.3},
    "every round drawn by key": {"allocation": "uniform", "base_rate": 0.6, "effect": 0.4},
    "several queries": {"queries": 3, "rounds": 20, "base_rate": 0.6, "effect": 0.4},
    "heavy tails": {"outcome": "heavy", "drift": 0.3},
    "cards": {"reference_cards": 4, "outcome": "continuous", "reach": 0.4, "slots": 4},
    "cards filled by the next ranked": {
        **{"reference_cards": 4, "card": "ranked", "outcome": "continuous", "reach": 0.7, "slots": 4}
    },
}


@pytest.mark.parametrize("name", SETTINGS)
def test_estimates_are_unbiased_for_the_truth(name):
    """The mean error over key memories, 40 worlds: within 4.5 of its standard errors over worlds."""
    settings = {"rounds": 60, "slots": 2, "reach": 0.0, **SETTINGS[name]}
    reference = "card" if "reference_cards" in settings else "pool"
    errors = []
    for seed in range(40):
        simulated = simulate(12, seed=seed, **settings)
        frame = simulated.truth_of(cmp.utilities(simulated.log, reference=reference))
        keys = frame.filter(pl.col("key") & pl.col("utility").is_not_null() & pl.col("truth").is_not_null())
        if keys.height:
            errors.append(float((keys["utility"] - keys["truth"]).mean()))
    assert len(errors) > 25
    assert abs(np.mean(errors)) < BOUND * np.std(errors, ddof=1) / len(errors) ** 0.5


def test_cut_means_are_not_taken_for_additive_ones():
    """With a level of 0.9 a utility of 0.4 adds 0.1 at most; its additive truth would be three times that."""
    simulated = simulate(6, rounds=30, utilities=[0.4, 0, 0, 0, 0, 0], base_rate=0.9, slots=2, reach=0.0)
    own, pool = simulated.by_memory.select("true_own", "true_pool").row(0)
    assert own == 0.4
    assert pool == pytest.approx(0.1, abs=EXACT)


def test_intervals_cover_what_they_should_over_many_worlds():
    """320 memories; at a true rate of 0.95 fewer than 286 would come with probability 3e-5 were they independent."""
    held = total = 0
    for seed in range(10):
        simulated = simulate(32, rounds=90, outcome="continuous", reach=0.0, slots=2, seed=100 + seed)
        score = simulated.score(cmp.utilities(simulated.log))
        assert score.n_intervals == 32
        held += round(score.coverage * score.n_intervals)
        total += score.n_intervals
    assert held >= 286
    assert total == 320


def test_a_roster_whose_sets_are_too_many_is_refused_before_anything_is_served():
    with pytest.raises(ValueError, match=r"a roster of 400 has 10,586,800 sets of 3"):
        simulate(400, random_slots=3)
    check_size(1000, 2)
