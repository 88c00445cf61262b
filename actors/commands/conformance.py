"""`relief-ray strategies` lists methods; `relief-ray conformance my.module:Mine` checks that one keeps the rules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import typer

from actors.cluster.survey import ask_nodes
from actors.launch import ray_executors
from actors.runtime.session import SessionOptions, process_options, ray_session
from actors.terminal.exit_codes import Result
from relief_ray.conformance.runner import WITHIN, Agreement, ReferenceNumbers, agreement, reference_numbers
from relief_ray.conformance.trial import concluded, judged_of, line, names_dataset
from relief_ray.data.registry import DATASETS, load_own
from relief_ray.plugins.load import is_path
from relief_ray.strategies import DESCRIBED
from relief_ray.strategies.citations import cite
from relief_ray.studies.describe import owners_of
from relief_ray.support.errors import Setting, UserError, counted
from relief_ray.support.text import WIDTH, filled, table

# `relief-ray conformance --address HOST:PORT`: does every node of a cluster compute what this machine computes?


# A board may have to import torch and parse the excerpt first.
_ANSWER_S = 600.0


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeResult:
    """A node's numbers on one device, compared with this machine's."""

    node: str
    """Its host name, or its address where it did not answer."""
    address: str
    numbers: ReferenceNumbers | None = None
    """What it computed; None where it did not."""
    compared: Agreement | None = None
    """None where there is nothing to compare."""
    why: str = ""
    """What happened instead."""

    @property
    def is_kept(self) -> bool:
        """Whether the node reproduces the reference."""
        return self.compared is not None and self.compared.is_kept


def _judge_nodes(address: str) -> Iterator[Result]:
    """Give a line per node; end with 1 where one does not reproduce the numbers.

    Raises:
        UserError: the cluster cannot be joined.
    """
    reference = reference_numbers()
    with ray_session(SessionOptions(address=address)):
        results = results_of_nodes(reference)
    yield answer(reference, results)
    if not all(result.is_kept for result in results):
        raise typer.Exit(1)


def _compute() -> tuple[str, list[ReferenceNumbers]]:
    """This node's host name, and its numbers: on the CPU, and on its GPU where it has one."""
    import platform

    from relief_ray.support.process import choose_device

    on_gpu = [reference_numbers("cuda")] if choose_device("auto") == "cuda" else []
    return platform.node(), [reference_numbers(), *on_gpu]


def results_of_nodes(reference: ReferenceNumbers) -> list[NodeResult]:
    """Let all living nodes of the joined cluster compute, and compare."""
    results = []
    for node, answer, why in ask_nodes(_compute, _ANSWER_S, **process_options(1, hide_gpus=False)):
        place = f"{node['NodeManagerAddress']} ({node['NodeID'][:8]})"
        if answer is None:
            results.append(NodeResult(node=place, address=place, why=why))
            continue
        name, numbers = answer
        results += [
            NodeResult(node=name, address=place, numbers=each, compared=agreement(each, reference)) for each in numbers
        ]
    return results


def _node_line(result: NodeResult) -> str:
    """One node in words."""
    if result.numbers is None or result.compared is None:
        return f"  BROKEN  {result.node}: {result.why}"
    compared, machine = result.compared, result.numbers.machine
    device = machine.cpu if machine.device == "cpu" else machine.device
    if compared.is_same:
        outcome = "same bits"
    else:
        allowed = "equal processors: expected the same bits" if compared.needs_bits else f"allowed {WITHIN:g}"
        outcome = f"largest relative difference {compared.difference:.2g} ({allowed})"
    kept = "kept  " if compared.is_kept else "BROKEN"
    return f"  {kept}  {result.node} {result.address}, {device}, torch {machine.torch}: {outcome}"


def answer(reference: ReferenceNumbers, results: Sequence[NodeResult]) -> Result:
    """A line per node and a verdict, and the same as JSON."""
    machine = reference.machine
    lines = [
        f"reference: this machine, {machine.cpu}, torch {machine.torch}, {reference.sha256[:12]}",
        *map(_node_line, results),
    ]
    broken = [result.node for result in results if not result.is_kept]
    lines.append(f"{counted(len(results), 'result')}: " + (f"broken on {', '.join(broken)}" if broken else "all kept"))
    if broken:
        lines.append(
            "fix: the same relief-ray and torch everywhere (`relief-ray cluster check`), then test that node's memory"
        )
    facts = {
        "reference": _facts(reference),
        "within": WITHIN,
        "keeps": not broken,
        "nodes": [
            {
                "node": r.node,
                "address": r.address,
                "kept": r.is_kept,
                "same_bits": r.compared and r.compared.is_same,
                "needs_bits": r.compared and r.compared.needs_bits,
                "difference": r.compared and r.compared.difference,
                "numbers": r.numbers and _facts(r.numbers),
                "why": r.why,
            }
            for r in results
        ],
    }
    return Result(lines, facts)


def _facts(numbers: ReferenceNumbers) -> Mapping[str, object]:
    return {"sha256": numbers.sha256, **numbers.machine.model_dump(mode="json")}


def strategies_command(bibtex: bool) -> Result:
    """List the methods, or their references."""
    if bibtex:
        text = cite(filter(None, (p.config.citation for p in DESCRIBED.values())))
        return Result(text, {"bibtex": text})
    described = {
        name: {"kind": p.kind, "about": p.about, "config": p.config.model_dump(mode="json")}
        for name, p in DESCRIBED.items()
    }
    rows = [[name, p.kind, p.about] for name, p in DESCRIBED.items()]
    advice = filled("Change one value: --set strategy.gamma=0.5. Use in a run: --strategies fedavg,relief")
    text = f"{table(['strategy', 'kind', 'what it does'], rows, left=3, width=WIDTH)}\n\n{advice}"
    return Result(text, described)


def conformance_command(
    target: str | None, settings: Sequence[Setting], address: str | None, ray: bool, equals: str, within: float
) -> Iterator[Result]:
    """Judge a target's rules, or the nodes of a cluster; ``equals``: judge only whether it is that method.

    Raises:
        UserError: both were given, or neither.
        typer.Exit: a rule is broken, or a node does not reproduce the numbers; with code 1.
    """
    if (target is None) == (address is None):
        raise UserError(
            f"conformance: found {'both TARGET and' if target else 'neither TARGET nor'} --address, expected one of "
            "them: `conformance relief`, or `conformance --address HOST:PORT` for the nodes of a cluster"
        )
    if target is None:
        assert address is not None
        yield from _judge_nodes(address)
        return
    with ExitStack() as stack:
        judged, reached = judged_of(target, settings, ray_executors(stack) if ray else {}, equals, within)
        yield Result(judged.heading)
        verdicts = []
        for verdict in reached:
            yield Result(line(verdict, judged.rules))
            verdicts.append(verdict)
    result = concluded(judged, verdicts)
    yield Result(result.summary, result.facts)
    if not result.ok:
        raise typer.Exit(1)
    if names_dataset(target):
        owners = owners_of((load_own(target) if is_path(target) else DATASETS[target]).spec)
        yield Result(["", *owners])
