"""`relief-ray fleet show|whatif`: what a round costs each client of a fleet, and of another one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from actors.commands.folders import refuse_nested, refuse_several
from actors.terminal.exit_codes import Result, figure
from relief_ray.core.messages import Assignment, ClientInfo
from relief_ray.devices.accounting import assumed_engine
from relief_ray.devices.fleet import own_gap
from relief_ray.experiment.setup import Setup, context_of, prepare
from relief_ray.records.cells import find_runs
from relief_ray.report.results import cost_figures
from relief_ray.report.runs import Loaded, load_runs
from relief_ray.strategies import PRESETS, PROPOSED, method_name
from relief_ray.studies.plan import target_config
from relief_ray.studies.what_if import SAID, what_if
from relief_ray.support.errors import Setting, UserError, counted, listed
from relief_ray.support.text import filled, table, typed
from relief_ray.support.user_yaml import read_mapping

# `relief-ray fleet whatif`: recomputes the costs of finished runs on other hardware; allocations stay as they were.

# Costs of a run by clock.
_Clocks = Mapping[str, Mapping[str, float | None]]
# Figures of the JSON, by the name of the run's figure.
_FIGURES = {
    "round_s": "round_s",
    "energy_j": "energy_j",
    "speedup": "speedup",
    "total_s": "total_s",
    "total_j": "energy_total_j",
}
# Figures of the table and their decimals.
_COLUMNS = {"round_s": 3, "energy_j": 1, "speedup": 2}
_HEAD = ["run", "clock", "round s", "then", "J/round", "then", "speedup", "then"]


def whatif(folders: Sequence[Path], other: Path | None, windows: int | None, epochs: int | None) -> Result:
    """Give seconds, joules and speedup as recorded and on the other fleet, by every clock.

    Raises:
        UserError: nothing differs, no finished run there, or one that does not fit the other fleet.
    """
    refuse_nested(folders, "fleet whatif")
    if other is None and windows is None and epochs is None:
        raise UserError("what if what? give --fleet FILE.yaml, --windows N or --epochs E (the paper: 1900 and 5)")
    changed, profile = ({}, None) if other is None else _read_fleet(other)
    lines: list[list[str]] = []
    facts: list[JsonValue] = []
    for run in load_runs(find_runs(folders)):
        if not run.complete:
            raise UserError(
                f"{run.where}: not finished; complete it with `relief-ray resume {typed(run.where)}`, or name another "
                "run"
            )
        before = _clocks_of(run)
        after = _clocks_of(what_if(run, changed, profile, windows=windows, epochs=epochs))
        lines += _lines(run.title, before, after)
        facts.append({"run": run.where, "title": run.title, "recorded": _facts(before), "whatif": _facts(after)})
    differences = [f"on the fleet of {other}"] * (other is not None)
    differences += [] if windows is None else [f"with {windows:,} windows a client"]
    differences += [] if epochs is None else [f"with {epochs} local epochs"]
    return Result(
        f"{len(facts)} run(s) {', '.join(differences)}\n\n{table(_HEAD, lines, left=2)}\n\n"
        + filled(f"{SAID[0].upper()}{SAID[1:]}."),
        {
            "event": "whatif",
            "said": SAID,
            "fleet": other and str(other),
            "windows": windows,
            "epochs": epochs,
            "runs": facts,
        },
    )


def _read_fleet(path: Path) -> tuple[dict[str, object], str | None]:
    """A fleet file: keys of `fleet`, or sections `fleet` and `costs` (of which `profile` counts).

    Raises:
        UserError: unreadable, or other sections.
    """
    values = read_mapping(path)
    if not {"fleet", "costs"} & values.keys():
        return values, None
    fleet, costs = values.get("fleet") or {}, values.get("costs") or {}
    if not isinstance(fleet, dict) or not isinstance(costs, dict) or set(costs) - {"profile"}:
        raise UserError(
            f"{path}: expected the keys of a fleet, or the sections `fleet` and `costs` with `profile` alone"
        )
    profile = costs.get("profile")
    return fleet, None if profile is None else str(profile)


def _clocks_of(run: Loaded) -> _Clocks:
    """Costs of a run by every clock.

    Raises:
        UserError: it was never evaluated on the test part.
    """
    if all(r.metrics is None for r in run.rounds):
        raise UserError(f"{run.where}: no round was evaluated on the test part; name another run")
    return {clock: cost_figures(run, clock, run) for clock in run.rounds[-1].costs}


def _lines(title: str, before: _Clocks, after: _Clocks) -> Iterator[list[str]]:
    """A line per clock; a dash where a clock has no such figure."""
    for i, clock in enumerate(after):
        texts = [
            figure(costs.get(clock, {}).get(name), decimals)
            for name, decimals in _COLUMNS.items()
            for costs in (before, after)
        ]
        yield [title if i == 0 else "", clock, *texts]


def _facts(clocks: _Clocks) -> JsonValue:
    return {name: {key: costs[of_run] for key, of_run in _FIGURES.items()} for name, costs in clocks.items()}


# `relief-ray fleet show`: devices, sensors, and the cost of a FedAvg round for each client.


def show(target: str, settings: Sequence[Setting]) -> Result:
    """Give the fleet of a preset, a file or a run."""
    if (folder := Path(target)).is_dir():
        refuse_several(folder, "fleet show")
    setup = prepare(target_config(target, settings))
    # The method whose deadline is shown: the run's own, or `PROPOSED` where that has none.
    own = setup.strategy.insight
    insight = PRESETS[PROPOSED].build().insight if own.deadline_s is None else own
    assert insight.deadline_s is not None
    # Under each clock, as if that clock were the one to plan with.
    targets_s = {}
    for name, clock in setup.accountant.clocks.items():
        planner = replace(setup.planner, model=clock, engine=clock.engine or assumed_engine(setup.engine))
        targets_s[name] = insight.deadline_s(replace(context_of(setup, 1), planner=planner))
    deadline = insight.deadline_text or (
        f"the deadline of {method_name(setup.config.strategy, setup.config.label())} in round 1"
    )
    facts = _fleet_facts(setup, targets_s)
    return Result(_fleet_lines(setup, target, facts, deadline), facts)


def _mandatory_s(setup: Setup, client: ClientInfo) -> float:
    """Seconds of a client for its mandatory blocks alone, by the planning clock."""
    blocks = setup.layout.select([g.id for g in setup.layout.mandatory(client.modalities)])
    task = Assignment(
        client=client.id, down=setup.layout.select(), train=blocks, up=blocks, epochs=setup.config.training.epochs
    )
    return setup.planner.times(client.id, task).busy_s


def _fleet_facts(setup: Setup, targets_s: Mapping[str, float]) -> dict[str, Any]:
    """Device types, clients with their seconds, and what a FedAvg round costs under each clock."""
    return {
        "types": {name: kind.model_dump(mode="json") for name, kind in setup.types.items()},
        "clients": [
            {
                "client": client.id,
                "device": client.device,
                "modalities": client.modalities,
                "num_windows": client.num_windows,
                "fedavg_s": {name: cost.clients[client.id].times.busy_s for name, cost in setup.reference.items()},
                "mandatory_s": _mandatory_s(setup, client),
            }
            for client in setup.fleet.clients
        ],
        "fedavg": {
            name: {"round_s": cost.round_s, "energy_j": cost.energy_j} for name, cost in setup.reference.items()
        },
        "target_s": targets_s,
        "planning_time": setup.config.costs.planning_time,
    }


def _fleet_lines(setup: Setup, target: str, facts: Mapping[str, Any], deadline: str) -> list[str]:
    """The fleet in two tables: device types, then clients with their seconds; ``deadline``: meaning of T*."""
    fleet, config = setup.fleet, setup.config
    cohorts = ", ".join(f"{m} {len(fleet.cohort(m))}" for m in fleet.modalities)
    types = [
        [
            name,
            str(sum(client.device == name for client in fleet.clients)),
            "-" if kind.tops is None else f"{kind.tops:g}",
            f"{kind.power.active_w:g} / {kind.power.comm_w:g} / {kind.power.idle_w:g}",
            f"{kind.uplink_mbit_s:g} / {kind.downlink_mbit_s:g}",
            f"{1e3 * kind.latency_s:g}",
            f"{100 * kind.available:g}",
        ]
        for name, kind in setup.types.items()
    ]
    clients = [
        [
            str(client["client"]),
            client["device"],
            ", ".join(client["modalities"]),
            str(client["num_windows"]),
            *(f"{seconds:.3f}" for seconds in client["fedavg_s"].values()),
            f"{client['mandatory_s']:.3f}",
        ]
        for client in facts["clients"]
    ]
    costs = facts["fedavg"].values()
    sums = {
        "round, s": [f"{cost['round_s']:.3f}" for cost in costs],
        "round, J": [f"{cost['energy_j']:.1f}" for cost in costs],
        "T*, s": [f"{target_s:.3f}" for target_s in facts["target_s"].values()],
    }
    clients += [[name, "", "", "", *figures, ""] for name, figures in sums.items()]
    return [
        f"Fleet of {target}: {counted(len(fleet), 'client')}, data {config.data.name} ({setup.data.origin}), "
        f"{counted(config.training.epochs, 'local epoch')}",
        f"Clients that own a sensor: {cohorts}{f'; rare: {listed(setup.rare)}' if setup.rare else ''}",
        "",
        f"Device types, the fastest {own_gap(setup.types):.3g} times as fast as the slowest",
        table(["type", "clients", "TOPS", "W active/link/idle", "Mbit/s up/down", "latency ms", "there %"], types),
        "",
        "Clients: predicted seconds of a FedAvg round (everything trained and sent) under each clock",
        table(["client", "type", "sensors", "windows", *facts["fedavg"], "mandatory"], clients, left=3),
        "",
        *(f"  {name:<19} {clock.about}".rstrip() for name, clock in setup.accountant.clocks.items()),
        f"  {'mandatory':<20}its own fusion blocks alone, by the planning clock ({config.costs.planning_time})",
        f"  {'T*':<20}{deadline}",
    ]
