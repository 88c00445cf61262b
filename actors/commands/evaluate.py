"""`relief-ray model evaluate`: tests the last model of runs with all, each client's, and any other sensors."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from actors.commands.next_steps import refuse_nested
from relief_ray.experiment.evaluation import Evaluation, Part, Score, evaluate_run
from relief_ray.records.cells import find_runs
from relief_ray.records.run_folder import read_run
from relief_ray.support.text import table

HEAD = ["model", "sensors", "clients with them", "F1 %"]


def evaluate(folders: Sequence[Path], sensors: Sequence[str], part: Part, as_json: bool) -> None:
    """Print a block per run.

    Raises:
        UserError: no run there, one without checkpoint or whose data are not here, or an unknown sensor.
    """
    more = [tuple(filter(None, names.split("+"))) for names in sensors]
    refuse_nested(folders, "model evaluate")
    for path in find_runs(folders):
        evaluation = evaluate_run(path, more, part)
        print(json.dumps(facts(path, evaluation)) if as_json else text(read_run(path).name, evaluation), flush=True)


def facts(path: Path, evaluation: Evaluation) -> dict[str, object]:
    """The scores of a run as JSON."""
    return {
        "event": "evaluated", "run": str(path), "strategy": evaluation.strategy, "round": evaluation.round,
        "part": evaluation.part,
        "num_windows": evaluation.num_windows, "f1_own_sensors": evaluation.f1_own_sensors,
        "f1_own_subjects": evaluation.f1_own_subjects,
        "canonical": {"+".join(s.sensors): s.f1 for s in evaluation.canonical},
        "own": {s.client: s.f1 for s in evaluation.own},
    }  # fmt: skip


def text(name: str, evaluation: Evaluation) -> str:
    """The scores of a run as text: title, a line per model and set of sensors, means."""
    lines = [f"{name}: round {evaluation.round}, {evaluation.num_windows:,} windows of the {evaluation.part} part", ""]
    lines.append(table(HEAD, [*rows(evaluation)], left=2))
    if evaluation.f1_own_sensors is not None:
        output = " and output" if evaluation.own and not evaluation.personal else ""
        lines += [
            "",
            f"  one for all, mean over clients, each through its own sensors{output}: "
            f"{100 * evaluation.f1_own_sensors:.1f} %",
        ]
    if evaluation.own and evaluation.personal:
        mean = sum(s.f1 for s in evaluation.own) / len(evaluation.own)
        lines += ["", f"  clients' own models, mean over clients, through the same sensors: {100 * mean:.1f} %"]
    if evaluation.f1_own_subjects is not None:
        which = "own models" if evaluation.own and evaluation.personal else "one for all"
        lines += [
            "",
            f"  {which}, through own sensors, on the subjects they know alone: "
            f"{100 * evaluation.f1_own_subjects:.1f} %",
        ]
    return "\n".join(lines) + "\n"


def rows(evaluation: Evaluation) -> Iterator[list[str]]:
    """Table rows: the canonical model with every set of sensors, then what single clients run."""
    for score in evaluation.canonical:
        yield ["one for all", *_row(score)]
    for score in evaluation.own:
        yield [f"client {score.client}'s", *_row(score)]


def _row(score: Score) -> list[str]:
    return ["+".join(score.sensors), str(score.num_clients or "-"), f"{100 * score.f1:.1f}"]
