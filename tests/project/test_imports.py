"""Test imports: no circles, and a library that needs neither Ray nor an extra."""

import ast
import subprocess
import sys

import pytest

from tests.project.tree import ROOT, name_of, sources


def imported_at_the_top(tree):
    """Import statements that run with the module, and those under TYPE_CHECKING; not those inside functions."""
    waiting = list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            waiting += [
                child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt | ast.excepthandler)
            ]


def import_graph():
    """For every module of ours, those of ours that it imports."""
    files = sources("benchmarks")
    paths = {name_of(p).removesuffix(".py").removesuffix("/__init__").replace("/", "."): p for p in files}
    graph = {module: set() for module in paths}
    for module, path in paths.items():
        for node in imported_at_the_top(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                targets = {alias.name for alias in node.names}
            else:
                assert not node.level, f"{name_of(path)}: relative import"
                inner = {alias.name: f"{node.module}.{alias.name}" for alias in node.names}
                targets = {full if full in paths else node.module for full in inner.values()}
            graph[module] |= targets & set(paths)
    return graph


def circles(graph):
    """Groups of modules each of which imports, over others or not, all of its group."""
    reach = {}
    for module in graph:
        seen, waiting = set(), [module]
        while waiting:
            fresh = graph[waiting.pop()] - seen
            seen |= fresh
            waiting += fresh
        reach[module] = seen
    groups = {tuple(sorted(n for n in reach[m] if m in reach[n])) for m in graph if m in reach[m]}
    return sorted(groups)


def test_imports_of_functions_are_left_out_and_those_for_type_checkers_count():
    text = "import a\nif TYPE_CHECKING:\n    import b\ntry:\n    import c\nexcept ImportError:\n    import d\n"
    tree = ast.parse(f"{text}def f():\n    import e\nclass C:\n    import g\n")
    assert {node.names[0].name for node in imported_at_the_top(tree)} == set("abcdg")


def test_a_circle_is_found():
    graph = {"a": {"b", "d"}, "b": {"c"}, "c": {"a"}, "d": {"b"}, "e": {"a"}, "f": set()}
    assert circles(graph) == [("a", "b", "c", "d")] and circles({"a": {"a"}, "b": {"a"}}) == [("a",)]


def test_modules_import_one_another_in_no_circle():
    """Imports for type checkers count: a reader has to follow them too."""
    graph = import_graph()
    assert graph["actors.cli.main"] and graph["relief_ray.config.experiment"], "imports are seen"
    assert circles(graph) == []


IMPORT_ALL = """
import importlib, pkgutil, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(name)

BLOCKED = set(sys.argv[1].split(","))
sys.meta_path.insert(0, Absent())
import relief_ray
names = [m.name for m in pkgutil.walk_packages(relief_ray.__path__, "relief_ray.") if "__main__" not in m.name]
for name in names:
    importlib.import_module(name)
print(len(names))
"""


@pytest.mark.ci
def test_the_library_imports_without_the_runtime_and_with_base_dependencies_only():
    runtime, others = "ray,mlflow,momentfm,transformers,actors,tune_configs", "pandas,matplotlib,sklearn,scipy"
    command = [sys.executable, "-c", IMPORT_ALL, f"{runtime},{others},pytest,hypothesis"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) > 5
