"""Micro-batches: gradient, loss and what is observed are the whole batch's, whatever the objective is."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from relief_ray.core.client import ClientContext, ClientProgram, task_loss
from relief_ray.core.extra_modules import Connector
from relief_ray.core.messages import NO_STATE
from relief_ray.core.streams import Streams
from relief_ray.models.extra import with_connector
from relief_ray.strategies.fedprox import FedProx
from relief_ray.strategies.pilot import balance_loss, difference_loss, z_loss
from relief_ray.training.config import TrainerConfig
from relief_ray.training.inputs import ClientInputs
from relief_ray.training.local_step import ClientRun, accumulate_gradients, is_mean_over_windows, observed_rows
from relief_ray.training.trainer import Trainer
from tests.training.scenario import SHAPE, TINY, TYPE_B, client, precision, task, windows

BATCH = 16
CONNECTOR = Connector(id="connector", num_tasks=3, bottleneck=4, own_in_mix=True)
FEATURES = ("encoder.acc.2", "encoder.hr.2")


def near(step):
    """FedProx, far from where it started."""
    return FedProx(mu=0.7).client_loss(replace(step, start={j: torch.ones_like(x) for j, x in step.start.items()}))


def mixed(step):
    """Pilot's losses: products of windows and shares of them, which no mean over windows is."""
    logits = step.taps["connector.router"]
    adapters = difference_loss(step.taps["connector.task.1"], step.taps["connector.own"])
    return near(step) + balance_loss(logits) + z_loss(logits) + 10.0 * adapters


def contrast(step):
    """Windows against one another, and an absent sensor's rows, summed, against all."""
    present, absent = (step.taps[f].flatten(1) for f in FEATURES)
    return task_loss(step) + torch.logsumexp(present @ present.T, 1).mean() + (present.mean(0) * absent).square().sum()


def seen(step):
    return {"label": step.labels, "loss": functional.cross_entropy(step.logits, step.labels, reduction="none")}


PROGRAMS = {
    "cross-entropy": (ClientProgram(observe=seen), ()),
    "proximal": (ClientProgram(objective=near, observe=seen, is_mean=True), ()),
    "proximal, undeclared": (ClientProgram(objective=near, observe=seen), ()),
    "pilot": (ClientProgram(objective=mixed, observe=seen), ("connector.router", "connector.task.1", "connector.own")),
    "contrast": (ClientProgram(objective=contrast, observe=seen), FEATURES),
}


def one_batch(program, taps, most, engine="reuse", autocast="none", groups=None):
    """Gradient by group, loss and observed rows of one batch of 16, in float64 unless it is cast."""
    dtype = torch.float64 if autocast == "none" else torch.float32
    with precision(torch.float32):
        backbone = with_connector(TINY.build(SHAPE, 0, engine=engine), CONNECTOR, 0)
        raw, labels = windows(BATCH)
    for stage in backbone.stages:
        stage.module.to(dtype)
    with precision(dtype):
        generator = torch.Generator().manual_seed(1)
        start = {
            j: x + 0.1 * torch.randn(x.shape, generator=generator, dtype=torch.float32).to(dtype)
            for j, x in backbone.params().items()
        }
        config = TrainerConfig(
            lr=0.1, batch_size=BATCH, missing="zero_input", engine=engine, micro_batch=most, autocast=autocast
        )
        trainer = Trainer(backbone, config)
        context = ClientContext(
            info=client(TYPE_B), round=1, layout=backbone.layout, start=start, state=NO_STATE, streams=Streams(seed=0)
        )
        prepared = {m: backbone.prepare(m, raw[m].to(dtype)) for m in TYPE_B}
        output = CONNECTOR.output("first") if "connector.own" in taps else None
        assignment = task(backbone, groups, taps=frozenset(taps), output=output)
        data = ClientInputs(inputs=prepared, labels=labels)
        run = trainer.load(ClientRun(context=context, task=assignment, data=data, program=program))
        batches = trainer._batches(run)
        loss = accumulate_gradients(run, batches, torch.arange(BATCH).flip(0), is_observed=True)
        return run.vectors.pop_gradients(), float(loss), observed_rows(run)


@pytest.mark.parametrize("most", [1, 5, 15])
@pytest.mark.parametrize("name", PROGRAMS)
def test_gradient_is_the_whole_batch_s(name, most):
    """16 windows by 5 and by 15 are uneven; an absent sensor's encoder is trained too."""
    program, taps = PROGRAMS[name]
    whole, loss, rows = one_batch(program, taps, None)
    parts, same_loss, same_rows = one_batch(program, taps, most)
    assert loss == pytest.approx(same_loss, rel=1e-12)
    assert all(torch.allclose(rows[n], same_rows[n], rtol=1e-12, atol=0.0) for n in ("label", "loss"))
    scale = max(float(g.abs().max()) for g in whole.values())
    assert scale > 1e-3 and whole.keys() == parts.keys()
    assert max(float((parts[j] - g).abs().max()) for j, g in whole.items()) < 1e-12 * max(1.0, scale)


@pytest.mark.parametrize("engine", ["reuse", "gemm", "fused"])
@pytest.mark.parametrize("groups", [None, ("fusion.A.acc", "encoder.acc.2", "head.1")], ids=["everything", "some"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_objective_has_the_naive_engine_s_gradient(name, groups, engine):
    """An objective's sum over an absent sensor's rows is the same, however few of them were computed."""
    program, taps = PROGRAMS[name]
    expected, loss, rows = one_batch(program, taps, None, engine="naive", groups=groups)
    gradient, same_loss, same_rows = one_batch(program, taps, None, engine=engine, groups=groups)
    assert same_loss == pytest.approx(loss, rel=1e-10)
    assert all(torch.allclose(same_rows[n], rows[n], rtol=1e-10, atol=1e-12) for n in ("label", "loss"))
    assert max(float((gradient[j] - g).abs().max()) for j, g in expected.items()) < 1e-10


def test_what_the_wrong_declaration_would_give_is_something_else():
    """The second pass is there for a reason: pilot's losses of parts do not add up to the whole's."""
    program, taps = PROGRAMS["pilot"]
    whole, _, _ = one_batch(program, taps, None)
    parts, _, _ = one_batch(replace(program, is_mean=True), taps, 5)
    assert max(float((parts[j] - g).abs().max()) for j, g in whole.items()) > 1e-3


def test_only_what_is_declared_or_known_adds_up():
    assert is_mean_over_windows(ClientProgram()) and is_mean_over_windows(ClientProgram(objective=near, is_mean=True))
    assert not is_mean_over_windows(ClientProgram(objective=near))


@pytest.mark.parametrize("engine", ["reuse", "gemm"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_bfloat16_is_near_and_is_used(name, engine):
    """Objectives see float32; eight bits of mantissa leave a few per cent of a gradient."""
    program, taps = PROGRAMS[name]
    exact, loss, _ = one_batch(program, taps, 5, engine)
    cast, near_loss, rows = one_batch(program, taps, 5, engine, autocast="bf16")
    assert all(bool(g.isfinite().all()) and g.dtype == torch.float32 for g in cast.values())
    assert rows["loss"].dtype == torch.float32 and near_loss == pytest.approx(loss, rel=0.02)
    whole = sum(float(g.square().sum()) for g in exact.values()) ** 0.5
    gap = sum(float((cast[j] - g).square().sum()) for j, g in exact.items()) ** 0.5
    assert 1e-6 < gap / whole < 0.1
