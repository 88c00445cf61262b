"""Facts about the nodes of a cluster: versions, sources, device, data. A task on each of them answers."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from relief_ray.errors import listed

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
    from relief_ray.files import cache_root
    from relief_ray.process import choose_device, device_name
    from relief_ray.records.identity import machine_facts, source_digest

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
    """Reasons why a run would refuse these nodes: no answer, or unlike versions and sources; each with the fix."""
    faults = [f"{node.name}: {node.why}; install relief-ray there, and start it again" for node in nodes if node.why]
    answers = [(node, node.answer) for node in nodes if node.answer is not None]
    programs: dict[tuple[str, str], list[str]] = {}
    for node, answer in answers:
        programs.setdefault((answer.version, answer.digest), []).append(_place(node))
    if len(programs) > 1:
        kinds = [f"{version} ({digest[:8]}) on {listed(names)}" for (version, digest), names in programs.items()]
        faults.append(f"RELIEF-Ray differs: {'; '.join(kinds)}; install the same version on every node")
    return faults


def warnings_of(nodes: Sequence[NodeFacts], dataset: str | None) -> list[str]:
    """Differences that a run would take, but its user should know of."""
    answers = [(node, node.answer) for node in nodes if node.answer is not None]
    notes = []
    torches = {answer.torch.partition("+")[0] for _, answer in answers}
    if len(torches) > 1:
        notes.append(
            f"versions of torch differ ({listed(sorted(torches))}): so may the last bits of what nodes compute"
        )
    lacking = [_place(node) for node, answer in answers if dataset is not None and dataset not in answer.datasets]
    if lacking:
        notes.append(f"{dataset} is not on {listed(lacking)}; there: relief-ray data fetch {dataset}")
    return notes


def _place(node: NodeFacts) -> str:
    """A node's name with its types, since host names may repeat."""
    types = "+".join(types_of(node.resources)) or ("head" if node.is_head else "")
    return f"{node.name} ({types})" if types else node.name
