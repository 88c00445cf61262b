"""The bounds: pooled data, no federation, full clients only, no waiting."""

import pytest
import torch

from relief_ray.config.experiment import parse
from relief_ray.core.groups import WHOLE
from relief_ray.core.messages import ServerState
from relief_ray.strategies.bounds import Central, DropSlow, FullOnly, Local, allocate_fast
from relief_ray.strategies.fedavg import FedAvg
from relief_ray.strategies.relief import Relief
from relief_ray.strategies.relief.strategy import planned_round_s
from relief_ray.support.errors import UserError
from tests.toy import ACC, FOUR, FULL, LinearPlanner, bench, build, context_of, fleet_of

LAYOUT = build().layout
EMPTY = ServerState(models={})


# central ------------------------------------------------------------------------------------------------------------


def test_central_is_fedavg_of_one_pooled_client():
    strategy = Central().build()
    assert Central().pooled and strategy.name == "central" and not FedAvg().pooled
    context = context_of(LAYOUT)
    assert strategy.allocate(EMPTY, context) == FedAvg().build().allocate(EMPTY, context)


# local --------------------------------------------------------------------------------------------------------------


def test_local_sends_nothing_and_keeps_everything(tmp_path):
    run = bench(Local().build(), tmp_path, epochs=2)
    start = run.state.models["global"]
    result = run.round(1)
    assert [(r.bytes_up, r.bytes_down) for r in result.trained.reduced.receipts] == [(0, 0)] * 4
    assert all(run.state.models["global"][j] is start[j] for j in LAYOUT.ids)
    assert {n: set(s) for n, s in run.store.committed.items()} == {n: set(LAYOUT.ids) for n in range(4)}
    assert result.state.facts["kept"] == list(LAYOUT.ids)


def test_local_training_goes_on_from_the_clients_own_model(tmp_path):
    run = bench(Local().build(), tmp_path)
    models = []
    for round_ in (1, 2):
        run.round(round_)
        models.append({n: {j: t.clone() for j, t in s.items()} for n, s in run.store.committed.items()})
    assert all(not torch.equal(models[0][n]["head.1"], models[1][n]["head.1"]) for n in range(4))
    assert not torch.equal(models[1][0]["head.1"], models[1][1]["head.1"]), "clients drift apart"
    run.round(3, participants=[0])
    assert torch.equal(run.store.load(1)["head.1"], models[1][1]["head.1"]), "who rests keeps its model"
    assert not torch.equal(run.store.load(0)["head.1"], models[1][0]["head.1"])


def test_local_evaluates_each_clients_own_model_through_its_own_sensors(tmp_path):
    run = bench(Local().build(), tmp_path, epochs=4, lr=0.05, build_args={"b_zero": False})
    run.round(1)
    plan = run.strategy.evaluate(run.state, FOUR)
    assert plan.canonical is None
    assert [(t.client, t.modalities) for t in plan.clients] == [(0, FULL), (1, FULL), (2, ACC), (3, ACC)]
    assert all(t.keep == dict.fromkeys(LAYOUT.ids, WHOLE) for t in plan.clients)
    counts = run.executor.evaluate(run.state.models, plan.clients, run.store.committed, "test")
    assert set(counts) == {f"client.{n}" for n in range(4)} and all(int(c.sum()) == 20 for c in counts.values())
    assert not all(torch.equal(counts["client.0"], counts[f"client.{n}"]) for n in (1, 2, 3))


def test_local_before_any_round_evaluates_the_initial_model():
    plan = Local().build().evaluate(ServerState(models={}), FOUR)
    assert all(t.keep == {} for t in plan.clients)
    odd = Local().build().evaluate(ServerState(models={}, facts={"kept": "head.1"}), FOUR)
    assert all(t.keep == {} for t in odd.clients)


# full_only ----------------------------------------------------------------------------------------------------------


def test_full_only_trains_the_full_clients_and_averages_over_them(tmp_path):
    run = bench(FullOnly().build(), tmp_path)
    result = run.round(1)
    assert [t.client for t in result.tasks] == [0, 1]
    part = result.trained.reduced.sums["global"]["head.1"]
    moved = run.state.models["global"]["head.1"].double() - run.start["head.1"].double()
    torch.testing.assert_close(moved, part.plain / 2, rtol=1e-5, atol=1e-7)


def test_full_only_needs_a_full_client():
    with pytest.raises(UserError, match=r"no client of this fleet owns all modalities.*fleet\.types"):
        FullOnly().build().allocate(EMPTY, context_of(LAYOUT, fleet_of(ACC, ACC)))


def test_full_only_may_sit_a_round_out_when_none_was_drawn():
    assert FullOnly().build().allocate(EMPTY, context_of(LAYOUT, participants=[2, 3])) == ()


# drop_slow ----------------------------------------------------------------------------------------------------------


def test_drop_slow_leaves_out_whoever_misses_reliefs_round():
    """T* = max(1 + 2 x 0.5, 1 + 1 x 3) = 4 buys A 6 groups and C 1: 4 s. Everything takes 1 + 6 x 0.5 = 4 and 19 s."""
    planner = LinearPlanner(tau_s={0: 0.5, 1: 0.5, 2: 3.0, 3: 3.0})
    tasks = DropSlow().build().allocate(EMPTY, context_of(LAYOUT, planner=planner))
    assert [t.client for t in tasks] == [0, 1]
    assert all(set(t.train) == set(LAYOUT.ids) for t in tasks)


@pytest.mark.parametrize("taus", [(1.0, 1.0, 1.0, 1.0), (9.0, 8.0, 7.0, 7.5), (1.0, 1.0, 50.0, 50.0)])
@pytest.mark.parametrize("participants", [[0, 1, 2, 3], [2, 3], [1]])
def test_drop_slow_never_drops_everybody(taus, participants):
    context = context_of(LAYOUT, planner=LinearPlanner(tau_s=dict(enumerate(taus))), participants=participants)
    tasks = DropSlow().build().allocate(EMPTY, context)
    fastest = min(participants, key=lambda n: taus[n])
    assert fastest in [t.client for t in tasks]


def test_drop_slow_follows_the_configured_deadline():
    """Client 3 reaches 4 groups: its round is 1 + 4 x 4 = 17; client 2 needs 1 + 6 x 2.5 = 16 s for everything."""
    planner = LinearPlanner(tau_s={0: 0.5, 1: 1.0, 2: 2.5, 3: 4.0})
    context = context_of(LAYOUT, planner=planner)
    assert planned_round_s(Relief(deadline_s=19.0), context) == 17.0
    for deadline_s, chosen in ((19.0, [0, 1, 2]), (8.0, [0, 1])):
        tasks = allocate_fast(FedAvg().build().allocate, Relief(deadline_s=deadline_s), EMPTY, context)
        assert [t.client for t in tasks] == chosen


@pytest.mark.parametrize("config", [FullOnly(weighting="samples"), DropSlow(weighting="samples")])
def test_weighting_is_kept(config):
    planner = LinearPlanner(tau_s=dict.fromkeys(range(4), 1.0))
    assert [t.weight for t in config.build().allocate(EMPTY, context_of(LAYOUT, planner=planner))][:2] == [6.0, 7.0]


@pytest.mark.parametrize("name", ["central", "local"])
def test_weighting_is_refused_where_nothing_is_averaged(name):
    said = f"strategy.weighting = samples with name = '{name}', which does not read it; .* or remove weighting"
    with pytest.raises(UserError, match=said):
        parse({"strategy": {"name": name, "weighting": "samples"}})
    assert parse({"strategy": {"name": name, "weighting": "uniform"}}).strategy.build().name == name
