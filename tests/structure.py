"""Measures the structure of the sources: files, lines, importers, circles of imports, call depth.

``python -m tests.structure [ROOT] [--depth DIR] [--json FILE]``. ROOT is a checkout (default: this one), so that two
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
from pathlib import Path

from tests.guards.rooms import circles, import_graph

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


def function_lengths(tree: ast.Module) -> list[int]:
    """Lines of every function."""
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    return [(n.end_lineno or n.lineno) - n.lineno + 1 for n in ast.walk(tree) if isinstance(n, kinds)]


def measure(root: Path) -> dict[str, object]:
    """All figures of a checkout but the call depth."""
    known = modules(root)
    trees = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in known.items()}
    lines = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in known.items()}
    graph = import_graph(root, PACKAGES)
    importers = {name: [other for other in graph if name in graph[other]] for name in known}
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
        "circles of imports": len(circles(graph)),
        "modules in circles": sum(map(len, circles(graph))),
        "functions": len(lengths),
        "median lines of a function": statistics.median(lengths),
        "longest function": lengths[-1],
        "circles": circles(graph),
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
    figures = measure(words.root.resolve()) | (depth(words.root.resolve(), words.depth) if words.depth else {})
    if words.json:
        words.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    for name, value in figures.items():
        print(f"{name:45} {value}")


if __name__ == "__main__":
    main()
