"""The log as its readers see it: five lazy frames, and export to Parquet."""

from __future__ import annotations

import json
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import polars as pl

from cmp.log.losses import Losses
from cmp.log.parts import PARTS_ARE_BLOCKS, PARTS_KEY, ROUNDS_PER_PART, write_parts
from cmp.log.schema import BLOCKS, EXPOSURES, OUTCOMES, ROSTERS, ROUNDS, Table

__all__ = ["META_FILE", "Log"]

META_FILE = "meta.json"


class Log(ABC):
    """An exposure log. Each method returns a polars LazyFrame with the columns of ``cmp.log.schema``."""

    #: Rows are unique by the schema's keys, so that nobody need look.
    has_unique_rows = True

    #: What was lost or set aside before there were tables.
    losses = Losses()

    @abstractmethod
    def scan(self, table: Table) -> pl.LazyFrame:
        """Return one table with the types of its schema, other columns kept behind them."""

    @abstractmethod
    def meta(self) -> Mapping[str, str]:
        """Return the schema version, and the library versions and generator that wrote the log."""

    @contextmanager
    def snapshot(self) -> Iterator[Log]:
        """Hold the log as of one moment: what is read within is of it, whoever writes meanwhile.

        Each frame of a log that is being written to is of the moment it was asked for: a round may be in one and its
        exposures not yet in the other. Within, all are of the moment of entry, and so is an export.

        Nothing is copied. While it is held a SQLite file cannot reuse the room of its write-ahead log, and a Postgres
        server cannot clear away old rows: read, and leave. Of a log that nobody writes to, this is the log itself.

        Returns
        -------
        context manager of Log
            For reading within the ``with`` statement, in its thread.

        Examples
        --------
        >>> import tempfile, cmp
        >>> with tempfile.TemporaryDirectory() as folder, cmp.wrap(
        ...     lambda query: ["a", "b"], list_ids=lambda: "abcdef", get=list, slots=2, random_slots=1,
        ...     log=folder + "/x.db", scope=cmp.EVERYTHING, seed=1,
        ... ) as memory:
        ...     _ = memory.retrieve("q")
        ...     with memory.log.snapshot() as now:
        ...         _ = memory.retrieve("q")
        ...         now.rounds().collect().height, memory.log.rounds().collect().height
        (1, 2)
        """
        yield self

    def portions(self, table: Table) -> Iterator[pl.DataFrame]:
        """Return one table some rows at a time, in order, where the log can be read so; or else all at once.

        There is always one, though it may hold no row.
        """
        yield self.scan(table).collect()

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

        It is of one moment, whoever writes to the log meanwhile. It is written beside the target and moved into place
        at the end: an interrupt leaves nothing half there.
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
            with self.snapshot() as now:
                write_parts(now.portions, partial, rounds_per_part)
                meta = {**now.meta(), PARTS_KEY: PARTS_ARE_BLOCKS}
            (partial / META_FILE).write_text(json.dumps(meta, indent=1, sort_keys=True), "utf-8")
            if target.exists():
                shutil.rmtree(target)
            partial.replace(target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        return target
