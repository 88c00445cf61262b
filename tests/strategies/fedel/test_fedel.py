"""FedEL: windows, importance, time budgets, masked means; what devices and server may and may not touch."""

from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import combinations, pairwise
from typing import ClassVar

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from relief_ray.core.client import ClientContext, Probed, no_probe
from relief_ray.core.groups import WHOLE
from relief_ray.core.messages import NO_STATE, Fleet, Receipt, ServerState, StageTimes, Update, Work
from relief_ray.core.streams import Streams
from relief_ray.experiment.setup import context_of as setup_context
from relief_ray.experiment.setup import prepare
from relief_ray.records.run_folder import read_rounds
from relief_ray.records.schema import selection
from relief_ray.strategies import fedel, fedprox
from relief_ray.strategies.early_exits import block, num_blocks, own_groups
from relief_ray.strategies.fedavg import FedAvg
from relief_ray.strategies.fedel import GLOBAL, WINDOW, FedEL, all_exits, global_importance
from relief_ray.strategies.fedprox import FedProx
from relief_ray.training.executor import Worker
from tests import toy
from tests.conformance.cases import config_of, drive
from tests.toy import ACC, LinearPlanner, build

TWO_LAYERS = {"layers": 2, "b_zero": False}
LAYOUT = build(all_exits, layers=2).layout
OWN = [g.id for g in own_groups(LAYOUT)]
# Every client on a device type of its own, client 0 ten times as fast as client 3.
FOUR = replace(toy.FOUR, clients=tuple(replace(c, device=d) for c, d in zip(toy.FOUR.clients, "ABCD", strict=True)))
context_of = partial(toy.context_of, fleet=FOUR)
bench = partial(toy.bench, fleet=FOUR)
SPREAD = LinearPlanner(tau_s={0: 1.0, 1: 2.0, 2: 5.0, 3: 10.0})


def run_of(folder, config=None, **options):
    return bench((config or FedEL()).build(), folder, build_args=TWO_LAYERS, **{"planner": SPREAD, **options})


def assignments(result):
    return [r.assignment for r in result.trained.reduced.receipts]


def test_blocks_and_exits():
    """Two encoder layers, fusion, head: B = 4; an exit behind each block but the last."""
    assert num_blocks(LAYOUT) == 4
    blocks = {j: block(LAYOUT, LAYOUT[j]) for j in OWN}
    assert blocks == {
        **{f"encoder.{m}.{i}": i for m in ("acc", "hr") for i in (1, 2)},
        **dict.fromkeys(("fusion.A.acc", "fusion.A.hr", "fusion.B"), 3),
        "head.1": 4,
    }
    exits = {e.id: e.after for e in all_exits(build(layers=2).layout, FOUR)}
    assert exits == {
        "exit.1": ("encoder.acc.1", "encoder.hr.1"),
        "exit.2": ("encoder.acc.2", "encoder.hr.2"),
        "exit.3": ("fusion.B",),
    }


def test_windows_slide_over_rounds_and_cover_every_block(tmp_path):
    run = run_of(tmp_path)
    windows = {n: [] for n in range(4)}
    for round_ in range(1, 10):
        for task in assignments(run.round(round_)):
            windows[task.client].append((int(task.args["end"]), int(task.args["front"])))
            assert task.output == (None if task.args["front"] == 4 else f"exit.{int(task.args['front'])}")
            trained = {block(LAYOUT, LAYOUT[j]) for j in task.train if not j.startswith("exit")}
            assert all(task.args["end"] <= b <= task.args["front"] for b in trained)
    for seen in windows.values():
        for before, after in pairwise(seen):
            assert after[1] > before[1] if before[1] < 4 else after == seen[0]
    assert {w[0] for w in windows[0]} == {1} and {w[1] for w in windows[0]} == {4}, "the fastest always sees all"
    assert {w[1] for w in windows[3]} == {1, 2, 3, 4}


@pytest.mark.parametrize("engine", ["naive", "reuse"])
def test_only_the_selection_and_its_exit_move(tmp_path, engine):
    """Bit for bit, on devices and on the server."""
    run = run_of(tmp_path, engine=engine)
    for round_ in (1, 2, 3):
        before = run.state.models["global"]
        receipts = run.round(round_).trained.reduced.receipts
        trained = {j for r in receipts for j in r.assignment.train}
        assert all(set(r.sq_norm) == set(r.assignment.train) == set(r.assignment.up) for r in receipts)
        assert all(torch.equal(before[j], run.state.models["global"][j]) for j in LAYOUT.ids if j not in trained)
        assert any(not torch.equal(before[j], run.state.models["global"][j]) for j in trained)
        outside = [j for j in LAYOUT.ids if j not in receipts[-1].assignment.train]
        theta = run.executor._worker.trainer.theta  # of the last client, as it left it
        assert outside and all(torch.equal(theta[j], before[j]) for j in outside), "the probe's step is taken back"


def test_the_masked_mean_by_hand(tmp_path):
    run = run_of(tmp_path)
    run.round(1)
    before = run.state.models["global"]
    sums = run.round(2).trained.reduced.sums["global"]
    for j, part in sums.items():
        expected = before[j].double() + part.plain / len(part.members)
        torch.testing.assert_close(run.state.models["global"][j], expected.float(), rtol=0, atol=0)
    assert {len(part.members) for part in sums.values()} > {1}, "groups differ in who trained them"


@pytest.mark.parametrize("engine", ["naive", "reuse"])
def test_unlimited_time_and_equal_importance_is_fedavg(tmp_path, monkeypatch, engine):
    """One window, everything selected: FedAvg bit for bit, exits untouched."""
    monkeypatch.setattr(fedel, "importance", lambda *_: dict.fromkeys(OWN, 1.0))
    ours = run_of(tmp_path, FedEL(t_th_s=1e9), engine=engine, epochs=2)
    theirs = bench(FedAvg().build(), tmp_path, engine=engine, epochs=2, build_args=TWO_LAYERS)
    for round_ in (1, 2, 3):
        assert all(t.output is None and set(t.train) == set(OWN) for t in assignments(ours.round(round_)))
        theirs.round(round_)
    assert all(torch.equal(ours.state.models["global"][j], theirs.state.models["global"][j]) for j in OWN)
    exits = [j for j in LAYOUT.ids if j.startswith("exit")]
    assert all(torch.equal(ours.state.models["global"][j], ours.start[j]) for j in exits)


def test_the_probe_is_one_plain_gradient_step_and_the_gradient_behind_it(tmp_path):
    """``w' = w - lr g``, by the loss of the same batch: along ``g`` it falls by ``|g|^2``, at ``w`` and at ``w'``."""
    run = run_of(tmp_path, batch_size=64)
    results = {}

    def look(context, task):
        results["probed"] = context.probe(replace(task, output=None, train=LAYOUT.select(OWN)))
        return replace(task, output=None, train=LAYOUT.select(OWN), up=LAYOUT.select(OWN))

    job = run.executor._worker.job
    worker = Worker(replace(job, program=replace(job.program, refine=look, after=lambda _, update: update)))
    trainer = worker.trainer
    tasks = run.strategy.allocate(run.state, context_of(LAYOUT, planner=SPREAD, participants=[0]))
    ((update, _),) = worker.runs.updates(1, run.state.models, [tasks[:1]], {}, reuses_memory=False)
    assert update.receipt.work.num_steps == 1, "the probe's step is not counted as training"
    step, gradient = results["probed"].step, results["probed"].gradient
    assert update.receipt.probes[0][1] == 6 and set(update.receipt.probes[0][0].train) == set(OWN)
    inputs = worker._client_inputs(0)
    full = {m: worker.backbone.prepare(m, x) for m, x in inputs.inputs.items()}

    def loss():
        with torch.no_grad():
            return float(torch.nn.functional.cross_entropy(worker.backbone.forward(full), inputs.labels))

    start, lr = run.state.models["global"], trainer.config.lr
    for moved, expected in ((0.0, {j: -x / lr for j, x in step.items()}), (1.0, gradient)):
        for j in OWN:
            trainer.theta[j].copy_(start[j] + moved * step[j])
        here = loss()
        for j in ("head.1", "fusion.B", "encoder.hr.1"):
            kept, small = trainer.theta[j].clone(), 1e-2
            trainer.theta[j].add_(expected[j], alpha=small)
            assert loss() - here == pytest.approx(small * float(expected[j].square().sum()), rel=0.1, abs=2e-5)
            trainer.theta[j].copy_(kept)


def test_importance_of_a_plain_step_is_the_squared_gradient_as_in_the_global_one(tmp_path):
    """To first order ``-g . Delta = |Delta|^2 / eta``: a probe's ``I_n`` is what ``I_g`` gives for the same step."""
    run, seen = run_of(tmp_path, batch_size=64, lr=1e-4), []
    job = run.executor._worker.job
    start = run.state.models["global"]

    def look(context, task):
        seen.append(context.probe(replace(task, output=None, train=LAYOUT.select(OWN))))
        return task

    worker = Worker(replace(job, program=replace(job.program, refine=look, after=lambda _, update: update)))
    tasks = run.strategy.allocate(run.state, context_of(LAYOUT, planner=SPREAD, participants=[0]))
    list(worker.runs.updates(1, run.state.models, [tasks[:1]], {}, reuses_memory=False))
    local = fedel.local_importance(seen[0])
    after = {j: start[j].double() + seen[0].step[j].double() if j in OWN else start[j] for j in LAYOUT.ids}
    both = zip(LAYOUT.ids, global_importance(start, after, LAYOUT).tolist(), strict=True)
    assert {j: v for j, v in both if j in OWN} == pytest.approx(local, rel=1e-2, abs=1e-6)
    assert min(local.values()) > 0.0


def test_global_importance_of_an_unchanged_model_is_zero():
    start = {j: torch.ones(LAYOUT[j].numel) for j in LAYOUT.ids}
    assert not global_importance(start, start, LAYOUT).any()
    moved = {"head.1": 2.0, "fusion.B": 1.0, "exit.1": 9.0}
    after = {j: theta + moved.get(j, 0.0) for j, theta in start.items()}
    importance = dict(zip(LAYOUT.ids, global_importance(start, after, LAYOUT).tolist(), strict=True))
    assert importance.pop("head.1") == 1.0
    assert importance.pop("fusion.B") == pytest.approx(LAYOUT["fusion.B"].numel / (4 * LAYOUT["head.1"].numel))
    assert not any(importance.values()), "exits count for nothing"


def probing_context(probed, state=NO_STATE):
    context = ClientContext(
        info=FOUR[2], round=2, layout=LAYOUT, start={}, state=state, streams=Streams(seed=0), planner=SPREAD
    )
    return replace(context, probe=lambda trial: probed)


def test_beta_mixes_and_one_ignores_the_last_model():
    probed = Probed(step={j: -torch.ones(1) for j in OWN}, gradient={j: torch.ones(1) for j in OWN})
    task = fedel.allocate(FedEL(), ServerState(models={}), context_of(LAYOUT, planner=SPREAD, participants=[2]))[0]
    assert not [key for key in task.args if key.startswith("I.")], "nothing is known before the first step"
    known = ServerState(models={}, tensors={GLOBAL: torch.linspace(0.0, 1.0, len(LAYOUT), dtype=torch.float64)})
    later = fedel.allocate(FedEL(), known, context_of(LAYOUT, planner=SPREAD, participants=[2]))[0]
    context = probing_context(probed)
    alone = fedel.importance(FedEL(beta=0.25), context, task)
    assert set(alone.values()) == {1.0} and fedel.importance(FedEL(beta=1.0), context, later) == alone
    mixed = fedel.importance(FedEL(beta=0.25), context, later)
    assert mixed == pytest.approx({j: 0.25 + 0.75 * later.args[f"I.{j}"] for j in OWN})


def test_a_tensor_whose_step_raises_the_loss_counts_against_itself():
    """``-g' . (w' - w)`` = 2 for all but one, -1 for that one: over the largest 1 and -0.5, also in the mix."""
    worse = "encoder.acc.1"
    step = {j: torch.full((1,), 1.0 if j == worse else -2.0) for j in OWN}
    context = probing_context(Probed(step=step, gradient={j: torch.ones(1) for j in OWN}))
    participants = context_of(LAYOUT, planner=SPREAD, participants=[2])
    task = fedel.allocate(FedEL(t_th_s=1e9), ServerState(models={}), participants)[0]
    expected = {j: -0.5 if j == worse else 1.0 for j in OWN}
    assert fedel.importance(FedEL(), context, task) == expected
    known = replace(task, args={**task.args, **dict.fromkeys((f"I.{j}" for j in OWN), 0.5)})
    assert fedel.importance(FedEL(beta=0.8), context, known)[worse] == pytest.approx(0.8 * -0.5 + 0.2 * 0.5)
    chosen = fedel.refine(FedEL(t_th_s=1e9), context, task)
    assert set(chosen.train) == set(OWN) - {worse}, "even with time for everything"


def test_what_is_remembered_is_the_first_block_that_trained_by_hand():
    """Blocks 2 and 3 of a window over 1 to 4: the next one may begin at 2; 0 where the exit alone trained."""
    task = fedel.allocate(FedEL(), ServerState(models={}), context_of(LAYOUT, planner=SPREAD, participants=[2]))[0]
    work = Work(num_windows=1, epochs=1, num_steps=1, engine="naive", loss=0.0, measured=StageTimes())
    for train, first in ((("fusion.B", "encoder.hr.2", "exit.3", "fusion.A.acc"), 2), (("exit.3",), 0)):
        done = replace(task, train=LAYOUT.select(train), args={"end": 1.0, "front": 4.0})
        receipt = Receipt(assignment=done, work=work, bytes_down=0, bytes_up=0)
        update = fedel.remember(probing_context(None), Update(receipt=receipt, delta={}))
        assert update.state[WINDOW].tolist() == [1, 4, first]


def test_budgets():
    """Eight own groups: full training takes 8 tau; the link does not count."""
    context = context_of(LAYOUT, planner=SPREAD)
    assert fedel.budget_s(FedEL(), context) == 8.0, "the fastest device's computing time, exits not counted"
    assert fedel.budget_s(FedEL(t_th_s=3.5), context) == 3.5
    assert fedel.budget_s(FedEL(speedup=8.1), context) == 10.0, "the slowest computes for 80 s and sends for 1 s"
    one = fedel.allocate(FedEL(), ServerState(models={}), context_of(LAYOUT, planner=SPREAD, participants=[3]))
    assert one[0].args["t_th_s"] == 8.0, "the whole fleet decides, not who takes part"


@dataclass(frozen=True, kw_only=True)
class PerWindow:
    """``pace`` of its device type seconds per window and group, and a second on the link."""

    fleet: Fleet
    pace: ClassVar = {"A": 1.0, "B": 2.0, "C": 6.0}

    def times(self, client, assignment):
        info = self.fleet[client]
        return StageTimes(backward_s=self.pace[info.device] * info.num_windows * len(assignment.train), up_s=1.0)


@pytest.mark.parametrize(
    ("num_windows", "expected_s"),
    [((10, 10, 10, 10), 80.0), ((1, 10, 10, 10), 80.0), ((10, 10, 10, 1), 80.0), ((30, 10, 2, 1), 240.0)],
)
def test_the_budget_is_the_fastest_types_whoever_has_few_windows(num_windows, expected_s):
    """Eight groups at a second a window: type A's slower client, not who is done first because it has few windows."""
    kinds = zip(FOUR.clients, "AABC", num_windows, strict=True)
    fleet = replace(FOUR, clients=tuple(replace(c, device=d, num_windows=n) for c, d, n in kinds))
    context = context_of(LAYOUT, fleet=fleet, planner=PerWindow(fleet=fleet))
    assert fedel.budget_s(FedEL(), context) == expected_s
    allocate, layout = FedProx(mu=0.0).build().allocate, build(layers=2).layout
    deadline_s = fedprox.fastest_s(allocate, ServerState(models={}), replace(context, layout=layout))
    assert deadline_s == expected_s + 1.0, "FedProx's deadline is the same device type's, its link included"


@pytest.mark.parametrize("config", [FedEL(), FedEL(speedup=5.0), FedEL(t_th_s=25.0)])
def test_every_device_stays_within_the_budget_or_trains_one_tensor(tmp_path, config):
    """Where a slow device's exit alone takes longer, the floor binds."""
    run = run_of(tmp_path, config)
    sizes = set()
    for round_ in range(1, 7):
        for task in assignments(run.round(round_)):
            own = [j for j in task.train if not j.startswith("exit")]
            times = SPREAD.times(task.client, task)
            spent = times.compute_s if config.speedup is None else times.busy_s
            assert spent <= task.args["t_th_s"] + 1e-9 or len(own) == 1
            sizes.add(len(own))
    assert max(sizes) > 2 and min(sizes) <= 1


@pytest.mark.parametrize(("cull", "end"), [(True, 2), (False, 3)])
def test_a_window_begins_at_the_first_trained_block_or_behind_the_last_front_by_hand(tmp_path, monkeypatch, cull, end):
    """Client 1 takes 2 s a group: blocks of 4, 4, 6 and 2 s, T_th = 8 s, so windows end at 2 and 4, then again at 2.

    Block 1 is worth nothing: block 2 alone is trained first, and with ``cull`` the next window begins there.
    """
    worth = {g.id: float(block(LAYOUT, g) - 1) for g in own_groups(LAYOUT)}
    monkeypatch.setattr(fedel, "importance", lambda *_: worth)
    run, seen = run_of(tmp_path, FedEL(cull=cull, t_th_s=8.0)), []
    for round_ in (1, 2, 3):
        (task,) = assignments(run.round(round_, participants=[1]))
        seen.append((int(task.args["end"]), int(task.args["front"])))
        assert {block(LAYOUT, LAYOUT[j]) for j in task.train if "exit" not in j} <= {2, 3, 4}
    assert seen == [(1, 2), (end, 4), (1, 2)]


def test_two_budgets_are_refused():
    with pytest.raises(ValidationError, match=r"t_th_s = 5.0 and speedup = 3.0, expected one of them"):
        FedEL(t_th_s=5.0, speedup=3.0)


def test_a_window_survives_a_round_that_a_client_misses(tmp_path):
    run = run_of(tmp_path)
    run.round(1)
    window = run.store.load(3)[WINDOW].clone()
    run.round(2, participants=[0, 1])
    assert torch.equal(run.store.load(3)[WINDOW], window)
    task = assignments(run.round(3))[3]
    assert task.args["front"] == window[1] + 1


def test_bytes_are_the_selections_and_the_importances(tmp_path):
    run = run_of(tmp_path)
    for receipt in run.round(1).trained.reduced.receipts:
        values = LAYOUT.num_values(receipt.assignment.up)
        assert 4 * values < receipt.bytes_up < 4 * values + 300, "values, and a header that is the mask"
        assert receipt.bytes_down > 4 * LAYOUT.numel + 4 * len(OWN), "everything comes down, exits too"
        assert receipt.assignment.up == dict.fromkeys(receipt.assignment.train, WHOLE)


def test_the_ablation_never_trains_what_a_device_cannot_sense(tmp_path):
    trained = {}
    for aware in (False, True):
        run = run_of(tmp_path, FedEL(t_th_s=1e9, modality_aware=aware))
        run.round(1)
        trained[aware] = {j for t in assignments(run.round(2)) if FOUR[t.client].modalities == ACC for j in t.train}
    assert any(".hr" in j for j in trained[False]) and not any(".hr" in j for j in trained[True])


@pytest.mark.parametrize("missing", ["zero_input", "zero_feature"])
@pytest.mark.parametrize("engine", ["naive", "reuse"])
def test_both_missing_modes_and_engines_stay_finite(missing, engine, tmp_path):
    run = run_of(tmp_path, missing=missing, engine=engine)
    for round_ in range(1, 6):
        run.round(round_)
    assert all(bool(torch.isfinite(theta).all()) for theta in run.state.models["global"].values())


def test_a_context_without_data_cannot_probe():
    with pytest.raises(NotImplementedError, match="only a client in training"):
        no_probe(fedel.allocate(FedEL(), ServerState(models={}), context_of(LAYOUT))[0])


@pytest.mark.ci
@pytest.mark.parametrize("case", ["fedel", "fedel, moment"])
@pytest.mark.usefixtures("run_cache")
def test_prices_are_the_cost_models_own(case):
    """On both real backbones: the tree prices every selection of a window as the planner does."""
    setup = prepare(config_of(case, costs={"planning_time": "split_naive"}))
    context = setup_context(setup, 1)
    layout, client = setup.layout, setup.fleet.clients[-1]
    own = own_groups(layout)
    task = fedel.allocate(FedEL(), ServerState(models={}), context)[client.id]

    def seconds(groups):
        return context.planner.times(client.id, replace(task, train=layout.select(groups))).compute_s

    trunk = ["head.2", "head.1", "fusion.B"] if "head.2" in layout else ["head.1", "fusion.B"]
    branches = [[f"fusion.A.{m}", f"encoder.{m}.2", f"encoder.{m}.1"] for m in layout.modalities]
    ids = [g.id for g in own]
    tree = fedel.price(trunk, branches, dict.fromkeys(ids, 1.0), seconds)
    assert sorted(u.id for u in tree.units) == sorted(ids) and tree.passing > 0
    chosen = [*combinations(ids, 1), *combinations(ids, 2), *list(combinations(ids, 4))[::7], tuple(ids)]
    for ids in chosen:
        assert fedel.cost(tree, ids) == pytest.approx(seconds(ids) - seconds(()), rel=1e-9, abs=1e-12)


CHAINS = [["head.1", "fusion.B"], *([f"fusion.A.{m}", f"encoder.{m}.2", f"encoder.{m}.1"] for m in ("acc", "hr"))]


class Passing:
    """A second for each trained group, and two for each group that a gradient has to pass, from the output on."""

    def times(self, client, assignment):
        trunk, *branches = ([j in assignment.train for j in chain] for chain in CHAINS)
        passed = [max((i for i, is_trained in enumerate(b) if is_trained), default=0) for b in branches]
        below = any(map(any, branches))
        through = len(trunk) if below else max((i for i, is_trained in enumerate(trunk) if is_trained), default=0)
        return StageTimes(backward_s=sum(map(sum, (trunk, *branches))) + 2.0 * (sum(passed) + through))


@pytest.mark.parametrize("limit_s", [10.0, 12.0, 15.0, 18.0])
def test_a_device_trains_the_best_of_all_selections_that_fit_where_passing_costs_more_than_training(
    limit_s, monkeypatch
):
    """All blocks in the window: against every subset, where leaving out a group does not spare the way past it."""

    def seconds(groups):
        return Passing().times(0, replace(task, train=LAYOUT.select(groups))).compute_s

    task = fedel.allocate(FedEL(), ServerState(models={}), context_of(LAYOUT, planner=SPREAD, participants=[2]))[0]
    task = replace(task, args={"t_th_s": limit_s})
    context = replace(probing_context(None, {WINDOW: torch.tensor([1, 2, 1])}), planner=Passing())
    assert seconds(OWN) == 8 + 2.0 * (2 + 2 + 2)
    subsets, has_gap = [s for n in range(len(OWN) + 1) for s in combinations(OWN, n)], False
    for seed in range(30):
        value = dict(zip(OWN, np.random.default_rng(seed).random(len(OWN)).tolist(), strict=True))
        monkeypatch.setattr(fedel, "importance", lambda *_, value=value: value)
        chosen = fedel.refine(FedEL(), context, task)
        assert (chosen.args["end"], chosen.args["front"], chosen.output) == (1, 4, None)
        assert seconds(chosen.train) <= limit_s
        best = max(sum(value[j] for j in s) for s in subsets if seconds(s) <= limit_s)
        assert sum(value[j] for j in chosen.train) == pytest.approx(best, abs=1e-12)
        has_gap |= any(f"encoder.{m}.1" in chosen.train and f"encoder.{m}.2" not in chosen.train for m in ("acc", "hr"))
    assert has_gap or limit_s == 10.0, "a gradient that passes a group which does not train"


@pytest.mark.ci
@pytest.mark.parametrize("share", [0.7, 0.8, 0.9])
@pytest.mark.usefixtures("run_cache")
def test_a_device_trains_the_best_of_all_selections_that_fit_on_a_real_backbone(share, monkeypatch):
    """Against every subset of the window, priced by the device's own clock: 1000 units round each tensor down."""
    setup = prepare(config_of("fedel"))
    context, layout, client = setup_context(setup, 1), setup.layout, setup.fleet.clients[-1]
    own, planner = [g.id for g in own_groups(layout)], context.planner
    everything = fedel.allocate(FedEL(), ServerState(models={}), context)[client.id]

    @cache
    def seconds(output, groups):
        chosen = layout.select([*groups, *([output] if output else [])])
        return planner.times(client.id, replace(everything, train=chosen, up=chosen, output=output)).compute_s

    limit_s, sizes = share * seconds(None, tuple(own)), set()
    info = replace(probing_context(None), info=client, layout=layout, planner=planner)
    for seed in range(6):
        value = dict(zip(own, np.random.default_rng(seed).random(len(own)).tolist(), strict=True))
        monkeypatch.setattr(fedel, "importance", lambda *_, value=value: value)
        chosen = fedel.refine(FedEL(), info, replace(everything, args={"t_th_s": limit_s}))
        inside = [j for j in own if chosen.args["end"] <= block(layout, layout[j]) <= chosen.args["front"]]
        trained = tuple(j for j in inside if j in chosen.train)
        subsets = [s for n in range(len(inside) + 1) for s in combinations(inside, n)]
        best = max(sum(value[j] for j in s) for s in subsets if seconds(chosen.output, s) <= limit_s)
        assert seconds(chosen.output, trained) <= limit_s * (1 + len(own) / fedel.UNITS)
        assert sum(value[j] for j in trained) >= best - 1e-12
        sizes.add(len(trained))
    assert max(sizes) > 1 and min(sizes) < len(inside), "something to decide"


@pytest.mark.usefixtures("run_cache")
def test_on_real_data_every_tensor_lowers_the_loss_and_fast_devices_train_all(tmp_path, monkeypatch):
    """T_th is what type A takes for everything: it leaves out what has no importance, and nothing has none."""
    seen, plain = [], fedel.local_importance
    monkeypatch.setattr(fedel, "local_importance", lambda probed: (seen.append(plain(probed)), seen[-1])[1])
    config = config_of("fedel", training={"epochs": 1})
    setup = prepare(config)
    drive(config, tmp_path / "run")
    own = {g.id for g in own_groups(setup.layout)}
    assert len(seen) == 3 * len(setup.fleet) and all(set(found) == own for found in seen)
    assert min(min(found.values()) for found in seen) > 0.0
    fast = [c.id for c in setup.fleet.clients if c.device == "A"]
    for record in read_rounds(tmp_path / "run"):
        assert all(set(c.trained) == own for c in record.clients if c.client in fast)


@pytest.mark.usefixtures("run_cache")
def test_records_tell_what_was_trained_not_what_was_proposed(tmp_path):
    setup_, config = prepare(config_of("fedel")), config_of("fedel")
    drive(config, tmp_path / "run")
    for record in read_rounds(tmp_path / "run"):
        values = [setup_.layout.num_values(selection(c.trained)) for c in record.clients]
        assert record.trained_fraction == pytest.approx(sum(values) / len(values) / setup_.num_own_values)
        assert record.trained_fraction < 1.0 and all(c.args["front"] <= 4 for c in record.clients)


def test_the_budget_is_given_in_one_way():
    with pytest.raises(ValidationError, match=r"t_th_s = 5\.0 and speedup = 3\.0, expected one of them"):
        FedEL(t_th_s=5.0, speedup=3.0)
    assert FedEL(t_th_s=5.0).speedup is None and FedEL(speedup=3.0).t_th_s is None
