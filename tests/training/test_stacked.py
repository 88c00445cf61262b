"""Clients trained at once: what each would have come to alone."""

import gc
import weakref
from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from relief_ray.core.client import ClientProgram, task_loss
from relief_ray.core.groups import Part
from relief_ray.core.messages import NO_STATE
from relief_ray.core.stages import MAX_STEP_BYTES
from relief_ray.models.moment.weights import load_frozen
from relief_ray.training.config import Schedule
from relief_ray.training.inputs import ClientInputs
from relief_ray.training.optimizer import UpdateRule
from relief_ray.training.stacked_step import CudaGraphStep, StackedStep, StackedTrainer, epoch_steps
from relief_ray.training.trainer import Trainer
from tests.models import tiny_moment as moment
from tests.training.scenario import ASSIGNMENTS, SHAPE, Scenario, distance, precision, task
from tests.training.test_local_step import contrast, seen

ALL = tuple(SHAPE.modalities)
OTHER_RULES = {
    "SGD": {"rule": UpdateRule(name="sgd")},
    "SGD, momentum and decay": {"rule": UpdateRule(name="sgd", momentum=0.9, weight_decay=0.02)},
    "Adam, penalty": {"rule": UpdateRule(weight_decay=0.02)},
    "AdamW, clipped": {"rule": UpdateRule(name="adamw", weight_decay=0.1), "clip_norm": 0.05},
    "SGD, clipped, halved": {
        "rule": UpdateRule(name="sgd"),
        "clip_norm": 0.3,
        "schedule": Schedule(name="step", num_rounds=4, every=1, factor=0.5),
    },
}
# Sensors, windows: batches of 16 end differently, one client has none that is full, two are alike.
CLIENTS = [(("acc", "gyro"), 45), (ALL, 61), (("hr",), 9), (("gyro", "hr"), 45), (ALL, 32)]


def runs_of(scenario, tasks, program=None, states=None):
    """One client per task; each starts from a model of its own."""
    runs = []
    for i, (assignment, (present, num)) in enumerate(zip(tasks, CLIENTS, strict=False)):
        make = torch.Generator().manual_seed(i)
        start = {j: x + 0.01 * torch.randn(x.shape, generator=make).to(x.dtype) for j, x in scenario.start.items()}
        context = scenario.context(present=present, id_=i, start=start, state=(states or {}).get(i, NO_STATE))
        inputs = scenario.inputs(present, num)
        with precision(scenario.dtype):
            runs.append(
                scenario.trainer.begin(context, replace(assignment, client=i), inputs, program or ClientProgram())
            )
    return runs


def both(
    tasks, program=None, states=None, most=8, engine="gemm", missing="zero_input", dtype=torch.float64, **settings
):
    """The clients' updates when trained alone, and together."""
    alone, together = (Scenario(engine, missing, dtype, **settings) for _ in range(2))
    made = [tasks(scenario.backbone) for scenario in (alone, together)]
    with precision(dtype):
        singly = [alone.trainer.train_run(r) for r in runs_of(alone, made[0], program, states)]
        stacked = StackedTrainer(together.trainer, most)
        return singly, stacked.train(runs_of(together, made[1], program, states))


def agree(singly, stacked, tolerance=1e-10):
    assert len(singly) == len(stacked)
    for one, other in zip(singly, stacked, strict=True):
        assert one.receipt.assignment.client == other.receipt.assignment.client
        if all(not d.any() for d in one.delta.values()):
            assert all(not d.any() for d in other.delta.values())
        else:
            assert distance(other, one) <= tolerance
        mine, theirs = one.receipt.work, other.receipt.work
        assert mine.loss == pytest.approx(theirs.loss, rel=1e-9) and mine.num_steps == theirs.num_steps
        assert (mine.num_windows, mine.epochs, mine.engine) == (theirs.num_windows, theirs.epochs, theirs.engine)
        assert one.receipt.bytes_up == other.receipt.bytes_up
        assert one.receipt.stats.keys() == other.receipt.stats.keys()
        for name, rows in one.receipt.stats.items():
            assert torch.allclose(rows, other.receipt.stats[name], atol=1e-9), name
        assert one.state.keys() == other.state.keys()
        for name, values in one.state.items():
            assert torch.allclose(values, other.state[name], atol=1e-9), name


@pytest.mark.ci
@pytest.mark.parametrize("groups", ASSIGNMENTS.values(), ids=ASSIGNMENTS)
@pytest.mark.parametrize("missing", ["zero_input", "zero_feature"])
@pytest.mark.parametrize("engine", ["gemm", "reuse"])
def test_every_client_comes_to_what_it_would_alone(engine, missing, groups):
    def tasks(backbone):
        return [task(backbone, groups, 3) for _ in CLIENTS]

    agree(*both(tasks, engine=engine, missing=missing))


@pytest.mark.ci
@pytest.mark.parametrize("settings", OTHER_RULES.values(), ids=OTHER_RULES)
@pytest.mark.parametrize("missing", ["zero_input", "zero_feature"])
def test_every_optimizer_comes_to_what_it_would_alone(missing, settings):
    """Also where a client lacks what others of its stack have: its tensors decay all the same, in every engine."""

    def tasks(backbone):
        return [task(backbone, None, 2) for _ in CLIENTS]

    singly, stacked = both(tasks, missing=missing, **settings)
    agree(singly, stacked)
    oracle = Scenario("naive", missing, torch.float64, **settings)
    with precision(torch.float64):
        plain = [oracle.trainer.train_run(r) for r in runs_of(oracle, tasks(oracle.backbone))]
    assert max(distance(b, a) for a, b in zip(plain, singly, strict=True)) < 1e-9


def test_clients_that_train_different_groups_share_their_steps():
    def tasks(backbone):
        return [task(backbone, groups, 2) for groups in list(ASSIGNMENTS.values())[:5]]

    singly, stacked = both(tasks)
    agree(singly, stacked)
    for update, groups in zip(stacked, list(ASSIGNMENTS.values())[:5], strict=True):
        assert groups is None or set(update.delta) == set(groups)


def test_float32_agrees_to_rounding():
    def tasks(backbone):
        return [task(backbone, None, 1) for _ in CLIENTS]

    singly, stacked = both(tasks, dtype=torch.float32)
    assert max(distance(b, a) for a, b in zip(singly, stacked, strict=True)) < 1e-5


def near(step):
    """Pulled back to where it began, by its own ``mu``."""
    drift = sum(((theta - step.start[j]) ** 2).sum() for j, theta in step.params.items())
    return nn.functional.cross_entropy(step.logits, step.labels) + step.args["mu"] * drift


PROGRAMS = {
    "observed": (ClientProgram(observe=seen), ()),
    "proximal": (ClientProgram(objective=near, observe=seen), ()),
    "contrast": (ClientProgram(objective=contrast, observe=seen), ("encoder.acc.2", "encoder.hr.2")),
}


@pytest.mark.parametrize(("program", "taps"), PROGRAMS.values(), ids=PROGRAMS)
def test_what_a_client_s_program_reads_is_its_own(program, taps):
    def tasks(backbone):
        given = {"taps": frozenset(taps)}
        return [task(backbone, None, 2, args={"mu": 0.1 * i}, **given) for i in range(len(CLIENTS))]

    agree(*both(tasks, program=program))


def test_rates_tensors_and_personal_groups_are_each_client_s_own():
    kinds = Part(kinds=frozenset({"weight"}))

    def tasks(backbone):
        layout = backbone.layout
        kept, rest = layout.select(["head.1"]), layout.select(layout.ids[:-1])
        assigned = [task(backbone, None, 2, lr_scale={"fusion.B": 0.5 * i, "head.1": 3.0}) for i in range(3)]
        assigned.append(
            task(backbone, None, 2, train={**layout.select(), "fusion.A.acc": kinds, "encoder.hr.2": kinds})
        )
        return [*assigned, task(backbone, None, 2, keep=kept, up=rest)]

    head = Scenario().start["head.1"]
    singly, stacked = both(tasks, states={4: {"head.1": torch.full_like(head, 0.2, dtype=torch.float64)}})
    agree(singly, stacked)
    assert set(stacked[4].state) == {"head.1"}


@pytest.fixture
def own_weights():
    """Backbones of a process share what is frozen; in float64 it is this test's alone."""
    load_frozen.cache_clear()
    yield
    load_frozen.cache_clear()


@pytest.mark.ci
@pytest.mark.usefixtures("own_weights")
@pytest.mark.parametrize("missing", ["zero_input", "zero_feature"])
def test_a_backbone_of_transformers(missing):
    """Its gradients reach zero where features are alike, and Adam makes steps out of their rounding: 1e-8 was seen."""
    updates = []
    for is_together in (False, True):
        scenario = transformers(missing)
        rounds = runs_of(scenario, [task(scenario.backbone, None, 1) for _ in CLIENTS])
        with precision(torch.float64):
            train = (
                StackedTrainer(scenario.trainer, 8).train if is_together else partial(map, scenario.trainer.train_run)
            )
            updates.append(list(train(rounds)))
    agree(*updates, tolerance=1e-6)


def transformers(missing):
    scenario = Scenario("reuse", missing, torch.float64)
    backbone = moment.tiny()
    for stage in backbone.stages:
        stage.module.double()
    moment.stirred(backbone)
    with precision(torch.float64):
        scenario.backbone, scenario.trainer = backbone, Trainer(backbone, scenario.trainer.config)
    scenario.start, raw = backbone.params(), {m: x.double() for m, x in moment.windows(61).items()}
    scenario.inputs = lambda present, num: ClientInputs(
        inputs={m: raw[m][:num] for m in present}, labels=torch.arange(num) % 4
    )
    return scenario


# Who shares steps with whom ---------------------------------------------------------------------------------------


@pytest.fixture
def alone(monkeypatch):
    """The clients that were trained alone."""
    trained, usual = [], Trainer.train_run
    monkeypatch.setattr(
        Trainer, "train_run", lambda self, given: (trained.append(given.task.client), usual(self, given))[1]
    )
    return trained


def stacked(tasks, most=8, scenario=None):
    scenario = scenario or Scenario("gemm")
    return StackedTrainer(scenario.trainer, most).train(runs_of(scenario, tasks(scenario.backbone)))


def test_all_clients_that_can_share_steps_do(alone):
    stacked(lambda backbone: [task(backbone) for _ in CLIENTS])
    assert alone == []


def test_a_client_that_is_left_over_is_alone(alone):
    updates = stacked(lambda backbone: [task(backbone) for _ in CLIENTS], most=2)
    assert alone == [4] and [u.receipt.assignment.client for u in updates] == [0, 1, 2, 3, 4]


def test_other_lengths_outputs_and_parts_are_alone(alone):
    def tasks(backbone):
        rows = {"fusion.A.acc": Part(rows=0.5)}
        return [task(backbone, None, 1), task(backbone, None, 2), task(backbone), task(backbone, train=rows, up=rows)]

    updates = stacked(tasks)
    assert alone == [1, 3] and [u.receipt.work.epochs for u in updates] == [1, 2, 1, 1]


def test_batches_that_go_in_parts_are_alone(alone):
    scenario = Scenario("gemm")
    scenario.trainer.config = replace(scenario.trainer.config, micro_batch=4)
    stacked(lambda backbone: [task(backbone) for _ in CLIENTS], scenario=scenario)
    assert alone == [0, 1, 2, 3, 4]


def test_so_many_share_as_a_step_may_keep(alone):
    scenario = Scenario("gemm")
    stages = scenario.backbone.stages
    # Two clients' batches of 16 are the most.
    scenario.backbone.stages = (replace(stages[0], step_bytes=MAX_STEP_BYTES // 32), *stages[1:])
    stacked(lambda backbone: [task(backbone) for _ in CLIENTS], scenario=scenario)
    assert alone == [4]


def test_a_stack_is_used_again_and_forgets():
    """The second round on the same memory, with fewer clients in another order, as on fresh memory."""

    def tasks(backbone, number):
        return [task(backbone, None, 2) for _ in range(number)]

    used, fresh = Scenario("gemm"), Scenario("gemm")
    trainer = StackedTrainer(used.trainer, 8)
    trainer.train(runs_of(used, tasks(used.backbone, 5)))
    again = trainer.train(runs_of(used, tasks(used.backbone, 3)))
    first = StackedTrainer(fresh.trainer, 8).train(runs_of(fresh, tasks(fresh.backbone, 3)))
    for one, other in zip(again, first, strict=True):
        assert all(torch.equal(d, other.delta[j]) for j, d in one.delta.items())


def test_nothing_of_a_round_outlives_it(monkeypatch):
    """Windows, sessions and recordings are let go at once, not when Python looks for circles."""
    made, usual = [], StackedStep.__init__

    def noted(self, *given):
        usual(self, *given)
        made.append((weakref.ref(self), weakref.ref(given[0].sources["labels"])))

    monkeypatch.setattr(StackedStep, "__init__", noted)
    gc.disable()
    try:
        updates = stacked(lambda backbone: [task(backbone) for _ in CLIENTS])
        assert len(updates) == 5 and len(made) == 5, "one for each kind of step"
        assert not any(ref() for pair in made for ref in pair)
    finally:
        gc.enable()


class Refusing(TorchDispatchMode):
    """Refuses operations that wait for a value of the device or move one there: no recorded step may do that."""

    WAITS = ("_local_scalar_dense", "bincount", "nonzero", "unique", "masked_select", "is_nonzero", "item")

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._overloadpacket.__name__
        assert name not in self.WAITS, f"{name} waits for the device"
        return func(*args, **(kwargs or {}))


@pytest.fixture
def recorded(monkeypatch):
    """How many steps were taken as if they were recorded."""
    taken = []

    def call(self, step):
        taken.append(step)
        with Refusing():
            step()

    monkeypatch.setattr(CudaGraphStep, "__call__", call)
    return taken


def waiting(step):
    return task_loss(step) * float(step.logits.sum() > -1e9)


def test_a_step_could_be_recorded(recorded):
    stacked(lambda backbone: [task(backbone, groups, 2) for groups in list(ASSIGNMENTS.values())[:5]])
    assert len(recorded) == 2 * len(epoch_steps([61, 45, 45, 32, 9], 16))
    with pytest.raises(AssertionError, match="waits for the device"):
        scenario = Scenario("gemm")
        rounds = runs_of(scenario, [task(scenario.backbone) for _ in CLIENTS], ClientProgram(objective=waiting))
        StackedTrainer(scenario.trainer, 8).train(rounds)


# Steps ------------------------------------------------------------------------------------------------------------


def bounds(part):
    return part.start, part.stop


def test_an_epoch_by_hand():
    """Batches of 10: 25 and 25 windows, 20, 7. Two full steps of the first three, then 5, 5 and 7 windows."""
    steps = [(*bounds(s.clients), *bounds(s.windows)) for s in epoch_steps([25, 25, 20, 7], 10)]
    assert steps == [(0, 3, 0, 10), (0, 3, 10, 20), (0, 2, 20, 25), (3, 4, 0, 7)]


@given(st.lists(st.integers(1, 70), min_size=1, max_size=6), st.integers(1, 32))
def test_every_client_takes_its_own_batches_in_order(num_windows, size):
    num_windows = sorted(num_windows, reverse=True)
    for i, number in enumerate(num_windows):
        own = [bounds(s.windows) for s in epoch_steps(num_windows, size) if i in range(*bounds(s.clients))]
        assert own == [(k, min(k + size, number)) for k in range(0, number, size)]
