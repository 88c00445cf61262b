"""No module of the training, model and profiling packages imports itself through others, ``TYPE_CHECKING`` included."""

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("relief_ray.training", "relief_ray.models", "relief_ray.profiling", "relief_ray.report", "benchmarks")


def modules(root):
    """Path by module name."""
    paths = (path for package in ("relief_ray", "benchmarks") for path in (root / package).rglob("*.py"))
    return {".".join(p.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): p for p in paths}


def module_level(tree):
    """All statements but those inside functions."""
    for node in ast.iter_child_nodes(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
            yield from module_level(node)


def imported(path, known):
    """Names of the modules that a file imports when it is loaded or type-checked."""
    for node in module_level(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in known else node.module for name in names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def circle(paths):
    """One circle of imports among the modules, or nothing."""
    graph = {name: {i for i in imported(path, paths) if i in paths and i != name} for name, path in paths.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return []


@pytest.mark.parametrize("room", ROOMS)
def test_no_module_imports_itself_through_others(room):
    assert circle({name: path for name, path in modules(ROOT).items() if name.startswith(room)}) == []


def test_a_circle_for_type_checking_is_found(tmp_path):
    for name, other in (("a", "b"), ("b", "a")):
        file = tmp_path / "benchmarks" / f"{name}.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from benchmarks import {other}\n")
    assert set(circle(modules(tmp_path))) == {"benchmarks.a", "benchmarks.b"}
