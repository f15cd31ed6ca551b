"""The architecture, checked by a machine: who may import whom, what an import loads, what is public."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import cmp

ROOT = Path(__file__).parents[1]

#: Lowest floor first; a module imports only from floors below its own, or from its own package.
FLOORS = {
    "errors": 0,
    "forking": 0,
    "protocols": 1,
    "design": 2,
    "log": 3,
    "serving": 4,
    "estimation": 4,
    "foreign": 4,
    "evaluation": 5,
    "retrievers": 2,
    "datasets": 2,
    "testing": 5,
    "simulation": 6,
    "study": 6,
    "report": 6,
    "cli": 7,
    "__main__": 8,
}


def floor_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: relative import"
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in found if name == "cmp" or name.startswith("cmp.")}


MODULES = sorted((ROOT / "cmp").rglob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_module_imports_only_from_lower_floors(path):
    own = path.relative_to(ROOT / "cmp").parts[0].removesuffix(".py")
    if own == "__init__":
        return
    for name in imports(path):
        other = floor_of(name)
        if other in ("", "__version__", own):
            continue
        assert FLOORS[other] < FLOORS[own], f"{path.name} ({own}) imports {name}"


def test_serving_and_estimation_meet_only_in_the_log():
    for package, stranger in (("serving", "estimation"), ("estimation", "serving")):
        for path in (ROOT / "cmp" / package).rglob("*.py"):
            assert not any(floor_of(name) == stranger for name in imports(path))


HEAVY = (
    *(
        "scipy",
        "statsmodels",
        "sklearn",
        "matplotlib",
        "pandas",
        "pyarrow",
        "duckdb",
        "narwhals",
        "polars",
        "sqlite3",
    ),
    *(
        "onnxruntime",
        "tokenizers",
        "bm25s",
        "Stemmer",
        "psycopg",
        "opentelemetry",
        "pooch",
        "typer",
        "langchain_core",
    ),
)


def test_importing_the_package_is_quick_and_loads_nothing_heavy():
    """Half of the 0.6 s allowed is left to a slow machine; the best of five runs is taken."""
    code = (
        "import sys, time; t = time.perf_counter(); import cmp; "
        f"print(time.perf_counter() - t, *[name for name in {HEAVY!r} if name in sys.modules])"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.split()
        for _ in range(5)
    ]
    assert min(float(run[0]) for run in runs) < 0.6
    assert all(len(run) == 1 for run in runs), runs[0]


def test_serving_a_request_never_loads_estimation():
    code = (
        "import sys, tempfile, cmp\n"
        "with tempfile.TemporaryDirectory() as folder:\n"
        "    memory = cmp.wrap(lambda q: ['a'], list_ids=lambda: ['a', 'b', 'c'], get=list, slots=2, random_slots=1,\n"
        "        log=folder + '/x.db', scope=cmp.EVERYTHING)\n"
        "    memory.record(memory.retrieve('q').round_id, 1.0)\n"
        "    memory.close()\n"
        "print([m for m in sys.modules if m.startswith(('cmp.estimation', 'cmp.evaluation', 'scipy', 'statsmodels'))])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"


def test_every_public_name_loads_and_says_what_it_is():
    assert len(set(cmp.__all__)) == len(cmp.__all__)
    assert set(cmp.__all__) == {name for names in cmp._HOMES.values() for name in names}
    for name in cmp.__all__:
        value = getattr(cmp, name)
        if name != "EVERYTHING":
            assert value.__doc__, name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        cmp.nothing
    assert set(cmp.__all__) <= set(dir(cmp))


def test_names_for_type_checkers_are_the_names_at_run_time():
    tree = ast.parse((ROOT / "cmp" / "__init__.py").read_text("utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    declared = {
        (node.module, alias.asname or alias.name)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert declared == {(home, name) for home, names in cmp._HOMES.items() for name in names}


def test_every_public_function_has_an_example_that_doctest_runs():
    import inspect

    for name in cmp.__all__:
        value = getattr(cmp, name)
        if inspect.isfunction(value):
            assert ">>> " in (value.__doc__ or ""), name


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_files_and_functions_stay_short(path):
    text = path.read_text("utf-8")
    assert len(text.splitlines()) <= 400
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node) else node.body
            if body:
                length = (body[-1].end_lineno or 0) - body[0].lineno + 1
                assert length <= 50, f"{node.name} has {length} lines"


def test_the_package_ships_its_types_and_no_benchmark_data():
    assert (ROOT / "cmp" / "py.typed").exists()
    data = [
        path
        for path in (ROOT / "cmp").rglob("*")
        if path.suffix in {".gz", ".xz", ".jsonl", ".db", ".parquet"}
    ]
    assert data == []
