"""`relief-ray model describe` and `export`: a backbone's parameter groups; a run's model for use elsewhere."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from pydantic import JsonValue

from actors.commands.next_steps import refuse_several
from relief_ray.experiment.export import export_model
from relief_ray.studies.describe import description
from relief_ray.studies.plan import target_config
from relief_ray.support.errors import counted
from relief_ray.support.text import typed


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
