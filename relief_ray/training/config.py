"""Configuration of local training, as users write it and as the trainer takes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import Field, model_validator

from relief_ray.frozen import FrozenConfig
from relief_ray.process import Autocast, Device, choose_device
from relief_ray.stages import Engine, Missing


class TrainingConfig(FrozenConfig):
    """Local training of all clients.

    Attributes:
        epochs: local epochs per round, E.
        batch_size: windows per optimizer step.
        lr: Adam's learning rate.
        missing: how an absent modality enters the model: ``zero_input`` (Eq. (2)) or ``zero_feature`` (Section III-B).
        engine: how a step is computed; ``naive`` is the reference, ``auto`` takes the fastest for the backbone.
        micro_batch: windows per forward and backward pass where a batch needs too much memory; same gradient.
        device: ``auto`` takes a GPU where there is one.
        autocast: ``bf16`` lets the matrix products of training be bfloat16.
        stack: number of clients of a worker that take their steps together, for small models on a GPU.
    """

    epochs: int = Field(default=5, ge=1)
    batch_size: int = Field(default=32, ge=1)
    lr: float = Field(default=1e-3, gt=0.0)
    missing: Missing = "zero_input"
    engine: Literal["auto", "naive", "reuse", "gemm"] = "auto"
    micro_batch: int | None = Field(default=None, ge=1)
    device: Literal["cpu", "cuda", "auto"] = "cpu"
    autocast: Autocast = "none"
    stack: int = Field(default=1, ge=1)

    @model_validator(mode="after")
    def _stack_is_ours(self) -> TrainingConfig:
        if self.stack > 1 and self.engine == "naive":
            raise ValueError(
                f"stack = {self.stack} with engine = 'naive', the oracle that trains one client after the other; "
                "expected stack=1, or engine=auto"
            )
        if self.stack > 1 and self.micro_batch is not None:
            raise ValueError(
                f"stack = {self.stack} with micro_batch = {self.micro_batch}: clients share whole batches or none; "
                "expected one of the two"
            )
        return self

    @model_validator(mode="after")
    def _oracle_is_exact(self) -> TrainingConfig:
        if self.engine == "naive" and self.autocast != "none":
            raise ValueError(
                f"autocast = {self.autocast!r} with engine = 'naive', the oracle that others are compared with to "
                "float32's digits; expected autocast=none, or engine=auto"
            )
        return self


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainerConfig:
    """Settings of local training with the engine and the device decided.

    Attributes:
        lr: Adam's learning rate; an assignment may scale it per group.
        batch_size: windows of an optimizer step.
        missing: how an absent modality is represented: by a zero input or a zero feature.
        engine: how forward and backward passes are carried out; the numbers agree up to summation order.
        micro_batch: windows that go through forward and backward together; None: as the backbone declares.
        device: where training runs.
        autocast: precision of matrix products in training.
        stack: the most clients that take their steps together.
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
    """Turn the configuration's section into the trainer's settings; decide the device (``auto``).

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
