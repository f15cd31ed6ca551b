"""Readers of the public benchmarks, and the small store of the demonstration."""

from cmp.datasets.benchmark import Benchmark
from cmp.datasets.demo import load_demo
from cmp.datasets.locomo import load_locomo
from cmp.datasets.longmemeval import load_longmemeval
from cmp.datasets.memaware import load_memaware
from cmp.datasets.support_outcome import answer_support

__all__ = [
    "Benchmark",
    "answer_support",
    "load_demo",
    "load_locomo",
    "load_longmemeval",
    "load_memaware",
]
