"""The configuration's base of all sections, and local training's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from relief_ray.process import Autocast, Device, choose_device
from relief_ray.stages import Engine, Missing

LATER: Mapping[str, JsonValue] = MappingProxyType(
    {"micro_batch": None, "device": "cpu", "autocast": "none", "stack": 1}
)


class Section(BaseModel):
    """Frozen, closed to unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class TrainingConfig(Section):
    """Local training: ``epochs`` is E; ``missing`` says what an absent modality is (Eq. (2) or Section III-B).

    ``micro_batch``: windows that go through together where a batch needs too much memory; the gradient is the batch's.
    ``device`` computes (``auto``: a GPU where there is one), ``autocast`` lets training's matrix products be bfloat16.
    ``stack``: so many clients of a host take their steps together, which is what a GPU needs with small models.
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

    @model_serializer(mode="wrap")
    def _as_older_ones(self, serialise: SerializerFunctionWrapHandler) -> dict[str, JsonValue]:
        """Keys that came later are written where they were chosen: older cells keep names, and are the same setting."""
        values: dict[str, JsonValue] = serialise(self)
        return {k: v for k, v in values.items() if k not in LATER or getattr(self, k) != LATER[k]}


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
    """Turns the configuration's section into the trainer's settings; decides the device (``auto``).

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
