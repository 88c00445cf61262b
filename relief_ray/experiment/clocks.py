"""What a run believes about time: its clocks, and the planner that the allocator asks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from relief_ray.config import ExperimentConfig
from relief_ray.devices.accounting import CHARGED_WHOLE, WholeRounds
from relief_ray.devices.calibration import time_models
from relief_ray.devices.planner import Clock, CostAccountant, CostPlanner, Counter, assumed_engine, standard_clocks
from relief_ray.devices.time import Measured, load_profile
from relief_ray.devices.types import DeviceType
from relief_ray.errors import UserError
from relief_ray.groups import GroupLayout
from relief_ray.messages import Fleet
from relief_ray.models.backbone import InputShape
from relief_ray.models.cnn import CnnConfig
from relief_ray.models.registry import backbone_name
from relief_ray.plugins import is_path
from relief_ray.stages import Engine

Settings = dict[str, "str | int | float | None"]
# The one setting of a profile that a run may have otherwise; and what a file without the key was measured with.
BATCH, UNSAID = "windows_per_batch", Settings({"autocast": "none"})


def run_clocks(config: ExperimentConfig, engine: Engine | None = None) -> dict[str, Clock]:
    """All clocks of a record; ``engine`` is the one that trains.

    Raises:
        UserError: the ``measured`` clock is asked to plan, but no profile is given.
    """
    name = backbone_name(config.backbone)
    paper, split = time_models(CnnConfig().name if is_path(name) else name, config.costs.utilisation)
    measured = measured_clock(config, engine)
    clocks = standard_clocks(paper, split, measured)
    if config.costs.planning_time not in clocks:
        raise UserError("costs.planning_time = 'measured' needs a device profile; set costs.profile=FILE")
    return clocks


def uncalibrated(config: ExperimentConfig) -> tuple[str, ...]:
    """What has to be said of the seconds of a user's own backbone: nobody fitted a device's speed to it."""
    name = backbone_name(config.backbone)
    if not is_path(name) or config.costs.utilisation is not None:
        return ()
    return (f"backbone {name}: not calibrated, seconds and joules take Backbone 1's utilisation; costs.utilisation=U",)


def profile_settings(config: ExperimentConfig, shape: InputShape) -> Settings:
    """What a profile's paces depend on, short of machine and batch; None is a setting too."""
    backbone, training = config.backbone.model_dump(mode="json"), config.training
    return {
        "window": shape.window,
        "channels": ", ".join(f"{m} {c}" for m, c in shape.channels),
        "missing": training.missing,
        "autocast": training.autocast,
        "micro_batch": training.micro_batch,
        **{f"backbone.{k}": v for k, v in backbone.items() if k not in config.backbone.same_speed},
    }


def foreign_profile(config: ExperimentConfig, shape: InputShape, clocks: Mapping[str, Clock]) -> tuple[str, ...]:
    """What has to be said where the device profile was measured with another shape, size or rank than the run's."""
    clock = clocks.get("measured")
    if clock is None or not isinstance(clock.model, Measured) or clock.model.profile.measured is None:
        return ()
    # Older files have no keys for what was None, nor for what came later.
    seen, wanted = UNSAID | clock.model.profile.measured.settings, profile_settings(config, shape)
    ignored = {BATCH, *(f"backbone.{k}" for k in config.backbone.same_speed)}
    keys = [k for k in (wanted | seen) if k not in ignored and seen.get(k) != wanted.get(k)]
    other = [f"{k} {seen.get(k)!r} (here {wanted.get(k)!r})" for k in keys]
    if not other:
        return ()
    return (f"{config.costs.profile}: measured with {'; '.join(other)}: its seconds are extrapolated; profile again",)


def measured_clock(config: ExperimentConfig, engine: Engine | None = None) -> Measured | None:
    """The clock of the device profile, where one is named.

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
    return Measured(profile=profile)


def make_accountant(
    config: ExperimentConfig,
    counter: Counter,
    plain: GroupLayout,
    types: dict[str, DeviceType],
    clocks: dict[str, Clock],
    engine: Engine,
) -> CostAccountant:
    """Who charges the run's rounds, in the accounting that it asks for; ``plain``: the backbone's own groups."""
    training = config.training
    whole = WholeRounds(
        layout=counter.layout,
        own=counter.layout.select(plain.ids),
        epochs=training.epochs,
        batch_size=training.batch_size,
        engine=engine,
    )
    charged_whole = config.costs.accounting == "table" and config.strategy.build().name in CHARGED_WHOLE
    return CostAccountant(
        counter=counter,
        types=types,
        clocks=clocks,
        whole=whole if charged_whole else None,
        count_server_time=config.costs.count_server_time,
    )


def make_planner(
    config: ExperimentConfig, counter: Counter, fleet: Fleet, types: dict[str, DeviceType], clock: Clock, engine: Engine
) -> CostPlanner:
    """The allocator's belief about time."""
    assumed = clock.engine or assumed_engine(engine)
    batch_size = config.training.batch_size
    return CostPlanner(
        counter=counter, fleet=fleet, types=types, model=clock.model, engine=assumed, batch_size=batch_size
    )
