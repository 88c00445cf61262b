"""Keys of the configuration: what each one is, takes and means, read from pydantic's schema of the classes.

Messages about a wrong key or value, `relief-ray config` and docs/configuration.md are worded from them.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema

from relief_ray.support.errors import clipped, listed, shown, value_text

# The sections whose keys depend on which method and which backbone is chosen.
CHOSEN: Final = ("strategy", "backbone")
Schema = Mapping[str, Any]
# Names that other programs have for our keys, where no key's own name is like them.
_ELSEWHERE: Final[Mapping[str, tuple[str, ...]]] = {
    "algorithm": ("strategy",),
    "alpha": ("data.dirichlet_alpha",),
    "beta": ("training.momentum",),
    "client_lr": ("training.lr",),
    "dataset": ("data.name",),
    "fraction_fit": ("participation",),
    "gpu": ("training.device",),
    "learning_rate": ("training.lr", "server.lr"),
    "lrate": ("training.lr", "server.lr"),
    "local_epochs": ("training.epochs",),
    "method": ("strategy",),
    "model": ("backbone",),
    "num_workers": ("runtime.num_hosts",),
    "server_lr": ("server.lr",),
}
# How alike two names must be, 0 to 1: of keys in the section that was written, of two sections, and of any other words.
_BESIDE, _SECTION, _ANYWHERE = 0.6, 0.8, 0.75
_MOST = 2
# Nobody meant a key by anything longer; comparing it with all of them would take long.
_LONGEST = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class Key:
    """One key of the configuration."""

    key: str
    """Its dotted path, ``training.epochs``."""
    of: str
    """Method or backbone that reads it, ``relief``; empty where every run has the key."""
    type: str
    """What it holds, in words; empty where its class's schema says no more than any value."""
    default: object
    """Its value where none is given, as JSON has it."""
    meaning: str
    """What it decides, in a sentence."""
    schema: Schema = field(default_factory=dict, compare=False)
    """What it holds, as JSON Schema."""
    read_with: str = ""
    """The setting without which it is refused, ``training.optimizer=sgd``; empty: none."""

    def holds(self, path: str) -> bool:
        """Whether ``path`` is the key's or leads into its value, as ``fleet.types.C`` and ``data.subjects.0`` do."""
        return path == self.key or (bool(self.schema) and path.startswith(f"{self.key}."))

    @property
    def is_mapping(self) -> bool:
        """Whether its value has names of the user's own."""
        return _values_of(self.schema) is not None

    def options(self) -> tuple[object, ...]:
        """The values that it takes besides numbers, texts and others that are not listed."""
        return tuple(option for kind in _kinds(self.schema) for option in _options(kind))


class _AnyType(GenerateJsonSchema):
    """Leaves a type that has no JSON Schema without one, instead of failing."""

    def handle_invalid_for_json_schema(self, schema: object, error_info: str) -> dict[str, Any]:
        """Return the schema of any value."""
        return {}


def keys_of(model: type[BaseModel], prefix: str = "", of: str = "") -> Iterator[Key]:
    """Keys of a class and of the sections in it, in the order of their declaration; ``of``: as in ``Key``."""
    schema, switches = model.model_json_schema(schema_generator=_AnyType), dict(_switches(model, prefix))
    for key in _keys_of(schema, schema.get("$defs", {}), prefix, of):
        yield replace(key, read_with=switches.get(key.key, ""))


def _switches(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, str]]:
    """The keys that one value of another key reads, each with that setting."""
    for switch, needed, names in getattr(model, "read_with", ()):
        values = " or ".join(map(value_text, needed if isinstance(needed, tuple) else (needed,)))
        yield from ((f"{prefix}{name}", f"{prefix}{switch}={values}") for name in names)
    for name, part in model.model_fields.items():
        if isinstance(part.annotation, type) and issubclass(part.annotation, BaseModel):
            yield from _switches(part.annotation, f"{prefix}{name}.")


def _keys_of(section: Schema, sections: Mapping[str, Schema], prefix: str, of: str) -> Iterator[Key]:
    for name, value in section["properties"].items():
        path, default = f"{prefix}{name}", value.get("default")
        kinds = [sections[k["$ref"].rpartition("/")[2]] if "$ref" in k else k for k in _kinds(value)]
        if of and name == "name":
            continue  # the method's or backbone's own name: the key `strategy` or `backbone`
        if path in CHOSEN:
            yield Key(key=path, of="", type="name or import path", default=default["name"], meaning=_meaning(value))
        elif below := next((kind for kind in kinds if "properties" in kind), None):
            yield from _keys_of(below, sections, f"{path}.", of)
        else:
            schema = {"anyOf": kinds}
            yield Key(key=path, of=of, type=in_words(schema), default=default, meaning=_meaning(value), schema=schema)


def _meaning(schema: Schema) -> str:
    """A field's description as a sentence of plain text, without the doubled quotes of docstrings."""
    text = " ".join(re.sub(r"\bNone\b", "null", schema.get("description", "").replace("``", "`")).split())
    return text and f"{text[0].upper()}{text[1:].removesuffix('.')}."


def _kinds(schema: Schema) -> Sequence[Schema]:
    """The alternatives of a schema, or the schema itself if it has no alternatives."""
    kinds: Sequence[Schema] = schema.get("anyOf") or schema.get("allOf") or [schema]
    return kinds


def _options(schema: Schema) -> Sequence[object]:
    return [schema["const"]] if "const" in schema else schema.get("enum", [])


_NAMES: Final[Mapping[str, str]] = {
    "integer": "whole number",
    "number": "number",
    "boolean": "true or false",
    "string": "text",
    "null": "null",
}
_LIMITS: Final[Mapping[str, str]] = {
    "minimum": "at least {:g}",
    "exclusiveMinimum": "above {:g}",
    "maximum": "at most {:g}",
    "exclusiveMaximum": "below {:g}",
    "multipleOf": "a multiple of {:g}",
    "minLength": "not empty",
    "maxLength": "at most {} characters",
    "minItems": "not empty",
    "maxItems": "at most {} of them",
}


def in_words(schema: Schema) -> str:
    """``whole number, at least 1``; ``one of cpu, cuda, auto``; ``list of text``; ``number, above 0, or null``.

    Empty where the schema says something else, as for a date.
    """
    if (kinds := _kinds(schema)) != [schema]:
        texts = [in_words(kind) for kind in kinds]
        return ", or ".join(texts) if all(texts) else ""
    if options := _options(schema):
        return f"one of {', '.join(map(str, options))}"
    limits = [text.format(schema[name]) for name, text in _LIMITS.items() if name in schema]
    if "prefixItems" in schema:
        return f"list of {len(schema['prefixItems'])} {_plural(in_words(schema['prefixItems'][0]))}"
    if "items" in schema:
        kind = _plural(in_words(schema["items"]))
        return kind and ", ".join([f"list of {kind}", *limits])
    if values := _values_of(schema):
        kind = in_words(values)
        return kind and f"mapping from {in_words(schema.get('propertyNames', {})) or 'text'} to {kind}"
    kind = "" if {"format", "pattern"} & schema.keys() else _NAMES.get(schema.get("type", ""), "")
    return kind and ", ".join([kind, *limits])


def _values_of(schema: Schema) -> Schema | None:
    """Schema of a mapping's values; None if the schema is not a mapping or allows any value."""
    kinds = (kind.get("additionalProperties") for kind in _kinds(schema))
    return next((values for values in kinds if isinstance(values, Mapping)), None)


def _is_one(value: object, items: Schema) -> bool:
    """Whether a value is a valid list item, so that the user probably forgot the brackets."""
    if options := _options(items):
        return value in options
    fits = {"string": str, "integer": int}.get(items.get("type", "")) is type(value)
    return fits and not str(value).startswith("[")


def _plural(kind: str) -> str:
    return re.sub(r"^(whole number|number)", r"\1s", kind).removeprefix("one of ")


def expectation(key: Key, path: str, value: object) -> str:
    """What a key takes, and a value that fits, for messages about a wrong one; empty where that is unknown.

    ``path``: the key's, or one inside of its value; ``value``: the wrong one.
    """
    schema = key.schema
    for _ in range(path.removeprefix(key.key).count(".")):
        schema = _values_of(schema) or schema
    if not (kind := key.type if schema is key.schema else in_words(schema)):
        return ""
    article = "" if kind.startswith(("one of", "text", "true")) else "a "
    if any(_is_one(value, one["items"]) for one in _kinds(schema) if "items" in one):
        return f"expected {article}{kind}; write {path}={clipped(value_text([value]))}"
    is_shown = schema is key.schema and key.default is not None
    example = f", e.g. {key.key}={value_text(key.default)} (the default)" if is_shown else ""
    return f"expected {article}{kind}{example}"


def nearest_keys(path: str, keys: Iterable[Key]) -> list[str]:
    """Known keys that a user may have meant by an unknown one, the likeliest first.

    A name that some section has is meant there, or the name of another program; then the nearest of the section that
    was written counts, and last the nearest anywhere.
    """
    sections = {section: {"name": f"{section}.name"} for section in CHOSEN}
    sections[""] = {section: section for section in CHOSEN}
    names: dict[str, list[str]] = {word: list(meant) for word, meant in _ELSEWHERE.items()}
    for known in (key.key for key in keys):
        section, _, name = known.rpartition(".")
        sections[""].setdefault(section or name, section or name)
        sections.setdefault(section, {})[name] = known
        if known not in names.setdefault(name, []):
            names[name].append(known)
    parent, _, written = path.rpartition(".")
    name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", written).lower()
    if len(path) > _LONGEST or path in sections[""] or path in sections.get(parent, {}).values():
        return []  # what is known and refused is a key of another method
    beside = sections.get(next(iter(difflib.get_close_matches(parent, sections, 1, _SECTION)), ""), {})
    if name not in names and (near := difflib.get_close_matches(name, beside, 1, _BESIDE)):
        return [beside[near[0]]]
    meant = [known for near in difflib.get_close_matches(name, names, 1, _ANYWHERE) for known in names[near]]
    return ([known for known in meant if known in beside.values() and parent] or meant)[:_MOST]


def unknown_key(path: str, keys: Iterable[Key]) -> str:
    """Return ``unknown key 'lr' (did you mean 'training.lr' or 'server.lr'?)``."""
    known = list(keys)
    near = " or ".join(f"{p!r}{_of(p, path, known)}" for p in nearest_keys(path, known))
    return f"unknown key {shown(path)}" + (f" (did you mean {near}?)" if near else "")


def _of(meant: str, path: str, keys: Iterable[Key]) -> str:
    """Suffix such as `` of pilot`` for a suggested key that only some methods or backbones have.

    ``, with training.optimizer=sgd`` where a key of every run is refused without that.
    """
    found = [key for key in keys if key.key == meant]
    owners = [key.of for key in found if key.of]
    if owners:
        return f" of {listed(owners)}" if meant.partition(".")[0] != path.partition(".")[0] else ""
    return "".join(f", with {key.read_with}" for key in found if key.read_with)
