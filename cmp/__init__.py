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
        JointUtilities,
        LogArrays,
        Utilities,
        UtilityStatistics,
        adjusted_estimate,
        confidence_sequence,
        differential_missingness,
        estimate,
        joint_utilities,
        log_arrays,
        missing_outcome_bounds,
        moderate_variances,
        newcombe_interval,
        neyman_variance_estimate,
        null_variance,
        pair_utilities,
        q_values,
        randomization_test,
        randomization_variance,
        shrink,
        shrink_arrays,
        utilities,
        utility_statistics,
    )
    from cmp.evaluation import (
        Auc,
        AucComparison,
        Diagnosis,
        ExposureCost,
        Plan,
        Qrels,
        SupportReport,
        auc,
        auc_arrays,
        compare_auc,
        diagnose,
        exposure_cost,
        forget,
        plan,
        read_qrels,
        support,
    )
    from cmp.foreign import (
        ForeignLog,
        ForeignLogError,
        from_frame,
        read_dsjson,
        read_jsonl,
        read_obp,
    )
    from cmp.log import (
        JsonlSink,
        Sink,
        open_log,
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
    from cmp.report import (
        write_report,
    )
    from cmp.serving import (
        Context,
        Item,
        RandomizedRetriever,
        Task,
        run_rounds,
        wrap,
    )
    from cmp.simulation import (
        Simulation,
        simulate,
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
        "JointUtilities",
        "LogArrays",
        "Utilities",
        "UtilityStatistics",
        "adjusted_estimate",
        "confidence_sequence",
        "differential_missingness",
        "estimate",
        "joint_utilities",
        "log_arrays",
        "missing_outcome_bounds",
        "moderate_variances",
        "newcombe_interval",
        "neyman_variance_estimate",
        "null_variance",
        "pair_utilities",
        "q_values",
        "randomization_test",
        "randomization_variance",
        "shrink",
        "shrink_arrays",
        "utilities",
        "utility_statistics",
    ),
    "cmp.evaluation": (
        "Auc",
        "AucComparison",
        "Diagnosis",
        "ExposureCost",
        "Plan",
        "Qrels",
        "SupportReport",
        "auc",
        "auc_arrays",
        "compare_auc",
        "diagnose",
        "exposure_cost",
        "forget",
        "plan",
        "read_qrels",
        "support",
    ),
    "cmp.report": ("write_report",),
    "cmp.foreign": (
        "ForeignLog",
        "ForeignLogError",
        "from_frame",
        "read_dsjson",
        "read_jsonl",
        "read_obp",
    ),
    "cmp.simulation": (
        "Simulation",
        "simulate",
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
    "Diagnosis",
    "ExposureCost",
    "ForeignLog",
    "ForeignLogError",
    "GranularityError",
    "Hit",
    "InvalidIdError",
    "Item",
    "JointUtilities",
    "JsonlSink",
    "LogArrays",
    "LogCorruptedError",
    "LogTimeoutError",
    "LogUnavailableError",
    "LogVersionError",
    "MemoryBackend",
    "MissingExtraError",
    "Plan",
    "PositivityError",
    "Qrels",
    "RandomizedRetriever",
    "Retriever",
    "Scope",
    "ScopeError",
    "Simulation",
    "Sink",
    "SupportReport",
    "Task",
    "UndecidableError",
    "UnknownRoundError",
    "Utilities",
    "UtilityStatistics",
    "adjusted_estimate",
    "auc",
    "auc_arrays",
    "balanced_table",
    "compare_auc",
    "confidence_sequence",
    "diagnose",
    "differential_missingness",
    "estimate",
    "exposure_cost",
    "forget",
    "from_frame",
    "joint_propensity",
    "joint_utilities",
    "log_arrays",
    "missing_outcome_bounds",
    "moderate_variances",
    "newcombe_interval",
    "neyman_variance_estimate",
    "null_variance",
    "open_log",
    "pair_utilities",
    "plan",
    "q_values",
    "randomization_test",
    "randomization_variance",
    "read_dsjson",
    "read_jsonl",
    "read_obp",
    "read_qrels",
    "run_rounds",
    "shrink",
    "shrink_arrays",
    "simulate",
    "support",
    "utilities",
    "utility_statistics",
    "validate_log",
    "wrap",
    "write_report",
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
