"""FedAvg: McMahan et al. 2017, and what Lemma 1 says of it."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from relief_ray.core.codec import encoded_nbytes
from relief_ray.core.messages import ServerState
from relief_ray.strategies import PRESETS
from relief_ray.strategies.fedavg import FedAvg
from relief_ray.training.inputs import prepare
from tests.toy import FOUR, FULL, bench, build, context_of, fleet_of, reduced_of, task_of, update_of, with_sgd

BACKBONE = build(b_zero=False)
LAYOUT, START = BACKBONE.layout, BACKBONE.params()


def aggregate(strategy, updates, fleet=FOUR):
    reduced = reduced_of(updates, strategy.reduction, LAYOUT, fleet)
    state = ServerState(models={"global": START})
    return strategy.aggregate(state, reduced, context_of(LAYOUT, fleet)).models["global"]


def tasks_of(weighting="uniform", fleet=FOUR):
    return FedAvg(weighting=weighting).build().allocate(ServerState(models={}), context_of(LAYOUT, fleet))


def random_updates(seed, fleet=FOUR, weighting="uniform"):
    make = torch.Generator().manual_seed(seed)
    return [
        update_of(task, {g.id: torch.randn(g.numel, generator=make) for g in LAYOUT})
        for task in tasks_of(weighting, fleet)
    ]


def test_everybody_trains_everything_absent_sensors_included():
    tasks = FedAvg().build().allocate(ServerState(models={}), context_of(LAYOUT))
    assert [t.client for t in tasks] == [0, 1, 2, 3]
    assert all(set(t.train) == set(t.up) == set(t.down) == set(LAYOUT.ids) for t in tasks)


def test_allocation_follows_the_participants():
    tasks = FedAvg().build().allocate(ServerState(models={}), context_of(LAYOUT, participants=[1, 3]))
    assert [t.client for t in tasks] == [1, 3]


@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_identical_client_models_give_exactly_that_model(weighting):
    delta = {g.id: torch.full((g.numel,), 0.5) for g in LAYOUT}
    after = aggregate(FedAvg(weighting=weighting).build(), [update_of(task, delta) for task in tasks_of(weighting)])
    assert all(torch.equal(after[j], START[j] + 0.5) for j in LAYOUT.ids)


@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_delta_form_is_weight_form(weighting):
    """``sum_n p_n theta_n`` of the local models, in float64."""
    sent = random_updates(4, weighting=weighting)
    after = aggregate(FedAvg(weighting=weighting).build(), sent)
    share = [1.0] * 4 if weighting == "uniform" else [6.0, 7.0, 8.0, 9.0]
    for j in LAYOUT.ids:
        local = [START[j].double() + u.delta[j].double() for u in sent]
        expected = sum(p * t for p, t in zip(share, local, strict=True)) / sum(share)
        torch.testing.assert_close(after[j].double(), expected, rtol=1e-6, atol=1e-6)


@given(st.permutations(range(6)), st.integers(0, 50))
def test_order_of_arrival_does_not_change_a_bit(order, seed):
    fleet = fleet_of(*[FULL] * 6)
    sent = random_updates(seed, fleet, "samples")
    strategy = FedAvg(weighting="samples").build()
    first, second = aggregate(strategy, sent, fleet), aggregate(strategy, [sent[i] for i in order], fleet)
    assert all(torch.equal(first[j], second[j]) for j in LAYOUT.ids)


@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_one_full_batch_step_of_sgd_is_a_gradient_step_on_the_weighted_loss(tmp_path, weighting):
    """FedSGD: ``theta - eta grad sum_n p_n F_n``, from one backward pass through all clients' losses together."""
    lr, shares = 0.05, [1.0] * 4 if weighting == "uniform" else [6.0, 7.0, 8.0, 9.0]
    strategy = FedAvg(weighting=weighting).build()
    run = with_sgd(bench(strategy, tmp_path, batch_size=64, lr=lr, build_args={"b_zero": False}))
    before, model = run.state.models["global"], build(b_zero=False)
    model.load(before)
    run.round(1)
    loss = torch.zeros(())
    for share, client, windows in zip(shares, FOUR.clients, run.executor._worker.job.clients, strict=True):
        data = prepare(windows, client.modalities, model)
        blank = {"acc": torch.zeros(len(windows), 2, 8), "hr": torch.zeros(len(windows), 1, 8)}
        own = torch.nn.functional.cross_entropy(model.forward({**blank, **data.inputs}), data.labels)
        loss = loss + share / sum(shares) * own
    loss.backward()
    for j, parameters in model.parameters.items():
        gradient = torch.cat([p.grad.reshape(-1) for p in parameters])
        moved = run.state.models["global"][j] - before[j]
        torch.testing.assert_close(moved, -lr * gradient, rtol=1e-4, atol=1e-7)
        assert gradient.any()


@pytest.mark.parametrize("engine", ["naive", "reuse"])
def test_lemma_1_term_1_zero_feature_dilutes_by_the_cohorts_share(tmp_path, engine):
    """Clients 2 and 3 lack hr: their Delta A_hr is exactly 0, so the global step is 2/4 of the cohort's mean."""
    strategy = FedAvg().build()
    args = {"missing": "zero_feature", "engine": engine, "build_args": {"b_zero": False}}
    run = bench(strategy, tmp_path, **args)
    before = run.state.models["global"]
    result = run.round(1)
    norms = [r.sq_norm for r in result.trained.reduced.receipts]
    for j in ("fusion.A.hr", "encoder.hr.1"):
        assert [n[j] == 0.0 for n in norms] == [False, False, True, True]
        part = result.trained.reduced.sums["global"][j]
        cohort_mean = part.plain / 2
        moved = run.state.models["global"][j].double() - before[j].double()
        torch.testing.assert_close(moved, 0.5 * cohort_mean, rtol=1e-5, atol=1e-7)


def test_zero_input_lets_absent_blocks_move(tmp_path):
    """Assumption 4's noise: under Eq. (2)'s zero padding Adam pushes even absent blocks."""
    run = bench(FedAvg().build(), tmp_path, missing="zero_input", build_args={"b_zero": False})
    receipts = run.round(1).trained.reduced.receipts
    assert [r.sq_norm["fusion.A.hr"] > 0 for r in receipts] == [True] * 4
    assert [r.sq_norm["encoder.hr.1"] > 0 for r in receipts] == [True, True, False, False], "A x = 0 where x = 0"


def test_bytes_up_are_four_per_trainable_parameter_and_the_header(tmp_path):
    result = bench(FedAvg().build(), tmp_path).round(1)
    header = encoded_nbytes(LAYOUT, LAYOUT.select()) - 4 * LAYOUT.numel
    assert 0 < header < 60 * len(LAYOUT)
    assert {r.bytes_up for r in result.trained.reduced.receipts} == {4 * LAYOUT.numel + header}
    assert {r.bytes_down for r in result.trained.reduced.receipts} == {4 * LAYOUT.numel + header}


def test_other_state_is_carried_along():
    state = ServerState(models={"global": START}, tensors={"t": torch.ones(1)}, facts={"k": 1})
    strategy = FedAvg().build()
    reduced = reduced_of(random_updates(0), strategy.reduction, LAYOUT, FOUR)
    after = strategy.aggregate(state, reduced, context_of(LAYOUT))
    assert after.tensors == state.tensors and after.facts == {"k": 1}


def test_clients_that_sent_nothing_still_count_in_fedavg():
    """A participant that trained no group of a bucket dilutes it: the weights are over all receipts."""
    sent = random_updates(0)
    sent[3] = update_of(task_of(LAYOUT, 3, ["head.1"]), {"head.1": sent[3].delta["head.1"]})
    after = aggregate(FedAvg().build(), sent)
    expected = START["fusion.B"].double() + sum(u.delta["fusion.B"].double() for u in sent[:3]) / 4
    torch.testing.assert_close(after["fusion.B"].double(), expected, rtol=1e-6, atol=1e-7)


def test_presets_build_and_travel():
    """Every preset is a frozen value of module-level functions: it can be sent to another process."""
    import pickle

    for name, config in PRESETS.items():
        strategy = config.build()
        again = pickle.loads(pickle.dumps(strategy))
        assert again.name == strategy.name == config.name
        assert replace(strategy, name="x").name == "x" and name in PRESETS
        assert type(config).model_validate(config.model_dump()) == config
