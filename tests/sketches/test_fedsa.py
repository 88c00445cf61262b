"""Does the interface carry FedSA-LoRA's sharing pattern? (invariants of its own paper)"""

from dataclasses import replace

import pytest
import torch

from relief_ray.core.codec import encoded_nbytes
from relief_ray.records.checkpoint import CheckpointStateStore
from relief_ray.strategies.fedavg import FedAvg
from tests.sketches.fedsa import PERSONAL, SHARED, fedsa, having
from tests.toy import FOUR, FULL, bench, build, context_of, fleet_of

LAYOUT = build().layout
A_GROUPS = ("encoder.acc.1", "encoder.hr.1", "fusion.A.acc", "fusion.A.hr")
B_GROUPS = ("encoder.acc.1", "encoder.hr.1", "fusion.B", "head.1")


def part_of(theta, group, part):
    return theta[group][LAYOUT.indices(group, part)]


def test_what_is_shared_and_what_is_personal():
    assert tuple(having(LAYOUT, SHARED)) == tuple(j for j in LAYOUT.ids if j in A_GROUPS)
    assert set(having(LAYOUT, PERSONAL)) == set(B_GROUPS)
    both = LAYOUT.num_values(having(LAYOUT, SHARED)) + LAYOUT.num_values(having(LAYOUT, PERSONAL))
    assert both == LAYOUT.numel


def test_before_training_the_adapters_do_nothing():
    start = build().params()
    assert all(not part_of(start, j, PERSONAL).any() for j in B_GROUPS if j != "head.1")


@pytest.mark.parametrize("engine", ["naive", "reuse"])
def test_a_is_common_b_and_head_are_everyones_own(tmp_path, engine):
    run = bench(fedsa(LAYOUT), tmp_path, epochs=2, engine=engine)
    for round_ in (1, 2):
        run.round(round_)
    server = run.state.models["global"]
    for j in A_GROUPS:
        assert not torch.equal(part_of(server, j, SHARED), part_of(run.start, j, SHARED))
    for j in B_GROUPS:
        assert torch.equal(part_of(server, j, PERSONAL), part_of(run.start, j, PERSONAL)), "the server never sees B"
    states = run.store.committed
    assert all(set(states[n]) == set(B_GROUPS) for n in range(4))
    for j in ("fusion.B", "head.1"):
        assert len({tuple(states[n][j].tolist()) for n in range(4)}) == 4


def test_after_the_next_download_all_a_are_equal_and_b_is_bit_for_bit_the_clients(tmp_path):
    """A round of zero epochs shows what clients hold when training starts."""
    run = bench(fedsa(LAYOUT), tmp_path, epochs=2)
    run.round(1)
    before = run.store.committed
    run.strategy = fedsa(LAYOUT, epochs=0)
    result = run.round(2)
    assert all(n == 0.0 for r in result.trained.reduced.receipts for n in r.sq_norm.values()), "local A = server's A"
    for n in range(4):
        assert all(torch.equal(run.store.load(n)[j], before[n][j]) for j in B_GROUPS)


def test_the_payload_holds_no_b_and_no_head(tmp_path):
    run = bench(fedsa(LAYOUT), tmp_path)
    result = run.round(1)
    shared = having(LAYOUT, SHARED)
    values = sum(t.numel for j in A_GROUPS for t in LAYOUT[j].tensors if t.kind == "lora_a")
    header = encoded_nbytes(LAYOUT, shared) - 4 * values
    for r in result.trained.reduced.receipts:
        assert r.bytes_up == r.bytes_down == 4 * values + header
    sums = result.trained.reduced.sums["global"]
    assert {j: len(s.plain) for j, s in sums.items()} == {j: LAYOUT.num_values({j: SHARED}) for j in A_GROUPS}


def test_dilution_law_for_a_rare_sensors_block(tmp_path):
    """``zero_feature``: who lacks hr returns A_hr unchanged, so the step is |C_hr| / N of the owners' mean."""
    run = bench(fedsa(LAYOUT), tmp_path, missing="zero_feature", build_args={"b_zero": False})
    result = run.round(1)
    for j in ("fusion.A.hr", "encoder.hr.1"):
        assert [r.sq_norm[j] > 0 for r in result.trained.reduced.receipts] == [True, True, False, False]
        moved = part_of(run.state.models["global"], j, SHARED) - part_of(run.start, j, SHARED)
        owners_mean = result.trained.reduced.sums["global"][j].plain / 2
        torch.testing.assert_close(moved.double(), owners_mean * 2 / 4, rtol=1e-4, atol=1e-7)


def test_personal_state_survives_the_store_rest_and_a_restart(tmp_path):
    run = bench(fedsa(LAYOUT), tmp_path)
    run.round(1)
    held = {j: t.clone() for j, t in run.store.load(3).items()}
    run.round(2, participants=[0, 1])
    assert all(torch.equal(run.store.load(3)[j], held[j]) for j in B_GROUPS), "who rests keeps B"
    restarted = replace(run, store=CheckpointStateStore(run.store.committed))
    models = []
    for each in (run, restarted):
        each.round(3)
        models.append((each.state.models["global"], each.store.committed))
    (model, states), (again, states_again) = models
    assert all(torch.equal(model[j], again[j]) for j in LAYOUT.ids)
    assert all(torch.equal(states[n][j], states_again[n][j]) for n in range(4) for j in B_GROUPS)


def test_identical_clients_follow_fedavg(tmp_path):
    """Same data, same batches: sharing A alone or everything is the same trajectory."""
    fleet = fleet_of(FULL, FULL, FULL)
    runs = []
    for strategy in (fedsa(LAYOUT), FedAvg().build()):
        run = bench(strategy, tmp_path, fleet=fleet, batch_size=64, epochs=3)
        job = run.executor._worker.job
        clones = tuple(job.clients[0] for _ in fleet.clients)
        run.executor._worker.job = replace(job, clients=clones)
        for round_ in (1, 2):
            run.round(round_)
        runs.append(run)
    shared, plain = (r.state.models["global"] for r in runs)
    for j in A_GROUPS:
        torch.testing.assert_close(part_of(shared, j, SHARED), part_of(plain, j, SHARED), rtol=1e-3, atol=1e-4)
    for j in B_GROUPS:
        mine = runs[0].store.load(0)[j]
        torch.testing.assert_close(mine, part_of(plain, j, PERSONAL), rtol=1e-3, atol=1e-4)


def test_each_client_is_evaluated_with_its_own_b(tmp_path):
    run = bench(fedsa(LAYOUT), tmp_path, epochs=6, lr=0.05)
    run.round(1)
    plan = run.strategy.evaluate(run.state, FOUR)
    counts = run.executor.evaluate(run.state.models, plan.clients, run.store.committed, "test")
    without = run.executor.evaluate(run.state.models, plan.clients, {}, "test")
    assert all(int(c.sum()) == 20 for c in counts.values())
    assert any(not torch.equal(counts[label], without[label]) for label in counts)
    assert len({tuple(c.flatten().tolist()) for c in without.values()}) == 2, "without B they differ by sensors only"


def test_tasks_follow_the_participants():
    tasks = fedsa(LAYOUT).allocate(None, context_of(LAYOUT, participants=[2]))
    assert [t.client for t in tasks] == [2] and tasks[0].up == tasks[0].down == having(LAYOUT, SHARED)
