"""Causal Memory Policy: which retrieved memories actually help?

A middleware gives ``k`` of a retriever's ``B`` context slots to memories drawn with known propensities, logs every
exposure, joins outcomes later, and estimates the utility of each memory with an honest interval.

Names are loaded on first use, so that serving never pays for estimation.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cmp.design import (
        balanced_table,
        joint_propensity,
    )
    from cmp.errors import (
        CmpError,
        ConflictingOutcomeError,
        DatasetError,
        GranularityError,
        InvalidIdError,
        LogCorruptedError,
        LogTimeoutError,
        LogUnavailableError,
        LogVersionError,
        MissingExtraError,
        PositivityError,
        ScopeError,
        UndecidableError,
        UnknownRoundError,
    )
    from cmp.estimation import (
        Utilities,
        differential_missingness,
        estimate,
        missing_outcome_bounds,
        moderate_variances,
        newcombe_interval,
        neyman_variance_estimate,
        null_variance,
        q_values,
        randomization_variance,
        utilities,
    )
    from cmp.evaluation import (
        Auc,
        AucComparison,
        ExposureCost,
        Qrels,
        SupportReport,
        auc,
        auc_arrays,
        compare_auc,
        exposure_cost,
        forget,
        read_qrels,
        support,
    )
    from cmp.log import (
        JsonlSink,
        Sink,
        open_log,
        read_jsonl,
        validate_log,
    )
    from cmp.protocols import (
        EVERYTHING,
        AsyncMemoryBackend,
        Hit,
        MemoryBackend,
        Retriever,
        Scope,
    )
    from cmp.serving import (
        Context,
        Item,
        RandomizedRetriever,
        Task,
        run_rounds,
        wrap,
    )

__version__ = "0.1.0"

_HOMES = {
    "cmp.errors": (
        "CmpError",
        "ConflictingOutcomeError",
        "DatasetError",
        "GranularityError",
        "InvalidIdError",
        "LogCorruptedError",
        "LogTimeoutError",
        "LogUnavailableError",
        "LogVersionError",
        "MissingExtraError",
        "PositivityError",
        "ScopeError",
        "UndecidableError",
        "UnknownRoundError",
    ),
    "cmp.protocols": (
        "EVERYTHING",
        "AsyncMemoryBackend",
        "Hit",
        "MemoryBackend",
        "Retriever",
        "Scope",
    ),
    "cmp.design": (
        "balanced_table",
        "joint_propensity",
    ),
    "cmp.log": (
        "JsonlSink",
        "Sink",
        "open_log",
        "read_jsonl",
        "validate_log",
    ),
    "cmp.serving": (
        "Context",
        "Item",
        "RandomizedRetriever",
        "Task",
        "run_rounds",
        "wrap",
    ),
    "cmp.estimation": (
        "Utilities",
        "differential_missingness",
        "estimate",
        "missing_outcome_bounds",
        "moderate_variances",
        "newcombe_interval",
        "neyman_variance_estimate",
        "null_variance",
        "q_values",
        "randomization_variance",
        "utilities",
    ),
    "cmp.evaluation": (
        "Auc",
        "AucComparison",
        "ExposureCost",
        "Qrels",
        "SupportReport",
        "auc",
        "auc_arrays",
        "compare_auc",
        "exposure_cost",
        "forget",
        "read_qrels",
        "support",
    ),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "EVERYTHING",
    "AsyncMemoryBackend",
    "Auc",
    "AucComparison",
    "CmpError",
    "ConflictingOutcomeError",
    "Context",
    "DatasetError",
    "ExposureCost",
    "GranularityError",
    "Hit",
    "InvalidIdError",
    "Item",
    "JsonlSink",
    "LogCorruptedError",
    "LogTimeoutError",
    "LogUnavailableError",
    "LogVersionError",
    "MemoryBackend",
    "MissingExtraError",
    "PositivityError",
    "Qrels",
    "RandomizedRetriever",
    "Retriever",
    "Scope",
    "ScopeError",
    "Sink",
    "SupportReport",
    "Task",
    "UndecidableError",
    "UnknownRoundError",
    "Utilities",
    "auc",
    "auc_arrays",
    "balanced_table",
    "compare_auc",
    "differential_missingness",
    "estimate",
    "exposure_cost",
    "forget",
    "joint_propensity",
    "missing_outcome_bounds",
    "moderate_variances",
    "newcombe_interval",
    "neyman_variance_estimate",
    "null_variance",
    "open_log",
    "q_values",
    "randomization_variance",
    "read_jsonl",
    "read_qrels",
    "run_rounds",
    "support",
    "utilities",
    "validate_log",
    "wrap",
]


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'cmp' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
