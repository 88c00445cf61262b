"""The keys of the configuration as a table: what each is, and which one a user meant who wrote another.

The table is a file, ``keys.json``, so that a wrong key is answered without loading torch and every method. It is
written from the configuration's classes by ``python -m relief_ray.config.table``; a test compares the two.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Final, Literal, Optional, Union, get_args, get_origin

from pydantic import BaseModel, Field, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from relief_ray.plugins.load import is_path
from relief_ray.support.errors import UserError, clipped, shown
from relief_ray.support.user_yaml import read_mapping, read_setting

KEYS_FILE: Final = Path(__file__).with_name("keys.json")
# The sections whose keys depend on which method and which backbone is chosen.
CHOSEN: Final = ("strategy", "backbone")
# Names that other programs have for ours, where neither our name nor its meaning has their words.
_ELSEWHERE: Final[Mapping[str, str]] = {
    "algorithm": "strategy", "method": "strategy", "dataset": "data.name", "model": "backbone",
    "fraction_fit": "participation", "gpu": "training.device", "worker": "runtime.num_hosts",
}  # fmt: skip
# How alike two names must be, 0 to 1: of keys in the section that was written, and of any others.
_BESIDE, _ELSEWHERE_ALIKE = 0.6, 0.7
# A key of another section must be so much more alike than one of the section that was written.
_FARTHER = 0.1
_MOST = 2
# Words that tell nothing of a key, and the length from which a word may be a plural.
_IDLE: Final = frozenset(("a", "an", "n", "num", "number", "of", "the"))
_PLURAL = 4
# How alike a misspelt word must be to one of the table, its least length (`trim` is not `tries`), and how many words at
# the beginning of a meaning name its key.
_MISSPELT, _SHORTEST, _FIRST = 0.75, 5, 4
# Nobody meant a key by anything longer; comparing it with all of them would take long.
_LONGEST = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class Key:
    """One key of the configuration.

    Attributes:
        key: its dotted path, ``training.epochs``.
        of: method or backbone that reads it, ``relief``; empty where every run has the key.
        type: what it holds, in words; empty where a user's own class says that otherwise.
        default: its value where none is given, as JSON has it.
        meaning: what it decides, in a sentence.
    """

    key: str
    of: str
    type: str
    default: object
    meaning: str


def write_keys(keys: Iterable[Key], path: Path = KEYS_FILE) -> None:
    """Write the table as JSON, a key a line."""
    lines = ",\n".join(json.dumps(asdict(key), ensure_ascii=False) for key in keys)
    path.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


@cache
def all_keys() -> tuple[Key, ...]:
    """The table, in the configuration's order."""
    rows = json.loads(KEYS_FILE.read_text(encoding="utf-8"))
    return tuple(Key(**{field.name: row[field.name] for field in fields(Key)}) for row in rows)


def _key_at(path: str, of: str | None = None, keys: Sequence[Key] = ()) -> Key | None:
    """The key of a path, or the mapping that the path leads into (``fleet.owned`` of ``fleet.owned.C``).

    ``of``: the method or backbone whose key it is, where several have one of this name; ``keys``: not the table's.
    """
    known = keys or all_keys()
    fits = [key for key in known if path == key.key or (path.startswith(f"{key.key}.") and _is_mapping(key))]
    return next((key for key in fits if key.of == of), next(iter(fits), None))


def whole_key(path: str, keys: Sequence[Key] = ()) -> str:
    """The key of a list that the path leads into: ``data.subjects`` of ``data.subjects.0``; else the path itself.

    ``keys``: in place of the table.
    """
    parts = path.split(".")
    above = (".".join(parts[:i]) for i in range(1, len(parts)))
    known = {key.key for key in keys or all_keys() if not _is_mapping(key)}
    return next((key for key in above if key in known - set(CHOSEN)), path)


def _is_mapping(key: Key) -> bool:
    return key.type.startswith("mapping")


def suggested(path: str, of: str | None = None) -> list[str]:
    """Return the paths that a user may have meant, the likeliest first; ``of``: only this method's or backbone's.

    Keys are compared by their names and by what they mean, those of the section that was written first. Where none is
    like it, misspelt words are corrected: ``learnig_rate`` is read as ``learning_rate``, which means ``lr``.
    """
    return _meant(path, of) or _meant(_corrected(path), of)


def _meant(path: str, of: str | None) -> list[str]:
    keys = {key.key: key.meaning for key in all_keys() if of is None or key.of in ("", of)}
    sections = [".".join(parts[:i]) for parts in (p.split(".") for p in keys) for i in range(1, len(parts))]
    known = list(dict.fromkeys([*keys, *sections, *(f"{section}.name" for section in CHOSEN)]))
    if len(path) > _LONGEST or path in known:  # what is known and refused is a key of another method
        return []
    parent, _, name = path.rpartition(".")
    words = _words(name)
    if (theirs := "_".join(words)) in _ELSEWHERE:
        return [_ELSEWHERE[theirs]]
    usual = [p for p in known if p.partition(".")[0] not in CHOSEN or "." not in p]
    beside = [p for p in known if p.rpartition(".")[0] == parent]
    others = [] if parent in CHOSEN else usual
    named, same = _sharing(name, beside), [p for p in known if words and _words(_name(p)) == words]
    same.sort(key=lambda p: p not in usual)  # first those that every run has
    near = [] if parent else [p for p in usual if len(words) > 1 and _words(p) == words]
    near = near or list(dict.fromkeys([*named[:1], *same]))
    if not near and parent and (parent not in CHOSEN or of):
        near = _telling(name, {p: keys.get(p, "") for p in beside})
    near = near or _sharing(name, others)[:1] or _alike(name, beside, others)
    return (near or _telling(name, {p: keys.get(p, "") for p in usual}))[:_MOST]


def _corrected(path: str) -> str:
    """The path with each unknown word of its name as the likest word by which keys are named or explained."""
    parent, sign, name = path.rpartition(".")
    if len(path) > _LONGEST:
        return path
    texts = [text for key in all_keys() for text in (_words(_name(key.key)), _words(key.meaning)[:_FIRST])]
    known = {word for words in (*texts, *map(_words, _ELSEWHERE)) for word in words}
    words = _words(name)
    for i, word in enumerate(words):
        if word not in known and len(word) >= _SHORTEST:
            words[i] = next(iter(difflib.get_close_matches(word, known, 1, _MISSPELT)), word)
    return f"{parent}{sign}{'_'.join(words)}"


def _name(path: str) -> str:
    return path.rpartition(".")[2]


def _words(text: str) -> list[str]:
    """Words of a key or a sentence, without plurals and without those that say nothing of a key."""
    words = re.findall(r"[a-z0-9]+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", text).lower())
    return [word if len(word) < _PLURAL else word.rstrip("s") for word in words if word not in _IDLE]


def _sharing(name: str, paths: Iterable[str]) -> list[str]:
    """The paths whose name has all words of ``name``, or its last one and no others; the likest first."""
    wanted = _words(name)
    owns = ((p, set(_words(_name(p)))) for p in paths if wanted)
    fits = [p for p, own in owns if own.issuperset(wanted) or (wanted[-1] in own and own.issubset(wanted))]
    return sorted(fits, key=lambda p: -_likeness(name, _name(p)))


def _telling(name: str, meanings: Mapping[str, str]) -> list[str]:
    """The paths that have all words of ``name`` in their own name or at the beginning of their meaning."""
    wanted = _words(name)
    said = {path: {*_words(_name(path)), *_words(text)[: len(wanted)]} for path, text in meanings.items()}
    return [path for path in meanings if wanted and said[path].issuperset(wanted)]


def _alike(name: str, beside: Iterable[str], others: Iterable[str]) -> list[str]:
    """The path whose name has nearly the same letters: one beside, or one elsewhere that is much more alike."""
    near = {p: likeness for p in beside if (likeness := _likeness(name, _name(p))) >= _BESIDE}
    least = max(max(near.values(), default=0.0) + _FARTHER, _ELSEWHERE_ALIKE)
    far = {p: likeness for p in others if (likeness := _likeness(name, _name(p))) > least}
    chosen = far or near
    return sorted(chosen, key=lambda p: -chosen[p])[:1]


def _likeness(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one, other).ratio()


def unknown_key(path: str, of: str | None = None) -> str:
    """Return ``unknown key 'lr' (did you mean 'training.lr' or 'server.lr'?)``."""
    near = " or ".join(repr(p) for p in suggested(path, of))
    return f"unknown key {shown(path)}" + (f" (did you mean {near}?)" if near else "")


def refuse_unknown(settings: Iterable[str], *, further: Iterable[str] = ()) -> None:
    """Check the keys of ``PATH=VALUE`` settings against the table, without loading the library.

    Settings without ``=`` are left to the configuration, and so are keys of ``strategy`` and ``backbone``, which may be
    a user's own. ``further``: keys that the command has beside the configuration's.

    Raises:
        UserError: there is no such key; the nearest is named.
    """
    accepted = {key.key for key in all_keys()} | set(further)
    sections = {path.rpartition(".")[0] for path in accepted} - {""}
    for setting in settings:
        path, sign, value = setting.partition("=")
        if not sign or not path or path in accepted | sections or path.partition(".")[0] in CHOSEN:
            continue
        if _key_at(path) is not None:
            continue
        near = suggested(path)
        fix = f"write --set {near[0]}={value}" if near else "remove or rename it"
        raise UserError(
            f"--set {clipped(setting)}: {unknown_key(path)}; {clipped(fix)}. `relief-ray config` lists all keys"
        )


def expectation(path: str, value: object, of: str | None = None, keys: Sequence[Key] = ()) -> str:
    """Return what a key takes, and a value that fits, for messages about a wrong value; empty where that is unknown.

    ``keys``: those of a user's own method or backbone, in place of the table.
    """
    key = _key_at(path, of, keys)
    if key is None or not key.type:
        return ""
    is_inside = path != key.key
    kind = key.type.partition(" to ")[2] if is_inside else key.type
    article = "" if kind.startswith(("one of", "text", "true")) else "a "
    if kind.startswith("list of") and isinstance(value, str | int | float):
        return f"expected {article}{kind}; write {path}=[{clipped(str(value))}]"
    example = "" if is_inside or key.default is None else f", e.g. {path}={value_text(key.default)} (the default)"
    return f"expected {article}{kind}{example}"


def value_text(value: object) -> str:
    """A value as YAML on a line: what `--set` and configuration files take."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(value_text, value))}]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{k}: {value_text(v)}" for k, v in value.items()) + "}"
    return "null" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


# Keys of the configuration's classes: what each field takes, in words.
#
# A user's own method or backbone is no part of the table of keys; messages about its fields are worded from its class.


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
    text = " ".join(re.sub(r"\bNone\b", "null", (field.description or "").replace("``", "`")).split()).removesuffix(".")
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


# Wrong values and wrong keys of a method or a backbone, answered from the table of keys before the library is loaded.
#
# Only what the table alone decides is refused here; the configuration's classes judge everything else later. A section
# whose class is a user's own is left to that class.


_KINDS: Final[Mapping[str, type]] = {"whole number": int, "number": float, "true or false": bool, "text": str}
_BOUNDS: Final[Mapping[str, str]] = {"at least ": "ge", "above ": "gt", "at most ": "le", "below ": "lt"}
_SUFFIXES: Final = (".yaml", ".yml", ".json")


def whole_first(settings: Iterable[str]) -> list[str]:
    """The settings with those that replace a section before those of keys inside it, otherwise in their order.

    ``strategy.gamma=1`` followed by ``strategy=relief`` would lose its value.
    """
    listed = list(settings)
    paths = [setting.partition("=")[0] for setting in listed]
    wholes = {path for path in paths if any(other.startswith(f"{path}.") for other in paths)}
    first = sorted((i for i, path in enumerate(paths) if path in wholes), key=lambda i: paths[i].count("."))
    return [listed[i] for i in first] + [setting for setting, p in zip(listed, paths, strict=True) if p not in wholes]


def refuse_wrong_values(settings: Iterable[str], own: Iterable[str] = CHOSEN) -> None:
    """Check the values of ``PATH=VALUE`` settings, and the keys of sections that are not in ``own``.

    Raises:
        UserError: no method or backbone has such a key, or the key does not take the value.
    """
    skipped = set(own)
    for setting in settings:
        path, sign, text = setting.partition("=")
        section = path.partition(".")[0]
        if not sign or section in skipped:
            continue
        where = f"--set {clipped(setting)}"
        value = read_setting(text, where)
        if section in CHOSEN:
            _refuse_unknown(where, path)
        _refuse_value(where, path, value)


def refuse_wrong_run(target: str, settings: Sequence[str], strategies: str | None) -> None:
    """Check what `relief-ray run` was given: its file, if ``target`` is one, and the settings.

    Raises:
        UserError: a key or a value is wrong.
    """
    values = _values_in(Path(target))
    chosen = [*settings, *(f"strategy={name}" for name in (strategies or "").split(","))]
    own = {section for section in CHOSEN if _is_own(section, values, chosen)}
    for path, value in _leaves(values):
        if path.partition(".")[0] not in own:
            _refuse_unknown(target, path)
            _refuse_value(f"{target}: {path} = {shown(value)}", path, value)
    refuse_wrong_values(settings, own)


def _is_own(section: str, values: Mapping[str, object], settings: Iterable[str]) -> bool:
    """Whether a user's own class may be chosen for the section: a name with a colon."""
    value = values.get(section)
    named = [value.get("name") if isinstance(value, Mapping) else value]
    named += [s.partition("=")[2] for s in settings if s.partition("=")[0] in (section, f"{section}.name")]
    return any(map(is_path, named))


def _values_in(path: Path) -> Mapping[str, object]:
    """Values of a configuration file; empty where there is none.

    Raises:
        UserError: it cannot be read as one.
    """
    return read_mapping(path) if path.suffix in _SUFFIXES and os.path.isfile(path) else {}


def _leaves(values: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Dotted paths and values of nested values; a mapping that is the value of a key counts as one."""
    mappings = {key.key for key in all_keys() if key.type.startswith("mapping")}
    for name, value in values.items():
        path = f"{prefix}{name}"
        if isinstance(value, Mapping) and path not in mappings:
            yield from _leaves(value, f"{path}.")
        else:
            yield path, value


def _refuse_unknown(where: str, path: str) -> None:
    """Check that there is such a key.

    Raises:
        UserError: no section, method or backbone has it; the nearest is named.
    """
    section = path.partition(".")[0]
    known = {key.key for key in all_keys()} | {key.key.rpartition(".")[0] for key in all_keys()}
    if path not in known and path not in {f"{name}.name" for name in CHOSEN} and not _is_inside(path):
        near = suggested(path)
        fix = f"write {near[0]}" if near else f"expected a key that a {_noun(section)} has"
        raise UserError(f"{where}: {unknown_key(path)}; {fix}. `relief-ray config` lists all keys")


def _refuse_value(where: str, path: str, value: object) -> None:
    """Check a value by the table.

    Raises:
        UserError: none of the keys that bear the name takes it.
    """
    keys = [key for key in all_keys() if key.key == path]
    if keys and all(_is_wrong(key, value) for key in keys):
        raise UserError(f"{where}: {expectation(path, value, keys[0].of)}")


def _noun(section: str) -> str:
    return {"strategy": "method", "backbone": "backbone"}.get(section, "configuration")


def _is_inside(path: str) -> bool:
    """Whether the path leads into a value that is a mapping: ``fleet.owned.C``."""
    return any(path.startswith(f"{key.key}.") for key in all_keys() if key.type.startswith("mapping"))


def _is_wrong(key: Key, value: object) -> bool:
    """Whether the class would surely refuse the value; False where the type in words is not decisive."""
    adapter = _adapter(key.type)
    if adapter is None:
        return False
    try:
        adapter.validate_python(value)
    except ValidationError:
        return True
    return False


@cache
def _adapter(kind: str) -> TypeAdapter[object] | None:
    """The type that words describe, as the configuration's classes check it; None for lists, mappings and others."""
    base, *rest = kind.split(", ")
    if is_optional := rest[-1:] == ["or null"]:
        rest = rest[:-1]
    annotation: object
    if base.startswith("one of "):
        options = (base.removeprefix("one of "), *rest)
        if any(option.startswith("or ") or not option[:1].isalpha() for option in options):
            return None
        annotation = Literal[options]
    else:
        bounds = [(name, text.removeprefix(words)) for text in rest for words, name in _BOUNDS.items()
                  if text.startswith(words)]  # fmt: skip
        if base not in _KINDS or len(bounds) != len(rest):
            return None
        limits: dict[str, float] = {name: float(number) for name, number in bounds}
        finite: dict[str, bool] = {"allow_inf_nan": False} if base == "number" else {}
        annotation = Annotated[_KINDS[base], Field(**limits, **finite)]  # type: ignore[call-overload]
    return TypeAdapter(Optional[annotation] if is_optional else annotation)  # type: ignore[arg-type]  # noqa: UP045
