"""The request: a wrapped retriever, its contexts, and rounds run offline."""

from cmp.serving.context import Context, Item
from cmp.serving.offline import Task, run_rounds
from cmp.serving.policy import Policy
from cmp.serving.wrapper import RandomizedRetriever
from cmp.serving.wrapping import wrap

__all__ = ["Context", "Item", "Policy", "RandomizedRetriever", "Task", "run_rounds", "wrap"]
