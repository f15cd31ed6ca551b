"""A machine that does everything to two wrappers of one log, in any order, and holds the log to sections 2 and 3.

Longer by hand: ``CMP_MACHINE=machine-long pytest tests/serving/test_machine.py``.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

import cmp
from cmp.design import plan_block
from cmp.design.cards import is_card
from cmp.log import transactions
from cmp.log.records import Exposure, Request
from cmp.serving.retrieval import Retrieval
from tests.serving.stores import Document, Store, documents

SCOPES = ("a", "b")
GROUPS = ("g", "h")
ACTORS = st.integers(0, 1)
VALUES = st.tuples(st.sampled_from([0.0, 1.0]), st.booleans())
PROFILE = os.environ.get("CMP_MACHINE", "machine")

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
settings.register_profile(
    "machine", max_examples=50, stateful_step_count=30, deadline=None, suppress_health_check=SLOW
)
settings.register_profile(
    "machine-long", settings.get_profile("machine"), max_examples=3000, stateful_step_count=80
)

POLICIES = st.fixed_dictionaries(
    {
        "allocation": st.sampled_from(["balanced", "balanced", "uniform"]),
        "balance_within": st.sampled_from(["scope", "scope", "group"]),
        "slots": st.integers(3, 5),
        "random_slots": st.integers(1, 3),
        "reference_cards": st.sampled_from([0, 0, 2, "auto"]),
        "card": st.sampled_from(["empty", "ranked"]),
        "withhold": st.sampled_from([0, 0, 1]),
        "holdout": st.sampled_from([0.0, 0.0, 0.3]),
        "placement": st.sampled_from(["last", "shuffle"]),
        "max_block_rounds": st.sampled_from([None, None, 3]),
        "exposures_per_block": st.sampled_from([1, 2, 1.5]),
    }
).filter(lambda policy: policy["withhold"] <= policy["slots"] - policy["random_slots"])


@dataclass
class Told:
    """What a caller was told of a round, and the store at that moment."""

    scope: str
    store: frozenset[str]
    chosen: frozenset[str]
    block: str | None
    attempts: int = 1
    outcomes: list[float] = field(default_factory=list)


class Machine(RuleBasedStateMachine):
    rounds = Bundle("rounds")

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="cmp-machine-"))
        self.path = self.folder / "x.db"
        self.numbers = count()
        self.told: dict[str, Told] = {}
        self.next_row: dict[str, int] = {}
        self.rosters: dict[str, frozenset[str]] = {}
        self.forgotten: set[tuple[str, str]] = set()
        self.wrappers: list[cmp.RandomizedRetriever] = []
        self.abandoned: list[cmp.RandomizedRetriever] = []

    @initialize(policy=POLICIES, sizes=st.tuples(st.integers(0, 7), st.integers(2, 7)))
    def wrap(self, policy: dict, sizes: tuple[int, int]) -> None:
        self.policy = policy
        self.store = Store({scope: documents(n, scope) for scope, n in zip(SCOPES, sizes, strict=True)})
        self.wrappers = [self.wrapped() for _ in range(2)]
        self.reader = sqlite3.connect(self.path)

    def wrapped(self) -> cmp.RandomizedRetriever:
        return cmp.wrap(self.store, log=self.path, seed=1, on_error="raise", **self.policy)

    # -- requests -------------------------------------------------------------------------------------------------

    @rule(
        target=rounds,
        actor=ACTORS,
        scope=st.sampled_from(SCOPES),
        group=st.sampled_from(GROUPS),
        ranking=st.lists(st.integers(0, 9), max_size=6),
        times=st.integers(1, 6),
    )
    def retrieve(self, actor: int, scope: str, group: str, ranking: list[int], times: int):
        self.store.ranking = [f"{scope}{i}" for i in ranking]
        return multiple(*(self.ask(actor, scope, group) for _ in range(times)))

    def ask(self, actor: int, scope: str, group: str) -> str:
        round_id = f"r{next(self.numbers)}"
        held = frozenset(self.store.scopes[scope])
        context = self.wrappers[actor].retrieve("q", scope=scope, round_id=round_id, group=group)
        block, row = self.row_of(round_id)
        self.told[round_id] = Told(scope, held, self.check_context(context, scope), block)
        assert context.randomized is (block is not None)
        if block is None:
            assert context.fallback_reason in ("holdout", "roster_too_small")
            assert context.fallback_reason == "holdout" or len(held) + len(self.told[round_id].chosen) < 2
            return round_id
        assert row == self.next_row.get(block, 0)
        self.next_row[block] = row + 1
        self.check_roster(block, scope, held)
        self.check_forgotten(context, block)
        return round_id

    def check_roster(self, block: str, scope: str, held: frozenset[str]) -> None:
        """A block's roster is what the store held when it was opened, which is when its first row was used."""
        self.rosters.setdefault(block, held)
        rows = self.reader.execute("SELECT memory_id FROM rosters WHERE block_id = ?", (block,))
        assert {memory_id for (memory_id,) in rows if not is_card(memory_id)} == self.rosters[block]
        assert all(memory_id.startswith(scope) for memory_id in self.rosters[block])

    def check_context(self, context: cmp.Context, scope: str) -> frozenset[str]:
        """Return the ids in the random slots of a context, having checked the context."""
        ids = [item.id for item in context.items]
        assert len(ids) == len(set(ids))
        assert len(context) <= self.policy["slots"]
        slots = [item.slot for item in context.items if item.slot is not None]
        assert len(slots) == len(set(slots))
        for document in context:
            assert self.store.scopes[scope][document.id] is document
        return frozenset(item.id for item in context.items if item.arm in ("random", "card"))

    def check_forgotten(self, context: cmp.Context, block: str) -> None:
        for item in context.items:
            assert not (item.arm == "random" and item.delivered and (block, item.id) in self.forgotten)

    @rule(actor=ACTORS, round_id=rounds, ranking=st.lists(st.integers(0, 9), max_size=6))
    def ask_again(self, actor: int, round_id: str, ranking: list[int]) -> None:
        told = self.told[round_id]
        self.store.ranking = [f"{told.scope}{i}" for i in ranking]
        context = self.wrappers[actor].retrieve("another query", scope=told.scope, round_id=round_id)
        told.attempts += 1
        assert self.check_context(context, told.scope) == told.chosen
        assert context.randomized is (told.block is not None)

    @rule(actor=ACTORS, round_id=rounds)
    def ask_again_in_another_scope(self, actor: int, round_id: str) -> None:
        other = SCOPES[1 - SCOPES.index(self.told[round_id].scope)]
        with pytest.raises(cmp.ScopeError):
            self.wrappers[actor].retrieve("q", scope=other, round_id=round_id, group="g")

    @rule(actor=ACTORS, round_id=rounds, values=st.lists(VALUES, min_size=1, max_size=3))
    def record(self, actor: int, round_id: str, values: list[tuple[float, bool]]) -> None:
        told = self.told[round_id].outcomes
        for value, correct in values:
            if told and told[-1] != value and not correct:
                with pytest.raises(cmp.ConflictingOutcomeError):
                    self.wrappers[actor].record(round_id, value)
                continue
            self.wrappers[actor].record(round_id, value, correct=correct)
            if not told or told[-1] != value:
                told.append(value)

    # -- the store ------------------------------------------------------------------------------------------------

    @rule(scope=st.sampled_from(SCOPES), number=st.integers(0, 9))
    def add(self, scope: str, number: int) -> None:
        name = f"{scope}{number}"
        self.store.scopes[scope].setdefault(name, Document(name, name))

    @rule(scope=st.sampled_from(SCOPES), number=st.integers(0, 9))
    def delete(self, scope: str, number: int) -> None:
        self.store.scopes[scope].pop(f"{scope}{number}", None)

    @rule(
        actor=ACTORS, scope=st.sampled_from(SCOPES), number=st.integers(0, 9), group=st.sampled_from(GROUPS)
    )
    def forget(self, actor: int, scope: str, number: int, group: str) -> None:
        """Memories may be forgotten that the store still has: they leave the open blocks all the same."""
        self.ask(actor, scope, group)
        held = sorted(self.store.scopes[scope]) or [f"{scope}0"]
        memory_id = held[number % len(held)]
        self.wrappers[actor].forget_ids([memory_id], scope=scope)
        opened = self.reader.execute("SELECT block_id FROM cursors WHERE scope = ?", (scope,))
        self.forgotten |= {(block, memory_id) for (block,) in opened}
        for _ in range(3):
            self.ask(1 - actor, scope, group)

    @rule(actor=ACTORS, scope=st.sampled_from(SCOPES))
    def refresh(self, actor: int, scope: str) -> None:
        self.wrappers[actor].refresh(scope)

    # -- the wrapper ----------------------------------------------------------------------------------------------

    @rule(actor=ACTORS)
    def reopen(self, actor: int) -> None:
        self.wrappers[actor].close()
        self.wrappers[actor] = self.wrapped()

    @rule(actor=ACTORS)
    def crash(self, actor: int) -> None:
        self.abandoned.append(self.wrappers[actor])
        self.wrappers[actor] = self.wrapped()

    @rule(actor=ACTORS, scope=st.sampled_from(SCOPES))
    def crash_before_the_commit(self, actor: int, scope: str) -> None:
        """What a killed process leaves: a transaction that was begun and whose connection is gone."""
        wrapper = self.wrappers[actor]
        retrieval: Retrieval = wrapper._retrieval("q", scope, f"lost{next(self.numbers)}", None, "g")
        request: Request = retrieval._request(retrieval._stream().name)

        def die(session: sqlite3.Connection) -> None:
            shown = (Exposure(f"{scope}0", "ranked", False, 0, 1.0, True),)
            transactions.assign(session, request, lambda drawn: shown, wrapper.log._block)
            session.close()

        with pytest.raises(sqlite3.ProgrammingError):
            wrapper.log._submit(die).result()
        wrapper.log._session = None
        self.crash(actor)

    @rule(actor=ACTORS, scope=st.sampled_from(SCOPES), dies=st.booleans())
    @precondition(lambda self: self.policy["balance_within"] == "scope")
    def open_a_block_too_late(self, actor: int, scope: str, dies: bool) -> None:
        """A roster that was stored for a block that another worker opened meanwhile is in nobody's way."""
        wrapper = self.wrappers[actor]
        stream = wrapper._retrieval("q", scope, None, None, None)._stream().name
        staged = wrapper.log.stage(stream, [f"{scope}{i}" for i in range(3)], 1, counted=True)
        served = self.ask(1 - actor, scope, "g")
        if dies:
            self.crash(actor)
        elif staged is not None and self.told[served].block is not None:
            block = plan_block(3, 1, 3, np.random.default_rng(0), staged.exposures_before)
            assert not wrapper.log.open_block(staged, stream, scope, None, block).result()

    # -- what is left ---------------------------------------------------------------------------------------------

    @rule()
    def audit(self) -> None:
        log = cmp.open_log(self.path)
        try:
            note(str(cmp.validate_log(log)))
            assert cmp.validate_log(log) == []
            self.audit_rounds(log)
            self.audit_blocks(log)
        finally:
            log.close()

    def audit_rounds(self, log: cmp.Log) -> None:
        rounds = log.rounds().collect()
        logged = dict(rounds.select("round_id", "attempts").iter_rows())
        assert logged == {round_id: told.attempts for round_id, told in self.told.items()}
        outcomes: dict[str, list[float]] = {}
        for round_id, value in (
            log.outcomes().sort("round_id", "revision").collect()["round_id", "value"].rows()
        ):
            outcomes.setdefault(round_id, []).append(value)
        assert outcomes == {round_id: told.outcomes for round_id, told in self.told.items() if told.outcomes}
        chosen: dict[str, set[str]] = {}
        exposures = log.exposures().collect()
        for round_id, memory_id, arm, assigned in exposures[
            "round_id", "memory_id", "arm", "assigned"
        ].rows():
            assert assigned or arm in ("ranked", "withheld")
            if arm in ("random", "card"):
                chosen.setdefault(round_id, set()).add(memory_id)
        assert chosen == {round_id: told.chosen for round_id, told in self.told.items() if told.chosen}

    def audit_blocks(self, log: cmp.Log) -> None:
        """Rows are used in order, each holds what its table says, and no memory's plan is two off another's."""
        blocks = log.blocks().collect()
        rounds, rosters = log.rounds().collect(), log.rosters().collect()
        drawn = log.exposures().collect().filter("assigned")
        assert set(blocks["block_id"]) == set(self.next_row)
        for block, design, k, length, table in blocks["block_id", "design", "k", "length", "table"].rows():
            roster = rosters.filter(block_id=block).sort("position")
            assert roster["planned"].sum() == k * length
            assert roster["planned"].max() - roster["planned"].min() <= 1
            used = rounds.filter(block_id=block).sort("block_row")
            assert used["block_row"].to_list() == list(range(self.next_row[block]))
            if design == "balanced":
                dealt = np.frombuffer(table, "<u4").reshape(length, k)[: used.height]
                names = roster["memory_id"].to_list()
                got = drawn.filter(drawn["round_id"].is_in(used["round_id"].implode()))
                rows = {key[0]: set(frame["memory_id"]) for key, frame in got.group_by("round_id")}
                assert [rows[i] for i in used["round_id"]] == [
                    {names[p] for p in row} for row in dealt.tolist()
                ]

    def row_of(self, round_id: str) -> tuple[str | None, int | None]:
        """Read a round from outside the wrapper: it is durable before its context is returned."""
        return self.reader.execute(
            "SELECT block_id, block_row FROM rounds WHERE round_id = ?", (round_id,)
        ).fetchone()

    def teardown(self) -> None:
        if self.wrappers:
            self.audit()
            self.reader.close()
        for wrapper in self.wrappers + self.abandoned:
            wrapper.close()
        if self.path.exists():
            assert cmp.validate_log(cmp.open_log(self.path)) == []
        shutil.rmtree(self.folder)


def test_whatever_is_done_in_whatever_order_the_log_keeps_its_contract() -> None:
    run_state_machine_as_test(Machine, settings=settings.get_profile(PROFILE))
