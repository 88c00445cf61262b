"""Facts about the nodes of a cluster: versions, sources, device, data. A task on each of them answers."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from relief_ray.plugins.load import is_path
from relief_ray.support.errors import listed, several

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
