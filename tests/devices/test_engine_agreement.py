"""The clock against the engine: what the cost model charges is what a real round executes, as torch counts it."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from relief_ray.core.client import ClientContext, ClientProgram
from relief_ray.core.messages import Assignment, ClientInfo
from relief_ray.core.streams import Streams
from relief_ray.devices.workload import footprint, num_steps
from relief_ray.models.backbone import InputShape
from relief_ray.models.cnn import CnnConfig
from relief_ray.models.costs import count_costs
from relief_ray.training.config import TrainerConfig
from relief_ray.training.inputs import ClientInputs
from relief_ray.training.trainer import Trainer

SHAPE = InputShape(channels=(("acc", 3), ("gyro", 3), ("hr", 1)), window=64, num_classes=4)
NUM_WINDOWS, EPOCHS, BATCH = 40, 3, 16


def executed_flops(backbone, present, trained, engine, missing):
    info = ClientInfo(id=0, name="c", device="C", modalities=present, num_windows=NUM_WINDOWS)
    context = ClientContext(
        info=info, round=1, layout=backbone.layout, start=backbone.params(), state={}, streams=Streams(seed=0)
    )
    chosen = backbone.layout.select(trained)
    task = Assignment(client=0, down=backbone.layout.select(), train=chosen, up=chosen, epochs=EPOCHS)
    windows = {m: torch.randn(NUM_WINDOWS if m in present else 1, c, SHAPE.window) for m, c in SHAPE.channels}
    inputs = {m: x if m in present else torch.zeros(NUM_WINDOWS, *x.shape[1:]) for m, x in windows.items()}
    shown = inputs if engine == "naive" else {m: inputs[m] for m in present}
    client = ClientInputs(inputs=shown, labels=torch.arange(NUM_WINDOWS) % SHAPE.num_classes)
    trainer = Trainer(backbone, TrainerConfig(lr=1e-3, batch_size=BATCH, missing=missing, engine=engine))
    with FlopCounterMode(display=False) as counter:
        trainer.train(context, task, client, ClientProgram())
    return counter.get_total_flops()


ASSIGNMENTS = {
    "everything": ("fusion.A.acc", "fusion.A.gyro", "fusion.A.hr", "encoder.gyro.1", "encoder.acc.2", "head.1"),
    "own": ("fusion.A.acc", "encoder.acc.1", "encoder.acc.2", "fusion.B", "head.1"),
    "mandatory": ("fusion.A.acc",),
    "upper layer": ("encoder.acc.2",),
    "head": ("head.1",),
}


@pytest.mark.ci
@pytest.mark.parametrize("present", [("acc",), ("acc", "gyro", "hr")])
@pytest.mark.parametrize("missing", ["zero_input", "zero_feature"])
@pytest.mark.parametrize("engine", ["naive", "reuse"])
@pytest.mark.parametrize("name", ASSIGNMENTS)
def test_charged_flops_are_the_executed_ones(name, engine, missing, present):
    backbone = CnnConfig(fusion=16, steps=8).build(SHAPE, seed=0)
    trained = ASSIGNMENTS[name]
    costs = count_costs(backbone)
    load = footprint(costs, present, dict.fromkeys(trained, 1.0), engine, missing).workload(
        num_windows=NUM_WINDOWS, epochs=EPOCHS, num_steps=num_steps(NUM_WINDOWS, EPOCHS, BATCH)
    )
    executed = executed_flops(backbone, present, trained, engine, missing)
    # The counter does not see the sum over fusion blocks and its bias, which the model charges; the engine finds the
    # shape of switched-off features with one window, which the model leaves out.
    one_window = sum(f.forward_flops for f in costs.flops.values())
    assert load.forward_flops + load.backward_flops == pytest.approx(executed, rel=0.01, abs=one_window)
