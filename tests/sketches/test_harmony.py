"""Does the interface carry Harmony's two phases and its clusters?"""

from dataclasses import replace

import pytest
import torch

from relief_ray.messages import Collect
from relief_ray.server.aggregation import apply_step, mean_step, over_members
from tests.sketches.harmony import collect, harmony, heads
from tests.toy import ACC, FULL, bench, build, context_of, fleet_of

LAYOUT = build(heads).layout
FLEET = fleet_of(FULL, FULL, FULL, FULL, ACC, ACC)
ENCODERS, FUSED = ("encoder.acc.1", "encoder.hr.1"), ("fusion.A.acc", "fusion.A.hr", "fusion.B", "head.1")


def harmony_run(folder, switch=2, num_clusters=2, **options):
    return bench(harmony(switch, num_clusters), folder, fleet=FLEET, **options)


@pytest.mark.parametrize("engine", ["naive", "reuse"])
def test_stage_1_averages_each_sensors_network_over_its_owners(tmp_path, engine):
    run = harmony_run(tmp_path, engine=engine)
    start = run.state.models["global"]
    result = run.round(1)
    sums = result.trained.reduced.sums["global"]
    assert {j: s.members for j, s in sums.items()} == {
        "encoder.acc.1": (0, 1, 2, 3, 4, 5), "unimodal.acc": (0, 1, 2, 3, 4, 5),
        "encoder.hr.1": (0, 1, 2, 3), "unimodal.hr": (0, 1, 2, 3),
    }  # fmt: skip
    for j, part in sums.items():
        expected = (start[j].double() + part.plain / len(part.members)).float()
        assert torch.equal(run.state.models["global"][j], expected)
    assert all(torch.equal(run.state.models["global"][j], start[j]) for j in FUSED), "fusion waits for stage 2"
    up = [r.bytes_up for r in result.trained.reduced.receipts]
    assert up[4] == up[5] < up[0], "who has no hr sends nothing of it"


def test_stage_1_trains_each_sensor_apart(tmp_path):
    """The acc network of a client learns the same whether or not the client also has hr."""
    states = []
    for owned in (FULL, ACC):
        run = bench(harmony(2, 1), tmp_path, fleet=fleet_of(owned, FULL), batch_size=64)
        result = run.round(1, participants=[0])
        states.append(result.trained.reduced.sums["global"]["encoder.acc.1"].plain)
    torch.testing.assert_close(states[0], states[1], rtol=1e-5, atol=1e-8)


def test_stage_1_runs_no_fusion_at_all(tmp_path):
    run = harmony_run(tmp_path)
    calls = []
    for stage in run.executor._worker.backbone.stages:
        stage.module.register_forward_hook(lambda *_, name=stage.spec.id: calls.append(name))
    run.round(1)
    assert set(calls) == {*ENCODERS, "unimodal.acc", "unimodal.hr"}


def test_stage_2_keeps_encoders_at_home_and_fusion_inside_its_cluster(tmp_path):
    run = harmony_run(tmp_path)
    run.round(1)
    stage_1 = run.state.models["global"]
    result = run.round(2)
    receipts = result.trained.reduced.receipts
    assert [r.assignment.client for r in receipts] == [0, 1, 2, 3], "a single sensor has nothing to fuse: it idles"
    assert [r.assignment.view for r in receipts] == ["cluster.0", "cluster.0", "cluster.1", "cluster.1"]
    assert all(not set(r.assignment.up) & set(ENCODERS) for r in receipts)
    one, two = run.state.models["cluster.0"], run.state.models["cluster.1"]
    assert all(not torch.equal(one[j], two[j]) for j in FUSED)
    assert all(torch.equal(m[j], stage_1[j]) for m in (one, two) for j in ENCODERS)
    assert all(torch.equal(run.state.models["global"][j], stage_1[j]) for j in LAYOUT.ids)
    own = run.store.committed
    assert sorted(own) == [0, 1, 2, 3]
    assert all(len({tuple(own[n][j].tolist()) for n in own}) == 4 for j in ENCODERS)


def test_stage_2_clients_of_one_cluster_start_from_its_fusion_and_their_own_encoders(tmp_path):
    run = harmony_run(tmp_path)
    for round_ in (1, 2):
        run.round(round_)
    before, states = run.state.models, run.store.committed
    run.epochs = 0
    run.round(3)
    assert all(torch.equal(run.state.models[k][j], before[k][j]) for k in before for j in LAYOUT.ids)
    assert all(torch.equal(run.store.load(n)[j], states[n][j]) for n in range(4) for j in ENCODERS)


def test_discrepancy_is_zero_at_the_start_and_lies_in_0_2(tmp_path):
    run = harmony_run(tmp_path)
    run.round(1)
    run.epochs = 0
    still = [r.stats["d"] for r in run.round(2).trained.reduced.receipts]
    assert all(torch.allclose(d, torch.zeros(2), atol=1e-6) for d in still)
    run.epochs = 3
    moved = [r.stats["d"] for r in run.round(3).trained.reduced.receipts]
    assert all(bool(((d > 1e-6) & (d <= 2)).all()) for d in moved) and len(moved) == 4


def test_one_cluster_is_the_mean_over_all_multimodal_clients(tmp_path):
    run = harmony_run(tmp_path, num_clusters=1)
    run.round(1)
    before = run.state.models["cluster.0"]
    sums = run.round(2).trained.reduced.sums["cluster.0"]
    assert all(s.members == (0, 1, 2, 3) for s in sums.values()) and set(sums) == set(FUSED)
    expected = apply_step(before, mean_step(sums, over_members, LAYOUT))
    assert all(torch.equal(run.state.models["cluster.0"][j], expected[j]) for j in LAYOUT.ids)


def test_clusters_of_the_same_round_need_every_update_and_get_them(tmp_path):
    """With ``Collect`` the server sees each update with its statistics, in client order; nothing is summed."""
    run = harmony_run(tmp_path)
    run.round(1)
    collecting = replace(harmony(2, 2, Collect()), aggregate=collect)
    again = bench(collecting, tmp_path, fleet=FLEET)
    again.state = run.state
    result = again.round(2)
    updates = result.trained.reduced.updates
    assert [u.receipt.assignment.client for u in updates] == [0, 1, 2, 3] and result.trained.reduced.sums == {}
    assert all(u.receipt.stats["d"].shape == (2,) and set(u.delta) == set(FUSED) for u in updates)
    clusters = again.state.facts["clusters"]
    assert sorted(clusters.values()) == [0, 0, 1, 1]
    tasks = again.strategy.allocate(again.state, context_of(again.backbone, FLEET, 3))
    assert {str(t.client): t.view for t in tasks} == {n: f"cluster.{k}" for n, k in clusters.items()}
    for k in (0, 1):
        own = [u for u in updates if clusters[str(u.receipt.assignment.client)] == k]
        moved = again.state.models[f"cluster.{k}"]["fusion.B"] - run.state.models[f"cluster.{k}"]["fusion.B"]
        torch.testing.assert_close(moved, torch.stack([u.delta["fusion.B"] for u in own]).mean(0), rtol=1e-4, atol=1e-6)


def test_each_client_is_evaluated_by_the_network_it_has(tmp_path):
    run = harmony_run(tmp_path, epochs=4, lr=0.05, build_args={"b_zero": False})
    for round_ in (1, 2):
        run.round(round_)
    plan = run.strategy.evaluate(run.state, FLEET)
    assert [(t.view, t.output) for t in plan.clients] == [
        *[("cluster.0", None)] * 2, *[("cluster.1", None)] * 2, *[("global", "unimodal.acc")] * 2,
    ]  # fmt: skip
    found = run.executor.evaluate(run.state.models, plan.clients, run.store.committed, "test")
    assert torch.equal(found["c4"], found["c5"]) and int(found["c4"].sum()) == 20
    fused = [replace(t, output=None) for t in plan.clients[4:]]
    other = run.executor.evaluate(run.state.models, fused, run.store.committed, "test")
    assert not torch.equal(found["c4"], other["c4"]), "the unimodal head is another classifier than the fused one"
