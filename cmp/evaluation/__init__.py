"""Utilities and rankers against labels, decisions and their cost; what a log is worth, and what a design would find."""

from cmp.evaluation.comparison import AucComparison, compare_auc, compare_auc_arrays
from cmp.evaluation.decisions import critical_z, forget
from cmp.evaluation.diagnostics import Diagnosis, diagnose
from cmp.evaluation.exploration import ExposureCost, exposure_cost
from cmp.evaluation.planning import Plan, plan
from cmp.evaluation.qrels import Qrels, read_qrels
from cmp.evaluation.reach import SupportReport, support
from cmp.evaluation.roc import Auc, auc, auc_arrays

__all__ = [
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
    "compare_auc_arrays",
    "critical_z",
    "diagnose",
    "exposure_cost",
    "forget",
    "plan",
    "read_qrels",
    "support",
]
