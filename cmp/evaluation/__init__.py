"""Utilities and rankers against labels: qrels, AUC, support, and the cost of deciding."""

from cmp.evaluation.decisions import critical_z
from cmp.evaluation.qrels import Qrels, read_qrels
from cmp.evaluation.reach import SupportReport, support
from cmp.evaluation.roc import Auc, auc, auc_arrays

__all__ = ["Auc", "Qrels", "SupportReport", "auc", "auc_arrays", "critical_z", "read_qrels", "support"]
