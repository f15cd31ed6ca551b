"""``check_design``: is an assignment balanced, and are its draws what its propensities say?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from cmp.design import (
    block_generator,
    drawable_slots,
    key_of,
    keyed_sample,
    plan_block,
)
from cmp.serving import RandomizedRetriever
from cmp.serving.policy import Policy
from cmp.testing.failures import PropertyError

__all__ = ["DesignCheck", "check_design"]

Draw: TypeAlias = Callable[[int], npt.ArrayLike]
Table: TypeAlias = npt.NDArray[np.int64]

BALANCE = "counts differ by one at most"
DISTINCT = "the memories of a row are distinct"
RANGE = "a table holds positions of the roster"


@dataclass(frozen=True, slots=True)
class DesignCheck:
    """What was looked at.

    Attributes
    ----------
    n_tables
        How many tables.
    n_tests
        Exact tests made of them, over all properties.
    least_p
        The smallest p-value times the number of tests, 1 at most; one below ``false_alarm`` is raised.
    """

    n_tables: int
    n_tests: int
    least_p: float


def check_design(
    design: Draw | npt.ArrayLike | Policy | RandomizedRetriever,
    n_memories: int,
    *,
    draws: int = 1000,
    false_alarm: float = 1e-6,
    balanced: bool | None = None,
) -> DesignCheck:
    """Check a design: distinct memories in each row, counts within one, and propensities that are true.

    The first two are facts of each table. The third is tested: with tables drawn under ``draws`` different seeds, a
    memory is in a round with probability ``k / N``, two memories with ``k (k - 1) / (N (N - 1))``; a memory gets the
    larger count with ``(L k mod N) / N``, and one of ``n`` rounds is in the first two with
    ``n (n - 1) / (L (L - 1))``: binomial tests, the last by convolution. With one table, a memory's rounds in the
    first half are hypergeometric. All are exact, and Bonferroni's bound keeps the chance that any rejects a good
    design below ``false_alarm``.

    Parameters
    ----------
    design
        A function of a seed that returns a table; one table; or a policy or wrapped retriever, whose own blocks are
        drawn. A table has shape (L, k): row t holds the positions of the memories drawn for round t.
    n_memories
        Size of the roster, N.
    draws
        How many tables to draw.
    false_alarm
        Bound on the chance that a good design fails.
    balanced
        Whether counts must be within one. None: not where a policy's ``allocation`` is ``"uniform"``.

    Returns
    -------
    DesignCheck

    Raises
    ------
    PropertyError
        Naming the first property that fails, and how to mend it. It is an ``AssertionError``.
    ValueError
        For a ``false_alarm`` that is no probability, tables that are not all of one shape, or a policy without random
        slots.

    References
    ----------
    Clopper, C. and Pearson, E. (1934). The use of confidence or fiducial limits illustrated in the case of the
    binomial. Biometrika 26, 404-413 (two-sided tests here are of twice the smaller tail).

    Examples
    --------
    >>> import cmp
    >>> check_design(lambda seed: cmp.balanced_table(8, 12, 2, seed), n_memories=8).n_tables
    1000
    >>> check_design([[0, 1], [1, 1]], n_memories=2)
    Traceback (most recent call last):
    ...
    cmp.testing.failures.PropertyError: the memories of a row are distinct: row 1 holds [1, 1]; draw without replacement
    """
    if not 0.0 < false_alarm < 1.0:
        raise ValueError(f"false_alarm is {false_alarm!r}; give a probability between 0 and 1")
    if isinstance(design, RandomizedRetriever):
        design = design.policy
    if isinstance(design, Policy):
        even = design.allocation == "balanced" if balanced is None else balanced
        design = _draw_of(design, n_memories)
    else:
        even = balanced is None or balanced
    given = [design(seed) for seed in range(draws)] if callable(design) else [design]
    tables = [_checked(table, n_memories, even) for table in given]
    if len({table.shape for table in tables}) != 1:
        raise ValueError(
            f"tables have shapes {sorted({table.shape for table in tables})}; draw them all alike"
        )
    stacked = np.stack(tables)
    if stacked.shape[1] == 0 or stacked.shape[2] == 0:
        return DesignCheck(len(tables), 0, 1.0)
    tests = _of_many(stacked, n_memories, even) if callable(design) else _of_one(stacked[0], n_memories)
    n_tests = sum(len(test.p) for test in tests)
    for test in tests:
        worst = int(test.p.argmin()) if len(test.p) else 0
        if len(test.p) and test.p[worst] * n_tests < false_alarm:
            raise PropertyError(
                test.name, f"{test.says(worst)} (p = {test.p[worst]:.1e}, {n_tests} tests); {test.mend}"
            )
    least = min((float(test.p.min()) for test in tests if len(test.p)), default=1.0)
    return DesignCheck(len(tables), n_tests, min(1.0, least * n_tests))


@dataclass(frozen=True, slots=True)
class _Test:
    """A property, the p-value of each of its tests, what was seen in one, and how to mend it."""

    name: str
    p: npt.NDArray[np.float64]
    says: Callable[[int], str]
    mend: str


def _draw_of(policy: Policy, n_memories: int) -> Draw:
    """Return a function that draws a block of a policy as serving would."""
    k = drawable_slots(n_memories, policy.random_slots)
    if k == 0:
        raise ValueError(
            f"random_slots is {policy.random_slots} and the roster holds {n_memories}: nothing is drawn"
        )
    length = policy.block_rounds(n_memories, k)

    def balanced(seed: int) -> Any:
        return plan_block(n_memories, k, length, block_generator(seed, "check", 0)).table

    def uniform(seed: int) -> list[tuple[int, ...]]:
        return [keyed_sample(key_of("draw", seed, "check", str(row)), n_memories, k) for row in range(length)]

    return balanced if policy.allocation == "balanced" else uniform


def _checked(given: npt.ArrayLike, n: int, balanced: bool) -> Table:
    """Return a table whose facts are right."""
    table = np.asarray(given)
    if table.ndim != 2 or (table.size and not np.issubdtype(table.dtype, np.integer)):
        raise PropertyError(
            RANGE,
            f"it has shape {table.shape} and holds {table.dtype}; return whole numbers, shape (rounds, k)",
        )
    outside = np.argwhere((table < 0) | (table >= n))
    if len(outside):
        row, column = outside[0]
        raise PropertyError(
            RANGE,
            f"row {row} holds {table[row, column]}, and positions go from 0 to {n - 1}; draw from the roster",
        )
    ordered = np.sort(table, axis=1)
    repeated = np.flatnonzero((ordered[:, 1:] == ordered[:, :-1]).any(axis=1))
    if len(repeated):
        row = int(repeated[0])
        raise PropertyError(DISTINCT, f"row {row} holds {table[row].tolist()}; draw without replacement")
    counts = np.bincount(table.ravel().astype(np.int64), minlength=n)
    if balanced and counts.max() - counts.min() > 1:
        most, least = int(counts.argmax()), int(counts.argmin())
        raise PropertyError(
            BALANCE,
            f"memory {most} is in {counts[most]} rounds and memory {least} in {counts[least]}; deal whole passes "
            "of the roster, as cmp.balanced_table does, or pass balanced=False",
        )
    return table.astype(np.int64)


def _of_one(table: Table, n: int) -> list[_Test]:
    """Test one table: the rounds of a memory, given their number, are a simple random sample."""
    from scipy.stats import hypergeom

    length, half = len(table), len(table) // 2
    counts, early = (np.bincount(part.ravel(), minlength=n) for part in (table, table[:half]))
    law = hypergeom(length, counts, half)

    def says(m: int) -> str:
        return f"{early[m]} of the {counts[m]} rounds of memory {m} are among the first {half} of {length}"

    p = _two_sided(law.cdf(early), law.sf(early - 1))
    return [
        _Test("the rounds of a memory are a simple random sample", p, says, "put the rows in random order")
    ]


def _of_many(tables: Table, n: int, balanced: bool) -> list[_Test]:
    """Test tables of different seeds, which are independent."""
    number, length, k = tables.shape
    present = np.zeros((number, length, n), dtype=bool)
    np.put_along_axis(present, tables, True, axis=2)

    tests: list[_Test] = []
    counts = present.sum(axis=1)
    if balanced and (odd := length * k % n):
        tests.append(
            _of_counts(
                "who gets the larger count is uniformly random",
                (counts > length * k // n).sum(axis=0),
                number,
                odd / n,
                lambda place: f"memory {place} has the larger count",
                "draw who gets it anew for every table",
            )
        )
    tests.append(
        _of_counts(
            "a memory is in a round with probability k / N",
            present.sum(axis=0),
            number,
            k / n,
            lambda place: f"memory {place % n} is in round {place // n}",
            "label the memories of a table, and order its rows, at random",
        )
    )
    if k > 1:
        first = present[:, 0, :].astype(np.int64)
        left, right = np.triu_indices(n, 1)
        tests.append(
            _of_counts(
                "two memories share a round with probability k (k - 1) / (N (N - 1))",
                (first.T @ first)[left, right],
                number,
                k * (k - 1) / (n * (n - 1)),
                lambda place: f"memories {left[place]} and {right[place]} share round 0",
                "shuffle every pass of the roster: a cyclic table has the right counts and the wrong pairs",
            )
        )
    if balanced and length > 1:
        tests.append(_of_neighbours(present, counts))
    return tests


def _of_counts(
    name: str,
    seen: npt.NDArray[np.int64],
    number: int,
    chance: float,
    what: Callable[[int], str],
    mend: str,
) -> _Test:
    """Test counts of tables against one chance."""
    from scipy.stats import binom

    law, flat = binom(number, chance), seen.ravel()

    def says(place: int) -> str:
        return f"{what(place)} in {flat[place]} of {number} tables, and {number * chance:.1f} are expected"

    return _Test(name, _two_sided(law.cdf(flat), law.sf(flat - 1)), says, mend)


def _of_neighbours(present: npt.NDArray[np.bool_], counts: npt.NDArray[np.int64]) -> _Test:
    """Test how often a memory is in both of the first two rounds."""
    length = present.shape[1]
    seen = (present[:, 0] & present[:, 1]).sum(axis=0)
    chances = counts * (counts - 1) / (length * (length - 1))
    p = np.array([_sum_test(int(total), chance) for total, chance in zip(seen, chances.T, strict=True)])

    def says(m: int) -> str:
        expected = chances[:, m].sum()
        return f"memory {m} is in both of the first two rounds in {seen[m]} tables, and {expected:.1f} are expected"

    return _Test("the rounds of a memory are a simple random sample", p, says, "put the rows in random order")


def _sum_test(total: int, chances: npt.NDArray[np.float64]) -> float:
    """Return the exact two-sided p-value of a sum of independent events with these chances."""
    from scipy.stats import binom

    law = np.ones(1)
    for chance, number in zip(*np.unique(chances, return_counts=True), strict=True):
        law = np.convolve(law, binom(number, chance).pmf(np.arange(number + 1)))
    return float(_two_sided(law[: total + 1].sum(), law[total:].sum()))


def _two_sided(below: npt.ArrayLike, above: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Return twice the smaller tail, each with what was seen in it, 1 at most."""
    p: npt.NDArray[np.float64] = np.minimum(1.0, 2.0 * np.minimum(below, above))
    return p
