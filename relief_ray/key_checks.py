"""Wrong values and wrong keys of a method or a backbone, answered from the table of keys before the library is loaded.

Only what the table alone decides is refused here; the configuration's classes judge everything else later. A section
whose class is a user's own is left to that class.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Final, Literal, Optional

from pydantic import Field, TypeAdapter, ValidationError

from relief_ray.config.keys import CHOSEN, Key, all_keys, expectation, suggested, unknown_key
from relief_ray.plugins.load import is_path
from relief_ray.support.errors import UserError, clipped, shown
from relief_ray.support.user_yaml import read_mapping, read_setting

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
