"""Configuration of local training, as users write it and as the trainer takes it."""

from __future__ import annotations

from dataclasses import dataclass
from math import cos, pi
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from relief_ray.core.codec import FLOAT32, Wire
from relief_ray.core.messages import MAX_EPOCHS
from relief_ray.core.stages import Engine, Missing
from relief_ray.devices.workload import optimizer_flops_per_value
from relief_ray.support.frozen import ReadWith, SwitchedConfig
from relief_ray.support.process import Autocast, Device, choose_device
from relief_ray.training.optimizer import ADAM, OptimizerName, UpdateRule

ScheduleName = Literal["constant", "cosine", "linear", "step"]


class TrainingConfig(SwitchedConfig):
    """Local training of all clients."""

    _section = "training"
    read_with: ClassVar[ReadWith] = (
        ("optimizer", "sgd", ("momentum",)),
        ("schedule", ("cosine", "linear"), ("schedule_end",)),
        ("schedule", "step", ("schedule_every", "schedule_factor")),
    )

    epochs: int = Field(default=5, ge=1, le=MAX_EPOCHS)
    """Local epochs per round, E."""
    batch_size: int = Field(default=32, ge=1, le=10**9)
    """Windows per optimizer step."""
    lr: float = Field(default=1e-3, gt=0.0)
    """Learning rate of the clients' optimizer."""
    optimizer: OptimizerName = "adam"
    """Optimizer of every client, its state fresh in every round (docs/optimizers.md has the equations)."""
    momentum: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Momentum ``b`` of ``sgd``."""
    weight_decay: float = Field(default=0.0, ge=0.0)
    """Factor ``l`` of weight decay. It is an L2 penalty with ``adam`` and ``sgd``, and decoupled with ``adamw``."""
    clip_norm: float | None = Field(default=None, gt=0.0)
    """Largest norm of a client's gradient over all values that it trains. A longer gradient is scaled down to it."""
    schedule: ScheduleName = "constant"
    """How the learning rate falls over the rounds (docs/optimizers.md)."""
    schedule_end: float = Field(default=0.0, ge=0.0, le=1.0)
    """Share of ``lr`` that ``cosine`` and ``linear`` approach."""
    schedule_every: int | None = Field(default=None, ge=1)
    """Rounds between two steps of ``step``."""
    schedule_factor: float = Field(default=0.1, gt=0.0, le=1.0)
    """Factor on the learning rate at each step of ``step``."""
    missing: Missing = "zero_input"
    """How an absent modality enters the model: ``zero_input`` (Eq. (2)) or ``zero_feature`` (Section III-B)."""
    engine: Literal["auto", "naive", "reuse", "gemm", "fused"] = "auto"
    """How a step is computed; ``naive`` is the reference, ``auto`` takes the backbone's fastest that works here."""
    micro_batch: int | None = Field(default=None, ge=1, le=10**9)
    """Windows per forward and backward pass where a batch needs too much memory; same gradient."""
    device: Literal["cpu", "cuda", "auto"] = "cpu"
    """``auto`` takes a GPU where there is one."""
    autocast: Autocast = "none"
    """``bf16`` lets the matrix products of training be bfloat16."""
    stack: int = Field(default=1, ge=1, le=10**6)
    """Number of clients of a worker that take their steps together, for small models on a GPU."""

    @model_validator(mode="after")
    def _fits_together(self) -> TrainingConfig:
        if self.schedule == "step" and self.schedule_every is None:
            raise ValueError("schedule = 'step' without schedule_every; expected the rounds between two steps: set it")
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
        if self.engine == "naive" and self.autocast != "none":
            raise ValueError(
                f"autocast = {self.autocast!r} with engine = 'naive', the oracle that others are compared with to "
                "float32's digits; expected autocast=none, or engine=auto"
            )
        return self

    @property
    def optimizer_flops(self) -> float:
        """FLOPs of an optimizer step per trained value, for the time models."""
        decays, clips = self.weight_decay > 0.0, self.clip_norm is not None
        return optimizer_flops_per_value(self.optimizer, momentum=self.momentum > 0.0, decay=decays, clipping=clips)


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """Learning rate by round: ``share(r)`` of the configured one, with ``t = (r - 1) / R``.

    ``cosine``: ``e + (1 - e) (1 + cos(pi t)) / 2``; ``linear``: ``1 - (1 - e) t``; ``step``: ``f^floor((r - 1) / k)``.
    These are torch's ``CosineAnnealingLR`` and ``LinearLR`` over R rounds and ``StepLR``, advanced once a round.

    Attributes:
        name: which of them; ``constant``: always 1.
        num_rounds: ``R``, rounds of the run.
        end: ``e``.
        every: ``k``.
        factor: ``f``.
    """

    name: ScheduleName = "constant"
    num_rounds: int = 1
    end: float = 0.0
    every: int = 1
    factor: float = 1.0

    def share(self, round_: int) -> float:
        """Factor on the learning rate in this round."""
        passed = max(0, round_ - 1)
        if self.name == "cosine":
            return self.end + (1.0 - self.end) * (1.0 + cos(pi * passed / self.num_rounds)) / 2.0
        if self.name == "linear":
            return 1.0 - (1.0 - self.end) * passed / self.num_rounds
        return self.factor ** (passed // self.every) if self.name == "step" else 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainerConfig:
    """Settings of local training with the engine and the device decided.

    Attributes:
        lr: learning rate before the schedule; an assignment may scale it per group.
        batch_size: windows of an optimizer step.
        missing: how an absent modality is represented: by a zero input or a zero feature.
        engine: how forward and backward passes are carried out; the numbers agree up to summation order.
        micro_batch: windows that go through forward and backward together; None: as the backbone declares.
        device: where training runs.
        autocast: precision of matrix products in training.
        stack: the most clients that take their steps together.
        rule: the optimizer.
        schedule: learning rate by round.
        clip_norm: largest norm of a client's gradient; None: any.
        wire: formats in which models come down and updates go up.
    """

    lr: float
    batch_size: int
    missing: Missing
    engine: Engine
    micro_batch: int | None = None
    device: Device = "cpu"
    autocast: Autocast = "none"
    stack: int = 1
    rule: UpdateRule = ADAM
    schedule: Schedule = Schedule()
    clip_norm: float | None = None
    wire: Wire = FLOAT32


def trainer_config(training: TrainingConfig, engine: Engine, num_rounds: int, wire: Wire) -> TrainerConfig:
    """Turn the configuration's section into the trainer's settings; decide the device (``auto``).

    ``num_rounds``: rounds of the run, over which the learning rate may fall; ``wire``: how values travel.

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
        rule=UpdateRule(name=training.optimizer, momentum=training.momentum, weight_decay=training.weight_decay),
        schedule=Schedule(
            name=training.schedule,
            num_rounds=num_rounds,
            end=training.schedule_end,
            every=training.schedule_every or 1,
            factor=training.schedule_factor,
        ),
        clip_norm=training.clip_norm,
        wire=wire,
    )
