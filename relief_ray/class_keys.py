"""Keys of the configuration's classes: what each field takes, in words.

A user's own method or backbone is no part of the table of keys; messages about its fields are worded from its class.
"""

from __future__ import annotations

import re
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Final, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from relief_ray.config.keys import CHOSEN, Key

_NAMES: Final[Mapping[object, str]] = {
    int: "whole number", float: "number", bool: "true or false", str: "text", type(None): "null",
}  # fmt: skip
# Kinds of pydantic's faults that a type in words tells.
_TOLD: Final = re.compile(r"(greater|less)_than|literal_error|int_from_float|finite_number|\w+_(type|parsing)$")


def keys_of(model: type[BaseModel], prefix: str = "", of: str = "") -> Iterator[Key]:
    """Keys of a section and of those below it, in the order of their declaration."""
    for name, field in model.model_fields.items():
        path, section = f"{prefix}{name}", _section(field.annotation)
        if of and name == "name":
            continue  # the method's or backbone's own name: the key `strategy` or `backbone`
        if path in CHOSEN:
            default = getattr(field.get_default(call_default_factory=True), "name", None)
            yield Key(key=path, of="", type="name or import path", default=default, meaning=_meaning_of(field))
        elif section is not None:
            yield from keys_of(section, f"{path}.")
        else:
            default = None if field.is_required() else _plain(field.get_default(call_default_factory=True))
            kind = type_in_words(field.annotation, field.metadata)
            yield Key(key=path, of=of, type=kind, default=default, meaning=_meaning_of(field))


def own_words(kind: type[BaseModel], section: str) -> tuple[Key, ...]:
    """Keys of a user's own class for messages; without words for the type where there are none, as for a date."""
    keys = keys_of(kind, f"{section}.", kind.__name__)
    return tuple(replace(key, type="") if re.search(r"[<\[]", key.type) else key for key in keys)


def own_message(fault: ErrorDetails, fits: str) -> str:
    """Words on what a field of a user's own class expects: ``fits``, its type, or what its validator says.

    What these words do not tell, of a number that is no multiple say, follows as pydantic has it.
    """
    said = re.sub(r"^(Value error|Assertion failed), ", "", fault["msg"])
    if fault["type"] in ("value_error", "assertion_error") or not fits:
        return said
    if fault["type"] == "missing":
        return f"found no value, {fits}; set it"
    return fits if _TOLD.match(fault["type"]) else f"{fits}; {said[:1].lower()}{said[1:]}"


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
