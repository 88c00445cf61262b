"""Methods, backbones and datasets from users' files: loaded by import path ``module:attribute``, hashed by their code.

Sources are the module's file and those that it imports from the same folder: ``import helpers`` counts where
``helpers.py`` is beside it; of an installed package only its own modules count.
"""

from __future__ import annotations

import ast
import difflib
import importlib
import io
import os
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from importlib.machinery import PathFinder
from pathlib import Path
from types import FunctionType, ModuleType
from typing import TypeVar

from pydantic import BaseModel

from relief_ray.plugins.blame import (
    INSTALLED,
    PROJECT,
    closed_streams,
    is_library,
    loading,
    original,
    staying,
    take_as_users,
    text_of,
    user_line,
)
from relief_ray.plugins.reads import AT_IMPORT, noting
from relief_ray.support.errors import UserCodeError, UserError, nearest, shown
from relief_ray.support.files import sha256_of
from relief_ray.support.frozen import strictly

_Config = TypeVar("_Config", bound=BaseModel)
# Files beside a user's own that hold none, and modules that a message lists.
_NO_PLUGIN = re.compile(r"test|conftest$|setup$|__|\W")
_MOST_NAMES = 5
# Beginning of the name of a data set out of arrays, ``arrays:mine@SHA12``.
STORED = "arrays:"
# Beginnings of the names of modules that hold a part of a notebook or of a script (``plugins.parts``).
NOTEBOOK, SCRIPT = "notebook_", "script_"
PARTS = (NOTEBOOK, SCRIPT)
# Longest name of a file that Linux takes.
_LONGEST_NAME = 255
# Why nothing is imported now but what this process has already; empty: all that is named.
_CLOSED: ContextVar[str] = ContextVar("closed", default="")
# Whether the user of this command lets a record's own code run (``--own-code``).
OWN_CODE: ContextVar[bool] = ContextVar("own_code", default=False)
ONLY_A_RECORD = (
    "only a record names this code, which may do whatever you may; read the file, then let it run with --own-code (in "
    "Python: import it first)"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceFile:
    """A source file.

    Attributes:
        name: its path below the folder that Python found it in: ``my_lab/methods.py``.
        content: its bytes.
        origin: where the user has it.
    """

    name: str
    content: bytes
    origin: str

    @property
    def module(self) -> str:
        """The name by which it is imported."""
        return self.name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    @property
    def sha256(self) -> str:
        """Hash of what an import of it runs: of its lines without comments (``code_of``)."""
        return sha256_of(code_of(self.content))


@lru_cache(maxsize=256)
def code_of(content: bytes) -> bytes:
    """The lines of a file that count when it is imported: no comments, blank lines, or ``if __name__ == "__main__":``.

    Spaces at the ends of lines go with them. A file of another encoding than UTF-8 counts as it is, and so does one
    that Python would read otherwise without them.
    """
    try:
        text = read_text(content)
        tree = ast.parse(text)
        lines: dict[int, str] = dict(enumerate(text.split("\n"), start=1))
        kept = ast.Module(body=[node for node in tree.body if not is_main_block(node)], type_ignores=[])
        for node in tree.body:
            if node not in kept.body:
                lines = {n: line for n, line in lines.items() if not node.lineno <= n <= (node.end_lineno or n)}
        inside: set[int] = set()
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            (first, start), (last, _) = token.start, token.end
            inside.update(range(first, last))  # a string of several lines keeps its blank ones, and spaces
            if token.type == tokenize.COMMENT and first in lines:
                lines[first] = lines[first][:start]
        stripped = [line if n in inside else line.rstrip() for n, line in lines.items()]
        short = "\n".join(line for n, line in zip(lines, stripped, strict=True) if line or n in inside) + "\n"
        return short.encode() if ast.dump(ast.parse(short)) == ast.dump(kept) else content
    except (SyntaxError, ValueError, tokenize.TokenError):
        return content


def read_text(content: bytes) -> str:
    """Text of a file of Python's in UTF-8, lines ended by a newline.

    Raises:
        ValueError: it has another encoding.
    """
    encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
    if encoding not in ("utf-8", "utf-8-sig"):
        raise ValueError(f"encoding {encoding}, expected UTF-8; save the file in it")
    return re.sub("\r\n?", "\n", content.decode(encoding))


def is_main_block(node: ast.stmt) -> bool:
    """Whether a statement is ``if __name__ == "__main__":``, which no import runs."""
    return isinstance(node, ast.If) and not node.orelse and ast.unparse(node.test) == "__name__ == '__main__'"


def is_path(name: object) -> bool:
    """Return whether a name is of a user's own: an import path, or of stored arrays; built-in ones have no colon."""
    return isinstance(name, str) and ":" in name


def is_stored(name: object) -> bool:
    """Return whether a name is of stored arrays (``rr.dataset``), to which no code belongs: ``arrays:mine@SHA12``."""
    return isinstance(name, str) and name.startswith(STORED) and "@" in name


def import_path(path: str) -> str:
    """The import path ``module:attribute``, also where a file in or below the current folder is named by its path.

    ``folder/file.py:attribute`` and ``/home/me/folder/file.py:attribute`` are ``folder.file:attribute``. A file that is
    elsewhere has no import path here: ``load`` says what to type.
    """
    place, colon, attribute = path.partition(":")
    if not place.endswith(".py"):
        return path
    file = Path(os.path.abspath(Path(place).expanduser()))
    for here, full in ((Path.cwd(), file), (Path.cwd().resolve(), file.resolve())):
        if full.is_relative_to(here):
            return ".".join(full.relative_to(here).with_suffix("").parts) + colon + attribute
    return path


def what_to_type(name: str, *kinds: type) -> str:
    """Say which import path leads to what ``name`` means, where it is a file here or a name in one; else nothing.

    ``median``, ``median.py`` and ``median.Median`` all mean ``median:Median``, if ``median.py`` has a class of that
    name that is one of ``kinds`` or derived from one.
    """
    if len(name) > _LONGEST_NAME:
        return ""
    place, _, attribute = import_path(name).partition(":")
    dotted = place.removesuffix(".py").replace("/", ".")
    for module, wanted in ((dotted, attribute), (dotted.rpartition(".")[0], dotted.rpartition(".")[2])):
        file = Path(*module.split(".")).with_suffix(".py") if module.strip(".") else None
        if file is not None and file.is_file():
            return _names_in(file, module, wanted, kinds)
    return ""


def _names_in(file: Path, module: str, wanted: str, kinds: tuple[type, ...]) -> str:
    """Words on the import paths of all that a file defines of these kinds."""
    try:
        known = vars(_import(module, str(file)))
    except UserError as error:
        return f"{file} is a file here, but {error}"
    if os.path.realpath(other := known.get("__file__") or "Python's own") != os.path.realpath(file):
        return f"{file} is a file here, but another module of that name comes first ({other}); rename the file"
    names = [name for name, value in known.items() if not name.startswith("_") and _is_one(value, module, kinds)]
    likely = [name for name in names if name.casefold() == wanted.casefold()]
    likely = likely or difflib.get_close_matches(wanted, names, n=1) or names
    if not likely:
        expected = " or ".join(kind.__name__ for kind in kinds)
        return f"{file} is a file here, but defines neither a class derived from {expected} nor an instance"
    return f"{file} is a file here; type {' or '.join(f'{module}:{name}' for name in likely)}"


def _is_one(value: object, module: str, kinds: tuple[type, ...]) -> bool:
    """Whether a module's variable is an instance of a kind, or a class derived from one that the module defines."""
    if isinstance(value, type):
        return issubclass(value, kinds) and value.__module__ == module
    return isinstance(value, kinds)


def is_own(kind: type | FunctionType) -> bool:
    """Return whether a class or a function is defined outside of this project."""
    return kind.__module__.partition(".")[0] not in PROJECT


def path_of(kind: type | FunctionType) -> str:
    """Return the import path ``module:Name``, by which ``load`` finds it again."""
    parts = [f"{prefix}{kind.__qualname__}" for prefix in PARTS if kind.__module__ == "__main__"]
    return f"{next(filter(_found, parts), importable_name(kind.__module__))}:{kind.__qualname__}"


def importable_name(module: str) -> str:
    """Return the name under which another process imports a module: for the script that runs, that of its file.

    A notebook or a prompt has no file: it stays ``__main__``, which nothing can import.
    """
    main = sys.modules.get(module)
    if module != "__main__" or main is None:
        return module
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if spec is not None:  # python -m lab.script
        return str(spec.name)
    stem = Path(file).stem if file is not None else ""
    return stem if stem.isidentifier() and str(file).endswith(".py") else module


def load(path: str, key: str, *kinds: type) -> object:
    """Load ``module:attribute``; modules are looked for on PYTHONPATH and in the current folder.

    ``kinds``: what is expected there, for messages: other names of the module that are one are suggested.

    Raises:
        UserError: no such module or attribute, or the module cannot be imported.
    """
    name, _, attribute = import_path(path).partition(":")
    if name.endswith(".py"):
        raise UserError(f"{key} = {path!r}: {_elsewhere(Path(name).expanduser(), attribute)}")
    if not attribute.isidentifier() or not all(part.isidentifier() for part in name.split(".")):
        raise UserError(f"{key} = {shown(path)}: expected an import path like my.module:MyClass")
    module = _import(name, f"{key} = {path!r}", attribute)
    if not hasattr(module, attribute):
        if kinds and (hint := what_to_type(path, *kinds)):
            raise UserError(f"{key} = {path!r}: the module has no {attribute!r}; {hint}")
        raise UserError(
            f"{key} = {path!r}: {module.__file__ or name} has no {attribute!r}{nearest(attribute, vars(module))}; "
            "name what the file defines"
        )
    value: object = getattr(module, attribute)
    return value


def _elsewhere(file: Path, attribute: str) -> str:
    """Advice on a file that is neither in the current folder nor below it."""
    if not file.is_file():
        return f"there is no file {file}; expected module:Name of a module in the current folder or on PYTHONPATH"
    target = f"{file.stem}:{attribute or 'NAME'}"
    return (
        f"{file} is not in the current folder, and records name code by its import path; type {target} after "
        f"`cd {file.resolve().parent}`, or after `export PYTHONPATH={file.resolve().parent}`"
    )


@contextmanager
def closed(why: str) -> Iterator[None]:
    """Import no module of a user's in this block that is not imported already; ``why`` not: empty, and all are."""
    before = _CLOSED.set(why)
    try:
        yield
    finally:
        _CLOSED.reset(before)


def _import(name: str, place: str, attribute: str = "") -> ModuleType:
    # The script that runs is there under another name.
    if (why := _CLOSED.get()) and name not in sys.modules and name != importable_name("__main__"):
        raise UserError(f"{place}: {why}")
    take_as_users([name])
    here = str(Path.cwd())
    if here not in sys.path:
        # Last, so that a user's file can never replace an installed module.
        sys.path.append(here)
    before = _changed_torch()
    try:
        with loading(), noting(AT_IMPORT), staying():
            module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            rest = name.removeprefix(error.name) + (f":{attribute}" if attribute else "")
            raise UserError(
                f"{place}: no module {error.name!r} in the current folder ({here}) or on PYTHONPATH"
                f"{_likely_module(error.name, rest)}; start from the folder that holds it, or set PYTHONPATH to that "
                "folder"
            ) from error
        raise UserError(f"{place}: its module imports {error.name!r}, which is not installed; install it") from error
    except (Exception, SystemExit) as error:
        raise UserCodeError(
            f"{place}: importing {name!r} fails with {type(error).__name__}: {text_of(error)}{where_raised(error)}; "
            "mend the file"
        ) from error
    if left := closed_streams() or (changed if (changed := _changed_torch()) != before else ""):
        text = f"importing {name!r} changes this process: {left}"
        raise UserCodeError(f"{place}: {text} ({original(str(module.__file__))}); mend the file")
    return module


def _changed_torch() -> str:
    """What differs from torch's own defaults, where torch is loaded; empty where nothing does."""
    if "torch" in sys.modules:
        from relief_ray.support.process import refuse_changed_torch

        try:
            refuse_changed_torch()
        except UserError as error:
            return str(error)
    return ""


def _likely_module(missing: str, rest: str) -> str:
    """Words on the module of the current folder that was meant, ``rest`` behind it, or on all; empty without any."""
    *above, name = missing.split(".")
    folder = Path.cwd().joinpath(*above)
    files = [path.stem for path in folder.glob("*.py")] + [path.parent.name for path in folder.glob("*/*.py")]
    modules = {stem.casefold(): ".".join([*above, stem]) for stem in sorted(files) if not _NO_PLUGIN.match(stem)}
    if near := difflib.get_close_matches(name.casefold(), modules, n=1):
        return f" (did you mean {modules[near[0]] + rest!r}?)"
    some = [*list(modules.values())[:_MOST_NAMES], *([".."] if len(modules) > _MOST_NAMES else [])]
    return f" (found there: {', '.join(some)})" if some else ""


def where_raised(error: BaseException) -> str:
    """`` (FILE, line N, ..)`` of an error while a module was loaded; a syntax error names the place itself."""
    place = None if isinstance(error, SyntaxError) else user_line(error)
    return f" ({place})" if place else ""


def configured(values: Mapping[str, object], key: str, base: type[_Config]) -> _Config:
    """Make a configuration of the class that ``values["name"]`` names, or a variation of the instance.

    The other ``values`` are its fields.

    Raises:
        UserError: it is no ``base``.
        ValidationError: it has no such field, or a field does not fit.
    """
    loaded, fields = load_kind(str(values["name"]), key, base), {k: v for k, v in values.items() if k != "name"}
    kind = loaded if isinstance(loaded, type) else type(loaded)
    if (own := next((c for c in kind.__mro__ if "__init__" in vars(c)), BaseModel)) is not BaseModel and is_own(own):
        raise UserCodeError(
            f"{key} = {values['name']!r}: class {own.__name__} has an __init__ of its own, expected fields, from which "
            "relief_ray makes one; write `beta: float = 0.9` in the class instead"
        )
    if isinstance(loaded, type):
        return strictly(loaded, fields)
    # Of an instance the other fields stay the objects that they are.
    return type(loaded).model_validate(dict(loaded) | fields) if fields else loaded


def load_kind(path: str, key: str, base: type[_Config]) -> type[_Config] | _Config:
    """The subclass of ``base``, or the instance of one, that an import path names.

    Raises:
        UserError: there is nothing at the path, or something else.
    """
    loaded = load(path, key, base)
    if isinstance(loaded, base) or (isinstance(loaded, type) and issubclass(loaded, base)):
        return loaded
    what = f"class {loaded.__name__}" if isinstance(loaded, type) else f"a {type(loaded).__name__}"
    raise UserError(
        f"{key} = {path!r}: found {what}, expected a subclass of {base.__module__}.{base.__name__} or an instance of "
        "one; derive the class from it"
    )


def modules_of(names: Iterable[object]) -> tuple[str, ...]:
    """Return the modules of configured import paths, each once: ``my.module`` of ``my.module:MyMethod``."""
    return tuple(sorted({str(name).partition(":")[0] for name in names if is_path(name) and not is_stored(name)}))


def sources(modules: Iterable[str]) -> tuple[SourceFile, ...]:
    """Read the files of ``modules`` and of their imports from the same folder, by name; nothing is imported.

    Those of a module that is not imported yet are where Python would find them.
    """
    files: dict[str, SourceFile] = {}
    todo = list(modules)
    for name in todo:
        is_script = name not in sys.modules and name == importable_name("__main__")
        loaded = sys.modules.get("__main__" if is_script else name)
        file = _found(name) if loaded is None else getattr(loaded, "__file__", None)
        if file is None or name.partition(".")[0] in PROJECT:
            continue
        path = Path(file)
        root = path.parents[name.count(".") + (path.name == "__init__.py")]
        for place in _reachable(name if name != "__main__" else path.stem, root):
            origin = original(str(root / place))
            files[place] = SourceFile(name=place, content=(root / place).read_bytes(), origin=origin)
            if name.startswith(PARTS):  # what lies beside a notebook or script does not lie beside its part
                beside = (m for m in _imports(files[place].content, place) if m not in todo)
                todo += [m for m in beside if (file := _found(m)) is not None and not is_library(file)]
    return tuple(files[place] for place in sorted(files))


def _found(module: str) -> str | None:
    """File that importing a module would read, if that is one of Python's sources."""
    path = [*sys.path, str(Path.cwd())]
    for part in module.split("."):
        # By its last name: of a folder without ``__init__.py`` Python would ask for its parent, which is not imported.
        spec = PathFinder.find_spec(part, path)
        if spec is None:
            return None
        path = list(spec.submodule_search_locations or ())
    return spec.origin if spec is not None and str(spec.origin).endswith(".py") else None


def digests(modules: Iterable[str]) -> dict[str, str]:
    """Return the sha256 of each file's code, which tells versions of a user's method apart."""
    return {source.name: source.sha256 for source in sources(modules)}


def _reachable(module: str, root: Path) -> list[str]:
    """Paths below ``root`` of ``module``, of its parent packages, and of their imports from ``root``."""
    is_user_folder = not INSTALLED & set(root.parts)
    reached: dict[str, None] = {}
    todo = [module]
    while todo:
        name = todo.pop()
        if name.partition(".")[0] in PROJECT or not (is_user_folder or name.split(".")[0] == module.split(".")[0]):
            continue
        places = [place for place in _places(name) if (root / place).is_file()]
        for place in places:
            if place not in reached:
                reached[place] = None
                todo += _imports((root / place).read_bytes(), place)
    return list(reached)


def _places(module: str) -> Iterator[str]:
    parts = module.split(".")
    for i in range(1, len(parts) + 1):
        yield "/".join([*parts[:i], "__init__.py"])
    yield "/".join(parts) + ".py"


def _imports(content: bytes, place: str) -> Iterator[str]:
    """Yield the modules that a file may import, whether they exist or not."""
    package = place.split("/")[:-1]
    for node in ast.walk(ast.parse(content)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from ([base] if base else [])
            yield from (f"{base}.{alias.name}" if base else alias.name for alias in node.names)
