"""Running sums and stabbed edges say what going through every pair of a run and an item says."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cmp.estimation.overlaps import Items, Runs

ROWS = st.one_of(st.integers(0, 6).map(float), st.just(-np.inf), st.just(np.inf))


@st.composite
def runs(draw) -> Runs:
    edges = draw(st.lists(st.tuples(st.integers(0, 2), ROWS, ROWS), max_size=6))
    begin, end = (np.array([pick(e[1:]) for e in edges]) for pick in (min, max))
    return Runs(np.array([e[0] for e in edges], dtype=np.int64), begin, end)


@st.composite
def items(draw) -> Items:
    """Known rows on both sides, or none."""
    known = st.tuples(st.integers(0, 6), st.integers(0, 6)).map(lambda of: (float(min(of)), float(max(of))))
    spans = draw(st.lists(st.tuples(st.integers(0, 2), known | st.just((-np.inf, np.inf))), max_size=8))
    first, last = (np.array([s[1][i] for s in spans]) for i in (0, 1))
    return Items(np.array([s[0] for s in spans], dtype=np.int64), first, last)


@given(items(), runs())
def test_sums_are_those_of_the_items_that_overlap(of, wanted):
    values = 2.0 ** np.arange(len(of.key))
    for run, total in enumerate(of.sums(values, wanted)):
        begin, end = wanted.begin[run], wanted.end[run]
        overlaps = (of.first < end) & (of.last >= begin) & (of.key == wanted.key[run])
        if begin < end or np.isfinite(begin):  # a run that lies nowhere has nothing to overlap
            assert total == values[overlaps].sum()


@given(items(), runs())
def test_an_item_is_cut_by_a_run_with_an_edge_inside_it_and_listed_once(of, wanted):
    found = list(zip(*(places.tolist() for places in of.cut(wanted)), strict=True))
    assert found == sorted(
        (run, item)
        for run in range(len(wanted.key))
        for item in range(len(of.key))
        if of.key[item] == wanted.key[run]
        and any(
            of.first[item] < edge <= of.last[item]
            for edge in (wanted.begin[run], wanted.end[run])
            if np.isfinite(edge)
        )
    )
