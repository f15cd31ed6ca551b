from __future__ import annotations

from collections import defaultdict
from itertools import combinations

import numpy as np
import polars as pl
import pytest

from cmp.design import balanced_table
from cmp.design.cards import CARD_PREFIX
from cmp.estimation import utilities
from cmp.estimation.clustered import newcombe_p_values
from cmp.estimation.intervals import newcombe_limits
from tests.estimation.logs import HandMadeLog, two_arms
from tests.estimation.worlds import shared_outcomes

#: Both sides are sums of a few dozen doubles of order 1.
EXACT = 1e-12


def row(log: HandMadeLog, memory: str = "m", **options) -> dict:
    return utilities(log, **options).frame.filter(pl.col("memory_id") == memory).row(0, named=True)


def random_log(seed: int, *, binary: bool = False, whole: bool = False) -> HandMadeLog:
    """Return three blocks with episodes that run across them; ranked, removed and missing, unless tables are whole."""
    rng = np.random.default_rng(seed)
    log, ys = HandMadeLog(), {}
    for block in range(3):
        table = balanced_table(5, 14, 2, int(rng.integers(2**31)))
        counts = np.bincount(np.asarray(table).ravel(), minlength=5)
        leave = {1: {"m1": 9}, 2: {"m0": 6, "m2": 11}}.get(block, {})
        removed = leave if not whole else {}
        log.block(f"b{block}", 14, {f"m{m}": int(counts[m]) for m in range(5)}, **removed)
        for i, drawn in enumerate(table):
            episode = None if rng.random() < 0.2 else f"e{block + int(rng.integers(6))}"
            y = ys.setdefault(episode, float(rng.integers(2) if binary else rng.normal()))
            if episode is None:
                y = float(rng.integers(2) if binary else rng.normal())
            ranked = [f"m{int(rng.integers(5))}"] if rng.random() < 0.3 and not whole else []
            known = y if rng.random() < 0.9 or whole else None
            names = [f"m{m}" for m in drawn]
            log.round(f"r{block}-{i}", f"b{block}", i, names, known, ranked=ranked, episode_id=episode)
    return log


def listed(log: HandMadeLog, memory: str) -> list[tuple[str, str, bool, float]]:
    """Return every eligible round with an outcome: block, episode, whether it was drawn, outcome."""
    removed = {(r["block_id"], r["memory_id"]): r["removed_row"] for r in log.rows["rosters"]}
    outcome = {r["round_id"]: r["value"] for r in log.rows["outcomes"]}
    arms = {(r["round_id"], r["memory_id"]): r["arm"] for r in log.rows["exposures"]}
    found = []
    for r in log.rows["rounds"]:
        gone = removed[r["block_id"], memory]
        arm = arms.get((r["round_id"], memory))
        if arm == "ranked" or (gone is not None and r["block_row"] >= gone) or r["round_id"] not in outcome:
            continue
        episode = r["episode_id"] or f"alone-{r['round_id']}"
        found.append((r["block_id"], episode, arm in ("random", "card"), outcome[r["round_id"]]))
    return found


def clustered_neyman(rounds: list[tuple[str, str, bool, float]]) -> float:
    """Return the standard error by going through the rounds."""
    arms = defaultdict(list)
    for block, episode, drawn, y in rounds:
        arms[block, drawn].append((episode, y))
    blocks = [b for b in {r[0] for r in rounds} if arms[b, True] and arms[b, False]]
    precision = {b: 1 / (1 / len(arms[b, True]) + 1 / len(arms[b, False])) for b in blocks}
    share = {b: precision[b] / sum(precision.values()) for b in blocks}
    by_episode, alone, variance, mean = defaultdict(float), 0.0, 0.0, 0.0
    for b in blocks:
        together = [e for arm in (arms[b, True], arms[b, False]) for e, _ in arm]
        n, squares = len(together), sum(together.count(e) ** 2 for e in set(together))
        mean += share[b] ** 2 / precision[b] * (n - squares / n) / (n - 1)
        for drawn in (True, False):
            arm = arms[b, drawn]
            n, ys = len(arm), np.array([y for _, y in arm])
            sizes = np.array(list({e: sum(x == e for x, _ in arm) for e, _ in arm}.values()))
            for episode, _ in arm:
                by_episode[episode] += (1 if drawn else -1) * share[b] / n
            alone += share[b] ** 2 / n
            variance += share[b] ** 2 / n * ((ys - ys.mean()) ** 2).sum() / (n - (sizes**2).sum() / n)
    return float(np.sqrt(variance * max(mean, sum(a**2 for a in by_episode.values())) / alone))


@pytest.mark.parametrize("seed", range(6))
def test_it_is_what_going_through_every_round_gives(seed):
    log = random_log(seed)
    with np.errstate(all="ignore"):
        want = {f"m{m}": clustered_neyman(listed(log, f"m{m}")) for m in range(5)}
    for got in utilities(log, interval="neyman").frame.iter_rows(named=True):
        assert got["interval"] == "clustered_neyman"
        if np.isfinite(want[got["memory_id"]]) and want[got["memory_id"]] > 0:
            assert got["std_error"] == pytest.approx(want[got["memory_id"]], rel=EXACT)
        else:
            assert got["std_error"] is None


def test_whole_episodes_drawn_together_have_the_variance_of_as_many_rounds_over_every_assignment():
    ys, size, drawn = [3.0, 1.0, 2.5, 5.0, 0.0, 4.0], 3, 2
    estimates, variances = [], []
    for chosen in combinations(range(6), drawn):
        log = HandMadeLog()
        log.block("b", 18, {"m": drawn * size, "other": (6 - drawn) * size})
        for t in range(18):
            episode = t // size
            name = "m" if episode in chosen else "other"
            log.round(f"r{t}", "b", t, [name], ys[episode], episode_id=f"e{episode}")
        got = row(log, interval="neyman")
        estimates.append(got["utility"])
        variances.append(got["std_error"] ** 2)
    exact = 6 / (drawn * (6 - drawn)) * np.var(ys, ddof=1)
    assert np.mean(estimates) == pytest.approx(0.0, abs=EXACT)
    assert np.var(estimates) == pytest.approx(exact, abs=EXACT)
    assert np.mean(variances) == pytest.approx(exact, abs=EXACT)


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("interval", ["auto", "pooled", "neyman", "welch"])
def test_whole_episodes_drawn_together_get_the_interval_of_one_round_each(binary, interval):
    rng = np.random.default_rng(4)
    ys = rng.integers(2, size=12).astype(float) if binary else rng.normal(size=12)
    alone = two_arms(ys[:5], ys[5:])
    together = two_arms(np.repeat(ys[:5], 3), np.repeat(ys[5:], 3))
    for t, entry in enumerate(together.rows["rounds"]):
        entry["episode_id"] = f"e{t // 3}"
    want, got = row(alone, interval=interval), row(together, interval=interval)
    assert got["interval"] == f"clustered_{want['interval']}"
    for name in ("utility", "std_error", "df", "ci_low", "ci_high"):
        assert got[name] == (None if want[name] is None else pytest.approx(want[name], rel=1e-9)), name
    if interval != "auto" and not binary:
        assert got["p_value"] == pytest.approx(want["p_value"], rel=1e-9)


@pytest.mark.parametrize("binary", [False, True])
def test_episodes_of_one_round_change_no_bit(binary):
    log = random_log(7, binary=binary)
    for entry in log.rows["rounds"]:
        entry["episode_id"] = None
    plain = utilities(log).frame
    for i, entry in enumerate(log.rows["rounds"]):
        entry["episode_id"] = f"e{i}"
    assert utilities(log).frame.equals(plain)


@pytest.mark.parametrize("seed", range(4))
def test_against_cards_the_other_arm_is_the_rounds_exposed_to_a_card(seed):
    log, cards = random_log(seed, whole=True), {"m3": f"{CARD_PREFIX}1", "m4": f"{CARD_PREFIX}2"}
    for entry in log.rows["exposures"] + log.rows["rosters"]:
        if entry["memory_id"] in cards and entry.get("arm") != "ranked":
            entry["memory_id"] = cards[entry["memory_id"]]
            if entry.get("arm") == "random":
                entry["arm"] = "card"
    of_cards = [(b, e, False, y) for card in cards.values() for b, e, z, y in listed(log, card) if z]
    for got in utilities(log, reference="card", interval="neyman").frame.iter_rows(named=True):
        mine = [entry for entry in listed(log, got["memory_id"]) if entry[2]]
        with np.errstate(all="ignore"):
            want = clustered_neyman(mine + of_cards) * card_scale(listed(log, got["memory_id"]), of_cards)
        assert got["std_error"] == (pytest.approx(want, rel=EXACT) if np.isfinite(want) else None)
        assert got["interval"] == "clustered_neyman"


def card_scale(rounds: list, of_cards: list) -> float:
    """Return the mean over strata of the root of 4/5 n/n0, weighted as strata are."""
    count = {True: defaultdict(int), False: defaultdict(int), "card": defaultdict(int)}
    for block, _, drawn, _ in rounds:
        count[drawn][block] += 1
    for block, *_ in of_cards:
        count["card"][block] += 1
    blocks = [b for b in count[True] if count["card"][b]]
    weight = np.array([1 / (1 / count[True][b] + 1 / count["card"][b]) for b in blocks])
    scale = np.sqrt([0.8 * (1 + count[True][b] / count[False][b]) for b in blocks])
    return float(weight @ scale / weight.sum())


def test_kept_and_withheld_rounds_of_an_episode_are_clustered_too():
    rng, log, rounds = np.random.default_rng(3), HandMadeLog(), []
    log.block("b", 20, {"x": 10, "y": 10})
    for i in range(20):
        y, kept, episode = float(rng.normal()), bool(rng.integers(2)), f"e{i // 3}"
        log.round(f"r{i}", "b", i, ["x" if i % 2 else "y"], y, episode_id=episode)
        log.add(
            "exposures", round_id=f"r{i}", memory_id="x", arm="ranked" if kept else "withheld", assigned=False,
            propensity=0.5, delivered=kept,
        )  # fmt: skip
        rounds.append(("b", episode, kept, y))
    for entry in list(log.rows["exposures"]):
        if entry["memory_id"] == "x" and entry["arm"] == "random":
            log.rows["exposures"].remove(entry)
    got = row(log, "x", interval="neyman")
    assert got["interval"] == "clustered_neyman"
    assert got["std_error"] == pytest.approx(clustered_neyman(rounds), rel=EXACT)


@pytest.mark.parametrize("planned", [0, 1, 24])
def test_whoever_is_withheld_in_two_rounds_of_an_episode_shares_outcomes(planned):
    """However often the table plans to draw it, never and always among them."""
    log = HandMadeLog()
    log.block("b", 24, {"x": planned, "a": 12, "c": 12})
    ys = [0.1, 0.9, 0.4, 1.3, 0.2, 0.8]
    for t in range(24):
        kept = t // 4 % 2 == 0
        log.round(f"r{t}", "b", t, ["a" if t % 2 else "c"], ys[t // 4], episode_id=f"e{t // 4}")
        log.add(
            "exposures", round_id=f"r{t}", memory_id="x", arm="ranked" if kept else "withheld", assigned=False,
            propensity=0.5, delivered=kept,
        )  # fmt: skip
    assert row(log, "x")["interval"] == "clustered_moderated"


@pytest.mark.parametrize("shared", [True, False])
def test_horvitz_thompson_of_one_memory_with_an_empty_arm_changes_little_of_others(shared):
    rng, log, names = np.random.default_rng(0), HandMadeLog(), ["a", "c", "d", "z"]
    log.block("b", 16, dict.fromkeys(names, 4))
    y = rng.normal(size=8)
    for t in range(16):
        episode = f"e{t // 2}" if shared else None
        log.round(f"r{t}", "b", t, [names[t % 4]], float(y[t // 2]), episode_id=episode)
    alone = utilities(log, estimator="ht").frame
    log.block("b3", 8, {"z": 4, "q": 4})
    for t in range(8):
        known = float(rng.normal()) if t < 4 else None
        log.round(f"w{t}", "b3", t, ["z" if t < 4 else "q"], known)
    both = utilities(log, estimator="ht").frame
    own = both.filter(memory_id="z").row(0, named=True)
    assert own["ci_low"] is None if shared else own["interval"] == "horvitz_thompson"
    for memory in ("a", "c", "d"):
        want, got = (frame.filter(memory_id=memory).row(0, named=True) for frame in (alone, both))
        assert got["df"] <= want["df"], "the prior is of one memory fewer"
        assert got["std_error"] == pytest.approx(want["std_error"], rel=0.1)


def test_no_row_order_of_any_table_shows():
    log = random_log(9)
    straight = utilities(log).frame
    rng = np.random.default_rng(0)
    for rows in log.rows.values():
        rng.shuffle(rows)
    assert utilities(log).frame.equals(straight)


def test_controls_of_their_own_episode_narrow_an_interval_by_what_they_do_on_average():
    # every episode has one exposed round and one control: what it has in common cancels, and says nothing either
    ys = [1.0, 0.5, 0.7, 0.1]
    log, plain = two_arms(ys, ys), two_arms(ys, ys)
    for t, entry in enumerate(log.rows["rounds"]):
        entry["episode_id"] = f"e{t % 4}"
    got, alone = row(log, interval="neyman")["std_error"], row(plain, interval="neyman")["std_error"]
    assert got == pytest.approx(alone * np.sqrt((8 - 4 * 4 / 8) / 7), rel=EXACT)
    assert row(log)["ci_high"] > 0.1


@pytest.mark.parametrize("level", [0.5, 0.9, 0.99])
def test_a_score_p_value_is_below_alpha_where_the_interval_leaves_zero_out(level):
    from scipy.special import ndtri

    rng = np.random.default_rng(1)
    n1, n0 = rng.integers(1, 9, 500).astype(float), rng.integers(1, 60, 500).astype(float)
    p1, p0 = np.floor(rng.random(500) * (n1 + 1)) / n1, np.floor(rng.random(500) * (n0 + 1)) / n0
    low, high = newcombe_limits(p1, n1, p0, n0, float(ndtri(0.5 + level / 2)))
    assert ((newcombe_p_values(p1, n1, p0, n0) < 1 - level) == ((low > 0) | (high < 0))).all()


def test_binary_outcomes_of_episodes_get_no_exact_test_for_independent_rounds():
    ys = [1.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0]
    together = two_arms(np.repeat(ys[:4], 5), np.repeat(ys[4:], 5))
    assert row(together)["p_value"] < 0.01
    for t, entry in enumerate(together.rows["rounds"]):
        entry["episode_id"] = f"e{t // 5}"
    assert 0.05 < row(together)["p_value"] < 0.3


#: Logs simulated, each in a scope of its own.
SCOPES = 200


@pytest.mark.parametrize(("kind", "spread"), [("continuous", 1.0), ("binary", 0.1)])
def test_intervals_cover_where_episodes_share_an_outcome(kind, spread):
    # the goal is .94 to .97, with 3.3 standard errors (.0027: 6,400 nearly independent intervals) on either side: one
    # run in 2,000 leaves that at a coverage within the goal. A memory of true coverage .92 is covered in fewer than
    # 168 of 200 in one of 10,000, some memory of 32 in one of 300
    u = np.random.default_rng(2).uniform(-1, 1, size=32) * spread
    log, estimand = shared_outcomes(11, u, scopes=SCOPES, rounds=90, k=2, longest=5, kind=kind)
    frame = utilities(log).frame
    assert frame["interval"].str.starts_with("clustered").all()
    low, high = (frame[name].to_numpy().reshape(SCOPES, 32) for name in ("ci_low", "ci_high"))
    covered = ((low <= estimand) & (estimand <= high)).mean(axis=0)
    assert 0.931 <= covered.mean() <= 0.979
    assert covered.min() >= 0.84


def test_p_values_are_rarely_small_where_nothing_has_an_effect():
    # 9,600 p-values of 300 logs: no more than 5 % and .1 %, with 3 standard errors of .0022 and .0003 on top
    for kind, base in (("continuous", 0.0), ("binary", 0.05)):
        log, _ = shared_outcomes(
            12, np.zeros(32), scopes=300, rounds=90, k=2, longest=4, kind=kind, base=base
        )
        p = utilities(log).frame["p_value"].to_numpy()
        assert (p < 0.05).mean() <= 0.0566
        assert (p < 0.001).mean() <= 0.002


def test_a_sequence_takes_blocks_for_replicates_unless_episodes_run_across_them():
    log = HandMadeLog()
    rng = np.random.default_rng(5)
    for block in range(30):
        log.block(f"b{block:02}", 4, {"m": 2, "other": 2})
        for i in range(4):
            more = {"episode_id": f"e{block}-{i // 2}"}
            log.round(
                f"r{block}-{i}", f"b{block:02}", i, ["m" if i % 2 else "other"], float(rng.normal()), **more
            )
    apart = row(log, interval="sequence")
    assert apart["interval"] == "sequence"
    assert apart["ci_low"] is not None
    log.rows["rounds"][-1]["episode_id"] = "e0-0"
    assert row(log, interval="sequence")["ci_low"] is None
    assert row(log, interval="randomization")["reason"].startswith("rounds of one episode share an outcome")
