"""Methods, data sets and backbones given as Python objects: each gets the import path that records know it by.

A run's configuration is text, so that it can be read, resumed and reproduced by another process. An object therefore
has to be found again as ``module:Name``. What a notebook's cells define has no file; it is refused with the fix.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType

import yaml
from pydantic import BaseModel

from relief_ray.config.experiment import ExperimentConfig
from relief_ray.data.loader import DatasetSpec, Loader
from relief_ray.models.backbone import BackboneConfig
from relief_ray.models.registry import backbone_name
from relief_ray.plugins.load import import_path, importable_name, is_own, path_of
from relief_ray.strategies import PRESETS
from relief_ray.strategies.common import StrategyConfig
from relief_ray.support.errors import UserError

StrategyLike = str | StrategyConfig | type[StrategyConfig] | Mapping[str, object]
BackboneLike = str | BackboneConfig | type[BackboneConfig] | Mapping[str, object]


@dataclass(frozen=True, kw_only=True, slots=True)
class Method:
    """A strategy of a study.

    Attributes:
        label: name of its preset, or its import path.
        fields: the fields of its configuration in which it differs from that preset or class.
    """

    label: str
    fields: Mapping[str, object]

    @property
    def values(self) -> dict[str, object]:
        """Its section of a configuration."""
        return {"name": self.label, **self.fields}

    @property
    def suffix(self) -> str:
        """Addition to the label in folder names: ``-gamma0.5``; empty for a preset as it is."""
        return "".join("-" + re.sub(r"[^\w.+-]+", "_", f"{key}{value}") for key, value in self.fields.items())


def method_of(given: StrategyLike) -> Method:
    """Return the method that a user named, or gave as a class, a configuration or a mapping with its ``name``.

    Raises:
        UserError: it is none of these, or a class that no import path leads to.
    """
    if isinstance(given, str):
        return Method(label=import_path(given), fields={})
    if isinstance(given, type) and issubclass(given, StrategyConfig):
        return Method(label=_class_path(given, "strategies"), fields={})
    if isinstance(given, StrategyConfig):
        return _configured(given)
    if isinstance(given, Mapping) and isinstance(given.get("name"), str):
        fields = {str(key): value for key, value in given.items() if key != "name"}
        return Method(label=import_path(str(given["name"])), fields=fields)
    raise UserError(
        f"strategies: found {_described(given)}; expected a method's name ('relief'), an import path "
        "('my_module:MyMethod'), a StrategyConfig (class or instance), or {'name': .., field: ..}"
    )


def _configured(given: StrategyConfig) -> Method:
    values = given.model_dump(mode="json")
    if is_own(type(given)):
        fields = given.model_dump(mode="json", exclude_defaults=True)
        fields.pop("name", None)
        return Method(label=_class_path(type(given), "strategies"), fields=fields)
    label = ExperimentConfig(strategy=given).label()
    usual = PRESETS[label].model_dump(mode="json")
    return Method(label=label, fields={key: value for key, value in values.items() if value != usual.get(key)})


def data_name(given: str | Loader | DatasetSpec) -> str:
    """Return the name or import path of a data set.

    Raises:
        UserError: a loader that no import path leads to, or something else.
    """
    if isinstance(given, str):
        return import_path(given)
    if isinstance(given, DatasetSpec):
        raise UserError(
            f"data: found the description of {given.title!r}; expected its Loader(spec=.., files=.., parse=..)"
        )
    if not isinstance(given, Loader):
        raise UserError(
            f"data: found {_described(given)}; expected the name of a data set ('dsa_mini'), an import path "
            "('my_data:GESTURES'), a Loader, or a mapping of settings"
        )
    module = sys.modules.get(given.parse.__module__)
    name = next((key for key, value in vars(module).items() if value is given), None) if module else None
    if module is None or name is None:
        raise UserError(
            "data: found a Loader that no variable of a module holds; write GESTURES = Loader(..) at the top level of "
            f"the file that defines `parse` ({given.parse.__module__})"
        )
    return f"{_module_path(module, name, 'data')}:{name}"


def backbone_value(given: BackboneLike) -> object:
    """Return a backbone's section of a configuration.

    Raises:
        UserError: it is no backbone, or a class that no import path leads to.
    """
    if isinstance(given, str | Mapping):
        return import_path(given) if isinstance(given, str) else dict(given)
    if isinstance(given, type) and issubclass(given, BackboneConfig):
        return _class_path(given, "backbone")
    if isinstance(given, BackboneConfig):
        name = _class_path(type(given), "backbone") if is_own(type(given)) else backbone_name(given)
        return {**given.model_dump(mode="json"), "name": name}
    raise UserError(
        f"backbone: found {_described(given)}; expected a name ('cnn'), an import path ('my_module:MyBackbone') or a "
        "BackboneConfig (class or instance)"
    )


def named_target(given: StrategyLike | BackboneLike | Loader) -> tuple[str, list[str]]:
    """Return the name or import path of a method, a backbone or a data set, and the settings of its own fields.

    Raises:
        UserError: it is none of these, or no import path leads to it.
    """
    if isinstance(given, str | Loader):
        return data_name(given), []
    if isinstance(given, BackboneConfig) or (isinstance(given, type) and issubclass(given, BackboneConfig)):
        value = backbone_value(given)
        fields = {key: each for key, each in value.items() if key != "name"} if isinstance(value, dict) else {}
        name = value["name"] if isinstance(value, dict) else value
        return str(name), list(settings_of({"backbone": fields})) if fields else []
    method = method_of(given)
    return method.label, list(settings_of({"strategy": method.fields})) if method.fields else []


def refuse_unnamed(config: ExperimentConfig) -> None:
    """Check that the classes of a configuration can be found again by their import paths.

    Raises:
        UserError: one of them cannot.
    """
    for key, kind in (("strategy", type(config.strategy)), ("backbone", type(config.backbone))):
        if is_own(kind):
            _class_path(kind, key)


def settings_of(values: Mapping[str, object], prefix: str = "") -> Iterator[str]:
    """Yield nested values as ``path=value`` settings: ``{"training": {"epochs": 2}}`` as ``training.epochs=2``."""
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from settings_of(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}={_as_yaml(value, f'{prefix}{key}')}"


def _as_yaml(value: object, key: str) -> str:
    """Text that reads back as the value: what stands right of ``=`` in a setting.

    Raises:
        UserError: the value cannot be written down.
    """
    plain = value.model_dump(mode="json") if isinstance(value, BaseModel) else value
    try:
        text = yaml.safe_dump(json.loads(json.dumps(plain, default=str)), default_flow_style=True, width=2**20)
    except (TypeError, ValueError) as error:
        raise UserError(f"{key}: found {_described(value)}, expected numbers, texts, lists or mappings") from error
    return text.strip().removesuffix("\n...")  # which YAML writes behind a single value


def refuse_import_of_script() -> None:
    """Check that this is not the second import of the script that runs, as which its own classes are read.

    Raises:
        UserError: it is; the call has to wait for the script itself.
    """
    path = importable_name("__main__")
    again = sys.modules.get(path) if path != "__main__" else None
    if getattr(getattr(again, "__spec__", None), "_initializing", False):
        raise UserError(
            f"{path}.py: is imported for the classes that it defines, and would start the study again; put the call "
            "of run() below `if __name__ == '__main__':`"
        )


def _class_path(kind: type, key: str) -> str:
    """Import path of a class, checked to lead to it.

    Raises:
        UserError: it is defined where no import finds it.
    """
    module = sys.modules.get(kind.__module__)
    if module is None or getattr(module, kind.__qualname__, None) is not kind:
        raise UserError(
            f"{key}: class {kind.__qualname__} is not at the top level of its module ({kind.__module__}), so no import "
            "path leads to it; define it there"
        )
    if is_own(kind):
        _module_path(module, kind.__qualname__, key)
    return path_of(kind)


def _module_path(module: ModuleType, name: str, key: str) -> str:
    """Name by which the module is imported again; of the script that runs, that of its file.

    Raises:
        UserError: it has no file, e.g. in a notebook.
    """
    path = importable_name(module.__name__)
    if path == "__main__":
        raise UserError(
            f"{key}: {name} is defined in a notebook or at a prompt, so its records could not be resumed or "
            f"reproduced; put the cell into a file, with `%%writefile my_{key}.py` as its first line, and import it: "
            f"`from my_{key} import {name}`"
        )
    return path


def _described(value: object) -> str:
    return f"class {value.__name__}" if isinstance(value, type) else f"{type(value).__name__} {value!r}"[:80]
