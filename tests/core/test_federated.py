"""One round, step by step: what comes in, what is refused, what is committed."""

from dataclasses import replace

import pytest
import torch

from relief_ray.core.client import ClientContext, ClientProgram, LocalStep, keep_assignment, send_all, task_loss
from relief_ray.core.federated import (
    Averaging,
    Insight,
    RoundVoid,
    check_finite,
    nothing_added,
    run_round,
    single_model,
)
from relief_ray.core.messages import NO_STATE, Assignment, ClientCost, EvalTarget, RoundCost, ServerState, StageTimes
from relief_ray.core.streams import Streams
from relief_ray.records.checkpoint import CheckpointStateStore
from relief_ray.server.aggregation import from_tensor, to_tensor
from relief_ray.strategies import PRESETS
from relief_ray.strategies.fedavg import FedAvg
from relief_ray.strategies.relief import Relief
from relief_ray.strategies.relief.budget import D_BAR
from relief_ray.support.errors import LeftOut
from tests.toy import ACC, EQUAL, FOUR, FULL, Given, PlannedCosts, build, context_of, fleet_of, task_of, update_of

BACKBONE = build(b_zero=False)
LAYOUT, START = BACKBONE.layout, BACKBONE.params()
COSTS = PlannedCosts(planner=EQUAL)


def ones(task, value=1.0, **facts):
    return update_of(task, {j: torch.full((LAYOUT[j].numel,), value) for j in task.up}, **facts)


def given(strategy, updates, fleet=FOUR):
    by_client = {u.receipt.assignment.client: u for u in updates}
    return Given(updates=by_client, strategy=strategy, layout=LAYOUT, fleet=fleet)


def play(strategy, state, updates, *, fleet=FOUR, round_=1, participants=None, store=None):
    context = context_of(LAYOUT, fleet, round_, participants=participants)
    store = CheckpointStateStore() if store is None else store
    return run_round(strategy, state, context, given(strategy, updates, fleet), store, COSTS)


def unchanged(before, after, groups=LAYOUT.ids):
    return all(torch.equal(before[j], after[j]) for j in groups)


# Rounds that succeed ------------------------------------------------------------------------------------------------


def test_a_round_allocates_trains_aggregates_and_accounts():
    strategy, state = FedAvg().build(), ServerState(models={"global": START})
    result = play(strategy, state, [ones(task_of(LAYOUT, n, None), float(n)) for n in range(4)])
    assert all(torch.allclose(result.state.models["global"][j], START[j] + 1.5) for j in LAYOUT.ids)
    assert [t.client for t in result.tasks] == [0, 1, 2, 3]
    assert result.costs["linear"].round_s == 1.0 + len(LAYOUT)
    assert [r.assignment.client for r in result.trained.reduced.receipts] == [0, 1, 2, 3]
    assert unchanged(state.models["global"], START), "the old state is never written to"


def test_a_rejected_client_is_named_and_the_others_count():
    strategy, state = FedAvg().build(), ServerState(models={"global": START})
    sent = [ones(task_of(LAYOUT, n, None), 2.0, state={"own": torch.ones(1)}) for n in range(4)]
    sent[1].delta["head.1"][3] = float("nan")
    store = CheckpointStateStore()
    result = play(strategy, state, sent, store=store)
    assert result.trained.rejected == {1: LeftOut(cause="update", why="group 'head.1': the update is not finite")}
    assert all(torch.allclose(result.state.models["global"][j], START[j] + 2.0) for j in LAYOUT.ids)
    store.commit()
    assert sorted(store.committed) == [0, 2, 3], "a rejected client's personal state is not kept"


def test_an_update_for_a_group_outside_its_assignment_is_rejected():
    strategy, state = Relief().build(), ServerState(models={"global": START})
    sent = [ones(task_of(LAYOUT, n, ["fusion.A.acc"])) for n in range(4)]
    foreign = {**sent[2].delta, "fusion.A.hr": torch.ones(LAYOUT["fusion.A.hr"].numel)}
    sent[2] = replace(sent[2], delta=foreign)
    result = play(strategy, state, sent)
    assert "fusion.A.hr" in result.trained.rejected[2].why
    assert unchanged(START, result.state.models["global"], ["fusion.A.hr"])


# Rounds that do not -------------------------------------------------------------------------------------------------


def test_round_is_void_when_everybody_fails():
    strategy, state = FedAvg().build(), ServerState(models={"global": START})
    sent = [ones(task_of(LAYOUT, n, None), float("inf"), state={"own": torch.ones(1)}) for n in range(4)]
    store = CheckpointStateStore()
    with pytest.raises(RoundVoid, match=r"round 1: all 4 clients failed.*not finite"):
        play(strategy, state, sent, store=store)
    store.commit()
    assert store.committed == {}


@pytest.mark.parametrize("name", ["fedavg", "relief", "v2"])
def test_a_round_without_participants_changes_nothing(name):
    strategy = PRESETS[name].build()
    held = {"head.1": 2.0}
    state = ServerState(models={"global": START}, tensors={D_BAR: to_tensor(held, LAYOUT)}, facts={"note": 1})
    result = play(strategy, state, [], participants=[])
    assert result.tasks == () and unchanged(START, result.state.models["global"])
    assert from_tensor(result.state.tensors[D_BAR], LAYOUT) == held
    assert result.state.facts == {"note": 1} and result.costs["linear"].round_s == 0.0


def test_a_round_whose_method_asks_nobody_changes_nothing():
    """As one without participants: FedAvg over clients that own all sensors, where none of these was drawn."""
    strategy = replace(FedAvg().build(), allocate=lambda state, context: ())
    state = ServerState(models={"global": START}, facts={"note": 1})
    result = play(strategy, state, [], participants=[0, 1])
    assert result.tasks == () and result.state is state and result.trained.reduced.receipts == ()
    assert result.costs["linear"].round_s == 0.0


def test_an_aggregate_that_is_not_finite_is_not_committed():
    """Every update is finite, their sum is not: the old state stays valid and no personal state is staged."""

    def overflow(state, reduced, tools):
        return ServerState(models={"global": {j: v + 3.4e38 + 3.4e38 for j, v in state.models["global"].items()}})

    strategy = replace(FedAvg().build(), aggregate=overflow)
    state, store = ServerState(models={"global": START}), CheckpointStateStore()
    store.stage(0, {"own": torch.zeros(1)})
    store.commit()
    sent = [ones(task_of(LAYOUT, n, None), state={"own": torch.ones(1)}) for n in range(4)]
    with pytest.raises(FloatingPointError, match=r"model 'global': group '.*' is not finite after .*lower training.lr"):
        play(strategy, state, sent, store=store)
    store.commit()
    assert store.load(0)["own"].item() == 0.0 and sorted(store.committed) == [0]
    assert unchanged(START, state.models["global"])


def test_check_finite_names_the_model():
    good = {"g": torch.zeros(2)}
    check_finite(ServerState(models={"global": good}))
    with pytest.raises(FloatingPointError, match=r"'cluster\.1'"):
        check_finite(ServerState(models={"global": good, "cluster.1": {"g": torch.tensor([0.0, float("nan")])}}))


def test_states_are_staged_not_committed():
    strategy, state, store = FedAvg().build(), ServerState(models={"global": START}), CheckpointStateStore()
    play(strategy, state, [ones(task_of(LAYOUT, n, None), state={"n": torch.tensor(n)}) for n in range(4)], store=store)
    assert store.load(2) == NO_STATE
    store.commit()
    assert [int(store.load(n)["n"]) for n in range(4)] == [0, 1, 2, 3]


# Small cohorts ------------------------------------------------------------------------------------------------------


def test_an_empty_cohort_leaves_its_block_and_its_average_alone():
    """Only Acc clients take part: A_hr and E_hr stay bit for bit, their d_bar is held."""
    d_bar = dict.fromkeys(LAYOUT.ids, 3.0)
    state = ServerState(models={"global": START}, tensors={D_BAR: to_tensor(d_bar, LAYOUT)})
    groups = ["fusion.A.acc", "head.1"]
    sent = [ones(task_of(LAYOUT, n, groups), float(n)) for n in (2, 3)]
    strategy = replace(
        Relief(gamma=0.5).build(),
        allocate=lambda state, context: tuple(task_of(LAYOUT, c.id, groups) for c in context.participants),
    )
    result = play(strategy, state, sent, participants=[2, 3])
    after = from_tensor(result.state.tensors[D_BAR], LAYOUT)
    others = [j for j in LAYOUT.ids if j not in groups]
    assert unchanged(START, result.state.models["global"], others)
    assert {j: after[j] for j in others} == dict.fromkeys(others, 3.0)
    size = LAYOUT["head.1"].numel
    assert after["head.1"] == pytest.approx(0.5 * 0.25 * size + 0.5 * 3.0), "updates 2 and 3 differ by 1 everywhere"


@pytest.mark.parametrize("known", [{}, {"fusion.A.hr": 7.0}])
def test_a_cohort_of_one_trains_but_holds_its_average(known):
    state = ServerState(models={"global": START}, tensors={D_BAR: to_tensor(known, LAYOUT)})
    sent = [
        ones(task_of(LAYOUT, 0, ["fusion.A.hr", "head.1"])),
        *(ones(task_of(LAYOUT, n, ["fusion.A.acc", "head.1"])) for n in (1, 2, 3)),
    ]
    chosen = {u.receipt.assignment.client: u.receipt.assignment for u in sent}
    strategy = replace(Relief().build(), allocate=lambda state, context: tuple(chosen.values()))
    result = play(strategy, state, sent)
    after = from_tensor(result.state.tensors[D_BAR], LAYOUT)
    assert after.get("fusion.A.hr") == known.get("fusion.A.hr")
    assert torch.allclose(result.state.models["global"]["fusion.A.hr"], START["fusion.A.hr"] + 1.0)
    assert after["fusion.A.acc"] == 0.0, "three equal updates agree"


@pytest.mark.parametrize("name", ["fedavg", "relief", "v1", "v2", "v3"])
def test_a_single_client_gets_exactly_its_own_model(name):
    """One client: the mean of one update, in every method."""
    fleet = fleet_of(FULL)
    strategy, state = PRESETS[name].build(), ServerState(models={"global": START})
    context = context_of(LAYOUT, fleet, 1)
    (task,) = strategy.allocate(state, context)
    update = ones(task, 0.25)
    result = run_round(strategy, state, context, given(strategy, [update], fleet), CheckpointStateStore(), COSTS)
    expected = {j: v + 0.25 if j in task.up else v for j, v in START.items()}
    assert all(torch.equal(result.state.models["global"][j], expected[j]) for j in LAYOUT.ids)
    assert torch.isfinite(result.state.tensors.get(D_BAR, torch.empty(0))).sum() == 0


# Defaults -----------------------------------------------------------------------------------------------------------


def test_default_program_changes_nothing():
    task = task_of(LAYOUT, 2, ["head.1"])
    context = ClientContext(
        info=FOUR[2], round=1, layout=LAYOUT, start=START, state={}, streams=Streams(seed=0), planner=None
    )
    update = ones(task)
    program = ClientProgram()
    assert program.refine is keep_assignment and keep_assignment(context, task) is task
    assert program.after is send_all and send_all(context, update) is update


def test_eq_2_cross_entropy_by_hand():
    """Two windows with logits (0, 0) and (ln 3, 0): -ln 1/2 and -ln 3/4, their mean."""
    logits = torch.tensor([[0.0, 0.0], [torch.log(torch.tensor(3.0)), 0.0]])
    step = LocalStep(logits=logits, labels=torch.tensor([1, 0]), taps={}, params={}, start={}, args={})
    expected = (torch.log(torch.tensor(2.0)) + torch.log(torch.tensor(4 / 3))) / 2
    assert task_loss(step).item() == pytest.approx(expected.item(), rel=1e-6)


def test_strategy_defaults():
    strategy = FedAvg().build()
    assert (
        strategy.init is single_model
        and strategy.insight == Insight()
        and strategy.averaging == Averaging()
        and strategy.adapt is nothing_added
    )
    assert single_model(LAYOUT, FOUR, Streams(seed=0), START).models == {"global": START}
    plan = strategy.evaluate(ServerState(models={"global": START}), FOUR)
    assert plan.canonical == EvalTarget(label="global") and plan.clients == ()


# Messages -----------------------------------------------------------------------------------------------------------


def test_fleet_cohorts_and_rare_modalities():
    assert FOUR.cohort("acc") == (0, 1, 2, 3) and FOUR.cohort("hr") == (0, 1) and FOUR.cohort("eeg") == ()
    assert FOUR.rare() == ("hr",) and len(FOUR) == 4 and FOUR[3].modalities == ACC
    assert fleet_of(FULL, FULL).rare() == (), "no modality is rare where all are equal"


def test_stage_times_add_up():
    times = StageTimes(forward_s=1.0, backward_s=2.0, optimizer_s=4.0, up_s=8.0, down_s=16.0)
    assert (times.compute_s, times.link_s, times.busy_s) == (7.0, 24.0, 31.0)


def test_round_costs_are_plain_values():
    row = ClientCost(client=0, times=StageTimes(up_s=1.0), wait_s=2.0, energy_j=3.0)
    assert RoundCost(clients=(row,), round_s=3.0, energy_j=3.0).clients[0].times.busy_s == 1.0


def test_messages_cannot_be_changed():
    task = Assignment(client=0, down={}, train={}, up={}, epochs=1)
    with pytest.raises(AttributeError):
        task.epochs = 2
    assert task.view == "global" and task.phase == "train" and not task.taps and not task.keep
