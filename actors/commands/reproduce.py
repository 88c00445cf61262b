"""`relief-ray reproduce`: computes a committed cell again and compares the two."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from actors.terminal.exit_codes import DIFFERENT
from relief_ray.records.committed import pick
from relief_ray.support.text import filled

if TYPE_CHECKING:
    from relief_ray.experiment.reproduce import Verdict
    from relief_ray.records.committed import CommittedCell
    from relief_ray.records.schema import RoundRecord

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
    print(json.dumps(facts(name, verdict)) if as_json else text(name, cell, verdict), flush=True)
    if verdict.answer == "different":
        raise typer.Exit(DIFFERENT)


def facts(name: str, verdict: Verdict) -> dict[str, object]:
    """The verdict as JSON."""
    return {
        "event": "reproduced", "cell": name, "answer": verdict.answer, "f1_gap_points": 100 * verdict.f1_gap,
        "differences": list(verdict.differences), "program": verdict.program, "processor": verdict.processor,
    }  # fmt: skip


def text(name: str, cell: CommittedCell, verdict: Verdict) -> str:
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
