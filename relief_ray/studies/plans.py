"""Plans on disk: the cells of one `relief-ray run` or `relief-ray grid`, each with its folder and its status.

`plan.json` (run) or `grid.json` (grid) lists the cells; whether one is done, failed or stale is read from its folder.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import JsonValue

from relief_ray.config.experiment import ExperimentConfig, override, parse
from relief_ray.experiment.recording import now
from relief_ray.models.backbone import frozen_mismatch
from relief_ray.plugins.blame import reason
from relief_ray.records.cells import (
    GRID_FILE,
    CellState,
    EarlyStopping,
    PlanFile,
    PlannedCell,
    PlannedClaims,
    SuggestedSearch,
    count_begun,
    look,
    read_plan_file,
    register_claims,
    write_plan_file,
)
from relief_ray.records.identity import config_hash
from relief_ray.records.lock import LOCK_FILE, lock_folder
from relief_ray.records.run_folder import ERROR_FILE, read_run
from relief_ray.records.schema import RunRecord, Status
from relief_ray.records.sync.mlflow import flat_params
from relief_ray.strategies import facts_of
from relief_ray.studies.cells import Cell
from relief_ray.support.errors import UserError
from relief_ray.support.files import PAGE, disk_errors, move, sealed, unused, write_atomic
from relief_ray.support.masking import MASK, mask_text, redact

STALE_FOLDER = "stale"
# How long a driver that was killed may take to be gone with all its processes.
_GONE_S = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class CellFolder:
    """A planned cell, its folder and what the folder held when it was looked at."""

    cell: Cell
    folder: Path
    state: CellState

    @property
    def status(self) -> Status:
        """One of ``records.cells.STATUS_TEXT``."""
        return self.state.status

    @property
    def why(self) -> str:
        """Reason of a failure or of staleness."""
        return self.state.why

    @property
    def num_rounds(self) -> int:
        """Rounds in its ledger, the bootstrap included."""
        return self.state.num_rounds

    @property
    def num_planned(self) -> int:
        """Rounds of the whole cell, the bootstrap included."""
        return self.cell.config.rounds + has_bootstrap(self.cell)

    @property
    def is_finished(self) -> bool:
        """True where its run came to its end, by this program or by another one."""
        return self.state.run is not None and self.state.run.status == "done"


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Cells of one command in the order of computation.

    Attributes:
        out: folder of their folders.
        name: name of the grid or of the preset.
        title: a grid's own; empty for a run.
        cells: the cells.
        claims_file: file with the claims that the command names.
        claims: those that the plan on disk has.
        search: how tries that a sampler suggests go on; None: all are listed.
        stopping: rule that stops weak tries early; None: all run to their end.
    """

    out: Path
    name: str
    title: str = ""
    cells: tuple[Cell, ...]
    claims_file: Path | None = None
    claims: PlannedClaims | None = None
    search: SuggestedSearch | None = None
    stopping: EarlyStopping | None = None

    def cell_folders(self) -> tuple[CellFolder, ...]:
        """Every cell with the status of its folder, as it is now."""
        return tuple(look_at(cell, self.out / cell.name) for cell in self.cells)


def has_bootstrap(cell: Cell) -> bool:
    """True where round 0 is one of the cell's rounds."""
    return cell.config.strategy.bootstrap


def look_at(cell: Cell, folder: Path) -> CellFolder:
    """Read the cell's status from its folder alone."""

    def other_weights(run: RunRecord) -> str | None:
        return frozen_mismatch(run.backbone, cell.config.backbone.frozen_here())

    state = look(folder, expected_hash=cell.hash, other_weights=other_weights)
    return CellFolder(cell=cell, folder=folder, state=state)


def make_cell(name: str, label: str, config: ExperimentConfig, setting: str = "", stored_hash: str = "") -> Cell:
    """A cell in the folder ``name``; ``stored_hash``: the one that it was begun under, else this program's."""
    decisive = stored_hash or config_hash(config.identity())
    return Cell(name=name, label=label, setting=setting, config=config, hash=decisive)


def row_of(cell: Cell) -> PlannedCell:
    """The cell as plan files hold it: credentials are masked."""
    config = redact(cell.config.model_dump(mode="json"))
    method = facts_of(cell.config.strategy, cell.label)
    return PlannedCell(
        folder=cell.name, label=cell.label, method=method, setting=cell.setting, hash=cell.hash, config=config
    )


def cells_in(plan: PlanFile, path: Path, settings: Sequence[str] = ()) -> tuple[Cell, ...]:
    """Cells of a plan file with checked configurations; ``settings`` may change how they are carried out.

    A cell that was begun keeps its stored hash, though this program's schema or defaults gave it another one.

    Raises:
        UserError: this version cannot read a configuration.
    """
    cells = []
    for row in plan.cells:
        cell = make_cell(row.folder, row.label, parse(override(row.config, settings), str(path)), row.setting)
        # The folder is read only where it can matter: most cells have today's hash.
        if row.hash and row.hash != cell.hash and _began_under(row.hash, path.parent / row.folder, cell.config):
            cell = replace(cell, hash=row.hash)
        cells.append(cell)
    return tuple(cells)


def _began_under(stored_hash: str, folder: Path, config: ExperimentConfig) -> bool:
    """Whether the folder's run was begun under this hash and with this configuration."""
    try:
        run = read_run(folder)
        return stored_hash == run.config_hash and not difference(parse(run.config).model_dump(mode="json"), config)
    except UserError:  # not begun, damaged, or not readable by this version: ``look`` says so
        return False


def read_grid(out: Path, settings: Sequence[str] = ()) -> Plan:
    """The grid in a folder; ``settings`` may change how its cells are carried out.

    Raises:
        UserError: there is none, or it is damaged.
    """
    path = out / GRID_FILE
    if not path.exists():
        raise UserError(f"{out}: no {GRID_FILE}; expected a folder that `relief-ray grid` made")
    plan = read_plan_file(path)
    return Plan(
        out=out,
        name=plan.name,
        title=plan.title,
        cells=cells_in(plan, path, settings),
        claims=plan.claims,
        search=plan.search,
        stopping=plan.stopping,
    )


def write_grid(plan: Plan) -> Plan:
    """Add the cells to those that ``grid.json`` lists already and return all of them; the folder exists.

    Raises:
        UserError: the folder cannot be written, holds another grid, tries that are stopped by another rule, or cells
            that were begun without these claims.
    """
    cells, claims = plan.cells, plan.claims
    if (plan.out / GRID_FILE).exists():
        known = read_grid(plan.out)
        if known.name != plan.name:
            raise UserError(f"{plan.out}: holds the grid {known.name}, asked: {plan.name}; choose a folder with --out")
        if known.stopping != plan.stopping:
            there, asked = (rule.words if rule else "run to their end" for rule in (known.stopping, plan.stopping))
            raise UserError(f"{plan.out}: holds tries that are {there}, asked: {asked}; choose a folder with --out")
        cells, claims = merged(known.cells, plan.cells), known.claims
    rows = tuple(row_of(cell) for cell in cells)
    begun = count_begun(plan.out, [cell.name for cell in cells])
    claims = register_claims(plan.out, plan.claims_file, claims, begun=begun, now=now())
    write_plan_file(plan.out / GRID_FILE, PlanFile(
        name=plan.name, title=plan.title, cells=rows, claims=claims, search=plan.search, stopping=plan.stopping,
    ))  # fmt: skip
    return replace(plan, cells=cells, claims=claims)


def merged(known: Sequence[Cell], added: Sequence[Cell]) -> tuple[Cell, ...]:
    """Cells of both lists, each name once; where cells were added, sorted by seed, fold and setting."""
    cells = {cell.name: cell for cell in known} | {cell.name: cell for cell in added}
    if len(cells) == len(known):
        return tuple(cells.values())
    settings = list(dict.fromkeys(_block(cell) for cell in cells.values()))
    ranks = {setting: rank for rank, setting in enumerate(settings)}
    return tuple(sorted(cells.values(), key=lambda c: (c.config.seed, c.config.data.fold, ranks[_block(c)])))


def _block(cell: Cell) -> str:
    is_try = cell.config.choice is not None and cell.config.choice.kind == "try"
    return cell.setting.partition("-")[0] if is_try else cell.setting


def difference(recorded: Mapping[str, JsonValue], config: ExperimentConfig) -> str:
    """The first keys in which a recorded configuration differs: ``rounds is 8 there, asked: 2``."""
    there, here = flat_params(recorded), flat_params(config.model_dump(mode="json"))
    keys = [
        k for k in here | there if here.get(k) != there.get(k) and not k.startswith(("name", "runtime.", "tracking."))
    ]
    lines = [f"{k} is {there.get(k, 'unset')} there, asked: {here.get(k, 'unset')}" for k in keys]
    return "; ".join(lines[:3]) + (f"; and {len(lines) - 3} more" if len(lines) > 3 else "")


def refuse_masked(config: ExperimentConfig, folder: Path) -> None:
    """Credentials are not kept, so a resume has to name a store that needs them again.

    Raises:
        UserError: it did not.
    """
    mirror = config.runtime.mirror
    if mirror is not None and MASK in mirror:
        raise UserError(
            f"{folder}: credentials of runtime.mirror = {mirror} are not kept; give them again with "
            "--set runtime.mirror=..., or go on without a copy: --set runtime.mirror=null"
        )
    uri = config.tracking.uri
    if config.tracking.enabled and uri is not None and MASK in uri:
        raise UserError(
            f"{folder}: credentials of tracking.uri = {uri} are not kept; give them again with --set tracking.uri=..., "
            "or go on with --set tracking.enabled=false"
        )


def refuse_other_than(sections: tuple[str, ...], settings: Sequence[str]) -> None:
    """Check that a resume continues the same computation.

    Raises:
        UserError: a setting that would change it.
    """
    for setting in settings:
        if not setting.startswith(sections) or setting.startswith("runtime.num_threads"):
            raise UserError(
                f"--set {setting}: a resume may only change tracking.* and runtime.* (but num_threads, which decides "
                "bits); start a new run instead"
            )


def keep_error(folder: Path, error: BaseException | str) -> None:
    """Write why a cell failed to its ``error.json``."""
    why = error if isinstance(error, str) else reason(error)
    trace = "" if isinstance(error, str) else "".join(traceback.format_exception(error))
    content = {"error": mask_text(why), "at": now(), "traceback": mask_text(trace)}
    with disk_errors(folder, "keep the error"):
        folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / ERROR_FILE, sealed(json.dumps(content, indent=1).encode(), PAGE))


def set_stale_aside(cells: Iterable[CellFolder], out: Path) -> None:
    """Move the stale ones of the cells to ``stale/``, so that they are computed again."""
    for cell in cells:
        if cell.status == "stale" and cell.state.run is not None:
            target = unused(out / STALE_FOLDER / f"{cell.folder.name}-{cell.state.run.source_digest[:8]}")
            with disk_errors(target, "set the stale cell aside"), lock_folder(cell.folder, "the cell"):
                target.parent.mkdir(exist_ok=True)
                move(cell.folder, target)


def await_quiet(cells: Iterable[CellFolder], wait_s: float = _GONE_S) -> None:
    """Wait until no process of an earlier driver writes to the cells any more.

    Raises:
        UserError: one still does.
    """
    for cell in cells:
        if (cell.folder / LOCK_FILE).exists():
            lock_folder(cell.folder, "the cell", wait_s=wait_s).release()
