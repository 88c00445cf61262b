"""What a grid of the user's own may get wrong, said in the user's terms."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from relief_ray.errors import UserError, nearest
from tune_configs.grid import DATASETS, Grid

FOLDER = r"[\w-][\w.+-]*"


@contextmanager
def file_errors(path: Path) -> Iterator[None]:
    """Whatever the user's file raises is the user's: named with its line.

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
    """What ``grid()`` gave, as far as it can be judged without building cells.

    Raises:
        UserError: no grid, a dataset that does not exist, or a name that is none for a folder.
    """
    if not isinstance(made, Grid):
        raise UserError(f"{target}: expected a function grid() that gives a tune_configs.grid.Grid")
    for name in made.datasets:
        if name not in DATASETS:
            raise UserError(
                f"{target}: dataset {name!r}: unknown{nearest(name, DATASETS)}; expected some of {', '.join(DATASETS)}"
            )
    own = [level for levels in made.own.values() for level in levels]
    for name in (made.name, *(level.name for axis in made.axes for level in axis.levels), *(v.name for v in own)):
        if name and not re.fullmatch(FOLDER, name):
            raise UserError(f"{target}: name {name!r}: expected letters, digits and . _ -, since folders get it")
    return made
