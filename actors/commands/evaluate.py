"""`relief-ray model evaluate`: the last model of runs, through all sensors, each client's, and any others."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from actors.commands.output import table
from relief_ray.experiment.evaluation import Evaluation, Part, Score, evaluate_run
from relief_ray.records.cells import find_runs
from relief_ray.records.run_folder import read_run

HEAD = ["model", "sensors", "clients with them", "F1 %"]


def evaluate(folders: Sequence[Path], sensors: Sequence[str], part: Part, as_json: bool) -> None:
    """Prints a block per run.

    Raises:
        UserError: no run there, one without checkpoint or whose data are not here, or an unknown sensor.
    """
    more = [tuple(filter(None, asked.split("+"))) for asked in sensors]
    for path in find_runs(folders):
        found = evaluate_run(path, more, part)
        print(json.dumps(facts(path, found)) if as_json else text(read_run(path).name, found), flush=True)


def facts(path: Path, found: Evaluation) -> dict[str, object]:
    """One JSON object a run."""
    return {
        "event": "evaluated", "run": str(path), "strategy": found.strategy, "round": found.round, "part": found.part,
        "num_windows": found.num_windows, "f1_own_sensors": found.f1_own_sensors,
        "f1_own_subjects": found.f1_own_subjects,
        "canonical": {"+".join(s.sensors): s.f1 for s in found.canonical},
        "own": {s.client: s.f1 for s in found.own},
    }  # fmt: skip


def text(name: str, found: Evaluation) -> str:
    """Title, a line per model and set of sensors, what they come to."""
    lines = [f"{name}: round {found.round}, {found.num_windows:,} windows of the {found.part} part", ""]
    lines.append(table(HEAD, [*rows(found)], left=2))
    if found.f1_own_sensors is not None:
        lines += [
            "",
            f"  one for all, mean over clients, each through its own sensors: {100 * found.f1_own_sensors:.1f} %",
        ]
    if found.own:
        mean = sum(s.f1 for s in found.own) / len(found.own)
        lines += ["", f"  clients' own models, mean over clients, through the same sensors: {100 * mean:.1f} %"]
    if found.f1_own_subjects is not None:
        which = "own models" if found.own else "one for all"
        lines += [
            "",
            f"  {which}, through own sensors, on the subjects they know alone: {100 * found.f1_own_subjects:.1f} %",
        ]
    return "\n".join(lines) + "\n"


def rows(found: Evaluation) -> Iterator[list[str]]:
    """The canonical model through every set, then clients' own models."""
    for score in found.canonical:
        yield ["one for all", *_row(score)]
    for score in found.own:
        yield [f"client {score.client}'s", *_row(score)]


def _row(score: Score) -> list[str]:
    return ["+".join(score.sensors), str(score.num_clients or "-"), f"{100 * score.f1:.1f}"]
