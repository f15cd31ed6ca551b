"""A wrapper sent to another process goes on with the same log; what cannot be sent says so."""

from __future__ import annotations

import pickle
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

import cmp
from cmp.protocols import EVERYTHING
from tests.serving.stores import Document, store


class Everything:
    """A store as a class of a module: its instances can be sent."""

    def __init__(self) -> None:
        self.held = store(12)

    def search(self, query, n, *, scope):
        return self.held.search(query, n, scope=scope)

    def list_ids(self, *, scope):
        return self.held.list_ids(scope=scope)

    def get(self, ids, *, scope):
        return self.held.get(ids, scope=scope)


def rank(query):
    return []


def list_all():
    return [f"m{i}" for i in range(9)]


def fetch(ids):
    return [Document(memory_id, "text") for memory_id in ids]


def ask(memory, name):
    return [memory.retrieve("q", round_id=f"{name}-{i}").items[0].id for i in range(10)]


@pytest.mark.parametrize("kind", ["object", "callables"])
def test_a_pickled_wrapper_goes_on_with_the_same_log(tmp_path, kind):
    settings = {"slots": 1, "random_slots": 1, "log": tmp_path / "x.db"}
    if kind == "object":
        memory = cmp.wrap(Everything(), scope="s", **settings)
    else:
        memory = cmp.wrap(rank, list_ids=list_all, get=fetch, scope=cmp.EVERYTHING, **settings)
    ask(memory, "parent")
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        first, second = pool.map(ask, [memory, memory], ["w0", "w1"])
    assert first != second
    rounds = memory.log.rounds().collect()
    assert rounds.height == 30
    assert rounds["randomized"].all()
    assert cmp.validate_log(memory.log) == []


def test_the_single_tenant_scope_is_itself_after_a_journey():
    assert pickle.loads(pickle.dumps(EVERYTHING)) == EVERYTHING
