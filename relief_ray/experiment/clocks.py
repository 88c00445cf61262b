"""Clocks, planner and accountant of a run, made from its configuration."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from relief_ray.config.experiment import ExperimentConfig
from relief_ray.core.groups import GroupLayout
from relief_ray.core.messages import Fleet
from relief_ray.core.stages import Engine
from relief_ray.devices.accounting import CostAccountant, WholeRounds
from relief_ray.devices.calibration import utilisations
from relief_ray.devices.clocks import build_clocks
from relief_ray.devices.fleet import device_types
from relief_ray.devices.planner import CostPlanner, Counter, assumed_engine
from relief_ray.devices.time import ClockContext, Measured, Profile, TimeModel, load_profile
from relief_ray.devices.types import DeviceType
from relief_ray.devices.workload import ADAM_FLOPS_PER_VALUE
from relief_ray.models.backbone import InputShape
from relief_ray.models.cnn import CnnConfig
from relief_ray.models.registry import backbone_name
from relief_ray.plugins.load import is_path
from relief_ray.support.errors import UserError

Settings = dict[str, "str | int | float | None"]
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


def profile_settings(config: ExperimentConfig, shape: InputShape) -> Settings:
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
    if not isinstance(clock, Measured) or clock.profile.measured is None:
        return ()
    seen, wanted = clock.profile.measured.settings, profile_settings(config, shape)
    ignored = {BATCH, *(f"backbone.{k}" for k in config.backbone.same_speed)}
    keys = [k for k in (wanted | seen) if k not in ignored and seen.get(k) != wanted.get(k)]
    other = [f"{k} {seen.get(k)!r} (here {wanted.get(k)!r})" for k in keys]
    if not other:
        return ()
    return (f"{config.costs.profile}: measured with {'; '.join(other)}: its seconds are extrapolated; profile again",)


def _device_profile(config: ExperimentConfig, engine: Engine | None) -> Profile | None:
    """The device profile that the configuration names, if it names one.

    Raises:
        UserError: the profile cannot be read, or was made with another backbone or engine.
    """
    if config.costs.profile is None:
        return None
    profile = load_profile(Path(config.costs.profile))
    if profile.backbone != (name := backbone_name(config.backbone)):
        raise UserError(
            f"{config.costs.profile}: measured with backbone {profile.backbone!r}, expected {name!r}; "
            "profile the device with this backbone"
        )
    if None not in (engine, profile.engine) and profile.engine != engine:
        raise UserError(
            f"{config.costs.profile}: measured with engine {profile.engine!r}, this run trains with {engine!r}; "
            f"profile the device with --set training.engine={engine}"
        )
    return profile


def make_accountant(
    config: ExperimentConfig,
    counter: Counter,
    plain: GroupLayout,
    types: dict[str, DeviceType],
    clocks: dict[str, TimeModel],
    engine: Engine,
) -> CostAccountant:
    """The accountant of a run, with its ``costs.accounting``; ``plain``: the layout of the backbone's own groups."""
    training = config.training
    whole_rounds = WholeRounds(
        layout=counter.layout,
        own=counter.layout.select(plain.ids),
        epochs=training.epochs,
        batch_size=training.batch_size,
        engine=engine,
    )
    charged_whole = config.costs.accounting == "table" and config.strategy.paper_accounting == "fedavg"
    return CostAccountant(
        counter=counter,
        types=types,
        clocks=clocks,
        whole=whole_rounds if charged_whole else None,
        count_server_time=config.costs.count_server_time,
    )


def make_planner(
    config: ExperimentConfig,
    counter: Counter,
    fleet: Fleet,
    types: dict[str, DeviceType],
    clock: TimeModel,
    engine: Engine,
) -> CostPlanner:
    """The planner that the allocator asks: ``clock`` on the run's fleet."""
    assumed = clock.engine or assumed_engine(engine)
    batch_size = config.training.batch_size
    return CostPlanner(counter=counter, fleet=fleet, types=types, model=clock, engine=assumed, batch_size=batch_size)
