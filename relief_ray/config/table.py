"""The table of all configuration keys, taken from the classes, and the page that shows it.

``python -m relief_ray.config.table`` writes ``keys.json`` and, in a checkout, ``docs/configuration.md``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from pydantic import BaseModel

from relief_ray.config.experiment import ExperimentConfig
from relief_ray.config.keys import CHOSEN, Key, keys_of, value_text, write_keys
from relief_ray.models.backbone import BackboneConfig
from relief_ray.models.registry import BACKBONES
from relief_ray.plugins.load import fields_read
from relief_ray.strategies import PRESETS, built_in_name
from relief_ray.strategies.common import StrategyConfig
from relief_ray.support.errors import UserError

PAGE: Final = Path(__file__).parents[2] / "docs" / "configuration.md"
_HEAD: Final = """# Configuration

Every key of a run, with its type, its default and its meaning. `relief-ray config` prints the same table,
`relief-ray config demo` a preset's values, `relief-ray config demo training` one section of them. A key is changed by
`--set training.epochs=2`, in a YAML file, or by `rr.run("demo", set={"training.epochs": 2})` in Python.

This page is generated: `python -m relief_ray.config.table` writes it from the classes.
"""


def keys_of_all() -> tuple[Key, ...]:
    """Every key of the configuration: the common ones, then those of every method and every backbone."""
    common = list(keys_of(ExperimentConfig))
    methods = {built_in_name(config): type(config) for config in PRESETS.values()}
    for section, classes in zip(CHOSEN, (methods, BACKBONES), strict=True):
        for name, kind in classes.items():
            common += keys_of(kind, f"{section}.", name)
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
    keys = keys_of(kind, f"{section}.", path)
    return tuple(key for key in keys if key.key.split(".")[1] in read)


_BASES: Final[Mapping[str, type[BaseModel]]] = {"strategy": StrategyConfig, "backbone": BackboneConfig}


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
