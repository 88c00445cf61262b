"""Users' code from a notebook's cell: its source as a module of its own, which records keep and other processes import.

The module ``notebook_Mine`` holds the statement that defines ``Mine`` and what that needs of the same cell. Its file
lies in the cache, in a folder named by its hash; plans and run records keep its text, from which reading them makes the
file anew where it is missing. Nothing is imported by that.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import re
import symtable
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

from pydantic import AfterValidator

from relief_ray.plugins.load import PREFIX, sources
from relief_ray.support.errors import UserError, listed
from relief_ray.support.files import cache_root, sha256_of, write_atomic

# First line of such a file, which tells it from a user's own of a like name.
_HEAD = "# From a cell of a notebook.\n"


def cell_module(name: str, key: str) -> str | None:
    """The module made of the newest cell that defines ``name``; None where no cell does, or there are no cells.

    Raises:
        UserError: the source uses names that other cells define.
    """
    shell: Any = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    for text in reversed([] if shell is None else shell.history_manager.input_hist_parsed):
        with suppress(SyntaxError):
            if (source := _part_of(text, name)) is not None:
                _refuse_lacking(source, name, key, shell.user_ns)
                put({f"{PREFIX}{name}.py": _HEAD + source}, is_new=True)
                return f"{PREFIX}{name}"
    return None


def _part_of(text: str, name: str) -> str | None:
    """The statements of a cell that bind ``name``, and those that bind what they use; None where none does."""
    binding: dict[str, list[ast.stmt]] = {}
    for node in ast.parse(text).body:
        for bound in _bound(node):
            binding.setdefault(bound, []).append(node)
    lines, kept, todo = text.splitlines(), set[int](), [name]
    while todo:
        for node in binding.pop(todo.pop(), []):
            first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
            part = range(first - 1, node.end_lineno or first)
            kept.update(part)
            todo += _globals("\n".join(lines[i] for i in part))
    return "\n".join(lines[i] for i in sorted(kept)) + "\n" if kept else None


def _bound(node: ast.stmt) -> Iterator[str]:
    """Names that a statement of a module binds."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Import | ast.ImportFrom):
        yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
    else:
        yield from (n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))


def _globals(source: str) -> set[str]:
    """Names of the module that a source reads, in its functions too."""

    def walk(table: symtable.SymbolTable) -> Iterator[str]:
        is_module = table.get_type() == "module"
        yield from (s.get_name() for s in table.get_symbols() if s.is_referenced() and (is_module or s.is_global()))
        for child in table.get_children():
            yield from walk(child)

    return set(walk(symtable.symtable(source, "cell", "exec")))


def _refuse_lacking(source: str, name: str, key: str, known: Mapping[str, object]) -> None:
    """Check that a source stands by itself.

    Raises:
        UserError: it reads names that only other cells define; the message has the lines to add.
    """
    bound = {each for node in ast.parse(source).body for each in _bound(node)}
    lacking = sorted(each for each in _globals(source) - bound - vars(builtins).keys() if each in known)
    if lacking:
        lines = "\n".join(f"    {_line_for(each, known[each])}" for each in lacking)
        raise UserError(
            f"{key}: {name} uses {listed(lacking)}, which the cell that defines it lacks; that cell is stored with the "
            f"run and imported alone, so add to it:\n{lines}"
        )


def _line_for(name: str, value: Any) -> str:
    """The line that brings a name of another cell into one."""
    if isinstance(value, ModuleType):
        parent, _, last = value.__name__.rpartition(".")
        if not parent:
            return f"import {value.__name__}" + (f" as {name}" if name != value.__name__ else "")
        return f"from {parent} import {last}" if name == last else f"import {value.__name__} as {name}"
    module, inner = getattr(value, "__module__", None), getattr(value, "__name__", "")
    if module not in (None, "__main__") and getattr(sys.modules.get(module), inner, None) is value:
        return f"from {module} import {inner}" + (f" as {name}" if name != inner else "")
    return f"{name} = ..  # as another cell defines it"


def cells_of(modules: Iterable[str]) -> dict[str, str]:
    """Texts of those of these modules that are out of notebooks, by file: what records keep of them."""
    named = [module for module in modules if module.startswith(PREFIX)]
    texts = {source.name: source.content.decode() for source in sources(named)}
    return {name: text for name, text in texts.items() if text.startswith(_HEAD)}


def put(texts: Mapping[str, str], *, is_new: bool = False) -> Mapping[str, str]:
    """Write the files where imports of this process, and of those that it starts, find them; return them as they are.

    A module that is imported already stays, unless ``is_new``: it is imported anew where its text is another.

    Raises:
        ValueError: a file's name is none of a cell's.
        UserError: the cache cannot be written.
    """
    root = cache_root() / "cells"
    for name, text in texts.items():
        if not re.fullmatch(rf"{PREFIX}\w+\.py", name):
            raise ValueError(f"{name!r} is no file of a notebook's cell, expected {PREFIX}NAME.py")
        module, place = name.removesuffix(".py"), root / sha256_of(text)[:16]
        loaded = getattr(sys.modules.get(module), "__file__", None)
        if loaded is not None and (not is_new or loaded == str(place / name)):
            continue
        if not (place / name).exists():
            write_atomic(place / name, text.encode())
        sys.modules.pop(module, None)
        # Last, as every folder of users' code; and alone of those with such a file.
        sys.path[:] = [path for path in sys.path if Path(path).parent != root or not (Path(path) / name).exists()]
        sys.path.append(str(place))
        importlib.invalidate_caches()
    return texts


def _read(texts: dict[str, str]) -> dict[str, str]:
    with suppress(UserError):  # code that cannot be imported is told where it is
        put(texts)
    return texts


OwnCells = Annotated[dict[str, str], AfterValidator(_read)]
"""Texts of notebooks' cells by file, in a record: whoever reads it can import them."""
