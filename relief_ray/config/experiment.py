"""The typed configuration of one run, its identity, and the errors that name a wrong key and the nearest right one.

A run is identified by the settings that differ from their defaults (``ExperimentConfig.identity``); ``name``,
``runtime``, ``tracking``, ``choice`` and ``replicate`` decide no result and are not part of it.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

from pydantic import (
    BaseModel,
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
from pydantic_core import ErrorDetails

from relief_ray.config.keys import Key, all_keys, expectation, own_message, own_words, unknown_key, whole_key
from relief_ray.config.runtime import RuntimeConfig, TrackingConfig
from relief_ray.core.federated import Strategy
from relief_ray.data import DataConfig
from relief_ray.devices.accounting import CostConfig
from relief_ray.devices.fleet import FleetConfig
from relief_ray.models.backbone import BackboneConfig
from relief_ray.models.cnn import CnnConfig
from relief_ray.models.registry import BACKBONES, backbone_name, choose_backbone
from relief_ray.plugins.blame import call_users, fault_text
from relief_ray.plugins.load import configured, is_own, is_path, load_kind, modules_of, path_of, what_to_type
from relief_ray.records.identity import NOT_DECIDING
from relief_ray.server.optimizer import ServerConfig
from relief_ray.strategies import PRESETS, REFERENCE, AnyStrategy
from relief_ray.strategies.common import StrategyConfig
from relief_ray.support.errors import UserCodeError, UserError, clipped, nearest, shown
from relief_ray.support.files import read_whole
from relief_ray.support.frozen import FrozenConfig
from relief_ray.support.user_yaml import read_setting
from relief_ray.training.config import TrainingConfig

# Raised by one when the default of a deciding setting changes, so that the same settings get other ids from then on.
# A setting that is added leaves it as it is: its default is not part of an identity.
SCHEMA: Final = 2


class Choice(FrozenConfig):
    """Provenance of tuned hyperparameters; not part of a run's identity.

    Attributes:
        kind: ``tuned`` for the frozen choice of a search, ``try`` for one of its trials.
        parameters: dotted keys of the values that the search varies; the values stand in their own sections.
        at_edge: those of ``parameters`` whose chosen value was the first or last one tried.
        num_tries: number of trials that the choice was made from.
        f1_validation: best validation F1 among them, 0 to 1.
    """

    kind: Literal["tuned", "try"]
    parameters: tuple[str, ...] = Field(min_length=1)
    at_edge: tuple[str, ...] = ()
    num_tries: int | None = Field(default=None, ge=1)
    f1_validation: float | None = None


def override(values: Mapping[str, object], settings: Iterable[str]) -> dict[str, object]:
    """Apply ``path=value`` settings to plain values; a value is read as YAML (numbers, lists, null), else as text.

    Raises:
        UserError: a setting without ``=`` or a path through something that is no section.
    """
    result = copy.deepcopy(dict(values))
    for setting in settings:
        path, sign, text = setting.partition("=")
        where = f"--set {clipped(setting)}"
        if not sign or not all(part.isprintable() and part.strip() for part in path.split(".")):
            raise UserError(f"{where}: expected path=value, e.g. --set training.epochs=2; write the key before the =")
        *parents, last = path.split(".")
        node = result
        for parent in parents:
            below = node.setdefault(parent, {})
            if isinstance(below, str):
                below = node[parent] = {"name": below}
            if not isinstance(below, dict):
                raise UserError(
                    f"{where}: {parent!r} is {shown(below)}, not a section; expected a key that holds others, see "
                    "`relief-ray config`"
                )
            node = below
        node[last] = read_setting(text, where)
    return result


_KNOWN: TypeAdapter[StrategyConfig] = TypeAdapter(AnyStrategy)


class EvaluationConfig(FrozenConfig):
    """Evaluate ``parts`` of the data ``every`` so many rounds and after the last one.

    Attributes:
        every: rounds between two evaluations.
        parts: ``test``, ``validation`` or both.
        average: which of the server's models are tested; training is the same. ``last``: those of the round; ``tail``:
            the mean of the last ``window`` rounds; ``ema``: ``x <- decay x + (1 - decay) theta`` from the first round.
        window: rounds that ``tail`` averages, the tested one included; fewer where the run is younger.
        decay: weight of the earlier mean in ``ema``.
    """

    every: int = Field(default=5, ge=1)
    parts: tuple[Literal["test", "validation"], ...] = Field(default=("test",), min_length=1)
    average: Literal["last", "tail", "ema"] = "last"
    window: int = Field(default=5, ge=1)
    decay: float = Field(default=0.9, ge=0.0, lt=1.0)

    @model_validator(mode="after")
    def _all_is_read(self) -> EvaluationConfig:
        for key, needed in (("window", "tail"), ("decay", "ema")):
            value = getattr(self, key)
            if value != type(self).model_fields[key].default and self.average != needed:
                raise ValueError(
                    f"{key} = {value} with average = {self.average!r}, which does not read it; expected one of them: "
                    f"set average={needed} or remove {key}"
                )
        return self


class RecordConfig(FrozenConfig):
    """Intervals in rounds.

    Attributes:
        checkpoint_every: rounds between two checkpoints.
        pairwise_every: rounds between two comparisons of all pairs of clients' fusion updates; 0: never.
    """

    checkpoint_every: int = Field(default=1, ge=1)
    pairwise_every: int = Field(default=0, ge=0)


class ExperimentConfig(FrozenConfig):
    """One run: a strategy on a dataset, a fleet and a backbone.

    ``strategy``, ``backbone`` and ``data.name`` may be given by name or by import path (``my.module:MyMethod``).

    Attributes:
        name: name for people; no part of the identity.
        strategy: the method and its hyperparameters.
        data: dataset, split and sharding.
        fleet: the clients' devices and sensors.
        backbone: the model: ``cnn``, ``moment_lora``, or one of your own.
        training: local training: epochs, batch size, optimizer, learning rate, engine.
        server: the optimizer of the server, none by default.
        evaluation: parts of the data, interval, and averages over rounds.
        costs: simulated time and energy.
        record: intervals of checkpoints and of comparisons in pairs.
        runtime: placement of clients on processes.
        tracking: the copy of the records in MLflow.
        choice: provenance of tuned hyperparameters; None: they were not searched.
        replicate: number of the repetition that ``seed`` and ``fleet.rotation`` were derived from; None: of none.
        rounds: number of rounds R, without the bootstrap.
        seed: seed of all random streams.
        participation: share of the clients that take part in a round, above 0 up to 1.
    """

    name: str = "run"
    strategy: SerializeAsAny[StrategyConfig] = PRESETS[REFERENCE]
    data: DataConfig = DataConfig()
    fleet: FleetConfig = FleetConfig()
    backbone: SerializeAsAny[BackboneConfig] = CnnConfig()
    training: TrainingConfig = TrainingConfig()
    server: ServerConfig = ServerConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    costs: CostConfig = CostConfig()
    record: RecordConfig = RecordConfig()
    runtime: RuntimeConfig = RuntimeConfig()
    tracking: TrackingConfig = TrackingConfig()
    choice: Choice | None = None
    replicate: int | None = Field(default=None, ge=0)
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

    @model_validator(mode="after")
    def _server_steps_along_means(self) -> ExperimentConfig:
        if self.server.optimizer != "none" and (reason := self.strategy.build().no_average):
            raise ValueError(
                f"server.optimizer = {self.server.optimizer!r} with strategy {self.label()}: {reason}, expected a "
                "mean of updates; set server.optimizer=none, or take a method that averages (fedavg, fedprox, relief)"
            )
        return self

    @field_validator("strategy", mode="before")
    @classmethod
    def _by_name(cls, value: object) -> StrategyConfig:
        if isinstance(value, str):
            value = {"name": value}
        if isinstance(value, Mapping) and isinstance(name := value.get("name"), str):
            if is_path(name):
                return _buildable(configured(value, "strategy", StrategyConfig))
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
        """The user's own modules that take part: those of strategy, backbone, dataset and clock."""
        strategy = [path_of(type(self.strategy))] if is_own(type(self.strategy)) else []
        return modules_of([*strategy, backbone_name(self.backbone), self.data.name, self.costs.planning_time])

    def identity(self) -> dict[str, JsonValue]:
        """The deciding settings that differ from their defaults, and ``SCHEMA``: the input of ids and hashes.

        The names of strategy, backbone and dataset are always kept; a device profile counts by its content.

        Raises:
            UserError: the profile cannot be read.
        """
        names = self.model_dump(mode="json", include={key: {"name"} for key in ("strategy", "backbone", "data")})
        identity = self.model_dump(mode="json", exclude=set(NOT_DECIDING), exclude_defaults=True)
        for key in type(self).model_fields.keys() - NOT_DECIDING:
            section = getattr(self, key)
            if isinstance(section, BaseModel):  # by its own class's defaults, not by the section that is default here
                identity[key] = section.model_dump(mode="json", exclude_defaults=True) | names.get(key, {})
        if self.costs.profile is not None:
            identity["costs"]["profile"] = _sha256(Path(self.costs.profile))
        return {"schema": SCHEMA} | {key: value for key, value in identity.items() if value != {}}

    @property
    def device_by_host(self) -> bool:
        """Whether each host of a physical run decides ``training.device=auto`` for itself."""
        return self.runtime.physical and self.training.device == "auto"

    @property
    def draw_name(self) -> str:
        """``r3`` for a run of replicate 3, else its seed, ``s7``: a part of the name of its folder."""
        return f"s{self.seed}" if self.replicate is None else f"r{self.replicate}"

    def label(self) -> str:
        """Name of the preset that the strategy is or varies: ``v2`` with another deadline is still ``v2``.

        A strategy from outside the project is called by its import path.
        """
        if is_own(type(self.strategy)):
            return path_of(type(self.strategy))
        chosen = self.strategy.model_dump(exclude_defaults=True).items()
        fits = {
            name: len(varied)
            for name, known in PRESETS.items()
            if type(known) is type(self.strategy)
            and (varied := known.model_dump(exclude_defaults=True)).items() <= chosen
        }
        return max(fits, key=lambda name: fits[name])


def _sha256(path: Path) -> str:
    try:
        return hashlib.sha256(read_whole(path)).hexdigest()
    except (OSError, ValueError) as error:  # ValueError: no path on any disk, a half of a character or a NUL
        why = error.strerror if isinstance(error, OSError) else error
        raise UserError(
            f"costs.profile = {clipped(str(path))}: cannot be read ({why}); name a file that `relief-ray` can read"
        ) from error


def _buildable(config: StrategyConfig) -> StrategyConfig:
    """The configuration, whose ``build`` was seen to return a strategy.

    Raises:
        UserCodeError: it raises an error, or returns something else.
    """
    built: object = call_users(config.build)
    if not isinstance(built, Strategy):
        raise UserCodeError(
            fault_text(
                config.build,
                f"{type(config).__name__}.build() returned a {type(built).__name__}, expected a "
                f"{Strategy.__module__}.{Strategy.__name__}; return one",
            )
        )
    return config


def preset(name: str) -> StrategyConfig:
    """A strategy by its preset's name.

    Raises:
        ValueError: no such preset; the nearest is named.
    """
    if name in PRESETS:
        return PRESETS[name]
    if hint := what_to_type(name, StrategyConfig):
        raise ValueError(f"unknown strategy {shown(name)}: {hint}")
    raise ValueError(
        f"unknown strategy {shown(name)}{_as_value(name) or nearest(name, PRESETS)}; expected one of: "
        f"{', '.join(PRESETS)}; or one of your own by its import path, median.py:Median"
    )


def _as_value(name: str) -> str:
    """`` (a value of server.optimizer: --set server.optimizer=fedadam)`` of a word that a key takes, else nothing."""
    takers = (key.key for key in all_keys() if name in key.type.removeprefix("one of ").split(", "))
    return next((f" (a value of {key}: --set {key}={name})" for key in takers), "")


def parse(values: Mapping[str, object], where: str = "configuration") -> ExperimentConfig:
    """Check plain values and return the configuration.

    Raises:
        UserError: one line per fault: key, what was found, what was expected.
    """
    try:
        return ExperimentConfig.model_validate(dict(values))
    except ValidationError as error:
        causes = (fault.get("ctx", {}).get("error") for fault in error.errors())
        kind = UserCodeError if any(isinstance(cause, UserCodeError) for cause in causes) else UserError
        raise kind("\n".join(f"{where}: {line}" for line in explain(error, _own_words(values)))) from error


def as_read(values: Mapping[str, JsonValue]) -> Mapping[str, JsonValue]:
    """Settings as this program reads them, so that equal identities are equal values.

    A configuration that it cannot read, such as one with a user's backbone that is not here, is returned as it stands.
    """
    try:
        return parse(values).model_dump(mode="json")
    except UserError:
        return values


def _own_words(values: Mapping[str, object]) -> dict[str, tuple[Key, ...]]:
    """Keys of the user's own classes that unchecked values name, by section."""
    own: dict[str, tuple[Key, ...]] = {}
    for section, base in (("strategy", StrategyConfig), ("backbone", BackboneConfig)):
        value = values.get(section)
        name = value.get("name") if isinstance(value, Mapping) else value
        if isinstance(name, str) and is_path(name):
            with suppress(UserError):  # which the error says already
                found = load_kind(name, section, base)
                own[section] = own_words(found if isinstance(found, type) else type(found), section)
    return own


def explain(error: ValidationError, own: Mapping[str, Sequence[Key]] | None = None) -> list[str]:
    """Return pydantic's errors as a line each: key, what was found, what was expected; wrong keys with the nearest.

    ``own``: by section the keys of a user's own class.
    """
    lines: dict[str, None] = {}
    for fault in error.errors():
        path = [str(p) for p in fault["loc"] if not str(p).startswith("function-") and str(p) not in _UNION_TAGS]
        key, chosen = ".".join(path), next((str(p) for p in fault["loc"] if p in _UNION_TAGS), None)
        if fault["type"] == "extra_forbidden":
            lines[f"{unknown_key(key, chosen)}; remove or rename it"] = None
            continue
        keys = (own or {}).get(key.partition(".")[0], ())
        whole = whole_key(key, keys)  # of an element its list; of an alternative that was tried (`auto`) the key
        key = key if path[-1:] and path[-1].isdecimal() else whole
        fits = expectation(whole, fault["input"] if whole == key else None, chosen, keys)
        message = own_message(fault, fits) if keys else _message(fault, key, fits)
        value = "" if isinstance(fault["input"], Mapping) else f" = {shown(fault['input'])}"
        is_named = not key or message.startswith(f"{key} = ")  # validators of a whole section name their keys
        lines[message if is_named else f"{key}{value}: {message}"] = None
    return list(lines)


def _message(fault: ErrorDetails, key: str, fits: str) -> str:
    """Words on what was expected; ``fits``: the key's."""
    if fault["type"] in ("model_type", "dict_type"):
        is_open = isinstance(fault["input"], str) and fault["input"][:1] in ("{", "[")
        ending = "; a bracket is missing or one too many" if is_open else ""
        return (fits or f"expected a section of keys; `relief-ray config {key}` lists them") + ending
    if fault["type"] == "invalid_key":
        return "expected a name as key; quote it"
    said = fault["msg"].removeprefix("Value error, ")
    return said if fault["type"] == "value_error" else fits or said


_UNION_TAGS: Mapping[str, type[BaseModel]] = {**{s.build().name: type(s) for s in PRESETS.values()}, **BACKBONES}
