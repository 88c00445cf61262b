"""Parts of groups: one factor alone, the first ranks of both, the first rows of a dense weight."""

import pytest
import torch

from relief_ray.core.client import ClientContext, ClientProgram
from relief_ray.core.groups import Part, _indices
from relief_ray.core.messages import Assignment, ClientInfo
from relief_ray.core.streams import Streams
from relief_ray.training.config import TrainerConfig
from relief_ray.training.inputs import ClientInputs
from relief_ray.training.optimizer import ADAM, UpdateRule
from relief_ray.training.trainer import Trainer, scale_adapters, zero_unsent_ranks
from tests.models import tiny_moment as moment
from tests.toy import CHANNELS, RANK, SHAPE, build
from tests.training.scenario import Scenario

GROUP = "encoder.acc.1"


def train(part, engine, epochs=3):
    """The group's tensors before, after, and what was sent."""
    backbone = build(b_zero=False)
    config = TrainerConfig(lr=0.1, batch_size=4, missing="zero_input", engine=engine)
    trainer, layout = Trainer(backbone, config), backbone.layout
    make = torch.Generator().manual_seed(0)
    inputs = {m: torch.randn(10, c, SHAPE.window, generator=make) for m, c in CHANNELS}
    data = ClientInputs(inputs=inputs, labels=torch.randint(0, SHAPE.num_classes, (10,), generator=make))
    info = ClientInfo(id=0, name="a", device="A", modalities=("acc", "hr"), num_windows=10)
    start = backbone.params()
    context = ClientContext(info=info, round=1, layout=layout, start=start, state={}, streams=Streams(seed=0))
    chosen = {GROUP: part}
    task = Assignment(client=0, down=layout.select(), train=chosen, up=chosen, epochs=epochs)
    delta = trainer.train(context, task, data, ClientProgram()).delta[GROUP]
    before, after = (layout.unflatten(GROUP, p[GROUP]) for p in (start, backbone.params()))
    return before, after, delta


@pytest.mark.parametrize("engine", ["naive", "reuse"])
def test_first_rank_alone_moves(engine):
    before, after, delta = train(Part(rank=1), engine)
    assert RANK == 2
    assert torch.equal(after["a"][1:], before["a"][1:]) and torch.equal(after["b"][:, 1:], before["b"][:, 1:])
    moved = torch.cat([(after["a"] - before["a"])[0], (after["b"] - before["b"])[:, 0]])
    assert torch.count_nonzero(moved) == len(moved)
    assert torch.equal(delta, moved)


@pytest.mark.parametrize("engine", ["naive", "reuse"])
def test_one_factor_alone_moves(engine):
    before, after, delta = train(Part(kinds=frozenset({"lora_a"})), engine)
    assert torch.equal(after["b"], before["b"])
    assert torch.equal(delta, (after["a"] - before["a"]).flatten()) and torch.count_nonzero(delta)


def test_full_rank_is_the_whole_group():
    _, whole, _ = train(Part(), "reuse")
    _, ranked, _ = train(Part(rank=RANK), "reuse")
    assert all(torch.equal(whole[name], ranked[name]) for name in whole)


@pytest.mark.parametrize(
    "rule", [ADAM, UpdateRule(name="adamw", weight_decay=0.1), UpdateRule(weight_decay=0.1)], ids=str
)
@pytest.mark.parametrize("engine", ["naive", "reuse", "gemm", "fused"])
def test_first_rows_alone_move(engine, rule):
    """Of every dense weight and bias, of convolutions by output channel; other rows do not decay either."""
    scenario, part = Scenario(engine, rule=rule), Part(rows=0.5)
    chosen = scenario.backbone.layout.select(("encoder.acc.1", "encoder.acc.2", "fusion.A.acc", "fusion.B"), part)
    update = scenario.train(epochs=2, changes={"train": chosen, "up": chosen})
    after = scenario.backbone.params()
    for j in scenario.backbone.layout.ids:
        inside = torch.zeros(len(after[j]), dtype=torch.bool)
        if j in chosen:
            inside[scenario.backbone.layout.indices(j, part)] = True
            assert torch.equal(update.delta[j], (after[j] - scenario.start[j])[inside]) and update.delta[j].any()
        assert torch.equal(after[j][~inside], scenario.start[j][~inside])


def test_a_selection_is_resolved_once_for_all_rounds_of_all_clients():
    scenario, part = Scenario(), Part(rows=0.5)
    chosen = scenario.backbone.layout.select(("encoder.acc.1", "fusion.A.acc"), part)
    _indices.cache_clear()
    for _ in range(3):
        scenario.train(epochs=1, changes={"train": chosen, "up": chosen})
    assert _indices.cache_info().misses == 2 < _indices.cache_info().hits, "one for each group"


def test_rows_move_as_in_full_training_on_the_first_step():
    """One step of Adam: masked rows stay, the others go where they go anyway."""
    whole, part = (Scenario().train(inputs=one_batch(), changes=c) for c in ({}, rows_of("fusion.A.acc", 0.5)))
    torch.testing.assert_close(part.delta["fusion.A.acc"], whole.delta["fusion.A.acc"].view(8, -1)[:4].reshape(-1))


def one_batch():
    return Scenario().inputs(num=16)


def rows_of(group, share):
    return {"train": {group: Part(rows=share)}, "up": {group: Part(rows=share)}}


def test_what_comes_down_at_a_lower_rank_has_no_other_ranks():
    layout, theta = build(b_zero=False).layout, build(b_zero=False).params()
    before = {j: x.clone() for j, x in theta.items()}
    down = {"encoder.acc.1": Part(rank=1), "fusion.B": Part(rank=RANK), "head.1": Part(rank=1), "encoder.hr.1": Part()}
    zero_unsent_ranks(theta, layout, down)
    tensors = layout.unflatten("encoder.acc.1", theta["encoder.acc.1"])
    kept = layout.unflatten("encoder.acc.1", before["encoder.acc.1"])
    assert torch.equal(tensors["a"][0], kept["a"][0]) and not tensors["a"][1:].any()
    assert torch.equal(tensors["b"][:, 0], kept["b"][:, 0]) and not tensors["b"][:, 1:].any()
    assert all(torch.equal(theta[j], before[j]) for j in theta if j != "encoder.acc.1")


def test_scaled_adapters_are_those_with_a_larger_b(run_cache):
    """Backbone 2, PEFT's layers and the fusion's: three times s is three times every B; once s is the model again."""
    backbone = moment.tiny()
    theta, x = moment.stirred(backbone), moment.windows()
    plain = backbone.forward(x).detach()
    scale_adapters(backbone, 3.0)
    scaled = backbone.forward(x).detach()
    scale_adapters(backbone, 1.0)
    assert torch.equal(backbone.forward(x), plain) and not torch.allclose(scaled, plain, rtol=1e-2)
    for j, value in theta.items():
        for spec, tensor in zip(backbone.layout[j].tensors, backbone.layout.unflatten(j, value).values(), strict=True):
            tensor.mul_(3.0 if spec.kind == "lora_b" else 1.0)
    backbone.load(theta)
    torch.testing.assert_close(backbone.forward(x).detach(), scaled, rtol=1e-4, atol=1e-5)
