"""Builds everything that a run needs from its configuration: data, fleet, backbone, strategy, clocks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from relief_ray.config.experiment import ExperimentConfig, build
from relief_ray.core.codec import Broadcast
from relief_ray.core.extra_modules import ExtraModule
from relief_ray.core.federated import PlannedRun, RoundContext, Strategy
from relief_ray.core.groups import GroupLayout, Params
from relief_ray.core.messages import ClientInfo, Fleet, RoundCost
from relief_ray.core.stages import Engine
from relief_ray.core.streams import Streams
from relief_ray.data import FederatedData, federate, num_clients, open_dataset, pool
from relief_ray.data.describe import data_warnings
from relief_ray.data.federated_data import Purpose
from relief_ray.data.loader import DatasetSpec
from relief_ray.data.partition import people_of
from relief_ray.data.window_set import WindowSet
from relief_ray.devices.accounting import CostAccountant, CostPlanner, Counter, WholeRounds, assumed_engine
from relief_ray.devices.calibration import utilisations
from relief_ray.devices.fleet import DeviceType, build_fleet, device_types, with_windows
from relief_ray.devices.time import ClockContext, MeasuredClock, Profile, TimeModel, build_clocks, load_profile
from relief_ray.devices.workload import ADAM_FLOPS_PER_VALUE
from relief_ray.kernels.library import require_library, why_missing
from relief_ray.models.backbone import Backbone, BackboneNetwork, Facts, InputShape, build_verified
from relief_ray.models.cnn import CnnConfig
from relief_ray.models.costs import count_costs
from relief_ray.models.extra import with_extra_modules
from relief_ray.models.registry import backbone_name, build_checked, require_engine
from relief_ray.plugins.blame import take_as_users
from relief_ray.plugins.contract import guarded
from relief_ray.plugins.load import is_path
from relief_ray.records.metrics import OwnMetric, own_metrics, own_value
from relief_ray.support.errors import Setting, UserError, listed, several
from relief_ray.support.process import choose_device
from relief_ray.training.config import trainer_config
from relief_ray.training.evaluation import CHUNK
from relief_ray.training.job import Job

# Clocks, planner and accountant of a run, made from its configuration.


SpeedSettings = dict[str, "str | int | float | None"]
# The one setting of a profile that a run may have otherwise.
BATCH = "windows_per_batch"


def run_clocks(config: ExperimentConfig, engine: Engine | None = None) -> dict[str, TimeModel]:
    """All clocks of a record by name; ``engine`` is the one that trains.

    Raises:
        UserError: a clock that needs a device profile is to plan, but no profile is given or it does not fit.
    """
    name = backbone_name(config.backbone)
    context = ClockContext(
        backbone=name,
        utilisation=utilisations(CnnConfig().name if is_path(name) else name, config.costs.utilisation),
        types=device_types(config.fleet),
        profile=_device_profile(config, engine),
    )
    return build_clocks(context, config.costs.planning_time)


def uncalibrated(config: ExperimentConfig) -> tuple[str, ...]:
    """A warning where a user's own backbone has no fitted utilisation: seconds and joules are Backbone 1's."""
    name = backbone_name(config.backbone)
    if not is_path(name) or config.costs.utilisation is not None:
        return ()
    return (f"backbone {name}: not calibrated, seconds and joules take Backbone 1's utilisation; costs.utilisation=U",)


def profile_settings(config: ExperimentConfig, shape: InputShape) -> SpeedSettings:
    """Settings that a profile's speeds depend on, machine and batch size aside; None is a setting too."""
    backbone, training = config.backbone.model_dump(mode="json"), config.training
    return {
        "window": shape.window,
        "channels": ", ".join(f"{m} {c}" for m, c in shape.channels),
        "missing": training.missing,
        "autocast": training.autocast,
        "micro_batch": training.micro_batch,
        # Profiles were timed with Adam before others existed: they have no such key.
        **({} if training.optimizer_flops == ADAM_FLOPS_PER_VALUE else {"optimizer_flops": training.optimizer_flops}),
        **{f"backbone.{k}": v for k, v in backbone.items() if k not in config.backbone.same_speed},
    }


def foreign_profile(config: ExperimentConfig, shape: InputShape, clocks: Mapping[str, TimeModel]) -> tuple[str, ...]:
    """A warning where the device profile was measured with another shape, size or rank than the run's."""
    clock = clocks.get("measured")
    if not isinstance(clock, MeasuredClock) or clock.profile.measured is None:
        return ()
    seen, wanted = clock.profile.measured.settings, profile_settings(config, shape)
    ignored = {BATCH, *(f"backbone.{k}" for k in config.backbone.same_speed)}
    keys = [k for k in (wanted | seen) if k not in ignored and seen.get(k) != wanted.get(k)]
    other = [f"{k} {seen.get(k)!r} (here {wanted.get(k)!r})" for k in keys]
    if not other:
        return ()
    place = config.costs.profile or "profile of fleet.types"
    return (f"{place}: measured with {'; '.join(other)}: its seconds are extrapolated; profile again",)


def _device_profile(config: ExperimentConfig, engine: Engine | None) -> Profile | None:
    """The device profile that the configuration names, with rows of those that device types name; None: none is.

    Where only some types have one, it is of use to the clock that plans with it alone.

    Raises:
        UserError: a profile cannot be read, or was made with another backbone or engine, or has several rows, none of
            its type.
    """
    types = device_types(config.fleet)
    base = None if config.costs.profile is None else _profile_of(config, config.costs.profile, engine)
    rows, last = dict(base.devices) if base else {}, base
    for name, kind in types.items():
        if kind.profile is not None:
            last = _profile_of(config, kind.profile, engine)
            if name not in last.devices and len(last.devices) > 1:
                raise UserError(f"fleet.types.{name}.profile: {kind.profile} has rows for {listed(last.devices)}")
            rows[name] = last.devices.get(name) or next(iter(last.devices.values()))
    is_partial = base is None and not types.keys() <= rows.keys()
    if last is None or (is_partial and config.costs.planning_time != MeasuredClock.name):
        return None
    return (base or last).model_copy(update={"devices": rows})


def _profile_of(config: ExperimentConfig, path: str, engine: Engine | None) -> Profile:
    profile = load_profile(Path(path))
    if profile.backbone != (name := backbone_name(config.backbone)):
        raise UserError(
            f"{path}: measured with backbone {profile.backbone!r}, expected {name!r}; "
            "profile the device with this backbone"
        )
    if None not in (engine, profile.engine) and profile.engine != engine:
        raise UserError(
            f"{path}: measured with engine {profile.engine!r}, this run trains with {engine!r}; "
            f"profile the device with {Setting('training.engine', engine)}"
        )
    return profile


@dataclass(frozen=True, kw_only=True, slots=True)
class Planned:
    """The parts of a set-up that decide a run's rounds and their costs."""

    config: ExperimentConfig
    fleet: Fleet
    types: dict[str, DeviceType]
    """Device types by name."""
    layout: GroupLayout
    """The groups, those that the strategy added among them."""
    strategy: Strategy
    engine: Engine
    """How training steps are computed; clocks without one of their own count it."""
    planner: CostPlanner
    """Time model of the allocation: what the allocator asks."""
    accountant: CostAccountant
    """Turns receipts into simulated costs."""
    fedavg: CostAccountant
    """That of the backbone without the method's additions; it prices FedAvg's round (1.00x)."""
    received: Broadcast
    """The server's models as clients decode them."""

    @property
    def streams(self) -> Streams:
        """Random generators by purpose, round and client."""
        return Streams(seed=self.config.seed)

    def there(self, round_: int) -> tuple[ClientInfo, ...]:
        """Return the clients that are there in a round, drawn by round and client (``fleet.types``, ``available``)."""
        chances = {name: kind.available for name, kind in self.types.items()}

        def is_there(client: ClientInfo) -> bool:
            chance = chances[client.device]
            return chance == 1.0 or self.streams.numpy("fleet.available", round_, client.id).random() < chance

        return tuple(filter(is_there, self.fleet.clients))

    def missed(self, round_: int) -> tuple[str, ...]:
        """Return a line on the types of which nobody is there in a round, but in the round before."""
        if all(kind.available == 1.0 for kind in self.types.values()):
            return ()
        after, before = ({c.device for c in self.there(n)} for n in (round_, round_ - 1))
        own = {c.device for c in self.fleet.clients}
        gone = [name for name in self.types if name in own - after and (name in before or round_ == 1)]
        types = f"type{'s' * (len(gone) > 1)} {listed(gone)}" if gone else ""
        return (f"round {round_}: nobody of {types} is there (available)",) if gone else ()

    def context(self, round_: int = 1, participants: tuple[ClientInfo, ...] | None = None) -> RoundContext:
        """Return the method's input in a round of these clients, of all by default."""
        return RoundContext(
            round=round_,
            num_rounds=self.config.rounds,
            fleet=self.fleet,
            layout=self.layout,
            participants=self.fleet.clients if participants is None else participants,
            planner=self.planner,
            streams=self.streams,
            epochs=self.config.training.epochs,
            batch_size=self.config.training.batch_size,
            received=self.received,
            reachable=self.config.transfer.wire.reachable,
            momentum=self.config.training.momentum,
        )

    def fedavg_reference(self, participants: Collection[int] | None = None) -> dict[str, RoundCost]:
        """Cost by clock of a FedAvg round of all clients, or of some, without additions: the 1.00x of comparisons."""
        return self.fedavg.fedavg_reference(
            self.fleet,
            epochs=self.config.training.epochs,
            batch_size=self.config.training.batch_size,
            engine=assumed_engine(self.engine),
            participants=participants,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Model(Planned):
    """The parts of a run's set-up that do not need its data."""

    plain: Backbone
    """The backbone without the method's additions."""
    additions: tuple[ExtraModule, ...]
    backbone: Backbone
    """The backbone with them."""


def model_of(
    config: ExperimentConfig,
    spec: DatasetSpec,
    fleet: Fleet,
    types: dict[str, DeviceType],
    engine: Engine,
    clocks: dict[str, TimeModel] | None = None,
) -> Model:
    """Build method, backbone and costs; ``clocks``: other than the present ones.

    Raises:
        UserError: backbone or costs are wrong; place and fix are named.
    """
    strategy, shape = guarded(build(config.strategy)), input_shape(spec)
    plain = build_backbone(config, shape, "naive")  # costs are counted on torch's own operations
    additions = strategy.adapt(plain.layout, fleet)
    backbone = build_backbone(config, shape, "naive", additions) if additions else plain
    clocks = clocks or run_clocks(config, engine)
    counter, clock, batch_size = count(backbone, config), clocks[config.costs.planning_time], config.training.batch_size
    whole_rounds = WholeRounds(
        counter=counter,
        own=counter.layout.select(plain.layout.ids),
        epochs=config.training.epochs,
        batch_size=batch_size,
        engine=engine,
    )
    charged_whole = config.costs.accounting == "table" and config.strategy.paper_accounting == "fedavg"
    accountant = CostAccountant(
        counter=counter,
        types=types,
        clocks=clocks,
        whole=whole_rounds if charged_whole else None,
        count_server_time=config.costs.count_server_time,
    )
    return Model(
        config=config,
        fleet=fleet,
        types=types,
        layout=counter.layout,
        strategy=strategy,
        engine=engine,
        plain=plain,
        additions=additions,
        backbone=backbone,
        planner=CostPlanner(
            counter=counter,
            fleet=fleet,
            types=types,
            model=clock,
            engine=clock.engine or assumed_engine(engine),
            batch_size=batch_size,
        ),
        accountant=accountant,
        fedavg=accountant if backbone is plain else replace(accountant, counter=count(plain, config)),
        received=Broadcast(layout=counter.layout, form=config.transfer.down),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Setup(Planned):
    """A run, ready to start; nothing in it changes afterwards.

    Attributes:
        data: windows of all clients and parts.
        num_own_values: number of values of the plain backbone.
        start: initial parameters by group.
        warnings: lines for the user.
        reference: FedAvg's round of all clients, by time model.
        rare: modalities of the smallest cohorts.
        build: makes the backbone for the server's own computations.
        job: everything that workers are sent.
        metrics: the user's own metrics, by name.
        data_warnings: oddities of the data, a sentence each (``relief_ray.data.describe``).
        data_folder: where the raw files were found.
    """

    data: FederatedData
    num_own_values: int
    start: Params
    warnings: tuple[str, ...]
    reference: dict[str, RoundCost]
    rare: tuple[str, ...]
    build: Callable[[], BackboneNetwork]
    job: Job
    metrics: Mapping[str, OwnMetric]
    data_warnings: tuple[str, ...] = ()
    data_folder: str = ""


def choose_engine(config: ExperimentConfig) -> Engine:
    """Choose the engine: the backbone's fastest that works here, else reuse, or as ``training.engine`` says.

    Raises:
        UserError: the one that is named does not work with this backbone or here.
    """
    chosen = config.training.engine
    if chosen == "auto":
        able: tuple[Engine, ...] = (*config.backbone.engines, "reuse")
        return next(engine for engine in able if engine != "fused" or not (_unfit(config) or why_missing()))
    require_engine(config.backbone, chosen)
    if chosen == "fused" and (why := _unfit(config) or why_missing()):
        raise UserError(f"training.engine = 'fused': {why}; take 'auto'")
    return chosen


def _unfit(config: ExperimentConfig) -> str:
    """Why the kernels are not for a run, whatever machine it is on; empty: they are."""
    training = config.training
    device = choose_device("auto") if training.device == "auto" else training.device
    if config.device_by_host:
        return "its kernels are for a CPU, expected training.device=cpu, found auto in a physical run"
    if device != "cpu":
        return f"its kernels are for a CPU, expected training.device=cpu, found {device}"
    if training.autocast != "none" or training.stack > 1:
        return "its kernels are float32 and of one client, expected training.autocast=none and training.stack=1"
    return ""


def prepare(config: ExperimentConfig, purpose: Purpose = "run", engine: Engine | None = None) -> Setup:
    """Open the data and build fleet, backbone and clocks; ``engine`` is given where a run is resumed.

    Raises:
        UserError: data, fleet or costs are wrong; place and fix are named.
    """
    if engine == "fused":
        require_library()
    take_as_users(config.modules())  # those that a program of the user's passed as objects too
    dataset = open_dataset(config.data)
    fleet, types = configured_fleet(config, num_clients(dataset, config.data))
    data = federate(dataset, config.data, [c.modalities for c in fleet.clients], purpose)
    setup = assemble(
        config, data, with_windows(fleet, [len(c) for c in data.clients]), types, engine or choose_engine(config)
    )
    oddities = data_warnings(dataset, config.data, data)
    setup = replace(setup, data_warnings=oddities, data_folder=str(dataset.source.path))
    if config.strategy.pooled:
        return _pool_clients(setup)
    planned = PlannedRun(
        context=context_of(setup, 1), clock=config.costs.planning_time, participation=config.participation
    )
    return replace(setup, warnings=(*setup.warnings, *setup.strategy.insight.warnings(planned)))


def configured_fleet(config: ExperimentConfig, num_clients: int) -> tuple[Fleet, dict[str, DeviceType]]:
    """Build so many clients, without windows, and the device types; no file of the dataset is read."""
    spec = config.data.spec()
    return build_fleet(config.fleet, spec.names, people_of(config.data, num_clients), spec.name, spec.lacks)


def _pool_clients(setup: Setup) -> Setup:
    """Replace the fleet by one client of the first type with all windows and all sensors (the ``central`` bound).

    Raises:
        UserError: some of these windows are of people who lack a sensor.
    """
    windows = pool(setup.data.clients)
    if windows.lacking():
        people, lacks = setup.config.data.subject_ids(), setup.data.spec.lacks
        raise UserError(
            f"strategy {setup.strategy.name}: trains one client with all sensors on everybody's windows, found people "
            f"without some of them ({several('subject', [s for s in people if lacks.get(s)])}, DatasetSpec.lacks); "
            f"leave the method out, or those people: data.subjects={[s for s in people if not lacks.get(s)]}"
        )
    everyone = ClientInfo(
        id=0,
        name=setup.strategy.name,
        device=setup.fleet.order[0],
        modalities=setup.fleet.modalities,
        num_windows=len(windows),
    )
    fleet = replace(setup.fleet, clients=(everyone,))
    return replace(
        setup,
        fleet=fleet,
        planner=replace(setup.planner, fleet=fleet),
        job=replace(setup.job, fleet=fleet, clients=(windows,)),
    )


def assemble(
    config: ExperimentConfig, data: FederatedData, fleet: Fleet, types: dict[str, DeviceType], engine: Engine
) -> Setup:
    """Build strategy, backbone, clocks and job."""
    model = model_of(config, data.spec, fleet, types, engine)
    backbone, metrics = model.backbone, own_metrics(config.metrics)
    if backbone.statistics and config.transfer.wire.reachable and config.training.missing == "zero_input":
        raise UserError(
            "transfer.download = 'reachable' with training.missing = 'zero_input': absent sensors' networks keep "
            "statistics of BatchNorm, which no row can stand for; expected transfer.download=whole, or "
            "training.missing=zero_feature"
        )
    for name, function in metrics.items():  # a fault is told before the first round
        own_value(name, function, np.ones((backbone.shape.num_classes,) * 2, dtype=np.int64))
    return Setup(
        config=config,
        fleet=fleet,
        types=types,
        layout=model.layout,
        strategy=model.strategy,
        engine=engine,
        planner=model.planner,
        accountant=model.accountant,
        fedavg=model.fedavg,
        received=model.received,
        data=data,
        num_own_values=model.plain.layout.numel,
        start=backbone.params(),
        warnings=(
            *_warnings(backbone, config, engine),
            *foreign_profile(config, backbone.shape, model.accountant.clocks),
        ),
        reference=model.fedavg_reference(),
        rare=fleet.rare(),
        metrics=metrics,
        build=partial(_build_network, config, backbone.shape, model.additions, dict(backbone.facts)),
        job=Job(
            build=partial(build_backbone, config, model.plain.shape, engine, model.additions),
            layout=model.layout,
            trainer=trainer_config(config.training, engine, config.rounds, config.transfer.wire),
            fleet=fleet,
            clients=data.clients,
            parts={part: getattr(data, part) for part in config.evaluation.parts},
            program=model.strategy.client,
            reduction=model.strategy.reduction,
            streams=model.streams,
            planner=model.planner,
            modules=config.modules(),
            num_threads=config.runtime.num_threads,
            cache_mib=config.runtime.cache_mib,
            pairwise_every=config.record.pairwise_every,
            frozen=dict(backbone.facts),
            calibration=_calibration(backbone, data, model.streams),
            data=data.reference,
            device_by_host=config.device_by_host,
        ),
    )


def _calibration(backbone: Backbone, data: FederatedData, streams: Streams) -> WindowSet | None:
    """Draw the validation windows whose statistics BatchNorm takes in the global model (``docs/adr/0025``).

    They are of people who have every sensor.
    """
    if not backbone.statistics:
        return None
    windows = data.validation.complete()
    if not len(windows):
        raise UserError(
            "backbone: BatchNorm in the global model takes its statistics from validation windows of people with all "
            "sensors, but there are none; raise data.validation_fraction, or take GroupNorm"
        )
    order = streams.numpy("statistics").permutation(len(windows))
    return windows.take(np.sort(order[: backbone.chunk or CHUNK]))


def _warnings(backbone: Backbone, config: ExperimentConfig, engine: Engine) -> tuple[str, ...]:
    """Lines about the backbone: its own, a slower engine, BatchNorm's statistics, and what was not calibrated."""
    text = (
        f"BatchNorm: running statistics of {len(backbone.statistics.layers)} layers stay on each client; the global "
        f"model is evaluated with those of up to {backbone.chunk or CHUNK} validation windows"
    )
    if config.training.missing == "zero_input":
        text += "; an absent sensor's encoder has none: training.missing=zero_feature leaves it out"
    is_slower = "fused" in config.backbone.engines and config.training.engine == "auto" and engine != "fused"
    why = why_missing() if is_slower and not _unfit(config) else ""
    slower = f"training.engine=auto is {engine} here, which takes longer: {why}" if why else ""
    lines = (slower, text if backbone.statistics else "")
    return (*backbone.warnings, *filter(None, lines), *uncalibrated(config))


def count(backbone: Backbone, config: ExperimentConfig) -> Counter:
    """Count the costs of ``backbone`` under the run's missing mode, optimizer and formats."""
    training, wire = config.training, config.transfer.wire
    return Counter(count_costs(backbone), backbone.layout, training.missing, training.optimizer_flops, wire)


def input_shape(spec: DatasetSpec) -> InputShape:
    """Return the shape of a dataset's windows and the number of its classes."""
    return InputShape(channels=tuple(spec.modalities), window=spec.window, num_classes=len(spec.classes))


def build_backbone(
    config: ExperimentConfig, shape: InputShape, engine: Engine, additions: tuple[ExtraModule, ...] = ()
) -> Backbone:
    """Build the backbone with the run's initialisation and the strategy's additions."""
    seed = int(Streams(seed=config.seed).numpy("model").integers(2**31))
    return with_extra_modules(build_checked(config.backbone, shape, seed, engine), additions, seed)


def _build_network(
    config: ExperimentConfig, shape: InputShape, additions: tuple[ExtraModule, ...], frozen: Facts
) -> BackboneNetwork:
    """Build the backbone for the server's own computations: same layout and function for every engine of workers."""
    same = build_verified(partial(build_backbone, config, shape, "naive", additions), frozen)
    return BackboneNetwork(same, config.training.missing)


def context_of(setup: Setup, round_: int, participants: tuple[ClientInfo, ...] | None = None) -> RoundContext:
    """Return the strategy's input in a round, including its means to compute on the server."""
    context = setup.context(round_, participants)
    return replace(context, build=setup.build, public=setup.data.validation.complete())


def subject_names(setup: Setup, windows: WindowSet) -> list[str]:
    """Names of a part's subjects in the order of its confusion matrices."""
    return [str(setup.data.spec.subjects[i]) for i in np.unique(windows.subjects)]


def deadline_s(setup: Setup) -> float | None:
    """``T*`` in seconds where the strategy has one, else None."""
    target_s = setup.strategy.insight.deadline_s
    return None if target_s is None else target_s(context_of(setup, 1))


def fedavg_costs(setup: Setup, participants: tuple[ClientInfo, ...]) -> dict[str, RoundCost]:
    """Cost of a FedAvg round of these clients by time model; the rest of the fleet waits."""
    if len(participants) == len(setup.fleet):
        return setup.reference
    return setup.fedavg_reference([c.id for c in participants])
