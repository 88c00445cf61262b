"""The keys of the configuration as a table: what each is, and which one a user meant who wrote another.

The table is a file, ``keys.json``, so that a wrong key is answered without loading torch and every method. It is
written from the configuration's classes by ``python -m relief_ray.config.table``; a test compares the two.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Final

from relief_ray.support.errors import UserError, clipped, shown

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
