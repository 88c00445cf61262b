"""Facts about a cluster's nodes, collected by a task on each node, and whether a run fits on them."""

from __future__ import annotations

import json
import os
import platform
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any, Final, TypeVar, cast

import psutil

from actors.cluster import start_line
from actors.runtime.placement import GRAIN
from actors.runtime.session import MIB, SessionOptions, ray_session, total_of
from relief_ray.devices.fleet import resource_of
from relief_ray.plugins.load import is_path
from relief_ray.support.errors import UserError, first_line, listed, several
from relief_ray.support.table import grouped

T = TypeVar("T")
Bundle = Mapping[str, float]
# More processes than will ever share a GPU.
_MANY: Final = 1000
# Resources that any node may lend; every other one is a device's own.
PLAIN: Final = ("CPU", "GPU", "memory")
_TYPE: Final = resource_of("")
# Options of `cluster join` for what any node may lend, and the unit that they count.
_OPTIONS: Final = {"CPU": ("--num-cpus", 1), "GPU": ("--num-gpus", 1), "memory": ("--memory-mib", MIB)}


def unplaced(bundles: Iterable[Bundle], nodes: Iterable[Bundle]) -> tuple[Bundle, ...]:
    """Processes that find no place on the nodes, where each takes one node; the most demanding first.

    First fit in decreasing order: exact where processes are alike, as clients of a type are.
    """
    free = [dict(node) for node in nodes]
    return tuple(bundle for bundle in sorted(bundles, key=_weight, reverse=True) if not is_placed(bundle, free))


def _weight(bundle: Bundle) -> tuple[int, float]:
    """Rare resources first, then much."""
    rare = sum(name not in ("CPU", "memory") for name in bundle)
    return rare, bundle.get("CPU", 0.0) + bundle.get("memory", 0.0) / (1024 * MIB)


def is_placed(bundle: Bundle, free: Iterable[dict[str, float]]) -> bool:
    """Whether a process finds a place on the first node that has one, which then has so much less to give."""
    for node in free:
        if all(node.get(name, 0.0) + GRAIN >= amount for name, amount in bundle.items()):
            node.update({name: node.get(name, 0.0) - amount for name, amount in bundle.items()})
            return True
    return False


def wished(devices: Iterable[Bundle], nodes: Sequence[Bundle]) -> list[Bundle]:
    """Machines that clients on such ``devices`` lack: one for all that are alike, with one GPU.

    Where the cluster has GPUs, a node without one is no place for them; where it has none, they get none.
    """
    gpus = min(1.0, total_of(nodes).get("GPU", 0.0))
    lacking = unplaced([{**device, "GPU": gpus / _MANY} for device in devices], nodes)
    alike = Counter(tuple(device.items()) for device in lacking)
    return [
        {name: gpus if name == "GPU" else amount * number for name, amount in device}
        for device, number in alike.items()
    ]


def changes(lacking: Iterable[Bundle], address: str) -> list[str]:
    """Commands for the fewest nodes that must join so that every process has a place; empty if all have one.

    A device's own line asks for the GPU or cores that its clients need: those of another node are of no use to them.
    Where ``cluster join`` cannot offer a device's resources, a sentence says how Ray takes them.
    """
    alike = grouped((tuple(sorted(bundle.keys() - PLAIN)), bundle) for bundle in lacking)
    kinds = sorted(alike.items(), key=lambda item: (not item[0], item[0]))
    return [_change(own, total_of(bundles), f"relief-ray cluster join {address}") for own, bundles in kinds]


def _change(own: tuple[str, ...], total: Bundle, join: str) -> str:
    """Say how one machine joins that offers ``total``; ``own``: its device's resources."""
    options = "".join(
        f" {option} {ceil(total[name] / unit - GRAIN)}"
        for name, (option, unit) in _OPTIONS.items()
        if total.get(name, 0.0) > 0
    )
    if not own:
        return join + options
    if len(own) > 1 or not own[0].startswith(_TYPE):
        offered = json.dumps({name: ceil(total[name] - GRAIN) for name in own})
        return (
            f"`cluster join` has no option for {' with '.join(own)}: add --resources='{offered}' to the `ray start` "
            f"that this prints: {join}{options} --print"
        )
    number = max(1, round(total[own[0]]))
    return f"{join} --type {own[0].removeprefix(_TYPE)}{f' --count {number}' if number > 1 else ''}{options}"


def in_words(resources: Bundle) -> str:
    """``4 cores, 2 GPUs, 3 x type_watch, 1,024 MiB``."""
    offered = {name: amount for name, amount in sorted(resources.items()) if amount > 0}
    parts = [
        f"{offered[name]:g} {unit}{'' if offered[name] == 1 else 's'}"
        for name, unit in (("CPU", "core"), ("GPU", "GPU"))
        if name in offered
    ]
    parts += [f"{amount:g} x {name}" for name, amount in offered.items() if name not in (*PLAIN, "server")]
    if "memory" in offered:
        parts.append(f"{offered['memory'] / MIB:,.0f} MiB")
    if "server" in offered:
        parts.append("server")
    return ", ".join(parts) or "nothing"


_ANSWER_S = 60.0
_OWN = ("node:", "object_store_memory", "accelerator_type:")


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeAnswer:
    """What a node says of itself."""

    name: str
    """Its host name."""
    python: str
    ray: str
    torch: str
    version: str
    """Version of RELIEF-Ray."""
    digest: str
    """Hash of RELIEF-Ray's sources."""
    device: str
    """Its GPU, else its processor."""
    datasets: tuple[str, ...]
    """Datasets whose raw files it has."""
    cached: tuple[str, ...]
    """Datasets that it has parsed already."""
    shards: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """By dataset, the clients whose shards it has."""
    clock_s: float = field(default_factory=time.time)
    """Its clock when it answered, seconds since 1970."""

    def versions(self) -> str:
        """Its versions for people."""
        return (
            f"Python {self.python}, Ray {self.ray}, torch {self.torch}, RELIEF-Ray {self.version} ({self.digest[:8]})"
        )

    def data(self) -> list[str]:
        """Its data for people: ``dsa (parsed)``, ``the shard of client 3 of dsa``."""
        whole = [f"{name} (parsed)" if name in self.cached else name for name in self.datasets]
        return [*whole, *(f"the shard of {several('client', held)} of {name}" for name, held in self.shards.items())]


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeFacts:
    """A node of the cluster: ``answer`` is None where it gave none, then ``why`` says what happened instead."""

    node: str
    address: str
    is_head: bool
    resources: Mapping[str, float]
    answer: NodeAnswer | None
    why: str
    clock_off_s: float | None = None
    """Seconds that its clock is ahead of this machine's, less what the question may have taken; None: no answer."""

    @property
    def name(self) -> str:
        """Its host name, or its address where it did not answer."""
        return self.answer.name if self.answer is not None else self.address


def ask_nodes(
    function: Callable[[], T], wait_s: float, **options: object
) -> Iterator[tuple[Mapping[str, Any], T | None, str]]:
    """Call a function on all living nodes of the cluster that this process has joined.

    Yields Ray's facts of each node with its answer; or with None and why there is none.
    ``options``: Ray's of these tasks.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as OnNode

    # Ray's typing does not know these options of functions.
    task = cast(Any, ray.remote)(num_cpus=0, max_retries=0)(function)
    nodes = [node for node in ray.nodes() if node["Alive"]]
    refs = [task.options(scheduling_strategy=OnNode(node["NodeID"], soft=False), **options).remote() for node in nodes]
    ray.wait(refs, num_returns=len(refs), timeout=wait_s)
    for node, ref in zip(nodes, refs, strict=True):
        try:
            yield node, ray.get(ref, timeout=0.1), ""
        except ray.exceptions.GetTimeoutError:
            yield node, None, f"no answer within {wait_s:g} s"
        except ray.exceptions.RayError as error:
            yield node, None, str(error).strip().splitlines()[-1].strip()[:200]


def _describe_here() -> NodeAnswer:
    """The facts of the node that this process is on."""
    import ray
    import torch

    from relief_ray import __version__
    from relief_ray.data.describe import list_datasets
    from relief_ray.data.shard import shards_here
    from relief_ray.records.identity import machine_facts, source_digest
    from relief_ray.support.files import cache_root
    from relief_ray.support.process import choose_device, device_name

    device = choose_device("auto")
    parsed = cache_root() / "parsed"
    return NodeAnswer(
        name=platform.node(),
        python=platform.python_version(),
        ray=ray.__version__,
        torch=str(torch.__version__),
        version=__version__,
        digest=source_digest(),
        device=device_name(device) if device == "cuda" else machine_facts().cpu,
        datasets=tuple(d["name"] for d in list_datasets() if d["origin"] is not None),
        cached=tuple(sorted({p.name.rpartition("-")[0] for p in parsed.glob("*-*") if p.is_dir()})),
        shards=shards_here(),
    )


def head_at(address: str | None) -> str:
    """Address of a head that this machine may join: the one that is named, or that ``RAY_ADDRESS`` names.

    ``auto``: the head that Ray itself would join from here.

    Raises:
        UserError: it does not answer, refuses the token, or has other versions; or ``auto`` names none.
    """
    place = address or os.environ.get("RAY_ADDRESS") or "127.0.0.1"
    if place == "auto":
        # Ray has no public call for it: this is what `ray.init` asks.
        from ray._private.services import canonicalize_bootstrap_address_or_die

        try:
            place = canonicalize_bootstrap_address_or_die(place)
        except (ConnectionError, ValueError) as error:
            sentence = first_line(error).partition(". ")[0]
            raise UserError(
                f"auto: names no head ({sentence}); expected a node of Ray on this machine; start it, or name the head "
                "with --address HOST:PORT"
            ) from error
    place = start_line.with_port(place)
    start_line.refuse_unlike(place)
    return place


def survey_at(place: str) -> list[NodeFacts]:
    """Join the cluster of a head and ask all of its nodes.

    Raises:
        UserError: it cannot be joined, or this machine is no node of it: Ray itself would wait for a minute.
    """
    if not any(process.info["name"] == "raylet" for process in psutil.process_iter(["name"])):
        raise UserError(f"{place}: this machine is no node of it; relief-ray cluster join {place}, or ask on the head")
    with ray_session(SessionOptions(address=place)):
        return survey()


def survey() -> list[NodeFacts]:
    """Ask all living nodes of the cluster that this process has joined, the head first, then by type and address."""
    asked_s = time.time()
    answers, heard_s = list(ask_nodes(_describe_here, _ANSWER_S)), time.time()
    facts = [
        NodeFacts(
            node=node["NodeID"],
            address=node["NodeManagerAddress"],
            is_head="node:__internal_head__" in node["Resources"],
            resources={name: amount for name, amount in node["Resources"].items() if not name.startswith(_OWN)},
            answer=answer,
            why=why,
            # Its clock told a moment between question and answer.
            clock_off_s=answer.clock_s - min(max(answer.clock_s, asked_s), heard_s) if answer else None,
        )
        for node, answer, why in answers
    ]
    return sorted(facts, key=lambda f: (not f.is_head, min(types_of(f.resources), default="~"), f.address, f.node))


def types_of(resources: Mapping[str, float]) -> list[str]:
    """The device types that a node offers."""
    return [name for name in resources if name.startswith("type_")]


def faults_of(nodes: Sequence[NodeFacts]) -> list[str]:
    """Reasons why any run would refuse these nodes: no answer, or unlike versions and sources; each with the fix."""
    faults = [f"{node.name}: {node.why}; install relief-ray there, and start it again" for node in nodes if node.why]
    programs = grouped(
        (f"{node.answer.version} ({node.answer.digest[:8]})", _place(node)) for node in nodes if node.answer is not None
    )
    if len(programs) > 1:
        kinds = "; ".join(f"{program} on {listed(names)}" for program, names in programs.items())
        faults.append(f"RELIEF-Ray differs: {kinds}; install the same version on every node")
    return faults


def data_faults(nodes: Sequence[NodeFacts], rules: Mapping[str, str]) -> list[str]:
    """Reasons why a run would refuse nodes that train: with ``runtime.data=node`` the data have to lie there.

    ``rules``: ``runtime.data`` by dataset.
    """
    return [
        f"{name} is not on {listed(lacking)}, and runtime.data=node (which runtime.physical=true implies) sends no "
        f"rows; there: relief-ray data fetch {name}, or put a client's shard there (docs/jetson.md)"
        for name, rule in rules.items()
        if rule == "node" and (lacking := _lacking(nodes, name))
    ]


def data_notes(nodes: Sequence[NodeFacts], rules: Mapping[str, str]) -> list[str]:
    """Say what becomes of data that a node has not, or of which nobody can say whether it has them."""
    notes = [
        f"{name} is your own: each node looks for its files when a run begins, below its own RELIEF_DATA or cache"
        for name, rule in rules.items()
        if is_path(name) and rule != "ship"
    ]
    return notes + [
        f"{name} is not on {listed(lacking)}: rows are sent there; without that: relief-ray data fetch {name}"
        for name, rule in rules.items()
        if rule == "auto" and (lacking := _lacking(nodes, name))
    ]


def _lacking(nodes: Sequence[NodeFacts], dataset: str) -> list[str]:
    """Nodes that answered and have neither the dataset nor a shard of it; of one's own data nobody knows."""
    return [
        _place(node)
        for node in nodes
        if not is_path(dataset)
        and node.answer is not None
        and dataset not in (*node.answer.datasets, *node.answer.shards)
    ]


def warnings_of(nodes: Sequence[NodeFacts]) -> list[str]:
    """Differences that a run would take, but its user should know of; each with the fix."""
    notes = [
        f"the clock of {_place(node)} is {node.clock_off_s:+,.0f} s from this machine's, and so are dates in its logs; "
        "there: timedatectl set-ntp true"
        for node in nodes
        if abs(node.clock_off_s or 0) > 1.0
    ]
    torches = sorted({node.answer.torch.partition("+")[0] for node in nodes if node.answer is not None})
    if len(torches) > 1:
        notes.append(
            f"versions of torch differ ({listed(torches)}): so may the last bits of what nodes compute; install one on "
            "all of them"
        )
    return notes


def _place(node: NodeFacts) -> str:
    """A node's name with its types, since host names may repeat."""
    types = "+".join(types_of(node.resources)) or ("head" if node.is_head else "")
    return f"{node.name} ({types})" if types else node.name
