"""Utilities of memories, from logs and plain arrays, with intervals that hold at a handful of exposures."""

from cmp.estimation.arrays import estimate
from cmp.estimation.from_log import utilities
from cmp.estimation.intervals import NewcombeInterval, newcombe_interval
from cmp.estimation.missing import differential_missingness, missing_outcome_bounds
from cmp.estimation.moderation import ModeratedVariances, moderate_variances
from cmp.estimation.multiplicity import q_values
from cmp.estimation.table import Analysis, Utilities
from cmp.estimation.variance import neyman_variance_estimate, null_variance, randomization_variance

__all__ = [
    "Analysis",
    "ModeratedVariances",
    "NewcombeInterval",
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
]
