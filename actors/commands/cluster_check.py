"""`relief-ray cluster check`: the nodes of a cluster, and whether a target fits on them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

from actors.cluster import GCS_PORT
from actors.cluster.start_line import refuse_other, versions_here, versions_of
from actors.cluster.survey import (
    PLAIN,
    Bundle,
    Fit,
    NodeFacts,
    at_once,
    changes,
    data_faults,
    data_notes,
    faults_of,
    fit,
    in_words,
    survey,
    warnings_of,
    wished,
)
from actors.launch import choose_mode
from actors.runtime.placement import Nodes, total_of
from actors.runtime.session import SessionOptions, ray_session
from actors.terminal.exit_codes import BAD_INPUT, Stopped
from relief_ray.config.experiment import ExperimentConfig
from relief_ray.studies.cells import Cell
from relief_ray.studies.plan import target_config
from relief_ray.studies.presets import PRESETS
from relief_ray.support.errors import UserError, counted
from relief_ray.support.text import wrapped

_MOST_AT_ONCE = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class Need:
    """Processes of a target and the resources that they take.

    Attributes:
        title: the target in words.
        data: by dataset, where its rows come from (``runtime.data``); in a grid ``node`` where one of its cells has it.
        bundles: resources of each of its processes; of a grid, of those of its most demanding cell.
        num_cells: cells of a grid; None: it is none.
        impossible: why no number of nodes like these can give it; empty where some can.
    """

    title: str
    data: Mapping[str, str] = field(default_factory=dict)
    bundles: tuple[Bundle, ...]
    num_cells: int | None = None
    impossible: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """A target on the nodes of a cluster: the commands that would make it fit are in ``changes``."""

    need: Need
    fit: Fit
    at_once: int
    changes: tuple[str, ...]

    @property
    def fits(self) -> bool:
        """True where it can run."""
        return self.fit.fits and not self.need.impossible


def check(target: Sequence[str], settings: Sequence[str], address: str | None, as_json: bool) -> None:
    """Show nodes and verdict.

    Raises:
        Stopped: something does not fit, with exit code 2.
        UserError: the cluster cannot be joined, or the target is none.
    """
    place = _place(address)
    with ray_session(SessionOptions(address=place)):
        nodes = survey()
    verdict = _judge(target, settings, [node.resources for node in nodes], place) if target else None
    faults, notes = faults_of(nodes), warnings_of(nodes)
    if verdict is not None:
        training = trains(nodes, verdict.need)
        faults += data_faults(training, verdict.need.data)
        notes += data_notes(training, verdict.need.data)
    print(
        as_text(place, nodes, verdict, faults, notes) if not as_json else as_data(place, nodes, verdict, faults, notes)
    )
    if faults or (verdict is not None and not verdict.fits):
        raise Stopped(BAD_INPUT, "it does not fit" if not faults else "the nodes are no cluster for a run yet")


def trains(nodes: Sequence[NodeFacts], need: Need) -> list[NodeFacts]:
    """The nodes that a process of the target may be put on; the head is where the driver opens the data itself."""
    return [
        node
        for node in nodes
        if not node.is_head
        and any(all(node.resources.get(name, 0.0) >= amount for name, amount in b.items()) for b in need.bundles)
    ]


def _place(address: str | None) -> str:
    """Address of the head, which answers and takes the token.

    Raises:
        UserError: it does not, or runs other versions of Ray or Python.
    """
    place = address or os.environ.get("RAY_ADDRESS") or f"127.0.0.1:{GCS_PORT}"
    place = place if ":" in place or place == "auto" else f"{place}:{GCS_PORT}"
    if place != "auto":
        refuse_other(versions_here(), versions_of(place), place)
    return place


def _judge(target: Sequence[str], settings: Sequence[str], offers: Sequence[Bundle], place: str) -> Verdict:
    need = need_of(target, settings, offers)
    result = fit(need.bundles, offers)
    most = min(need.num_cells or 1, _MOST_AT_ONCE)
    return Verdict(
        need=need,
        fit=result,
        at_once=at_once(need.bundles, offers, most) if need.num_cells else 0,
        changes=tuple(changes(result, place)),
    )


def need_of(target: Sequence[str], settings: Sequence[str], offers: Sequence[Bundle]) -> Need:
    """Needs of a target: of a preset or file placed by type, unless ``settings`` say otherwise; of a grid as it is.

    ``target``: the words after `relief-ray`, of which `run` may be left out, and `grid` where no preset has the name.
    ``offers``: resources of each node.

    Raises:
        UserError: there is no such target.
    """
    from tune_configs.registry import GRIDS, cells_of, load_grid

    verb, name = ("", target[0]) if len(target) == 1 else (target[0], target[1])
    if len(target) > 2 or verb not in ("", "run", "grid"):
        raise UserError(f"check {' '.join(target)}: expected a preset, FILE.yaml, or a grid: `demo`, `grid smoke`")
    # As a command on a node of all its resources would see the cluster.
    nodes = Nodes(each=tuple(offers), here=total_of(offers))
    if verb == "grid" or (not verb and (name.endswith(".py") or (name in GRIDS and name not in PRESETS))):
        return _grid_need(name, cells_of(load_grid(name), settings), nodes)
    keys = {setting.partition("=")[0] for setting in settings}
    typed = [] if keys & {"runtime.mode", "runtime.placement"} else ["runtime.mode=actors", "runtime.placement=typed"]
    return _needed(target_config(name, [*typed, *settings]), f"run {name}", nodes, is_trial=False)


def _grid_need(name: str, cells: Sequence[Cell], nodes: Nodes) -> Need:
    """Needs of the most demanding cell of a grid."""
    kinds = {repr((c.config.fleet, c.config.data, c.config.runtime, c.config.training.device)): c for c in cells}
    needs = [_needed(cell.config, f"grid {name}", nodes, is_trial=True) for cell in kinds.values()]
    largest = max(needs, key=lambda n: (bool(n.impossible), len(n.bundles), sorted(total_of(n.bundles).values())))
    data: dict[str, str] = {}
    for name, rule in (item for need in needs for item in need.data.items()):
        data[name] = "node" if "node" in (rule, data.get(name)) else rule
    return replace(largest, title=f"{largest.title}, a cell of {len(cells)}", data=data, num_cells=len(cells))


def _needed(config: ExperimentConfig, title: str, nodes: Nodes, *, is_trial: bool) -> Need:
    """Bundles of one run; of a typed one as if the cluster had all devices."""
    from actors.grids.places import bundles_of, fleet_of, is_chosen_here, settled

    fleet, types = fleet_of(config)
    is_typed = config.runtime.placement == "typed"
    devices = [types[client.device].ray_resources for client in fleet.clients] if is_typed else []
    if is_trial and is_chosen_here(config.runtime):
        runtime = settled(config.runtime, config.runtime.num_hosts or int(nodes.number > 1))
    else:
        mode = choose_mode(config.runtime, len(fleet), config.training.stack)
        runtime = config.runtime.model_copy(update={"mode": mode})
    config = config.model_copy(update={"runtime": runtime})
    title = f"{title}: {counted(len(fleet), 'client')}, mode {runtime.mode}, placement {config.runtime.placement}"
    data = {config.data.name: config.runtime.data}
    try:
        bundles = bundles_of(config, replace(nodes, each=(*nodes.each, *wished(devices, nodes.each))))
    except UserError as error:
        return Need(title=title, data=data, bundles=(), impossible=str(error))
    # The first is the process of a trial; a run's coordinator asks for nothing.
    return Need(title=title, data=data, bundles=bundles if is_trial else bundles[1:] or bundles)


def as_text(
    place: str, nodes: Sequence[NodeFacts], verdict: Verdict | None, faults: Sequence[str], notes: Sequence[str]
) -> str:
    """Nodes and verdict for a terminal of 80 columns."""
    lines = [f"{place}: {counted(len(nodes), 'node')}, {in_words(total_of(node.resources for node in nodes))}"]
    for node in nodes:
        head = "head, " if node.is_head else ""
        lines += wrapped(f"{node.name} ({head}{node.address}): {in_words(node.resources)}", rest="  ")
        lines += _answer_lines(node)
    if verdict is not None:
        lines += ["", *_verdict_lines(verdict)]
    lines += [line for text in notes for line in wrapped(f"NOTE: {text}", rest="  ")]
    lines += [line for text in faults for line in wrapped(f"FAULT: {text}", rest="  ")]
    return "\n".join(lines)


def _answer_lines(node: NodeFacts) -> list[str]:
    answer = node.answer
    if answer is None:
        return wrapped(f"does not answer: {node.why}", "  ", "    ")
    return [
        f"  Python {answer.python}, Ray {answer.ray}, torch {answer.torch}, RELIEF-Ray {answer.version} "
        f"({answer.digest[:8]})",
        *wrapped(f"{answer.device}; data: {', '.join(answer.data()) or 'none'}", "  ", "    "),
    ]


def _verdict_lines(verdict: Verdict) -> list[str]:
    need, result = verdict.need, verdict.fit
    lines = [*wrapped(need.title, rest="  ")]
    if need.impossible:
        return [*lines, *wrapped(f"does not fit: {need.impossible}", "  ", "    ")]
    lines += wrapped(f"needs {in_words(result.needed)}", "  ", "    ")
    if verdict.fits:
        number = f"; {counted(verdict.at_once, 'cell')} at a time" if need.num_cells else ""
        return [*lines, f"  fits{number}"]
    places = f"{len(result.unplaced)} of {len(need.bundles)} processes have no place (each takes one node)"
    lines += wrapped(f"does not fit: {places}; missing: {in_words(result.missing)}", "  ", "    ")
    lines.append("  smallest change, on one machine each:")
    for change in verdict.changes:
        # A command stays one line; a sentence does not.
        lines += [f"    {change}"] if change.startswith("relief-ray") else wrapped(change, "    ", "      ")
    if any(name not in PLAIN for name in result.missing):
        lines.append("  or without types: --set runtime.placement=virtual")
    return lines


def as_data(
    place: str, nodes: Sequence[NodeFacts], verdict: Verdict | None, faults: Sequence[str], notes: Sequence[str]
) -> str:
    """The same as JSON."""
    shown: dict[str, object] = {
        "address": place,
        "nodes": [{"name": node.name, **asdict(node)} for node in nodes],
        "faults": list(faults),
        "notes": list(notes),
    }
    if verdict is not None:
        shown["target"] = {
            "title": verdict.need.title,
            "data": dict(verdict.need.data),
            "needed": dict(verdict.fit.needed),
            "missing": dict(verdict.fit.missing),
            "fits": verdict.fits,
            "why_not": verdict.need.impossible,
            "cells": verdict.need.num_cells,
            "cells_at_once": verdict.at_once if verdict.need.num_cells else None,
            "changes": list(verdict.changes),
        }
    return json.dumps(shown, indent=1)
