"""Registry of the built-in federated methods: one line each, the file or folder that holds it.

A method's module has its configuration class, which states the method's facts (``common.StrategyConfig``), and
``PRESETS``, the named configurations of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce
from importlib import import_module
from operator import or_
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import Field

from relief_ray.plugins.load import is_own, is_path, load_kind
from relief_ray.records.schema import MethodFacts
from relief_ray.strategies.citations import cite
from relief_ray.strategies.common import Preset, Search, StrategyConfig, built_in_name

# The one order of methods (that of the paper's Table I) in lists, tables, figures and grids; each name is a module with
# ``PRESETS``.
METHODS = (
    "fedavg",
    "fedprox",
    "fedel",
    "fedicu",
    "darkdistill",
    "harmony",
    "pilot",
    "fedsa_lora",
    "helora",
    "fedlease",
    "fednova",
    "relief",
    "bounds",
)
# Preset that other methods are compared with (1.00x of every table), and the default of a configuration.
REFERENCE = "fedavg"
# Preset that the program is about: its deadline is shown beside a fleet, and the paper's claims are about it.
PROPOSED = "relief"


def _all_presets() -> dict[str, Preset]:
    modules = [import_module(f"{__name__}.{method}") for method in METHODS]
    return {name: preset for module in modules for name, preset in module.PRESETS.items()}


# By name: a configuration with its title, kind and description; and the configurations alone.
DESCRIBED: Mapping[str, Preset] = MappingProxyType(_all_presets())
PRESETS: dict[str, StrategyConfig] = {name: preset.config for name, preset in DESCRIBED.items()}

# The closed set of built-in configurations, told apart by `name`: what pydantic validates.
AnyStrategy: Any = Annotated[reduce(or_, dict.fromkeys(map(type, PRESETS.values()))), Field(discriminator="name")]


def presets_of(kind: str) -> tuple[str, ...]:
    """Names of the presets of this kind, in the registry's order."""
    return tuple(name for name, preset in DESCRIBED.items() if preset.kind == kind)


def search_of(name: str) -> Search:
    """Values that a search tries of a method: of a preset, or of the class or instance at a user's import path.

    Raises:
        UserError: there is nothing at the path, or something else.
    """
    return load_kind(name, "methods", StrategyConfig).search if is_path(name) else DESCRIBED[name].search or {}


def method_name(config: StrategyConfig, label: str) -> str:
    """Name of a method in tables, titles and figures.

    A built-in method goes by its preset's name, a user's own by the title that its file states, else by its
    class's name; a reconstruction by its title, and says so.
    """
    if is_own(type(config)):
        return _own_name(config, label) + (" (reconstructed)" if config.reconstructed else "")
    if not config.reconstructed:
        return label
    variant = label.removeprefix(built_in_name(config)).strip("_")
    return ", ".join([f"{config.title} (reconstructed)", *([variant] if variant else [])])


def _own_name(config: StrategyConfig, label: str) -> str:
    """Name of a user's method: never that of a class it derives from, be it built in or the user's own."""
    kind = type(config)
    return next((name for name in (kind.title, kind.__name__) if name and name not in _TAKEN), label)


def by_registry(labels: Iterable[str]) -> list[str]:
    """Names of methods in the registry's order, those of users' methods and of variants after it as they come."""
    return sorted(labels, key=lambda label: _ORDER.get(label, len(_ORDER)))


# Presets of RELIEF other than the paper's own method: the paper's ablations, and ours.
VARIANTS = presets_of("ablation")
OUR_VARIANTS = (*presets_of("RELIEF, ours"), *presets_of("ablation of ours"))
# In every table of the paper's grids.
BOUNDS = presets_of("bound")

_TAKEN = {*PRESETS, *map(built_in_name, PRESETS.values())}
_ORDER = {method_name(config, label): number for number, (label, config) in enumerate(PRESETS.items())}


def about_of(config: StrategyConfig, label: str) -> str:
    """One line on what a method does; empty where a user's class does not say it."""
    return config.about if is_own(type(config)) else DESCRIBED[label].about


def facts_of(config: StrategyConfig, label: str) -> MethodFacts:
    """Facts of a method as a run records them; ``label``: name of its preset, or the import path of a user's own.

    Raises:
        UserError: its citation is neither a key of ``citations.bib`` nor a BibTeX entry.
    """
    cite([] if config.citation is None else [config.citation])
    is_users, preset = is_own(type(config)), DESCRIBED.get(label) or Preset(config)
    name = method_name(config, label)
    return MethodFacts(
        name=name,
        title=name if is_users else preset.title,
        kind=preset.kind,
        citation=config.citation,
        reconstructed=config.reconstructed,
        pooled=config.pooled,
        paper_accounting=config.paper_accounting,
        dense_stand_in=config.dense_stand_in,
        search_trades_speed=config.search_trades_speed if preset.search else "",
        varied=tuple(sorted(config.model_dump(exclude_defaults=True).keys() - {"name"})) if is_users else None,
    )


__all__ = [
    "BOUNDS",
    "DESCRIBED",
    "METHODS",
    "OUR_VARIANTS",
    "PRESETS",
    "PROPOSED",
    "REFERENCE",
    "VARIANTS",
    "AnyStrategy",
    "about_of",
    "built_in_name",
    "by_registry",
    "facts_of",
    "method_name",
    "presets_of",
    "search_of",
]
