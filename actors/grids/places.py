"""Places of a grid's cells on the cluster, and where each cell's clients live.

A trial's own process writes the records and stays on the driver's node. On one node all clients of a cell live in that
process (``inline``). On several they live in one worker process (host) per cell, which may run on any node. Results are
the same bits: both add up the same blocks in the same order.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

from actors.cluster.survey import Bundle, is_placed
from actors.runtime.placement import GRAIN, Nodes, cores_of, plan_actors, plan_packed, shortage
from actors.runtime.session import SessionOptions, total_of
from relief_ray.config.experiment import ExperimentConfig
from relief_ray.config.runtime import RuntimeConfig
from relief_ray.core.messages import Fleet
from relief_ray.data import num_clients
from relief_ray.devices.fleet import DeviceType
from relief_ray.experiment.setup import configured_fleet
from relief_ray.studies.plan import State
from relief_ray.support.errors import UserError, counted
from relief_ray.support.process import choose_device, num_cores

# What a trial's process needs (measured: 292 MiB of its own, with 8 and with 100 clients, whatever the data), and what
# it needs where all clients live in it. Clients' own models come on top of it (docs/grids.md).
_TRIAL_BYTES: Final = 320 * 2**20
_INLINE_BYTES: Final = 1024 * 2**20
Bundles = tuple[dict[str, float], ...]
# More trials than anybody has places for.
_MANY: Final = 1000


def fleet_of(config: ExperimentConfig) -> tuple[Fleet, dict[str, DeviceType]]:
    """The clients and device types of a cell, from its dataset's description: the files are not read."""
    return configured_fleet(config, num_clients(config.data.spec(), config.data))


def is_chosen_here(runtime: RuntimeConfig) -> bool:
    """True where the cluster decides whether a cell's clients live in the trial's process or in one host."""
    return runtime.mode == "auto" and runtime.placement != "typed"


def settled(runtime: RuntimeConfig, num_hosts: int) -> RuntimeConfig:
    """The settings of a cell whose trial has ``num_hosts`` hosts' places; 0: its clients live in the trial's process.

    The number is that of the places that were reserved: the cluster may have grown since.
    """
    if is_chosen_here(runtime) and not num_hosts:
        return runtime.model_copy(update={"mode": "inline"})
    if is_chosen_here(runtime) or runtime.mode == "packed":
        return runtime.model_copy(update={"mode": "packed", "num_hosts": num_hosts or runtime.num_hosts})
    return runtime


def bundles_of(config: ExperimentConfig, nodes: Nodes) -> Bundles:
    """Resources that one cell's trial reserves: for its own process first, then for each of its hosts.

    The trial's process asks for no core where hosts do the work; its memory bounds how many of them there are.

    Raises:
        UserError: a typed placement or a GPU that the cluster cannot give.
    """
    runtime = config.runtime
    if is_chosen_here(runtime):
        runtime = settled(runtime, runtime.num_hosts or int(nodes.number > 1))
    if runtime.mode == "inline":
        return ({"CPU": 1.0, "memory": float(_INLINE_BYTES)},)
    needs_gpu = not config.device_by_host and choose_device(config.training.device) == "cuda"
    if runtime.mode == "packed":
        plan = plan_packed(runtime.num_hosts, nodes.total, needs_gpu, config.training.stack)
    else:
        fleet, types = fleet_of(config)
        offered = {name: device.ray_resources for name, device in types.items()}
        plan = plan_actors(fleet, offered, runtime.placement, nodes.each, needs_gpu)
    return ({"memory": float(_TRIAL_BYTES)}, *(host.bundle or {"CPU": GRAIN} for host in plan.workers))


def _is_inline(bundles: Bundles) -> bool:
    """True where all clients live in the trial's own process."""
    return len(bundles) == 1


def refuse_shortage(trials: Mapping[str, Bundles], nodes: Nodes) -> None:
    """Check that the cluster has room for every trial; otherwise Tune would wait for ever.

    Raises:
        UserError: a cell asks for more than there is.
    """
    for name, bundles in trials.items():
        if short := shortage(bundles[:1], nodes.here, "this node"):
            raise UserError(
                f"{name}: the node that writes the records, this one, is too small for a trial's own process: {short}; "
                "start the command on a larger node" + (", or use --set runtime.mode=packed" * _is_inline(bundles))
            )
        if short := shortage(bundles, nodes.total):
            raise UserError(
                f"{name}: the cluster is too small for one trial: {short}; add nodes, or use --set runtime.mode=inline"
            )


def num_at_once(bundles: Sequence[Bundle], nodes: Nodes, most: int | None = None) -> int:
    """Number of such trials, at most ``most``, that find places together; each host takes one node.

    Their own processes, the first of ``bundles``, lie on the driver's node.
    """
    free = [dict(node) for node in nodes.each]
    here = next((node for node in free if node == nodes.here), dict(nodes.here))
    own, *hosts = bundles
    number = 0
    while number < (most or _MANY) and is_placed(own, [here]) and all(is_placed(host, free) for host in hosts):
        number += 1
    return number


def explain_places(trials: Collection[Bundles], nodes: Nodes) -> str:
    """Say for the user where the cells' clients live, and why; ``trials``: the bundles of all cells to do."""
    inline = [_is_inline(bundles) for bundles in trials]
    if nodes.number == 1:
        return "one node: a process for each cell" if all(inline) else "one node: hosts for each cell, as configured"
    all_nodes = f"{nodes.number} nodes, {counted(cores_of(nodes.total), 'core')}"
    if all(inline):
        return (
            f"{all_nodes}, runtime.mode=inline: all cells run on this node, the others stay idle; "
            "--set runtime.mode=auto sends cells to every node, with the same results"
        )
    most = min(num_at_once(bundles, nodes) for bundles in trials)
    stay = "; cells with runtime.mode=inline stay on this one" if any(inline) else ""
    return (
        f"{all_nodes}: a cell's clients are computed on any node, its records are written on this one; "
        f"{counted(most, 'cell')} at a time{stay}"
    )


def address_of(states: Sequence[State]) -> str | None:
    """Address of the cluster, from the configuration or ``RAY_ADDRESS`` (as in a Ray job); None: a local one."""
    chosen = states[0].config.runtime.address if states else None
    return chosen or os.environ.get("RAY_ADDRESS")


def session_options(states: Sequence[State], jobs: int | None, dashboard: bool, resume: str) -> SessionOptions:
    """Options of the cluster to join, or of a local one whose node has the resources of the largest fleet.

    ``resume``: the command that goes on with the study.
    """
    address = address_of(states)
    resources: dict[str, float] = {}
    if address is None:
        for needed in {repr(s.config.fleet) + repr(s.config.data): s.config for s in states}.values():
            for name, amount in _devices_of(needed).items():
                resources[name] = max(resources.get(name, 0.0), amount)
    # More jobs than cores are what the user asks for: they take turns.
    cores = None if jobs is None else max(jobs, num_cores())
    return SessionOptions(address=address, num_cpus=cores, resources=resources, dashboard=dashboard, resume=resume)


def _devices_of(config: ExperimentConfig) -> dict[str, float]:
    """Ray resources of a cell's devices; empty where all clients live in the trial's process."""
    if config.runtime.mode == "inline" or is_chosen_here(config.runtime):
        return {}
    fleet, types = fleet_of(config)
    return total_of(types[client.device].ray_resources for client in fleet.clients)


def refuse_dashboard_elsewhere(states: Sequence[State]) -> None:
    """Check that `--dashboard` is asked of a cluster that is started here.

    Raises:
        UserError: a cluster is joined, which has one of its own.
    """
    if address := address_of(states):
        raise UserError(
            f"--dashboard: opens with a local cluster, found the cluster {address}; open that one's, usually at port "
            "8265 of its head, and leave the option out"
        )


# Folder of Tune's own state, of no use once its driver has ended.
SCRATCH = ".tune"


def remove_scratch(out: Path) -> None:
    """Remove Tune's files from a folder of cells; a killed driver leaves them, though its trials may end all cells."""
    shutil.rmtree(out / SCRATCH, ignore_errors=True)
