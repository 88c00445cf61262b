"""`relief-ray model describe|evaluate|export` and `reproduce`: parameter groups, tests and copies of models."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import typer

from actors.commands.folders import refuse_nested, refuse_several
from actors.terminal.exit_codes import DIFFERENT, Result
from relief_ray.experiment.evaluation import Evaluation, Part, evaluate_run
from relief_ray.experiment.export import export_model
from relief_ray.experiment.reproduce import Reproduction, reproduce
from relief_ray.records.cells import find_runs
from relief_ray.records.committed import CommittedCell, pick
from relief_ray.records.run_folder import read_run
from relief_ray.records.schema import RoundRecord
from relief_ray.studies.describe import description
from relief_ray.studies.plan import target_config
from relief_ray.support.errors import Setting, counted
from relief_ray.support.text import first_few, table, typed, wrapped


def describe(target: str, settings: Sequence[Setting]) -> Result:
    """Give the groups of the backbone that a preset, a file or a run trains."""
    if (folder := Path(target)).is_dir():
        refuse_several(folder, "model describe")
    groups = description(target_config(target, settings), target)
    return Result(groups, groups.facts)


# `relief-ray model evaluate`: tests the last model of runs with all, each client's, and any other sensors.


def evaluate(folders: Sequence[Path], sensors: Sequence[str], part: Part) -> Iterator[Result]:
    """Give a block per run.

    Raises:
        UserError: no run there, one without checkpoint or whose data are not here, or an unknown sensor.
    """
    more = [tuple(filter(None, names.split("+"))) for names in sensors]
    refuse_nested(folders, "model evaluate")
    for path in find_runs(folders):
        evaluation = evaluate_run(path, more, part)
        facts = {
            "event": "evaluated",
            "run": str(path),
            "strategy": evaluation.strategy,
            "round": evaluation.round,
            "part": evaluation.part,
            "num_windows": evaluation.num_windows,
            "f1_own_sensors": evaluation.f1_own_sensors,
            "f1_own_subjects": evaluation.f1_own_subjects,
            "f1_canonical_own_sensors": evaluation.f1_canonical_own_sensors,
            "canonical": {"+".join(s.sensors): s.f1 for s in evaluation.canonical},
            "own": {s.client: s.f1 for s in evaluation.own},
        }
        yield Result(scores_text(read_run(path).name, evaluation), facts)


def scores_text(name: str, evaluation: Evaluation) -> str:
    """The scores of a run as text: title, a line per model and set of sensors, means.

    The canonical model comes with every set of sensors, then what single clients run.
    """
    rows = [
        [
            "one for all" if score.client is None else f"client {score.client}'s",
            "+".join(score.sensors),
            str(score.num_clients or "-"),
            f"{100 * score.f1:.1f}",
        ]
        for score in (*evaluation.canonical, *evaluation.own)
    ]
    lines = [
        f"{name}: round {evaluation.round}, {evaluation.num_windows:,} windows of the {evaluation.part} part\n",
        table(["model", "sensors", "clients with them", "F1 %"], rows, left=2),
    ]
    has_own_models = bool(evaluation.own and evaluation.personal)
    one = evaluation.f1_canonical_own_sensors if has_own_models else evaluation.f1_own_sensors
    if one is not None:
        output = " and output" if evaluation.own and not has_own_models else ""
        lines.append(f"\n  one for all, mean over clients, each through its own sensors{output}: {100 * one:.1f} %")
    if has_own_models and evaluation.f1_own_sensors is not None:
        mean = 100 * evaluation.f1_own_sensors
        lines.append(f"\n  clients' own models, mean over clients, through the same sensors: {mean:.1f} %")
    if evaluation.f1_own_subjects is not None:
        lines.append(
            f"\n  {'own models' if has_own_models else 'one for all'}, through own sensors, on the subjects they know "
            f"alone: {100 * evaluation.f1_own_subjects:.1f} %"
        )
    return "\n".join(lines) + "\n"


# `relief-ray reproduce`: computes a committed cell again and compares the two.

_MAX_DIFFERENCES = 5


def reproduce_command(target: str, out: Path | None, tolerance: float) -> Iterator[Result]:
    """Run the cell, give the answer; ``tolerance`` in points of F1.

    Raises:
        UserError: no such cell, or its data are not here.
        typer.Exit: the results differ.
    """
    name, cell = pick(target)
    last = cell.rounds[-1].round

    def on_round(record: RoundRecord) -> None:
        if sys.stderr.isatty():
            print(f"\rround {record.round} of {last}", end="\n" if record.round == last else "", file=sys.stderr)

    with tempfile.TemporaryDirectory(prefix="relief-reproduce-") as place:
        reproduction = reproduce(cell, out or Path(place) / "run", tolerance / 100, on_round)
    facts = {
        "event": "reproduced",
        "cell": name,
        "answer": reproduction.answer,
        "f1_gap_points": 100 * reproduction.f1_gap,
        "differences": reproduction.differences,
        "program": reproduction.program,
        "processor": reproduction.processor,
    }
    yield Result(_reproduction_lines(name, cell, reproduction), facts)
    if reproduction.answer == "different":
        raise typer.Exit(DIFFERENT)


def _reproduction_lines(name: str, cell: CommittedCell, reproduction: Reproduction) -> list[str]:
    """The result as text: the answer first, then the evidence."""
    num_evaluated = sum(r.f1 is not None for r in cell.rounds)
    lines = [
        f"{name}: {reproduction.answer}",
        f"{len(cell.rounds)} rounds, {num_evaluated} evaluated, {cell.data_origin} data",
    ]
    if reproduction.differences:
        lines.append(f"largest difference in F1: {100 * reproduction.f1_gap:.2f} points")
        lines += [f"- {difference}" for difference in first_few(reproduction.differences, _MAX_DIFFERENCES)]
    if reproduction.program is not None:
        lines.append(f"computed by another program: {reproduction.program}")
    if reproduction.processor is not None:
        why = (
            "; libraries add up in another order on each, and training amplifies it" if reproduction.differences else ""
        )
        lines.append(f"computed on another processor: {reproduction.processor}{why}")
    return [part for line in lines for part in wrapped(line, rest="  ")]


def export(run: Path, out: Path, round_: int | None, with_encoder: bool) -> Result:
    """Export a run's model to a folder; name its files, with notes on the model."""
    chosen = [f"--out {typed(out)}", *([] if round_ is None else [f"--round {round_}"])]
    refuse_several(run, "model export", " ".join([*chosen, *["--with-encoder"] * with_encoder]))
    facts = export_model(run, out, round_, with_encoder=with_encoder)
    files = sorted(str(path.relative_to(out)) for path in out.rglob("*") if path.is_file())
    f1, warnings = facts["f1"], facts["warnings"]
    score = f"F1 {100 * f1:.1f} %" if isinstance(f1, float) else "not evaluated in that round"
    notes = [str(warning) for warning in warnings] if isinstance(warnings, list) else []
    notes += [f"the run is {facts['status']}, not done"] if facts["status"] != "done" else []
    notes += [f"computed by another program: {facts['other_program']}"] if facts["other_program"] else []
    lines = [
        f"{out}: {facts['strategy']} on {facts['dataset']} after round {facts['round']}, {score}",
        *(f"  {name}" for name in files),
        f"{counted(len(files), 'file')}; README.md has code that loads them",
        *(f"NOTE: {note}" for note in notes),
    ]
    return Result(lines, {"event": "exported", "folder": str(out), "files": files, **facts})
