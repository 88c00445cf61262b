"""Rounds on an accelerator that is not there: fake tensors have a device and a shape, and refuse to meet another one's.

A program of its own, since a device type cannot be taken back. torch's builds for CPUs refuse fake CUDA tensors; the
device type that torch leaves to others does what CUDA's would do here. Prints a line of JSON per check.
"""

import json
import sys
from dataclasses import replace

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from relief_ray.core.client import ClientContext, ClientProgram
from relief_ray.core.messages import NO_STATE
from relief_ray.core.streams import Streams
from relief_ray.models.moment.weights import load_frozen
from relief_ray.training import stacked_step as stacked_module
from relief_ray.training import trainer as trainer_module
from relief_ray.training.config import TrainerConfig
from relief_ray.training.evaluation import predict
from relief_ray.training.inputs import ClientInputs
from relief_ray.training.stacked_step import StackedTrainer
from relief_ray.training.trainer import Trainer
from tests.models import tiny_moment as moment
from tests.training.scenario import SHAPE, TINY, client, task
from tests.training.test_local_step import contrast, seen

GPU, NUM_WINDOWS = "fakegpu", 21
PRESENT = ("acc", "gyro")
MASKS = [frozenset(SHAPE.modalities), frozenset(["gyro"])]


def cnn(engine):
    return TINY.build(SHAPE, 0, engine=engine)


def tiny_moment(engine):
    return moment.tiny()


def faked(backbone):
    """``backbone`` with parameters on the fake GPU, since a real one cannot be given fake data."""
    own = [p for parameters in backbone.parameters.values() for p in parameters]
    twins = {id(p): torch.nn.Parameter(torch.empty(p.shape, device=GPU)) for p in own}
    for module in (m for s in backbone.stages for m in s.module.modules()):
        for name, p in [*module.named_parameters(recurse=False)]:
            if id(p) in twins:
                setattr(module, name, twins[id(p)])
    backbone.parameters = {j: tuple(twins[id(p)] for p in ps) for j, ps in backbone.parameters.items()}
    return backbone


def fake_mode():
    return FakeTensorMode(allow_non_fake_inputs=True)


def placed(backbone, engine):
    """A trainer on the GPU; what is frozen is still real and the CPU's."""
    config = TrainerConfig(lr=1e-2, batch_size=8, missing="zero_feature", engine=engine, device=GPU, micro_batch=5)
    return Trainer(faked(backbone), config)


def context_of(trainer, state=NO_STATE):
    layout = trainer.backbone.layout
    start = layout.views(torch.zeros(layout.numel))
    return ClientContext(
        info=client(PRESENT), round=1, layout=layout, start=start, state=state, streams=Streams(seed=0)
    )


def inputs_of(backbone, device=GPU):
    shape = backbone.shape
    raw = {m: torch.zeros(NUM_WINDOWS, c, shape.window, device=device) for m, c in shape.channels}
    prepared = {m: backbone.prepare(m, x) for m, x in raw.items()}
    labels = torch.zeros(NUM_WINDOWS, dtype=torch.int64, device=GPU)
    return ClientInputs(inputs={m: prepared[m] for m in PRESENT}, labels=labels), prepared


def types(tensors):
    return {t.device.type for t in tensors}


def a_round(build, engine):
    """Two epochs with personal state and observations, then evaluation: what leaves is the CPU's."""
    backbone = build(engine)
    with fake_mode():
        _rounds(backbone, engine)


def _rounds(backbone, engine):
    trainer = placed(backbone, engine)
    layout, (data, prepared) = trainer.backbone.layout, inputs_of(trainer.backbone)
    kept, rest = layout.ids[-1], layout.select(layout.ids[:-1])
    assignment = task(trainer.backbone, None, 2, keep=layout.select([kept]), up=rest)
    state = {kept: torch.zeros(layout[kept].numel)}
    update = trainer.train(context_of(trainer, state), assignment, data, ClientProgram(observe=seen))
    assert types([trainer.flat]) == {GPU}
    assert types([*update.delta.values(), *update.state.values(), *update.receipt.stats.values()]) == {"cpu"}
    for module in (m for s in trainer.backbone.stages for m in s.module.modules()):
        assert types([*module.parameters(recurse=False), *module.buffers(recurse=False)]) <= {GPU}, module
    classes = predict(trainer.backbone, prepared, MASKS, "zero_input")
    assert {len(f) for f in classes.values()} == {NUM_WINDOWS} and types(classes.values()) == {"cpu"}


def a_stack(build, engine):
    """Three clients at once, the last with fewer windows; personal state and observations too."""
    backbone = build(engine)
    with fake_mode():
        trainer = placed(backbone, engine)
        trainer.config = replace(trainer.config, micro_batch=None)
        trainer.train_run = None  # nobody may be trained alone
        layout, (data, _) = trainer.backbone.layout, inputs_of(trainer.backbone)
        few = ClientInputs(inputs={m: x[:9] for m, x in data.inputs.items()}, labels=data.labels[:9])
        kept, rest = layout.ids[-1], layout.select(layout.ids[:-1])
        assignment = task(trainer.backbone, None, 2, keep=layout.select([kept]), up=rest)
        context, program = context_of(trainer, {kept: torch.zeros(layout[kept].numel)}), ClientProgram(observe=seen)
        updates = StackedTrainer(trainer, 8).train(
            [trainer.begin(context, assignment, inputs, program) for inputs in (few, data, data)]
        )
    for update in updates:
        assert types([*update.delta.values(), *update.state.values(), *update.receipt.stats.values()]) == {"cpu"}


def a_probe():
    """A trial on the device, and an objective that needs the whole batch."""
    probed = []

    def refine(context, assignment):
        probed.append(context.probe(assignment))
        return assignment

    with fake_mode():
        trainer = placed(cnn("reuse"), "reuse")
        assignment = task(trainer.backbone, None, 1, taps=frozenset(["encoder.acc.2", "encoder.hr.2"]))
        data, _ = inputs_of(trainer.backbone)
        trainer.train(context_of(trainer), assignment, data, ClientProgram(objective=contrast, refine=refine))
    assert types(t for p in probed for part in (p.step, p.gradient) for t in part.values()) == {"cpu"}


def a_forgotten_move():
    """The check of the checks: windows that stayed on the CPU are refused."""
    with fake_mode():
        trainer = placed(cnn("gemm"), "gemm")
        data, _ = inputs_of(trainer.backbone, "cpu")
        try:
            trainer.train(context_of(trainer), task(trainer.backbone), data, ClientProgram())
        except RuntimeError as error:
            assert "device" in str(error), error
        else:
            raise AssertionError("windows on the CPU met parameters on the GPU, and nobody noticed")


# Not the naive engine: its optimizer reads the value of its step counter, and a fake tensor has none.
CHECKS = {
    "cnn, gemm": lambda: a_round(cnn, "gemm"),
    "cnn, reuse": lambda: a_round(cnn, "reuse"),
    "moment, reuse": lambda: a_round(tiny_moment, "reuse"),
    "cnn, stacked": lambda: a_stack(cnn, "gemm"),
    "moment, stacked": lambda: a_stack(tiny_moment, "reuse"),
    "a probe": a_probe,
    "a forgotten move": a_forgotten_move,
}


def main():
    _setup_privateuseone_for_python_backend(rename=GPU)
    # A fake loss has no value.
    trainer_module._mean = lambda losses, num_windows: 0.0
    stacked_module._values = lambda losses: [0.0] * len(losses)
    load_frozen("tiny", "random", 0)  # real: the other backbones of a process share it
    for name in sys.argv[1:] or CHECKS:
        why = ""
        try:
            CHECKS[name]()
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
        print(json.dumps({"check": name, "why": why}), flush=True)
    assert types(load_frozen("tiny", "random", 0).pipeline.parameters()) == {"cpu"}


if __name__ == "__main__":
    main()
