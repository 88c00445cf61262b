"""`relief-ray fleet show`: devices, sensors, and the cost of a FedAvg round for each client."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from actors.commands.next_steps import refuse_several
from relief_ray.core.messages import Assignment
from relief_ray.experiment.setup import Setup, choose_engine, context_of
from relief_ray.strategies import PRESETS, PROPOSED, method_name
from relief_ray.strategies.common import StrategyConfig
from relief_ray.studies.plan import open_target
from relief_ray.support.errors import counted, listed
from relief_ray.support.text import table


def show(target: str, settings: Sequence[str], as_json: bool) -> None:
    """Print the fleet of a preset, a file or a run."""
    if (folder := Path(target)).is_dir():
        refuse_several(folder, "fleet show")
    setup = open_target(target, settings)
    print(json.dumps(facts(setup), indent=1) if as_json else text(setup, target))


def _deadline_method(setup: Setup) -> StrategyConfig:
    """The method whose deadline is shown: the run's own, or ``PROPOSED`` where that has none."""
    return PRESETS[PROPOSED] if setup.strategy.deadline_s is None else setup.config.strategy


def deadlines(setup: Setup) -> dict[str, float]:
    """Deadline T* under each clock, as if that clock were the one to plan with."""
    target_s = _deadline_method(setup).build().deadline_s
    assert target_s is not None
    deadline_s = {}
    for name, clock in setup.accountant.clocks.items():
        engine = clock.engine or ("naive" if choose_engine(setup.config) == "naive" else "reuse")
        planner = replace(setup.planner, model=clock, engine=engine)
        deadline_s[name] = target_s(replace(context_of(setup, 1), planner=planner))
    return deadline_s


def _mandatory_seconds(setup: Setup) -> list[float]:
    """Seconds per client for its mandatory blocks alone, by the planning clock."""
    seconds = []
    for client in setup.fleet.clients:
        blocks = setup.layout.select([g.id for g in setup.layout.mandatory(client.modalities)])
        task = Assignment(
            client=client.id, down=setup.layout.select(), train=blocks, up=blocks, epochs=setup.config.training.epochs
        )
        seconds.append(setup.planner.times(client.id, task).busy_s)
    return seconds


def facts(setup: Setup) -> dict[str, object]:
    """The fleet as JSON."""
    mandatory = _mandatory_seconds(setup)
    clients = [
        {
            "client": client.id,
            "device": client.device,
            "modalities": list(client.modalities),
            "num_windows": client.num_windows,
            "fedavg_s": {name: cost.clients[client.id].times.busy_s for name, cost in setup.reference.items()},
            "mandatory_s": mandatory[client.id],
        }
        for client in setup.fleet.clients
    ]
    return {
        "types": {name: kind.model_dump(mode="json") for name, kind in setup.types.items()},
        "clients": clients,
        "fedavg": {
            name: {"round_s": cost.round_s, "energy_j": cost.energy_j} for name, cost in setup.reference.items()
        },
        "target_s": deadlines(setup),
        "planning_time": setup.config.costs.planning_time,
    }


def text(setup: Setup, target: str) -> str:
    """The fleet in three tables."""
    fleet, config = setup.fleet, setup.config
    cohorts = ", ".join(f"{m} {len(fleet.cohort(m))}" for m in fleet.modalities)
    rare = f"; rare: {listed(setup.rare)}" if setup.rare else ""
    parts = [
        f"Fleet of {target}: {counted(len(fleet), 'client')}, data {config.data.name} ({setup.data.origin}), "
        f"{counted(config.training.epochs, 'local epoch')}",
        f"Clients that own a sensor: {cohorts}{rare}",
        "",
        "Device types",
        _type_table(setup),
        "",
        "Clients: predicted seconds of a FedAvg round (everything trained and sent) under each clock",
        _client_table(setup),
        "",
        *(f"  {name:<19} {clock.about}".rstrip() for name, clock in setup.accountant.clocks.items()),
        f"  {'mandatory':<20}its own fusion blocks alone, by the planning clock ({config.costs.planning_time})",
        f"  {'T*':<20}{_deadline_text(setup)}",
    ]
    return "\n".join(parts)


def _deadline_text(setup: Setup) -> str:
    """Meaning of T*, as the method states it."""
    stated = _deadline_method(setup).build().deadline_text
    return stated or f"the deadline of {method_name(setup.config.strategy, setup.config.label())} in round 1"


def _type_table(setup: Setup) -> str:
    """Speed, power and link of each type in use."""
    rows = []
    for name, kind in setup.types.items():
        number = sum(client.device == name for client in setup.fleet.clients)
        power = f"{kind.active_power_w:g} / {kind.comm_power_w:g} / {kind.idle_power_w:g}"
        link = f"{kind.uplink_bytes_per_s / 1e6:g} / {kind.downlink_bytes_per_s / 1e6:g}"
        rows.append([name, str(number), f"{kind.peak_tops:g}", power, link, f"{1e3 * kind.latency_s:g}"])
    return table(["type", "clients", "TOPS", "W active/link/idle", "MB/s up/down", "latency ms"], rows)


def _client_table(setup: Setup) -> str:
    """A row per client, then the round, its energy, and T*."""
    clocks, mandatory, targets = list(setup.reference), _mandatory_seconds(setup), deadlines(setup)
    rows = [
        [
            f"{client.id}", client.device, ", ".join(client.modalities), str(client.num_windows),
            *(f"{setup.reference[name].clients[client.id].times.busy_s:.3f}" for name in clocks),
            f"{mandatory[client.id]:.3f}",
        ]
        for client in setup.fleet.clients
    ]  # fmt: skip
    rows.append(["round, s", "", "", "", *(f"{setup.reference[name].round_s:.3f}" for name in clocks), ""])
    rows.append(["round, J", "", "", "", *(f"{setup.reference[name].energy_j:.1f}" for name in clocks), ""])
    rows.append(["T*, s", "", "", "", *(f"{targets[name]:.3f}" for name in clocks), ""])
    return table(["client", "type", "sensors", "windows", *clocks, "mandatory"], rows, left=3)
