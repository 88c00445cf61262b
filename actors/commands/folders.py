"""Run folders as a plan sees them: new, unfinished, finished, or something else's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import JsonValue

from relief_ray.citations import shown
from relief_ray.config import ExperimentConfig
from relief_ray.errors import UserError
from relief_ray.models.backbone import frozen_mismatch
from relief_ray.records.identity import config_hash, other_program
from relief_ray.records.lock import FileLock
from relief_ray.records.mlflow_store import flat_params
from relief_ray.records.run_folder import LOCK_FILE, RUN_FILE, read_run
from relief_ray.records.schema import RunRecord

State = Literal["new", "unfinished", "finished"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One run: ``label`` is what its strategy was called, ``state`` what its folder held when the plan was made."""

    label: str
    folder: Path
    config: ExperimentConfig
    state: State = "new"

    def title(self) -> str:
        """``relief, fold 0, seed 0``."""
        data = self.config.data
        fold = [f"fold {data.fold}"] if data.split == "held_out_subject" else []
        return ", ".join([shown(self.label), *fold, f"seed {self.config.seed}"])


def state_of(cell: Cell) -> State:
    """What the folder holds of this very run.

    Raises:
        UserError: it holds another run, or another driver is at work there.
    """
    if not (cell.folder / RUN_FILE).exists():
        return "new"
    run = read_run(cell.folder)
    if run.config_hash != config_hash(cell.config.hashed()):
        raise UserError(
            f"{cell.folder}: holds another run ({difference(run.config, cell.config)}); choose a folder with --out DIR"
        )
    if run.status == "finished":
        return "finished"
    with FileLock(cell.folder / LOCK_FILE, "the run folder"):
        return "unfinished"


def why_stale(run: RunRecord, config: ExperimentConfig) -> str | None:
    """In what a finished run is not what would be computed today: another program, or other frozen weights."""
    return other_program(run) or frozen_mismatch(run.backbone, config.backbone.frozen_here())


def difference(found: Mapping[str, JsonValue], config: ExperimentConfig) -> str:
    """The first keys in which a recorded configuration differs: ``rounds is 8 there, asked: 2``."""
    there, here = flat_params(found), flat_params(config.model_dump(mode="json"))
    keys = [
        k for k in here | there if here.get(k) != there.get(k) and not k.startswith(("name", "runtime.", "tracking."))
    ]
    lines = [f"{k} is {there.get(k, 'unset')} there, asked: {here.get(k, 'unset')}" for k in keys]
    return "; ".join(lines[:3]) + (f"; and {len(lines) - 3} more" if len(lines) > 3 else "")


def with_state(cell: Cell) -> Cell:
    """The cell with its folder's state, whatever that is."""
    return Cell(label=cell.label, folder=cell.folder, config=cell.config, state=state_of(cell))


def find_runs(folders: Sequence[Path]) -> list[Path]:
    """Run folders among and directly below ``folders``, in the order named.

    Raises:
        UserError: a folder holds none.
    """
    found: list[Path] = []
    for folder in folders:
        inside = [folder] if (folder / RUN_FILE).exists() else sorted(p.parent for p in folder.glob(f"*/{RUN_FILE}"))
        if not inside:
            raise UserError(
                f"{folder}: no {RUN_FILE} there or one folder below; name a folder that `relief-ray run` made"
            )
        found += inside
    return list(dict.fromkeys(found))
