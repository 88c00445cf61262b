"""The page on reliability names tests that exist, and says of each whether it is slow."""

import ast
import re
from pathlib import Path

from tests.pages import ROOT


def slow_by_test(path: Path) -> dict[str, bool]:
    """Name the tests of a file, functions of the module, and say whether all cases of each are marked `slow`."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    marks = [
        node.value for node in body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"
    ]
    of_file = [mark for value in marks for mark in (value.elts if isinstance(value, ast.List) else [value])]
    return {
        node.name: "pytest.mark.slow" in map(ast.unparse, (*node.decorator_list, *of_file))
        for node in body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def test_slow_marks_are_read_from_functions_and_files(tmp_path):
    path = tmp_path / "test_a.py"
    cases = "@pytest.mark.parametrize('x', [pytest.param(1, marks=pytest.mark.slow)])\n"
    path.write_text(
        f"@pytest.mark.slow\ndef test_a(): ...\n{cases}def test_b(x):\n    def test_c(): ...\ndef helper(): ...\n"
    )
    assert slow_by_test(path) == {"test_a": True, "test_b": False}
    for marks in ("pytest.mark.slow", "[pytest.mark.ray, pytest.mark.slow]"):
        path.write_text(f"pytestmark = {marks}\ndef test_a(): ...\n")
        assert slow_by_test(path) == {"test_a": True}


def test_every_test_that_the_page_on_reliability_names_exists_and_is_slow_where_the_page_says_so():
    text = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`( \(slow\))?", text)
    assert len(named) > 60 and len(named) == text.count("`tests/")
    for path, name, slow in named:
        assert (ROOT / path).is_file(), path
        if name:
            assert slow_by_test(ROOT / path).get(name) == bool(slow), f"{path}::{name}: no such test, or its (slow)"
