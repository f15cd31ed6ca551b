"""Mutants: copies of a module with one thing in it changed, by the operators of cosmic-ray.

A change that no run can notice is no mutant here: in an annotation, or under ``if TYPE_CHECKING``. Nor is one that does
not compile, or that comes to the same as another.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from importlib import import_module, metadata
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

from cmp.errors import MissingExtraError

__all__ = ["Mutant", "Site", "mutant_at", "mutants", "operators_version", "run_time_tree", "sites"]


@dataclass(frozen=True, slots=True)
class Site:
    """The ``occurrence``-th place in a module that an operator can change."""

    module: str
    operator: str
    occurrence: int


@dataclass(frozen=True, slots=True)
class Mutant:
    """A site, what its first changed line was and is, and the whole module as changed."""

    site: Site
    line: int
    before: str
    after: str
    source: str

    @property
    def key(self) -> str:
        """A name for the change: the same for the same module as changed."""
        return blake2b(f"{self.site.module}\0{self.source}".encode(), digest_size=12).hexdigest()


def operators_version() -> str:
    """Return the version of cosmic-ray.

    Raises
    ------
    MissingExtraError
        Where it is not installed.
    """
    try:
        return metadata.version("cosmic-ray")
    except metadata.PackageNotFoundError:
        raise MissingExtraError(
            "cosmic-ray is not installed; pip install 'causal-memory-policy[mutation]'"
        ) from None


@cache
def _operators() -> dict[str, Any]:
    operators_version()
    provider = import_module("cosmic_ray.operators.provider").OperatorProvider()
    return {name: provider[name]() for name in provider if not provider[name].arguments()}


def sites(root: Path, modules: list[str]) -> list[Site]:
    """Return every site of some modules (paths below ``root``)."""
    syntax: Any = import_module("cosmic_ray.ast") if _operators() else None
    found = []
    for module in modules:
        nodes = list(syntax.ast_nodes(syntax.get_ast((root / module).read_text("utf-8"))))
        for name, operator in _operators().items():
            number = sum(len(list(operator.mutation_positions(node))) for node in nodes)
            found += [Site(module, name, occurrence) for occurrence in range(number)]
    return found


def mutant_at(root: Path, site: Site) -> Mutant | None:
    """Return the mutant of a site; None where the change does not compile, or no run could notice it."""
    source = (root / site.module).read_text("utf-8")
    mutate: Any = import_module("cosmic_ray.mutating").mutate_code
    changed = mutate(source, _operators()[site.operator], site.occurrence)
    try:
        if run_time_tree(changed) == run_time_tree(source):
            return None
        with warnings.catch_warnings(action="ignore", category=SyntaxWarning):
            compile(changed, site.module, "exec", dont_inherit=True)
    except SyntaxError:
        return None
    old, new = source.splitlines(), changed.splitlines()
    row = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), len(new))
    before, after = (lines[row].strip() if row < len(lines) else "" for lines in (old, new))
    return Mutant(site, row + 1, before, after, changed)


def mutants(root: Path, modules: list[str], sample: int, seed: int) -> Iterator[Mutant]:
    """Yield the mutants of some modules: all of them where ``sample`` is 0, else a simple random sample."""
    places = sites(root, modules)
    if sample:
        Random(seed).shuffle(places)
    taken, seen = count(1), set()
    for site in places:
        mutant = mutant_at(root, site)
        if mutant is None or (effect := (site.module, run_time_tree(mutant.source))) in seen:
            continue
        seen.add(effect)
        yield mutant
        if next(taken) == sample:
            return


@cache
def run_time_tree(source: str) -> str:
    """Return what of a module's syntax a run can notice, as text.

    Examples
    --------
    >>> run_time_tree("x: int | str = 1") == run_time_tree("x: int + str = 1")
    True
    """
    return ast.dump(_RunTime().visit(ast.parse(source)))


class _RunTime(ast.NodeTransformer):
    """Takes out annotations (never evaluated, under ``from __future__ import annotations``) and their imports."""

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.annotation = ast.Constant(None)
        return self.generic_visit(node)

    def visit_If(self, node: ast.If) -> ast.AST | None:
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return None
        return self.generic_visit(node)
