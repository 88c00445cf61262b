"""The typed configuration of one run, its identity, and the errors that name a wrong key and the nearest right one.

A run is identified by the settings that differ from their defaults (``ExperimentConfig.identity``); ``name``,
``runtime``, ``tracking``, ``choice`` and ``replicate`` decide no result and are not part of it.
"""

from __future__ import annotations

import copy
import re
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import ClassVar, Final, Literal

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
from pydantic_core import ErrorDetails, to_jsonable_python

from relief_ray.config.keys import Key, expectation, keys_of, unknown_key
from relief_ray.config.runtime import RuntimeConfig, TrackingConfig
from relief_ray.core.codec import Format, Wire
from relief_ray.core.federated import Strategy
from relief_ray.data import DataConfig
from relief_ray.devices.accounting import CostConfig
from relief_ray.devices.fleet import FleetConfig
from relief_ray.models.backbone import BackboneConfig
from relief_ray.models.cnn import CnnConfig
from relief_ray.models.registry import BACKBONES, backbone_name, choose_backbone
from relief_ray.plugins.blame import call_users, with_line
from relief_ray.plugins.load import (
    ONLY_A_RECORD,
    closed,
    configured,
    import_path,
    is_own,
    is_path,
    load_kind,
    modules_of,
    path_of,
    what_to_type,
)
from relief_ray.records.identity import NOT_DECIDING, why_closed
from relief_ray.records.metrics import own_metrics
from relief_ray.records.schema import Recorded, RunFacts
from relief_ray.server.optimizer import ServerConfig
from relief_ray.strategies import PRESETS, REFERENCE, AnyStrategy, built_in_name
from relief_ray.strategies.common import StrategyConfig
from relief_ray.support.errors import Setting, UserCodeError, UserError, clipped, nearest, shown, value_text
from relief_ray.support.files import read_whole, sha256_of
from relief_ray.support.frozen import FrozenConfig, ReadWith, SwitchedConfig, numbers_or_text, strictly
from relief_ray.support.user_yaml import read_setting
from relief_ray.training.config import TrainingConfig

# Raised by one when the default of a deciding setting changes, so that the same settings get other ids from then on.
# A setting that is added leaves it as it is: its default is not part of an identity.
SCHEMA: Final = 2
# More would run for years; the numbers of rounds are listed.
_MAX_ROUNDS: Final = 1_000_000


class Choice(FrozenConfig):
    """Provenance of values that differ from method to method; not part of a run's identity."""

    kind: Literal["tuned", "try", "level"]
    """``tuned`` for the frozen choice of a search, ``try`` for one of its trials, ``level`` for a grid's own levels."""
    parameters: tuple[str, ...] = ()
    """Dotted keys of the values that the search varies, or the level sets. The values are in their own sections."""
    level: str = ""
    """Name of the method's own level of a grid; empty where it has none."""
    place: str = ""
    """Of a try: name of its data set's level in the search, where it competes."""
    at_edge: tuple[str, ...] = ()
    """Keys of ``parameters`` whose chosen value was the first or last one tried."""
    num_tries: int | None = Field(default=None, ge=1)
    """Number of trials that the choice was made from."""
    f1_validation: float | None = None
    """Best validation F1 of these trials, 0 to 1."""


def read_settings(texts: Iterable[str]) -> tuple[Setting, ...]:
    """Settings as typed, ``path=value``, the value read as YAML.

    Raises:
        UserError: there is no ``=``, or a path has an empty part.
    """
    return tuple(map(_read, texts))


def _read(text: str) -> Setting:
    path, sign, value = text.partition("=")
    typed = f"--set {clipped(text)}"
    if not sign or not all(part.isprintable() and part.strip() for part in path.split(".")):
        raise UserError(f"{typed}: expected path=value, e.g. --set training.epochs=2; write the key before the =")
    return Setting(path, read_setting(value, typed), typed)


def read_as(settings: Iterable[Setting]) -> str:
    """Show how settings were read, ``seed=10, training.lr=1000``, if that differs from what was typed.

    Empty where there are none. Of a text that was too long to keep (it ends with ``..``) nobody can tell.
    """

    def plain(text: str) -> str:  # without blanks, quotes, and signs and zeros that only a printed exponent has
        return re.sub(r"(?<=\d)e\+?(-?)0*(?=\d)", r"e\1", re.sub(r"[\s'\"]", "", text.lower()))

    return ", ".join(
        f"{path}={value_text(value)}"
        for path, value, typed in settings
        if plain(typed.partition("=")[2]) not in (plain(value_text(value)), plain(str(value))) and typed[-2:] != ".."
    )


def assign(values: Mapping[str, object], settings: Iterable[Setting]) -> dict[str, object]:
    """Apply settings to plain values in order, but whole sections before the keys in them.

    ``strategy.gamma=1`` followed by ``strategy=relief`` would lose its value.

    Raises:
        UserError: a path leads through something that is no section.
    """
    # What comes from a record stays marked as such (``Recorded``).
    result, listed = copy.deepcopy(values if isinstance(values, dict) else dict(values)), list(settings)
    above = {path[:end] for path, *_ in listed for end, sign in enumerate(path) if sign == "."}
    for setting in sorted(listed, key=lambda s: (s.path not in above, s.path in above and s.path.count("."))):
        *parents, last = setting.path.split(".")
        node = result
        for parent in parents:
            below = node.setdefault(parent, {})
            if isinstance(below, str):
                below = node[parent] = {"name": below}
            if not isinstance(below, dict):
                raise UserError(
                    f"{setting}: {parent!r} is {shown(below)}, not a section; expected a key that holds others, see "
                    "`relief-ray config`"
                )
            node = below
        node[last] = copy.deepcopy(setting.value)
    return result


def settings_of(values: Mapping[str, object], prefix: str = "") -> Iterator[Setting]:
    """Nested values as settings by dotted path: ``{"training": {"epochs": 2}}`` as ``training.epochs``.

    Raises:
        UserError: a value is none that a configuration file could hold.
    """
    for key, value in values.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from settings_of(value, f"{path}.")
            continue
        try:
            yield Setting(path, to_jsonable_python(value, fallback=numbers_or_text))
        except (TypeError, ValueError) as error:
            raise UserError(f"{path}: found {shown(value)}, expected numbers, texts, lists or mappings") from error


_KNOWN: TypeAdapter[StrategyConfig] = TypeAdapter(AnyStrategy)


class EvaluationConfig(SwitchedConfig):
    """Evaluate ``parts`` of the data ``every`` so many rounds and after the last one."""

    _section = "evaluation"
    read_with: ClassVar[ReadWith] = (("average", "tail", ("window",)), ("average", "ema", ("decay",)))

    every: int = Field(default=5, ge=1)
    """Rounds between two evaluations."""
    parts: tuple[Literal["test", "validation"], ...] = Field(default=("test",), min_length=1)
    """``test``, ``validation`` or both."""
    average: Literal["last", "tail", "ema"] = "last"
    """Which of the server's models are tested; training is the same. ``last``: those of the round; ``tail``: the mean
    of the last ``window`` rounds; ``ema``: ``x <- decay x + (1 - decay) theta`` from the first round."""
    window: int = Field(default=5, ge=1)
    """Rounds that ``tail`` averages, the tested one included; fewer where the run is younger."""
    decay: float = Field(default=0.9, ge=0.0, lt=1.0)
    """Weight of the earlier mean in ``ema``."""


class RecordConfig(FrozenConfig):
    """Intervals in rounds."""

    checkpoint_every: int = Field(default=1, ge=1)
    """Rounds between two checkpoints."""
    pairwise_every: int = Field(default=0, ge=0)
    """Rounds between two comparisons of all pairs of clients' fusion updates; 0: never."""


class TransferConfig(FrozenConfig):
    """Formats of models and updates on the way between server and clients, the same for every method."""

    up: Format = "float32"
    """Format of updates; ``int8`` has a scale for each tensor."""
    down: Literal["float32", "float16", "bfloat16"] = "float32"
    """Format in which clients receive the server's models; they are tested in it too."""
    download: Literal["whole", "reachable"] = "whole"
    """``reachable``: a client receives no networks of sensors that it lacks."""

    @property
    def wire(self) -> Wire:
        """The same as workers take it."""
        return Wire(up=self.up, down=self.down, reachable=self.download == "reachable")


class ExperimentConfig(FrozenConfig):
    """One run: a strategy on a dataset, a fleet and a backbone.

    ``strategy``, ``backbone`` and ``data.name`` may be given by name or by import path (``my.module:MyMethod``).
    """

    name: str = "run"
    """Name of the run in tables and trackers; it changes no result."""
    strategy: SerializeAsAny[StrategyConfig] = PRESETS[REFERENCE]
    """The method and its hyperparameters."""
    data: DataConfig = DataConfig()
    """Dataset, split and sharding."""
    fleet: FleetConfig = FleetConfig()
    """The clients' devices and sensors."""
    backbone: SerializeAsAny[BackboneConfig] = CnnConfig()
    """The model: ``cnn``, ``moment_lora``, or one of your own."""
    training: TrainingConfig = TrainingConfig()
    """Local training: epochs, batch size, optimizer, learning rate, engine."""
    transfer: TransferConfig = TransferConfig()
    """Formats on the wire, and what a client receives."""
    server: ServerConfig = ServerConfig()
    """The optimizer of the server, none by default."""
    evaluation: EvaluationConfig = EvaluationConfig()
    """Parts of the data, interval, and averages over rounds."""
    metrics: tuple[str, ...] = ()
    """Functions of your own that score a model beside F1, by import path (``my_metrics:kappa``): each turns a confusion
    matrix (K, K), a row per true class, into a share (docs/metrics.md#a-metric-of-your-own)."""
    costs: CostConfig = CostConfig()
    """Simulated time and energy."""
    record: RecordConfig = RecordConfig()
    """Intervals of checkpoints and of comparisons in pairs."""
    runtime: RuntimeConfig = RuntimeConfig()
    """Placement of clients on processes."""
    tracking: TrackingConfig = TrackingConfig()
    """The copy of the records in MLflow."""
    choice: Choice | None = None
    """Provenance of tuned hyperparameters; None: they were not searched."""
    replicate: int | None = Field(default=None, ge=0)
    """Number of the repetition that ``seed`` and ``fleet.rotation`` were derived from; None: of none."""
    rounds: int = Field(default=200, ge=1, le=_MAX_ROUNDS)
    """Number of rounds R. Every method aggregates once a round."""
    seed: int = Field(default=0, ge=0)
    """Seed of all random streams."""
    participation: float = Field(default=1.0, gt=0.0, le=1.0)
    """Share of the clients that take part in a round, above 0 up to 1."""

    @model_validator(mode="after")
    def _sections_fit(self) -> ExperimentConfig:
        where = self.runtime
        if self.training.stack > 1 and (where.mode == "actors" or (where.mode, where.placement) == ("auto", "typed")):
            raise ValueError(
                f"training.stack = {self.training.stack} where every client has a host of its own (runtime.mode = "
                f"{where.mode!r}, runtime.placement = {where.placement!r}): nobody shares a step; expected "
                "runtime.mode=packed or inline, or training.stack=1"
            )
        if self.server.optimizer != "none" and (reason := self.strategy.no_average):
            raise ValueError(
                f"server.optimizer = {self.server.optimizer!r} with strategy {self.label()}: {reason}, expected a "
                "mean of updates; set server.optimizer=none, or take a method that averages (fedavg, fedprox, relief)"
            )
        if (people := self.fleet.people) and self.data.partition != "subject":
            raise ValueError(
                f"fleet.types gives devices to the people {list(people)}, but data.partition = "
                f"{self.data.partition!r} mixes people in a client; take data.partition=subject, or counts or shares"
            )
        if unknown := sorted(set(people) - set(known := self.data.spec().subjects)):
            raise ValueError(f"fleet.types: {self.data.name} has no people {unknown}, expected some of {list(known)}")
        if self.transfer.download == "reachable" and (reason := self.strategy.only_whole):
            raise ValueError(
                f"transfer.download = 'reachable' with strategy {self.label()}: {reason}, expected 'whole'; set "
                "transfer.download=whole, or take a method that trains within a client's reach (relief, harmony)"
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
            value = preset(name).model_dump() | {k: v for k, v in value.items() if k != "name"}
        return value if isinstance(value, StrategyConfig) else strictly(_KNOWN, value)

    @field_validator("metrics", mode="before")
    @classmethod
    def _paths(cls, value: object) -> object:
        names = value.split(",") if isinstance(value, str) else value
        if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
            return names
        paths = tuple(import_path(name.strip()) for name in names)
        own_metrics(paths)
        return paths

    @field_validator("backbone", mode="before")
    @classmethod
    def _named(cls, value: object) -> BackboneConfig:
        return choose_backbone(value)

    @field_serializer("strategy", "backbone", mode="wrap")
    def _with_path(self, value: BaseModel, serialise: SerializerFunctionWrapHandler) -> object:
        values = serialise(value)
        return {**values, "name": path_of(type(value))} if is_own(type(value)) else values

    def modules(self) -> tuple[str, ...]:
        """The user's own modules that take part: those of strategy, backbone, dataset, clock and metrics."""
        strategy = [path_of(type(self.strategy))] if is_own(type(self.strategy)) else []
        named = (backbone_name(self.backbone), self.data.name, self.costs.planning_time)
        return modules_of([*strategy, *named, *self.metrics])

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
            identity["costs"]["profile"] = _sha256("costs.profile", Path(self.costs.profile))
        if self.fleet.types:  # their order counts, which a hash of a mapping forgets
            identity["fleet"]["types"] = [[n, _of_content(n, figures)] for n, figures in self.fleet.types.items()]
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
        return max(fits, key=fits.__getitem__)


def _of_content(name: str, figures: Mapping[str, object]) -> dict[str, object]:
    """A device type's figures, its profile by the file's content."""
    path = figures.get("profile")
    found = {"profile": _sha256(f"fleet.types.{name}.profile", Path(path))} if isinstance(path, str) else {}
    return {**figures, **found}


def _sha256(key: str, path: Path) -> str:
    try:
        return sha256_of(read_whole(path))
    except (OSError, ValueError) as error:  # ValueError: no path on any disk, a half of a character or a NUL
        why = error.strerror if isinstance(error, OSError) else error
        raise UserError(
            f"{key} = {clipped(str(path))}: cannot be read ({why}); name a file that `relief-ray` can read"
        ) from error


# A user's methods that `_buildable` has built, by the address of their configuration, until a run takes them.
_BUILT: dict[int, Strategy] = {}


def build(config: StrategyConfig) -> Strategy:
    """Build a configuration's method. The first call for a user's method returns the one that was built to check it."""
    return _BUILT.pop(id(config), None) or config.build()


def _buildable(config: StrategyConfig) -> StrategyConfig:
    """Check that the configuration's ``build`` returns a strategy, and return the configuration.

    Raises:
        UserCodeError: it raises an error, or returns something else.
    """
    built: object = call_users(config.build)
    if not isinstance(built, Strategy):
        raise UserCodeError(
            with_line(
                config.build,
                f"{type(config).__name__}.build() returned a {type(built).__name__}, expected a "
                f"{Strategy.__module__}.{Strategy.__name__}; return one",
            )
        )
    _BUILT[id(config)] = built
    weakref.finalize(config, _BUILT.pop, id(config), None)
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
    """Hint for a strategy name that is really a value of another key, such as ``fedadam``; else empty."""
    takers = (key.key for key in all_keys() if name in key.options())
    return next((f" (a value of {key}: {Setting(key, name)})" for key in takers), "")


@cache
def all_keys() -> tuple[Key, ...]:
    """Every key of the configuration: the common ones, then those of every method and every backbone."""
    return (*keys_of(ExperimentConfig), *(key for name, kind in _CLASSES.items() for key in own_keys(kind, name)))


def own_keys(kind: type, path: str) -> tuple[Key, ...]:
    """Keys of a method or backbone alone, inherited ones included; ``path``: its name, or its class's import path.

    Raises:
        UserError: it is neither.
    """
    section = next((name for name, base in _BASES.items() if issubclass(kind, base)), None)
    if section is None:
        raise UserError(
            f"{path}: found a {kind.__name__}, which has no keys of a configuration; expected a method "
            "(StrategyConfig) or a backbone (BackboneConfig)"
        )
    return tuple(keys_of(kind, f"{section}.", path))


_BASES: Final[Mapping[str, type[StrategyConfig] | type[BackboneConfig]]] = {
    "strategy": StrategyConfig,
    "backbone": BackboneConfig,
}


def parse(values: Mapping[str, object], where: str = "configuration", why: str = ONLY_A_RECORD) -> ExperimentConfig:
    """Check plain values and return the configuration.

    ``why``: why nothing is imported that a record's values name (``Recorded``); empty: it is.

    Raises:
        UserError: one line per fault: key, what was found, what was expected.
    """
    if isinstance(values, Recorded):
        with closed(why):
            return parse(dict(values), where)
    try:
        return strictly(ExperimentConfig, dict(values))
    except ValidationError as error:
        causes = (fault.get("ctx", {}).get("error") for fault in error.errors())
        kind = UserCodeError if any(isinstance(cause, UserCodeError) for cause in causes) else UserError
        raise kind("\n".join(f"{where}: {line}" for line in explain(error, _own_keys(values)))) from error
    except UserError:
        raise
    except ValueError as error:
        raise UserError(f"{where}: {error}") from error


def recorded_config(run: RunFacts, where: str, settings: Iterable[Setting] = ()) -> ExperimentConfig:
    """Check the configuration of a run's record, changed by settings; its own code is imported where that may be.

    Raises:
        UserError: as ``parse``, or a setting leads through something that is no section.
    """
    return parse(assign(run.config, settings), where, why_closed(run.config, run.own_sources))


def as_read(values: Mapping[str, JsonValue]) -> Mapping[str, JsonValue]:
    """Parse a record's settings again, so that equal identities give equal values.

    A configuration that it cannot read, such as one that names code which is not imported, is returned as it stands.
    """
    try:
        with closed(ONLY_A_RECORD):
            return parse(values).model_dump(mode="json")
    except UserError:
        return values


def _own_keys(values: Mapping[str, object]) -> dict[str, tuple[Key, ...]]:
    """Keys of the user's own classes that unchecked values name, by section."""
    own: dict[str, tuple[Key, ...]] = {}
    for section, base in _BASES.items():
        value = values.get(section)
        name = value.get("name") if isinstance(value, Mapping) else value
        if isinstance(name, str) and is_path(name):
            with suppress(UserError):  # which the error says already
                found = load_kind(name, section, base)
                own[section] = own_keys(found if isinstance(found, type) else type(found), name)
    return own


# Pydantic's names of what it tried, which nobody has typed.
_INNER = ("function-", "tuple[", "dict[")


def explain(error: ValidationError, own: Mapping[str, Sequence[Key]] | None = None) -> list[str]:
    """Return pydantic's errors as a line each: key, what was found, what was expected; wrong keys with the nearest.

    ``own``: by section the keys of a user's own class.
    """
    lines: dict[str, None] = {}
    for fault in error.errors():
        path = ".".join(p for p in map(str, fault["loc"]) if not p.startswith(_INNER) and p not in _CLASSES)
        chosen = next((str(p) for p in fault["loc"] if p in _CLASSES), None)
        keys = (own or {}).get(path.partition(".")[0]) or [
            k for k in all_keys() if chosen is None or k.of in ("", chosen)
        ]
        if fault["type"] == "extra_forbidden":
            lines[f"{unknown_key(path, keys)}; remove or rename it"] = None
            continue
        key = next((key for key in keys if key.holds(path)), None)
        is_item = path.rpartition(".")[2].isdecimal()
        if key is not None and not is_item and not key.is_mapping:
            path = key.key  # of an alternative that was tried (`auto`)
        message = _message(
            fault, path, "" if key is None else expectation(key, path, None if is_item else fault["input"])
        )
        value = "" if isinstance(fault["input"], Mapping) else f" = {shown(fault['input'])}"
        is_named = not path or message.startswith(
            (f"{path} = ", f"{path}.")
        )  # validators of a whole section name their keys
        lines[message if is_named else f"{path}{value}: {message}"] = None
    return list(lines)


def _message(fault: ErrorDetails, path: str, fits: str) -> str:
    """Words on what was expected; ``fits``: the key's."""
    said = re.sub(r"^(Value error|Assertion failed), ", "", fault["msg"])
    match fault["type"]:
        case "value_error" | "assertion_error":
            return said
        case "missing":
            return f"found no value, {fits or 'expected one'}; set it"
        case "invalid_key":
            return "expected a name as key; quote it"
        case "model_type" | "dict_type":
            is_open = isinstance(fault["input"], str) and fault["input"][:1] in ("{", "[")
            ending = "; a bracket is missing or one too many" if is_open else ""
            return (fits or f"expected a section of keys; `relief-ray config {path}` lists them") + ending
    return fits or said


# Built-in methods and backbones by name, which pydantic's errors have as tags of a union.
_CLASSES: Mapping[str, type[BaseModel]] = {**{built_in_name(s): type(s) for s in PRESETS.values()}, **BACKBONES}
