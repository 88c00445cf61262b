"""Pilot: what is trained, frozen, sent and kept in both stages, and what clients of one task share."""

from math import log

import pytest
import torch

from relief_ray.core.client import LocalStep
from relief_ray.core.streams import Streams
from relief_ray.server.aggregation import mix
from relief_ray.strategies.pilot import LocalModels, Pilot, backbone_of, mix_with_nearest, objective
from tests.toy import ACC, FOUR, FULL, bench, build, context_of, fleet_of

PLAIN = build().layout.ids
HR = ("hr",)
SIX = fleet_of(FULL, ACC, FULL, HR, ACC, ACC)
TASKS = (0, 1, 0, 2, 1, 1)
NEVER_SENT = {"connector.own", "connector.router", "connector.cross.2", "connector.cross.3"}


def pilot(folder, fleet=SIX, stage1=0.1, rounds=0, **config):
    changed = {k: config.pop(k) for k in ("missing", "engine", "epochs") if k in config}
    run = bench(Pilot(stage1_share=stage1, bottleneck=3, **config).build(), folder, fleet=fleet, **changed)
    for round_ in range(1, rounds + 1):
        run.round(round_)
    return run


def test_connector_has_one_adapter_per_set_of_sensors(tmp_path):
    run = pilot(tmp_path)
    added = [j for j in run.backbone.layout.ids if j not in PLAIN]
    assert added == [*(f"connector.task.{i}" for i in (1, 2, 3)), "connector.cross.2", "connector.cross.3",
                     "connector.own", "connector.router"]  # fmt: skip
    assert backbone_of(run.state.models["global"]) == list(PLAIN)


@pytest.mark.parametrize("stage1", [0, 1])
def test_payloads_hold_the_backbone_and_task_adapters_alone(tmp_path, stage1):
    run = pilot(tmp_path, stage1=stage1)
    result = run.round(1)
    tasks = {f"connector.task.{i}" for i in (1, 2, 3)}
    for task, receipt in zip(result.tasks, result.trained.reduced.receipts, strict=True):
        assert set(task.up) == {*PLAIN, "connector.task.1"} and set(task.down) == {*PLAIN, *tasks}
        assert not NEVER_SENT & ({*task.up} | {*task.down})
        assert receipt.bytes_up < receipt.bytes_down
    assert all(set(u.delta) == set(u.receipt.assignment.up) for u in result.trained.reduced.updates)


def test_stage_2_leaves_frozen_adapters_bitwise_unchanged(tmp_path):
    run = pilot(tmp_path, rounds=2)
    task = run.strategy.allocate(run.state, context_of(run.backbone, SIX, 3))[0]
    theta, own = run.executor._worker.trainer.theta, run.store.load(0)["connector.own"].clone()
    trained = run.executor.train(3, run.state.models, [task], {0: run.store.load(0)})
    received = run.state.models["client.0"]
    assert torch.equal(theta["connector.own"], own) and bool(own.any())
    assert torch.equal(trained.states[0]["connector.own"], own)
    for i in (2, 3):
        assert torch.equal(theta[f"connector.task.{i}"], received[f"connector.task.{i}"])
        assert not torch.equal(theta[f"connector.cross.{i}"], run.store.load(0)[f"connector.cross.{i}"])
    for j in ("connector.task.1", "encoder.acc.1", "fusion.B", "head.1"):
        assert not torch.equal(theta[j], received[j])


@pytest.mark.parametrize(
    ("rounds", "share", "last"), [(200, 0.05, 10), (30, 0.05, 2), (20, 0.05, 1), (3, 0.05, 1), (10, 0.3, 3)]
)
def test_stage_1_is_a_share_of_the_run_and_at_least_a_round(rounds, share, last):
    run = Pilot(stage1_share=share).build()
    layout = build(run.adapt, fleet=SIX).layout
    state = run.init(layout, SIX, Streams(seed=0), build(run.adapt, fleet=SIX).params())

    def phase(round_):
        return run.allocate(state, context_of(layout, SIX, round_, num_rounds=rounds))[0].phase

    assert [phase(1), phase(last), phase(last + 1), phase(rounds)] == ["stage1", "stage1", "train", "train"]


def test_models_are_read_by_the_stage_that_they_were_trained_in(tmp_path):
    run = pilot(tmp_path)
    outputs = []
    for round_ in (1, 2):
        run.round(round_)
        plan = run.strategy.evaluate(run.state, SIX)
        outputs.append({t.output for t in (plan.canonical, *plan.clients)})
    assert outputs == [{"connector.logits@first"}, {"connector.logits@mixed"}]


def test_stage_1_trains_the_own_adapters_and_nothing_of_stage_2(tmp_path):
    run = pilot(tmp_path, stage1=1, rounds=2)
    assert all(set(run.store.load(n)) == {"connector.own"} for n in range(6))
    for n in range(6):
        view = run.state.models[f"client.{n}"]
        assert all(torch.equal(view[j], run.start[j]) for j in NEVER_SENT)
    assert run.state.facts["path"] == "first"


def test_clients_of_one_task_hold_one_adapter_and_everybody_holds_all(tmp_path):
    run = pilot(tmp_path, rounds=2)
    views = [run.state.models[f"client.{n}"] for n in range(6)]
    own = {t: views[TASKS.index(t)]["connector.task.1"] for t in range(3)}
    assert not torch.equal(own[0], own[1]) and not torch.equal(own[1], own[2])
    for n, view in enumerate(views):
        order = [TASKS[n], *(t for t in range(3) if t != TASKS[n])]
        assert all(torch.equal(view[f"connector.task.{i}"], own[t]) for i, t in enumerate(order, 1))


def test_a_task_adapter_is_its_clients_mean_by_samples(tmp_path):
    run = pilot(tmp_path, rounds=1)
    before = run.state.models
    updates = run.round(2).trained.reduced.updates
    for t in range(3):
        came = [n for n in range(6) if TASKS[n] == t]
        total = sum(SIX[n].num_windows for n in came)
        local = [before[f"client.{n}"]["connector.task.1"] + updates[n].delta["connector.task.1"] for n in came]
        expected = sum(SIX[n].num_windows / total * x for n, x in zip(came, local, strict=True))
        adapter = run.state.models[f"client.{came[0]}"]["connector.task.1"]
        torch.testing.assert_close(adapter, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("neighbours", [1, 3])
def test_a_backbone_is_mixed_with_its_nearest(tmp_path, neighbours):
    run = pilot(tmp_path, rounds=1, neighbours=neighbours)
    before = run.state.models
    updates = run.round(2).trained.reduced.updates
    local = LocalModels(starts=[before[f"client.{n}"] for n in range(6)], deltas=[u.delta for u in updates])
    sizes = [float(c.num_windows) for c in SIX.clients]
    expected, other = (mix_with_nearest(local, sizes, k, PLAIN) for k in (neighbours, 4 - neighbours))
    for n in range(6):
        assert all(torch.equal(run.state.models[f"client.{n}"][j], expected[n][j]) for j in PLAIN)
        assert not torch.equal(expected[n]["head.1"], other[n]["head.1"]), "one neighbour or three"
    assert not torch.equal(expected[0]["head.1"], expected[1]["head.1"])


@pytest.mark.parametrize("own_in_mix", [True, False])
def test_in_stage_2_the_own_adapter_counts_where_it_is_asked_to(tmp_path, own_in_mix):
    """Updates from here on depend on the client's frozen ``psi_s``, or not by a bit."""
    run = pilot(tmp_path, rounds=2, own_in_mix=own_in_mix)
    task = run.strategy.allocate(run.state, context_of(run.backbone, SIX, 3))[0]
    own = run.store.load(0)
    assert bool(own["connector.own"].any())
    deltas = []
    for state in (own, {**own, "connector.own": torch.zeros_like(own["connector.own"])}):
        (update,) = run.executor.train(3, run.state.models, [task], {0: state}).reduced.updates
        deltas.append(update.delta["encoder.acc.1"])
    assert torch.equal(*deltas) is not own_in_mix


def objective_of(taps, **lambdas):
    """On two windows of two classes, both equally likely: their cross-entropy is log 2."""
    step = LocalStep(logits=torch.zeros(2, 2), labels=torch.tensor([0, 1]), taps=taps, params={}, start={}, args={})
    return float(objective(Pilot(**lambdas), step))


def test_the_objectives_of_both_stages_by_hand():
    """Logits (x, x, x): ``L_b = 1``, ``L_z = (x + log 3)^2``. Adapters (1, 0) and (0, 1): ``X^T X = I``, a half."""
    routed = {"connector.router": torch.full((2, 3), 0.5)}
    balance, z = 1.0, (0.5 + log(3)) ** 2
    assert objective_of(routed, lambda_b=0.0, lambda_z=0.0, lambda_d=9.0) == pytest.approx(log(2))
    assert objective_of(routed, lambda_b=2.0, lambda_z=0.0) == pytest.approx(log(2) + 2.0 * balance)
    assert objective_of(routed, lambda_b=2.0, lambda_z=3.0) == pytest.approx(log(2) + 2.0 * balance + 3.0 * z)
    apart = {"connector.task.1": torch.eye(2), "connector.own": 7.0 * torch.eye(2)}
    assert objective_of(apart, lambda_d=4.0, lambda_b=9.0, lambda_z=9.0) == pytest.approx(log(2) + 4.0 * 0.5, rel=1e-5)


def test_an_absent_client_keeps_its_backbone_and_state_and_gets_new_adapters(tmp_path):
    run = pilot(tmp_path, rounds=2)
    before, own = run.state.models, dict(run.store.load(4))
    run.round(3, participants=[0, 1])
    after = run.state.models["client.4"]
    assert all(torch.equal(after[j], before["client.4"][j]) for j in PLAIN)
    assert all(torch.equal(run.store.load(4)[j], own[j]) for j in own)
    assert torch.equal(after["connector.task.1"], run.state.models["client.1"]["connector.task.1"])
    assert not torch.equal(after["connector.task.1"], before["client.4"]["connector.task.1"])
    assert torch.equal(after["connector.task.3"], before["client.4"]["connector.task.3"]), "task 2 was absent"


def test_without_a_step_nothing_personal_changes(tmp_path):
    """With no step to take, what is restored is what is kept."""
    run = pilot(tmp_path, rounds=2)
    before = {n: dict(run.store.load(n)) for n in range(6)}
    run.epochs = 0
    run.round(3)
    assert set(before[0]) == NEVER_SENT
    assert all(torch.equal(before[n][j], run.store.load(n)[j]) for n in range(6) for j in NEVER_SENT)


def test_identical_clients_stay_identical(tmp_path):
    """Without training every client's mixture is the initial model."""
    run = pilot(tmp_path, fleet=fleet_of(FULL, FULL, ACC), epochs=0, rounds=2)
    for n in range(3):
        for j in PLAIN:
            torch.testing.assert_close(run.state.models[f"client.{n}"][j], run.start[j], rtol=0, atol=1e-6)


def test_canonical_model_is_the_mean_of_the_full_clients(tmp_path):
    run = pilot(tmp_path, rounds=2)
    models, shares = run.state.models, [float(SIX[n].num_windows) for n in (0, 2)]
    for j in PLAIN:
        expected = mix([(shares[0], models["client.0"][j]), (shares[1], models["client.2"][j])])
        assert torch.equal(models["global"][j], expected)
    assert torch.equal(models["global"]["connector.task.1"], models["client.0"]["connector.task.1"])
    plan = run.strategy.evaluate(run.state, SIX)
    assert plan.canonical.mean_of == {0: shares[0], 2: shares[1]} and set(plan.canonical.keep) == NEVER_SENT
    assert {t.output for t in (plan.canonical, *plan.clients)} == {"connector.logits@mixed"}
    assert [t.view for t in plan.clients] == [f"client.{n}" for n in range(6)] and plan.clients[3].modalities == HR
    counts = run.executor.evaluate(models, plan.clients, {n: run.store.load(n) for n in range(6)}, "test")
    assert set(counts) == {f"client.{n}" for n in range(6)}


@pytest.mark.parametrize("stage1", [1, 0])
def test_both_stages_losses_are_charged_by_hand(tmp_path, stage1):
    """Client n has 6 + n windows in batches of 4, 2 epochs; D = 2 x 6 features, T = 3 tasks."""
    run = pilot(tmp_path, stage1=stage1, epochs=2)
    run.round(1)  # at least one round is of stage 1, unless there is none
    receipts = run.round(2).trained.reduced.receipts
    batches = [(4, 2), (4, 3), (4, 4), (4, 4, 1), (4, 4, 2), (4, 4, 3)]
    for receipt, sizes in zip(receipts, batches, strict=True):
        first = sum(12 * b * b * 12 + 10 * b * 12 + 5 * b * b for b in sizes)
        mixed = sum(20 * b * 3 for b in sizes)
        assert receipt.work.num_steps == 2 * len(sizes)
        assert receipt.work.extra_flops == pytest.approx(2 * (first if stage1 else mixed))


def test_one_task_needs_no_router(tmp_path):
    run = pilot(tmp_path, fleet=fleet_of(ACC, ACC), rounds=2)
    assert [j for j in run.backbone.layout.ids if "cross" in j or "task" in j] == ["connector.task.1"]


def test_losses_reach_the_gradient(tmp_path):
    """Each lambda changes what is learnt in its own stage."""
    for stage1, name in ((1, "lambda_d"), (0, "lambda_b"), (0, "lambda_z")):
        runs = [pilot(tmp_path, stage1=stage1, rounds=2, **{name: value}) for value in (0.0, 5.0)]
        states = [run.store.load(0)["connector.own" if stage1 else "connector.router"] for run in runs]
        assert not torch.equal(*states), name


def test_weighting_may_be_uniform(tmp_path):
    runs = [pilot(tmp_path, rounds=1, weighting=w) for w in ("samples", "uniform")]
    assert not torch.equal(*(run.state.models["client.0"]["head.1"] for run in runs))
    assert runs[1].strategy.evaluate(runs[1].state, SIX).canonical.mean_of == {0: 1.0, 2: 1.0}


@pytest.mark.parametrize("missing", ["zero_input", "zero_feature"])
@pytest.mark.parametrize("engine", ["naive", "reuse"])
def test_both_missing_modes_and_engines_stay_finite(missing, engine, tmp_path):
    run = pilot(tmp_path, fleet=FOUR, missing=missing, engine=engine, rounds=3)
    assert all(bool(torch.isfinite(x).all()) for theta in run.state.models.values() for x in theta.values())
    assert bool(run.store.load(0)["connector.cross.2"].any())
