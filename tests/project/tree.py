"""Find the project's files and their functions, for the tests of the repository's promises about itself."""

import ast
import os
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("relief_ray", "actors", "tune_configs")
NOT_OURS = {"venv", "runs", "mlruns", "mlartifacts", "datasets", "build", "dist"}
TEXT = {".py", ".md", ".toml", ".txt", ".sh", ".yaml", ".yml", ".cff", ".ipynb", ".json", ".cfg", ".sha256", ""}


def files(suffixes):
    """Every file of the project with one of the suffixes; caches and environments are left out."""
    for folder, names, leaves in os.walk(ROOT):
        names[:] = [n for n in names if n == ".ci" or not (n in NOT_OURS or n.startswith((".", "__pycache__")))]
        # In a further work tree of git, `.git` is a file, with a path of its machine.
        yield from (Path(folder, leaf) for leaf in leaves if Path(leaf).suffix in suffixes and leaf != ".git")


def sources(*more):
    return [path for package in (*PACKAGES, *more) for path in sorted((ROOT / package).rglob("*.py"))]


def name_of(path):
    return str(path.relative_to(ROOT))


def functions(tree):
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def lines_of(node):
    return node.end_lineno - node.lineno + 1
