"""Tests which stage is computed when, counted on the real modules by hooks, not read off the plan."""

from collections import Counter

import pytest
import torch

from relief_ray.core.stages import RAW
from relief_ray.models.backbone import zero_input
from relief_ray.training.forward_plan import BatchBuffers, compute_sources, plan_forward, run_stages
from tests.training.scenario import NUM_WINDOWS, SHAPE, TYPE_B, Scenario, build, windows

EVERYTHING = build().layout.ids
STEPS, EPOCHS = 3, 4


@pytest.fixture
def calls():
    """Counts (stage, rows) of every forward call while a scenario trains."""

    def count(engine, missing, groups, present=TYPE_B):
        scenario = Scenario(engine, missing)
        seen = count_rows(scenario.backbone)
        scenario.train(groups, epochs=EPOCHS, present=present)
        return seen

    return count


def rows(seen, stage):
    return {length: times for (name, length), times in seen.items() if name == stage}


def test_naive_runs_everything_in_every_step(calls):
    seen = calls("naive", "zero_input", ("head.1",))
    for stage in build().stages:
        assert rows(seen, stage.spec.id) == {16: 2 * EPOCHS, 13: EPOCHS}, stage.spec.id


@pytest.mark.parametrize("engine", ["reuse", "gemm", "fused"])
def test_frozen_prefix_runs_once_per_window_and_round(calls, engine):
    seen = calls(engine, "zero_input", ("fusion.A.acc", "fusion.B", "head.1"))
    assert rows(seen, "encoder.acc.1") == rows(seen, "encoder.acc.2") == {NUM_WINDOWS: 1}
    assert rows(seen, "fusion.A.gyro") == {NUM_WINDOWS: 1}, "a frozen column block is a constant per window"
    assert rows(seen, "fusion.A.acc") == rows(seen, "head") == {16: 2 * EPOCHS, 13: EPOCHS}


@pytest.mark.parametrize("engine", ["reuse", "gemm", "fused"])
def test_absent_modality_is_one_window(calls, engine):
    seen = calls(engine, "zero_input", None)
    for stage in ("encoder.hr.1", "encoder.hr.2", "fusion.A.hr"):
        assert rows(seen, stage) == {1: STEPS * EPOCHS}, "it learns, so it runs in every step, on one row"
    frozen = calls(engine, "zero_input", ("head.1",))
    assert rows(frozen, "encoder.hr.1") == rows(frozen, "fusion.A.hr") == {1: 1}


def count_rows(backbone):
    seen = Counter()
    for stage in backbone.stages:
        stage.module.register_forward_hook(lambda m, x, y, name=stage.spec.id: seen.update([(name, len(x[0]))]))
    for whole in backbone.joined:  # counts for all stages that it stands for: each has one group of its name
        whole.module.register_forward_hook(
            lambda m, x, y, of=whole.spec.groups: seen.update((g, len(x[0])) for g in of)
        )
    return seen


def test_what_no_sensor_reaches_is_computed_once_however_many_chunks_there_are():
    """300 windows: a whole chunk of 256 and a rest."""
    raw, _ = windows(300)
    backbone = build()
    plan = plan_forward(backbone, TYPE_B, ("head.1",), "zero_input", reuse=True)
    seen = count_rows(backbone)
    sources = compute_sources(backbone, plan, {m: raw[m] for m in TYPE_B}, 300)
    assert rows(seen, "encoder.acc.1") == {256: 1, 44: 1}
    assert rows(seen, "encoder.hr.1") == rows(seen, "fusion.A.hr") == {1: 1}
    assert len(sources["fusion"]) == 300


@pytest.mark.parametrize("missing", ["zero_input", "zero_feature"])
def test_what_no_sensor_reaches_is_the_same_for_any_chunk(missing):
    raw, _ = windows(300)
    shown, constants = {m: raw[m] for m in TYPE_B}, []
    for chunk in (None, 64):
        backbone = build()
        backbone.chunk, seen = chunk, count_rows(backbone)
        plan = plan_forward(backbone, TYPE_B, ("fusion.B",), missing, reuse=True)
        sources = compute_sources(backbone, plan, shown, 300)
        assert set(rows(seen, "encoder.hr.1").values()) == {1}
        constants.append({name: x for name, x in sources.items() if len(x) == 1})
    assert constants[0].keys() == constants[1].keys() >= {"fusion.A.hr"}
    assert all(torch.equal(x, constants[1][name]) for name, x in constants[0].items())


@pytest.mark.parametrize("engine", ["reuse", "gemm", "fused"])
def test_zero_feature_never_runs_absent_encoders_in_a_step(calls, engine):
    seen = calls(engine, "zero_feature", None)
    assert rows(seen, "encoder.hr.1") == {1: 1}, "once, for the feature's shape"
    assert rows(seen, "fusion.A.hr") == {1: STEPS * EPOCHS}


def test_training_the_first_encoder_layer_makes_all_above_it_live():
    plan = plan_forward(build(), TYPE_B, ["encoder.acc.1"], "zero_input", reuse=True)
    live = [s.spec.id for s in plan.every_step]
    assert live == ["encoder.acc.1", "encoder.acc.2", "fusion.A.acc", "fusion", "head"]
    assert plan.sources == ("fusion.A.gyro", "fusion.A.hr", RAW + "acc")


def test_training_nothing_leaves_nothing_to_do_in_a_step():
    plan = plan_forward(build(), TYPE_B, [], "zero_input", reuse=True)
    assert plan.every_step == () and plan.sources == ("head",)


def test_taps_below_the_live_part_become_sources():
    plan = plan_forward(build(), TYPE_B, ["head.1"], "zero_input", True, taps=["encoder.gyro.2"])
    assert plan.sources == ("encoder.gyro.2", "fusion")


@pytest.mark.parametrize("missing", ["zero_input", "zero_feature"])
@pytest.mark.parametrize(
    "trained", [(), ("head.1",), ("fusion.A.hr",), ("encoder.acc.2",), ("encoder.hr.1",), EVERYTHING]
)
@pytest.mark.parametrize("present", [("acc",), ("acc", "gyro"), ("acc", "gyro", "hr"), ("hr",)])
def test_logits_do_not_depend_on_what_is_reused(missing, trained, present):
    """300 windows: two chunks and a rest."""
    raw, _ = windows(300)
    backbone, inputs = build(), {m: raw[m] for m in present}
    logits = {}
    for reuse in (False, True):
        plan = plan_forward(backbone, present, trained, missing, reuse)
        sources = compute_sources(backbone, plan, inputs, 300)
        index = torch.tensor([299, 0, 256, 255, 7])
        with torch.no_grad():
            values = run_stages(plan.every_step, BatchBuffers(sources, 300, 5).take(index), plan, 5)
        logits[reuse] = values["head"].expand(5, SHAPE.num_classes)
    assert torch.allclose(logits[True], logits[False], rtol=0, atol=2e-6)


def test_zero_window_is_prepared_like_any_other():
    for engine in ("naive", "gemm"):
        backbone = build(engine)
        raw, _ = windows(1)
        zero = zero_input(backbone, "gyro")
        assert zero.shape == backbone.prepare("gyro", raw["gyro"]).shape and torch.count_nonzero(zero) == 0


def test_batches_are_gathered_into_kept_buffers():
    x, one = torch.arange(10.0).view(5, 2), torch.tensor([[9.0, 9.0]])
    batches = BatchBuffers({"x": x, "absent": one}, num_windows=5, batch_size=3)
    first = batches.take(torch.tensor([4, 0, 2]))
    assert torch.equal(first["x"], x[[4, 0, 2]]) and first["absent"] is one
    address = first["x"].data_ptr()
    last = batches.take(torch.tensor([1, 3]))
    assert torch.equal(last["x"], x[[1, 3]]) and last["x"].data_ptr() == address


def test_a_batch_larger_than_the_client_is_no_problem():
    x = torch.arange(4.0).view(2, 2)
    assert torch.equal(BatchBuffers({"x": x}, 2, 32).take(torch.tensor([1, 0]))["x"], x[[1, 0]])
