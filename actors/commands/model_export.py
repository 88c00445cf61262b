"""`relief-ray model export`: a run's model for use outside this project."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import JsonValue

from actors.commands.tables import counted
from relief_ray.model_export import export_model


def export(run: Path, out: Path, round_: int | None, with_encoder: bool, as_json: bool) -> None:
    """Writes the folder and says what is in it."""
    facts = export_model(run, out, round_, with_encoder=with_encoder)
    files = sorted(str(path.relative_to(out)) for path in out.rglob("*") if path.is_file())
    told = {"event": "exported", "folder": str(out), "files": files, **facts}
    print(json.dumps(told) if as_json else export_text(out, files, facts))


def export_text(out: Path, files: list[str], facts: dict[str, JsonValue]) -> str:
    """What was exported, and what has to be said of it."""
    f1 = facts["f1"]
    seen = f"F1 {100 * f1:.1f} %" if isinstance(f1, float) else "not evaluated in that round"
    warnings = facts["warnings"]
    notes = [str(w) for w in warnings] if isinstance(warnings, list) else []
    notes += [f"the run is {facts['status']}, not finished"] if facts["status"] != "finished" else []
    notes += [f"computed by another program: {facts['other_program']}"] if facts["other_program"] else []
    return "\n".join(
        [
            f"{out}: {facts['strategy']} on {facts['dataset']} after round {facts['round']}, {seen}",
            *(f"  {name}" for name in files),
            f"{counted(len(files), 'file')}; README.md has code that loads them",
            *(f"NOTE: {note}" for note in notes),
        ]
    )
