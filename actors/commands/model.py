"""`relief-ray model describe` and `export`: a backbone's parameter groups; a run's model for use elsewhere."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from pydantic import JsonValue

from actors.commands.plan_text import refuse_nested, refuse_several
from actors.terminal.exit_codes import DIFFERENT
from relief_ray.experiment.evaluation import Evaluation, Part, Score, evaluate_run
from relief_ray.experiment.export import export_model
from relief_ray.records.cells import find_runs
from relief_ray.records.committed import pick
from relief_ray.records.run_folder import read_run
from relief_ray.studies.describe import description
from relief_ray.studies.plan import target_config
from relief_ray.support.errors import counted
from relief_ray.support.text import filled, table, typed

if TYPE_CHECKING:
    from relief_ray.experiment.reproduce import Verdict
    from relief_ray.records.committed import CommittedCell
    from relief_ray.records.schema import RoundRecord

# `relief-ray model evaluate`: tests the last model of runs with all, each client's, and any other sensors.


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
        print(
            json.dumps(_scores_facts(path, evaluation)) if as_json else scores_text(read_run(path).name, evaluation),
            flush=True,
        )


def _scores_facts(path: Path, evaluation: Evaluation) -> dict[str, object]:
    """The scores of a run as JSON."""
    return {
        "event": "evaluated", "run": str(path), "strategy": evaluation.strategy, "round": evaluation.round,
        "part": evaluation.part,
        "num_windows": evaluation.num_windows, "f1_own_sensors": evaluation.f1_own_sensors,
        "f1_own_subjects": evaluation.f1_own_subjects,
        "canonical": {"+".join(s.sensors): s.f1 for s in evaluation.canonical},
        "own": {s.client: s.f1 for s in evaluation.own},
    }  # fmt: skip


def scores_text(name: str, evaluation: Evaluation) -> str:
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


# `relief-ray reproduce`: computes a committed cell again and compares the two.


_SHOWN = 5


def reproduce_command(target: str, out: Path | None, tolerance: float, as_json: bool) -> None:
    """Run the cell, print the answer; ``tolerance`` in points of F1.

    Raises:
        UserError: no such cell, or its data are not here.
        typer.Exit: the results differ.
    """
    from relief_ray.experiment.reproduce import reproduce

    name, cell = pick(target)
    last = cell.rounds[-1].round

    def on_round(record: RoundRecord) -> None:
        if not as_json and sys.stderr.isatty():
            print(f"\rround {record.round} of {last}", end="\n" if record.round == last else "", file=sys.stderr)

    with tempfile.TemporaryDirectory(prefix="relief-reproduce-") as place:
        verdict = reproduce(cell, out or Path(place) / "run", tolerance / 100, on_round)
    print(json.dumps(_verdict_facts(name, verdict)) if as_json else _verdict_text(name, cell, verdict), flush=True)
    if verdict.answer == "different":
        raise typer.Exit(DIFFERENT)


def _verdict_facts(name: str, verdict: Verdict) -> dict[str, object]:
    """The verdict as JSON."""
    return {
        "event": "reproduced", "cell": name, "answer": verdict.answer, "f1_gap_points": 100 * verdict.f1_gap,
        "differences": list(verdict.differences), "program": verdict.program, "processor": verdict.processor,
    }  # fmt: skip


def _verdict_text(name: str, cell: CommittedCell, verdict: Verdict) -> str:
    """The verdict as text: the answer first, then the evidence."""
    seen = [r for r in cell.rounds if r.f1 is not None]
    lines = [f"{name}: {verdict.answer}", f"{len(cell.rounds)} rounds, {len(seen)} evaluated, {cell.data_origin} data"]
    if verdict.differences:
        lines.append(f"largest difference in F1: {100 * verdict.f1_gap:.2f} points")
        lines += [f"- {d}" for d in verdict.differences[:_SHOWN]]
        more = len(verdict.differences) - _SHOWN
        lines += [f"- and {more} more"] if more > 0 else []
    if verdict.program is not None:
        lines.append(f"computed by another program: {verdict.program}")
    if verdict.processor is not None:
        lines.append(
            f"computed on another processor: {verdict.processor}; libraries add up in another order on each, and "
            "training amplifies it"
        )
    return "\n".join(filled(line, rest="  ") for line in lines)


def export(run: Path, out: Path, round_: int | None, with_encoder: bool, as_json: bool) -> None:
    """Export a run's model to a folder and print what is in it."""
    refuse_several(run, "model export", f"--out {typed(out)}")
    facts = export_model(run, out, round_, with_encoder=with_encoder)
    files = sorted(str(path.relative_to(out)) for path in out.rglob("*") if path.is_file())
    event = {"event": "exported", "folder": str(out), "files": files, **facts}
    print(json.dumps(event) if as_json else _export_text(out, files, facts))


def _export_text(out: Path, files: list[str], facts: dict[str, JsonValue]) -> str:
    """Report on an export: its files and notes on the model."""
    f1 = facts["f1"]
    seen = f"F1 {100 * f1:.1f} %" if isinstance(f1, float) else "not evaluated in that round"
    warnings = facts["warnings"]
    notes = [str(w) for w in warnings] if isinstance(warnings, list) else []
    notes += [f"the run is {facts['status']}, not done"] if facts["status"] != "done" else []
    notes += [f"computed by another program: {facts['other_program']}"] if facts["other_program"] else []
    return "\n".join(
        [
            f"{out}: {facts['strategy']} on {facts['dataset']} after round {facts['round']}, {seen}",
            *(f"  {name}" for name in files),
            f"{counted(len(files), 'file')}; README.md has code that loads them",
            *(f"NOTE: {note}" for note in notes),
        ]
    )


def describe(target: str, settings: Sequence[str], as_json: bool) -> None:
    """Print the groups of the backbone that a preset, a file or a run trains."""
    if (folder := Path(target)).is_dir():
        refuse_several(folder, "model describe")
    shown = description(target_config(target, settings), target)
    print(json.dumps(shown.facts, indent=1) if as_json else shown.text)
