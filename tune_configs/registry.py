"""Cells of a grid under a user's settings: one checked configuration, one hash and one folder name each."""

from __future__ import annotations

import importlib.util
import json
import re
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from relief_ray.config.experiment import Choice, ExperimentConfig, override, parse
from relief_ray.data.loader import Loader
from relief_ray.plugins.load import import_path, is_path, what_to_type
from relief_ray.records.identity import config_hash
from relief_ray.strategies import PRESETS
from relief_ray.strategies.common import StrategyConfig
from relief_ray.studies.cells import Cell
from relief_ray.studies.spec import (
    DATASETS,
    Dataset,
    Grid,
    Point,
    dataset_levels,
    points,
)
from relief_ray.support.errors import UserError, nearest
from tune_configs import frontier, paper_grids
from tune_configs import search as search_lr
from tune_configs.scaling import scale, split_own
from tune_configs.tuned import TUNED, Tuned, read_tuned, refuse_overruled

GRIDS: Mapping[str, Callable[[], Grid]] = MappingProxyType(
    {
        "main_cnn": paper_grids.main_cnn,
        "main_lora": paper_grids.main_lora,
        "ablation": paper_grids.ablation,
        "sensitivity": paper_grids.sensitivity,
        "diagnostics": paper_grids.diagnostics,
        "testbed": paper_grids.testbed,
        "coupling": paper_grids.coupling,
        "dsa_study": paper_grids.dsa_study,
        "frontier": frontier.frontier,
        "frontier_mean": frontier.frontier_mean,
        "frontier_rates": frontier.frontier_rates,
        "frontier_sgd": frontier.frontier_sgd,
        "frontier_test": frontier.frontier_test,
        "search_lr": search_lr.grid,
        "search_sgd": search_lr.sgd_grid,
        "search_optimizer": search_lr.optimizer_grid,
        "smoke": paper_grids.smoke,
    }
)
_HASH_DIGITS = 8
_FOLDER = r"[\w-][\w.+-]*"
# Keys that name a cell, and the axis that sets each.
_OWNED = {
    "data.name": "datasets", "data.split": "datasets", "data.fold": "folds", "seed": "seeds",
    "replicate": "replicates", "strategy.name": "methods", "name": "",
}  # fmt: skip
# Set by levels too, but any grid may be scaled by the one and given other sizes by the other.
_SCALED = frozenset({"rounds", "backbone"})


def load_grid(target: str) -> Grid:
    """A built-in grid by name, or a user's Python file with a function ``grid()``.

    Raises:
        UserError: neither (the nearest name is given), or the file fails.
    """
    if target in GRIDS:
        return checked(GRIDS[target](), target)
    path = Path(target)
    if path.suffix == ".py" and path.is_file():
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        with _file_errors(path):
            spec.loader.exec_module(module)
            return checked(module.grid() if hasattr(module, "grid") else None, target)
    raise UserError(f"grid {target!r}: unknown{nearest(target, GRIDS)}; expected {', '.join(GRIDS)}, or a FILE.py")


@contextmanager
def _file_errors(path: Path) -> Iterator[None]:
    """Turn whatever the user's file raises inside the block into an error that names its line.

    Raises:
        UserError: it raised something.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        inside = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
        line = error.lineno if isinstance(error, SyntaxError) else inside[-1] if inside else None
        place = f"{path}, line {line}" if line else str(path)
        raise UserError(
            f"{place}: {type(error).__name__}: {error}; expected Python with a function grid(); mend the file"
        ) from error


def checked(made: object, target: str) -> Grid:
    """Check the grid that ``grid()`` returned, as far as it can be judged without building cells.

    Raises:
        UserError: no grid, a dataset that does not exist, or a name that is none for a folder.
    """
    if not isinstance(made, Grid):
        raise UserError(f"{target}: expected a function grid() that gives a relief_ray.studies.spec.Grid")
    names = [name for name in made.datasets if isinstance(name, str)]
    for name in names:
        if name not in DATASETS and not is_path(name):
            if hint := what_to_type(name, Loader):
                raise UserError(f"{target}: dataset {name!r}: unknown: {hint}")
            raise UserError(
                f"{target}: dataset {name!r}: unknown{nearest(name, DATASETS)}; expected some of "
                f"{', '.join(DATASETS)}, or the import path of your own, my_data:SLEEP"
            )
    method_levels = [level for levels in made.own.values() for level in levels]
    for name in (
        made.name,
        *(level.name for axis in made.axes for level in axis.levels),
        *(v.name for v in method_levels),
        *(level.name for level in made.datasets if isinstance(level, Dataset)),
    ):
        if name and not re.fullmatch(_FOLDER, name):
            raise UserError(f"{target}: name {name!r}: expected letters, digits and . _ -, since folders get it")
    datasets = tuple(import_path(name) if isinstance(name, str) else name for name in made.datasets)
    own = {import_path(method): levels for method, levels in made.own.items()}
    return replace(made, datasets=datasets, methods=tuple(map(import_path, made.methods)), own=own)


def cells_of(grid: Grid, settings: Sequence[str] = (), *, skip_unknown: bool = False) -> tuple[Cell, ...]:
    """All cells in the order of computation; two points with the same configuration are one cell.

    ``settings``: ``KEY=VALUE``; a key without a dot that names an axis (``replicates``, ``seeds``, ``folds``,
    ``datasets``, ``methods`` or one of the grid's own) chooses its levels; ``tuned=FILE`` takes every method's frozen
    choice of a search; everything else changes every cell's configuration.

    Raises:
        UserError: an unknown level or key, a value out of range, a key that an axis chooses, or methods that this
            version does not have.
    """
    scaled, rest = split_own(*scale(grid, [s for s in settings if not s.startswith(TUNED)]))
    _refuse_owned(scaled, rest)
    files = [s.removeprefix(TUNED) for s in settings if s.startswith(TUNED)]
    tuned = read_tuned(Path(files[-1])) if files else None
    _refuse_unknown_folds(scaled, are_chosen=any(s.startswith("folds=") for s in settings))
    known = tuple(m for m in scaled.methods if m in PRESETS or is_path(m))
    missing = [m for m in scaled.methods if m not in known]
    if missing and not skip_unknown:
        if hints := [hint for name in missing if (hint := what_to_type(name, StrategyConfig))]:
            raise UserError(f"grid {grid.name}: unknown method: {'; '.join(hints)}")
        raise UserError(
            f"grid {grid.name}: this version has no method {', '.join(missing)}; known are {', '.join(PRESETS)}; "
            "leave them out with --skip-unknown, or choose with --set 'methods=[fedavg, relief]'"
        )
    scaled = replace(scaled, methods=known)
    cells = (_cell_of(grid.name, point, rest, tuned) for point in points(scaled))
    return tuple({cell.hash: cell for cell in reversed(list(cells))}.values())[::-1]


def _refuse_owned(grid: Grid, settings: Iterable[str]) -> None:
    """Check that settings leave alone what the cells' names say, i.e. keys that axes set.

    Raises:
        UserError: a setting would give a cell other values than its name says.
    """
    axes = {key: axis.name for axis in grid.axes for level in axis.levels for key in level.settings}
    tried = {key: "" for levels in grid.own.values() for level in levels for key in level.settings}
    owned = {key: name for key, name in {**tried, **axes}.items() if key not in _SCALED} | _OWNED
    owned |= {} if grid.seeds else {"fleet.rotation": "replicates"}
    for path, _, value in (setting.partition("=") for setting in settings):
        for key, axis in owned.items():
            if f"{key}.".startswith(f"{path}.") or path.startswith(f"{key}."):
                wanted = f"--set '{axis}=..'" if axis else "what the grid says, or a grid FILE.py of your own"
                raise UserError(
                    f"grid {grid.name}: --set {path}={value}: {key} is in the cells' names; expected {wanted}"
                )


def _refuse_unknown_folds(grid: Grid, *, are_chosen: bool) -> None:
    """Check that chosen folds exist; they would be left out silently otherwise.

    Raises:
        UserError: a fold does not exist; ``are_chosen`` by the user: or no dataset has any.
    """
    levels = dataset_levels(grid)
    known = {name: level.folds for name, level in levels.items() if level.folds}
    if are_chosen and not known:
        held_out = ", ".join(name for name, d in DATASETS.items() if d.folds)
        raise UserError(
            f"--set folds={list(grid.folds or ())}: {', '.join(levels)} "
            f"{'has' if len(levels) == 1 else 'have'} no folds; expected one of --set 'datasets=[{held_out}]', "
            "data of your own with --set data.split=held_out_subject, or no --set folds"
        )
    for name, folds in known.items():
        if grid.folds is not None and not set(grid.folds) <= set(folds):
            raise UserError(f"--set folds={list(grid.folds)}: {name} has folds {list(folds)}; expected some of those")


def _cell_of(grid: str, point: Point, settings: Sequence[str], tuned: Tuned | None = None) -> Cell:
    """The cell of a point: the grid's values, the point's, a search's frozen choice, then the user's settings.

    Raises:
        UserError: the search has no choice for this cell, the user's settings overrule it, or a search's run is too
            short for the method's last phase.
    """
    setting, choice = point.setting, Choice(kind="try", parameters=point.tried) if point.tried else None
    config = configured(grid, point, settings)
    if choice is not None:
        _refuse_too_short(grid, point, config)
    if tuned is not None:
        frozen = tuned.choice(point.setting.partition("-")[0], point.method, config)
        refuse_overruled(frozen.choice, settings)
        config = configured(grid, replace(point, settings={**point.settings, **frozen.settings}), settings)
        setting, choice = f"{point.setting}-tuned", frozen.choice
    digest = config_hash(config.identity())
    fold = [f"f{config.data.fold}"] if config.data.split == "held_out_subject" else []
    name = "-".join([setting, point.method.replace(":", "."), *fold, config.draw_name, digest[:_HASH_DIGITS]])
    named = config.model_copy(update={"name": f"{grid}-{name}", "choice": choice})
    return Cell(name=name, label=point.method, setting=setting, config=named, hash=digest)


def _refuse_too_short(grid: str, point: Point, config: ExperimentConfig) -> None:
    """Refuse a try that ends before the method's last phase: its score would say nothing of the values it tries.

    Raises:
        UserError: method, try and the rounds that are enough are named.
    """
    needed = config.strategy.rounds_needed(config.participation)
    if needed is None or config.rounds < needed:
        fix = "another value of it" if needed is None else f"--set rounds={needed} or more"
        raise UserError(
            f"grid {grid}, {point.method}, {point.setting}: rounds = {config.rounds} ends before the method's last "
            f"phase, and this try would be judged without it; expected {fix}, or leave {point.method} out of methods"
        )


def configured(grid: str, point: Point, settings: Sequence[str]) -> ExperimentConfig:
    """The checked configuration of a point with the user's settings on top."""
    point_settings = [f"{key}={json.dumps(value)}" for key, value in point.settings.items()]
    # ``runtime.mode=auto`` of a grid: a process per cell on one node, and a host per cell where there are several.
    values = {"strategy": {"name": point.method}}
    return parse(override(values, [*point_settings, *settings]), f"grid {grid} ({point.method})")
