"""Logs served by the real wrapper, damaged on purpose, and what one check says of them."""

from __future__ import annotations

import sqlite3

import numpy as np
import polars as pl

from cmp.evaluation.diagnostics import CHECKS, diagnose
from tests.serving.stores import store, wrapped


def serve(folder, rounds=60, *, seed=1, n=12, missing=0.0, name="x.db", ranked=("m1", "m2"), **settings):
    """Serve rounds of a store some of whose memories are always ranked, with outcomes of their own."""
    settings = {"slots": 4, "random_slots": 2, "seed": seed, "log": folder / name, **settings}
    memory = wrapped(folder, store(n, list(ranked)), **settings)
    rng = np.random.default_rng(seed)
    for number in range(rounds):
        context = memory.retrieve("q", scope="s", round_id=f"r{number:03}")
        if rng.random() >= missing:
            memory.record(context.round_id, float(rng.random() < 0.4))
    memory.flush()
    return memory


def damage(memory, *statements):
    with sqlite3.connect(memory.log.path) as connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()


def verdict(log, check):
    frame = diagnose(log).frame
    assert frame["check"].to_list() == list(CHECKS)
    return frame.row(by_predicate=pl.col("check") == check, named=True)
