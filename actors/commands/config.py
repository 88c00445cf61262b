"""`relief-ray config|explain|new`: keys of a configuration, reasons for a client's task, new files of one's own."""

from __future__ import annotations

import importlib.util
import keyword
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Final, Literal

from actors.commands.next_steps import refuse_several
from actors.terminal.exit_codes import print_result
from relief_ray.config.keys import CHOSEN, Key, all_keys, unknown_key, value_text
from relief_ray.studies.reasons import reasons_for
from relief_ray.support.errors import UserError
from relief_ray.support.files import disk_errors, write_atomic
from relief_ray.support.text import WIDTH, pip, wrapped

# `relief-ray explain`: why a client trains what it trains; the reasons are ``relief_ray.studies.reasons``'.


def explain_command(folder: Path, round_: int, client: int, as_json: bool) -> None:
    """Print the reasons for one client's task in one round.

    Raises:
        UserError: no such round or client, or a folder of several runs.
    """
    refuse_several(folder, "explain", f"--round {round_} --client {client}")
    reasons = reasons_for(folder, round_, client, width=WIDTH)
    print_result(reasons.text, reasons.facts, as_json)


# `relief-ray new`: writes a working file of a user's own (method, data set, backbone, grid), and its tests.

Kind = Literal["method", "dataset", "backbone", "grid"]
_TEMPLATES = "actors.templates"
# What to type next, after the tests; of a data set the first makes the files that the others read.
_NEXT: dict[Kind, tuple[str, ...]] = {
    "method": (
        "relief-ray conformance {name}:{Name}",
        "relief-ray run quick --strategies fedavg,{name}:{Name} --out runs/{name}",
    ),
    "dataset": (
        "relief-ray data synth {name}:{NAME} --out {name}-data",
        "export RELIEF_DATA=$PWD/{name}-data",
        "relief-ray data describe {name}:{NAME}",
        "relief-ray run quick --set data.name={name}:{NAME} --set 'fleet.owned={{B: [acc, gyro], C: [acc]}}'",
    ),
    "backbone": (
        "relief-ray model describe quick --set backbone={name}:{Name}",
        "relief-ray run quick --set backbone={name}:{Name}",
    ),
    "grid": ("relief-ray grid {name}.py --dry-run", "relief-ray grid {name}.py"),
}
# Modules that libraries import where they are installed.
_OPTIONAL = {"cuda": "torch"}


def new_command(kind: Kind, name: str, out: Path, as_json: bool) -> None:
    """Write ``NAME.py`` and ``test_NAME.py`` and print what to type next.

    Raises:
        UserError: no name for a module, or that of an installed one; a file of that name is there already, or nothing
            can be written.
    """
    names = names_of(name)
    module = names["name"]
    paths = {f"{kind}.py.txt": out / f"{module}.py", f"test_{kind}.py.txt": out / f"test_{module}.py"}
    for path in paths.values():
        if path.exists():
            raise UserError(f"{path}: is there already and stays as it is; choose another name, or --out DIR")
    # The file has to be the one that its import path names.
    if module in sys.stdlib_module_names or importlib.util.find_spec(module) is not None:
        raise UserError(
            f"new {module}: an installed module is called so and would be imported instead; choose another name"
        )
    if module in _OPTIONAL:
        raise UserError(f"new {module}: {_OPTIONAL[module]} would import that file as its own; choose another name")
    with disk_errors(out, "write there"):
        out.mkdir(parents=True, exist_ok=True)
    for template, path in paths.items():
        text = files(_TEMPLATES).joinpath(template).read_text(encoding="utf-8")
        write_atomic(path, Template(text).substitute(names).encode())
    # From the folder of the new files.
    commands = [] if out.resolve() == Path.cwd() else [f"cd {out}"]
    commands += [] if importlib.util.find_spec("pytest") else [f"python -m {pip('pytest')}"]
    commands += [f"python -m pytest test_{module}.py", *(command.format(**names) for command in _NEXT[kind])]
    lines = [*(f"Written {path}" for path in paths.values()), "", "Next", *(f"  {command}" for command in commands)]
    facts = {"event": "new", "files": [str(path) for path in paths.values()], "next": commands}
    print_result("\n".join(lines), facts, as_json)


def names_of(name: str) -> dict[str, str]:
    """Return the names of module, class and constant: ``fed_adam``, ``FedAdam`` and ``FED_ADAM``.

    Raises:
        UserError: it cannot be the name of a module.
    """
    module = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.removesuffix(".py")).replace("-", "_").lower()
    if not re.fullmatch(r"[a-z][a-z0-9_]*", module) or keyword.iskeyword(module):
        raise UserError(f"new {name!r}: expected a name for a Python file: letters, digits and _, e.g. my_method")
    return {"name": module, "Name": "".join(part.title() for part in module.split("_")), "NAME": module.upper()}


# `relief-ray config`: every key of a configuration with its type, default, value and meaning.

_MARK: Final = "*"
# Keys to show, their values by path, and a line above them.
_Chosen = tuple[list[Key], Mapping[str, object], str]


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
    if target is None:
        keys, values, head = _of_defaults(wanted)
    else:
        keys, values, head = (_of_users_class if ":" in target else _of_target)(target, wanted)
    lines = [*([f"{head}\n"] if head else []), *(_key_text(key, values) for key in keys)]
    if target is None and wanted is None:
        lines.append("\nMethods have keys too: relief-ray config strategy. Models: config backbone.")
    rows = [asdict(k) | ({"value": values[k.key]} if k.key in values else {}) for k in keys]
    print_result("\n".join(lines), rows, as_json)


def _matching(wanted: str, keys: Sequence[Key]) -> list[Key]:
    """Keys of this path, of this section, of this method or backbone, or of this last name."""
    exact = [k for k in keys if k.key == wanted or k.key.startswith(f"{wanted}.") or k.of == wanted]
    return exact or [k for k in keys if k.key.rpartition(".")[2] == wanted]


def _of_defaults(wanted: str | None) -> _Chosen:
    """The keys that every run has, or the wanted ones of all.

    Raises:
        UserError: no such key.
    """
    keys = [key for key in all_keys() if not key.of] if wanted is None else _matching(wanted, all_keys())
    if not keys:
        raise UserError(f"config {wanted}: {unknown_key(str(wanted))}; `relief-ray config` lists all keys")
    return keys, {}, ""


def _of_target(target: str, wanted: str | None) -> _Chosen:
    """Keys and values of the first run of a preset, a file or a run folder, and a line that says so.

    Raises:
        UserError: it is none of these and no key either, or it has no key ``wanted``.
    """
    from relief_ray.config.table import own_keys
    from relief_ray.models.registry import backbone_name
    from relief_ray.plugins.load import is_own, path_of
    from relief_ray.studies.plan import target_config
    from relief_ray.studies.presets import PRESETS

    is_file = Path(target).exists() or Path(target).suffix in (".yaml", ".yml", ".json")
    if wanted is None and target not in PRESETS and not is_file:
        raise UserError(f"config {target}: no preset ({', '.join(PRESETS)}), no file, and {unknown_key(target)}")
    config = target_config(target, [])
    values = _by_key(config.model_dump(mode="json"))
    # A method and a backbone also by their names.
    values |= {section: values[f"{section}.name"] for section in CHOSEN}
    known, read_by = list(all_keys()), {"", config.strategy.build().name, backbone_name(config.backbone)}
    for kind in (type(config.strategy), type(config.backbone)):
        if is_own(kind):
            known += own_keys(kind, path_of(kind))
            read_by.add(path_of(kind))
    keys = [key for key in known if key.of in read_by and key.key in values]
    if wanted is not None and not (keys := _matching(wanted, keys)):
        raise UserError(f"config {target} {wanted}: {unknown_key(wanted)}; `relief-ray config` lists all keys")
    return keys, values, f"{target}: values of its first run ({config.label()}); {_MARK} differs from the default"


def _of_users_class(path: str, wanted: str | None) -> _Chosen:
    """Keys of the user's method or backbone at an import path.

    Raises:
        UserError: there is none, or it has no key ``wanted``.
    """
    from relief_ray.config.table import own_keys
    from relief_ray.plugins.load import load

    value = load(path, "config")
    keys = list(own_keys(value if isinstance(value, type) else type(value), path))
    if wanted is not None and not (keys := _matching(wanted, keys)):
        raise UserError(f"config {path} {wanted}: {unknown_key(wanted, path)}; `relief-ray config {path}` lists all")
    return keys, {}, ""


def _by_key(section: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Every value, sections included, by its dotted key."""
    values: dict[str, object] = {}
    for name, value in section.items():
        values[prefix + name] = value
        if isinstance(value, Mapping):
            values |= _by_key(value, f"{prefix}{name}.")
    return values


def _key_text(key: Key, values: Mapping[str, object]) -> str:
    """A key's block: name and value, type and default, meaning."""
    value = values.get(key.key, key.default)
    mark = _MARK if key.key in values and value != key.default else " "
    reader = f"   ({key.of})" if key.of else ""
    body = wrapped(f"{key.type}; default {value_text(key.default)}. {key.meaning}", " " * 6, width=WIDTH - 6)
    return "\n".join([f"{mark} {key.key} = {value_text(value)}{reader}", *body])
