"""Prices a round's work as if the local round had been another one, e.g. the paper's 1,900 windows and 5 epochs.

Who trains what stays. Compute grows with windows and epochs, links do not: a speedup that was measured with short
local rounds looks smaller than the same allocation at the paper's protocol.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from relief_ray.core.messages import ClientInfo, Receipt
from relief_ray.devices.calibration import NOMINAL_EPOCHS, NOMINAL_WINDOWS
from relief_ray.devices.fleet import with_windows
from relief_ray.devices.planner import assumed_engine
from relief_ray.devices.workload import num_steps
from relief_ray.experiment.setup import Setup


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalRound:
    """Size of a client's round.

    Attributes:
        windows: training windows of the client.
        epochs: local epochs.
        batch_size: windows of a step.
    """

    windows: int
    epochs: int
    batch_size: int


def resized(receipt: Receipt, old: LocalRound, new: LocalRound) -> Receipt:
    """Scale a receipt's windows, epochs, steps and extra FLOPs from one local round to another.

    A method that used half of a client's windows or a third of the epochs still does; bytes and probes stay.
    """
    work = receipt.work
    windows = round(work.num_windows * new.windows / old.windows)
    epochs = round(work.epochs * new.epochs / old.epochs)
    if (windows, epochs, new.batch_size) == (work.num_windows, work.epochs, old.batch_size):
        return receipt
    usual = num_steps(work.num_windows, work.epochs, old.batch_size)
    steps = num_steps(windows, epochs, new.batch_size)
    steps = round(steps * work.num_steps / usual) if usual else steps
    extra_flops = work.extra_flops * steps / work.num_steps if work.num_steps else work.extra_flops
    changed = replace(work, num_windows=windows, epochs=epochs, num_steps=steps, extra_flops=extra_flops)
    return replace(receipt, work=changed, assignment=replace(receipt.assignment, epochs=epochs))


def speedup_at_paper(setup: Setup, charged: Sequence[Receipt], participants: Sequence[ClientInfo]) -> float | None:
    """Return FedAvg's round over this one, both at the paper's protocol, by the planning clock.

    None for pooled data, and where no client trained.
    """
    training = setup.config.training
    if setup.strategy.pooled or not charged:
        return None
    paper = LocalRound(windows=NOMINAL_WINDOWS, epochs=NOMINAL_EPOCHS, batch_size=training.batch_size)
    fleet = with_windows(setup.fleet, [NOMINAL_WINDOWS] * len(setup.fleet))
    clock = {setup.config.costs.planning_time: setup.planner.model}
    work = []
    for receipt in charged:
        windows = setup.fleet[receipt.assignment.client].num_windows
        old = LocalRound(windows=windows, epochs=training.epochs, batch_size=training.batch_size)
        work.append(resized(receipt, old, paper))
    (method,) = replace(setup.accountant, clocks=clock).cost(work, fleet).values()
    (fedavg,) = (
        replace(setup.fedavg, clocks=clock)
        .fedavg_reference(
            fleet,
            epochs=paper.epochs,
            batch_size=paper.batch_size,
            engine=assumed_engine(setup.engine),
            participants=[c.id for c in participants],
        )
        .values()
    )
    return fedavg.round_s / method.round_s if method.round_s else None
