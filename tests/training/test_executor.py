"""Workers: the same bits whatever is cached, and shares of an evaluation that add up."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from relief_ray.core.client import ClientProgram
from relief_ray.core.groups import WHOLE
from relief_ray.core.messages import Assignment, ClientInfo, Collect, EvalTarget, Fleet, WeightedSum
from relief_ray.core.streams import Streams
from relief_ray.data.dataset import DataReference
from relief_ray.data.window_set import WindowSet
from relief_ray.server.aggregation import by_samples, one_bucket, uniform
from relief_ray.server.reduction import blocks
from relief_ray.training import executor as worker_module
from relief_ray.training.config import TrainerConfig
from relief_ray.training.executor import SerialExecutor, Worker, subject_index, target_masks
from relief_ray.training.inputs import ClientInputs, InputCache, LazyRows, prepare, prepared_bytes
from relief_ray.training.job import Job, combine
from tests.training.scenario import ABSENT, SHAPE, build, drawn_windows

OWNED = (("acc", "gyro", "hr"), ("acc", "gyro"), ("acc",))


@pytest.fixture
def job(tmp_path):
    some = drawn_windows(tmp_path)
    sizes = (20, 9, 5)
    clients = tuple(
        ClientInfo(id=n, name=str(n), device="ABC"[n], modalities=m, num_windows=sizes[n]) for n, m in enumerate(OWNED)
    )
    return Job(
        build=build,
        layout=build().layout,
        trainer=TrainerConfig(lr=1e-2, batch_size=8, missing="zero_input", engine="naive"),
        fleet=Fleet(clients=clients, modalities=SHAPE.modalities),
        clients=tuple(some(n) for n in sizes),
        parts={"test": some(31)},
        program=ClientProgram(),
        reduction=WeightedSum(weight=uniform, bucket=one_bucket),
        streams=Streams(seed=4),
    )


def tasks_of(job, **changes):
    everything = build().layout.select()
    task = Assignment(client=0, down=everything, train=everything, up=everything, epochs=1)
    return [replace(task, client=c.id, **changes) for c in job.fleet.clients]


def models():
    return {"global": build().params()}


TARGETS = (EvalTarget(label="global"), EvalTarget(label="client.2", client=2, modalities=("acc",)))


@pytest.mark.parametrize("shares", [1, 2, 3, 40])
def test_shares_of_an_evaluation_add_up(job, shares):
    whole = Worker(job).evaluate(models(), TARGETS, {}, "test")
    parts = [Worker(job).evaluate(models(), TARGETS, {}, "test", (i, shares)) for i in range(shares)]
    assert whole.keys() == {"global", "global|acc", "global|gyro", "global|hr", "global|acc+gyro", "client.2"}
    for label, counts in whole.items():
        assert counts.shape == (3, SHAPE.num_classes, SHAPE.num_classes) and int(counts.sum()) == 31
        assert torch.equal(sum(p[label] for p in parts), counts)


def test_confusions_hold_each_subjects_true_labels(job):
    counts = Worker(job).evaluate(models(), TARGETS[:1], {}, "test")["global"]
    test = job.parts["test"]
    for row, subject in enumerate((5, 6, 7)):
        labels = torch.from_numpy(test.labels[test.subjects == subject])
        assert counts[row].sum(1).tolist() == torch.bincount(labels, minlength=SHAPE.num_classes).tolist()


def test_evaluation_of_a_client_uses_its_personal_part(job):
    own = {2: {"head.1": torch.zeros(build().layout["head.1"].numel)}}
    target = EvalTarget(label="mine", client=2, keep={"head.1": WHOLE}, modalities=("acc",))
    counts = Worker(job).evaluate(models(), [target], own, "test")["mine"]
    assert int(counts[:, :, 0].sum()) == 31, "a head of zeros always says class 0"


def test_clients_that_run_the_same_model_with_the_same_sensors_are_predicted_once(job, monkeypatch):
    """Each gets counts of its own; another view, output, missing rule, sensor or a personal part is another model."""
    calls, plain = [], worker_module.predict
    monkeypatch.setattr(worker_module, "predict", lambda *given: (calls.append(1), plain(*given))[1])
    head, acc = {"head.1": WHOLE}, ("acc",)
    kinds = [
        {"modalities": acc},
        {"modalities": acc, "keep": head},
        {"modalities": ("acc", "gyro")},
        {"modalities": acc, "omit_absent": True},
        {"modalities": acc, "view": "other"},
        {"modalities": acc, "output": build().output},
    ]
    targets = [EvalTarget(label=f"{i}.{n}", client=n, **kind) for i, kind in enumerate(kinds) for n in (0, 1, 2)]
    theta = {**models(), "other": strange()["global"]}
    own = {n: {"head.1": torch.full((build().layout["head.1"].numel,), float(n))} for n in (1, 2)}
    together = Worker(job).evaluate(theta, targets, own, "test")
    assert len(calls) == len(kinds) + 2, "the three personal models are three"
    alone = {t.label: Worker(job).evaluate(theta, [t], own, "test")[t.label] for t in targets}
    assert all(torch.equal(together[label], counts) for label, counts in alone.items())
    assert len({counts.data_ptr() for counts in together.values()}) == len(targets)


def strange():
    """The model with other values of all that heart rate feeds."""
    return {"global": {j: x * 50 + 5 if j in ABSENT else x for j, x in models()["global"].items()}}


def test_a_target_that_omits_absent_sensors_is_blind_to_their_networks(job):
    target = EvalTarget(label="mine", modalities=("acc", "gyro"), omit_absent=True)
    for omits in (True, False):
        variant = replace(target, omit_absent=omits)
        counts, other = (Worker(job).evaluate(theta, [variant], {}, "test")["mine"] for theta in (models(), strange()))
        assert torch.equal(counts, other) == omits


def test_a_task_that_omits_absent_sensors_is_blind_to_their_networks(job):
    """Client 1 has no heart rate: its update is the same bits whatever the server's networks for that are."""
    assert job.trainer.missing == "zero_input"
    task = tasks_of(job)[1]
    mine = {j: part for j, part in task.train.items() if j not in ABSENT}
    for omits in (True, False):
        variant = replace(task, train=mine, up=mine, omit_absent=omits)
        sums, other = (
            next(Worker(job).train_blocks(1, theta, [[variant]], {})).sums["global"] for theta in (models(), strange())
        )
        assert all(torch.equal(sums[j].plain, other[j].plain) for j in mine) == omits


def test_training_after_an_evaluation_is_unharmed(job):
    fresh, used = Worker(job), Worker(job)
    used.evaluate(models(), TARGETS, {}, "test")
    next(used.train_blocks(3, models(), [tasks_of(job)], {}))
    first, second = (next(w.train_blocks(4, models(), [tasks_of(job)], {})) for w in (fresh, used))
    for j, part in first.sums["global"].items():
        assert torch.equal(part.plain, second.sums["global"][j].plain)


@pytest.mark.ci
@pytest.mark.parametrize("missing", ["zero_input", "zero_feature"])
@pytest.mark.parametrize("engine", ["naive", "reuse", "gemm", "fused"])
@pytest.mark.parametrize("groups", [None, ("head.1",), ("fusion.A.acc", "encoder.acc.2")], ids=str)
def test_windows_read_batch_by_batch_give_the_same_bits(job, engine, missing, groups):
    trainer = TrainerConfig(lr=1e-2, batch_size=8, missing=missing, engine=engine)
    held = replace(job, trainer=trainer, build=partial(build, engine))
    train = build().layout.select(groups) if groups else build().layout.select()
    tasks, outcomes = tasks_of(job, train=train, up=train, epochs=2), []
    for each in (held, replace(held, cache_mib=0)):
        worker = Worker(each)
        sums = next(worker.train_blocks(1, models(), [tasks], {})).sums["global"]
        outcomes.append((sums, worker.evaluate(models(), TARGETS, {}, "test"), worker._cache._used))
    (first, tested, used), (second, tested_again, used_again) = outcomes
    assert used > 0 == used_again, "nothing is held"
    assert all(torch.equal(part.plain, second[j].plain) for j, part in first.items())
    assert all(torch.equal(counts, tested_again[label]) for label, counts in tested.items())


def test_only_a_client_above_the_limit_is_read_batch_by_batch(job):
    backbone, windows = build("gemm"), job.clients[0]
    whole = prepare(windows, ("acc", "hr"), backbone)
    size = sum(x.numel() * 4 for x in whole.inputs.values())
    at_limit, above = (prepare(windows, ("acc", "hr"), backbone, limit) for limit in (size, size - 1))
    assert all(isinstance(x, torch.Tensor) for x in at_limit.inputs.values())
    rows = torch.tensor([7, 0, 19, 7])
    for m, lazy in above.inputs.items():
        assert isinstance(lazy, LazyRows) and len(lazy) == len(windows)
        assert torch.equal(lazy[rows], whole.inputs[m][rows]) and torch.equal(lazy[3:9], whole.inputs[m][3:9])
    assert torch.equal(above.labels, whole.labels)


def test_what_was_used_last_makes_room_since_it_is_needed_last():
    loads = []

    def item(name):
        loads.append(name)
        return ClientInputs(inputs={"acc": torch.zeros(2**17)}, labels=torch.zeros(1, dtype=torch.int64))

    cache = InputCache().begin(1, None)  # two items of half a MiB
    for name in ("a", "b", "c", "a", "b", "c", "a"):
        cache.get(name, lambda: 2**19, lambda name=name: item(name))
    assert loads == ["a", "b", "c", "b", "a"], "every second is found; the oldest out first would find none"
    big = ClientInputs(inputs={"acc": torch.zeros(2**19)}, labels=torch.zeros(1, dtype=torch.int64))
    values = [cache.get("big", lambda: 2**21, load) for load in (lambda: big, lambda: None)]
    assert values == [big, big], "one that is too large is kept alone"


def test_a_cache_keeps_for_the_next_job_what_comes_from_the_same_source():
    loads = []

    def get(name):
        item = ClientInputs(inputs={"acc": torch.zeros(2**17)}, labels=torch.zeros(1, dtype=torch.int64))
        cache.get(name, lambda: 2**19, lambda: loads.append(name) or item)

    cache = InputCache().begin(1, "a signal")  # two items of half a MiB
    get("a"), get("b")
    cache.begin(1, "a signal")
    get("b"), get("a")
    assert loads == ["a", "b"]
    cache.begin(1, "another signal")
    assert cache._used == 0
    get("b")
    assert loads == ["a", "b", "b"] and cache._used == 2**19


@pytest.mark.parametrize("engine", ["naive", "gemm", "fused"])
def test_a_job_takes_over_prepared_windows_of_equal_content_alone(job, engine, monkeypatch):
    """Here all but those of client 1, who has others; own code, or another way to prepare them, takes none."""
    loaded, load = [], WindowSet.load
    monkeypatch.setattr(
        WindowSet, "load", lambda windows, sensors: loaded.append(len(windows)) or load(windows, sensors)
    )
    known = DataReference(name="x", key="x", signal_sha256="x")
    first = replace(job, data=known, trainer=replace(job.trainer, engine=engine), build=partial(build, engine))
    clients = (first.clients[0], replace(first.clients[1], labels=first.clients[1].labels[::-1]), first.clients[2])
    tasks, inputs = tasks_of(job), InputCache()

    def round_of(each, inputs=None):
        loaded.clear()
        worker = Worker(each, inputs=inputs)
        result = next(worker.train_blocks(1, models(), [tasks], {}))
        return result.sums["global"], worker.evaluate(models(), TARGETS, {}, "test")

    round_of(first, inputs)
    assert loaded == [20, 9, 5, 31]
    second = replace(first, clients=clients, streams=Streams(seed=5))
    (sums, counts), again = round_of(second, inputs), loaded.copy()
    (alone, counts_alone), whole = round_of(second), loaded.copy()
    assert (again, whole) == ([9], [20, 9, 5, 31])
    assert all(torch.equal(part.plain, alone[j].plain) for j, part in sums.items())
    assert all(torch.equal(counts[label], value) for label, value in counts_alone.items())
    round_of(replace(second, modules=("own",)), inputs)
    assert len(loaded) == 4
    round_of(replace(second, build=partial(build, "gemm" if engine == "naive" else "naive")), inputs)
    assert len(loaded) == 4


def test_room_is_made_before_windows_are_loaded(job):
    """So that a host never holds more than its limit: here one client's windows, and two clients."""
    windows, backbone = job.clients[0], build("gemm")
    size = prepared_bytes(windows, ("acc", "hr"), backbone)
    whole = prepare(windows, ("acc", "hr"), backbone)
    assert (
        size == sum(x.numel() * 4 for x in whole.inputs.values()) > 0 == prepared_bytes(windows, ("acc",), backbone, 0)
    )
    cache, used = InputCache(), []
    cache.limit_bytes = size

    def load():
        used.append(cache._used)
        return prepare(windows, ("acc", "hr"), backbone)

    for name in ("first", "second"):
        cache.get(name, partial(prepared_bytes, windows, ("acc", "hr"), backbone), load)
    assert used == [0, 0] and cache._used == size


def spoil(context, update):
    """Client 1 diverged."""
    if context.info.id != 1:
        return update
    return replace(update, delta={j: d * float("nan") for j, d in update.delta.items()})


def test_an_update_that_is_not_finite_is_rejected_not_summed(job):
    result = next(
        Worker(replace(job, program=ClientProgram(after=spoil))).train_blocks(1, models(), [tasks_of(job)], {})
    )
    assert set(result.rejected) == {1} and "not finite" in result.rejected[1].why
    assert [r.assignment.client for r in result.receipts] == [0, 2]
    assert {part.members for part in result.sums["global"].values()} == {(0, 2)}


def as_it_is(context, update):
    """Returns the update as a program's own function: it could keep it, so that its memory is not used again."""
    return update


@pytest.mark.parametrize("weight", [uniform, by_samples])
@pytest.mark.parametrize("keep", [{}, {"head.1": WHOLE}], ids=["nothing", "head"])
def test_a_delta_in_the_models_own_memory_gives_the_same_bits(job, keep, weight):
    """With a diverged client in the middle and one that uploads less."""
    blank = replace(job.clients[1], mean=np.full(6, np.nan, np.float32))
    clients, fleet = (job.clients[0], blank, *job.clients[1:]), job.fleet.clients
    fleet = tuple(replace(c, id=n) for n, c in enumerate((fleet[0], fleet[1], *fleet[1:])))
    job = replace(
        job,
        clients=clients,
        fleet=replace(job.fleet, clients=fleet),
        reduction=WeightedSum(weight=weight, bucket=one_bucket),
    )
    tasks = tasks_of(job, keep=keep)
    tasks[0] = replace(tasks[0], up={j: part for j, part in tasks[0].up.items() if j != "fusion.B"})
    result, expected = (
        next(Worker(replace(job, program=program)).train_blocks(1, models(), [tasks], {}))
        for program in (ClientProgram(), ClientProgram(after=as_it_is))
    )
    assert set(result.rejected) == set(expected.rejected) == {1}
    assert [r.sq_norm for r in result.receipts] == [r.sq_norm for r in expected.receipts]
    for j, part in expected.sums["global"].items():
        mine = result.sums["global"][j]
        assert torch.equal(mine.plain, part.plain) and torch.equal(mine.weighted, part.weighted)
        assert mine.members == part.members == ((2, 3) if j == "fusion.B" else (0, 2, 3))
    for c, state in expected.states.items():
        assert all(torch.equal(result.states[c][j], value) for j, value in state.items())


def keeps_its_head(context, update):
    return replace(update, state={"last": update.delta["head.1"]})


def test_what_a_program_keeps_of_its_update_is_not_the_next_clients(job):
    job, tasks = replace(job, program=ClientProgram(after=keeps_its_head)), tasks_of(job)
    result = next(Worker(job).train_blocks(1, models(), [tasks], {}))
    for task in tasks:
        alone = next(Worker(job).train_blocks(1, models(), [[task]], {}))
        assert torch.equal(result.states[task.client]["last"], alone.states[task.client]["last"])


def test_receipts_carry_squared_norms(job):
    result = next(Worker(job).train_blocks(1, models(), [tasks_of(job)[:1]], {}))
    (receipt,) = result.receipts
    for j, part in result.sums["global"].items():
        assert receipt.sq_norm[j] == pytest.approx(part.sq_norm, rel=1e-4)


def test_collect_returns_every_update_and_sums_nothing(job):
    result = next(Worker(replace(job, reduction=Collect())).train_blocks(1, models(), [tasks_of(job)], {}))
    assert len(result.updates) == 3 and result.sums == {}
    summed = next(Worker(job).train_blocks(1, models(), [tasks_of(job)], {}))
    assert summed.updates == ()
    total = sum(u.delta["head.1"].double() for u in result.updates)
    assert torch.allclose(summed.sums["global"]["head.1"].plain, total, rtol=0, atol=1e-12)


def test_watched_rounds_return_fusion_blocks_alone(job):
    worker = Worker(replace(job, pairwise_every=2))
    assert next(worker.train_blocks(1, models(), [tasks_of(job)], {})).pairwise == ()
    watched = next(worker.train_blocks(2, models(), [tasks_of(job)], {})).pairwise
    assert [set(u.delta) for u in watched] == [{"fusion.A.acc", "fusion.A.gyro", "fusion.A.hr"}] * 3


def test_serial_executor_is_blocks_in_order(job):
    states = {1: {"head.1": torch.ones(build().layout["head.1"].numel)}}
    tasks = tasks_of(job, keep={"head.1": WHOLE})
    executor = SerialExecutor(job)
    trained = executor.train(1, models(), tasks[::-1], states)
    worker = Worker(job)
    expected = combine(
        (next(worker.train_blocks(1, models(), [block], states)) for block in blocks(tasks)), moved_bytes=7
    )
    assert [r.assignment.client for r in trained.reduced.receipts] == [0, 1, 2]
    for j, part in expected.reduced.sums["global"].items():
        assert torch.equal(trained.reduced.sums["global"][j].weighted, part.weighted)
    assert trained.states.keys() == expected.states.keys() == {0, 1, 2}
    assert expected.moved_bytes == 7 and trained.moved_bytes == 0
    counts = executor.evaluate(models(), TARGETS, {}, "test")
    assert int(counts["global"].sum()) == 31
    executor.close()


def test_thread_count_is_pinned(job):
    before = torch.get_num_threads()
    try:
        Worker(replace(job, num_threads=2))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_masks_of_a_target():
    every = frozenset(SHAPE.modalities)
    assert target_masks(TARGETS[0], SHAPE.modalities) == {"global": every} | {
        f"global|{m}": frozenset([m]) for m in SHAPE.modalities
    }
    assert target_masks(TARGETS[1], SHAPE.modalities) == {"client.2": frozenset(["acc"])}
    owned = [SHAPE.modalities, SHAPE.modalities[:2], SHAPE.modalities[:1], SHAPE.modalities[:2]]
    both = "+".join(SHAPE.modalities[:2])
    found = target_masks(TARGETS[0], SHAPE.modalities, owned)
    assert found.keys() - target_masks(TARGETS[0], SHAPE.modalities).keys() == {f"global|{both}"}
    assert found[f"global|{both}"] == frozenset(SHAPE.modalities[:2])


def test_subjects_are_numbered_from_zero(job):
    assert set(subject_index(job.parts["test"]).tolist()) == {0, 1, 2}


def test_a_program_that_returns_no_state_forgets_what_was_kept(job):
    """Also where nothing is kept in this round; who never had anything is not mentioned."""
    forgetful = replace(job, program=ClientProgram(after=lambda context, update: replace(update, state={})))
    states = {1: {"head.1": torch.ones(build().layout["head.1"].numel)}}
    for kept, expected in (({"head.1": WHOLE}, {0: {}, 1: {}, 2: {}}), ({}, {1: {}})):
        assert next(Worker(forgetful).train_blocks(1, models(), [tasks_of(job, keep=kept)], states)).states == expected
