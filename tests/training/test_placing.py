"""The GPU path without a GPU: torch's fake tensors have a device and a shape, and refuse to be mixed across devices."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from relief_ray.federated import ClientContext, ClientProgram
from relief_ray.messages import NO_STATE
from relief_ray.models.moment_weights import load_frozen
from relief_ray.streams import Streams
from relief_ray.training import trainer as trainer_module
from relief_ray.training.evaluation import predict
from relief_ray.training.placing import place
from relief_ray.training.trainer import ClientInputs, Trainer, TrainerConfig
from tests.models import moment
from tests.training.scene import SHAPE, TINY, client, task
from tests.training.test_steps import contrast, seen

PRESENT, NUM_WINDOWS = ("acc", "gyro"), 21
MASKS = [frozenset(SHAPE.modalities), frozenset(["gyro"])]


@contextmanager
def fake_gpu() -> Iterator[None]:
    """Real CPU tensors may enter; none of them may meet one of the GPU's."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        yield


def faked(backbone):
    """``backbone`` with parameters on the fake GPU, since a real one cannot be given fake data."""
    twins = {
        id(p): torch.nn.Parameter(torch.empty(p.shape, device="cuda"))
        for ps in backbone.parameters.values()
        for p in ps
    }
    for module in (m for s in backbone.stages for m in s.module.modules()):
        for name, p in [*module.named_parameters(recurse=False)]:
            if id(p) in twins:
                setattr(module, name, twins[id(p)])
    backbone.parameters = {j: tuple(twins[id(p)] for p in ps) for j, ps in backbone.parameters.items()}
    return backbone


@pytest.fixture
def numbers_nobody_has(monkeypatch):
    """What asks a GPU for a value, or to be done: there is none."""
    monkeypatch.setattr(trainer_module, "_mean", lambda losses, num_windows: float(num_windows))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)


def cnn(engine):
    return TINY.build(SHAPE, 0, fast=engine == "gemm")


def tiny_moment(engine):
    return moment.tiny()


def placed(backbone, engine, **changes):
    """A trainer on the GPU; what is frozen is still real and the CPU's."""
    config = TrainerConfig(
        lr=1e-2, batch_size=8, missing="zero_feature", engine=engine, device="cuda", micro_batch=5, **changes
    )
    return Trainer(faked(backbone), config)


def context_of(trainer, state=NO_STATE):
    layout = trainer.backbone.layout
    start = layout.views(torch.zeros(layout.numel))
    return ClientContext(
        info=client(PRESENT), round=1, layout=layout, start=start, state=state, streams=Streams(seed=0)
    )


def inputs_of(backbone):
    shape = backbone.shape
    raw = {m: torch.zeros(NUM_WINDOWS, c, shape.window, device="cuda") for m, c in shape.channels}
    prepared = {m: backbone.prepare(m, x) for m, x in raw.items()}
    return prepared, torch.zeros(NUM_WINDOWS, dtype=torch.int64, device="cuda")


CASES = {
    "cnn, gemm": (cnn, "gemm", {}),
    "cnn, reuse": (cnn, "reuse", {}),
    "cnn, naive": (cnn, "naive", {}),
    "cnn, gemm, bf16": (cnn, "gemm", {"autocast": "bf16"}),
    "moment, reuse": (tiny_moment, "reuse", {}),
}


@pytest.mark.usefixtures("run_cache", "numbers_nobody_has")
@pytest.mark.parametrize("name", CASES)
def test_a_round_stays_on_the_gpu_and_its_update_leaves_it(name):
    build, engine, changes = CASES[name]
    backbone = build(engine)
    with fake_gpu():
        trainer = placed(backbone, engine, **changes)
        layout = trainer.backbone.layout
        prepared, labels = inputs_of(trainer.backbone)
        data = ClientInputs(inputs={m: prepared[m] for m in PRESENT}, labels=labels)
        kept = layout.ids[-1]
        rest = layout.select(layout.ids[:-1])
        asked = task(trainer.backbone, None, 2, keep=layout.select([kept]), up=rest)
        state = {kept: torch.zeros(layout[kept].numel)}
        update = trainer.train(context_of(trainer, state), asked, data, ClientProgram(observe=seen))
        assert trainer.flat.device.type == "cuda"
        assert {t.device.type for t in (*update.delta.values(), *update.state.values())} == {"cpu"}
        assert {t.device.type for t in update.receipt.stats.values()} == {"cpu"}
        for module in (m for s in trainer.backbone.stages for m in s.module.modules()):
            tensors = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
            assert all(t.device.type == "cuda" for t in tensors), module
        found = predict(trainer.backbone, prepared, MASKS, "zero_input")
        assert {len(f) for f in found.values()} == {NUM_WINDOWS} and {f.device.type for f in found.values()} == {"cpu"}
    if build is tiny_moment:
        frozen = load_frozen("tiny", "random", 0).pipeline
        assert {t.device.type for t in frozen.parameters()} == {"cpu"}, "other backbones of this process share them"
        assert {type(t) for t in frozen.parameters()} == {torch.nn.Parameter}


@pytest.mark.usefixtures("numbers_nobody_has")
def test_probes_and_objectives_that_need_the_whole_batch_do_too():
    backbone = cnn("reuse")
    with fake_gpu():
        trainer, probed = placed(backbone, "reuse"), []

        def refine(context, asked):
            probed.append(context.probe(asked))
            return asked

        prepared, labels = inputs_of(trainer.backbone)
        data = ClientInputs(inputs={m: prepared[m] for m in PRESENT}, labels=labels)
        asked = task(trainer.backbone, None, 1, taps=frozenset(["encoder.acc.2", "encoder.hr.2"]))
        trainer.train(context_of(trainer), asked, data, ClientProgram(objective=contrast, refine=refine))
        tensors = [t for p in probed for part in (p.step, p.gradient) for t in part.values()]
        assert tensors and {t.device.type for t in tensors} == {"cpu"}


def test_a_forgotten_move_would_be_noticed():
    """The test of the tests: windows that stayed on the CPU are refused."""
    backbone = cnn("gemm")
    with fake_gpu():
        trainer = placed(backbone, "gemm")
        prepared, labels = inputs_of(trainer.backbone)
        left = {m: torch.zeros(x.shape) for m, x in prepared.items()}
        with pytest.raises(RuntimeError, match=r"device"):
            data = ClientInputs(inputs=left, labels=labels)
            trainer.train(context_of(trainer), task(trainer.backbone), data, ClientProgram())


def test_nothing_moves_where_the_cpu_computes():
    backbone = cnn("gemm")
    before = [id(t) for s in backbone.stages for t in s.module.parameters()]
    place(backbone, torch.device("cpu"))
    assert before == [id(t) for s in backbone.stages for t in s.module.parameters()]


def test_what_is_frozen_is_copied_once_and_stays_where_it_was():
    """On the meta device, which every torch has."""
    backbone, shared = cnn("reuse"), torch.zeros(3)
    for stage in backbone.stages[:2]:
        stage.module.register_buffer("mask", shared)
    place(backbone, torch.device("meta"))
    masks = [stage.module.get_buffer("mask") for stage in backbone.stages[:2]]
    assert masks[0] is masks[1] and masks[0].device.type == "meta" and shared.device.type == "cpu"
    assert {p.device.type for ps in backbone.parameters.values() for p in ps} == {"cpu"}, "these follow the trainer"
