"""Facts about the nodes of a cluster: versions, sources, device, data. A task on each of them answers."""

from __future__ import annotations

import json
import platform
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, cast, get_args

from actors.cluster.start_line import DeviceLetter
from actors.runtime.placement import GRAIN, total_of
from actors.runtime.session import MIB
from relief_ray.plugins.load import is_path
from relief_ray.support.errors import listed, several

# Needs of a run: whether the nodes of a cluster meet them, and the smallest change that would make them do so.


Bundle = Mapping[str, float]
# More processes than will ever share a GPU.
_MANY: Final = 1000
# Resources that any node may lend; every other one is a device's own.
PLAIN: Final = ("CPU", "GPU", "memory")
_JOINABLE: Final[Mapping[tuple[str, ...], str]] = {(f"type_{letter}",): letter for letter in get_args(DeviceLetter)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    """Whether processes find places on nodes.

    Attributes:
        needed: resources of all processes together.
        unplaced: processes that found none, the most demanding first; empty where all did.
    """

    needed: Bundle
    unplaced: tuple[Bundle, ...]

    @property
    def missing(self) -> Bundle:
        """Resources of the processes that found no place, together."""
        return total_of(self.unplaced)

    @property
    def fits(self) -> bool:
        """True where every process has a place."""
        return not self.unplaced


def fit(bundles: Iterable[Bundle], nodes: Iterable[Bundle]) -> Fit:
    """Give every process a place, the most demanding first, each on one node.

    First fit in decreasing order: exact where processes are alike, as clients of a type are.
    """
    wanted = sorted(bundles, key=_weight, reverse=True)
    free = [dict(node) for node in nodes]
    unplaced = tuple(bundle for bundle in wanted if not _fits_somewhere(bundle, free))
    return Fit(needed=total_of(wanted), unplaced=unplaced)


def _weight(bundle: Bundle) -> tuple[int, float]:
    """Rare resources first, then much."""
    rare = sum(1 for name in bundle if name not in ("CPU", "memory"))
    return rare, bundle.get("CPU", 0.0) + bundle.get("memory", 0.0) / (1024 * MIB)


def _fits_somewhere(bundle: Bundle, free: list[dict[str, float]]) -> bool:
    for node in free:
        if all(node.get(name, 0.0) + GRAIN >= amount for name, amount in bundle.items()):
            for name, amount in bundle.items():
                node[name] = node.get(name, 0.0) - amount
            return True
    return False


def wished(devices: Iterable[Bundle], nodes: Sequence[Bundle]) -> list[Bundle]:
    """Machines that clients on such ``devices`` lack: one for all that are alike, with one GPU.

    Where the cluster has GPUs, a node without one is no place for them; where it has none, they get none.
    """
    gpus = min(1.0, total_of(nodes).get("GPU", 0.0))
    lacking = fit([{**device, "GPU": gpus / _MANY} for device in devices], nodes).unplaced
    alike = Counter(tuple(device.items()) for device in lacking)
    return [
        {name: gpus if name == "GPU" else amount * number for name, amount in device}
        for device, number in alike.items()
    ]


def changes(result: Fit, address: str) -> list[str]:
    """The least that has to join for everything to fit, as commands; empty where it does.

    A device's own line asks for the GPU or cores that its clients need: those of another node are of no use to them.
    Where ``cluster join`` cannot offer a device's resources, a sentence says how Ray takes them.
    """
    alike: dict[tuple[str, ...], list[Bundle]] = {}
    for bundle in result.unplaced:
        alike.setdefault(tuple(sorted(name for name in bundle if name not in PLAIN)), []).append(bundle)
    kinds = sorted(alike.items(), key=lambda item: (not item[0], item[0]))
    return [_change(own, total_of(bundles), address) for own, bundles in kinds]


def _change(own: tuple[str, ...], total: Bundle, address: str) -> str:
    """Say how one machine joins that offers ``total``; ``own``: its device's resources."""
    join = f"relief-ray cluster join {address}"
    if own and own not in _JOINABLE:
        offered = json.dumps({name: _ceil(total[name]) for name in own})
        return (
            f"`cluster join` has no option for {' with '.join(own)}: add --resources='{offered}' to the `ray start` "
            f"that this prints: {join}{_options(total)} --print"
        )
    number = max(1, round(total[own[0]])) if own else 1
    count = f" --count {number}" if number > 1 else ""
    device = f" --type {_JOINABLE[own]}{count}" if own else ""
    return f"{join}{device}{_options(total)}"


def _options(plain: Bundle) -> str:
    """Options of one node that offers what is missing."""
    words = {"CPU": "--num-cpus", "GPU": "--num-gpus"}
    parts = [f" {words[name]} {_ceil(plain[name])}" for name in words if plain.get(name, 0.0) > 0]
    if plain.get("memory", 0.0) > 0:
        parts.append(f" --memory-mib {_ceil(plain['memory'] / MIB)}")
    return "".join(parts)


def _ceil(amount: float) -> int:
    return int(-(-(amount - GRAIN) // 1))


def in_words(resources: Bundle) -> str:
    """``4 cores, 2 GPUs, 3 x type_a, 1,024 MiB``."""
    units = {"CPU": "core", "GPU": "GPU"}
    amounts = [(resources.get(name, 0.0), unit) for name, unit in units.items()]
    parts = [f"{amount:g} {unit}{'' if amount == 1 else 's'}" for amount, unit in amounts if amount > 0]
    own = {name: amount for name, amount in resources.items() if name not in (*units, "memory", "server")}
    parts += [f"{amount:g} x {name}" for name, amount in sorted(own.items()) if amount > 0]
    if resources.get("memory", 0.0) > 0:
        parts.append(f"{resources['memory'] / MIB:,.0f} MiB")
    if resources.get("server", 0.0) > 0:
        parts.append("server")
    return ", ".join(parts) or "nothing"


def at_once(trial: Sequence[Bundle], nodes: Sequence[Bundle], most: int) -> int:
    """Number of equal trials that find places together, at most ``most``."""
    number = 0
    while number < most and fit([bundle for _ in range(number + 1) for bundle in trial], nodes).fits:
        number += 1
    return number


_ANSWER_S = 60.0
_OWN = ("node:", "object_store_memory", "accelerator_type:")


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeAnswer:
    """Answer of a node.

    Attributes:
        name: its host name.
        python, ray, torch, version: versions of Python, Ray, torch and RELIEF-Ray.
        digest: hash of RELIEF-Ray's sources.
        device: its GPU, else its processor.
        datasets: datasets whose raw files it has.
        cached: datasets that it has parsed already.
        shards: by dataset, the clients whose shards it has.
    """

    name: str
    python: str
    ray: str
    torch: str
    version: str
    digest: str
    device: str
    datasets: tuple[str, ...]
    cached: tuple[str, ...]
    shards: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

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
    resources: Mapping[str, float] = field(default_factory=dict)
    answer: NodeAnswer | None = None
    why: str = ""

    @property
    def name(self) -> str:
        """Its host name, or its address where it did not answer."""
        return self.answer.name if self.answer is not None else self.address


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


def survey(wait_s: float = _ANSWER_S) -> list[NodeFacts]:
    """Ask all living nodes of the cluster that this process has joined, the head first, then by type and address."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    nodes = [node for node in ray.nodes() if node["Alive"]]
    # Ray's typing does not know these options of functions.
    ask = cast(Any, ray.remote)(num_cpus=0, max_retries=0)(_describe_here)
    answers = {
        node["NodeID"]: ask.options(
            scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        ).remote()
        for node in nodes
    }
    ray.wait(list(answers.values()), num_returns=len(answers), timeout=wait_s)
    facts = [_facts(node, answers[node["NodeID"]], wait_s) for node in nodes]
    return sorted(
        facts, key=lambda f: (not f.is_head, *(sorted(types_of(f.resources)) or ["~"])[:1], f.address, f.node)
    )


def _facts(node: Mapping[str, Any], answer: object, wait_s: float) -> NodeFacts:
    import ray

    known = NodeFacts(
        node=node["NodeID"],
        address=node["NodeManagerAddress"],
        is_head="node:__internal_head__" in node["Resources"],
        resources={k: v for k, v in node["Resources"].items() if not k.startswith(_OWN)},
    )
    try:
        return replace(known, answer=cast(NodeAnswer, ray.get(cast(Any, answer), timeout=0.1)))
    except ray.exceptions.GetTimeoutError:
        return replace(known, why=f"no answer within {wait_s:g} s")
    except ray.exceptions.RayError as error:
        return replace(known, why=str(error).strip().splitlines()[-1].strip()[:200])


def types_of(resources: Mapping[str, float]) -> dict[str, float]:
    """The device types that a node offers."""
    return {name: amount for name, amount in resources.items() if name.startswith("type_")}


def faults_of(nodes: Sequence[NodeFacts]) -> list[str]:
    """Reasons why any run would refuse these nodes: no answer, or unlike versions and sources; each with the fix."""
    faults = [f"{node.name}: {node.why}; install relief-ray there, and start it again" for node in nodes if node.why]
    answers = [(node, node.answer) for node in nodes if node.answer is not None]
    programs: dict[tuple[str, str], list[str]] = {}
    for node, answer in answers:
        programs.setdefault((answer.version, answer.digest), []).append(_place(node))
    if len(programs) > 1:
        kinds = [f"{version} ({digest[:8]}) on {listed(names)}" for (version, digest), names in programs.items()]
        faults.append(f"RELIEF-Ray differs: {'; '.join(kinds)}; install the same version on every node")
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
        f"{name} is your own: each node looks for its files when a run begins, below its own RELIEF_DATA"
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
    answers = [] if is_path(dataset) else [(node, node.answer) for node in nodes if node.answer is not None]
    return [_place(node) for node, answer in answers if dataset not in (*answer.datasets, *answer.shards)]


def warnings_of(nodes: Sequence[NodeFacts]) -> list[str]:
    """Differences that a run would take, but its user should know of."""
    answers = [(node, node.answer) for node in nodes if node.answer is not None]
    notes = []
    torches = {answer.torch.partition("+")[0] for _, answer in answers}
    if len(torches) > 1:
        notes.append(
            f"versions of torch differ ({listed(sorted(torches))}): so may the last bits of what nodes compute"
        )
    return notes


def _place(node: NodeFacts) -> str:
    """A node's name with its types, since host names may repeat."""
    types = "+".join(types_of(node.resources)) or ("head" if node.is_head else "")
    return f"{node.name} ({types})" if types else node.name
