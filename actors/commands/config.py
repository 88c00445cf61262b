"""`relief-ray config`: every key of a configuration with its type, default, value and meaning."""

from __future__ import annotations

import importlib.util
import keyword
import re
import sys
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Final, Literal

from pydantic import JsonValue

from actors.commands.folders import refuse_several
from actors.terminal.exit_codes import Result
from relief_ray.config.experiment import all_keys, own_keys
from relief_ray.config.keys import CHOSEN, Key, unknown_key
from relief_ray.plugins.load import OWN_CODE, is_path, load
from relief_ray.records.run_folder import RUN_FILE, read_run
from relief_ray.studies.plan import target_config
from relief_ray.studies.presets import PRESETS
from relief_ray.studies.reasons import reasons_for
from relief_ray.studies.spec import Values
from relief_ray.support.errors import UserError, value_text
from relief_ray.support.files import write_atomic
from relief_ray.support.text import WIDTH, pip, typed, wrapped

# `relief-ray explain`: why a client trains what it trains; the reasons are ``relief_ray.studies.reasons``'.


def explain_command(run: Path, round_: int, client: int) -> Result:
    """Give the reasons for one client's task in one round.

    Raises:
        UserError: no such round or client, or a folder of several runs.
    """
    refuse_several(run, "explain", f"--round {round_} --client {client}")
    reasons = reasons_for(run, round_, client, width=WIDTH)
    return Result(reasons, reasons.facts)


# `relief-ray new`: writes a working file of a user's own (method, data set, backbone, grid), and its tests.

Kind = Literal["method", "dataset", "backbone", "grid"]
_TEMPLATES = "actors.templates"
# What to type next, after the tests; of a data set the first makes the files that the others read.
_NEXT: dict[Kind, tuple[str, ...]] = {
    "method": ("conformance {name}:{Name}", "run quick --strategies fedavg,{name}:{Name} --out runs/{name}"),
    "dataset": (
        "data synth {name}:{NAME} --out {name}-data",
        "export RELIEF_DATA=$PWD/{name}-data",
        "data describe {name}:{NAME}",
        "run quick --set data.name={name}:{NAME} "
        "--set 'fleet.types={{B: {{sensors: [acc, gyro]}}, C: {{sensors: [acc]}}}}'",
    ),
    "backbone": ("model describe quick --set backbone={name}:{Name}", "run quick --set backbone={name}:{Name}"),
    "grid": ("grid {name}.py --dry-run", "grid {name}.py"),
}
# Modules that libraries import where they are installed.
_OPTIONAL = {"cuda": "torch"}


def new_command(kind: Kind, name: str, out: Path) -> Result:
    """Write ``NAME.py`` and ``test_NAME.py``, and say what to type next.

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
    for template, path in paths.items():
        text = files(_TEMPLATES).joinpath(template).read_text(encoding="utf-8")
        write_atomic(path, Template(text).substitute(names).encode())
    # From the folder of the new files.
    commands = [] if out.resolve() == Path.cwd() else [f"cd {typed(out)}"]
    commands += [] if importlib.util.find_spec("pytest") else [f"python -m {pip('pytest')}"]
    commands += [f"python -m pytest test_{module}.py", *(_typed(command.format(**names)) for command in _NEXT[kind])]
    lines = [*(f"Written {path}" for path in paths.values()), "", "Next", *(f"  {command}" for command in commands)]
    facts = {"event": "new", "files": [str(path) for path in paths.values()], "next": commands}
    return Result(lines, facts)


def _typed(command: str) -> str:
    return command if command.startswith("export ") else f"relief-ray {command}"


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


def config_command(target: str | None, key: str | None) -> Result:
    """List the keys; ``target`` may be a preset, file, run folder, method or backbone of one's own, or already the key.

    Raises:
        UserError: no such preset, file, method or key.
    """
    is_key = key is None and target is not None and bool(_matching(target, all_keys()))
    target, wanted = (None, target) if is_key else (target, key)
    values: Values = {}
    head = ""
    if target is None:
        keys = _wanted(wanted, all_keys() if wanted else [key for key in all_keys() if not key.of], all_keys())
    elif ":" in target:
        keys, head = _wanted(wanted, known := _keys_at(target), known, target), "" if wanted else _charge(target)
    else:
        keys, values, head = _of_target(target, wanted)
    lines = [*([f"{head}\n"] if head else []), *(_lines(one, values) for one in keys)]
    if target is None and wanted is None:
        lines.append("\nMethods have keys too: relief-ray config strategy. Models: config backbone.")
    facts = ("key", "of", "type", "default", "meaning")
    rows = [
        {fact: getattr(one, fact) for fact in facts} | ({"value": values[one.key]} if one.key in values else {})
        for one in keys
    ]
    return Result(lines, rows)


def _matching(wanted: str, keys: Sequence[Key]) -> list[Key]:
    """Keys of this path, of this section, of this method or backbone, or of this last name."""
    exact = [k for k in keys if k.key == wanted or k.key.startswith(f"{wanted}.") or k.of == wanted]
    return exact or [k for k in keys if k.key.rpartition(".")[2] == wanted]


def _wanted(wanted: str | None, shown: Sequence[Key], known: Sequence[Key], target: str = "") -> list[Key]:
    """Those of the ``shown`` keys that are ``wanted``; all, where nothing is.

    Raises:
        UserError: it is none; the nearest of the ``known`` ones is named.
    """
    if wanted is None:
        return list(shown)
    if keys := _matching(wanted, shown):
        return keys
    place = f"config {target} {wanted}" if target else f"config {wanted}"
    if target and _matching(wanted, all_keys()):
        raise UserError(f"{place}: {target} has no such key; `relief-ray config {wanted}` shows what has it")
    command = f"config {target}" if ":" in target else "config"
    raise UserError(f"{place}: {unknown_key(wanted, known)}; `relief-ray {command}` lists all keys")


def _of_target(target: str, wanted: str | None) -> tuple[list[Key], Values, str]:
    """Keys and values by path of the first run of a preset, a file or a run folder, and a line that says so.

    Raises:
        UserError: it is none of these and no key either, or it has no key ``wanted``.
    """
    known, path = list(all_keys()), Path(target)
    is_file = path.exists() or path.suffix in (".yaml", ".yml", ".json")
    if wanted is None and target not in PRESETS and not is_file:
        presets = ", ".join(PRESETS)
        raise UserError(f"config {target}: no preset ({presets}), no file, and {unknown_key(target, known)}")
    is_record = (path / RUN_FILE).exists() and not OWN_CODE.get()
    if is_record:
        run = read_run(path)
        label, values = run.strategy, _values_of(run.config)
    else:
        config = target_config(target, [])
        label, values = config.label(), _values_of(config.model_dump(mode="json"))
    chosen = {section: str(values[section]) for section in CHOSEN}
    for section, name in chosen.items():
        if is_path(name):
            known += _unread(section, name, values) if is_record else _keys_at(name)
    read_by = {"", *chosen.values()}
    keys = _wanted(wanted, [key for key in known if key.of in read_by and key.key in values], known, target)
    return keys, values, f"{target}: values of its first run ({label}); {_MARK} differs from the default"


def _unread(section: str, name: str, values: Values) -> list[Key]:
    """Keys of a method or backbone whose code is not let in: a record has their values alone."""
    meaning = f"Of {name}, which is read with --own-code alone."
    return [
        Key(key=key, of=name, type="not known", default=value, meaning=meaning)
        for key, value in values.items()
        if key.startswith(f"{section}.") and key != f"{section}.name"
    ]


def _keys_at(path: str) -> Sequence[Key]:
    """Keys of the user's method or backbone at an import path."""
    return own_keys(_class_at(path), path)


def _class_at(path: str) -> type:
    found = load(path, "config")
    return found if isinstance(found, type) else type(found)


def _charge(path: str) -> str:
    """A line on what a user's own ``client_loss`` is charged; empty without one, and where its fields decide it."""
    kind = _class_at(path)
    flops = getattr(kind, "flops_per_value", None) if "client_loss" in vars(kind) else None
    if not isinstance(flops, int | float):
        return ""
    return f"client_loss is charged {flops:g} FLOPs per trained value and step (flops_per_value)"


def _values_of(settings: Mapping[str, JsonValue]) -> dict[str, object]:
    """Every value by its dotted key; a method and a backbone also by their names."""
    values: dict[str, object] = {}

    def walk(section: Values, prefix: str) -> None:
        for name, value in section.items():
            values[f"{prefix}{name}"] = value
            if isinstance(value, Mapping):
                walk(value, f"{prefix}{name}.")

    walk(settings, "")
    return values | {section: values.get(f"{section}.name", "") for section in CHOSEN}


def _lines(key: Key, values: Values) -> str:
    """A key's block: name and value, type and default, meaning."""
    value = values.get(key.key, key.default)
    mark = _MARK if key.key in values and value != key.default else " "
    reader = f"   ({key.of})" if key.of else ""
    facts = f"{key.type}; default {value_text(key.default)}. {key.meaning}"
    body = wrapped(facts, " " * 6, width=WIDTH - 6)
    return "\n".join([f"{mark} {key.key} = {value_text(value)}{reader}", *body])
