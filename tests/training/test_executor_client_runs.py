"""Tests which clients a worker trains together, and that an error names the client whose code raised."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from relief_ray.core.client import ClientProgram
from relief_ray.support.errors import ClientFailed, UserError
from relief_ray.training.executor import Worker
from relief_ray.training.stacked_step import StackedModels
from relief_ray.training.trainer import Trainer
from tests.training.scenario import build
from tests.training.test_executor import job, models, tasks_of  # noqa: F401


def stacked(job, stack=8, **changes):  # noqa: F811
    trainer = replace(job.trainer, engine="gemm", stack=stack)
    return replace(job, build=build_fast, trainer=trainer, **changes)


def build_fast():
    return build("gemm")


def impatient(step):
    """A program with a fault that shows with one client alone: the one that has five windows."""
    if len(step.labels) == 5:
        raise ZeroDivisionError("no patience")
    return functional.cross_entropy(step.logits, step.labels)


def test_blocks_of_one_client_share_their_steps(job, monkeypatch):  # noqa: F811
    monkeypatch.setattr(Trainer, "train_run", None)
    results = list(Worker(stacked(job)).train_blocks(1, models(), [[t] for t in tasks_of(job)], {}))
    assert [[r.assignment.client for r in result.receipts] for result in results] == [[0], [1], [2]]


def test_the_blocks_sums_are_those_of_clients_trained_alone(job):  # noqa: F811
    tasks = tasks_of(job)
    cut = [tasks[:2], tasks[2:]]
    alone, together = (list(Worker(stacked(job, stack)).train_blocks(1, models(), cut, {})) for stack in (1, 8))
    for one, other in zip(alone, together, strict=True):
        for j, part in one.sums["global"].items():
            assert torch.allclose(part.plain, other.sums["global"][j].plain, atol=1e-5)
            assert part.members == other.sums["global"][j].members


def test_the_client_at_fault_is_named(job):  # noqa: F811
    worker = Worker(stacked(job, program=ClientProgram(objective=impatient)))
    with pytest.raises(ClientFailed, match=r"client 2 \(2, type C\) failed.*round 4: ZeroDivisionError: no patience"):
        list(worker.train_blocks(4, models(), [tasks_of(job)], {}))


def test_a_step_that_only_fails_together_says_what_to_take(job, monkeypatch):  # noqa: F811
    def run(self, *given):
        raise RuntimeError("vmap: no rule for this layer")

    monkeypatch.setattr(StackedModels, "run", run)
    expected = (
        r"training.stack = 8: clients \[0, 1, 2\] failed.*no rule for this layer.*works alone; take training.stack=1"
    )
    with pytest.raises(UserError, match=expected):
        list(Worker(stacked(job)).train_blocks(1, models(), [tasks_of(job)], {}))
