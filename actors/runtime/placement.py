"""Placement of workers: typed resources where the cluster has them, CPU shares otherwise.

``type_watch``, ``type_phone`` are Ray resources that a device offers when it joins; a client's device type names
what it asks for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from actors.runtime import serialization
from actors.runtime.session import process_options, total_of
from actors.runtime.worker import ClientWorker, Handle
from relief_ray.config.runtime import RuntimeConfig
from relief_ray.core.messages import ClientId, Fleet
from relief_ray.support.errors import UserError
from relief_ray.training.job import Job

Resources = Mapping[str, float]
# Ray counts in ten-thousandths.
GRAIN = 1e-4


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerSpec:
    """Resources that one worker needs; ``client`` is the one client that it trains, None where any may go there."""

    name: str
    client: ClientId | None
    num_cpus: float
    num_gpus: float = 0.0
    resources: Resources = field(default_factory=dict)

    @property
    def bundle(self) -> dict[str, float]:
        """The demand as Ray writes it."""
        demand = {"CPU": self.num_cpus, "GPU": self.num_gpus, **self.resources}
        return {name: amount for name, amount in demand.items() if amount > 0}


@dataclass(frozen=True, kw_only=True, slots=True)
class Placement:
    """All workers, the placement that was chosen and why."""

    workers: tuple[WorkerSpec, ...]
    mode: Literal["typed", "virtual"]
    why: str


def cores_of(resources: Resources) -> int:
    """Whole cores of a node or a cluster, at least one."""
    return max(1, int(resources.get("CPU", 1.0)))


def plan_packed(num_hosts: int | None, cluster: Resources, needs_gpu: bool = False, stack: int = 1) -> Placement:
    """One worker per core (or ``num_hosts``, which then share the cores); any client runs on any of them.

    One worker per GPU where clients take their steps there together (``stack``): apart they would share nothing.

    Raises:
        UserError: workers need a GPU and the cluster has none.
    """
    cores = cores_of(cluster)
    number = num_hosts or (max(1, int(cluster.get("GPU", 0))) if needs_gpu and stack > 1 else cores)
    share, num_gpus = _share(cores, number), _gpu_share(number, cluster) if needs_gpu else 0.0
    workers = tuple(WorkerSpec(name=f"host-{i}", client=None, num_cpus=share, num_gpus=num_gpus) for i in range(number))
    return Placement(workers=workers, mode="virtual", why="packed hosts take any client")


def plan_actors(
    fleet: Fleet,
    types: Mapping[str, Resources],
    placement: Literal["auto", "typed", "virtual"],
    nodes: Sequence[Resources],
    needs_gpu: bool = False,
) -> Placement:
    """One worker per client.

    ``types``: device type -> Ray resources (``DeviceType.ray_resources``); ``nodes``: what each node offers.

    Raises:
        UserError: ``typed`` placement, but a resource is missing or a device type names none; workers need a GPU and
            the cluster has none.
    """
    cluster = total_of(nodes)
    num_gpus = _gpu_share(len(fleet), cluster) if needs_gpu else 0.0
    gpu_shares = _typed_gpu_shares(fleet, types, nodes) if needs_gpu else {}
    share = _share(cluster.get("CPU", 1.0), len(fleet))
    apart = tuple(
        WorkerSpec(name=f"client-{c.id}", client=c.id, num_cpus=share, num_gpus=num_gpus) for c in fleet.clients
    )
    typed = tuple(
        replace(worker, num_cpus=0.0, num_gpus=gpu_shares.get(c.device, 0.0), resources=types.get(c.device, {}))
        for worker, c in zip(apart, fleet.clients, strict=True)
    )
    bare = sorted({c.device for c in fleet.clients if not types.get(c.device)})
    short = (
        f"device types {bare} name no Ray resource" if bare else shortage((worker.bundle for worker in typed), cluster)
    )
    if placement == "typed" and short:
        raise UserError(
            f"runtime.placement = 'typed': {short}; start a node with it (relief-ray cluster join HEAD --type NAME), "
            "use fewer clients, or set runtime.placement=virtual"
        )
    if placement != "virtual" and not short:
        return Placement(workers=typed, mode="typed", why="the cluster has every device type")
    return Placement(workers=apart, mode="virtual", why=short if placement == "auto" else "as configured")


def _typed_gpu_shares(fleet: Fleet, types: Mapping[str, Resources], nodes: Iterable[Resources]) -> dict[str, float]:
    """Share of a GPU by device type, so small that workers fit on every node of their type, however they are spread.

    As many workers as a node's types let in share its GPUs: ceil(workers / GPUs) on each. A type has the smallest share
    of its nodes, so that a node that joins leaves the others' clients where they were.
    """
    clients = Counter(client.device for client in fleet.clients)
    per_gpu = dict.fromkeys(clients, 1)
    for node in nodes:
        if not (gpus := int(node.get("GPU", 0))):
            continue
        workers = {device: min(number, _room_for(types.get(device, {}), node)) for device, number in clients.items()}
        for device, number in workers.items():
            if number:
                per_gpu[device] = max(per_gpu[device], -(-sum(workers.values()) // gpus))
    return {device: _share(1.0, number) for device, number in per_gpu.items()}


def _room_for(needed: Resources, offered: Resources) -> int:
    """Number of processes with these needs that a node, or a cluster, takes."""
    return min((int(offered.get(name, 0.0) / amount + GRAIN) for name, amount in needed.items() if amount), default=0)


def _share(cores: float, number: int) -> float:
    return max(GRAIN, int(min(1.0, cores / number) / GRAIN) * GRAIN)


def _gpu_share(num_hosts: int, cluster: Resources) -> float:
    """Share of a GPU for each worker where all compute on GPUs: workers are spread evenly, none over two GPUs.

    Raises:
        UserError: the cluster has none.
    """
    number = int(cluster.get("GPU", 0))
    if not number:
        raise UserError(
            "training.device = 'cuda': Ray knows of no GPU in this cluster, expected at least one; start a node with "
            "one (ray start finds it, or is told by --num-gpus), or take training.device=cpu or runtime.mode=inline"
        )
    return _share(1.0, -(-num_hosts // number))


def shortage(bundles: Iterable[Resources], offered: Resources, owner: str = "the cluster") -> str:
    """Resources of which all bundles together need more than the cluster offers, as text; empty if none."""
    lacking = [
        f"{name}: needed {amount:g}, {owner} has {offered.get(name, 0.0):g}"
        for name, amount in total_of(bundles).items()
        if amount > offered.get(name, 0.0) + GRAIN
    ]
    return "; ".join(lacking)


def reserve(placement: Placement, wait_s: float) -> PlacementGroup | None:
    """Reserve all workers together, so that two runs never wait for each other's half; None inside a Tune trial.

    Raises:
        UserError: the cluster has too little, or others hold it for longer than ``wait_s``.
    """
    if ray.util.get_current_placement_group() is not None:
        return None
    bundles = [worker.bundle for worker in placement.workers]
    if short := shortage(bundles, ray.cluster_resources()):
        raise UserError(
            f"the cluster is too small: {short}; add nodes, or set runtime.num_hosts or runtime.placement=virtual"
        )
    group = placement_group(bundles, strategy="PACK")
    if not group.wait(timeout_seconds=wait_s):
        remove_placement_group(group)
        busy = shortage(bundles, ray.available_resources()) or "the free amounts lie on different nodes"
        raise UserError(
            f"no place for {len(bundles)} hosts within {wait_s:g} s ({busy}); wait for other runs or end them"
        )
    return group


def slots_per_node(nodes: Sequence[str], shared: bool) -> dict[str, int]:
    """Calls that may run on a node at once: as many as it has cores, so that measured seconds are of a free core.

    ``nodes``: the node of each worker; ``shared``: the user asked for a number of workers, which then share the cores.
    """
    if shared:
        return dict.fromkeys(nodes, len(nodes))
    alive = _alive()
    return {node: cores_of(alive.get(node, {})) for node in nodes}


# The nodes of the cluster, and the one that the driver runs on: records are written there, work is done anywhere.
#
# The coordinator and every trial's own process write into the run's folder. They are pinned to the driver's node, so
# that the folder lies on the disk that the user started the command on, whichever node that is.


# Ray gives every node this label, with its id.
_ID_LABEL: Final = "ray.io/node-id"


@dataclass(frozen=True, kw_only=True, slots=True)
class Nodes:
    """The cluster as it is now."""

    each: tuple[Resources, ...]
    """Resources of every node that is alive."""
    here: Resources
    """Those of the driver's node."""
    selector: Mapping[str, str] = field(default_factory=dict)
    """Labels of the driver's node alone; a bundle with this selector is placed there."""

    @property
    def total(self) -> Resources:
        """Resources of all nodes together."""
        return total_of(self.each)

    @property
    def number(self) -> int:
        """Nodes that are alive."""
        return len(self.each)


def driver_node() -> str:
    """Id of the node that this process belongs to."""
    return str(ray.get_runtime_context().get_node_id())


def _alive() -> dict[str, Resources]:
    """Resources of every node that is alive, by its id."""
    return {node["NodeID"]: node["Resources"] for node in ray.nodes() if node["Alive"]}


def look_around() -> Nodes:
    """The nodes that are alive, seen from this process's node."""
    alive, here = _alive(), driver_node()
    return Nodes(each=tuple(alive.values()), here=alive.get(here, {}), selector={_ID_LABEL: here})


def stay_here() -> NodeAffinitySchedulingStrategy:
    """Ray's option of an actor that has to run on this process's node: it writes files that are read here."""
    return NodeAffinitySchedulingStrategy(node_id=driver_node(), soft=False)


# Workers of a run: created and ended together by the driver.

_RESERVE_S = 60.0
_MAX_NAMESAKES = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerGroup:
    """Actor handles in worker order; holding the group keeps the job alive for workers that restart."""

    placement: Placement
    handles: tuple[Handle, ...]
    job: ray.ObjectRef[Job]
    reservation: PlacementGroup | None

    def with_job(self, job: Job) -> WorkerGroup:
        """The same workers for another job; they change over with its first call."""
        return replace(self, job=serialization.put(job, job.modules))

    def close(self) -> None:
        """End all workers and give their places back."""
        if not ray.is_initialized():
            return
        for handle in self.handles:
            with suppress(ray.exceptions.RayError):
                ray.kill(handle)
        if self.reservation is not None:
            remove_placement_group(self.reservation)


def open_workers(
    job: Job, options: RuntimeConfig, types: Mapping[str, Resources] | None = None, run: str = "run"
) -> WorkerGroup:
    """Place and start the workers, packed unless ``options.mode`` is ``actors``; does not wait for them.

    ``types``: device type -> Ray resources.
    ``run``: the first part of their names in Ray's dashboard.

    Raises:
        UserError: the cluster lacks a resource, named with the fix.
    """
    nodes, needs_gpu = look_around(), job.trainer.device == "cuda" and not job.device_by_host
    if options.mode == "actors":
        placement = plan_actors(job.fleet, types or {}, options.placement, nodes.each, needs_gpu)
    else:
        placement = plan_packed(options.num_hosts, nodes.total, needs_gpu, job.trainer.stack)
    reservation = reserve(placement, _RESERVE_S)
    actor, handles = ray.remote(ClientWorker), []
    for i, spec in enumerate(placement.workers):
        # Of the one client that it trains; any may go to the others.
        device = "" if spec.client is None else f" type {job.fleet[spec.client].device}"
        chosen = actor_options(spec, i, reservation, job.num_threads, not job.device_by_host)
        handles.append(start_named(actor, f"{run}/{spec.name}{device}", chosen))
    return WorkerGroup(
        placement=placement, handles=tuple(handles), job=serialization.put(job, job.modules), reservation=reservation
    )


def start_named(actor: Handle, name: str, options: Mapping[str, Any]) -> Handle:
    """Start an actor under a name for Ray's dashboard, which its ``repr`` gives too.

    Names are used once in a namespace, and that of an actor that is being ended is taken still: then a number follows.
    """
    for number in range(1, _MAX_NAMESAKES):
        chosen = name if number == 1 else f"{name} ({number})"
        try:
            return actor.options(**options, name=chosen).remote(chosen)
        except ray.exceptions.ActorAlreadyExistsError:
            continue
    return actor.options(**options).remote(name)


def actor_options(
    spec: WorkerSpec, index: int, reservation: PlacementGroup | None, num_threads: int, hides_gpus: bool = True
) -> dict[str, Any]:
    """Ray's options of one worker; with ``hides_gpus`` it sees only GPUs that it requested."""
    options: dict[str, Any] = {
        "num_cpus": spec.num_cpus,
        "num_gpus": spec.num_gpus,
        "resources": dict(spec.resources),
        "max_restarts": -1,
        "max_task_retries": 0,
        **process_options(num_threads, hide_gpus=hides_gpus and not spec.num_gpus),
    }
    if reservation is not None:
        options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(
            placement_group=reservation, placement_group_bundle_index=index
        )
    return options
