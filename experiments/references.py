"""Figures that others have measured, to stand beside ours and never under our name."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["IDENTICAL", "MEASURED", "PUBLISHED", "REASONS", "Measured", "Published"]


@dataclass(frozen=True, slots=True)
class Measured:
    """A figure measured before on the same files with the same retriever.

    Parameters
    ----------
    pool, retriever, category
        The row of ours that it should agree with.
    quantity
        A column of the support overview.
    value
        A share for shares, a rank for ranks.
    """

    pool: str
    retriever: str
    category: str
    quantity: str
    value: float


@dataclass(frozen=True, slots=True)
class Published:
    """A figure of the paper, and the rows of ours that measure the same phenomenon on what is public.

    Parameters
    ----------
    claim, figure
        What was measured there, and the figure as printed.
    pool, quantity
        Our pool, and the column of the support overview.
    """

    claim: str
    figure: str
    pool: str
    quantity: str


TURNS, CAPTIONS, OBSERVATIONS = "LoCoMo turn text", "LoCoMo speaker + text + caption", "LoCoMo observations"
SESSIONS, SHARED = "MemAware sessions", "LongMemEval shared store, turns"

UNSTEMMED = "BM25 unstemmed"

#: Never any, never own (percent) and median rank of missed evidence; None where it was not measured.
_REACH: dict[tuple[str, str], tuple[float, float, float | None]] = {
    (TURNS, "BM25"): (27.5, 53.2, 98.5),
    (TURNS, UNSTEMMED): (28.6, 57.1, 202),
    (TURNS, "dense"): (54.9, 74.4, 75),
    (CAPTIONS, "BM25"): (23.5, 50.3, 80),
    (CAPTIONS, UNSTEMMED): (25.8, 53.8, 141),
    (CAPTIONS, "dense"): (39.2, 59.7, 66),
    (OBSERVATIONS, "BM25"): (6.6, 36.0, 53),
    (OBSERVATIONS, UNSTEMMED): (9.4, 42.0, 71),
    (OBSERVATIONS, "dense"): (8.7, 31.0, 31),
    (OBSERVATIONS, "fused"): (5.0, 29.3, 32),
    (SESSIONS, "BM25"): (7.7, 56.0, None),
    (SESSIONS, "dense, best turn"): (8.0, 53.6, None),
    (SESSIONS, "fused"): (6.0, 50.0, None),
    (SHARED, "BM25"): (44.7, 53.4, 66.5),
    (SHARED, "dense"): (62.4, 69.9, 62),
}

#: Any key session in the top 6, percent: all, easy, medium, hard.
_RECALL: dict[str, tuple[float, float, float, float]] = {
    "BM25": (32.1, 50.0, 39.3, 7.0),
    "dense, best turn": (35.3, 54.0, 44.0, 8.0),
    "fused": (38.0, 58.7, 47.3, 8.0),
}
_TIERS = ("all", "easy", "medium", "hard")

MEASURED: tuple[Measured, ...] = (
    *(
        Measured(pool, retriever, "all", quantity, value / scale)
        for (pool, retriever), figures in _REACH.items()
        for quantity, value, scale in zip(
            ("never_any", "never_own", "median_rank_missed"), figures, (100, 100, 1), strict=True
        )
        if value is not None
    ),
    *(
        Measured(SESSIONS, retriever, tier, "any_key_recall", value / 100)
        for retriever, figures in _RECALL.items()
        for tier, value in zip(_TIERS, figures, strict=True)
    ),
    *(
        Measured(SESSIONS, "fused", tier, "never_own", value / 100)
        for tier, value in zip(_TIERS[1:], (57.5, 69.0, 95.4), strict=True)
    ),
)

PUBLISHED: tuple[Published, ...] = (
    Published("key memories never retrieved, LongMemEval, independent", "54.0 %", SHARED, "never_own"),
    Published("key memories never retrieved, LongMemEval, all", "61.2 %", SHARED, "never_own"),
    Published("key memories never retrieved, LongMemEval, all", "61.2 %", SHARED, "never_any"),
    Published("key memories never retrieved, LoCoMo", "66.9 %", TURNS, "never_own"),
    Published("key memories never retrieved, LoCoMo", "66.9 %", TURNS, "never_any"),
    Published("key memories never retrieved, LoCoMo", "66.9 %", CAPTIONS, "never_own"),
    Published("key memories never retrieved, LoCoMo", "66.9 %", CAPTIONS, "never_any"),
    Published("key memories never retrieved, Mem0 store", "28.4 %", OBSERVATIONS, "never_own"),
    Published("key memories never retrieved, Mem0 store", "28.4 %", OBSERVATIONS, "never_any"),
    Published("median rank of missed evidence, Mem0 store", "139 of 291", OBSERVATIONS, "median_rank_missed"),
)

#: Published: store randomizations after which the retrieval is what it was.
IDENTICAL = "52.2 %"

#: Why a share of ours is more than a point from the earlier one, by pool and retriever.
REASONS: dict[tuple[str, str], str] = {}
