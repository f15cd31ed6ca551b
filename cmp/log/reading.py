"""The log as its readers see it: five lazy frames, and export to Parquet."""

from __future__ import annotations

import json
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from uuid import uuid4

import polars as pl

from cmp.log.parts import PARTS_ARE_BLOCKS, PARTS_KEY, ROUNDS_PER_PART, write_parts
from cmp.log.schema import BLOCKS, EXPOSURES, OUTCOMES, ROSTERS, ROUNDS, Table

__all__ = ["META_FILE", "Log"]

META_FILE = "meta.json"


class Log(ABC):
    """An exposure log. Each method returns a polars LazyFrame with the columns of ``cmp.log.schema``."""

    #: Rows are unique by the schema's keys, so that nobody need look.
    has_unique_rows = True

    @abstractmethod
    def scan(self, table: Table) -> pl.LazyFrame:
        """Return one table with the types of its schema, other columns kept behind them."""

    @abstractmethod
    def meta(self) -> Mapping[str, str]:
        """Return the schema version, and the library versions and generator that wrote the log."""

    def rounds(self) -> pl.LazyFrame:
        """One row a round: the unit of randomization."""
        return self.scan(ROUNDS)

    def exposures(self) -> pl.LazyFrame:
        """One row for each memory ranked or drawn in a round."""
        return self.scan(EXPOSURES)

    def outcomes(self) -> pl.LazyFrame:
        """One row a round, metric and revision."""
        return self.scan(OUTCOMES)

    def blocks(self) -> pl.LazyFrame:
        """One row a block, with its assignment table."""
        return self.scan(BLOCKS)

    def rosters(self) -> pl.LazyFrame:
        """One row for each memory of a block's roster, with the exposures planned for it."""
        return self.scan(ROSTERS)

    def export(
        self,
        directory: str | os.PathLike[str],
        *,
        overwrite: bool = False,
        rounds_per_part: int = ROUNDS_PER_PART,
    ) -> Path:
        """Write the log as Parquet, one folder a table, and return the directory.

        It is written beside the target and moved into place at the end: an interrupt leaves nothing half there.
        :func:`cmp.open_log` reads it back.

        Parameters
        ----------
        directory
            Where to write.
        overwrite
            Replace an exported log that is there.
        rounds_per_part
            A table is written in parts of about so many rounds, each part with all rounds of its blocks and all that
            belongs to them, so that parts can be summed up one at a time.

        Raises
        ------
        FileExistsError
            Where the directory exists and is not empty, unless ``overwrite`` (which replaces only an exported log).
        ValueError
            For ``rounds_per_part`` below 1.
        """
        if rounds_per_part < 1:
            raise ValueError(f"rounds_per_part is {rounds_per_part!r}; give a whole number, 1 or more")
        target = Path(directory)
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            if not overwrite:
                raise FileExistsError(
                    f"{target} exists and is not empty; choose another place or pass overwrite=True"
                )
            if not (target / META_FILE).is_file():
                raise FileExistsError(
                    f"{target} is no exported log (it has no {META_FILE}); it was left as it is"
                )
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f".{target.name}.{uuid4().hex}.partial")
        try:
            write_parts(self.scan, partial, rounds_per_part)
            meta = {**self.meta(), PARTS_KEY: PARTS_ARE_BLOCKS}
            (partial / META_FILE).write_text(json.dumps(meta, indent=1, sort_keys=True), "utf-8")
            if target.exists():
                shutil.rmtree(target)
            partial.replace(target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        return target
