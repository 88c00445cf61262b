"""The typed configuration of one run: frozen, hashed, with errors that name the key and the nearest right one.

What changes results is hashed into the cell id; ``runtime`` and ``tracking`` only say where and how, ``choice`` why.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    SerializeAsAny,
    SerializerFunctionWrapHandler,
    TypeAdapter,
    ValidationError,
    field_serializer,
    field_validator,
    model_validator,
)

from relief_ray.data import DataConfig
from relief_ray.devices.accounting import Accounting
from relief_ray.devices.fleet import FleetConfig
from relief_ray.errors import UserError, nearest
from relief_ray.models.backbone import BackboneConfig
from relief_ray.models.cnn import CnnConfig
from relief_ray.models.registry import BACKBONES, backbone_name, choose_backbone
from relief_ray.plugins import configured, is_own, is_path, modules_of, path_of
from relief_ray.strategies import PRESETS, AnyStrategy
from relief_ray.strategies.common import StrategyConfig
from relief_ray.training.config import Section, TrainingConfig

# Which of a run's values a search chose, or tries: a fact beside the values, which decides no result.


class Choice(BaseModel):
    """``parameters``: the dotted keys of the values that the search varies; the values stand in their own places.

    ``kind``: ``tuned``, the frozen choice of a search, or ``try``, one of its tries. Of a choice: ``num_tries``, their
    best ``f1_validation`` (0 to 1), and ``at_edge``: those of ``parameters`` at the first or last value that was tried.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    kind: Literal["tuned", "try"]
    parameters: tuple[str, ...] = Field(min_length=1)
    at_edge: tuple[str, ...] = ()
    num_tries: int | None = Field(default=None, ge=1)
    f1_validation: float | None = None


# Plain configuration values: read from files, changed by ``--set``; ``config`` checks them.


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


ClockName = Literal["flop_proportional", "split_naive", "split_reuse", "measured"]

_KNOWN: TypeAdapter[AnyStrategy] = TypeAdapter(AnyStrategy)


class EvaluationConfig(Section):
    """Every how many rounds which part is looked at; the last round always is."""

    every: int = Field(default=5, ge=1)
    parts: tuple[Literal["test", "validation"], ...] = Field(default=("test",), min_length=1)


class CostConfig(Section):
    """``planning_time``: the clock that the allocator believes; ``profile``: a file for the ``measured`` clock.

    ``accounting``: what rounds are charged for (docs/costs.md); ``count_server_time``: they also last as long as the
    server's aggregation took here.
    """

    planning_time: ClockName = "split_naive"
    utilisation: float | None = Field(default=None, gt=0.0)
    profile: str | None = None
    accounting: Accounting = "method"
    count_server_time: bool = False

    def hashed(self) -> dict[str, JsonValue]:
        """What names a cell: keys that came later only where they were chosen, so that older cells keep their names."""
        unchosen = {"accounting", "count_server_time"} - self.model_dump(exclude_defaults=True).keys()
        values: dict[str, JsonValue] = self.model_dump(mode="json", exclude=unchosen)
        return values if self.profile is None else values | {"profile": _sha256(Path(self.profile))}


class RecordConfig(Section):
    """``checkpoint_every`` rounds; ``pairwise_every``: rounds whose fusion updates are compared in pairs (0: never)."""

    checkpoint_every: int = Field(default=1, ge=1)
    pairwise_every: int = Field(default=0, ge=0)


class RuntimeConfig(Section):
    """Where clients run. ``inline`` needs no Ray.

    ``auto``: an actor per client up to ten, unless clients share steps (``training.stack``), else packed hosts.
    ``cache_mib``: of prepared windows that a host keeps between rounds (None: 224, and 8,192 in a GPU's memory).
    """

    mode: Literal["auto", "inline", "packed", "actors"] = "auto"
    num_hosts: int | None = Field(default=None, ge=1)
    placement: Literal["auto", "typed", "virtual"] = "auto"
    num_threads: int = Field(default=1, ge=1)
    cache_mib: int | None = Field(default=None, ge=16)
    client_timeout_s: float = Field(default=600.0, gt=0.0)
    quorum: float = Field(default=1.0, gt=0.0, le=1.0)
    address: str | None = None


class TrackingConfig(Section):
    """``uri``: an MLflow store (None: ``mlflow.db`` beside the run folders); disabled: only run folders."""

    enabled: bool = True
    uri: str | None = None
    experiment: str = "relief-ray"


class ExperimentConfig(Section):
    """One cell: a strategy on a dataset, a fleet and a backbone.

    ``strategy`` and ``backbone`` may be given by name or by import path (``my.module:MyMethod``), as ``data.name`` may.
    """

    name: str = "run"
    strategy: SerializeAsAny[StrategyConfig] = PRESETS["fedavg"]
    data: DataConfig = DataConfig()
    fleet: FleetConfig = FleetConfig()
    backbone: SerializeAsAny[BackboneConfig] = CnnConfig()
    training: TrainingConfig = TrainingConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    costs: CostConfig = CostConfig()
    record: RecordConfig = RecordConfig()
    runtime: RuntimeConfig = RuntimeConfig()
    tracking: TrackingConfig = TrackingConfig()
    choice: Choice | None = None
    rounds: int = Field(default=200, ge=1)
    seed: int = Field(default=0, ge=0)
    participation: float = Field(default=1.0, gt=0.0, le=1.0)

    @model_validator(mode="after")
    def _stack_has_a_host(self) -> ExperimentConfig:
        where = self.runtime
        if self.training.stack > 1 and (where.mode == "actors" or (where.mode, where.placement) == ("auto", "typed")):
            raise ValueError(
                f"training.stack = {self.training.stack} where every client has a host of its own (runtime.mode = "
                f"{where.mode!r}, runtime.placement = {where.placement!r}): nobody shares a step; expected "
                "runtime.mode=packed or inline, or training.stack=1"
            )
        return self

    @field_validator("strategy", mode="before")
    @classmethod
    def _by_name(cls, value: object) -> StrategyConfig:
        if isinstance(value, str):
            value = {"name": value}
        if isinstance(value, Mapping) and isinstance(name := value.get("name"), str):
            if is_path(name):
                return configured(value, "strategy", StrategyConfig)
            value = dict(preset(name).model_dump()) | {k: v for k, v in value.items() if k != "name"}
        return value if isinstance(value, StrategyConfig) else _KNOWN.validate_python(value)

    @field_validator("backbone", mode="before")
    @classmethod
    def _named(cls, value: object) -> BackboneConfig:
        return choose_backbone(value)

    @field_serializer("strategy", "backbone", mode="wrap")
    def _with_path(self, value: BaseModel, serialise: SerializerFunctionWrapHandler) -> object:
        values = serialise(value)
        return {**values, "name": path_of(type(value))} if is_own(type(value)) else values

    def modules(self) -> tuple[str, ...]:
        """The user's own modules that take part: those of strategy, backbone and dataset."""
        strategy = [path_of(type(self.strategy))] if is_own(type(self.strategy)) else []
        return modules_of([*strategy, backbone_name(self.backbone), self.data.name])

    def hashed(self) -> dict[str, JsonValue]:
        """The part that decides results, as JSON: the input of the cell id; a device profile counts by its content.

        Raises:
            UserError: the profile cannot be read.
        """
        drop = dict.fromkeys(("name", "runtime", "tracking", "choice"), True) | {"backbone": self.backbone.unchosen()}
        return self.model_dump(mode="json", exclude=drop) | {"costs": self.costs.hashed()}

    def label(self) -> str:
        """The preset that the strategy is, or is a variation of: ``v2`` with another deadline is still V2.

        A user's own is called by its import path.
        """
        if is_own(type(self.strategy)):
            return path_of(type(self.strategy))
        chosen = self.strategy.model_dump(exclude_defaults=True).items()
        fits = {
            name: len(given)
            for name, known in PRESETS.items()
            if type(known) is type(self.strategy)
            and (given := known.model_dump(exclude_defaults=True)).items() <= chosen
        }
        return max(fits, key=lambda name: fits[name])


def _sha256(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise UserError(
            f"costs.profile = {path}: cannot be read ({error.strerror}); name a file that `relief-ray` can read"
        ) from error


def preset(name: str) -> AnyStrategy:
    """A strategy by its preset's name.

    Raises:
        ValueError: no such preset; the nearest is named.
    """
    if name in PRESETS:
        return PRESETS[name]
    raise ValueError(f"unknown strategy {name!r}{nearest(name, PRESETS)}; known: {', '.join(PRESETS)}")


def parse(values: Mapping[str, object], where: str = "configuration") -> ExperimentConfig:
    """A checked configuration.

    Raises:
        UserError: one line per fault: key, what was found, what was expected.
    """
    try:
        return ExperimentConfig.model_validate(dict(values))
    except ValidationError as error:
        raise UserError("\n".join(f"{where}: {line}" for line in explain(error))) from error


def explain(error: ValidationError) -> list[str]:
    """Pydantic's errors in our words, unknown keys with their nearest neighbour."""
    lines = []
    for fault in error.errors():
        path = [str(p) for p in fault["loc"] if not str(p).startswith("function-") and str(p) not in _UNION_TAGS]
        key = ".".join(path)
        if fault["type"] == "extra_forbidden":
            chosen = next((str(p) for p in fault["loc"] if p in _UNION_TAGS), None)
            lines.append(f"unknown key {key!r}{nearest(path[-1], keys_at(path[:-1], chosen))}; remove or rename it")
        else:
            message = fault["msg"].removeprefix("Value error, ")
            found = "" if isinstance(fault["input"], Mapping) else f" = {fault['input']!r}"
            is_named = not key or message.startswith(f"{key} = ")  # faults of the whole name their keys
            lines.append(message if is_named else f"{key}{found}: {message}")
    return lines


_UNION_TAGS: Mapping[str, type[BaseModel]] = {**{str(s.name): type(s) for s in PRESETS.values()}, **BACKBONES}


def keys_at(path: Iterable[str], chosen: str | None = None) -> list[str]:
    """The keys that a section of the configuration has; of strategies and backbones those of the ``chosen`` one."""
    parts = list(path)
    if parts[:1] in (["strategy"], ["backbone"]):
        among = [_UNION_TAGS[chosen]] if chosen else _UNION_TAGS.values()
        return sorted({key for model in among for key in model.model_fields})
    node: object = ExperimentConfig()
    for part in parts:
        node = getattr(node, part, None)
    return list(type(node).model_fields) if isinstance(node, BaseModel) else []
