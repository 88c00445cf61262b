"""The table of promises and tests in docs/reliability.md: which tests it names, how each is marked, and running them.

    python -m tests.reliability [--write] [PYTEST OPTION..]

Runs every test that the page names, one after the other, whatever its marks; ``-m ci`` or ``-m "not slow"`` takes
some of them. ``--write`` runs none: it writes behind each test which mark keeps it out of the fast tests, as the tests
have it. A test holds the page to that, and to tests that exist.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reliability.md"
# Of a test with several of them the first one counts.
MARKS = ("lab_long", "lab", "gpu", "slow", "ci")
_NAMED = re.compile(rf"`(tests/[\w/]+\.py)(?:::(\w+))?`(?: \((?:{'|'.join(MARKS)})\))?")


@cache
def marks_of(path: Path) -> dict[str, str]:
    """By name of a file's tests, functions of the module, the mark that all cases of each have; empty: none of ours."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    marks = [
        node.value for node in body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"
    ]
    of_file = [mark for value in marks for mark in (value.elts if isinstance(value, ast.List) else [value])]
    return {
        node.name: next(
            (m for m in MARKS if f"pytest.mark.{m}" in map(ast.unparse, (*node.decorator_list, *of_file))), ""
        )
        for node in body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def named_in(text: str) -> list[str]:
    """The tests that a page names, each once: ``tests/x/test_y.py::test_z``, or a whole file."""
    return list(dict.fromkeys("::".join(filter(None, found.groups())) for found in _NAMED.finditer(text)))


def marked(text: str) -> str:
    """The page's text with the marks that its tests have now.

    Raises:
        SystemExit: it names a test that does not exist.
    """

    def named(found: re.Match[str]) -> str:
        path, name = found.groups()
        known = marks_of(ROOT / path) if (ROOT / path).is_file() else None
        if known is None or (name and name not in known):
            raise SystemExit(f"{PAGE.name}: {path}{f'::{name}' if name else ''}: no such test; name one that is there")
        mark = known[name] if name else ""
        return f"`{path}{f'::{name}' if name else ''}`" + (f" ({mark})" if mark else "")

    return _NAMED.sub(named, text)


def main() -> int:
    """Run the tests of the page, or write their marks; return pytest's exit status."""
    text, options = PAGE.read_text(encoding="utf-8"), sys.argv[1:]
    if options == ["--write"]:
        PAGE.write_text(marked(text), encoding="utf-8")
        return 0
    # Without `-m` the defaults of pyproject.toml would leave the slow ones out.
    words = [*([] if "-m" in options else ["-m", ""]), *options, *named_in(marked(text))]
    return subprocess.run([sys.executable, "-m", "pytest", *words], cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
