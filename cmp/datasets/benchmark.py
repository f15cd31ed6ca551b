"""What every loader returns: memories, questions, key-memory labels, and an account of what was mended."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, get_args

import polars as pl

from cmp.errors import DatasetError, GranularityError

__all__ = ["QUESTION_COLUMNS", "Benchmark", "Irregularities", "label_frame", "require", "require_choice"]

#: What every loader's questions have; it adds what its source knows.
QUESTION_COLUMNS: Mapping[str, pl.DataType] = {
    "query_id": pl.String(),
    "scope": pl.String(),
    "text": pl.String(),
    "answer": pl.String(),
    "category": pl.String(),
    "answerable": pl.Boolean(),
}
_COLUMNS: Mapping[str, Mapping[str, pl.DataType]] = {
    "memories": {"scope": pl.String(), "memory_id": pl.String(), "text": pl.String()},
    "questions": QUESTION_COLUMNS,
    "qrels": {
        "query_id": pl.String(),
        "scope": pl.String(),
        "memory_id": pl.String(),
        "relevance": pl.Int64(),
    },
    "irregularities": {
        "kind": pl.String(),
        "where": pl.String(),
        "value": pl.String(),
        "action": pl.String(),
    },
}
_KEYS = {
    "memories": ["scope", "memory_id"],
    "questions": ["query_id"],
    "qrels": ["query_id", "memory_id"],
}


@dataclass(frozen=True, slots=True)
class Benchmark:
    """Stores of memories, the questions asked of them, and which memories each question needs.

    Frames have at least the columns named here; loaders add what their source knows.

    Attributes
    ----------
    name : str
        The benchmark and what its memories are: ``locomo/turns``.
    memories : polars.DataFrame
        ``scope, memory_id, text``, one row a memory, in the source's order. ``(scope, memory_id)`` is the
        key: the same turn number in two conversations is two memories.
    questions : polars.DataFrame
        ``query_id, scope, text, answer, category, answerable``, one row a question. ``query_id`` is the
        source's own id or the place in its file, never the text. ``answer`` is null where the source has no
        gold answer; ``answerable`` is False where answer-based scoring has nothing to score.
    qrels : polars.DataFrame
        ``query_id, scope, memory_id, relevance``, one row a pair. Every id exists.
    irregularities : polars.DataFrame
        ``kind, where, value, action``, one row for each place where the files were not as they should be. It
        describes the files, so a selection keeps it whole.
    source : mapping of str to str
        File name to the sha256 of its unpacked bytes, a remark where these are not the bytes the loader was
        written against, and what was overridden.
    """

    name: str
    memories: pl.DataFrame
    questions: pl.DataFrame
    qrels: pl.DataFrame
    irregularities: pl.DataFrame
    source: Mapping[str, str]

    def __post_init__(self) -> None:
        object.__setattr__(self, "source", MappingProxyType(dict(self.source)))
        for table in _COLUMNS:
            _check_table(self.name, table, getattr(self, table))
        _check_labels(self)

    def select(
        self,
        *,
        scope: str | Iterable[str] | None = None,
        categories: object | Iterable[object] | None = None,
        answerable: bool | None = None,
    ) -> Benchmark:
        """Return the part of the benchmark in some scopes, of some categories, or with an answer to score.

        Parameters
        ----------
        scope
            One scope or several; their memories stay, the others' go.
        categories
            One category or several, as the ``category`` column writes them; an int is written in decimal.
            Memories stay: other questions' keys are still in the store.
        answerable
            True for the questions that answer-based scoring can score, False for the others.

        Raises
        ------
        DatasetError
            Where a scope or a category is not in the benchmark.

        Examples
        --------
        >>> from cmp.datasets import load_demo
        >>> load_demo().select(categories="indirect").questions.height
        10
        """
        memories, questions = self.memories, self.questions
        if scope is not None:
            scopes = _known(scope, memories["scope"], "scope")
            memories = memories.filter(pl.col("scope").is_in(scopes))
            questions = questions.filter(pl.col("scope").is_in(scopes))
        if categories is not None:
            kept = _known(categories, self.questions["category"], "category")
            questions = questions.filter(pl.col("category").is_in(kept))
        if answerable is not None:
            questions = questions.filter(pl.col("answerable") == answerable)
        qrels = self.qrels.join(
            questions.select("query_id"), on="query_id", how="semi", maintain_order="left"
        )
        return replace(self, memories=memories, questions=questions, qrels=qrels)

    def scopes(self) -> list[str]:
        """Return the scopes in the source's order."""
        return self.memories["scope"].unique(maintain_order=True).to_list()

    def texts(self, scope: str) -> dict[str, str]:
        """Return the store of one scope: memory id to text, in the source's order.

        Raises
        ------
        DatasetError
            Where the scope is not in the benchmark.
        """
        rows = self.memories.filter(pl.col("scope").is_in(_known(scope, self.memories["scope"], "scope")))
        return dict(zip(rows["memory_id"], rows["text"], strict=True))

    def summary(self) -> str:
        """Return a few lines for people: sizes, labels, and how often each kind of irregularity was met."""
        labelled, keys = self.qrels["query_id"].n_unique(), self.qrels.select("scope", "memory_id").n_unique()
        lines = [
            f"{self.name}: {self.memories.height:,} memories in {len(self.scopes()):,} scope(s), "
            f"{self.questions.height:,} questions",
            f"labels: {self.qrels.height:,}, of {labelled:,} questions, on {keys:,} key memories",
        ]
        counts = self.irregularities.group_by("kind", "action", maintain_order=True).len()
        lines += [f"irregular: {kind} x {n:,} ({action})" for kind, action, n in counts.iter_rows()]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Irregularities:
    """The account a loader keeps while it reads."""

    rows: list[tuple[str, str, str, str]] = field(default_factory=list)

    def note(self, kind: str, where: str, value: object, action: str) -> None:
        """Add one place: what is irregular, where, the value as it stood, and what was done."""
        self.rows.append((kind, where, str(value), action))

    def frame(self) -> pl.DataFrame:
        """Return ``kind, where, value, action``, in the order met."""
        return pl.DataFrame(self.rows, schema=dict(_COLUMNS["irregularities"]), orient="row")


def label_frame(rows: Sequence[tuple[str, str, str]], asked: int, file: str) -> pl.DataFrame:
    """Return qrels from ``(query_id, scope, memory_id)`` rows, which exist and are distinct.

    Raises
    ------
    GranularityError
        Where ``asked > 0`` questions name memories and not one of these exists.
    """
    if asked and not rows:
        raise GranularityError(
            f"{file}: not one of the labels of {asked} questions names a memory of the store; labels and "
            "memories are of different units, or of different versions"
        )
    schema = {name: kind for name, kind in _COLUMNS["qrels"].items() if name != "relevance"}
    return pl.DataFrame(rows, schema=schema, orient="row").with_columns(relevance=pl.lit(1, dtype=pl.Int64))


def require_choice(name: str, value: str, choices: Any) -> None:
    """Refuse a value that is none of a ``Literal``'s.

    Raises
    ------
    ValueError
        Naming the argument and the choices.
    """
    if value not in get_args(choices):
        raise ValueError(f"{name} is {value!r}; choose one of {', '.join(get_args(choices))}")


def require(record: object, key: str, kind: type | tuple[type, ...], where: str) -> Any:
    """Return ``record[key]``, which must be there and of the kind.

    Raises
    ------
    DatasetError
        Where it is not, with the place.
    """
    kinds = kind if isinstance(kind, tuple) else (kind,)
    names = " or ".join("null" if k is type(None) else k.__name__ for k in kinds)
    if not isinstance(record, dict):
        raise DatasetError(f"{where}: an object with {key!r} was expected, not {type(record).__name__}")
    if key not in record:
        raise DatasetError(f"{where}: {key!r} is missing; is this the file the loader expects?")
    if not isinstance(record[key], kinds):
        raise DatasetError(f"{where}: {key!r} is {type(record[key]).__name__}, not {names}")
    return record[key]


def _known(wanted: object, present: pl.Series, what: str) -> list[str]:
    several = isinstance(wanted, Iterable) and not isinstance(wanted, str)
    texts = [str(value) for value in wanted] if several and isinstance(wanted, Iterable) else [str(wanted)]
    have = present.unique(maintain_order=True).to_list()
    unknown = [text for text in texts if text not in have]
    if unknown:
        shown = ", ".join(have[:12]) + (", ..." if len(have) > 12 else "")
        raise DatasetError(f"no {what} {', '.join(map(repr, unknown))} in this benchmark; there are: {shown}")
    return texts


def _check_table(name: str, table: str, frame: pl.DataFrame) -> None:
    for column, kind in _COLUMNS[table].items():
        if column not in frame.columns or frame.schema[column] != kind:
            raise DatasetError(
                f"{name}: {table} must have a column {column!r} of type {kind}, has {frame.schema}"
            )
        if column != "answer" and frame[column].null_count():
            raise DatasetError(f"{name}: {table}.{column} has {frame[column].null_count()} nulls")
    key = _KEYS.get(table)
    if key and frame.select(key).is_duplicated().any():
        first = frame.filter(frame.select(key).is_duplicated()).row(0, named=True)
        raise DatasetError(
            f"{name}: {table} repeats {', '.join(f'{k} {first[k]!r}' for k in key)}; it is a key"
        )


def _check_labels(benchmark: Benchmark) -> None:
    for table, key in (("memories", ["scope", "memory_id"]), ("questions", ["query_id", "scope"])):
        strays = benchmark.qrels.join(getattr(benchmark, table), on=key, how="anti")
        if strays.height:
            raise DatasetError(
                f"{benchmark.name}: {strays.height} labels are of no row of {table}, the first "
                f"{strays.row(0)}"
            )
