"""Runs that go on without a client, for tests of who says so: updates spoiled in four ways, no answer, a lost node."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from relief_ray.core.client import ClientContext
from relief_ray.core.messages import Assignment, ClientState, Trained, Update
from relief_ray.experiment.experiment import Experiment
from relief_ray.experiment.lifecycle import create
from relief_ray.records.run_folder import read_rounds
from relief_ray.records.schema import RoundRecord
from relief_ray.support.errors import Cause, LeftOut
from relief_ray.training.executor import SerialExecutor
from relief_ray.training.job import Job
from tests.conformance.cases import config_of
from tests.own import METHOD

Spoil = Callable[[Tensor], Tensor]
After = Callable[[ClientContext, Update], Update]

# The method of ``tests.own``, with a client 2 that sends 1e30.
SENDS_1E30 = """
from dataclasses import replace

from relief_ray.core.client import ClientProgram


def wrong(context, update):
    if context.info.id != 2:
        return update
    return replace(update, delta={j: d * 0 + 1e30 for j, d in update.delta.items()})

""" + METHOD.replace("reduction=reduction,", "reduction=reduction, client=ClientProgram(after=wrong),")
assert "after=wrong" in SENDS_1E30


def huge(delta: Tensor) -> Tensor:
    wrong = delta.clone()
    wrong[0] = 1e30
    return wrong


@dataclass(frozen=True, kw_only=True)
class Reason:
    """Why a client is left out; ``rule`` is in what is said of it. Without ``spoil`` nothing comes back from it."""

    cause: Cause
    rule: str
    spoil: Spoil | None = None


REASONS = {
    "norm": Reason(cause="update", rule="norm rule: its update has norm 3.32e+30", spoil=huge),
    "nan": Reason(cause="update", rule="is not finite", spoil=lambda d: d * float("nan")),
    "shape": Reason(cause="update", rule="torch.float32 (", spoil=lambda d: torch.cat([d, d])),
    "dtype": Reason(cause="update", rule="torch.float64 (", spoil=lambda d: d.double()),
    "timeout": Reason(cause="timeout", rule="within 12 s, three times"),
    "lost": Reason(cause="lost", rule="node 3f has died"),
}


def spoiled(spoil: Spoil, client: int = 3, from_round: int = 2) -> After:
    """A client whose update is spoiled from one round on."""

    def after(context: ClientContext, update: Update) -> Update:
        if context.info.id != client or context.round < from_round:
            return update
        return replace(update, delta={j: spoil(d) for j, d in update.delta.items()})

    return after


class Absent:
    """Runs a job without one client from one round on; ``left``: said of it there."""

    def __init__(self, job: Job, client: int = 3, from_round: int = 2, left: LeftOut | None = None) -> None:
        self._serial, self._client, self._from, self._left = SerialExecutor(job), client, from_round, left
        self.evaluate = self._serial.evaluate

    def train(
        self, round_: int, models: Mapping[str, Mapping[str, Tensor]], tasks: Sequence[Assignment],
        states: Mapping[int, ClientState],
    ) -> Trained:  # fmt: skip
        kept = [t for t in tasks if round_ < self._from or t.client != self._client]
        trained = self._serial.train(round_, models, kept, states)
        if self._left is None or len(kept) == len(tasks):
            return trained
        return replace(trained, rejected={**trained.rejected, self._client: self._left})

    def close(self) -> None:
        self._serial.close()


def run(
    path: Path,
    after: After | None = None,
    case: str = "fedavg",
    make: Callable[[Job], SerialExecutor | Absent] = SerialExecutor,
    **changes: object,
) -> Sequence[RoundRecord]:
    """The three rounds of a run; ``after`` changes clients' updates, ``make`` builds what trains."""
    setup, folder = create(config_of(case, rounds=3, **changes), path)
    if after is not None:
        setup = replace(setup, job=replace(setup.job, program=replace(setup.job.program, after=after)))
    with folder:
        Experiment(setup=setup, folder=folder, executor=make(setup.job)).run()
    return read_rounds(path)


def run_without(path: Path, reason: Reason, **changes: object) -> Sequence[RoundRecord]:
    """A run whose client 3 is left out of rounds 2 and 3."""
    changes = {"runtime": {"quorum": 0.8}, **changes}
    if reason.spoil is not None:
        return run(path, spoiled(reason.spoil), **changes)
    return run(path, make=partial(Absent, left=LeftOut(cause=reason.cause, why=reason.rule)), **changes)
