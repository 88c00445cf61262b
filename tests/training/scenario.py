"""One small backbone, one client's learnable windows, and ways to train on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from relief_ray.core.client import ClientContext, ClientProgram
from relief_ray.core.groups import WHOLE, Selection
from relief_ray.core.messages import NO_STATE, Assignment, ClientInfo, Update
from relief_ray.core.streams import Streams
from relief_ray.data.window_set import WindowSet
from relief_ray.models.backbone import Backbone, InputShape
from relief_ray.models.cnn import CnnConfig
from relief_ray.training.config import TrainerConfig
from relief_ray.training.inputs import ClientInputs
from relief_ray.training.trainer import Trainer

SHAPE = InputShape(channels=(("acc", 3), ("gyro", 2), ("hr", 1)), window=24, num_classes=4)
TINY = CnnConfig(conv1=4, conv2=6, steps=6, fusion=8)
BATCH, NUM_WINDOWS, LR = 16, 45, 1e-2
TYPE_B = ("acc", "gyro")
ABSENT = ("encoder.hr.1", "encoder.hr.2", "fusion.A.hr")
# What a client without heart rate may be asked to train, from everything down to a single frozen-prefix case.
ASSIGNMENTS: dict[str, tuple[str, ...] | None] = {
    "everything": None,
    "accessible": (
        *("fusion.A.acc", "fusion.A.gyro", "fusion.B", "head.1"),
        *("encoder.acc.1", "encoder.acc.2", "encoder.gyro.1", "encoder.gyro.2"),
    ),
    "mandatory": ("fusion.A.acc", "fusion.A.gyro"),
    "block, bias and head": ("fusion.A.acc", "fusion.B", "head.1"),
    "one encoder layer": ("fusion.A.acc", "encoder.acc.2"),
    "an absent encoder": ("fusion.A.hr", "encoder.hr.1", "head.1"),
}  # fmt: skip


@contextmanager
def precision(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def build(engine: str = "naive", dtype: torch.dtype = torch.float32, seed: int = 0) -> Backbone:
    """The backbone; the same initial values in every precision."""
    with precision(torch.float32):
        backbone = TINY.build(SHAPE, seed, engine=engine)
    for stage in backbone.stages:
        stage.module.to(dtype)
    return backbone


def windows(num: int = NUM_WINDOWS, seed: int = 0) -> tuple[dict[str, Tensor], Tensor]:
    """Noise around one prototype per class: modality -> (n, C, T) float32, labels (n,)."""
    make = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, SHAPE.num_classes, (num,), generator=make)
    whole = {
        m: torch.randn(SHAPE.num_classes, c, SHAPE.window, generator=make, dtype=torch.float32)[labels]
        for m, c in SHAPE.channels
    }
    return {m: x + torch.randn(x.shape, generator=make, dtype=torch.float32) for m, x in whole.items()}, labels


def client(present: tuple[str, ...] = TYPE_B, id_: int = 2) -> ClientInfo:
    return ClientInfo(id=id_, name="subject", device="B", modalities=present, num_windows=NUM_WINDOWS)


def task(backbone: Backbone, groups: tuple[str, ...] | None = None, epochs: int = 1, **changes: object) -> Assignment:
    """Trains and uploads ``groups`` (all by default)."""
    chosen: Selection = backbone.layout.select(groups)
    assignment = Assignment(client=2, down=backbone.layout.select(), train=chosen, up=chosen, epochs=epochs)
    return replace(assignment, **changes)


class Scenario:
    """A trainer with its client; every call starts from the same initial model."""

    def __init__(
        self,
        engine: str = "naive",
        missing: str = "zero_input",
        dtype: torch.dtype = torch.float32,
        lr: float = LR,
        backbone: Backbone | None = None,
        batch: int = BATCH,
        **settings: object,
    ) -> None:
        with precision(dtype):
            self.backbone = build(engine, dtype) if backbone is None else backbone
            self.start = self.backbone.params()
            config = TrainerConfig(lr=lr, batch_size=batch, missing=missing, engine=engine, **settings)
            self.trainer = Trainer(self.backbone, config)
        self.dtype = dtype

    def inputs(self, present: tuple[str, ...] = TYPE_B, num: int = NUM_WINDOWS) -> ClientInputs:
        raw, labels = windows(num)
        prepared = {m: self.backbone.prepare(m, raw[m].to(self.dtype)) for m in present}
        return ClientInputs(inputs=prepared, labels=labels)

    def context(self, *, present=TYPE_B, round_=1, id_=2, seed=0, state=NO_STATE, start=None) -> ClientContext:
        return ClientContext(
            info=client(present, id_),
            round=round_,
            layout=self.backbone.layout,
            start=self.start if start is None else start,
            state=state,
            streams=Streams(seed=seed),
        )

    def train(
        self,
        groups: tuple[str, ...] | None = None,
        epochs: int = 1,
        *,
        program: ClientProgram | None = None,
        inputs: ClientInputs | None = None,
        changes: Mapping[str, object] | None = None,
        **where: object,
    ) -> Update:
        assignment = task(self.backbone, groups, epochs, **(changes or {}))
        with precision(self.dtype):
            return self.trainer.train(
                self.context(**where),
                assignment,
                inputs or self.inputs(where.get("present", TYPE_B)),
                program or ClientProgram(),
            )


def distance(update: Update, expected: Update) -> float:
    """Relative L2 distance of two updates over all their groups."""
    assert update.delta.keys() == expected.delta.keys()
    gap = sum(float((update.delta[j].double() - d.double()).square().sum()) for j, d in expected.delta.items())
    return (gap / sum(float(d.double().square().sum()) for d in expected.delta.values())) ** 0.5


__all__ = ["WHOLE", "Scenario", "build", "client", "distance", "precision", "task", "windows"]


def batches(num, epochs, seed=0, round_=1, id_=2):
    order = Streams(seed=seed).torch("batches", round_, id_)
    return [index for _ in range(epochs) for index in torch.randperm(num, generator=order).split(BATCH)]


def drawn_windows(folder: Path, mean: float = 0.0, std: float = 1.0) -> Callable[[int], WindowSet]:
    """A function that draws so many windows of one normal signal, which is saved in the folder."""
    random = np.random.default_rng(0)
    np.save(folder / "signal.npy", random.normal(mean, std, size=(400, 6)).astype(np.float32))

    def some(num: int) -> WindowSet:
        return WindowSet(
            signal_path=str(folder / "signal.npy"),
            starts=random.integers(0, 370, num),
            labels=random.integers(0, SHAPE.num_classes, num),
            subjects=(np.arange(num) % 3 + 5).astype(np.int16),
            window=SHAPE.window,
            columns=(("acc", 0, 3), ("gyro", 3, 5), ("hr", 5, 6)),
            mean=np.zeros(6, np.float32),
            std=np.ones(6, np.float32),
        )

    return some
