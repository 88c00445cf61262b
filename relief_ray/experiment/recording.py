"""Builds the records of a run and of its rounds."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import combinations, starmap

from pydantic import JsonValue
from pydantic_core import to_jsonable_python
from torch import Tensor

from relief_ray.config.experiment import ExperimentConfig
from relief_ray.core.federated import RoundContext, RoundResult
from relief_ray.core.groups import GroupId, GroupLayout
from relief_ray.core.messages import Assignment, ClientInfo, Receipt, RoundCost, StageTimes, Update
from relief_ray.devices.accounting import assumed_engine
from relief_ray.devices.calibration import NOMINAL_EPOCHS, NOMINAL_WINDOWS
from relief_ray.devices.fleet import with_windows
from relief_ray.devices.workload import num_steps
from relief_ray.experiment.setup import Setup, deadline_s, fedavg_costs
from relief_ray.plugins.load import digests
from relief_ray.plugins.parts import parts_of
from relief_ray.records.checkpoint import Binding
from relief_ray.records.identity import (
    cell_id,
    config_hash,
    layout_digest,
    machine_facts,
    other_program,
    source_digest,
    state_sha256,
    tensors_sha256,
)
from relief_ray.records.schema import (
    ClientRecord,
    FedAvgRecord,
    LeftOutFacts,
    Metrics,
    ProbeRecord,
    RoundRecord,
    RunRecord,
    TensorStat,
    Totals,
    physical_record,
    tokens,
)
from relief_ray.server.aggregation import divergence
from relief_ray.strategies import facts_of
from relief_ray.support.process import device_name
from relief_ray.support.text import now
from relief_ray.support.version import __version__

# Prices a round's work as if the local round had been another one, e.g. the paper's 1,900 windows and 5 epochs.
#
# Who trains what stays. Compute grows with windows and epochs, links do not: a speedup that was measured with short
# local rounds looks smaller than the same allocation at the paper's protocol.


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


def local_round(config: ExperimentConfig, windows: int, epochs: int) -> LocalRound:
    """Return the round of a client with so many windows, where ``training.epochs`` is ``epochs``."""
    return LocalRound(
        windows=windows, epochs=config.strategy.full_epochs(epochs), batch_size=config.training.batch_size
    )


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
    if setup.config.strategy.pooled or not charged:
        return None
    paper = local_round(setup.config, NOMINAL_WINDOWS, NOMINAL_EPOCHS)
    fleet = with_windows(setup.fleet, [NOMINAL_WINDOWS] * len(setup.fleet))
    clock = {setup.config.costs.planning_time: setup.planner.model}
    work = []
    for receipt in charged:
        windows = setup.fleet[receipt.assignment.client].num_windows
        work.append(resized(receipt, local_round(setup.config, windows, training.epochs), paper))
    (method,) = replace(setup.accountant, clocks=clock).cost(work, fleet).values()
    (fedavg,) = (
        replace(setup.fedavg, clocks=clock)
        .fedavg_reference(
            fleet,
            epochs=NOMINAL_EPOCHS,
            batch_size=paper.batch_size,
            engine=assumed_engine(setup.engine),
            participants=[c.id for c in participants],
        )
        .values()
    )
    return fedavg.round_s / method.round_s if method.round_s else None


# Notices groups that participants could have trained and none has, for five rounds: such a model is half frozen.
#
# Nothing in F1 or seconds shows it, so every method's rounds are watched. A method that leaves groups alone on purpose
# says so (``Insight.rests``); those rounds do not count.


NUM_ROUNDS = 5
# Counts rounds in which no group moved, beside those that count by group.
_ALL = ""


@dataclass(kw_only=True, slots=True)
class UntrainedGroups:
    """Counts, per group, the rounds since a participant trained it.

    A round counts for a group where at least one participant owns the sensors that it needs and none trains it.

    Attributes:
        layout: the backbone's own groups; a method may have spare modules of its own, e.g. experts.
        name: the method's name.
        missed: rounds counted by group, 0 after each round in which it was trained.
    """

    layout: GroupLayout
    name: str
    missed: dict[GroupId, int] = field(default_factory=dict)

    def add(
        self, round_: int, participants: Sequence[ClientInfo], trained: Collection[GroupId], rests: bool = False
    ) -> tuple[str, ...]:
        """Count one round; return one warning that names the groups which reached ``NUM_ROUNDS`` in it, or none.

        ``rests``: the method leaves groups untrained on purpose in this round. A group is named once, until it has
        been trained again.
        """
        self.missed.update(dict.fromkeys(trained, 0))
        if rests:
            return ()
        reach = {g.id for c in participants for g in self.layout.accessible(c.modalities)} - set(trained)
        for j in reach:
            self.missed[j] = self.missed.get(j, 0) + 1
        stale = [j for j in self.layout.ids if j in reach and self.missed[j] == NUM_ROUNDS]
        if not stale:
            return ()
        verb = "has" if len(stale) == 1 else "have"
        return (
            f"round {round_}: {', '.join(stale)} {verb} not been trained by any client for {NUM_ROUNDS} rounds, "
            f"although participants own the sensors ({self.name}); docs/allocation.md says why and what to set",
        )

    def add_updates(self, round_: int, squares: Collection[float], *, is_idle: bool = False) -> tuple[str, ...]:
        """Return one warning where a round changed nothing, unless the round before did neither, or none.

        ``squares``: ``|Delta_j|^2`` of each client and group; ``is_idle``: the method gave no participant a task.
        """
        num_before = self.missed.pop(_ALL, 0)
        if not is_idle and (not squares or any(squares)):
            return ()
        self.missed[_ALL] = num_before + 1
        why = (
            f"{self.name} gave no participant a task, so the round passes without a step"
            if is_idle
            else f"the update of every client is exactly zero in every group, nothing was trained ({self.name}); look "
            "for what switches gradients off, or sets the learning rate or the loss to 0"
        )
        return () if num_before else (f"round {round_}: {why}",)


MAX_STAT_VALUES = 64
Pairs = dict[GroupId, tuple[tuple[int, int, float], ...]]


def round_record(
    setup: Setup,
    context: RoundContext,
    result: RoundResult,
    *,
    metrics: Mapping[str, Metrics],
    wall_s: float,
    ended_unix_s: float,
    before: Mapping[str, Totals],
    deadline_s: float | None,
    speedup_paper: float | None,
    left_out: Mapping[int, LeftOutFacts],
    warnings: tuple[str, ...],
) -> RoundRecord:
    """Build a round's record.

    ``metrics``: by part of the data; ``before``: totals of the last record; ``deadline_s``: the method's ``T*``.
    """
    trained, reference = result.trained, fedavg_costs(setup, context.participants)
    # Tables with what the method tells of its next state, without those that have no rows.
    tables = setup.strategy.insight.diagnose(result.state, setup.layout)
    diagnosed = {name: dict(table) for name, table in tables.items() if table}
    lost = {"down": setup.received.underflow, "up": max((r.underflow for r in trained.worked), default=0.0)}
    if any(lost.values()):
        diagnosed["underflow"] = lost
    bills = {receipt.assignment.client: receipt for receipt in result.charged}
    stages = {receipt.assignment.client: receipt.work.measured for receipt in trained.worked}
    # Of the global model, where two clients or more trained a group.
    divergences = {j: divergence(part) for j, part in trained.reduced.sums.get("global", {}).items()}
    num_trained = [setup.layout.num_values(receipt.assignment.train) for receipt in trained.worked]
    return RoundRecord(
        round=context.round,
        phase=result.tasks[0].phase if result.tasks else "idle",
        # Measured seconds to the microsecond.
        wall_s=round(wall_s, 6),
        ended_unix_s=ended_unix_s,
        participants=tuple(t.client for t in result.tasks),
        clients=tuple(_client(receipt, bills[receipt.assignment.client]) for receipt in trained.worked),
        costs=dict(result.costs),
        totals={n: totals_after(before.get(n, Totals()), cost, result.charged) for n, cost in result.costs.items()},
        model_sha256=state_sha256(result.state),
        rejected={client: left.why for client, left in trained.rejected.items()},
        left_out=dict(left_out),
        metrics=metrics.get("test"),
        validation=metrics.get("validation"),
        d_bar=diagnosed.pop("d_bar", {}),
        divergence={j: d for j, d in divergences.items() if d is not None},
        pairwise=pairwise_cosine(trained.pairwise),
        diagnostics=diagnosed,
        deadline_s=deadline_s,
        speedup=_speedup(setup, result, reference),
        speedup_paper=speedup_paper,
        fedavg={} if len(context.participants) == len(setup.fleet) else fedavg_records(reference),
        trained_fraction=sum(num_trained) / len(num_trained) / setup.num_own_values if num_trained else 0.0,
        moved_bytes=trained.moved_bytes,
        server_s=result.server_s,
        physical={client: physical_record(m, stages.get(client)) for client, m in sorted(trained.measured.items())},
        warnings=warnings,
    )


def _client(receipt: Receipt, bill: Receipt) -> ClientRecord:
    task, work = receipt.assignment, receipt.work
    return ClientRecord(
        client=task.client,
        view=task.view,
        phase=task.phase,
        epochs=work.epochs,
        trained=tokens(task.train),
        uploaded=tokens(task.up),
        bytes_down=bill.bytes_down,
        bytes_up=bill.bytes_up,
        num_windows=work.num_windows,
        num_steps=work.num_steps,
        engine=work.engine,
        loss=work.loss,
        measured_stages=StageTimes(**{stage: round(s, 6) for stage, s in asdict(work.measured).items()}),
        args=dict(task.args),
        sq_norm=dict(receipt.sq_norm),
        stats={name: _stat(value) for name, value in receipt.stats.items()},
        taps=tuple(sorted(task.taps)),
        output=task.output,
        extra_flops=work.extra_flops,
        omit_absent=task.omit_absent,
        probes=tuple(starmap(_probe, receipt.probes)),
    )


def _probe(trial: Assignment, num_windows: int) -> ProbeRecord:
    return ProbeRecord(
        trained=tokens(trial.train),
        num_windows=num_windows,
        step_flops=trial.step_flops,
        taps=tuple(sorted(trial.taps)),
        output=trial.output,
        omit_absent=trial.omit_absent,
    )


def _stat(value: Tensor) -> TensorStat:
    flat = value.detach().cpu().double().reshape(-1)
    return TensorStat(
        shape=tuple(value.shape),
        mean=float(flat.mean()) if len(flat) else 0.0,
        sha256=tensors_sha256({"": value}),
        values=tuple(flat.tolist()) if len(flat) <= MAX_STAT_VALUES else (),
    )


def totals_after(before: Totals, cost: RoundCost, receipts: tuple[Receipt, ...]) -> Totals:
    """Return the sums with one more round."""
    return Totals(
        time_s=before.time_s + cost.round_s,
        energy_j=before.energy_j + cost.energy_j,
        bytes_up=before.bytes_up + sum(r.bytes_up for r in receipts),
        bytes_down=before.bytes_down + sum(r.bytes_down for r in receipts),
    )


def pairwise_cosine(updates: Sequence[Update]) -> Pairs:
    """Cosine of every two clients' updates of a fusion block that both uploaded (Fig. 2): (client, client, cosine).

    It is 0 where one of the updates is zero.
    """
    cosines: dict[GroupId, list[tuple[int, int, float]]] = {}
    for a, b in combinations(updates, 2):
        for j in a.delta.keys() & b.delta.keys():
            x, y = a.delta[j].double(), b.delta[j].double()
            scale = float(x.norm() * y.norm())
            cosine = float(x.dot(y)) / scale if scale > 0.0 else 0.0
            cosines.setdefault(j, []).append((a.receipt.assignment.client, b.receipt.assignment.client, cosine))
    return {j: tuple(rows) for j, rows in sorted(cosines.items())}


def _speedup(setup: Setup, result: RoundResult, reference: Mapping[str, RoundCost]) -> float | None:
    """Seconds of FedAvg's round over this round's, by the planning clock.

    None for pooled data, and where no client trained.
    """
    round_s, fedavg_s = (costs[setup.config.costs.planning_time].round_s for costs in (result.costs, reference))
    return None if setup.config.strategy.pooled or not round_s else fedavg_s / round_s


def fedavg_records(reference: Mapping[str, RoundCost]) -> dict[str, FedAvgRecord]:
    """Convert FedAvg's costs by time model, without its clients."""
    return {name: FedAvgRecord.model_validate(cost, from_attributes=True) for name, cost in reference.items()}


def run_record(setup: Setup, parent: str | None = None) -> RunRecord:
    """Build the record of a run that has not begun its first round; ``parent``: the grid it is a cell of."""
    config, identity = setup.config, setup.config.identity()
    reference = fedavg_records(setup.reference)
    return RunRecord(
        cell=cell_id(identity, setup.data.digest),
        name=config.name,
        strategy=config.label(),
        method=facts_of(config.strategy, config.label()),
        created=now(),
        groups=setup.layout.ids,
        devices={name: kind.power for name, kind in setup.types.items()},
        config=config.model_dump(mode="json"),
        config_hash=config_hash(identity),
        data_digest=setup.data.digest,
        data_origin=setup.data.origin,
        data_folder=setup.data_folder,
        data_title=setup.data.spec.title,
        code_version=__version__,
        source_digest=source_digest(),
        own_sources=digests(config.modules()),
        own_parts=parts_of(config.modules()),
        machine=machine_facts().model_copy(update={"device": device_name(setup.job.trainer.device)}),
        engine=setup.engine,
        planning_model=config.costs.planning_time,
        coverage=to_jsonable_python(setup.data.coverage),
        fleet=to_jsonable_python({key: getattr(setup.fleet, key) for key in ("modalities", "types", "clients")}),
        budget=to_jsonable_python({"deadline_s": deadline_s(setup), "fedavg_reference": reference}),
        calibration=calibration_of(setup),
        backbone=dict(setup.job.frozen),
        warnings=setup.warnings,
        data_warnings=setup.data_warnings,
        parent=parent,
    )


def binding_of(setup: Setup, run: RunRecord) -> Binding:
    """Return the identities that a checkpoint of ``run`` is bound to.

    A run that another program goes on with (``--other-code``) stays under the hash that it was begun with (ADR 22).
    """
    return Binding(
        config_hash=config_hash(setup.config.identity()) if other_program(run) is None else run.config_hash,
        layout_digest=layout_digest(setup.layout),
        engine=setup.engine,
    )


def calibration_of(setup: Setup) -> dict[str, JsonValue]:
    """The parameters of every clock, a device profile in full, and whether they were fitted or given."""
    return {
        "origin": "given" if setup.config.costs.utilisation else "FITTED",
        "clocks": {name: clock.model_dump(mode="json") for name, clock in setup.accountant.clocks.items()},
    }
