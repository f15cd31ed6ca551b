"""Utilities of memories, from logs and plain arrays, with intervals that hold at a handful of exposures."""

from cmp.estimation.additive import UtilityStatistics
from cmp.estimation.adjustment import adjusted_estimate
from cmp.estimation.arrays import estimate
from cmp.estimation.design_matrix import LogArrays, log_arrays
from cmp.estimation.from_log import utilities
from cmp.estimation.from_parts import utility_statistics
from cmp.estimation.intervals import NewcombeInterval, newcombe_interval
from cmp.estimation.joint import JointUtilities, joint_utilities
from cmp.estimation.missing import differential_missingness, missing_outcome_bounds
from cmp.estimation.moderation import ModeratedVariances, moderate_variances
from cmp.estimation.multiplicity import q_values
from cmp.estimation.pairs import pair_utilities
from cmp.estimation.randomization import RandomizationTest, randomization_test
from cmp.estimation.sequences import ConfidenceSequence, confidence_sequence
from cmp.estimation.shrinkage import Posterior, shrink, shrink_arrays
from cmp.estimation.table import Analysis, Utilities
from cmp.estimation.variance import neyman_variance_estimate, null_variance, randomization_variance

__all__ = [
    "Analysis",
    "ConfidenceSequence",
    "JointUtilities",
    "LogArrays",
    "ModeratedVariances",
    "NewcombeInterval",
    "Posterior",
    "RandomizationTest",
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
]
