import pytest
import torch

from benchmarks.engine.local import Local, eager_round, make_backbone, make_client
from benchmarks.engine.product import deviation

SHARED = ("fusion.A.acc", "fusion.B", "head.1")


def flat(update):
    return torch.cat(list(update.delta.values()))


@pytest.mark.parametrize("groups", [None, ("fusion.A.acc",), SHARED])
def test_naive_and_reuse_learn_the_same(scenario, groups):
    client = make_client(scenario, ("acc",))
    naive, fast = (flat(Local(client, make_backbone(scenario, e), e).train(groups)) for e in ("naive", "gemm"))
    assert float(naive.norm()) > 0
    assert deviation(fast, naive, torch.zeros(1)) < 1e-3


def test_the_eager_round_is_everything_trained_naively(scenario):
    client = make_client(scenario, ("acc",))
    local = Local(client, make_backbone(scenario, "naive"), "naive")
    local.train(None)
    assert deviation(local.trainer.flat, eager_round(client)(), client.start) < 1e-3
