"""Users' code from a notebook's cell or the script that runs: what a definition needs of it, as a module of its own.

The module ``notebook_Mine`` (of a script: ``script_Mine``) holds the statements that define ``Mine`` and what these
need of the same cell or file. Its file lies in the cache, in a folder named by its hash; plans and run records keep its
text, from which reading them makes the file anew where it is missing. Nothing is imported by that.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import re
import symtable
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

from pydantic import AfterValidator

from relief_ray.plugins.blame import COPY_OF
from relief_ray.plugins.load import NOTEBOOK, PARTS, SCRIPT, is_main_block, read_text, sources
from relief_ray.support.errors import UserError, listed
from relief_ray.support.files import cache_root, sha256_of, write_atomic


def part_module(name: str, key: str) -> str | None:
    """The module made of what defines ``name``: in the script that runs, else in the newest cell that does.

    None where neither defines it: at a prompt, and in a module that ``python -m`` runs, which is imported as it is.

    Raises:
        UserError: the source uses names that it does not define, such as those of other cells.
    """
    main = sys.modules["__main__"]
    file = None if main.__spec__ is not None else getattr(main, "__file__", None)
    shell: Any = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if file is not None:
        texts, known, prefix = [_text_of(main, file)], vars(main), SCRIPT
        place, mark = file, f"{COPY_OF}{Path(file).absolute()}\n"
    elif shell is not None:
        texts, known, prefix = list(reversed(shell.history_manager.input_hist_parsed)), shell.user_ns, NOTEBOOK
        place, mark = "the cell that defines it", f"{COPY_OF}a cell of a notebook\n"
    else:
        return None
    for text in texts:
        with suppress(SyntaxError):
            if (source := _part_of(text, name)) is not None:
                _refuse_lacking(source, place, f"{key}: {name}", known)
                put({f"{prefix}{name}.py": source + mark}, is_new=True)
                return f"{prefix}{name}"
    return None


@cache
def _text_of(main: ModuleType, file: str) -> str:
    """A script's text as it was when it was first asked for: it may be edited while it runs."""
    return read_text(Path(file).read_bytes())


def _part_of(text: str, name: str) -> str | None:
    """The statements that bind ``name`` or change it, and those for what they use; None where none binds it.

    Other lines are blank, so that errors name a line of the whole.
    """
    body = [node for node in ast.parse(text).body if not is_main_block(node)]
    bound = {node: _names(ast.unparse(node))[0] for node in body}
    if not any(name in names for names in bound.values()):
        return None
    imported = set[str]().union(*(bound[node] for node in body if isinstance(node, ast.Import | ast.ImportFrom)))
    binding: dict[str, list[ast.stmt]] = {
        _ALWAYS: [node for node in body if isinstance(node, ast.ImportFrom) and node.module == _ALWAYS]
    }
    for node, names in bound.items():
        for each in names | set(_changed(node, imported)):
            binding.setdefault(each, []).append(node)
    lines, kept, todo = text.split("\n"), set[int](), [_ALWAYS, name]
    while todo:
        for node in binding.pop(todo.pop(), []):
            first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
            part = range(first - 1, node.end_lineno or first)
            if not kept.issuperset(part):
                kept.update(part)
                todo += set().union(*_names("\n".join(lines[i] for i in part)))
    return "".join(f"{lines[i] if i in kept else ''}\n" for i in range(max(kept) + 1))


# ``from __future__ import ..`` changes how the others are read.
_ALWAYS = "__future__"


class _Apart(ast.NodeTransformer):
    """Makes generators of all comprehensions: since Python 3.12 a table counts names of the others as the module's."""

    def visit_ListComp(self, node: ast.ListComp | ast.SetComp) -> ast.AST:
        self.generic_visit(node)
        return ast.copy_location(ast.GeneratorExp(node.elt, node.generators), node)

    visit_SetComp = visit_ListComp

    def visit_DictComp(self, node: ast.DictComp) -> ast.AST:
        self.generic_visit(node)
        pair = ast.Tuple([node.key, node.value], ast.Load())
        return ast.copy_location(ast.GeneratorExp(pair, node.generators), node)


def _names(source: str) -> tuple[set[str], set[str]]:
    """Names of the module that a source binds, and those that it reads, in its functions and annotations too."""
    bound, read = set[str](), set[str]()
    tables = [symtable.symtable(ast.unparse(_Apart().visit(ast.parse(source))), "cell", "exec")]
    for table in tables:
        tables += table.get_children()
        names = [s for s in table.get_symbols() if table.get_type() == "module" or s.is_global()]
        bound.update(s.get_name() for s in names if s.is_assigned() or s.is_imported())
        read.update(s.get_name() for s in names if s.is_referenced())
    return bound, read


def _changed(node: ast.AST, imported: Collection[str]) -> Iterator[str]:
    """Names whose values a statement of a module changes: ``N.x = 1``, ``N["a"] += 1``, ``N.append(1)``.

    Calls of what is ``imported`` change nothing here: ``rr.run(..)``. Nor do definitions.
    """
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return
    is_place = isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load)
    call = node.value if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) else None
    root = call.func if call else node if is_place else None
    while isinstance(root, ast.Attribute | ast.Subscript):
        root = root.value
        if isinstance(root, ast.Name) and (is_place or root.id not in imported):
            yield root.id
    for child in ast.iter_child_nodes(node):
        yield from _changed(child, imported)


def _refuse_lacking(source: str, place: str, where: str, known: Mapping[str, object]) -> None:
    """Check that a source stands by itself; ``place``: what has it, ``where``: the beginning of the message.

    Raises:
        UserError: it reads names that it does not define but another cell does; the message has the lines to add.
    """
    bound, read = _names(source)
    lacking = sorted(each for each in read - bound - vars(builtins).keys() if each in known)
    if lacking:
        lines = "\n".join(f"    {_line_for(each, known[each])}" for each in lacking)
        raise UserError(
            f"{where}: what defines it uses {listed(lacking)}, which {place} lacks; what a definition needs is stored "
            f"with the run and imported alone, so add there:\n{lines}"
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
    return f"{name} = ..  # as it is elsewhere"


def parts_of(modules: Iterable[str]) -> dict[str, str]:
    """Texts of those of these modules that are parts of notebooks and scripts, by file: what records keep of them."""
    named = [module for module in modules if module.startswith(PARTS)]
    texts = {source.name: source.content.decode() for source in sources(named)}
    return {
        name: text for name, text in texts.items() if text.rpartition("\n")[0].rpartition("\n")[2].startswith(COPY_OF)
    }


def put(texts: Mapping[str, str], *, is_new: bool = False) -> Mapping[str, str]:
    """Write the files where imports of this process, and of those that it starts, find them; return them as they are.

    A module that is imported already stays, unless ``is_new``: it is imported anew where its text is another.

    Raises:
        ValueError: a file's name is none of a part's.
        UserError: the cache cannot be written.
    """
    root = cache_root() / "cells"
    for name, text in texts.items():
        if not re.fullmatch(rf"({'|'.join(PARTS)})\w+\.py", name):
            raise ValueError(f"{name!r} is no part of a notebook or script, expected {NOTEBOOK}NAME.py")
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


OwnParts = Annotated[dict[str, str], AfterValidator(_read)]
"""Texts of parts of notebooks and scripts by file, in a record: whoever reads it can import them."""
