"""Utilities and rankers against labels: qrels, AUC, support, and the cost of deciding."""

from cmp.evaluation.comparison import AucComparison, compare_auc, compare_auc_arrays
from cmp.evaluation.decisions import critical_z, forget
from cmp.evaluation.exploration import ExposureCost, exposure_cost
from cmp.evaluation.qrels import Qrels, read_qrels
from cmp.evaluation.reach import SupportReport, support
from cmp.evaluation.roc import Auc, auc, auc_arrays

__all__ = [
    "Auc",
    "AucComparison",
    "ExposureCost",
    "Qrels",
    "SupportReport",
    "auc",
    "auc_arrays",
    "compare_auc",
    "compare_auc_arrays",
    "critical_z",
    "exposure_cost",
    "forget",
    "read_qrels",
    "support",
]
