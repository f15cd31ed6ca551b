"""Which units the labels are of: matched by scope where both name one, by id where a label names none."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

import polars as pl

from cmp.errors import GranularityError

__all__ = ["PlacedLabels", "place_labels"]


class PlacedLabels(NamedTuple):
    """Labels laid over units; frames have the place's columns and ``memory_id``."""

    found: pl.DataFrame
    """Units that a label names, each once."""
    strays: pl.DataFrame
    """Labels of a place that is there and a memory that is not, each once."""
    n_placed: int
    """Labels of a place that is there, of which some may be strays."""
    n_elsewhere: int
    """Labels of places that are not there."""


def place_labels(labels: pl.DataFrame, places: pl.DataFrame, units: pl.DataFrame) -> PlacedLabels:
    """Match labels with units. A scope or a query that a label leaves out fits every place.

    Parameters
    ----------
    labels
        ``query_id``, ``scope``, ``memory_id``; null where a label names no query or no scope.
    places
        Unique rows of ``query_id`` or ``scope`` or both, or of no column: where units are looked for.
    units
        ``memory_id`` and those of the places' columns that tell units apart.

    Raises
    ------
    GranularityError
        Where a label without a scope fits memories of several scopes, or labels of several scopes meet units that
        name none.

    Examples
    --------
    >>> labels = pl.DataFrame({"query_id": ["q", "q"], "scope": ["A", None], "memory_id": ["a", "b"]})
    >>> units = pl.DataFrame({"scope": ["A", "A", "B"], "memory_id": ["a", "b", "c"]})
    >>> place_labels(labels, units.select("scope").unique(), units).found.sort("memory_id").rows()
    [('A', 'a'), ('A', 'b')]
    """
    where = places.columns
    known = labels.select(*dict.fromkeys([*where, "scope"]), "memory_id").unique(maintain_order=True)
    known = known.with_row_index("label")
    parts = [_placed(rows, on, places, units) for on, rows in _by_place_named(known, where)]
    columns = ["label", "own_scope", *where, "memory_id"]
    nothing = pl.DataFrame(schema=dict.fromkeys(columns, pl.String) | {"label": pl.UInt32})
    located, found = (
        pl.concat([nothing, *(part[side].select(columns) for part in parts)]) for side in (0, 1)
    )
    _check_scopes(located, found, where)
    strays = located.join(found, on="label", how="anti", maintain_order="left")
    n_placed = located["label"].n_unique()
    return PlacedLabels(
        found.select(columns[2:]).unique(maintain_order=True),
        strays.select(columns[2:]).unique(maintain_order=True),
        n_placed,
        known.height - n_placed,
    )


def _by_place_named(labels: pl.DataFrame, where: list[str]) -> Iterator[tuple[list[str], pl.DataFrame]]:
    """Split labels by which of the places' columns they name."""
    for named in product((True, False), repeat=len(where)):
        rows = labels.filter(
            pl.lit(True),
            *(pl.col(c).is_null() != is_named for c, is_named in zip(where, named, strict=True)),
        )
        if rows.height:
            yield [c for c, is_named in zip(where, named, strict=True) if is_named], rows


def _placed(
    rows: pl.DataFrame, on: list[str], places: pl.DataFrame, units: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return labels at every place that fits, and those of them that name a unit; ``on`` is what they name."""
    where = places.columns
    bare = rows.select("label", pl.col("scope").alias("own_scope"), *on, "memory_id")
    located = bare.join(places, on=on, how="inner", maintain_order="left") if on else bare
    shared = [name for name in where if name in units.columns and name in located.columns]
    found = located.join(units, on=[*shared, "memory_id"], how="inner", maintain_order="left")
    nowhere = [pl.lit(None, pl.String).alias(name) for name in where if name not in located.columns]
    return located.with_columns(nowhere), found


def _check_scopes(located: pl.DataFrame, found: pl.DataFrame, where: list[str]) -> None:
    if "scope" not in where:
        scopes = located["own_scope"].drop_nulls().unique().sort()
        if len(scopes) > 1:
            raise GranularityError(
                f"the labels are of {len(scopes)} scopes ({_some(scopes)}) and the table has no column scope to tell "
                "their memories apart; give the table a scope column, or pass the labels of one scope"
            )
        return
    torn = (
        found.filter(pl.col("own_scope").is_null())
        .group_by("label")
        .agg("memory_id", pl.col("scope").unique())
    )
    torn = torn.filter(pl.col("scope").list.len() > 1)
    if torn.height:
        raise GranularityError(
            f"labels without a scope fit {torn['memory_id'][0][0]!r} in several scopes "
            f"({_some(torn['scope'][0].sort())}); give the qrels a scope column"
        )


def _some(names: pl.Series) -> str:
    return ", ".join(map(repr, names.head(2)))
