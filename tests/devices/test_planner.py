import pickle
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relief_ray.core.codec import encoded_nbytes
from relief_ray.core.groups import Part
from relief_ray.core.messages import Assignment, Receipt, StageTimes, Work
from relief_ray.devices import accounting as planner_module
from relief_ray.devices.accounting import CostAccountant, CostPlanner, Counter
from relief_ray.devices.fleet import FleetConfig, build_fleet, with_windows
from relief_ray.devices.time import ClockContext, Profile, SplitClock, Throughput, build_clocks

MODALITIES = ("acc", "gyro", "hr")
ROW = Throughput(forward_flops_per_s=1e3, backward_flops_per_s=2e3, optimizer_flops_per_s=3e3)
PROFILE = Profile(origin="test bench", backbone="fork", devices=dict.fromkeys("ABC", ROW))


@pytest.fixture(scope="module")
def world(toy):
    costs = toy.fork()
    layout = toy.layout_of(costs)
    fleet, types = build_fleet(FleetConfig(), MODALITIES, range(8))
    fleet = with_windows(fleet, [40 + 7 * n for n in range(8)])
    utilisation = {"flop_proportional": 1e-12, "split": 1e-12}
    context = ClockContext(backbone="fork", utilisation=utilisation, types=types, profile=PROFILE)
    clocks = build_clocks(context, "split_naive")
    counter = Counter(costs, layout, "zero_input")
    return layout, fleet, types, CostAccountant(counter=counter, types=types, clocks=clocks)


def planner_of(world, model, engine="naive"):
    _, fleet, types, accountant = world
    return CostPlanner(counter=accountant.counter, fleet=fleet, types=types, model=model, engine=engine, batch_size=8)


def task_of(layout, client, groups, epochs=2, part=None):
    chosen = layout.select(groups, part or Part())
    return Assignment(client=client, down=layout.select(), train=chosen, up=chosen, epochs=epochs)


def receipt_of(layout, task, num_windows, engine="reuse", batch=8):
    work = Work(
        num_windows=num_windows,
        epochs=task.epochs,
        num_steps=task.epochs * -(-num_windows // batch),
        engine=engine,
        loss=0.5,
        measured=StageTimes(),
    )
    return Receipt(
        assignment=task,
        work=work,
        bytes_down=encoded_nbytes(layout, task.down),
        bytes_up=encoded_nbytes(layout, task.up) if task.up else 0,
    )


def test_every_clock_stands_in_every_record(world):
    layout, fleet, _, accountant = world
    tasks = [task_of(layout, n, ["A.acc", "head"]) for n in range(8)]
    costs = accountant.cost([receipt_of(layout, t, fleet[t.client].num_windows) for t in tasks], fleet)
    assert list(costs) == ["flop_proportional", "split_naive", "split_reuse", "measured"]
    assert costs["split_reuse"].round_s < costs["split_naive"].round_s


@given(
    groups=st.lists(st.sampled_from(["e1.acc", "e2.acc", "A.acc", "A.gyro", "B", "head"]), unique=True),
    client=st.integers(0, 7),
    epochs=st.integers(1, 4),
)
def test_prediction_and_bill_agree_to_the_bit(world, groups, client, epochs):
    layout, fleet, _, accountant = world
    task = task_of(layout, client, groups, epochs)
    billed = accountant.cost([receipt_of(layout, task, fleet[client].num_windows)], fleet)
    for name, clock in accountant.clocks.items():
        predicted = planner_of(world, clock, clock.engine or "reuse").times(client, task)
        assert billed[name].clients[client].times == predicted
        assert billed[name].round_s == predicted.busy_s


def test_a_probe_is_charged_as_two_passes_and_a_step(world):
    """On top of the round's work, under every clock; nothing more is sent."""
    layout, fleet, _, accountant = world
    task, trial = task_of(layout, 0, ["head"]), task_of(layout, 0, ["e1.acc", "head"], epochs=7)
    plain = receipt_of(layout, task, 40, engine="naive")
    billed = accountant.cost([replace(plain, probes=((trial, 8),))], fleet)
    alone = replace(receipt_of(layout, replace(trial, epochs=2), 8, engine="naive"), bytes_up=0, bytes_down=0)
    alone = replace(alone, work=replace(alone.work, num_steps=1))
    parts = [accountant.cost([r], fleet) for r in (plain, alone)]
    for name, cost in billed.items():
        times, (work, probe) = cost.clients[0].times, [p[name].clients[0].times for p in parts]
        assert times.compute_s == pytest.approx(work.compute_s + probe.compute_s)
        assert probe.compute_s > 0 and times.link_s == work.link_s


def test_a_steps_own_flops_are_charged_by_every_clock_as_predicted(world):
    """Client 0: 40 windows, 2 epochs, batches of 8: 10 steps of 1000 FLOPs over each clock's speed."""
    layout, fleet, types, accountant = world
    task = replace(task_of(layout, 0, ["head"]), step_flops=1000.0)
    plain = receipt_of(layout, task, 40)
    more = replace(plain, work=replace(plain.work, extra_flops=10 * 1000.0))
    rate = types["A"].flops_per_s * 1e-12
    expected = dict.fromkeys(("flop_proportional", "split_naive", "split_reuse"), 1e4 / rate)
    expected["measured"] = 1e4 / 3e3
    before, after = (accountant.cost([r], fleet) for r in (plain, more))
    for name, clock in accountant.clocks.items():
        own, bare = after[name].clients[0], before[name].clients[0]
        assert own.times.compute_s - bare.times.compute_s == pytest.approx(expected[name]), name
        assert own.times.link_s == bare.times.link_s
        spent_j = types["A"].active_power_w * expected[name]
        assert own.energy_j - bare.energy_j == pytest.approx(spent_j), "the only one at work never waits"
        assert planner_of(world, clock, clock.engine or "reuse").times(0, task) == own.times


def test_the_same_work_takes_longer_on_a_slower_device(world):
    layout, fleet, types, _ = world
    extra_s = []
    for n in (0, 7):
        task = task_of(layout, n, ["head"])
        planner = planner_of(world, SplitClock(utilisation=1e-12))
        gap = planner.times(n, replace(task, step_flops=50.0)).compute_s - planner.times(n, task).compute_s
        extra_s.append(gap / (2 * -(-fleet[n].num_windows // 8)))
    assert extra_s[1] / extra_s[0] == pytest.approx(types["A"].flops_per_s / types["C"].flops_per_s)


def test_a_probes_own_flops_are_those_of_its_two_passes(world):
    layout, fleet, types, accountant = world
    trial = task_of(layout, 0, ["head"])
    receipt = receipt_of(layout, task_of(layout, 0, ["head"]), 40)
    bare, more = (
        accountant.cost([replace(receipt, probes=((replace(trial, step_flops=f), 8),))], fleet)["split_naive"]
        for f in (0.0, 600.0)
    )
    gap = more.clients[0].times.compute_s - bare.clients[0].times.compute_s
    assert gap == pytest.approx(2 * 600.0 / (types["A"].flops_per_s * 1e-12))


def test_measured_clock_uses_the_engine_that_ran(world):
    layout, fleet, _, accountant = world
    task = task_of(layout, 0, ["head"])
    naive, gemm = (
        accountant.cost([receipt_of(layout, task, 40, engine=e)], fleet)["measured"] for e in ("naive", "gemm")
    )
    assert gemm.round_s < naive.round_s


def test_payload_bytes_are_the_codecs(world):
    layout, _fleet, types, _ = world
    task = task_of(layout, 3, ["A.acc", "A.gyro"])
    planner = planner_of(world, SplitClock())
    load = planner.load(3, task)
    assert (load.bytes_up, load.bytes_down) == (
        encoded_nbytes(layout, task.up),
        encoded_nbytes(layout, layout.select()),
    )
    assert planner.times(3, task).up_s == pytest.approx(0.01 + load.bytes_up / types["B"].uplink_bytes_per_s)
    silent = Assignment(client=3, down={}, train={}, up={}, epochs=1)
    assert planner.load(3, silent).bytes_up == 0


def test_answers_do_not_depend_on_what_was_asked_before(world, toy, monkeypatch):
    layout, fleet, types, _ = world
    monkeypatch.setattr(planner_module, "CACHE_LIMIT", 2)
    tasks = [task_of(layout, n % 8, g) for n, g in enumerate([["head"], ["B"], ["A.acc"], ["e1.acc"], ["head"]])]
    parted = [task_of(layout, 0, ["head"], part=Part(rank=r)) for r in (1, 2)]

    def fresh():
        counter = Counter(toy.fork(), layout, "zero_input")
        return CostPlanner(counter=counter, fleet=fleet, types=types, model=SplitClock(), engine="reuse", batch_size=8)

    warm = fresh()
    queries = [*tasks, *parted, *tasks]
    assert [warm.times(t.client, t) for t in queries] == [fresh().times(t.client, t) for t in queries]
    assert warm.times(0, parted[0]).backward_s < warm.times(0, parted[1]).backward_s


def test_planner_travels(world):
    layout = world[0]
    planner, task = planner_of(world, SplitClock()), task_of(world[0], 1, ["B"])
    before = planner.times(1, task)
    assert pickle.loads(pickle.dumps(planner)).times(1, task) == before
    assert len(layout) == 11


def test_fedavg_reference_is_a_round_of_full_assignments(world):
    layout, fleet, _, accountant = world
    reference = accountant.fedavg_reference(fleet, epochs=2, batch_size=8, engine="reuse")
    tasks = [task_of(layout, n, layout.ids) for n in range(8)]
    assert reference == accountant.cost([receipt_of(layout, t, fleet[t.client].num_windows) for t in tasks], fleet)


def test_fedavg_reference_of_some_participants(world):
    _, fleet, types, accountant = world
    some = accountant.fedavg_reference(fleet, epochs=2, participants=[0, 7], engine="naive")["split_naive"]
    waiting = some.clients[3]
    assert waiting.times == StageTimes()
    assert waiting.energy_j == pytest.approx(types["B"].power.idle_w * some.round_s)


def test_full_clients_gain_nothing_and_others_never_lose(world):
    layout, fleet, _, accountant = world
    everything = accountant.fedavg_reference(fleet, epochs=2, batch_size=8, engine="naive")
    for n in range(8):
        own = [g.id for g in layout.accessible(fleet[n].modalities)]
        task = task_of(layout, n, own)
        cost = accountant.cost([receipt_of(layout, task, fleet[n].num_windows)], fleet)
        for name in ("flop_proportional", "split_naive", "split_reuse"):
            mine, full = cost[name].clients[n].times, everything[name].clients[n].times
            assert mine.busy_s == full.busy_s if n < 3 else mine.busy_s < full.busy_s
