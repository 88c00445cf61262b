"""`relief-ray config`: every key of a configuration with its type, default, value and meaning."""

from __future__ import annotations

import importlib.util
import json
import keyword
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Final, Literal

from actors.commands.plan_text import refuse_several
from relief_ray.config.keys import CHOSEN, Key, all_keys, unknown_key, value_text
from relief_ray.studies.reasons import reasons_for
from relief_ray.support.errors import UserError
from relief_ray.support.files import disk_errors, write_atomic
from relief_ray.support.text import WIDTH, pip, wrapped

if TYPE_CHECKING:
    from relief_ray.config.experiment import ExperimentConfig

# `relief-ray explain`: why a client trains what it trains; the reasons are ``relief_ray.studies.reasons``'.


def explain_command(folder: Path, round_: int, client: int, as_json: bool) -> None:
    """Print the reasons for one client's task in one round.

    Raises:
        UserError: no such round or client, or a folder of several runs.
    """
    refuse_several(folder, "explain", f"--round {round_} --client {client}")
    reasons = reasons_for(folder, round_, client, width=WIDTH)
    print(json.dumps(reasons.facts, indent=1) if as_json else reasons.text)


# `relief-ray new`: writes a working file of a user's own (method, data set, backbone, grid), and its tests.


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


_MARK: Final = "*"


def config_command(first: str | None, second: str | None, as_json: bool, markdown: bool) -> None:
    """Print the keys; ``first`` may be a preset, file, run folder, method or backbone of one's own, or already the key.

    Raises:
        UserError: no such preset, file, method or key.
    """
    if markdown:
        from relief_ray.config.table import keys_of_all, page

        print(page(keys_of_all()), end="")
        return
    is_key = second is None and first is not None and bool(_matching(first, all_keys()))
    target, wanted = (None, first) if is_key else (first, second)
    if target is not None and ":" in target:
        keys, values, head = _of_own(target, wanted)
    else:
        keys, values, head = _of_defaults(wanted) if target is None else _of_target(target, wanted)
    if as_json:
        rows = [{**asdict(k), **({"value": values[k.key]} if k.key in values else {})} for k in keys]
        print(json.dumps(rows, indent=1))
        return
    if head:
        print(f"{head}\n")
    print("\n".join(_lines(key, values) for key in keys))
    if target is None and wanted is None:
        print("\nMethods have keys too: relief-ray config strategy. Models: config backbone.")


def _matching(wanted: str, keys: Sequence[Key]) -> list[Key]:
    """Keys of this path, of this section, of this method or backbone, or of this last name."""
    exact = [k for k in keys if k.key == wanted or k.key.startswith(f"{wanted}.") or k.of == wanted]
    return exact or [k for k in keys if k.key.rpartition(".")[2] == wanted]


# Keys to show, their values by path, and a line above them.
_Shown = tuple[list[Key], Mapping[str, object], str]


def _of_defaults(wanted: str | None) -> _Shown:
    """The keys that every run has, or the wanted ones of all.

    Raises:
        UserError: no such key.
    """
    keys = [key for key in all_keys() if not key.of] if wanted is None else _matching(wanted, all_keys())
    if not keys:
        raise UserError(f"config {wanted}: {unknown_key(str(wanted))}; `relief-ray config` lists all keys")
    return keys, {}, ""


def _of_target(target: str, wanted: str | None) -> _Shown:
    """Keys and values of the first run of a preset, a file or a run folder, and a line that says so.

    Raises:
        UserError: it is none of these and no key either, or it has no key ``wanted``.
    """
    from relief_ray.config.table import own_keys
    from relief_ray.models.registry import backbone_name
    from relief_ray.plugins.load import is_own, path_of
    from relief_ray.studies.plan import target_config
    from relief_ray.studies.presets import PRESETS

    if wanted is None and target not in PRESETS and not _is_path(target):
        raise UserError(f"config {target}: no preset ({', '.join(PRESETS)}), no file, and {unknown_key(target)}")
    config = target_config(target, [])
    read_by = {"", config.strategy.build().name, backbone_name(config.backbone)}
    values = _values_of(config)
    known = list(all_keys())
    for chosen in (config.strategy, config.backbone):
        if is_own(type(chosen)):
            known += own_keys(type(chosen), path_of(type(chosen)))
            read_by.add(path_of(type(chosen)))
    keys = [key for key in known if key.of in read_by and key.key in values]
    if wanted is not None and not (keys := _matching(wanted, keys)):
        raise UserError(f"config {target} {wanted}: {unknown_key(wanted)}; `relief-ray config` lists all keys")
    return keys, values, f"{target}: values of its first run ({config.label()}); {_MARK} differs from the default"


def _of_own(path: str, wanted: str | None) -> _Shown:
    """Keys of the user's method or backbone at an import path.

    Raises:
        UserError: there is none, or it has no key ``wanted``.
    """
    from relief_ray.config.table import own_keys
    from relief_ray.plugins.load import load

    found = load(path, "config")
    keys = list(own_keys(found if isinstance(found, type) else type(found), path))
    if wanted is not None and not (keys := _matching(wanted, keys)):
        raise UserError(f"config {path} {wanted}: {unknown_key(wanted, path)}; `relief-ray config {path}` lists all")
    return keys, {}, ""


def _is_path(target: str) -> bool:
    from pathlib import Path

    return Path(target).exists() or Path(target).suffix in (".yaml", ".yml", ".json")


def _values_of(config: ExperimentConfig) -> dict[str, object]:
    """Every value by its dotted key; a method and a backbone also by their names."""
    values: dict[str, object] = {}

    def walk(section: Mapping[str, object], prefix: str) -> None:
        for name, value in section.items():
            values[f"{prefix}{name}"] = value
            if isinstance(value, Mapping):
                walk(value, f"{prefix}{name}.")

    walk(config.model_dump(mode="json"), "")
    return values | {section: values[f"{section}.name"] for section in CHOSEN}


def _lines(key: Key, values: Mapping[str, object]) -> str:
    """A key's block: name and value, type and default, meaning."""
    value = values.get(key.key, key.default)
    mark = _MARK if key.key in values and value != key.default else " "
    reader = f"   ({key.of})" if key.of else ""
    facts = f"{key.type}; default {value_text(key.default)}. {key.meaning}"
    body = wrapped(facts, " " * 6, width=WIDTH - 6)
    return "\n".join([f"{mark} {key.key} = {value_text(value)}{reader}", *body])
