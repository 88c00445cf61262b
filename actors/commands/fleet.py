"""`relief-ray fleet show`: devices, sensors, and the cost of a FedAvg round for each client."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from actors.commands.next_steps import refuse_nested, refuse_several
from relief_ray.core.messages import Assignment
from relief_ray.experiment.setup import Setup, choose_engine, context_of
from relief_ray.records.cells import find_runs
from relief_ray.report.results import cost_figures
from relief_ray.report.runs import Loaded, load_runs
from relief_ray.strategies import PRESETS, PROPOSED, method_name
from relief_ray.strategies.common import StrategyConfig
from relief_ray.studies.plan import open_target
from relief_ray.support.errors import UserError, counted, listed
from relief_ray.support.text import filled, table, typed
from relief_ray.support.user_yaml import read_mapping

if TYPE_CHECKING:
    from pydantic import JsonValue

# `relief-ray fleet whatif`: recomputes the costs of finished runs on other hardware; allocations stay as they were.


_FIGURES = {
    "round_s": "round_s", "energy_j": "energy_j", "speedup": "speedup", "total_s": "total_s",
    "total_j": "energy_total_j",
}  # fmt: skip
_HEAD = ["run", "clock", "round s", "then", "J/round", "then", "speedup", "then"]


def whatif(
    folders: Sequence[Path],
    fleet: Path | None,
    windows: int | None,
    epochs: int | None,
    as_json: bool,
    figure: Path | None = None,
) -> None:
    """Print seconds, joules and speedup as recorded and on the other fleet, by every clock.

    ``figure``: file for the timeline of a round there, FedAvg above RELIEF.

    Raises:
        UserError: nothing differs, no finished run there, or one that does not fit the other fleet; a figure without
            a pair of runs.
    """
    from relief_ray.studies.what_if import SAID, what_if

    refuse_nested(folders, "fleet whatif")
    if fleet is None and windows is None and epochs is None:
        raise UserError("what if what? give --fleet FILE.yaml, --windows N or --epochs E (the paper: 1900 and 5)")
    changed, profile = ({}, None) if fleet is None else _read_fleet(fleet)
    place = place_of(fleet, windows, epochs)
    runs = [loaded for loaded in load_runs(find_runs(folders)) if _is_finished(loaded)]
    pairs = [(loaded, what_if(loaded, changed, profile, windows=windows, epochs=epochs)) for loaded in runs]
    if figure is not None:
        _draw([after for _, after in pairs], figure, place)
    if as_json:
        rows_json: list[JsonValue] = [_what_if_facts(*pair) for pair in pairs]
        differs = {"fleet": None if fleet is None else str(fleet), "windows": windows, "epochs": epochs}
        print(json.dumps({"event": "whatif", "said": SAID, **differs, "runs": rows_json}))
        return
    print(f"{len(pairs)} run(s) {place}\n")
    print(table(_HEAD, [row for pair in pairs for row in rows(*pair)], left=2))
    print("\n" + filled(f"{SAID[0].upper()}{SAID[1:]}."))


def _draw(runs: Sequence[Loaded], path: Path, place: str) -> None:
    """Draw the timeline of a round as recomputed.

    Raises:
        UserError: no run of FedAvg beside one of RELIEF or its variants, of the same fold and replicate.
    """
    from relief_ray.report.comparison import compare_runs
    from relief_ray.report.figures.timeline import featured, timeline

    methods = featured(compare_runs(runs))
    if len(methods) < 2:
        raise UserError("--figure: found no pair of FedAvg and RELIEF runs of one fold and replicate; name both runs")
    timeline(methods, path, note=place)


def place_of(fleet: Path | None, windows: int | None, epochs: int | None) -> str:
    """Say what differs: ``on the fleet of other.yaml, with 1900 windows a client, with 5 epochs``."""
    parts = [f"on the fleet of {fleet}"] * (fleet is not None)
    if windows is not None:
        parts.append(f"with {windows:,} windows a client")
    if epochs is not None:
        parts.append(f"with {epochs} local epochs")
    return ", ".join(parts)


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
    return dict(fleet), None if profile is None else str(profile)


def _is_finished(loaded: Loaded) -> bool:
    """True where all planned rounds are there.

    Raises:
        UserError: they are not.
    """
    if not loaded.complete:
        raise UserError(
            f"{loaded.where}: not finished; complete it with `relief-ray resume {typed(loaded.where)}`, or name "
            "another run"
        )
    return True


def _clocks_of(loaded: Loaded) -> Mapping[str, Mapping[str, float | None]]:
    """Costs of a run by every clock.

    Raises:
        UserError: it was never evaluated on the test part.
    """
    if all(r.metrics is None for r in loaded.trained):
        raise UserError(f"{loaded.where}: no round was evaluated on the test part; name another run")
    return {clock: cost_figures(loaded, clock) for clock in loaded.rounds[-1].costs}


def rows(before: Loaded, after: Loaded) -> Iterator[list[str]]:
    """A line per clock."""
    old, new = _clocks_of(before), _clocks_of(after)
    for i, name in enumerate(new):
        cells = [c for figure, digits in (("round_s", 3), ("energy_j", 1), ("speedup", 2)) for c in (
            shown(old.get(name), figure, digits), shown(new[name], figure, digits)
        )]  # fmt: skip
        yield [before.title if i == 0 else "", name, *cells]


def shown(costs: Mapping[str, float | None] | None, figure: str, digits: int) -> str:
    """A figure, or a dash."""
    value = None if costs is None else costs[figure]
    return "-" if value is None else f"{value:.{digits}f}"


def _what_if_facts(before: Loaded, after: Loaded) -> JsonValue:
    """The recomputed costs as JSON."""
    recomputed: dict[str, JsonValue] = {"run": before.where, "title": before.title}
    for key, loaded in (("recorded", before), ("whatif", after)):
        recomputed[key] = {
            name: {key: costs[figure] for key, figure in _FIGURES.items()} for name, costs in _clocks_of(loaded).items()
        }
    return recomputed


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
