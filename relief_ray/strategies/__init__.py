"""Registry of the built-in federated methods: one line each, the file or folder that holds it.

A method's module has its configuration class, which states the method's facts (``common.StrategyConfig``), and
``PRESETS``, the named configurations of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from importlib import import_module
from operator import or_
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import Field

from relief_ray.strategies.common import Preset, StrategyConfig

# In the order of `relief-ray strategies`; each name is a module with ``PRESETS``.
METHODS = (
    "fedavg",
    "fedprox",
    "darkdistill",
    "fedel",
    "fedsa_lora",
    "fedicu",
    "harmony",
    "helora",
    "fedlease",
    "pilot",
    "relief",
    "bounds",
)


def _all_presets() -> dict[str, Preset]:
    modules = [import_module(f"{__name__}.{method}") for method in METHODS]
    return {name: preset for module in modules for name, preset in module.PRESETS.items()}


# By name: a configuration with its title, kind and description; and the configurations alone.
DESCRIBED: Mapping[str, Preset] = MappingProxyType(_all_presets())
PRESETS: dict[str, StrategyConfig] = {name: preset.config for name, preset in DESCRIBED.items()}

_CLASSES = tuple(dict.fromkeys(type(config) for config in PRESETS.values()))
# The closed set of built-in configurations, told apart by `name`: what pydantic validates.
AnyStrategy: Any = Annotated[reduce(or_, _CLASSES), Field(discriminator="name")]

# Names of the methods that train one client with everybody's data.
POOLED = frozenset(s.name for s in (config.build() for config in PRESETS.values()) if s.pooled)


def display_name(label: str) -> str:
    """Name of a preset in tables, titles and figures: itself, or the title of a reconstruction, which says so."""
    preset = DESCRIBED.get(label)
    if preset is None or not preset.config.reconstructed:
        return label
    variant = label.removeprefix(preset.config.build().name).strip("_")
    return ", ".join([f"{preset.config.title} (reconstructed)", *([variant] if variant else [])])


__all__ = ["DESCRIBED", "METHODS", "POOLED", "PRESETS", "AnyStrategy", "display_name"]
