"""What was lost or set aside when records were gathered into a log: its tables cannot show it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from cmp.log.findings import Finding

__all__ = ["Losses"]

_TORN: Final = (
    "records",
    "it is no whole record: what it held is lost",
    "Gather the records again from where they were written, if they are whole there; whole rounds lost at random bias "
    "nothing, but find out why they were",
)
_OUTCOMES: Final = (
    "outcomes",
    "it was set aside: another value was recorded first, and this one does not say that it corrects it",
    "Find out which is right; if it is this one, record it again with correct=True",
)
_ROUNDS: Final = (
    "rounds",
    "it was set aside: the round was asked before and drew other memories",
    "Ask a round again only while its roster is the same; the draw that was asked first counts, and if the other was "
    "shown too, leave the round out",
)

#: The entry of ``meta`` that holds :attr:`Losses.by_metric`.
_BY_METRIC: Final = "conflicting_outcomes_by_metric"


@dataclass(frozen=True, slots=True)
class Losses:
    """What was lost or set aside in gathering.

    Attributes
    ----------
    torn
        Places in the source that held no whole record, but for those counted in ``cut``.
    cut
        Records cut short, at a file's end or where the next record follows at once: what a crash leaves of the record
        that was being written. It is no fault of the log.
    outcomes
        Outcomes of another value than an earlier one, without ``correct``.
    rounds
        Rounds asked again that drew other memories.
    torn_at, outcomes_at, rounds_at
        Where the first few of each stand.
    by_metric
        Of ``outcomes``, how many are of each metric: pairs of a metric and a count. Outcomes it does not count are of
        metrics that are not known, as in a log that an earlier version exported.

    Examples
    --------
    >>> [str(finding)[:34] for finding in Losses(torn=3, torn_at=("x.jsonl, line 7",)).findings()]
    ['records, x.jsonl, line 7: it is no', 'records, 2 more: it is no whole re']
    """

    torn: int = 0
    cut: int = 0
    outcomes: int = 0
    rounds: int = 0
    torn_at: tuple[str, ...] = ()
    outcomes_at: tuple[str, ...] = ()
    rounds_at: tuple[str, ...] = ()
    by_metric: tuple[tuple[str, int], ...] = ()

    def findings(self) -> list[Finding]:
        """Return what is wrong with the log for it; the first few of a kind are named, the others counted."""
        return [
            *_named(self.torn, self.torn_at, *_TORN),
            *_named(self.outcomes, self.outcomes_at, *_OUTCOMES),
            *_named(self.rounds, self.rounds_at, *_ROUNDS),
        ]

    def outcomes_of(self, metric: str) -> int:
        """Return how many outcomes of a metric were set aside, with those of metrics that are not known.

        Examples
        --------
        >>> Losses(outcomes=3, by_metric=(("latency", 2), ("reward", 1))).outcomes_of("reward")
        1
        >>> Losses(outcomes=3).outcomes_of("reward")
        3
        """
        known = dict(self.by_metric)
        return self.outcomes - sum(known.values()) + known.get(metric, 0)

    def counts(self) -> dict[tuple[str, str], int]:
        """Return how many findings there are of each table and problem, those that are not named included."""
        found = {_TORN[:2]: self.torn, _OUTCOMES[:2]: self.outcomes, _ROUNDS[:2]: self.rounds}
        return {kind: n for kind, n in found.items() if n}

    def to_meta(self) -> dict[str, str]:
        """Return the counts as a log's ``meta`` holds them, and an export keeps them."""
        return {
            "torn": str(self.torn + self.cut),
            "torn_ends": str(self.cut),
            "conflicts": str(self.outcomes + self.rounds),
            "conflicting_rounds": str(self.rounds),
            **({_BY_METRIC: json.dumps(dict(self.by_metric), sort_keys=True)} if self.by_metric else {}),
        }

    @classmethod
    def from_meta(cls, meta: Mapping[str, str]) -> Losses:
        """Read them back; a log that was not gathered has none.

        Raises
        ------
        ValueError
            For what is no count.
        """
        torn, cut, conflicts, rounds = (
            int(meta.get(key, 0)) for key in ("torn", "torn_ends", "conflicts", "conflicting_rounds")
        )
        by_metric = _counts_of(meta[_BY_METRIC]) if _BY_METRIC in meta else ()
        return cls(torn - cut, cut, conflicts - rounds, rounds, by_metric=by_metric)


def _counts_of(text: str) -> tuple[tuple[str, int], ...]:
    counts = json.loads(text)
    if not isinstance(counts, dict) or not all(type(n) is int for n in counts.values()):
        raise ValueError(f"{_BY_METRIC} is {text!r}; it is a count for each metric")
    return tuple(sorted(counts.items()))


def _named(n: int, places: tuple[str, ...], table: str, problem: str, mend: str) -> Iterator[Finding]:
    for place in places:
        yield Finding(table, place, problem, mend)
    if n > len(places):
        yield Finding(table, f"{n - len(places)} more" if places else f"{n} in all", problem, mend)
