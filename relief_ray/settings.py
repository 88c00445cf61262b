"""Plain configuration values: read from files, changed by ``--set``; ``config`` checks them."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from pathlib import Path

import yaml

from relief_ray.errors import UserError


def override(values: Mapping[str, object], settings: Iterable[str]) -> dict[str, object]:
    """Applies ``path=value`` settings; a value is read as YAML (numbers, lists, null), else as text.

    Raises:
        UserError: a setting without ``=`` or a path through something that is no section.
    """
    result = copy.deepcopy(dict(values))
    for setting in settings:
        path, sign, text = setting.partition("=")
        if not sign or not path:
            raise UserError(f"--set {setting}: expected path=value, e.g. --set training.epochs=2")
        *parents, last = path.split(".")
        node = result
        for parent in parents:
            below = node.setdefault(parent, {})
            if isinstance(below, str):
                below = node[parent] = {"name": below}
            if not isinstance(below, dict):
                raise UserError(f"--set {setting}: {parent!r} is {below!r}, not a section")
            node = below
        node[last] = _read_value(text)
    return result


def _read_value(text: str) -> object:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text


def read_values(path: Path) -> dict[str, object]:
    """A YAML or JSON configuration file as plain values.

    Raises:
        UserError: unreadable, not YAML, or not a mapping.
    """
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"{path}: cannot be read as YAML ({error})") from error
    if not isinstance(values, dict):
        raise UserError(f"{path}: holds {type(values).__name__}, expected a mapping of configuration keys")
    return values
