"""`relief-ray new`: writes a working file of a user's own (method, data set, backbone, grid), and its tests."""

from __future__ import annotations

import importlib.util
import json
import keyword
import re
import sys
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Literal

from relief_ray.support.errors import UserError
from relief_ray.support.files import disk_errors, write_atomic
from relief_ray.support.text import pip

Kind = Literal["method", "dataset", "backbone", "grid"]
_TEMPLATES = "actors.templates"
# What to type next, after the tests.
_NEXT: dict[Kind, tuple[str, ...]] = {
    "method": ("conformance {name}:{Name}", "run quick --strategies fedavg,{name}:{Name} --out runs/{name}"),
    "dataset": (
        "data synth {name}:{NAME} --out {name}-data",
        "data describe {name}:{NAME}",
        "run quick --set data.name={name}:{NAME} --set 'fleet.owned={{B: [acc, gyro], C: [acc]}}'",
    ),
    "backbone": ("model describe quick --set backbone={name}:{Name}", "run quick --set backbone={name}:{Name}"),
    "grid": ("grid {name}.py --dry-run", "grid {name}.py"),
}


def new_command(kind: Kind, name: str, out: Path, as_json: bool) -> None:
    """Write ``NAME.py`` and ``test_NAME.py`` and print what to type next.

    Raises:
        UserError: no name for a module, a file of that name is there already, or nothing can be written.
    """
    names = names_of(name)
    paths = {f"{kind}.py.txt": out / f"{names['name']}.py", f"test_{kind}.py.txt": out / f"test_{names['name']}.py"}
    for path in paths.values():
        if path.exists():
            raise UserError(f"{path}: is there already and stays as it is; choose another name, or --out DIR")
    _refuse_installed(names["name"])
    with disk_errors(out, "write there"):
        out.mkdir(parents=True, exist_ok=True)
    for template, path in paths.items():
        text = files(_TEMPLATES).joinpath(template).read_text(encoding="utf-8")
        write_atomic(path, Template(text).substitute(names).encode())
    commands = _commands(kind, names, out)
    if as_json:
        print(json.dumps({"event": "new", "files": [str(path) for path in paths.values()], "next": commands}))
    else:
        print(*(f"Written {path}" for path in paths.values()), "", "Next", *(f"  {c}" for c in commands), sep="\n")


def names_of(name: str) -> dict[str, str]:
    """Return the names of module, class and constant: ``fed_adam``, ``FedAdam`` and ``FED_ADAM``.

    Raises:
        UserError: it cannot be the name of a module.
    """
    module = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.removesuffix(".py")).replace("-", "_").lower()
    if not re.fullmatch(r"[a-z][a-z0-9_]*", module) or keyword.iskeyword(module):
        raise UserError(f"new {name!r}: expected a name for a Python file: letters, digits and _, e.g. my_method")
    return {"name": module, "Name": "".join(part.title() for part in module.split("_")), "NAME": module.upper()}


# Modules that libraries import where they are installed.
_OPTIONAL = {"cuda": "torch"}


def _refuse_installed(module: str) -> None:
    """Check that the file would be the one that its import path names.

    Raises:
        UserError: an installed module has the name.
    """
    if module in sys.stdlib_module_names or importlib.util.find_spec(module) is not None:
        raise UserError(
            f"new {module}: an installed module is called so and would be imported instead; choose another name"
        )
    if module in _OPTIONAL:
        raise UserError(f"new {module}: {_OPTIONAL[module]} would import that file as its own; choose another name")


def _commands(kind: Kind, names: dict[str, str], out: Path) -> list[str]:
    """Commands to type next, from the folder of the new files."""
    place = [] if out.resolve() == Path.cwd() else [f"cd {out}"]
    tools = [] if importlib.util.find_spec("pytest") else [f"python -m {pip('pytest')}"]
    tests = f"python -m pytest test_{names['name']}.py"
    first, *others = (f"relief-ray {c.format(**names)}" for c in _NEXT[kind])
    # The first one makes the files that the others read.
    where = [f"export RELIEF_DATA=$PWD/{names['name']}-data"] if kind == "dataset" else []
    return [*place, *tools, tests, first, *where, *others]
