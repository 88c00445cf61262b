"""How clients train, as the trainer takes it."""

from __future__ import annotations

from dataclasses import dataclass

from relief_ray.process import Autocast, Device, choose_device
from relief_ray.sections import TrainingConfig
from relief_ray.stages import Engine, Missing


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainerConfig:
    """Local training: Adam's ``lr``, mini-batch size, missing mode, the engine that runs it and where.

    ``micro_batch``: windows that go forward and backward together (None: as the backbone declares, else whole batches);
    ``stack``: clients that take their steps together, where they can.
    """

    lr: float
    batch_size: int
    missing: Missing
    engine: Engine
    micro_batch: int | None = None
    device: Device = "cpu"
    autocast: Autocast = "none"
    stack: int = 1


def trainer_config(training: TrainingConfig, engine: Engine) -> TrainerConfig:
    """The section as the trainer takes it: here ``training.device`` is decided.

    Raises:
        UserError: there is no such device.
    """
    return TrainerConfig(
        lr=training.lr,
        batch_size=training.batch_size,
        missing=training.missing,
        engine=engine,
        micro_batch=training.micro_batch,
        device=choose_device(training.device),
        autocast=training.autocast,
        stack=training.stack,
    )
