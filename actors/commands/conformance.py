"""`relief-ray strategies` lists methods; `relief-ray conformance my.module:Mine` checks that one keeps the rules."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Literal, cast

import typer

from actors.launch import ray_executors
from actors.runtime.session import SessionOptions, process_options, ray_session
from relief_ray.conformance.reference import WITHIN, Agreement, ReferenceNumbers, agreement, reference_numbers
from relief_ray.conformance.trial import line, names_dataset, trial_of
from relief_ray.data.registry import DATASETS, load_own
from relief_ray.plugins.load import is_path
from relief_ray.strategies import DESCRIBED
from relief_ray.strategies.citations import cite
from relief_ray.studies.describe import owners_of
from relief_ray.support.errors import UserError, counted
from relief_ray.support.text import WIDTH, filled, table

# `relief-ray conformance --address HOST:PORT`: does every node of a cluster compute what this machine computes?


# A board may have to import torch and parse the excerpt first.
_ANSWER_S = 600.0


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeResult:
    """A node's numbers on one device, compared with this machine's.

    Attributes:
        node: its host name, or its address where it did not answer.
        address: its address in the cluster.
        numbers: what it computed; None where it did not.
        compared: the comparison; None where there is nothing to compare.
        why: what happened instead.
    """

    node: str
    address: str
    numbers: ReferenceNumbers | None = None
    compared: Agreement | None = None
    why: str = ""

    @property
    def is_kept(self) -> bool:
        """Whether the node reproduces the reference."""
        return self.compared is not None and self.compared.is_kept


def conformance_of_nodes(address: str, as_json: bool) -> None:
    """Print a line per node; end with 1 where one does not reproduce the numbers.

    Raises:
        UserError: the cluster cannot be joined.
    """
    reference = reference_numbers()
    with ray_session(SessionOptions(address=address)):
        results = results_of_nodes(reference)
    print(as_data(reference, results) if as_json else as_text(reference, results))
    if not all(result.is_kept for result in results):
        raise typer.Exit(1)


def _compute() -> tuple[str, list[ReferenceNumbers]]:
    """This node's host name, and its numbers: on the CPU, and on its GPU where it has one."""
    import platform

    from relief_ray.support.process import choose_device

    numbers = [reference_numbers()]
    if choose_device("auto") == "cuda":
        numbers.append(reference_numbers("cuda"))
    return platform.node(), numbers


def results_of_nodes(reference: ReferenceNumbers, wait_s: float = _ANSWER_S) -> list[NodeResult]:
    """Let all living nodes of the joined cluster compute, and compare."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    nodes = [node for node in ray.nodes() if node["Alive"]]
    # Ray's typing does not know these options of functions.
    ask = cast(Any, ray.remote)(num_cpus=0, max_retries=0)(_compute)
    options = process_options(1, hide_gpus=False)
    refs = {
        node["NodeManagerAddress"] + f" ({node['NodeID'][:8]})": ask.options(
            scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False), **options
        ).remote()
        for node in nodes
    }
    ray.wait(list(refs.values()), num_returns=len(refs), timeout=wait_s)
    return [result for place, ref in refs.items() for result in _results(place, ref, reference)]


def _results(place: str, ref: object, reference: ReferenceNumbers) -> list[NodeResult]:
    import ray

    try:
        name, numbers = cast("tuple[str, list[ReferenceNumbers]]", ray.get(cast(Any, ref), timeout=0.1))
    except ray.exceptions.GetTimeoutError:
        return [NodeResult(node=place, address=place, why="no answer in time; is it busy, or cut off?")]
    except ray.exceptions.RayError as error:
        return [NodeResult(node=place, address=place, why=str(error).strip().splitlines()[-1].strip()[:200])]
    return [NodeResult(node=name, address=place, numbers=each, compared=agreement(each, reference)) for each in numbers]


def _node_line(result: NodeResult) -> str:
    """One node in words."""
    if result.numbers is None or result.compared is None:
        return f"  BROKEN  {result.node}: {result.why}"
    seen, machine = result.compared, result.numbers.machine
    on = machine.device if machine.device != "cpu" else machine.cpu
    head = f"{'kept  ' if seen.is_kept else 'BROKEN'}  {result.node} {result.address}, {on}, torch {machine.torch}"
    if seen.is_same:
        return f"  {head}: same bits"
    expected = "equal processors: expected the same bits" if seen.needs_bits else f"allowed {WITHIN:g}"
    return f"  {head}: largest relative difference {seen.difference:.2g} ({expected})"


def as_text(reference: ReferenceNumbers, results: Sequence[NodeResult]) -> str:
    """A line per node and a verdict."""
    machine = reference.machine
    broken = [result.node for result in results if not result.is_kept]
    verdict = f"{counted(len(results), 'result')}: " + (f"broken on {', '.join(broken)}" if broken else "all kept")
    fix = ["fix: the same relief-ray and torch everywhere (`relief-ray cluster check`), then test that node's memory"]
    return "\n".join(
        [
            f"reference: this machine, {machine.cpu}, torch {machine.torch}, {reference.sha256[:12]}",
            *map(_node_line, results),
            verdict,
            *(fix if broken else []),
        ]
    )


def as_data(reference: ReferenceNumbers, results: Sequence[NodeResult]) -> str:
    """The same as JSON."""
    return json.dumps(
        {
            "reference": _facts(reference),
            "within": WITHIN,
            "keeps": all(result.is_kept for result in results),
            "nodes": [
                {
                    "node": r.node,
                    "address": r.address,
                    "kept": r.is_kept,
                    "same_bits": None if r.compared is None else r.compared.is_same,
                    "needs_bits": None if r.compared is None else r.compared.needs_bits,
                    "difference": None if r.compared is None else r.compared.difference,
                    "numbers": None if r.numbers is None else _facts(r.numbers),
                    "why": r.why,
                }
                for r in results
            ],
        },
        indent=1,
    )


def _facts(numbers: ReferenceNumbers) -> Mapping[str, object]:
    return {"sha256": numbers.sha256, **numbers.machine.model_dump(mode="json")}


def strategies_command(bibtex: bool, as_json: bool) -> None:
    """Print the list, or the references."""
    if bibtex:
        print(cite(p.config.citation for p in DESCRIBED.values() if p.config.citation is not None))
    elif as_json:
        described = {
            name: {"kind": p.kind, "about": p.about, "config": p.config.model_dump(mode="json")}
            for name, p in DESCRIBED.items()
        }
        print(json.dumps(described, indent=1))
    else:
        rows = [[name, p.kind, p.about] for name, p in DESCRIBED.items()]
        print(table(["strategy", "kind", "what it does"], rows, left=3, width=WIDTH))
        print("\n" + filled("Change one value: --set strategy.gamma=0.5. Use in a run: --strategies fedavg,relief"))


def one_of(target: str | None, address: str | None) -> Literal["rules", "nodes"]:
    """Choose what is judged: a target's rules, or the nodes of a cluster.

    Raises:
        UserError: both were given, or neither.
    """
    if (target is None) == (address is None):
        raise UserError(
            f"conformance: found {'both TARGET and' if target else 'neither TARGET nor'} --address, expected one of "
            "them: `conformance relief`, or `conformance --address HOST:PORT` for the nodes of a cluster"
        )
    return "rules" if address is None else "nodes"


def conformance_command(
    target: str, settings: Sequence[str], use_ray: bool, as_json: bool, equals: str = "", within: float = 0.0
) -> None:
    """Print a line per rule; end with 1 where one is broken. ``equals``: judge only whether it is that method."""
    with ExitStack() as stack:
        trial = trial_of(target, settings, ray_executors(stack) if use_ray else {}, equals, within)
        if as_json:
            result = trial.judge()
        else:
            print(trial.heading)
            result = trial.judge(lambda verdict: print(line(verdict, trial.rules), flush=True))
    print(json.dumps(result.facts, indent=1) if as_json else result.summary)
    if not result.ok:
        raise typer.Exit(1)
    if names_dataset(target) and not as_json:
        print("", *owners_of((load_own(target) if is_path(target) else DATASETS[target]).spec), sep="\n")
