"""DarkDistill: depth classes, exits, what clients report, class means, distillation and blockwise means."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from pydantic import ValidationError
from torch.nn import functional

from relief_ray.core.client import LocalStep
from relief_ray.core.codec import encoded_nbytes
from relief_ray.core.groups import WHOLE
from relief_ray.core.messages import EvalTarget, StageTimes, WeightedSum
from relief_ray.models.backbone import BackboneNetwork
from relief_ray.server.aggregation import apply_step, mean_step, one_bucket, over_members
from relief_ray.strategies.common import average
from relief_ray.strategies.darkdistill import DarkDistill, distillation
from relief_ray.strategies.darkdistill import strategy as darkdistill
from relief_ray.strategies.darkdistill.strategy import JUDGE, early_exits
from relief_ray.strategies.early_exits import depths_by_speed, last_layers, level
from relief_ray.strategies.fedavg import FedAvg
from relief_ray.support.errors import UserError
from relief_ray.training.forward_plan import plan_forward
from tests.toy import FOUR, bench, build, context_of

TWO_LAYERS = {"layers": 2, "b_zero": False}
ADAPT = partial(early_exits, DarkDistill())
LAYOUT = build(ADAPT, layers=2).layout
LASTS = last_layers(LAYOUT, 4)
FIRST_BLOCK = {"encoder.acc.1", "encoder.hr.1", "exit.1"}


def fleet(*types):
    """The toy's fleet on devices of these types."""
    clients = tuple(replace(c, device=t) for c, t in zip(FOUR.clients, types, strict=True))
    return replace(FOUR, clients=clients)


MIXED, DEEP, SHALLOW = {"A": 2, "C": 1}, {"A": 2, "C": 2}, {"A": 1, "C": 1}


def run_of(folder, depths=MIXED, config=None, strategy=None, **options):
    """Clients 0 and 1 are of type A, 2 and 3 of type C."""
    chosen = (config or DarkDistill(distil=False)).model_copy(update={"depth_by_type": depths})
    given = {"fleet": fleet("A", "A", "C", "C"), "build_args": TWO_LAYERS, "epochs": 2, **options}
    return bench((strategy or (lambda s: s))(chosen.build()), folder, **given)


def with_network(run):
    """The bench's rounds with a backbone on the server."""
    make = lambda: BackboneNetwork(build(run.strategy.adapt, **TWO_LAYERS), "zero_input")  # noqa: E731
    plain = run.strategy.aggregate
    run.strategy = replace(run.strategy, aggregate=lambda s, r, tools: plain(s, r, replace(tools, build=make)))
    return run


def models_after(run, rounds=2):
    for round_ in range(1, rounds + 1):
        run.round(round_)
    return run.state.models["global"]


def direct(strategy):
    """All clients in one bucket: the mean over all that hold a block."""
    mean = lambda state, reduced, tools: replace(  # noqa: E731
        state,
        models={
            "global": apply_step(state.models["global"], mean_step(reduced.sums["global"], over_members, tools.layout))
        },
    )
    return replace(strategy, reduction=WeightedSum(weight=strategy.reduction.weight, bucket=one_bucket), aggregate=mean)


# Depth classes ---------------------------------------------------------------------------------------------------


def test_blocks_by_depth():
    assert {g.id for g in LAYOUT if level(g, LASTS) == 1} == FIRST_BLOCK
    assert {g.id for g in LAYOUT if level(g, LASTS) == 2} == set(LAYOUT.ids) - FIRST_BLOCK


@pytest.mark.parametrize(
    ("layers", "num_depths", "expected"),
    [(1, 4, (1,)), (2, 4, (1, 2)), (3, 4, (1, 2, 3)), (8, 4, (2, 4, 6, 8)), (6, 4, (2, 3, 5, 6)), (4, 2, (2, 4))],
)
def test_depth_classes_are_evenly_apart(layers, num_depths, expected):
    layout = build(layers=layers).layout
    assert last_layers(layout, num_depths) == expected
    config = DarkDistill(num_depths=num_depths)
    assert [e.id for e in early_exits(config, layout, FOUR)] == [f"exit.{last}" for last in expected[:-1]]


def test_the_fastest_type_is_deepest_and_others_never_slower_than_the_slowest():
    """Seconds = depth x the type's pace x windows: B at 2 takes 2 x 2 x 7, C at 1 takes 6 x 9."""
    pace = {"A": 1.0, "B": 2.0, "C": 6.0, "D": 3.5}

    def times(client, depth):
        return StageTimes(forward_s=pace[client.device] * depth * client.num_windows)

    assert depths_by_speed(fleet("A", "B", "C", "C"), 4, times) == {"A": 4, "B": 3, "C": 1}
    assert depths_by_speed(fleet("A", "B", "D", "C"), 4, times) == {"A": 4, "B": 3, "D": 1, "C": 1}
    assert depths_by_speed(fleet("A", "A", "A", "A"), 4, times) == {"A": 4}


def test_what_a_client_is_sent_and_sends():
    config = DarkDistill(depth_by_type=MIXED)
    tasks = darkdistill.allocate(config, None, context_of(LAYOUT, fleet("A", "A", "C", "C")))
    assert [t.args["depth"] for t in tasks] == [2, 2, 1, 1]
    assert tasks[2].down == tasks[2].train == tasks[2].up == dict.fromkeys(LAYOUT.select(FIRST_BLOCK), WHOLE)
    assert (tasks[2].output, tasks[2].taps) == ("exit.1", frozenset())
    assert (tasks[0].output, tasks[0].taps) == (None, frozenset(["exit.1"]))
    table = darkdistill.allocate(
        DarkDistill(depth_by_type=MIXED, upload="full"), None, context_of(LAYOUT, fleet("A", "A", "C", "C"))
    )
    assert (table[2].up, table[2].train) == (tasks[2].up, tasks[2].train), "nobody sends up what it did not train"
    assert set(table[2].down) == set(LAYOUT.ids)


@pytest.mark.parametrize("engine", ["naive", "reuse"])
def test_a_shallow_client_runs_trains_and_sends_its_prefix_only(tmp_path, engine):
    run = run_of(tmp_path, SHALLOW, engine=engine)
    calls = []
    for stage in run.executor._worker.backbone.stages:
        stage.module.register_forward_hook(lambda *_, name=stage.spec.id: calls.append(name))
    result = run.round(1)
    assert set(calls) == FIRST_BLOCK, "what lies behind its exit is never computed"
    assert all(set(r.assignment.up) == FIRST_BLOCK for r in result.trained.reduced.receipts)
    after = run.state.models["global"]
    assert {j for j in LAYOUT.ids if not torch.equal(after[j], run.start[j])} == FIRST_BLOCK


# Clients ---------------------------------------------------------------------------------------------------------


def step_of(taps, logits):
    return LocalStep(logits=logits, labels=torch.tensor([0, 2]), taps=taps, params={}, start={}, args={})


def test_the_loss_is_summed_over_the_exits_and_difficulty_is_the_first_exits():
    """Exits are ordered by depth, not by spelling."""
    make = torch.Generator().manual_seed(0)
    tenth, second, head = (torch.randn(2, 3, generator=make) for _ in range(3))
    step = step_of({"exit.10": tenth, "exit.2": second}, head)
    each = [functional.cross_entropy(x, step.labels) for x in (second, tenth, head)]
    assert torch.equal(darkdistill.all_exits(step), torch.stack(each).sum())
    seen = darkdistill.difficulties(step)
    assert torch.equal(seen["label"], step.labels)
    assert torch.equal(seen["difficulty"], functional.cross_entropy(second, step.labels, reduction="none"))
    assert torch.equal(darkdistill.difficulties(step_of({}, head))["difficulty"].mean(), each[2])


@pytest.mark.parametrize("bins", [None, 0.5])
def test_what_is_reported_is_charged(tmp_path, bins):
    """A pair a window (5 bytes), or a cell (7 bytes): on top of the payload."""
    run = run_of(tmp_path, config=DarkDistill(distil=False, bin_nats=bins))
    plain = run_of(tmp_path, strategy=lambda s: replace(s, client=replace(s.client, after=lambda _, u: u)))
    receipts, sent = (r.round(1).trained.reduced.receipts for r in (run, plain))
    for receipt, payload in zip(receipts, sent, strict=True):
        label, difficulty = receipt.stats["label"], receipt.stats["difficulty"]
        assert len(label) == len(difficulty) == receipt.work.num_windows
        assert sorted(label.tolist()) == sorted(payload.stats["label"].tolist())
        extra = receipt.bytes_up - payload.bytes_up
        assert label.dtype == torch.uint8, "a byte, as charged"
        assert extra >= sum(x.unique().numel() * x.element_size() for x in (label, difficulty))
        if bins is None:
            assert extra == 5 * len(label) and torch.equal(difficulty, payload.stats["difficulty"])
        else:
            cells = {(int(a), float(b)) for a, b in zip(label, difficulty, strict=True)}
            assert extra == 7 * len(cells)
            assert all((float(d) / bins) % 1 == pytest.approx(0.5) for d in difficulty)


@pytest.mark.parametrize(("classes", "dtype", "size"), [(256, torch.uint8, 1), (257, torch.int32, 4)])
def test_labels_of_many_classes_take_four_bytes(tmp_path, monkeypatch, classes, dtype, size):
    monkeypatch.setattr(darkdistill, "num_classes", lambda layout: classes)
    run = run_of(tmp_path)
    plain = run_of(tmp_path, strategy=lambda s: replace(s, client=replace(s.client, after=lambda _, u: u)))
    for receipt, payload in zip(*(r.round(1).trained.reduced.receipts for r in (run, plain)), strict=True):
        assert receipt.stats["label"].dtype == dtype
        assert receipt.bytes_up - payload.bytes_up == (size + 4) * receipt.work.num_windows


def test_what_exits_cost_beyond_their_layers_is_charged_by_hand(tmp_path):
    """3 classes, 2 epochs: 8 x 3 per window and epoch for the second exit, 5 x 3 per window for the difficulty."""
    receipts = run_of(tmp_path).round(1).trained.reduced.receipts
    expected = [2 * 24 * 6 + 15 * 6, 2 * 24 * 7 + 15 * 7, 15 * 8, 15 * 9]
    assert [r.work.extra_flops for r in receipts] == pytest.approx(expected)


def test_a_deep_client_learns_from_all_its_exits(tmp_path):
    single = lambda s: replace(  # noqa: E731
        s, client=replace(s.client, objective=lambda step: functional.cross_entropy(step.logits, step.labels))
    )
    both, last = (
        run_of(tmp_path, DEEP, strategy=change, batch_size=64).round(1).trained.reduced.receipts
        for change in (lambda s: s, single)
    )
    assert all(a.work.loss > b.work.loss > 0 for a, b in zip(both, last, strict=True))
    assert all(r.sq_norm["exit.1"] > 0 for r in both) and all(r.sq_norm["exit.1"] == 0 for r in last)


def test_a_feature_that_is_switched_off_does_not_freeze_the_exit_below_it():
    """encoder.hr.1 feeds the zeroed feature and, where the exit is asked for, the exit: then it still learns."""
    backbone = build(ADAPT, layers=2)
    every_step = {
        taps: {
            s.spec.id
            for s in plan_forward(backbone, {"acc"}, LAYOUT.ids, "zero_feature", True, taps, "head.1").every_step
        }
        for taps in ((), ("exit.1",))
    }
    assert every_step["exit.1",] - every_step[()] == {"encoder.hr.1", "exit.1"}
    assert not {"encoder.hr.1", "encoder.hr.2"} & every_step[()]


# The server ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weighting", ["uniform", "samples"])
@pytest.mark.parametrize("engine", ["naive", "reuse"])
def test_without_distillation_it_is_blockwise_fedavg(tmp_path, engine, weighting):
    """Class means, then blockwise means = the mean over all clients that hold the block."""
    config = DarkDistill(distil=False, weighting=weighting)
    ours = models_after(run_of(tmp_path, config=config, engine=engine))
    theirs = models_after(run_of(tmp_path, config=config, engine=engine, strategy=direct))
    for j in LAYOUT.ids:
        torch.testing.assert_close(ours[j], theirs[j], rtol=1e-5, atol=1e-6)


def test_blockwise_mean_by_hand(tmp_path):
    """Block 1 over all four (6, 7, 8, 9 windows), block 2 over clients 0 and 1 (6, 7)."""
    run = run_of(tmp_path)
    sums = run.round(1).trained.reduced.sums
    for j in LAYOUT.ids:
        parts = [s[j] for s in sums.values() if j in s]
        assert sum(p.weight for p in parts) == (30.0 if j in FIRST_BLOCK else 13.0)
        step = sum(p.weighted for p in parts) / sum(p.weight for p in parts)
        expected = (run.start[j].double() + step).float()
        torch.testing.assert_close(run.state.models["global"][j], expected, rtol=1e-6, atol=1e-6)


def test_sending_the_whole_model_changes_bytes_not_models(tmp_path):
    prefix, whole = run_of(tmp_path), run_of(tmp_path, config=DarkDistill(distil=False, upload="full"))
    ours, theirs = models_after(prefix), models_after(whole)
    assert all(torch.equal(ours[j], theirs[j]) for j in LAYOUT.ids)
    sent = [[r.bytes_up for r in run.round(3).trained.reduced.receipts] for run in (prefix, whole)]
    assert sent[0][0] == sent[1][0] and sent[0][2] < sent[1][2]
    everything = encoded_nbytes(LAYOUT, LAYOUT.select())
    windows = [c.num_windows for c in whole.fleet.clients]
    assert sent[1] == [everything + 5 * n for n in windows], "the whole model, whatever was trained, and the report"


def test_one_depth_class_is_fedavg(tmp_path):
    """With deep clients alone it is FedAvg's mean of them; with one class there is not even an exit."""
    mean = lambda s: replace(  # noqa: E731
        s,
        reduction=(one := WeightedSum(weight=s.reduction.weight, bucket=one_bucket)),
        aggregate=partial(average, one),
    )
    ours, theirs = models_after(run_of(tmp_path, DEEP)), models_after(run_of(tmp_path, DEEP, strategy=mean))
    for j in LAYOUT.ids:
        torch.testing.assert_close(ours[j], theirs[j], rtol=1e-5, atol=1e-6)
    single = run_of(tmp_path, {}, config=DarkDistill(num_depths=1))
    fedavg = bench(FedAvg(weighting="samples").build(), tmp_path, epochs=2, build_args=TWO_LAYERS)
    assert "exit.1" not in single.backbone.layout
    alone, plain = models_after(single), models_after(fedavg)
    for j in plain:
        torch.testing.assert_close(alone[j], plain[j], rtol=1e-5, atol=1e-6)


SMALL = DarkDistill(hidden=8, kd_epochs=1, kd_lr=0.05)


def test_distillation_moves_the_deep_blocks_and_spares_the_shallow_class(tmp_path):
    """Round 1 is the same up to the server's step: block 2 differs by it, block 1's classes share one more mean."""
    with_, without = with_network(run_of(tmp_path, config=SMALL)), run_of(tmp_path)
    ours, theirs = models_after(with_, 1), models_after(without, 1)
    moved = {j for j in LAYOUT.ids if not torch.equal(ours[j], theirs[j])}
    assert moved == set(LAYOUT.ids) - {"exit.1", "head.1"}, "every feature of the deep class, no classifier"
    shares = {"encoder.acc.1": 13.0 / 30.0, "fusion.B": 1.0}
    judge = LAYOUT.views(with_.state.tensors[JUDGE])
    sums = without.round(2).trained.reduced  # the class means before distillation
    assert sums.receipts and set(with_.state.tensors) == {JUDGE, "generator.1", "scores"}
    for j, share in shares.items():
        assert torch.equal(judge[j], ours[j]) == (share == 1.0), "the judge is the deep class before the blocks' mean"


def test_the_state_of_the_server_goes_on(tmp_path):
    run = with_network(run_of(tmp_path, config=SMALL))
    run.round(1)
    first = dict(run.state.tensors)
    run.round(2)
    assert all(not torch.equal(first[k], run.state.tensors[k]) for k in first)
    assert all(bool(torch.isfinite(x).all()) for x in run.state.models["global"].values())


@pytest.mark.parametrize("participants", [[0, 1], [2, 3], [3]])
def test_a_round_with_one_class_alone_distils_nothing(tmp_path, participants):
    """Generators and scores rest; the judge is the deepest class's newest model, here the blocks' mean of it alone."""
    run = with_network(run_of(tmp_path, config=SMALL))
    run.round(1)
    before = run.state
    run.round(2, participants=participants)
    deepest = 0 in participants
    kept = {k for k in before.tensors if torch.equal(before.tensors[k], run.state.tensors[k])}
    assert kept == set(before.tensors) - ({JUDGE} if deepest else set()) and set(run.state.tensors) == set(
        before.tensors
    )
    if deepest:
        judge = LAYOUT.views(run.state.tensors[JUDGE])
        assert all(torch.equal(judge[j], run.state.models["global"][j]) for j in LAYOUT.ids)
    same = {j for j in LAYOUT.ids if torch.equal(before.models["global"][j], run.state.models["global"][j])}
    # A window of zeros moves no LoRA factor that reads it: who has no heart rate leaves encoder.hr.1 as it is.
    assert same == (set() if deepest else set(LAYOUT.ids) - FIRST_BLOCK | {"encoder.hr.1"})


def test_the_next_round_is_judged_by_the_deepest_class_model(tmp_path, monkeypatch):
    """Round 1 by the initial model, later rounds by what the deepest class last had, also where it came alone."""
    seen, plain = [], darkdistill.distil
    monkeypatch.setattr(
        darkdistill, "distil", lambda models, judge, *rest: (seen.append(judge), plain(models, judge, *rest))[1]
    )
    run = with_network(run_of(tmp_path, config=SMALL))
    run.round(1)
    run.round(2, participants=[0])
    alone = run.state.models["global"]
    run.round(3, participants=[2])
    run.round(4)
    assert len(seen) == 2 and all(torch.equal(seen[0][j], run.start[j]) for j in LAYOUT.ids)
    assert all(torch.equal(seen[1][j], alone[j]) for j in LAYOUT.ids)


@pytest.mark.parametrize("kd_epochs", [1, 3])
def test_every_epoch_is_a_step_of_the_generator_and_five_of_the_students(tmp_path, monkeypatch, kd_epochs):
    calls = []
    for name in ("_train_generator", "_student_step"):
        plain = getattr(distillation, name)
        monkeypatch.setattr(
            distillation, name, lambda *args, plain=plain, name=name: (calls.append(name), plain(*args))[1]
        )
    run = with_network(run_of(tmp_path, config=DarkDistill(hidden=8, kd_epochs=kd_epochs)))
    run.round(1)
    assert calls == ["_train_generator", *["_student_step"] * 5] * kd_epochs


def test_the_students_rate_depends_on_what_is_trained(tmp_path, monkeypatch):
    """LoRA's deep steps are 1e-3, a dense model's 0.05."""
    seen = []
    monkeypatch.setattr(
        darkdistill,
        "distil",
        lambda models, judge, memory, build_, recipe, draws: (seen.append(recipe), [m.params for m in models], {})[1:],
    )
    run_of(tmp_path, config=DarkDistill(hidden=8)).round(1)
    assert seen[0].lr == 1e-3 and (seen[0].epochs, seen[0].steps, seen[0].batch_size, seen[0].hidden) == (2, 5, 32, 8)


@pytest.mark.parametrize("missing", ["zero_input", "zero_feature"])
def test_naive_and_reuse_engines_agree_and_stay_finite(tmp_path, missing):
    runs = [models_after(run_of(tmp_path, engine=e, missing=missing), 1) for e in ("naive", "reuse")]
    for j in LAYOUT.ids:
        torch.testing.assert_close(runs[0][j], runs[1][j], rtol=1e-3, atol=1e-4)
        assert bool(torch.isfinite(runs[0][j]).all())


def test_every_exit_can_be_evaluated(tmp_path):
    run = run_of(tmp_path, lr=0.05)
    models_after(run)
    targets = [
        EvalTarget(label="deep"),
        EvalTarget(label="early", output="exit.1"),
        EvalTarget(label="x", output="head.1"),
    ]
    counts = run.executor.evaluate(run.state.models, targets, {}, "test")
    assert torch.equal(counts["deep"], counts["x"]) and not torch.equal(counts["deep"], counts["early"])


def test_each_client_is_evaluated_through_the_exit_that_it_trained(tmp_path):
    """Canonical: the deepest one, with all sensors. Depth is by type: who sits a round out has its type's exit."""
    run = run_of(tmp_path, lr=0.05)
    own = [c.modalities for c in run.fleet.clients]
    expected = [EvalTarget(label=f"client.{n}", client=n, modalities=m) for n, m in enumerate(own)]

    def plan():
        found = run.strategy.evaluate(run.state, run.fleet)
        assert found.canonical == EvalTarget(label="global") and not found.personal
        return list(found.clients)

    assert plan() == expected, "no type has a task yet"
    run.round(1, participants=[0, 2])
    shallow = [replace(t, output="exit.1") if n >= 2 else t for n, t in enumerate(expected)]
    assert plan() == shallow
    run.round(2, participants=[1])
    assert plan() == shallow, "an exit stays known"
    found = run.executor.evaluate(run.state.models, shallow, {}, "test")
    alone = EvalTarget(label="x", modalities=own[3], output="exit.1")
    assert torch.equal(found["client.3"], run.executor.evaluate(run.state.models, [alone], {}, "test")["x"])


def test_what_a_shallow_client_is_tested_on_is_what_it_trains(tmp_path):
    """Noise in every block behind its exit changes the deep clients' predictions, and none of the shallow ones'."""
    run = run_of(tmp_path, lr=0.05)
    models_after(run)
    targets = run.strategy.evaluate(run.state, run.fleet).clients
    theta = run.state.models["global"]
    noisy = {j: x if j in FIRST_BLOCK else x + torch.randn(x.shape) for j, x in theta.items()}
    before, after = (run.executor.evaluate({"global": m}, targets, {}, "test") for m in (theta, noisy))
    unchanged = {n for n in range(4) if torch.equal(before[f"client.{n}"], after[f"client.{n}"])}
    assert unchanged == {2, 3}


def test_a_depth_is_for_a_device_type_that_there_is():
    with pytest.raises(ValidationError):
        DarkDistill(depth_by_type={"A": 0})
    with pytest.raises(UserError, match=r"strategy.depth_by_type names the device types \['Z'\], expected some of"):
        darkdistill.allocate(DarkDistill(depth_by_type={"Z": 1}), None, context_of(LAYOUT, FOUR))
    assert DarkDistill(depth_by_type={"C": 2}).depth_by_type == {"C": 2}


def test_a_depth_is_one_that_the_backbone_has():
    """Two encoder layers are two classes, whatever ``num_depths`` allows; of four, with ``num_depths=2`` as well."""
    for layers, config in (
        (2, DarkDistill(depth_by_type={"A": 3})),
        (4, DarkDistill(depth_by_type={"A": 3}, num_depths=2)),
    ):
        with pytest.raises(UserError, match=r"depth_by_type: found \{'A': 3\}, expected 1 to 2"):
            early_exits(config, build(layers=layers).layout, FOUR)
    assert len(early_exits(DarkDistill(depth_by_type={"A": 3}), build(layers=3).layout, FOUR)) == 2
