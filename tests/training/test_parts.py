"""Parts of LoRA groups: one factor alone, or the first ranks of both."""

import pytest
import torch

from relief_ray.federated import ClientContext, ClientProgram
from relief_ray.groups import Part
from relief_ray.messages import Assignment, ClientInfo
from relief_ray.streams import Streams
from relief_ray.training.trainer import ClientInputs, Trainer, TrainerConfig
from tests.toy import CHANNELS, RANK, SHAPE, build

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
