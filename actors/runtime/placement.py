"""Placement of hosts (worker processes): typed resources where the cluster has them, CPU shares otherwise.

``type_a``, ``type_b``, ``type_c`` are Ray resources that a device offers when it joins; a client's device type names
what it asks for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group

from relief_ray.core.messages import ClientId, Fleet
from relief_ray.support.errors import UserError

Mode = Literal["packed", "actors"]
Placement = Literal["auto", "typed", "virtual"]
Resources = Mapping[str, float]
# Ray counts in ten-thousandths.
GRAIN = 1e-4


@dataclass(frozen=True, kw_only=True, slots=True)
class HostSpec:
    """Resources that one host needs; ``client`` is the one client that it trains, None where any may go there."""

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
class Plan:
    """All hosts, the placement that was chosen and why."""

    hosts: tuple[HostSpec, ...]
    placement: Literal["typed", "virtual"]
    why: str


def plan_packed(num_hosts: int | None, cluster: Resources, needs_gpu: bool = False, stack: int = 1) -> Plan:
    """One host per core (or ``num_hosts``, which then share the cores); any client runs on any of them.

    One host per GPU where clients take their steps there together (``stack``): apart they would share nothing.

    Raises:
        UserError: hosts need a GPU and the cluster has none.
    """
    cores = max(1, int(cluster.get("CPU", 1)))
    number = num_hosts or (max(1, int(cluster.get("GPU", 0))) if needs_gpu and stack > 1 else cores)
    share, num_gpus = _share(cores, number), _gpu_share(number, cluster) if needs_gpu else 0.0
    hosts = tuple(HostSpec(name=f"host-{i}", client=None, num_cpus=share, num_gpus=num_gpus) for i in range(number))
    return Plan(hosts=hosts, placement="virtual", why="packed hosts take any client")


def plan_actors(
    fleet: Fleet,
    types: Mapping[str, Resources],
    placement: Placement,
    nodes: Sequence[Resources],
    needs_gpu: bool = False,
) -> Plan:
    """One host per client.

    ``types``: device type -> Ray resources (``DeviceType.ray_resources``); ``nodes``: what each node offers.

    Raises:
        UserError: ``typed`` placement, but a resource is missing or a device type names none; hosts need a GPU and the
            cluster has none.
    """
    cluster = total_of(nodes)
    num_gpus = _gpu_share(len(fleet), cluster) if needs_gpu else 0.0
    typed = _typed_hosts(fleet, types, _typed_gpu_shares(fleet, types, nodes) if needs_gpu else {})
    bare = sorted({c.device for c in fleet.clients if not types.get(c.device)})
    short = f"device types {bare} name no Ray resource" if bare else shortage(typed, cluster)
    if placement == "typed" and short:
        raise UserError(
            f"runtime.placement = 'typed': {short}; start a node with it (ray start --resources='{{\"type_a\": 1}}'), "
            "use fewer clients, or set runtime.placement=virtual"
        )
    if placement != "virtual" and not short:
        return Plan(hosts=typed, placement="typed", why="the cluster has every device type")
    share = _share(cluster.get("CPU", 1.0), len(fleet))
    hosts = tuple(
        HostSpec(name=f"client-{c.id}", client=c.id, num_cpus=share, num_gpus=num_gpus) for c in fleet.clients
    )
    return Plan(hosts=hosts, placement="virtual", why=short if placement == "auto" else "as configured")


def _typed_hosts(fleet: Fleet, types: Mapping[str, Resources], gpu_shares: Mapping[str, float]) -> tuple[HostSpec, ...]:
    return tuple(
        HostSpec(
            name=f"client-{c.id}",
            client=c.id,
            num_cpus=0.0,
            num_gpus=gpu_shares.get(c.device, 0.0),
            resources=types.get(c.device, {}),
        )
        for c in fleet.clients
    )


def _typed_gpu_shares(fleet: Fleet, types: Mapping[str, Resources], nodes: Iterable[Resources]) -> dict[str, float]:
    """Share of a GPU by device type, so small that hosts fit on every node of their type, however they are spread.

    As many hosts as a node's types let in share its GPUs: ceil(hosts / GPUs) on each. A type has the smallest share of
    its nodes, so that a node that joins leaves the others' clients where they were.
    """
    clients = Counter(client.device for client in fleet.clients)
    per_gpu = dict.fromkeys(clients, 1)
    for node in nodes:
        if not (gpus := int(node.get("GPU", 0))):
            continue
        hosts = {device: min(number, _room(types.get(device, {}), node)) for device, number in clients.items()}
        for device in (device for device, number in hosts.items() if number):
            per_gpu[device] = max(per_gpu[device], -(-sum(hosts.values()) // gpus))
    return {device: _share(1.0, number) for device, number in per_gpu.items()}


def _room(needed: Resources, node: Resources) -> int:
    """Number of hosts with these needs that a node takes."""
    return min((int(node.get(name, 0.0) / amount + GRAIN) for name, amount in needed.items() if amount), default=0)


def _share(cores: float, number: int) -> float:
    return max(GRAIN, int(min(1.0, cores / number) / GRAIN) * GRAIN)


def _gpu_share(num_hosts: int, cluster: Resources) -> float:
    """Share of a GPU for each host where all compute on GPUs: hosts are spread evenly, none over two GPUs.

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


def total_of(amounts: Iterable[Resources]) -> dict[str, float]:
    """Resources of nodes, or of the demands of processes, together."""
    total: dict[str, float] = {}
    for resources in amounts:
        for name, amount in resources.items():
            total[name] = total.get(name, 0.0) + amount
    return total


def shortage(hosts: Sequence[HostSpec], cluster: Resources, whose: str = "the cluster") -> str:
    """The resources of which the cluster has too little, in words; empty where it has enough."""
    lacking = [
        f"{name}: needed {amount:g}, {whose} has {cluster.get(name, 0.0):g}"
        for name, amount in total_of(host.bundle for host in hosts).items()
        if amount > cluster.get(name, 0.0) + GRAIN
    ]
    return "; ".join(lacking)


def reserve(plan: Plan, wait_s: float) -> PlacementGroup | None:
    """Reserve all hosts together, so that two runs never wait for each other's half; None inside a Tune trial.

    Raises:
        UserError: the cluster has too little, or others hold it for longer than ``wait_s``.
    """
    if ray.util.get_current_placement_group() is not None:
        return None
    if short := shortage(plan.hosts, ray.cluster_resources()):
        raise UserError(
            f"the cluster is too small: {short}; add nodes, or set runtime.num_hosts or runtime.placement=virtual"
        )
    group = placement_group([host.bundle for host in plan.hosts], strategy="PACK")
    if not group.wait(timeout_seconds=wait_s):
        remove_placement_group(group)
        busy = shortage(plan.hosts, ray.available_resources()) or "the free amounts lie on different nodes"
        raise UserError(
            f"no place for {len(plan.hosts)} hosts within {wait_s:g} s ({busy}); wait for other runs or end them"
        )
    return group


def slots_per_node(nodes: Sequence[str], shared: bool) -> dict[str, int]:
    """Calls that may run on a node at once: as many as it has cores, so that measured seconds are of a free core.

    ``nodes``: the node of each host; ``shared``: the user asked for a number of hosts, which then share the cores.
    """
    if shared:
        return dict.fromkeys(nodes, len(nodes))
    cores = {node["NodeID"]: int(node["Resources"].get("CPU", 1)) for node in ray.nodes() if node["Alive"]}
    return {node: max(1, cores.get(node, 1)) for node in nodes}
