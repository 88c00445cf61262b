"""Everything that a user can name, one item a line: what a change of the code must not change by the way.

``python -m tests.guards.surface --write`` writes ``surface.txt`` anew; without it, the differences are printed. In it
are the command line (commands, arguments, options, defaults, exit codes), keys of the configuration, names of methods,
presets, grids and environment variables, the public names of ``relief_ray`` and ``actors`` with the signatures, fields
and methods of what they name, and every field of the files that a run leaves behind.
"""

from __future__ import annotations

import argparse
import difflib
import inspect
import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import typer
from pydantic import BaseModel
from typer.testing import CliRunner

import actors
import relief_ray as rr
from actors.cli.main import app
from actors.terminal.exit_codes import EXIT_CODES
from relief_ray.conformance.trial import Conformance
from relief_ray.records import checkpoint
from relief_ray.records.cells import PlanFile
from relief_ray.records.committed import Committed
from relief_ray.records.schema import RoundRecord, RunRecord
from relief_ray.records.sync.mlflow import SyncState
from relief_ray.report.statistics import Paired
from relief_ray.studies.describe import Methods
from relief_ray.studies.presets import PRESETS
from relief_ray.studies.reasons import Reasons
from relief_ray.studies.study import Verdicts
from tune_configs.registry import GRIDS

FILE = Path(__file__).with_name("surface.txt")
ROOT = Path(__file__).parents[2]
OURS = ("relief_ray", "actors", "tune_configs")
# What public functions and methods return beside what is public by name.
RETURNED = (Conformance, Methods, Paired, Reasons, Verdicts)
# What is read from and written to each file of a run, a study or committed results.
STORED: dict[str, type] = {
    "run.json": RunRecord,
    "rounds.jsonl": RoundRecord,
    "plan.json": PlanFile,
    "checkpoints/*/manifest.json": checkpoint._Manifest,
    "cells.json": Committed,
    "sync.json": SyncState,
}


def lines() -> list[str]:
    """All items, sorted."""
    return sorted({*commands(), *names(), *keys(), *public(), *stored()})


def commands() -> Iterator[str]:
    """Commands, their arguments and options, and the exit codes."""
    yield from _commands(typer.main.get_command(app), "relief-ray")
    yield from (f"exit code {code}: {meaning}" for code, meaning in EXIT_CODES)


def _commands(command: Any, path: str) -> Iterator[str]:
    """``command``: one of click's, which newer versions of typer bring themselves."""
    for name, inner in getattr(command, "commands", {}).items():
        yield from _commands(inner, f"{path} {name}")
    yield f"command {path}" + (" (hidden)" if command.hidden else "")
    types = {} if command.callback is None else get_type_hints(inspect.unwrap(command.callback))
    for number, parameter in enumerate(command.params, start=1):
        yield f"command {path} {_parameter(parameter, types.get(parameter.name), number)}"


def _parameter(parameter: Any, kind: Any, number: int) -> str:
    """Names (an argument's place), what stands for the value in the help, type, limits, default."""
    is_option = parameter.opts[0].startswith("-")
    name = "/".join([*parameter.opts, *parameter.secondary_opts]) if is_option else f"[{number}]"
    limits = [getattr(owner, end, None) for end in ("min", "max") for owner in (getattr(parameter, "type", parameter),)]
    words = [name, parameter.metavar or "", type_text(kind), "" if limits == [None, None] else "{}..{}".format(*limits)]
    default = " required" if parameter.required else f" = {parameter.default!r}"
    return " ".join(word for word in words if word) + default + (" (hidden)" if parameter.hidden else "")


def names() -> Iterator[str]:
    """Names of methods, presets and grids, and variables of the environment."""
    yield from (f"method {method.name}: {method.title} ({method.family})" for method in rr.methods())
    yield from (f"preset {name}" for name in PRESETS)
    yield from (f"grid {name}" for name in GRIDS)
    texts = (path.read_text(encoding="utf-8") for package in OURS for path in (ROOT / package).rglob("*.py"))
    yield from (f"environment {name}" for text in texts for name in re.findall(r"\bRELIEF_[A-Z_]+\b", text))


def keys() -> Iterator[str]:
    """Keys of the configuration: of every run, and of each method and backbone."""
    for words in ([], ["strategy"], ["backbone"]):
        for key in json.loads(CliRunner().invoke(app, ["config", *words, "--json"]).stdout):
            of = f" of {key['of']}" if key["of"] else ""
            yield f"key {key['key']}{of}: {key['type']} = {json.dumps(key['default'], ensure_ascii=False)}"


def public() -> Iterator[str]:
    """Public names of the packages, and what can be named of them."""
    for short, package in (("rr", rr), ("actors", actors)):
        for name in package.__all__:
            yield from _named(f"{short}.{name}", getattr(package, name))
    for kind in RETURNED:
        yield from _named(f"returned {kind.__name__}", kind)


def _named(path: str, value: object) -> Iterator[str]:
    if isinstance(value, type):
        yield f"{path}: class{_bases(value)}"
        if not is_dataclass(value) and any("__init__" in vars(base) for base in _ours(value)):
            yield f"{path}{_signature(value)}"
        yield from (f"{path}.{name}: {text}" for name, text in _fields(value).items())
        yield from _methods(path, value)
    elif callable(value):
        yield f"{path}{_signature(value)}"
    else:
        yield f"{path}: {type(value).__name__} = {_shown(value)}"


def _bases(kind: type) -> str:
    """Classes that it derives from."""
    bases = [
        base.__name__ for base in kind.__mro__[1:] if base is not object and base.__module__ not in ("typing", "abc")
    ]
    return f" of {', '.join(bases)}" if bases else ""


def _fields(kind: type) -> dict[str, str]:
    """Fields and class variables with type and default, those of its bases of ours included."""
    stated = {name: text for name, _, text in _own_fields(kind)}
    for base in _ours(kind):
        for name, annotation in inspect.get_annotations(base).items():
            if not name.startswith("_"):
                stated.setdefault(name, _with_default(annotation, vars(base).get(name, MISSING), None))
    return stated


def _own_fields(kind: Any) -> list[tuple[str, Any, str]]:
    """Name, type, and type with default of every field of a model or dataclass; none of any other class."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        rows = [(name, field.annotation, field) for name, field in kind.model_fields.items()]
    else:
        rows = [(field.name, field.type, field) for field in fields(kind)] if is_dataclass(kind) else []
    return [(name, type_, _with_default(type_, field.default, field)) for name, type_, field in rows]


def _with_default(annotation: object, default: object, field: Any) -> str:
    factory = getattr(field, "default_factory", None)
    if factory not in (None, MISSING):
        return f"{type_text(annotation)} = {getattr(factory, '__name__', 'made')}()"
    is_needed = default is MISSING or type(default).__name__ in ("PydanticUndefinedType", "member_descriptor")
    return type_text(annotation) + ("" if is_needed else f" = {_shown(default)}")


def _ours(kind: type) -> Iterator[type]:
    return (base for base in kind.__mro__ if base.__module__.partition(".")[0] in OURS)


def _methods(path: str, kind: type) -> Iterator[str]:
    seen = set()
    for base in _ours(kind):
        for name, value in vars(base).items():
            if name.startswith("_") or name in seen:
                continue
            seen.add(name)
            function = getattr(value, "func", None) or getattr(value, "fget", None) or getattr(value, "__func__", value)
            if type(value).__name__ in ("property", "cached_property"):
                yield f"{path}.{name}: {type_text(inspect.signature(function).return_annotation)} (property)"
            elif inspect.isfunction(function):
                kinds = {"classmethod": " (of the class)", "staticmethod": " (static)"}
                yield f"{path}.{name}{_signature(function)}{kinds.get(type(value).__name__, '')}"


class _Text:
    """Text that stands in a signature as it is."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def _signature(function: Any) -> str:
    """Signature of a function, or of a class's constructor; types as they are written in its source."""
    signature = inspect.signature(function)
    empty = inspect.Signature.empty

    def text(value: object, form: Any) -> object:
        return value if value is empty else _Text(form(value))

    parameters = [
        p.replace(annotation=text(p.annotation, type_text), default=text(p.default, _shown))
        for p in signature.parameters.values()
    ]
    returned = text(signature.return_annotation, type_text)
    return str(signature.replace(parameters=parameters, return_annotation=returned))


def _shown(value: object) -> str:
    """A value without addresses, names of functions and modules of ours, which may be renamed.

    Of a section of the configuration, what is other than its own defaults: these have lines of their own.
    """
    if isinstance(value, BaseModel):
        changed = value.model_dump(exclude_defaults=True).items()
        return f"{type(value).__name__}({', '.join(f'{name}={other!r}' for name, other in changed)})"
    text = re.sub(r"<function .*?>", "<function>", re.sub(r" at 0x[0-9a-f]+", "", repr(value)))
    return re.sub(rf"\b({'|'.join(OURS)})(\.\w+)*\.(?=\w)", "", text)


def type_text(kind: Any) -> str:
    """A type in words that do not depend on Python's version, nor on the modules that its parts are in."""
    origin, arguments = get_origin(kind), get_args(kind)
    if isinstance(kind, str):
        return kind
    if kind in (None, NoneType, ...):
        return "..." if kind is ... else "None"
    if origin is Annotated:
        return type_text(arguments[0])
    if origin in (Union, UnionType):
        return " | ".join(map(type_text, arguments))
    if origin is Literal:
        return f"Literal[{', '.join(map(repr, arguments))}]"
    if isinstance(kind, list):
        return f"[{', '.join(map(type_text, kind))}]"
    name = str(getattr(origin or kind, "__name__", kind))
    return f"{name}[{', '.join(map(type_text, arguments))}]" if arguments else name


def stored() -> Iterator[str]:
    """Fields of the files, and of what is in them, by path: ``[]`` for each item of a list, ``*`` for any key."""
    for file, kind in STORED.items():
        yield from (f"file {file}: {line}" for line in _stored(kind, ""))


def _stored(kind: Any, path: str) -> Iterator[str]:
    """Fields of a model or dataclass and of all that its fields hold; of a container, those of its items."""
    arguments = [inner for inner in get_args(kind) if inner is not ...]
    if rows := _own_fields(kind):
        hints = get_type_hints(kind)
        for name, _, text in rows:
            yield f"{path}{name}: {text}"
            yield from _stored(hints[name], f"{path}{name}.")
    elif get_origin(kind) in (Union, UnionType):
        yield from (line for inner in arguments for line in _stored(inner, path))
    elif get_origin(kind) in (tuple, list, dict, Mapping):
        yield from _stored(arguments[-1], f"{path.removesuffix('.')}{'[]' if len(arguments) == 1 else '.*'}.")


def differences(known: list[str], now: list[str]) -> list[str]:
    """Lines that are gone, with ``-``, and lines that are new, with ``+``."""
    return [
        line for line in difflib.unified_diff(known, now, n=0, lineterm="") if line[:3] not in ("---", "+++", "@@ ")
    ]


def main() -> int:
    """Write the file, or print what differs from it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the file anew")
    now = lines()
    if parser.parse_args().write:
        FILE.write_text("\n".join(now) + "\n", encoding="utf-8")
        return 0
    changed = differences(FILE.read_text(encoding="utf-8").splitlines(), now)
    print("\n".join(changed) or f"{len(now)} items: equal")
    return min(len(changed), 1)


if __name__ == "__main__":
    sys.exit(main())
