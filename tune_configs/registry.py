"""Grids by name, or from a user's file, and their cells."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from types import MappingProxyType

from relief_ray.data.loader import Loader
from relief_ray.plugins.load import import_path, is_path, what_to_type, where_raised
from relief_ray.studies.spec import DATASETS, Cell, Level, Spec, cells
from relief_ray.support.errors import Setting, UserError, nearest
from tune_configs import frontier, paper_grids, plus, search
from tune_configs.search import TUNED, read_tuned

GRIDS: Mapping[str, Spec] = MappingProxyType(
    {
        grid.name: grid
        for grid in (
            paper_grids.MAIN_CNN,
            paper_grids.MAIN_LORA,
            paper_grids.ABLATION,
            paper_grids.SENSITIVITY,
            paper_grids.DIAGNOSTICS,
            paper_grids.TESTBED,
            paper_grids.COUPLING,
            paper_grids.DSA_STUDY,
            frontier.FRONTIER,
            frontier.FRONTIER_MEAN,
            frontier.FRONTIER_RATES,
            frontier.FRONTIER_SGD,
            frontier.FRONTIER_TEST,
            plus.PLUS_PILOT,
            plus.PLUS,
            plus.PLUS_PARTS,
            plus.PLUS_ELSEWHERE,
            search.SEARCH_LR,
            search.SEARCH_SGD,
            search.SEARCH_OPTIMIZER,
            paper_grids.SMOKE,
        )
    }
)
_FOLDER = r"[\w-][\w.+-]*"


def load_grid(target: str) -> Spec:
    """A built-in grid by name, or a user's Python file with a function ``grid()``.

    Raises:
        UserError: neither (the nearest name is given), or the file fails.
    """
    if target in GRIDS:
        return GRIDS[target]
    path = Path(target)
    if path.suffix == ".py" and path.is_file():
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
            made = module.grid() if hasattr(module, "grid") else None
        except UserError:
            raise
        except Exception as error:
            raise UserError(
                f"{path}: {type(error).__name__}: {error}{where_raised(error)}; expected Python with a function "
                "grid(); mend the file"
            ) from error
        return checked(made, target)
    if path.suffix == ".py":
        beside = [str(path.parent / file.name) for file in path.parent.glob("*.py")]
        raise UserError(
            f"grid {target!r}: no such file{nearest(str(path), beside)}; expected Python with a function grid()"
        )
    raise UserError(f"grid {target!r}: unknown{nearest(target, GRIDS)}; expected {', '.join(GRIDS)}, or a FILE.py")


def checked(made: object, target: str) -> Spec:
    """Check the grid that ``grid()`` returned, as far as it can be judged without building cells.

    Raises:
        UserError: no grid, a dataset that does not exist, or a name that is none for a folder.
    """
    if not isinstance(made, Spec):
        raise UserError(f"{target}: expected a function grid() that gives a relief_ray.studies.spec.Spec")
    for name in made.datasets:
        if isinstance(name, str) and name not in DATASETS and not is_path(name):
            if hint := what_to_type(name, Loader):
                raise UserError(f"{target}: dataset {name!r}: unknown: {hint}")
            raise UserError(
                f"{target}: dataset {name!r}: unknown{nearest(name, DATASETS)}; expected some of "
                f"{', '.join(DATASETS)}, or the import path of your own, my_data:SLEEP"
            )
    datasets = [level for level in made.datasets if isinstance(level, Level)]
    levels = chain(datasets, *(axis.levels for axis in made.axes), *made.own.values())
    for name in (made.name, *(level.name for level in levels)):
        if name and not re.fullmatch(_FOLDER, name):
            raise UserError(f"{target}: name {name!r}: expected letters, digits and . _ -, since folders get it")
    return replace(
        made,
        datasets=tuple(import_path(name) if isinstance(name, str) else name for name in made.datasets),
        methods=tuple(map(import_path, made.methods)),
        own={import_path(method): tries for method, tries in made.own.items()},
    )


def cells_of(grid: Spec, settings: Sequence[Setting] = (), *, skip_unknown: bool = False) -> tuple[Cell, ...]:
    """All cells of a grid under a user's settings; ``tuned=FILE`` takes every method's frozen choice of a search.

    Raises:
        UserError: as ``studies.spec.cells``, or the file cannot be read.
    """
    files = [setting.value for setting in settings if setting.path == TUNED]
    tuned = read_tuned(Path(str(files[-1]))).tune if files else None
    rest = [setting for setting in settings if setting.path != TUNED]
    return cells(grid, rest, tuned=tuned, skip_unknown=skip_unknown)
