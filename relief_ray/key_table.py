"""The table of all configuration keys, taken from the classes, and the page that shows it.

``python -m relief_ray.key_table`` writes ``keys.json`` and, in a checkout, ``docs/configuration.md``.
"""

from __future__ import annotations

import re
import types
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Final, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from relief_ray.config import ExperimentConfig
from relief_ray.errors import UserError
from relief_ray.keys import CHOSEN, Key, value_text, write_keys
from relief_ray.models.backbone import BackboneConfig
from relief_ray.models.registry import BACKBONES
from relief_ray.plugins import fields_read
from relief_ray.strategies import PRESETS
from relief_ray.strategies.common import StrategyConfig

PAGE: Final = Path(__file__).parents[1] / "docs" / "configuration.md"
_HEAD: Final = """# Configuration

Every key of a run, with its type, its default and its meaning. `relief-ray config` prints the same table,
`relief-ray config demo` a preset's values, `relief-ray config demo training` one section of them. A key is changed by
`--set training.epochs=2`, in a YAML file, or by `rr.run("demo", set={"training.epochs": 2})` in Python.

This page is generated: `python -m relief_ray.key_table` writes it from the classes.
"""
_NAMES: Final[Mapping[object, str]] = {
    int: "whole number", float: "number", bool: "true or false", str: "text", type(None): "null",
}  # fmt: skip


def keys_of_all() -> tuple[Key, ...]:
    """Every key of the configuration: the common ones, then those of every method and every backbone."""
    common = list(_keys_of(ExperimentConfig))
    methods = {config.build().name: type(config) for config in PRESETS.values()}
    for section, classes in zip(CHOSEN, (methods, BACKBONES), strict=True):
        for name, kind in classes.items():
            common += _keys_of(kind, f"{section}.", name)
    return tuple(common)


def own_keys(kind: type, path: str) -> tuple[Key, ...]:
    """Keys of a user's method or backbone, the class at the import path ``path``, without inherited ones unread.

    Raises:
        UserError: it is neither.
    """
    section = next((name for name, base in _BASES.items() if issubclass(kind, base)), None)
    if section is None:
        raise UserError(
            f"{path}: found a {kind.__name__}, which has no keys of a configuration; expected a method "
            "(StrategyConfig) or a backbone (BackboneConfig)"
        )
    read = fields_read(kind, _BASES[section])
    keys = _keys_of(kind, f"{section}.", path)
    return tuple(key for key in keys if key.key.split(".")[1] in read)


_BASES: Final[Mapping[str, type[BaseModel]]] = {"strategy": StrategyConfig, "backbone": BackboneConfig}


def _keys_of(model: type[BaseModel], prefix: str = "", of: str = "") -> Iterator[Key]:
    """Keys of a section and of those below it, in the order of their declaration."""
    for name, field in model.model_fields.items():
        path, section = f"{prefix}{name}", _section(field.annotation)
        if of and name == "name":
            continue  # the method's or backbone's own name: the key `strategy` or `backbone`
        if path in CHOSEN:
            default = getattr(field.get_default(call_default_factory=True), "name", None)
            yield Key(key=path, of="", type="name or import path", default=default, meaning=_meaning_of(field))
        elif section is not None:
            yield from _keys_of(section, f"{path}.")
        else:
            default = None if field.is_required() else _plain(field.get_default(call_default_factory=True))
            kind = type_in_words(field.annotation, field.metadata)
            yield Key(key=path, of=of, type=kind, default=default, meaning=_meaning_of(field))


def _section(annotation: object) -> type[BaseModel] | None:
    kinds = get_args(annotation) or (annotation,)
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), None)


def _plain(value: object) -> object:
    """A default as JSON has it: a tuple is a list."""
    if isinstance(value, tuple | list):
        return [_plain(v) for v in value]
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    return value


def _meaning_of(field: FieldInfo) -> str:
    """A field's description as a sentence of plain text, without the doubled quotes of docstrings."""
    text = re.sub(r"\bNone\b", "null", (field.description or "").replace("``", "`")).strip().removesuffix(".")
    return text[:1].upper() + text[1:] + "." if text else ""


def type_in_words(annotation: object, bounds: Iterable[object] = ()) -> str:
    """``whole number, at least 1``; ``one of cpu, cuda, auto``; ``list of text``; ``number above 0, or null``."""
    origin, parts = get_origin(annotation), get_args(annotation)
    limits = [limit for limit in map(_limit, bounds) if limit]
    if origin is Annotated:
        return type_in_words(parts[0], parts[1:])
    if origin is Literal:
        return "one of " + ", ".join(str(part) for part in parts)
    if origin in (Union, types.UnionType):
        words = [type_in_words(part, bounds if part is not type(None) else ()) for part in parts]
        return ", or ".join(words)
    if origin is tuple:
        if parts[-1] is Ellipsis:
            return ", ".join([f"list of {_plural(type_in_words(parts[0]))}", *limits])
        return f"list of {len(parts)} {_plural(type_in_words(parts[0]))}"
    if origin is dict:
        return f"mapping from {type_in_words(parts[0])} to {type_in_words(parts[1])}"
    return ", ".join([_NAMES.get(annotation, str(annotation)), *limits])


def _plural(kind: str) -> str:
    return re.sub(r"^(whole number|number)", r"\1s", kind).removeprefix("one of ")


def _limit(bound: object) -> str:
    """One of pydantic's bounds in words: ``at least 1``; empty where it is something else."""
    if getattr(bound, "min_length", None):
        return "not empty"
    words = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
    texts = (f"{text} {getattr(bound, name):g}" for name, text in words.items() if hasattr(bound, name))
    return next(texts, "")


def page(keys: Iterable[Key]) -> str:
    """The page ``docs/configuration.md``: a table per section."""
    rows = list(keys)
    text = [_HEAD]
    for title, section in _sections(rows).items():
        text += [f"## {title}\n", "| key | type | default | meaning |", "|---|---|---|---|"]
        text += [
            f"| `{k.key}` | {_cell(k.type)} | `{_cell(value_text(k.default))}` | {_cell(k.meaning)} |" for k in section
        ]
        text.append("")
    return "\n".join(text)


def _sections(keys: Iterable[Key]) -> dict[str, list[Key]]:
    """Keys by heading: ``Run`` for those of no section, ``strategy: relief`` for a method's."""
    sections: dict[str, list[Key]] = {}
    for key in keys:
        head = key.key.partition(".")[0] if "." in key.key else "The run itself"
        sections.setdefault(f"{head}: {key.of}" if key.of else head, []).append(key)
    return sections


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main() -> None:
    """Write the table and, where there is one, the page."""
    keys = keys_of_all()
    write_keys(keys)
    if PAGE.parent.is_dir():
        PAGE.write_text(page(keys), encoding="utf-8")


if __name__ == "__main__":
    main()
