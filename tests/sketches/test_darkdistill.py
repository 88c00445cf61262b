"""Does the interface carry early exits and depth-limited clients?"""

from dataclasses import replace
from functools import partial

import pytest
import torch

from relief_ray.messages import EvalTarget
from relief_ray.server.aggregation import apply_step, mean_step, over_members
from relief_ray.strategies.common import average
from relief_ray.training.reuse import plan_forward
from tests.sketches.darkdistill import DIRECT, darkdistill, exits, level
from tests.toy import FOUR, bench, build

TWO_LAYERS = {"layers": 2, "b_zero": False}
LAYOUT = build(exits, layers=2).layout
MIXED, DEEP, SHALLOW = {0: 2, 1: 2, 2: 1, 3: 1}, dict.fromkeys(range(4), 2), dict.fromkeys(range(4), 1)
FIRST_BLOCK = {"encoder.acc.1", "encoder.hr.1", "exit.1"}


def after_rounds(strategy, folder, rounds=2, **options):
    run = bench(strategy, folder, epochs=2, build_args=TWO_LAYERS, **options)
    results = [run.round(r) for r in range(1, rounds + 1)]
    return run, results


def test_blocks_by_depth():
    assert {g.id for g in LAYOUT if level(g) == 1} == FIRST_BLOCK
    assert {g.id for g in LAYOUT if level(g) == 2} == set(LAYOUT.ids) - FIRST_BLOCK


@pytest.mark.parametrize("engine", ["naive", "reuse"])
def test_class_means_then_blockwise_mean_is_direct_blockwise_fedavg(tmp_path, engine):
    per_class, _ = after_rounds(darkdistill(MIXED), tmp_path, engine=engine)
    direct, _ = after_rounds(darkdistill(MIXED, DIRECT), tmp_path, engine=engine)
    for j in LAYOUT.ids:
        found, expected = per_class.state.models["global"][j], direct.state.models["global"][j]
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
        assert not torch.equal(found, per_class.start[j])


def test_blockwise_mean_by_hand(tmp_path):
    """One round: block 1 over all four (6, 7, 8, 9 windows), block 2 over clients 0 and 1."""
    run, (result,) = after_rounds(darkdistill(MIXED, DIRECT), tmp_path, rounds=1)
    sums = result.trained.reduced.sums["global"]
    assert {j: (s.members, s.weight) for j, s in sums.items()} == {
        j: ((0, 1, 2, 3), 30.0) if j in FIRST_BLOCK else ((0, 1), 13.0) for j in LAYOUT.ids
    }
    expected = apply_step(run.start, mean_step(sums, over_members, LAYOUT))
    for j in LAYOUT.ids:
        torch.testing.assert_close(run.state.models["global"][j], expected[j], rtol=1e-6, atol=1e-7)


def test_one_depth_class_is_fedavg(tmp_path):
    """Everybody deep: the strategy's average is FedAvg's, with the same local objective."""
    sketch = darkdistill(DEEP)
    plain = replace(darkdistill(DEEP, DIRECT), aggregate=partial(average, DIRECT))
    models = [after_rounds(s, tmp_path)[0].state.models["global"] for s in (sketch, plain)]
    for j in LAYOUT.ids:
        torch.testing.assert_close(models[0][j], models[1][j], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("engine", ["naive", "reuse"])
def test_a_shallow_client_runs_trains_and_sends_its_prefix_only(tmp_path, engine):
    run = bench(darkdistill(SHALLOW), tmp_path, engine=engine, build_args=TWO_LAYERS)
    calls = []
    for stage in run.executor._worker.backbone.stages:
        stage.module.register_forward_hook(lambda *_, name=stage.spec.id: calls.append(name))
    result = run.round(1)
    assert set(calls) == FIRST_BLOCK, "what lies behind its exit is never computed"
    assert all(set(r.assignment.up) == FIRST_BLOCK for r in result.trained.reduced.receipts)
    after = run.state.models["global"]
    assert {j for j in LAYOUT.ids if not torch.equal(after[j], run.start[j])} == FIRST_BLOCK


def test_a_deep_client_learns_from_all_its_exits(tmp_path):
    """Its first exit moves, and its loss is the sum of both cross-entropies."""
    run = bench(darkdistill(DEEP), tmp_path, batch_size=64, build_args=TWO_LAYERS)
    single = replace(
        run.strategy.client, objective=lambda step: torch.nn.functional.cross_entropy(step.logits, step.labels)
    )
    only_last = bench(replace(darkdistill(DEEP), client=single), tmp_path, batch_size=64, build_args=TWO_LAYERS)
    both, last = (r.round(1).trained.reduced.receipts for r in (run, only_last))
    assert all(a.work.loss > b.work.loss > 0 for a, b in zip(both, last, strict=True))
    assert all(r.sq_norm["exit.1"] > 0 for r in both) and all(r.sq_norm["exit.1"] == 0 for r in last)


@pytest.mark.parametrize("missing", ["zero_input", "zero_feature"])
def test_naive_and_reuse_engines_agree(tmp_path, missing):
    runs = [after_rounds(darkdistill(MIXED), tmp_path, 1, engine=e, missing=missing)[0] for e in ("naive", "reuse")]
    for j in LAYOUT.ids:
        found, expected = (run.state.models["global"][j] for run in runs)
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


def test_a_feature_that_is_switched_off_does_not_freeze_the_exit_below_it():
    """encoder.hr.1 feeds the zeroed feature and, where the exit is asked for, the exit: then it still learns."""
    backbone = build(exits, layers=2)
    every_step = {
        taps: {
            s.spec.id
            for s in plan_forward(backbone, {"acc"}, LAYOUT.ids, "zero_feature", True, taps, "head.1").every_step
        }
        for taps in ((), ("exit.1",))
    }
    assert every_step["exit.1",] - every_step[()] == {"encoder.hr.1", "exit.1"}
    assert not {"encoder.hr.1", "encoder.hr.2"} & every_step[()]


def test_every_exit_can_be_evaluated(tmp_path):
    run, _ = after_rounds(darkdistill(MIXED), tmp_path, lr=0.05)
    targets = [
        EvalTarget(label="deep"),
        EvalTarget(label="early", output="exit.1"),
        EvalTarget(label="x", output="head.1"),
    ]
    found = run.executor.evaluate(run.state.models, targets, {}, "test")
    assert set(found) == {f"{t.label}{m}" for t in targets for m in ("", "|acc", "|hr")}
    assert torch.equal(found["deep"], found["x"]) and not torch.equal(found["deep"], found["early"])
    assert all(int(found[t.label].sum()) == 20 for t in targets) and len(FOUR) == 4
