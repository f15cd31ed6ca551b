"""A generator that goes through every outcome of a sampler, each with its exact probability."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import permutations
from math import factorial
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")


class EnumeratingGenerator:
    """Stands in for ``numpy.random.Generator``: its permutations follow a path through the tree of outcomes.

    The order within a row (``permuted``) is left as it is: every property tested is of rows as sets.
    """

    def __init__(self, path: list[int]) -> None:
        self.path = path
        self.radices: list[int] = []

    def permutation(self, x: Any) -> np.ndarray:
        items = np.arange(x) if np.isscalar(x) else np.asarray(x)
        depth = len(self.radices)
        self.radices.append(factorial(items.size))
        if depth == len(self.path):
            self.path.append(0)
        order = list(permutations(range(items.size)))[self.path[depth]]
        return items[list(order)]

    def permuted(self, x: np.ndarray, axis: int) -> np.ndarray:
        return x


def outcomes(sampler: Callable[[Any], T]) -> Iterator[tuple[Fraction, T]]:
    """Yield (probability, value) for every path of a sampler that only draws permutations."""
    path: list[int] = []
    while True:
        generator = EnumeratingGenerator(path)
        value = sampler(generator)
        probability = Fraction(1)
        for radix in generator.radices:
            probability /= radix
        yield probability, value
        while path and path[-1] + 1 == generator.radices[len(path) - 1]:
            path.pop()
        if not path:
            return
        path[-1] += 1
