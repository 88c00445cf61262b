"""The local trainer against loops written out by hand, and what DESIGN promises about it."""

import pytest
import torch
from torch import nn

from relief_ray.federated import ClientProgram, task_loss
from relief_ray.training.inputs import ClientInputs
from tests.training.scenario import (
    ABSENT,
    ASSIGNMENTS,
    LR,
    NUM_WINDOWS,
    SHAPE,
    TINY,
    TYPE_B,
    Scenario,
    batches,
    build,
    distance,
    precision,
    windows,
)

ENGINES = ("naive", "reuse", "gemm")
MISSING = ("zero_input", "zero_feature")
everywhere = pytest.mark.parametrize("engine", ENGINES)
in_both_modes = pytest.mark.parametrize("missing", MISSING)
for_every_assignment = pytest.mark.parametrize("groups", ASSIGNMENTS.values(), ids=list(ASSIGNMENTS))


# The oracle ------------------------------------------------------------------------------------------------------


def plain_loop(forward, parameters, raw, labels, epochs):
    """The loop one would write by hand: torch's Adam, cross-entropy, zeros for the sensor that is not there."""
    optimizer = torch.optim.Adam(parameters, lr=LR, foreach=False)
    for index in batches(len(labels), epochs):
        optimizer.zero_grad()
        seen = {m: x[index] if m in TYPE_B else torch.zeros_like(x[index]) for m, x in raw.items()}
        nn.functional.cross_entropy(forward(seen), labels[index]).backward()
        optimizer.step()


@for_every_assignment
def test_naive_is_the_plain_loop_to_the_bit(groups):
    scenario, oracle = Scenario("naive"), build()
    update = scenario.train(groups, epochs=2)
    before = oracle.params()
    chosen = oracle.layout.ids if groups is None else groups
    for j, parameters in oracle.parameters.items():
        for p in parameters:
            p.requires_grad_(j in chosen)
    plain_loop(oracle.forward, [p for j in chosen for p in oracle.parameters[j]], *windows(), epochs=2)
    after = oracle.params()
    for j in chosen:
        assert torch.equal(update.delta[j], after[j] - before[j]), j


class Plain(nn.Module):
    """The same function out of one fusion layer and torch's own modules, with features switched off where asked."""

    def __init__(self, params, layout, missing):
        super().__init__()
        self.missing = missing
        self.encoders = nn.ModuleDict()
        for modality, channels in SHAPE.channels:
            first, second = nn.Conv1d(channels, TINY.conv1, 5, 2, 2), nn.Conv1d(TINY.conv1, TINY.conv2, 5, 2, 2)
            for layer, conv in ((1, first), (2, second)):
                tensors = layout.unflatten(f"encoder.{modality}.{layer}", params[f"encoder.{modality}.{layer}"])
                conv.load_state_dict(tensors)
            pool = nn.AdaptiveAvgPool1d(TINY.steps)
            self.encoders[modality] = nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), pool, nn.Flatten())
        columns = layout.matrix("fusion_a", params)
        self.fusion = nn.Linear(columns.shape[1], columns.shape[0])
        self.fusion.load_state_dict({"weight": columns, "bias": params["fusion.B"]})
        self.head = nn.Linear(TINY.fusion, SHAPE.num_classes)
        self.head.load_state_dict(layout.unflatten("head.1", params["head.1"]))

    def forward(self, raw):
        features = {m: encoder(raw[m]) for m, encoder in self.encoders.items()}
        if self.missing == "zero_feature":
            features = {m: h if m in TYPE_B else torch.zeros_like(h) for m, h in features.items()}
        return self.head(torch.relu(self.fusion(torch.cat(list(features.values()), 1))))


@everywhere
@in_both_modes
def test_every_engine_equals_an_independent_module_in_float64(engine, missing):
    scenario = Scenario(engine, missing, torch.float64)
    update = scenario.train(epochs=3)
    layout = scenario.backbone.layout
    raw, labels = windows()
    with precision(torch.float64):
        oracle = Plain(scenario.start, layout, missing)
        before = {name: p.detach().clone() for name, p in oracle.named_parameters()}
        plain_loop(oracle, list(oracle.parameters()), {m: x.double() for m, x in raw.items()}, labels, epochs=3)
    moved = {name: p.detach() - before[name] for name, p in oracle.named_parameters()}
    assert torch.allclose(layout.matrix("fusion_a", update.delta), moved["fusion.weight"], rtol=0, atol=1e-9)
    assert torch.allclose(update.delta["fusion.B"], moved["fusion.bias"], rtol=0, atol=1e-9)
    gyro = torch.cat([moved["encoders.gyro.2.weight"].flatten(), moved["encoders.gyro.2.bias"]])
    assert torch.allclose(update.delta["encoder.gyro.2"], gyro, rtol=0, atol=1e-9)
    absent = torch.cat([moved["encoders.hr.0.weight"].flatten(), moved["encoders.hr.0.bias"]])
    assert torch.allclose(update.delta["encoder.hr.1"], absent, rtol=0, atol=1e-9)


# Engines ---------------------------------------------------------------------------------------------------------


@for_every_assignment
@in_both_modes
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-11), (torch.float32, 1e-5)])
def test_reuse_changes_nothing(groups, missing, dtype, tolerance):
    """In float64 to rounding: what is reused is exact. In float32 an update may part further (4.5e-5 has been seen on
    long windows), as far as the plain loop itself parts from its float64 self: a ReLU on its kink falls on the other
    side, or Adam divides a gradient that is all rounding by its own size. On these data neither happens.
    """
    naive, reuse = (Scenario(engine, missing, dtype).train(groups, epochs=5) for engine in ("naive", "reuse"))
    if all(not d.any() for d in naive.delta.values()):
        assert all(not d.any() for d in reuse.delta.values())
    else:
        assert distance(reuse, naive) <= tolerance


@for_every_assignment
@in_both_modes
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 2e-3)])
def test_matrix_products_change_nothing_after_an_epoch(groups, missing, dtype, tolerance):
    naive, gemm = (Scenario(engine, missing, dtype).train(groups) for engine in ("naive", "gemm"))
    assert distance(gemm, naive) <= tolerance


@pytest.mark.slow
def test_engines_differ_in_float32_by_no_more_than_float32_from_float64():
    """Five epochs with many seeds: reuse is never much further from the truth than the plain loop."""
    for seed in range(20):
        raw, labels = windows(97, seed)

        def updates(dtype, raw=raw, labels=labels):
            results = []
            for engine in ("naive", "reuse"):
                scenario = Scenario(engine, "zero_input", dtype)
                inputs = {m: scenario.backbone.prepare(m, raw[m].to(dtype)) for m in TYPE_B}
                results.append(scenario.train(epochs=5, inputs=ClientInputs(inputs=inputs, labels=labels)))
            return results

        (naive, reuse), (truth, exact) = updates(torch.float32), updates(torch.float64)
        assert distance(exact, truth) <= 1e-11
        assert distance(reuse, truth) <= 10.0 * distance(naive, truth) + 1e-5


@everywhere
@in_both_modes
@for_every_assignment
def test_frozen_groups_keep_their_bits(engine, missing, groups):
    scenario = Scenario(engine, missing)
    scenario.train(groups, epochs=2)
    chosen = scenario.backbone.layout.ids if groups is None else groups
    for j, theta in scenario.backbone.params().items():
        if j not in chosen:
            assert torch.equal(theta, scenario.start[j]), j


@everywhere
def test_zero_feature_leaves_absent_groups_exactly_where_they_were(engine):
    delta = Scenario(engine, "zero_feature").train(epochs=3).delta
    assert all(torch.count_nonzero(delta[j]) == 0 for j in ABSENT)
    assert all(torch.count_nonzero(d) > 0 for j, d in delta.items() if j not in ABSENT)


@everywhere
def test_zero_input_trains_absent_groups_on_a_constant(engine):
    """Eq. (2)'s reading: the encoder still emits a constant, so its blocks learn a bias (Lemma 1's noise)."""
    scenario = Scenario(engine, "zero_input")
    delta = scenario.train().delta
    assert all(torch.count_nonzero(delta[j]) > 0 for j in ABSENT)
    kernels = scenario.backbone.layout.unflatten("encoder.hr.1", delta["encoder.hr.1"])
    assert torch.count_nonzero(kernels["weight"]) == 0 and torch.count_nonzero(kernels["bias"]) > 0


# Batches and rounds ----------------------------------------------------------------------------------------------


def watching(seen):
    """A program whose objective notes the labels of each batch."""

    def objective(step):
        seen.append(step.labels.clone())
        return task_loss(step)

    return ClientProgram(objective=objective)


def order_of(scenario, groups=None, **where):
    seen = []
    scenario.train(groups, epochs=2, program=watching(seen), **where)
    return torch.cat(seen)


def test_order_depends_on_seed_round_and_client_only():
    expected = order_of(Scenario())
    assert torch.equal(expected, order_of(Scenario("gemm", "zero_feature"), ("head.1",)))
    assert torch.equal(expected, windows()[1][torch.cat(batches(NUM_WINDOWS, 2))])
    for other in ({"seed": 1}, {"round_": 2}, {"id_": 3}):
        assert not torch.equal(expected, order_of(Scenario(), **other)), other


@everywhere
def test_last_short_batch_is_kept(engine):
    seen = []
    update = Scenario(engine).train(epochs=2, program=watching(seen))
    assert [len(labels) for labels in seen] == [16, 16, 13] * 2
    assert update.receipt.work.num_steps == 6 and update.receipt.work.num_windows == NUM_WINDOWS


def test_loss_is_the_mean_over_windows_of_the_last_epoch():
    """With a step too small to matter every batch is scored by the initial model, the short one by its size."""
    scenario = Scenario(lr=1e-12)
    raw, labels = windows()
    seen = {m: x if m in TYPE_B else torch.zeros_like(x) for m, x in raw.items()}
    expected = nn.functional.cross_entropy(build().forward(seen), labels).detach()
    assert scenario.train(epochs=2).receipt.work.loss == pytest.approx(float(expected), rel=1e-5)


@everywhere
def test_every_round_starts_with_fresh_moments(engine):
    used, fresh = Scenario(engine), Scenario(engine)
    used.train(epochs=2)
    used.train(("head.1", "fusion.B"), round_=9, id_=1)
    again, first = used.train(round_=3), fresh.train(round_=3)
    assert all(torch.equal(again.delta[j], d) for j, d in first.delta.items())


@everywhere
def test_one_window_and_one_class_train(engine):
    scenario = Scenario(engine)
    whole = scenario.inputs()
    single = ClientInputs(inputs={m: x[:1] for m, x in whole.inputs.items()}, labels=whole.labels[:1])
    update = scenario.train(inputs=single)
    assert update.receipt.work.num_steps == 1
    same = scenario.train(inputs=ClientInputs(inputs=whole.inputs, labels=torch.zeros_like(whole.labels)))
    for delta in (update.delta, same.delta):
        assert all(bool(torch.isfinite(d).all()) for d in delta.values())
        assert torch.count_nonzero(delta["head.1"])


@everywhere
def test_nothing_to_train_costs_nothing_and_changes_nothing(engine):
    scenario = Scenario(engine)
    update = scenario.train((), epochs=1)
    assert update.delta == {} and update.receipt.bytes_up == 0 and update.receipt.bytes_down > 0
    assert update.receipt.work.loss > 0.0
    assert all(torch.equal(theta, scenario.start[j]) for j, theta in scenario.backbone.params().items())
