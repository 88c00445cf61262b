"""Measures the structure of the sources: files, lines, importers, import cycles, call depth.

``python tests/structure.py [ROOT] [--depth DIR] [--json FILE]``. ROOT is a checkout (default: this one), so that two
commits can be compared. ``--depth`` also runs the ``quick`` preset there and counts the project's own frames between
the command line and the optimizer's step.
"""

from __future__ import annotations

import argparse
import ast
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

PACKAGES = ("relief_ray", "actors", "tune_configs")
SMALL_LINES = 60
# Runs in a process of its own, with ROOT first on the path: the modules under test are those of ROOT.
DEPTH = """
import sys, traceback
from pathlib import Path
from typer.testing import CliRunner
from relief_ray.training.optimizer import LocalOptimizer
from actors.cli.main import app

root, frames, step = Path(sys.argv[1]).resolve(), [], LocalOptimizer.step

def watched(self, *args, **keywords):
    if not frames:
        for frame, _ in traceback.walk_stack(None):
            file = Path(frame.f_code.co_filename)
            if file.is_relative_to(root) and not {"tests", ".venv"} & set(file.relative_to(root).parts):
                frames.append(str(file))
    return step(self, *args, **keywords)

LocalOptimizer.step = watched
settings = ["--set", "rounds=1", "--set", "tracking.enabled=false"]
words = ["run", "quick", "--strategies", "relief", *settings, "--out", sys.argv[2]]
result = CliRunner().invoke(app, words, catch_exceptions=False)
assert result.exit_code == 0 and frames, result.output
print(len(frames), len(set(frames)))
"""


def modules(root: Path) -> dict[str, Path]:
    """Every source module by its dotted name."""
    paths = (path for package in PACKAGES for path in sorted((root / package).rglob("*.py")))
    return {".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path for path in paths}


def top_imports(tree: ast.Module) -> Iterator[ast.ImportFrom | ast.Import]:
    """Imports that run with the module, and those under ``if TYPE_CHECKING``."""
    for node in tree.body:
        if isinstance(node, ast.ImportFrom | ast.Import):
            yield node
        elif isinstance(node, ast.If):
            yield from (n for n in node.body if isinstance(n, ast.ImportFrom | ast.Import))


def imported(tree: ast.Module, known: Mapping[str, Path], *, everywhere: bool) -> set[str]:
    """Modules of ours that this one imports; ``everywhere``: inside functions too."""
    nodes = ast.walk(tree) if everywhere else top_imports(tree)
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= {name if name in known else node.module for name in inner}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names & known.keys()


def cycles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Strongly connected components with more than one module (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    components: list[list[str]] = []

    def visit(module: str) -> None:
        index[module] = low[module] = len(index)
        stack.append(module)
        for other in sorted(graph[module]):
            if other not in index:
                visit(other)
            if other in stack:
                low[module] = min(low[module], low[other])
        if low[module] == index[module]:
            at = stack.index(module)
            component = stack[at:]
            del stack[at:]
            if len(component) > 1:
                components.append(sorted(component))

    for module in sorted(graph):
        if module not in index:
            visit(module)
    return components


def function_lengths(tree: ast.Module) -> list[int]:
    """Lines of every function."""
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    return [(n.end_lineno or n.lineno) - n.lineno + 1 for n in ast.walk(tree) if isinstance(n, kinds)]


def measure(root: Path) -> dict[str, object]:
    """All figures of a checkout but the call depth."""
    known = modules(root)
    trees = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in known.items()}
    lines = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in known.items()}
    top = {name: imported(tree, known, everywhere=False) - {name} for name, tree in trees.items()}
    any_ = {name: imported(tree, known, everywhere=True) - {name} for name, tree in trees.items()}
    importers = {name: [other for other in any_ if name in any_[other]] for name in known}
    code = [name for name, path in known.items() if path.name != "__init__.py"]
    lengths = sorted(n for tree in trees.values() for n in function_lengths(tree))
    return {
        "files": len(known),
        "files without __init__": len(code),
        "lines": sum(lines.values()),
        "median lines of a file": statistics.median(lines[name] for name in code),
        f"files under {SMALL_LINES} lines, without __init__": sum(lines[name] < SMALL_LINES for name in code),
        "modules with one importer": sum(len(importers[name]) == 1 for name in code),
        "modules in the root of relief_ray": sum(
            name.count(".") == 1 for name in code if name.startswith("relief_ray.")
        ),
        "import cycles": len(cycles(top)),
        "modules in import cycles": sum(len(c) for c in cycles(top)),
        "functions": len(lengths),
        "median lines of a function": statistics.median(lengths),
        "longest function": lengths[-1],
        "cycles": cycles(top),
    }


def depth(root: Path, folder: Path) -> dict[str, object]:
    """Frames of ours, and files, from ``relief-ray run quick`` in one process to the first optimizer step."""
    command = [sys.executable, "-c", DEPTH, str(root), str(folder)]
    done = subprocess.run(command, cwd=root, env=None, capture_output=True, text=True, check=True)
    frames, files = done.stdout.split()[-2:]
    return {"frames from run to optimizer": int(frames), "files on that way": int(files)}


def main() -> None:
    """Prints a line for each figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", nargs="?", type=Path, default=Path(__file__).parents[1])
    parser.add_argument("--depth", type=Path, metavar="DIR", help="run quick with its folder in DIR, count frames")
    parser.add_argument("--json", type=Path, metavar="FILE")
    words = parser.parse_args()
    figures = measure(words.root) | (depth(words.root.resolve(), words.depth) if words.depth else {})
    if words.json:
        words.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    for name, value in figures.items():
        print(f"{name:45} {value}")


if __name__ == "__main__":
    main()
