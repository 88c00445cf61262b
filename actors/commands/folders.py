"""Run folders as command arguments: one run, or several; errors name the commands to type."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from relief_ray.records.cells import PLAN_FILE
from relief_ray.records.run_folder import RUN_FILE
from relief_ray.studies.plan import STALE_FOLDER
from relief_ray.support.errors import UserError
from relief_ray.support.text import first_few, typed

_MAX_LINES = 8


def refuse_several(folder: Path, command: str, rest: str = "") -> None:
    """Check that a folder is a run, not a folder of runs.

    Raises:
        UserError: it holds several, and the message has the command for each; or none.
    """
    if (folder / RUN_FILE).exists():
        return
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; expected a run folder, e.g. runs/demo/relief-f0-r0")
    runs = _runs_below(folder)
    if not runs:
        raise UserError(f"{folder}: no {RUN_FILE} there or below; expected a folder that `relief-ray run` made")
    raise UserError(f"{folder}: holds {len(runs)} runs, expected one; type one of:\n{_listed(runs, command, rest)}")


def _runs_below(folder: Path) -> list[Path]:
    """Run folders one or two folders below, those of one plan together."""
    runs = {path.parent for pattern in ("*", "*/*") for path in folder.glob(f"{pattern}/{RUN_FILE}")}
    return sorted(run for run in runs if run.parent.name != STALE_FOLDER)


def refuse_nested(folders: Sequence[Path], command: str) -> None:
    """Check that folders are runs or hold runs directly, as commands on several runs take them.

    Raises:
        UserError: one holds folders of runs; the message has the command for each.
    """
    for folder in folders:
        plans = sorted(path.parent for path in folder.glob(f"*/{PLAN_FILE}"))
        if plans and not (folder / RUN_FILE).exists() and not list(folder.glob(f"*/{RUN_FILE}")):
            raise UserError(
                f"{folder}: holds {len(plans)} folders of runs, expected one; type one of:\n"
                f"{_listed(plans, command, '')}"
            )


def _listed(places: Sequence[Path], command: str, rest: str) -> str:
    """Commands, one a line; the first few where there are many."""
    lines = [" ".join(p for p in ("  relief-ray", command, typed(place), rest) if p) for place in places]
    return "\n".join(first_few(lines, _MAX_LINES, "  ... and {} more"))
