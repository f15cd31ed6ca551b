"""Ids made up for rounds are nobody else's: across threads, forks, processes and wrappers."""

from __future__ import annotations

import multiprocessing
import os
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest

from cmp.serving.naming import RoundIds


def make(ids, number, queue):
    queue.put([ids.make() for _ in range(number)])


def test_threads_never_share_an_id():
    ids = RoundIds()
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: ids.make(), range(20_000)))
    assert len(set(made)) == 20_000


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
def test_forked_children_never_share_an_id():
    ids = RoundIds()
    ids.make()
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    children = [context.Process(target=make, args=(ids, 100, queue)) for _ in range(4)]
    for child in children:
        child.start()
    made = [memory_id for _ in children for memory_id in queue.get()] + [ids.make() for _ in range(100)]
    for child in children:
        child.join()
    assert len(set(made)) == 500


def test_copies_never_share_an_id():
    ids = RoundIds()
    copy = pickle.loads(pickle.dumps(ids))
    assert {ids.make() for _ in range(50)}.isdisjoint({copy.make() for _ in range(50)})
