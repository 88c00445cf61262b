from __future__ import annotations

import torch

from relief_ray.core.protocols import StateStore
from relief_ray.records.checkpoint import CheckpointStateStore


def test_staged_state_becomes_current_with_the_commit_alone():
    store: StateStore = CheckpointStateStore()
    assert store.load(3) == {}
    store.stage(3, {"head": torch.ones(2)})
    assert store.load(3) == {}
    store.commit()
    assert torch.equal(store.load(3)["head"], torch.ones(2))
    store.stage(3, {"head": torch.zeros(2)})
    store.commit()
    store.commit()
    assert torch.equal(store.load(3)["head"], torch.zeros(2))


def test_a_discarded_round_leaves_no_trace():
    store = CheckpointStateStore({0: {"x": torch.ones(1)}})
    store.stage(0, {"x": torch.zeros(1)})
    store.stage(1, {"x": torch.zeros(1)})
    store.discard()
    store.commit()
    assert list(store.committed) == [0] and float(store.load(0)["x"]) == 1.0


def test_the_store_owns_what_it_was_given():
    buffer = torch.ones(4, requires_grad=True)
    store = CheckpointStateStore()
    store.stage(5, {"x": buffer})
    store.stage(2, {"x": buffer})
    with torch.no_grad():
        buffer.zero_()
    store.commit()
    assert torch.equal(store.load(5)["x"], torch.ones(4)) and not store.load(5)["x"].requires_grad
    assert list(store.committed) == [2, 5]
