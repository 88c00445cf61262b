"""Backbone 2 in the trainer: reuse changes nothing but the time, and what may not move does not."""

from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from itertools import combinations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from relief_ray.core.client import ClientContext, ClientProgram, task_loss
from relief_ray.core.groups import WHOLE, Part
from relief_ray.core.messages import NO_STATE
from relief_ray.core.streams import Streams
from relief_ray.devices import workload as workload_module
from relief_ray.devices.workload import footprint
from relief_ray.models.costs import count_costs
from relief_ray.models.moment.backbone import MomentConfig
from relief_ray.models.moment.weights import digest, load_frozen
from relief_ray.training import trainer as trainer_module
from relief_ray.training.config import TrainerConfig
from relief_ray.training.evaluation import predict
from relief_ray.training.forward_plan import plan_forward
from relief_ray.training.inputs import ClientInputs
from relief_ray.training.trainer import Trainer
from tests.models.tiny_moment import SHAPE, stirred, tiny, windows
from tests.training.scenario import client, distance, precision, task

pytestmark = pytest.mark.usefixtures("run_cache")
NUM_WINDOWS, EPOCHS = 21, 5
PLAIN = ClientProgram()
ONE_CHANNEL, FEW_WINDOWS = replace(SHAPE, channels=tuple((m, 1) for m in SHAPE.modalities)), 12
PRESENT = ("acc", "gyro")
ASSIGNMENTS = {
    "fusion block only": ("fusion.A.acc",),
    "head and B": ("fusion.B", "head.1", "head.2"),
    "last encoder block": ("encoder.acc.2",),
    "a middle block": ("encoder.gyro.1",),
    "everything": None,
}


class Seen:
    """An objective that is the usual one, and the windows and the loss of every pass."""

    def __init__(self):
        self.passes = []

    def __call__(self, step):
        loss = task_loss(step)
        self.passes.append((len(step.labels), float(loss.detach())))
        return loss


def session(
    engine,
    groups,
    *,
    missing="zero_input",
    present=PRESENT,
    part=WHOLE,
    watch=None,
    dtype=torch.float32,
    program=PLAIN,
    size=None,
    by=0.1,
):
    """Five epochs on a model whose B factors have left zero: the update, and the backbone after it."""
    shape, num_windows = (SHAPE, NUM_WINDOWS) if size is None else (ONE_CHANNEL, FEW_WINDOWS)
    with precision(torch.float32):
        backbone = tiny(shape) if size is None else MomentConfig(size=size).build(shape, 0)
        start = {j: theta.to(dtype) for j, theta in stirred(backbone, by=by).items()}
    for stage in backbone.stages:
        stage.module.to(dtype)
    trainer = Trainer(backbone, TrainerConfig(lr=1e-2, batch_size=8, missing=missing, engine=engine))
    chosen = backbone.layout.select(groups, part) if groups else backbone.layout.select(part=part)
    context = ClientContext(
        info=client(present),
        round=1,
        layout=backbone.layout,
        start=start,
        state=NO_STATE,
        streams=Streams(seed=0),
    )
    with precision(torch.float32):
        raw = {m: x.to(dtype) for m, x in windows(num_windows, shape).items() if m in present}
    inputs = ClientInputs(inputs=raw, labels=torch.arange(num_windows) % shape.num_classes)
    assignment = task(backbone, groups, EPOCHS, train=chosen, up=chosen)
    with watch or nullcontext():
        return trainer.train(context, assignment, inputs, program), backbone


@pytest.mark.ci
@pytest.mark.parametrize("missing", ["zero_input", "zero_feature"])
@pytest.mark.parametrize("groups", ASSIGNMENTS.values(), ids=ASSIGNMENTS)
def test_reuse_is_exact(groups, missing):
    naive, reuse = trained_both_ways(groups, 1e-5, missing=missing)
    assert distance(reuse, naive) < 1e-5
    assert any(float(d.abs().max()) > 1e-3 for d in naive.delta.values()), "something was learned"


def trained_both_ways(groups, loss_tolerance, **how):
    """The updates of `naive` and of `reuse`, whose losses agree in every step of every epoch."""
    seen = {engine: Seen() for engine in ("naive", "reuse")}
    updates = [
        session(engine, groups, program=ClientProgram(objective=losses, is_mean=True), **how)[0]
        for engine, losses in seen.items()
    ]
    naive, reuse = (losses.passes for losses in seen.values())
    assert len(naive) == updates[0].receipt.work.num_steps >= 2 * EPOCHS
    assert reuse == [(rows, pytest.approx(loss, rel=loss_tolerance)) for rows, loss in naive]
    return updates


@pytest.fixture
def float64(monkeypatch):
    """Everything in float64, also what T5 computes in float32 whatever it is given: its layer norm and softmax.

    Encoders of their own: what is cast here must not be found in the cache afterwards.
    """
    from transformers.models.t5.modeling_t5 import T5LayerNorm

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon))

    monkeypatch.setattr(T5LayerNorm, "forward", forward)
    monkeypatch.setattr(torch.Tensor, "float", lambda x: x)
    load_frozen.cache_clear()
    with precision(torch.float64):
        yield torch.float64
    load_frozen.cache_clear()


SMALL_ASSIGNMENTS = ASSIGNMENTS | {"last encoder block": ("encoder.acc.8",), "a middle block": ("encoder.gyro.4",)}


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL_ASSIGNMENTS)
def test_reuse_on_the_papers_size(name):
    """Float32's rounding, which Adam enlarges where gradients are tiny: it divides by their size."""
    tolerance, loss_tolerance = (1e-3, 1e-3) if name == "everything" else (1e-4, 1e-5)
    naive, reuse = trained_both_ways(SMALL_ASSIGNMENTS[name], loss_tolerance, size="small", by=0.02)
    assert distance(reuse, naive) < tolerance
    assert any(float(d.abs().max()) > 1e-3 for d in naive.delta.values()), "something was learned"


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in SMALL_ASSIGNMENTS if name != "everything"])
def test_reuse_on_the_papers_size_in_float64(name, float64):
    """A tenth of what float32 leaves, and less; with everything an absent encoder is trained (see below)."""
    naive, reuse = trained_both_ways(SMALL_ASSIGNMENTS[name], 1e-6, size="small", by=0.02, dtype=float64)
    assert distance(reuse, naive) < 5e-6


# Single sensors, one pair, and all; the other pairs repeat what these show.
PRESENT_SETS = [
    pytest.param(p, id="+".join(p), marks=[pytest.mark.slow] if len(p) == 2 and p != PRESENT else [])
    for n in (1, 2, 3)
    for p in combinations(SHAPE.modalities, n)
]


@pytest.mark.ci
@pytest.mark.parametrize("present", PRESENT_SETS)
def test_reuse_is_exact_whoever_is_present(present, float64):
    """Also where absent encoders are trained: a zero window's gradients are rounding, and Adam divides by their size.

    That leaves 6e-6 of float64's digits (for `hr` alone); in float32 it is up to 8e-4, as docs/moment.md says.
    """
    absent = [m for m in SHAPE.modalities if m not in present]
    for groups in (None, (f"encoder.{(absent or present)[0]}.1", "fusion.B")):
        naive, reuse = (session(e, groups, present=present, dtype=float64)[0] for e in ("naive", "reuse"))
        assert next(iter(naive.delta.values())).dtype == float64
        assert distance(reuse, naive) < 2e-5
        assert any(float(d.abs().max()) > 1e-3 for d in naive.delta.values()), "something was learned"


def kept(groups, reuse=True):
    """Bytes of a window that a step keeps, in those of a channel in a block: 40 float32 copies of 4 patches of 64."""
    plan = plan_forward(tiny(), PRESENT, groups, "zero_input", reuse=reuse)
    return plan.step_bytes / (40 * 4 * 4 * 64)


@pytest.mark.ci
def test_only_what_a_gradient_passes_is_kept_of_every_window():
    every = tiny().layout.ids
    present = sum(c for m, c in SHAPE.channels if m in PRESENT)
    assert kept(every) == 2 * present, "two blocks; an absent sensor's one row is not worth a thought"
    assert kept(every, reuse=False) == 2 * 6, "the naive engine runs every sensor on every window"
    assert kept(["encoder.acc.2"]) == 3 and kept(["encoder.acc.1"]) == 6 and kept(["head.1", "fusion.B"]) == 0


@pytest.mark.ci
def test_batches_go_in_parts_by_what_their_stages_keep(monkeypatch):
    plan = plan_forward(tiny(), PRESENT, tiny().layout.ids, "zero_input", reuse=True)
    monkeypatch.setattr("relief_ray.core.stages.MAX_STEP_BYTES", 3 * plan.step_bytes + 1)
    seen = Seen()
    parts, _ = session("reuse", None, program=ClientProgram(objective=seen, is_mean=True))
    assert [rows for rows, _ in seen.passes] == EPOCHS * [3, 3, 2, 3, 3, 2, 3, 2]
    whole, _ = session("reuse", None)
    assert distance(parts, whole) < 1e-3


def test_prefix_below_the_lowest_trained_block_is_cached():
    plan = plan_forward(tiny(), PRESENT, ["encoder.acc.2"], "zero_input", reuse=True)
    assert [s.spec.id for s in plan.every_step][:3] == ["encoder.acc.2", "feature.acc", "fusion.W0.acc"]
    assert "encoder.acc.1" in plan.sources and "fusion.A.gyro" in plan.sources
    assert not [s for s in plan.every_step if s.spec.modality in ("gyro", "hr")]


def test_what_is_cheap_and_large_is_not_kept():
    plan = plan_forward(tiny(), PRESENT, ["encoder.acc.1"], "zero_input", reuse=True)
    assert [s.spec.id for s in plan.every_step][:2] == ["patches.acc", "encoder.acc.1"]
    assert "patches.acc" not in plan.sources and "x.acc" in plan.sources
    absent = plan_forward(tiny(), ["gyro"], ["encoder.acc.1"], "zero_input", reuse=True)
    assert "patches.acc" in absent.sources, "one window is"


@pytest.mark.ci
@pytest.mark.parametrize(
    "groups", [ASSIGNMENTS["last encoder block"], ASSIGNMENTS["head and B"]], ids=["block", "head"]
)
def test_what_is_too_much_to_keep_is_computed_in_every_step_and_charged_so(groups, monkeypatch):
    kept, _ = session("reuse", groups)
    for module in (trainer_module, workload_module):
        monkeypatch.setattr(module, "MAX_KEPT_BYTES", 1000)
    counter = FlopCounterMode(display=False)
    again, _ = session("reuse", groups, watch=counter)
    assert distance(again, kept) < 1e-5
    load = charged("reuse", groups)
    assert counter.get_total_flops() == pytest.approx(load.forward_flops + load.backward_flops, rel=0.02)
    monkeypatch.undo()
    assert charged("reuse", groups).forward_flops < 0.5 * load.forward_flops


def test_only_the_assigned_part_moves():
    update, backbone = session("reuse", ("encoder.acc.2",), part=Part(kinds=frozenset(["lora_a"])))
    tensors = backbone.layout["encoder.acc.2"].tensors
    assert len(update.delta["encoder.acc.2"]) == sum(t.numel for t in tensors if t.kind == "lora_a")
    assert update.receipt.bytes_up < session("reuse", ("encoder.acc.2",))[0].receipt.bytes_up


def test_frozen_weights_never_move():
    load_frozen.cache_clear()
    before = load_frozen("tiny", "random", 0).sha256
    session("reuse", None)
    session("naive", None)

    assert digest(load_frozen("tiny", "random", 0).pipeline) == before


def test_absent_features_are_zero_where_the_mode_says_so():
    backbone = tiny()
    stirred(backbone)
    seen = {}
    for missing in ("zero_input", "zero_feature"):
        update, _ = session("reuse", ("fusion.A.hr", "head.1"), missing=missing, present=("acc",))
        seen[missing] = float(update.delta["fusion.A.hr"].abs().max())
    assert seen["zero_feature"] == 0.0 < seen["zero_input"]


def test_evaluation_through_masks_is_the_plain_forward_pass():
    backbone, raw = tiny(), windows(9)
    stirred(backbone)
    backbone.chunk = 4
    masks = [frozenset(SHAPE.modalities), frozenset(["gyro"])]
    classes = predict(backbone, raw, masks, "zero_input")
    for mask in masks:
        masked = {m: x if m in mask else torch.zeros_like(x) for m, x in raw.items()}
        with torch.no_grad():
            assert torch.equal(classes[mask], backbone.forward(masked).argmax(1))


def test_backbone_keeps_its_costs_when_counted_twice():
    backbone = tiny()
    assert count_costs(backbone) == count_costs(backbone)


@pytest.mark.ci
@pytest.mark.parametrize("engine", ["naive", "reuse"])
@pytest.mark.parametrize("groups", ASSIGNMENTS.values(), ids=ASSIGNMENTS)
def test_what_is_charged_is_what_is_executed(groups, engine):
    """torch's counter over a whole local round against the cost model, within 2 %."""
    counter = FlopCounterMode(display=False)
    session(engine, groups, watch=counter)
    load = charged(engine, groups)
    assert counter.get_total_flops() == pytest.approx(load.forward_flops + load.backward_flops, rel=0.02)


@cache
def counted():
    return count_costs(tiny())


def charged(engine, groups):
    """Returns the cost model's workload of a ``session``."""
    costs = counted()
    return footprint(costs, PRESENT, dict.fromkeys(groups or costs.num_values, 1.0), engine, "zero_input").workload(
        num_windows=NUM_WINDOWS, epochs=EPOCHS, num_steps=EPOCHS * 3
    )
