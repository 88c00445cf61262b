"""Test imports: no circles, and a library that needs neither Ray nor an extra."""

import subprocess
import sys
from functools import partial

import pytest

from tests.guards.rooms import VIEWS, child, circles, floors, import_graph, rooms, upward
from tests.project.tree import ROOT

# Circles that are left; none may be added.
KNOWN_CIRCLES: list[tuple[str, ...]] = []


def test_imports_of_functions_and_those_for_type_checkers_count(tmp_path):
    text = "import one.a\nif TYPE_CHECKING:\n    import one.b\ndef f():\n    from one import c\n"
    files = dict.fromkeys(("__init__", "a", "b", "c", "d"), "") | {"all": f"{text}class C:\n    import one.d\n"}
    (tmp_path / "one").mkdir()
    for name, source in files.items():
        (tmp_path / "one" / f"{name}.py").write_text(source)
    graph = import_graph(tmp_path, ("one",))
    assert graph.pop("one.all") == {"one.a", "one.b", "one.c", "one.d"} and not any(graph.values())


def test_a_circle_is_found():
    graph = {"a": {"b", "d"}, "b": {"c"}, "c": {"a"}, "d": {"b"}, "e": {"a"}, "f": set()}
    assert circles(graph) == [("a", "b", "c", "d")] and circles({"a": {"a"}, "b": {"a"}}) == [("a",)]


def test_floors_and_arrows_that_point_up_are_counted():
    """b and c are a circle that stands on a, and d stands on it: either b or c has an arrow that points up."""
    graph = {"a": set(), "b": {"a", "c"}, "c": {"b", "a"}, "d": {"c"}}
    assert floors(graph) == 3 and upward(graph, ("b", "c")) == 1
    ring = {"a": {"b", "c"}, "b": {"c", "a"}, "c": {"a", "b"}}
    assert floors(ring) == 1 and upward(ring, ("a", "b", "c")) == 3
    assert rooms(
        {"p.x": {"p.y.z", "q"}, "p.y": {"p.y.z"}, "p.y.z": set(), "q": {"p.x"}}, partial(child, package="p")
    ) == {
        "p.x": {"p.y"},
        "p.y": set(),
    }


def test_modules_import_one_another_in_no_circle():
    graph = import_graph()
    assert graph["actors.cli.main"] and graph["relief_ray.config.experiment"], "imports are seen"
    assert circles(graph) == KNOWN_CIRCLES
    found = {name: circles(rooms(graph, room_of)) for name, room_of in VIEWS.items()}
    assert found == {name: [] for name in VIEWS}, "nor do rooms, so that no arrow points up"


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
    runtime, others = "ray,mlflow,momentfm,transformers,actors,tune_configs", "matplotlib,sklearn,scipy"
    command = [sys.executable, "-c", IMPORT_ALL, f"{runtime},{others},pytest,hypothesis"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) > 5
