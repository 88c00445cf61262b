"""Plans: the cells of one `relief-ray run` or `relief-ray grid`, each with its folder and its status.

What is typed becomes a ``Spec`` (``studies.request``), a spec becomes cells (``spec.cells``), and these become a plan.
`plan.json` lists the cells; whether one is done, failed or stale is read from its folder. Also opens presets, files and
run folders for commands that train nothing.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import get_args

from pydantic import JsonValue

from relief_ray.config.experiment import ExperimentConfig, assign, parse
from relief_ray.data.config import DataConfig, SplitName
from relief_ray.data.federated_data import num_clients
from relief_ray.data.registry import DATASETS
from relief_ray.experiment.setup import configured_fleet
from relief_ray.models.backbone import frozen_mismatch
from relief_ray.plugins.blame import reason
from relief_ray.plugins.load import digests
from relief_ray.plugins.parts import parts_of
from relief_ray.records.cells import (
    CLAIMS_FILE,
    PLAN_FILE,
    CellState,
    EarlyStopping,
    KindName,
    PlanFile,
    PlannedCell,
    PlannedClaims,
    SuggestedSearch,
    count_begun,
    figure_named,
    look,
    read_claims,
    read_plan_file,
    refuse_linked,
    register_claims,
    write_plan_file,
)
from relief_ray.records.identity import addresses_in, flat, foreign, note_begun, why_closed, why_foreign
from relief_ray.records.lock import LOCK_FILE, FileLock, lock_folder
from relief_ray.records.run_folder import ERROR_FILE, RUN_FILE, read_rounds, read_run
from relief_ray.records.schema import Recorded, config_value
from relief_ray.report.comparison import flat_settings
from relief_ray.report.power_analysis import claim_powers
from relief_ray.report.runs import choice_kind
from relief_ray.strategies import PRESETS as METHODS
from relief_ray.strategies import REFERENCE, facts_of
from relief_ray.studies.presets import PRESETS, make_preset
from relief_ray.studies.spec import (
    MODE,
    Cell,
    Spec,
    Values,
    cells,
    check_strategy,
    each_cell,
    make_cell,
    strategy_of,
)
from relief_ray.support.errors import Setting, UserError, counted, keywords, nearest, option, several, value_text
from relief_ray.support.files import disk_errors, move, page, unused, write_atomic
from relief_ray.support.masking import MASK, mask_text, redact
from relief_ray.support.text import first_few, now, resumed, typed
from relief_ray.support.user_yaml import read_mapping

# The command that goes on with a plan, by the one that made it.
RESUME: Mapping[KindName, str] = {"run": "relief-ray resume", "grid": "relief-ray grid resume"}
_SUFFIXES = (".yaml", ".yml", ".json")
# Name of the only cell of a single run's folder: it lies in the folder itself.
_SINGLE = "."
STALE_FOLDER = "stale"
# How long a driver that was killed may take to be gone with all its processes.
_GONE_S = 60.0


class State(CellState[Cell]):
    """A planned cell with what its folder holds now."""

    __slots__ = ()

    @property
    def name(self) -> str:
        """Name of the cell."""
        return self.cell.name

    @property
    def config(self) -> ExperimentConfig:
        """Configuration of the cell."""
        return self.cell.config


def load_spec(target: str) -> Spec:
    """A preset by name, or a configuration file as a study of one run.

    Raises:
        UserError: neither; the nearest preset is named.
    """
    if target in PRESETS:
        return make_preset(target)
    path = Path(target)
    if path.suffix in _SUFFIXES or path.is_file():
        return _from_file(path)
    if path.is_dir():
        raise UserError(
            f"{target}: is a folder, expected a preset or a file; go on with its runs: relief-ray resume "
            f"{typed(target)}"
        )
    raise UserError(
        f"preset {target!r}: unknown{nearest(target, PRESETS)}; expected {', '.join(PRESETS)}, or a file (FILE.yaml)"
    )


def _from_file(path: Path) -> Spec:
    """A configuration file as a study of one run, with the file's strategy, seed and fold.

    Raises:
        UserError: there is no such file, or it cannot be read.
    """
    if not path.is_file():
        raise UserError(
            f"{path}: no such file in {Path.cwd()}; expected a configuration file (YAML or JSON), or a preset: "
            f"{', '.join(PRESETS)}"
        )
    values = read_mapping(path)
    try:
        spec = replace(spec_of(values, path.stem), title=str(path))
        check_strategy(spec.methods[0])
        return spec
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


def spec_of(values: Values, name: str) -> Spec:
    """Values of a configuration as a study of one run, ``name``: where they name none."""
    label = strategy_of({"strategy": values.get("strategy", REFERENCE)})
    settings = {key: value for key, value in values.items() if key != "strategy" or isinstance(value, dict)}
    return Spec(
        kind="run", name=str(values.get("name", name)), title="", methods=(label,), replicates=(), settings=settings
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Cells of one command in the order of computation.

    A grid goes on with cells that were begun before, holds its lock as long as the command lasts, and is the parent of
    its runs. `relief-ray run` refuses begun cells, holds the lock while the plan is written, and may name it anew.

    Attributes:
        kind: the command that planned them, ``run`` or ``grid``.
        out: folder of their folders.
        name: name of the grid or of the preset.
        title: a grid's own; empty for a run.
        cells: the cells.
        claims_file: file with the claims that the command names.
        claims: those that the plan on disk has.
        search: how tries that a sampler suggests go on; None: all are listed.
        stopping: rule that stops weak tries early; None: all run to their end.
        own_parts: parts of notebooks and scripts that the plan on disk has, by file.
    """

    kind: KindName
    out: Path
    name: str
    title: str = ""
    cells: tuple[Cell, ...]
    claims_file: Path | None = None
    claims: PlannedClaims | None = None
    search: SuggestedSearch | None = None
    stopping: EarlyStopping | None = None
    own_parts: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_grid(self) -> bool:
        """Whether `relief-ray grid` planned it."""
        return self.kind == "grid"

    @property
    def resume(self) -> str:
        """The command that goes on with it."""
        return f"{RESUME[self.kind]} {typed(self.out)}"

    @property
    def is_single(self) -> bool:
        """True for the folder of one run, which no plan lists."""
        return [cell.name for cell in self.cells] == [_SINGLE]

    @property
    def is_tested(self) -> bool:
        """Whether a cell is evaluated on the test part, without which there is nothing to compare."""
        return any("test" in cell.config.evaluation.parts for cell in self.cells)

    def look(self) -> tuple[State, ...]:
        """Read every cell's state from its folder."""
        return tuple(look_at(cell, self.out / cell.name) for cell in self.cells)

    @classmethod
    def of(cls, spec: Spec, out: Path, settings: Iterable[Setting] = ()) -> Plan:
        """The plan of a preset or file; its folder may hold the same study, begun.

        Raises:
            UserError: a level, a configuration or a folder is wrong, before the first run starts.
        """
        claims = Path(spec.claims) if spec.claims else None
        plan = cls(kind=spec.kind, name=spec.name, out=out, cells=cells(spec, settings), claims_file=claims)
        plan.check_claims()
        plan.check_folders()
        plan.check_fleets()
        return plan

    @classmethod
    def read(
        cls, folder: Path, settings: Sequence[Setting] = (), kind: KindName = "run", *, other_code: bool = False
    ) -> Plan:
        """The plan of a folder, or of a single run's folder; ``settings`` may change how, not what is computed.

        ``other_code``: own code that has changed since is taken.

        Raises:
            UserError: neither a plan of this kind nor a run is there, or it cannot be read or gone on with.
        """
        _refuse_changes(settings)
        path = folder / PLAN_FILE
        if path.exists():
            file = read_plan_file(path)
            if file.kind != kind:
                raise UserError(
                    f"{folder}: {_holds(file)}, expected a folder that `relief-ray {kind}` made; go on with this one: "
                    f"{RESUME[file.kind]} {typed(folder)}"
                )
            parsed = _parsed(file.cells, path, settings, other_code=other_code)
            plan = cls(out=folder, **dict(file) | {"cells": parsed})
        elif kind == "grid":
            raise UserError(f"{folder}: no {PLAN_FILE}; expected a folder that `relief-ray grid` made")
        else:
            run = read_run(folder)
            why = _why(run.config, folder, folder, other_code=other_code)
            config = parse(assign(run.config, settings), str(folder / RUN_FILE), why)
            cell = make_cell(_SINGLE, run.strategy, config, stored_hash=run.config_hash)
            plan = cls(kind=kind, name=run.name, out=folder, cells=(cell,))
        for cell in plan.cells:
            _refuse_masked(cell.config, folder)
        if not plan.is_grid:
            plan.check_folders()
        return plan

    def refuse_unread_address(self, jobs: int | None) -> None:
        """Check that runs one after the other in this process are given no cluster's address.

        Raises:
            UserError: they are.
        """
        for runtime in (cell.config.runtime for cell in self.cells):
            if jobs == 1 and not self.is_grid and runtime.mode == "inline" and runtime.address is not None:
                workers = f"{Setting(MODE, 'packed')}{'' if keywords() is None else ' and on=' + repr('ray')}"
                raise UserError(
                    f"{Setting('runtime.address', runtime.address)}: a run with {Setting(MODE, 'inline')} is computed "
                    f"in this process, which does not read it; expected workers ({workers}), or no address: "
                    f"{Setting('runtime.address', None)}"
                )

    def check_claims(self) -> None:
        """Check that the claims which the command names are about methods and figures that these cells may have.

        Raises:
            UserError: one is not, or the file cannot be read.
        """
        if self.claims_file is None:
            return
        own = [metric for cell in self.cells for metric in cell.config.metrics]
        labels = list(dict.fromkeys(facts_of(cell.config.strategy, cell.label).name for cell in self.cells))
        claims, names = read_claims(self.claims_file)[0], {cell.config.data.name for cell in self.cells}
        known = {"data": sorted({*DATASETS, *names}), "split": get_args(SplitName)}
        found = {"data": "" if any(map(claims.is_of, names)) else claims.data, "split": claims.split}
        for key, name in found.items():
            if name and name not in known[key]:
                raise UserError(
                    f"{self.claims_file}: {key} = {name!r}: unknown{nearest(name, known[key])}; expected one of "
                    f"{', '.join(known[key])}, or no {key}"
                )
        for claim in claims.claims:
            figure_named(claim.figure, f"{self.claims_file}: figure", own)
            for name in (claim.first, claim.second):
                base = name.partition(" (")[0]
                if base not in METHODS and base not in {label.partition(" (")[0] for label in labels}:
                    raise UserError(
                        f"{self.claims_file}: {name!r}: no planned method{nearest(base, labels)}; expected one of "
                        f"{', '.join(labels)}"
                    )

    def check_folders(self) -> None:
        """Check that every folder is free, or holds the cell's very own run and can be read.

        Raises:
            UserError: one holds another run or a damaged one, or another driver is at work there.
        """
        for state in self.look():
            _check_folder(state)

    def check_fleets(self) -> None:
        """Check that every fleet can be had with its dataset's people; no file of a dataset is read.

        Raises:
            UserError: types that do not add up, or a sensor or a person that is not there.
        """
        seen: set[str] = set()
        for config in (cell.config for cell in self.cells):
            data = config.data.model_dump_json(exclude={"fold", "seed"})
            if (key := f"{config.fleet.model_dump_json()} {data}") not in seen:
                seen.add(key)
                configured_fleet(config, num_clients(config.data.spec(), config.data))

    def untested(self) -> list[str]:
        """Warnings of people in a user's data set whom no fold tests, in a study of several folds.

        A preset's folds stay the same, however many people the data have.
        """
        tested: dict[DataConfig, set[int]] = {}
        for data in (cell.config.data for cell in self.cells):
            if not data.has_folds or data.name in DATASETS:
                continue
            tested.setdefault(data.model_copy(update={"fold": 0, "seed": 0}), set()).add(data.fold)
        return [
            f"data {data.name}: no fold of this study tests {several('subject', left)}, expected everybody: "
            f"{Setting('folds', list(range(data.num_folds)))}"
            for data, folds in tested.items()
            if (left := [s for number, s in enumerate(data.subject_ids()) if number // data.leave_out not in folds])
            and len(folds) > 1
        ]

    def refuse_foreign(self, typed: Mapping[str, str]) -> None:
        """Check that all addresses which the cells name are this user's, of those that are typed now by key; note them.

        Raises:
            UserError: one is only a record's word: records would be sent there, or be computed there.
        """
        for cell in self.cells:
            config = row_of(cell).config
            for key, address in foreign(config, typed).items():
                if key != "tracking.uri" or cell.config.tracking.enabled:
                    raise UserError(
                        f"{self.out}: {why_foreign(key, address)}: take it with {Setting(key, address)}, or go on "
                        f"without it: {_without(key)}"
                    )
            note_begun(config, {})

    def lock(self) -> FileLock:
        """Lock the plan, whose folder is made where it is not there.

        Raises:
            UserError: another process holds it, or the folder cannot be written.
        """
        what = "grid" if self.is_grid else "plan"
        with disk_errors(self.out, f"write the {what}"):
            self.out.mkdir(parents=True, exist_ok=True)
        return FileLock(self.out / "plan.lock", f"the {what}")

    def write(self) -> Plan:
        """Add the cells to those that ``plan.json`` lists already, so that a resume can complete all of them.

        Returns the plan: of a grid with all of its cells, of a run with those of this command. A grid's caller holds
        its lock.

        Raises:
            UserError: the folder cannot be written, holds another study, or cells that were begun without these claims.
        """
        with nullcontext() if self.is_grid else self.lock():
            return self._write()

    def _write(self) -> Plan:
        path, mine = self.out / PLAN_FILE, {cell.name: row_of(cell) for cell in self.cells}
        nothing = PlanFile(kind=self.kind, name=self.name, stopping=self.stopping, cells=())
        earlier = read_plan_file(path) if path.exists() else nothing
        self._refuse_other(earlier)
        known = {row.folder: row for row in earlier.cells}
        if self.is_grid:
            rows = _merged(known, mine)
        else:
            rows = (*(row for name, row in known.items() if name not in mine), *mine.values())
        begun = count_begun(self.out, [row.folder for row in rows])
        if earlier.claims is not None and begun:
            self._refuse_more_pairs(earlier.cells, rows)
        for cell in self.cells:
            note_begun(mine[cell.name].config, digests(cell.config.modules()))
        if self.search is not None:
            note_begun(self.search.model_dump(mode="json"), self.search.sources)
        claims = register_claims(self.out, self.claims_file, earlier.claims or self.claims, begun=begun, now=now())
        own = parts_of(module for cell in self.cells for module in cell.config.modules())
        facts = {k: getattr(self, k) for k in PlanFile.model_fields}
        facts |= {"cells": rows, "claims": claims, "own_parts": {**earlier.own_parts, **own}}
        write_plan_file(path, PlanFile(**facts))
        if not self.is_grid:
            return replace(self, claims=claims)
        others = _parsed([row for row in rows if row.folder not in mine], path)
        replace(self, cells=others).refuse_foreign(addresses_in(next(iter(mine.values())).config) if mine else {})
        by_name = {cell.name: cell for cell in (*others, *self.cells)}
        return replace(self, cells=tuple(by_name[row.folder] for row in rows), claims=claims)

    def _refuse_more_pairs(self, before: Sequence[PlannedCell], rows: Sequence[PlannedCell]) -> None:
        """Check that no claim gets more pairs if the planned ones could already decide it.

        Raises:
            UserError: one does: it would be tested until it holds.
        """
        claims = read_claims(self.out / CLAIMS_FILE)[0]
        for had, has in zip(claim_powers(claims, before), claim_powers(claims, rows), strict=True):
            if not had.verdict and has.num_pairs > had.num_pairs:
                raise UserError(
                    f"{self.out}: the claim {had.claim.brief} has {had.num_pairs} planned pairs, which can decide it, "
                    f"found {has.num_pairs} now: with more of them after the first run was begun it would be tested "
                    f"until it holds; keep to the plan, or name the claims anew for new seeds in a folder of their own "
                    f"({option('out', 'DIR')})"
                )

    def _refuse_other(self, file: PlanFile) -> None:
        """Check that the plan on disk is of the same study.

        Raises:
            UserError: it is of another command, name or rule of stopping.
        """
        if file.kind != self.kind:
            raise UserError(
                f"{self.out}: {_holds(file)}, asked: {self.kind} {self.name}; choose a folder with "
                f"{option('out', 'DIR')}"
            )
        if not self.is_grid:
            return
        if file.name != self.name:
            raise UserError(f"{self.out}: holds the grid {file.name}, asked: {self.name}; choose a folder with --out")
        if file.stopping != self.stopping:
            there, asked = (rule.words if rule else "run to their end" for rule in (file.stopping, self.stopping))
            raise UserError(f"{self.out}: holds tries that are {there}, asked: {asked}; choose a folder with --out")

    def without_stale(self) -> Plan:
        """Set the stale cells aside in ``stale/``, a single run's beside its folder; return the plan that makes them.

        What was begun under another program's hash is computed next under this one's.

        Raises:
            UserError: a process is at work in one of them, or it cannot be moved.
        """
        home, fresh = self.out.absolute().parent if self.is_single else self.out, {}
        for state in self.look():
            if state.status == "stale" and state.run is not None:
                target = unused(home / STALE_FOLDER / f"{state.folder.name}-{state.run.source_digest[:8]}")
                with disk_errors(target, "set the stale cell aside"), lock_folder(state.folder, "the cell"):
                    target.parent.mkdir(exist_ok=True)
                    move(state.folder, target)
                cell = state.cell
                fresh[cell.name] = make_cell(cell.name, cell.label, cell.config, cell.setting)
        return replace(self, cells=tuple(fresh.get(cell.name, cell) for cell in self.cells))


def _holds(file: PlanFile) -> str:
    return f"holds the grid {file.name}" if file.kind == "grid" else f"holds runs of {file.name}"


def look_at(cell: Cell, folder: Path) -> State:
    """Read the cell's status from its folder alone."""
    seen = look(
        folder,
        expected_hash=cell.hash,
        other_weights=lambda run: frozen_mismatch(run.backbone, cell.config.backbone.frozen_here()),
    )
    return State(**{each.name: getattr(seen, each.name) for each in fields(seen)} | {"cell": cell, "folder": folder})


def row_of(cell: Cell) -> PlannedCell:
    """The cell as plan files hold it: credentials are masked."""
    config = redact(cell.config.model_dump(mode="json"))
    method = facts_of(cell.config.strategy, cell.label)
    return PlannedCell(
        folder=cell.name, label=cell.label, method=method, setting=cell.setting, hash=cell.hash, config=config
    )


def _parsed(
    rows: Iterable[PlannedCell], path: Path, settings: Sequence[Setting] = (), *, other_code: bool = False
) -> tuple[Cell, ...]:
    """Cells of rows with checked configurations; ``settings`` may change how they are carried out.

    A cell that was begun keeps its stored hash, though this program's schema or defaults gave it another one.

    Raises:
        UserError: this version cannot read a configuration.
    """
    parsed = []
    for row in rows:
        why = _why(row.config, path.parent / row.folder, path.parent, other_code=other_code)
        config = parse(assign(row.config, settings), str(path), why)
        cell = make_cell(row.folder, row.label, config, row.setting)
        # The folder is read only where it can matter: most cells have today's hash.
        if row.hash and row.hash != cell.hash and _began_under(row.hash, path.parent / row.folder, cell.config):
            cell = replace(cell, hash=row.hash)
        parsed.append(cell)
    return tuple(parsed)


def _why(settings: Mapping[str, JsonValue], place: Path, folder: Path, *, other_code: bool) -> str:
    """Why the code of a run that is gone on with in ``place``, of a plan's ``folder``, is not imported; else empty."""
    run = None
    with suppress(UserError):  # not begun, or damaged: ``look`` says so
        run = read_run(place)
    ways = f"--rerun-stale (the old run is kept), or take it as it is with `{resumed(folder, 'other_code')}`"
    otherwise = None if other_code else f", compute it again with {ways}"
    there = None if run is None else run.own_sources
    return why_closed(settings, there, otherwise=otherwise)


def _began_under(stored_hash: str, folder: Path, config: ExperimentConfig) -> bool:
    """Whether the folder's run was begun under this hash and with this configuration."""
    try:
        run = read_run(folder)
        return stored_hash == run.config_hash and not difference(parse(run.config).model_dump(mode="json"), config)
    except UserError:  # not begun, damaged, or not readable by this version: ``look`` says so
        return False


def _merged(known: Mapping[str, PlannedCell], added: Mapping[str, PlannedCell]) -> tuple[PlannedCell, ...]:
    """Rows of both, each name once; where cells were added, sorted by seed, fold and setting."""
    rows = {**known, **added}
    if len(rows) == len(known):
        return tuple(rows.values())
    ranks = {block: rank for rank, block in enumerate(dict.fromkeys(map(_block, rows.values())))}
    order = sorted(
        rows.values(), key=lambda row: (row.config["seed"], config_value(row.config, "data.fold"), ranks[_block(row)])
    )
    return tuple(order)


def _block(row: PlannedCell) -> str:
    return str(config_value(row.config, "choice.place")) if choice_kind(row.config) == "try" else row.setting


def difference(recorded: Mapping[str, JsonValue], config: ExperimentConfig) -> str:
    """The first keys in which a recorded configuration differs: ``rounds is 8 there, asked: 2``."""
    there, here = flat(recorded), flat(config.model_dump(mode="json"))
    keys = [
        k for k in here | there if here.get(k) != there.get(k) and not k.startswith(("name", "runtime.", "tracking."))
    ]
    return _side_by_side(there, here, keys)


def _side_by_side(there: Mapping[str, JsonValue], here: Mapping[str, JsonValue], keys: Sequence[str]) -> str:
    lines = [
        f"{key} is {value_text(there.get(key, 'unset'))} there, asked: {value_text(here.get(key, 'unset'))}"
        for key in keys
    ]
    return "; ".join(first_few(lines, 3))


def _check_folder(state: State) -> None:
    run = state.run
    if run is None:
        if (state.folder / RUN_FILE).exists():
            raise UserError(state.why)
        return
    if run.config_hash != state.cell.hash:
        if differs := difference(run.config, state.config):
            raise OtherRun(
                f"{state.folder}: holds another run ({differs}); choose a folder with {option('out', 'DIR')}", differs
            )
        raise UserError(
            f"{state.folder}: holds a run of the same settings under another hash ({run.config_hash[:8]} there, "
            f"{state.cell.hash[:8]} here): the program's schema or defaults, or a device profile, changed since; "
            f"choose a folder with {option('out', 'DIR')}, or go on with that run: "
            f"{resumed(state.folder, 'other_code')}"
        )
    if not state.is_finished:
        refuse_linked(state.folder)
        lock_folder(state.folder, "the run folder").release()
    elif state.status == "failed":
        raise UserError(state.why)


class OtherRun(UserError):
    """A folder holds a run of other settings, code or weights; ``differs`` says in what."""

    def __init__(self, message: str, differs: str) -> None:
        """``message``: what a user is told where this folder was asked for."""
        super().__init__(message)
        self.differs = differs


def refuse_begun(plan: Plan) -> None:
    """Check that `relief-ray run` would not go on with a run that was begun.

    Raises:
        UserError: it would; `relief-ray resume` does that.
    """
    for state in plan.look():
        # Stale ones are refused with other ways on (``refuse_stale``).
        is_begun = state.run is not None and not state.is_finished and state.status != "stale"
        if is_begun and read_rounds(state.folder):
            raise UserError(
                f"{state.folder}: this run was begun and is not finished; go on with: relief-ray resume "
                f"{typed(state.folder)}"
            )


def refuse_other_settings(plan: Plan) -> None:
    """Check that the plan's folder holds runs of the same settings: its methods, seeds and folds may be others.

    Raises:
        OtherRun: the first run there has other settings.
    """
    path = plan.out / PLAN_FILE
    if path.exists() and (rows := read_plan_file(path).cells):
        there, here = flat_settings([rows[0].config, row_of(plan.cells[0]).config])
        if keys := sorted(key for key in there | here if there.get(key) != here.get(key)):
            differs = _side_by_side(there, here, keys)
            raise OtherRun(
                f"{plan.out}: holds runs of other settings ({differs}), with which these cannot be compared; choose "
                f"another folder with {option('out', 'DIR')}",
                differs,
            )


def refuse_stale(plan: Plan, *, is_fixed: bool = False) -> None:
    """Check that no run of the plan was computed or begun by other code or on other frozen weights.

    ``is_fixed``: the command goes on with this very folder, no other one may be named.

    Raises:
        UserError: some were; the first is named, with what changed and the ways on.
    """
    stale = [state for state in plan.look() if state.status == "stale"]
    if stale:
        first, more = stale[0], len(stale) - 1
        also = f" (and {counted(more, 'run')} more)" if more else ""
        elsewhere = "" if is_fixed else f"choose another folder ({option('out', 'DIR')}), "
        raise OtherRun(
            f"{first.folder}{also}: holds a run of other code or weights: {first.why}; expected those of today "
            f"(`here`). Compute it again with {option('rerun_stale', True)} (the old run is kept in a folder "
            f"`{STALE_FOLDER}`), {elsewhere}or take it as it is with {resumed(plan.out, 'other_code')}",
            first.why,
        )


def _refuse_masked(config: ExperimentConfig, folder: Path) -> None:
    """Credentials are not kept, so a resume has to name a store that needs them again.

    Raises:
        UserError: it did not.
    """
    for key, uri in (
        ("runtime.mirror", config.runtime.mirror),
        ("tracking.uri", config.tracking.uri if config.tracking.enabled else None),
    ):
        if uri is not None and MASK in uri:
            raise UserError(
                f"{folder}: credentials of {key} = {uri} are not kept; give them again with {Setting(key, ...)}, or go "
                f"on without a copy: {_without(key)}"
            )


def _without(address: str) -> Setting:
    """The setting that goes on without what lies at the address of this key."""
    return Setting("tracking.enabled", False) if address == "tracking.uri" else Setting(address, None)


def _refuse_changes(settings: Sequence[Setting]) -> None:
    """Check that settings of a resume, which continues the same computation, do not change it.

    Raises:
        UserError: one would.
    """
    for setting in settings:
        if not setting.path.startswith(("runtime.", "tracking.")) or setting.path == "runtime.num_threads":
            raise UserError(
                f"{setting}: a resume may only change tracking.* and runtime.* (but num_threads, which decides "
                "bits); start a new run instead"
            )


def keep_error(folder: Path, error: BaseException | str) -> None:
    """Write why a cell failed to its ``error.json``."""
    why, trace = (error, "") if isinstance(error, str) else (reason(error), "".join(traceback.format_exception(error)))
    content = {"error": mask_text(why), "at": now(), "traceback": mask_text(trace)}
    write_atomic(folder / ERROR_FILE, page(json.dumps(content, indent=1)))


def await_quiet(states: Iterable[State]) -> None:
    """Wait until no process of an earlier driver writes to the cells any more.

    Raises:
        UserError: one still does.
    """
    for state in states:
        if (state.folder / LOCK_FILE).exists():
            refuse_linked(state.folder)
            lock_folder(state.folder, "the cell", wait_s=_GONE_S).release()


def target_config(target: str, settings: Sequence[Setting], reads: Sequence[str] | None = None) -> ExperimentConfig:
    """Configuration of the first run that `relief-ray run TARGET` would make, or of the run in a folder, so changed.

    ``reads``: the sections that the caller needs, where others of a run may name code that is not here.

    Raises:
        UserError: the target is neither.
    """
    folder = Path(target)
    if (folder / RUN_FILE).exists():
        run = read_run(folder)
        config = run.config if reads is None else {key: run.config[key] for key in reads if key in run.config}
        why = why_closed(run.config, run.own_sources)
        return parse(assign(Recorded(config), settings), str(folder / RUN_FILE), why)
    return next(each_cell(load_spec(target), settings)).config
