"""Costs of finished runs on other hardware: recorded work and bytes at another fleet's speeds, power and links.

Nothing is trained or allocated again: each client's work stays as recorded, also where the other fleet's deadline would
have allowed more or less. F1 stays too; seconds, joules, speedups and ``T*`` are computed anew. A change of windows or
epochs alone changes no budget of RELIEF's ``fill: count``, since ``k_n`` depends on ratios of compute times only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isclose
from pathlib import Path

from pydantic import ValidationError
from pydantic_core import to_jsonable_python

from relief_ray.config.experiment import ExperimentConfig, recorded_config, settings_of
from relief_ray.core.messages import Assignment, ClientId, Fleet, Receipt, RoundCost, StageTimes, Work
from relief_ray.core.stages import Engine
from relief_ray.devices.fleet import DeviceType, with_windows
from relief_ray.devices.time import TimeModel, restore_clock
from relief_ray.experiment.lifecycle import stored_engine
from relief_ray.experiment.recording import LocalRound, fedavg_records, local_round, resized, totals_after
from relief_ray.experiment.setup import Model, configured_fleet, model_of, run_clocks
from relief_ray.records.facts import data_facts
from relief_ray.records.run_folder import RUN_FILE, read_run
from relief_ray.records.schema import ClientRecord, ProbeRecord, RoundRecord, RunRecord, Totals, selection
from relief_ray.report.runs import Loaded
from relief_ray.studies.spec import Values
from relief_ray.support.errors import Setting, UserError


def price_fleet(
    config: ExperimentConfig,
    windows: Sequence[int],
    engine: Engine = "naive",
    clocks: dict[str, TimeModel] | None = None,
) -> Model:
    """Build the fleet of a configuration with ``windows`` for each client; ``clocks``: other than the present ones.

    Shapes come from the dataset's specification, so nothing is read, trained or downloaded.

    Raises:
        UserError: fleet or costs are wrong; place and fix are named.
    """
    fleet, types = configured_fleet(config, len(windows))
    return model_of(config, config.data.spec(), with_windows(fleet, windows), types, engine, clocks)


_TOLERANCE = 1e-9
SAID = (
    "what if: seconds, joules and speedups were computed for another fleet or another local round from the recorded "
    "work; the allocation is the one that was planned for the recorded fleet and local round, F1 is as trained"
)


def what_if(
    loaded: Loaded,
    fleet: Values,
    profile: str | None = None,
    *,
    windows: int | None = None,
    epochs: int | None = None,
) -> Loaded:
    """The run with the costs that it would have had; ``fleet``: keys of the fleet's configuration that differ.

    ``profile``: a device profile's file, for the clock ``measured``; ``windows`` and ``epochs`` of a client's local
    round, e.g. 1,900 and 5 of the paper's protocol: who trains what stays, compute grows and links do not.

    Raises:
        UserError: the run is pooled or its work is not fully recorded; the other fleet has other clients or sensors.
    """
    run, where = loaded.run, loaded.where
    config = recorded_config(run, where)
    if config.strategy.pooled:
        raise UserError(f"{where}: pooled data have no fleet; name a federated run")
    given = {"costs.profile": profile, "training.epochs": epochs}
    # Key by key: a type keeps the figures that are not named.
    others = [*settings_of(fleet, "fleet."), *(Setting(k, v) for k, v in given.items() if v is not None)]
    changed = recorded_config(run, f"{where}, other fleet", others)
    profiled = {} if profile is None else {n: c for n, c in run_clocks(changed).items() if c.needs_profile}
    before, after = _hardware(loaded, config, {}), _hardware(loaded, changed, profiled, windows)
    _refuse_other_sensors(before.fleet, after.fleet)
    _refuse_other_chances(before.types, after.types)
    for record in loaded.rounds[:2]:
        _refuse_unexplained(loaded, record, before)
    return _recomputed(loaded, before, after)


def recorded_model(folder: Path) -> tuple[RunRecord, Model]:
    """Return the record of a run, and its method, model, fleet and costs as it was started; needs none of its data.

    It only reads, so the run may be under way.

    Raises:
        UserError: no run is there, or its record lacks something.
    """
    run = read_run(folder)
    config = recorded_config(run, str(folder / RUN_FILE))
    loaded = Loaded(where=str(folder), run=run, rounds=())
    model = _hardware(loaded, config, {})
    # Pooled data are those of one client with all sensors.
    return run, replace(model, fleet=loaded.known_fleet) if config.strategy.pooled else model


def _hardware(
    loaded: Loaded, config: ExperimentConfig, clocks: dict[str, TimeModel], windows: int | None = None
) -> Model:
    """The fleet of a configuration with the run's recorded clocks, and these ``clocks``; needs no data.

    ``windows``: training windows of each client; None: as recorded.

    Raises:
        UserError: the record has no clocks.
    """
    known = _recorded_clocks(loaded) | clocks
    chosen = [client.windows if windows is None else windows for client in data_facts(loaded.run).clients]
    return price_fleet(config, chosen, stored_engine(loaded.run), known)


def _recorded_clocks(loaded: Loaded) -> dict[str, TimeModel]:
    """The clocks with the parameters that the run recorded, whatever this version ships.

    Raises:
        UserError: it recorded none, or a clock that is unknown here.
    """
    table = loaded.run.calibration.get("clocks")
    if not isinstance(table, dict) or loaded.run.planning_model not in table:
        raise UserError(f"{loaded.where}: its record names no clocks; run it again")
    try:
        return {name: restore_clock(name, parameters) for name, parameters in table.items()}
    except ValidationError as error:
        raise UserError(f"{loaded.where}: its record names no clocks ({error}); run it again") from error


def _refuse_other_sensors(old: Fleet, new: Fleet) -> None:
    """Refuse a fleet whose clients have other sensors than the recorded one: the allocation fits those alone.

    Raises:
        UserError: a client would have others.
    """
    for a, b in zip(old.clients, new.clients, strict=True):
        if a.modalities != b.modalities:
            raise UserError(
                f"client {a.id} has {', '.join(a.modalities)} in the run and {', '.join(b.modalities)} in the other "
                "fleet; the recorded allocation fits the same sensors only (keep rotation, and of the types sensors, "
                "people, counts and shares)"
            )


def _refuse_other_chances(old: Mapping[str, DeviceType], new: Mapping[str, DeviceType]) -> None:
    """Refuse other chances to be there: who took part in a round is recorded.

    Raises:
        UserError: the type is named.
    """
    for name in old.keys() & new.keys():
        if old[name].available != new[name].available:
            raise UserError(
                f"fleet.types.{name}.available = {new[name].available:g}, but the run has {old[name].available:g}: who "
                "was there cannot be computed from its records; leave it as it is, or start a run with it"
            )


def _receipt(client: ClientRecord) -> Receipt:
    task = Assignment(
        client=client.client,
        down={},
        train=selection(client.trained),
        up=selection(client.uploaded),
        epochs=client.epochs,
        view=client.view,
        phase=client.phase,
        taps=frozenset(client.taps),
        output=client.output,
        args=client.args,
        omit_absent=client.omit_absent,
    )
    work = Work(
        num_windows=client.num_windows,
        epochs=client.epochs,
        num_steps=client.num_steps,
        engine=client.engine,
        loss=client.loss,
        measured=StageTimes(),
        extra_flops=client.extra_flops,
    )
    probes = tuple((_trial(client.client, probe), probe.num_windows) for probe in client.probes)
    return Receipt(assignment=task, work=work, bytes_down=client.bytes_down, bytes_up=client.bytes_up, probes=probes)


def _trial(client: int, probe: ProbeRecord) -> Assignment:
    """The trial step of a probe; nothing is sent for it."""
    return Assignment(
        client=client,
        down={},
        train=selection(probe.trained),
        up={},
        epochs=1,
        step_flops=probe.step_flops,
        taps=frozenset(probe.taps),
        output=probe.output,
        omit_absent=probe.omit_absent,
    )


def _local_round(hardware: Model, client: ClientId) -> LocalRound:
    config = hardware.config
    return local_round(config, hardware.fleet[client].num_windows, config.training.epochs)


def _charged(record: RoundRecord, before: Model, after: Model) -> tuple[Receipt, ...]:
    """The receipts that a round is charged for; all clients are participants where no FedAvg round is recorded."""
    ids = record.participants if record.fedavg else range(len(after.fleet))
    done = [
        resized(r, _local_round(before, r.assignment.client), _local_round(after, r.assignment.client))
        for r in map(_receipt, record.clients)
    ]
    return after.accountant.charged(done, [after.fleet[n] for n in ids])


def _refuse_unexplained(loaded: Loaded, record: RoundRecord, hardware: Model) -> None:
    """Check that the recorded costs follow from the recorded work; else the other fleet's would be wrong too.

    Raises:
        UserError: they do not, e.g. because another version counted differently.
    """
    charged = _charged(record, hardware, hardware)
    costs = hardware.accountant.cost(charged, hardware.fleet, record.server_s)
    for name, cost in costs.items():
        kept = record.costs.get(name)
        if kept is not None and not _same(cost, kept.round_s, kept.energy_j):
            raise UserError(
                f"{loaded.where}: round {record.round} took {kept.round_s:.6g} s and {kept.energy_j:.6g} J by {name}, "
                f"but its recorded work gives {cost.round_s:.6g} s and {cost.energy_j:.6g} J with this version; run it "
                "again with this version, then ask"
            )
    reference = hardware.fedavg_reference(record.participants) if record.fedavg else {}
    if any(not _same(reference[name], kept.round_s, kept.energy_j) for name, kept in record.fedavg.items()):
        raise UserError(
            f"{loaded.where}: round {record.round}: some participants had no work, and who they were is not recorded; "
            "name a run with participation 1.0"
        )


def _same(cost: RoundCost, round_s: float, energy_j: float) -> bool:
    return isclose(cost.round_s, round_s, rel_tol=_TOLERANCE) and isclose(cost.energy_j, energy_j, rel_tol=_TOLERANCE)


def _recomputed(loaded: Loaded, before: Model, hardware: Model) -> Loaded:
    """The run with another fleet's costs, totals, reference and configuration; its warnings say so."""
    planning, reference = loaded.run.planning_model, hardware.fedavg_reference()
    target_s = hardware.strategy.insight.deadline_s
    rounds: list[RoundRecord] = []
    totals: Mapping[str, Totals] = {}
    for record in loaded.rounds:
        work = _charged(record, before, hardware)
        costs = hardware.accountant.cost(work, hardware.fleet, record.server_s)
        totals = {name: totals_after(totals.get(name, Totals()), cost, work) for name, cost in costs.items()}
        mine = hardware.fedavg_reference(record.participants) if record.fedavg else reference
        round_s = costs[planning].round_s
        update = {
            "deadline_s": target_s and record.deadline_s and target_s(hardware.context(record.round)),
            "costs": costs,
            "totals": totals,
            "fedavg": fedavg_records(mine) if record.fedavg else {},
            "speedup": mine[planning].round_s / round_s if round_s else None,
        }
        rounds.append(record.model_copy(update=update))
    run = loaded.run.model_copy(
        update={
            "config": hardware.config.model_dump(mode="json"),
            "budget": {**loaded.run.budget, "fedavg_reference": to_jsonable_python(fedavg_records(reference))},
            "warnings": (*loaded.run.warnings, SAID),
        }
    )
    return replace(loaded, run=run, rounds=tuple(rounds))
