"""The table of promises and tests in docs/reliability.md: which tests it names, how each is marked, and running them.

    python -m tests.reliability [--write | --run [PYTEST OPTION..]]

Behind each test the page says which mark keeps it out of the fast tests, as the tests have it: without an option this
is looked at and nothing is run, ``--write`` writes it. ``--run`` runs every test that the page names, one after the
other, whatever its marks; ``-m ci`` or ``-m "not slow"`` takes some of them. A test holds the page to its marks, and to
tests that exist.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Sequence
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


def main(options: Sequence[str]) -> int:
    """Look at the page, write its marks, or run its tests; return the exit status."""
    text = PAGE.read_text(encoding="utf-8")
    page, tests = marked(text), named_in(text)
    if options[:1] == ["--run"]:
        # Without `-m` the defaults of pyproject.toml would leave the slow ones out.
        words = [*([] if "-m" in options else ["-m", ""]), *options[1:], *tests]
        return subprocess.run([sys.executable, "-m", "pytest", *words], cwd=ROOT, check=False).returncode
    if options == ["--write"]:
        PAGE.write_text(page, encoding="utf-8")
    elif options:
        raise SystemExit(f"{' '.join(options)}: unknown; expected --write, or --run with options of pytest behind it")
    elif page != text:
        raise SystemExit(f"{PAGE.name}: a mark is not its test's; write them: python -m tests.reliability --write")
    print(f"{PAGE.name}: {len(tests)} tests with their marks")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
