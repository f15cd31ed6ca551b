"""Cells of an experiment, kept once done: an interrupted run goes on where it was, and changed code begins anew."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from experiments.records import ROOT

__all__ = ["KeptCells", "hash_sources"]

Rows = list[dict[str, Any]]

#: Libraries whose version may move a number.
_LIBRARIES = ("numpy", "scipy", "polars")


@dataclass(frozen=True, slots=True)
class KeptCells:
    """A folder of cells, each the rows it gave, named by a key and by all that its numbers depend on."""

    folder: Path

    @classmethod
    def of(cls, cache: Path, sources: Iterable[str]) -> KeptCells:
        """Return the cells in ``cache`` that were computed by the files as they are when the run begins.

        Parameters
        ----------
        cache
            The experiment's folder; cells of other versions of the sources lie beside these.
        sources
            Files and folders of Python files, relative to the repository.
        """
        return cls(cache / hash_sources(sources))

    def rows(
        self,
        key: Sequence[Any],
        measure: Callable[[], Rows],
        *,
        skipped: Callable[[], None] = lambda: None,
        unless: Callable[[Rows], bool] = lambda _: False,
    ) -> Rows:
        """Return a cell's rows, from where they were kept if they were.

        Parameters
        ----------
        key
            JSON values that tell this cell from all others, its number of draws and its seed among them.
        measure
            Computes the rows, of JSON values.
        skipped
            Called where it need not.
        unless
            Says of rows that they are not to be kept.
        """
        name = hashlib.sha256(json.dumps(list(key)).encode()).hexdigest()[:24]
        path = self.folder / f"{name}.json"
        if path.is_file():
            skipped()
            kept: Rows = json.loads(path.read_text(encoding="utf-8"))
            return kept
        rows = measure()
        if unless(rows):
            return rows
        self.folder.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps(rows), encoding="utf-8")
        partial.replace(path)
        return rows


def hash_sources(names: Iterable[str], root: Path = ROOT) -> str:
    """Return one hash of files (of a folder, all its Python files) and of the libraries beneath them."""
    digest = hashlib.sha256()
    for library in _LIBRARIES:
        digest.update(f"{library}=={metadata.version(library)}\n".encode())
    for name in names:
        place = root / name
        for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            content = path.read_bytes()
            digest.update(f"{path.relative_to(root).as_posix()} {len(content)}\n".encode())
            digest.update(content)
    return digest.hexdigest()[:16]
