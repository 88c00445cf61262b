"""FLOPs against sums done by hand: a multiply-add counts as two."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from relief_ray.models.backbone import InputShape
from relief_ray.models.cnn import CnnConfig
from relief_ray.models.costs import _count, count_costs

SHAPE = InputShape(channels=(("acc", 3), ("hr", 1)), window=20, num_classes=4)
CONFIG = CnnConfig(conv1=2, conv2=4, steps=5, fusion=6)
CONV1_ACC = 2 * 10 * 2 * 3 * 5  # output steps, output channels, input channels, kernel
CONV1_HR = 2 * 10 * 2 * 1 * 5
CONV2 = 2 * 5 * 4 * 2 * 5
BLOCK, HEAD = 2 * 6 * 20, 2 * 4 * 6


@pytest.fixture(scope="module", params=[False, True], ids=["convolutions", "products"])
def costs(request):
    return count_costs(CONFIG.build(SHAPE, 0, "gemm" if request.param else "naive"))


def test_forward_flops(costs):
    forward = {stage: flops.forward_flops for stage, flops in costs.flops.items()}
    assert forward == {
        "encoder.acc.1": CONV1_ACC,
        "encoder.acc.2": CONV2,
        "encoder.hr.1": CONV1_HR,
        "encoder.hr.2": CONV2,
        "fusion.A.acc": BLOCK,
        "fusion.A.hr": BLOCK,
        "fusion": 6 * 2,
        "head": HEAD,
    }


def test_backward_flops(costs):
    for stage, forward in (("encoder.acc.2", CONV2), ("fusion.A.hr", BLOCK), ("head", HEAD)):
        group = {"head": "head.1"}.get(stage, stage)
        assert costs.flops[stage].weight_grad_flops == {group: forward}
        assert costs.flops[stage].input_grad_flops == forward
    assert costs.flops["encoder.acc.1"].weight_grad_flops == {"encoder.acc.1": CONV1_ACC}
    assert costs.flops["fusion"].weight_grad_flops == {"fusion.B": 6}


def test_values_per_group(costs):
    assert costs.num_values["fusion.A.acc"] == 120 and costs.num_values["encoder.acc.1"] == 2 * 3 * 5 + 2
    assert sum(costs.num_values.values()) == CONFIG.build(SHAPE, 0).layout.numel


def test_counting_leaves_the_backbone_as_it_was():
    backbone = CONFIG.build(SHAPE, 0)
    backbone.parameters["head.1"][0].requires_grad_(False)
    before = backbone.params()
    count_costs(backbone)
    flags = {j: [p.requires_grad for p in ps] for j, ps in backbone.parameters.items()}
    assert flags.pop("head.1") == [False, True] and all(all(f) for f in flags.values())
    assert all(torch.equal(before[j], v) for j, v in backbone.params().items())
    assert all(p.grad is None for ps in backbone.parameters.values() for p in ps)


def test_both_variants_cost_the_same_where_it_matters():
    plain, fast = (count_costs(CONFIG.build(SHAPE, 0, engine)) for engine in ("naive", "gemm"))
    for j in plain.num_values:
        if j.endswith(".1") and j.startswith("encoder"):
            continue  # the products never need conv1's input gradient: its columns are data
        assert plain.group_flops(j) == fast.group_flops(j)


def test_the_counter_agrees_with_torchs_own():
    torch.manual_seed(0)
    attention = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    conv, x = torch.nn.Conv1d(3, 8, 5, stride=2), torch.randn(2, 3, 20)

    def run():
        attention(conv(x).transpose(1, 2)).sum().backward()

    with FlopCounterMode(display=False) as theirs:
        run()
    assert _count(run) == theirs.get_total_flops() > 0


@pytest.mark.ci
def test_counting_imports_no_compiler_and_no_algebra():
    program = (
        "import sys; from tests.models.test_costs import CONFIG, SHAPE, count_costs; "
        "count_costs(CONFIG.build(SHAPE, 0)); assert not {'torch._dynamo', 'sympy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=Path(__file__).parents[2])
