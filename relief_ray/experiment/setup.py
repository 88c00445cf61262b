"""From a configuration to everything a run needs: data, fleet, backbone, strategy, clocks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from relief_ray.config import ExperimentConfig
from relief_ray.data import FederatedData, federate, num_clients, open_dataset, pool
from relief_ray.data.federated_data import Purpose
from relief_ray.data.window_set import WindowSet
from relief_ray.devices.fleet import build_fleet, with_windows
from relief_ray.devices.planner import CostAccountant, CostPlanner, Counter, assumed_engine
from relief_ray.devices.types import DeviceType
from relief_ray.experiment.clocks import foreign_profile, make_accountant, make_planner, run_clocks, uncalibrated
from relief_ray.extra_modules import ExtraModule
from relief_ray.federated import RoundContext, Strategy
from relief_ray.groups import GroupLayout, Params
from relief_ray.messages import ClientInfo, Fleet, RoundCost
from relief_ray.models.backbone import Backbone, BackboneNetwork, InputShape, build_verified
from relief_ray.models.costs import count_costs
from relief_ray.models.extra.build import with_extra_modules
from relief_ray.models.registry import require_gemm
from relief_ray.stages import Engine
from relief_ray.strategies.relief.strategy import Relief, target_s
from relief_ray.strategies.warnings import starved, unreached
from relief_ray.streams import Streams
from relief_ray.training.config import trainer_config
from relief_ray.training.job import Job


@dataclass(frozen=True, kw_only=True, slots=True)
class Setup:
    """A run, ready to start; nothing here changes afterwards.

    ``layout``: the backbone's groups and those that the strategy added; ``num_own_values`` counts the former alone.
    """

    config: ExperimentConfig
    data: FederatedData
    fleet: Fleet
    types: dict[str, DeviceType]
    layout: GroupLayout
    num_own_values: int
    start: Params
    frozen: Mapping[str, str | int]
    warnings: tuple[str, ...]
    strategy: Strategy
    streams: Streams
    engine: Engine
    planner: CostPlanner
    accountant: CostAccountant
    fedavg: CostAccountant
    reference: dict[str, RoundCost]
    rare: tuple[str, ...]
    build: Callable[[], BackboneNetwork]
    job: Job


def choose_engine(config: ExperimentConfig) -> Engine:
    """The static rule: GEMMs where the backbone has them (Backbone 1), else reuse; ``training.engine`` overrides it."""
    if config.training.engine == "gemm":
        require_gemm(config.backbone)
    automatic: Engine = "gemm" if config.backbone.has_gemm else "reuse"
    return automatic if config.training.engine == "auto" else config.training.engine


def prepare(
    config: ExperimentConfig, root: Path | None = None, purpose: Purpose = "run", engine: Engine | None = None
) -> Setup:
    """Opens the data, builds fleet, backbone and clocks; ``engine`` is given where a run is resumed.

    Raises:
        UserError: whatever is wrong with data, fleet or costs, with the place and the fix.
    """
    dataset = open_dataset(config.data, root)
    number = num_clients(dataset, config.data)
    fleet, types = build_fleet(config.fleet, dataset.spec.names, dataset.spec.type_counts, number)
    data = federate(dataset, config.data, [c.modalities for c in fleet.clients], purpose)
    setup = assemble(
        config, data, with_windows(fleet, [len(c) for c in data.clients]), types, engine or choose_engine(config)
    )
    return pool_clients(setup) if setup.strategy.pooled else with_hints(setup)


def with_hints(setup: Setup) -> Setup:
    """The same, warned where a deadline leaves nobody a choice, or a run ends before its method's later phase."""
    own, first, last = setup.config, context_of(setup, 1), context_of(setup, setup.config.rounds)
    found = starved(own.strategy, first, own.costs.planning_time), unreached(own.strategy, last, own.participation)
    return replace(setup, warnings=(*setup.warnings, *filter(None, found)))


def pool_clients(setup: Setup) -> Setup:
    """One Type-A client with everybody's training windows and all sensors (the ``central`` bound)."""
    windows = pool(setup.data.clients)
    everyone = ClientInfo(id=0, name="central", device="A", modalities=setup.fleet.modalities, num_windows=len(windows))
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
    """Puts strategy, backbone, clocks and job together."""
    strategy = config.strategy.build()
    streams = Streams(seed=config.seed)
    plain = build_backbone(config, input_shape(data), engine)
    additions = strategy.adapt(plain.layout, fleet)
    build = partial(build_backbone, config, input_shape(data), engine, additions)
    backbone = build() if additions else plain
    clocks = run_clocks(config, engine)
    accountant = make_accountant(config, count(backbone, config), plain.layout, types, clocks, engine)
    fedavg = replace(accountant, counter=count(plain, config)) if additions else accountant
    planner = make_planner(config, accountant.counter, fleet, types, clocks[config.costs.planning_time], engine)
    return Setup(
        config=config,
        data=data,
        fleet=fleet,
        types=types,
        layout=backbone.layout,
        num_own_values=plain.layout.numel,
        start=backbone.params(),
        frozen=backbone.facts,
        warnings=(*backbone.warnings, *uncalibrated(config), *foreign_profile(config, backbone.shape, clocks)),
        strategy=strategy,
        streams=streams,
        engine=engine,
        planner=planner,
        accountant=accountant,
        fedavg=fedavg,
        reference=fedavg_reference(config, fedavg, fleet, engine),
        rare=fleet.rare(),
        build=partial(build_network, config, input_shape(data), additions, dict(backbone.facts)),
        job=replace(make_job(config, data, planner, build, strategy, streams, engine), frozen=dict(backbone.facts)),
    )


def count(backbone: Backbone, config: ExperimentConfig) -> Counter:
    """What ``backbone`` costs under the run's missing mode."""
    return Counter(count_costs(backbone), backbone.layout, config.training.missing)


def fedavg_reference(
    config: ExperimentConfig,
    accountant: CostAccountant,
    fleet: Fleet,
    engine: Engine,
    participants: Collection[int] | None = None,
) -> dict[str, RoundCost]:
    """A FedAvg round on the plain backbone, whatever the strategy adds to it: the 1.00x of every comparison."""
    return accountant.fedavg_reference(
        fleet,
        epochs=config.training.epochs,
        batch_size=config.training.batch_size,
        engine=assumed_engine(engine),
        participants=participants,
    )


def make_job(
    config: ExperimentConfig,
    data: FederatedData,
    planner: CostPlanner,
    build: Callable[[], Backbone],
    strategy: Strategy,
    streams: Streams,
    engine: Engine,
) -> Job:
    """What the workers are sent."""
    return Job(
        build=build,
        trainer=trainer_config(config.training, engine),
        fleet=planner.fleet,
        clients=data.clients,
        parts={part: getattr(data, part) for part in config.evaluation.parts},
        program=strategy.client,
        reduction=strategy.reduction,
        streams=streams,
        planner=planner,
        modules=config.modules(),
        num_threads=config.runtime.num_threads,
        cache_mib=config.runtime.cache_mib,
        pairwise_every=config.record.pairwise_every,
    )


def input_shape(data: FederatedData) -> InputShape:
    """What the backbone sees of a dataset."""
    return InputShape(channels=tuple(data.spec.modalities), window=data.spec.window, num_classes=len(data.spec.classes))


def build_backbone(
    config: ExperimentConfig, shape: InputShape, engine: Engine, additions: tuple[ExtraModule, ...] = ()
) -> Backbone:
    """The backbone with the run's own initialisation, and what the strategy adds to it."""
    seed = int(Streams(seed=config.seed).numpy("model").integers(2**31))
    return with_extra_modules(config.backbone.build(shape, seed, fast=engine == "gemm"), additions, seed)


def build_network(
    config: ExperimentConfig, shape: InputShape, additions: tuple[ExtraModule, ...], frozen: Mapping[str, str | int]
) -> BackboneNetwork:
    """The backbone for the server's own computations: the same layout and function whatever the workers' engine."""
    same = build_verified(partial(build_backbone, config, shape, "naive", additions), frozen)
    return BackboneNetwork(same, config.training.missing)


def context_of(setup: Setup, round_: int, participants: tuple[ClientInfo, ...] | None = None) -> RoundContext:
    """What the strategy sees in that round."""
    return RoundContext(
        round=round_,
        num_rounds=setup.config.rounds,
        fleet=setup.fleet,
        layout=setup.layout,
        participants=setup.fleet.clients if participants is None else participants,
        planner=setup.planner,
        streams=setup.streams,
        epochs=setup.config.training.epochs,
        build=setup.build,
        public=setup.data.validation,
        batch_size=setup.config.training.batch_size,
    )


def subject_names(setup: Setup, windows: WindowSet) -> list[str]:
    """The subjects of a part in the order of its confusion matrices."""
    return [str(setup.data.spec.subjects[int(i)]) for i in sorted(set(windows.subjects.tolist()))]


def deadline_s(setup: Setup) -> float | None:
    """``T*`` where the strategy has one."""
    config = setup.config.strategy
    return target_s(config, context_of(setup, 1)) if isinstance(config, Relief) and config.select != "all" else None


def fedavg_costs(setup: Setup, participants: tuple[ClientInfo, ...]) -> dict[str, RoundCost]:
    """A FedAvg round of these clients under every clock; the rest of the fleet waits."""
    if len(participants) == len(setup.fleet):
        return setup.reference
    return fedavg_reference(setup.config, setup.fedavg, setup.fleet, setup.engine, [c.id for c in participants])
