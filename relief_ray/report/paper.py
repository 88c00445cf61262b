"""The paper's own numbers, each with its table (or place in the text) and row. They were never computed here."""

from __future__ import annotations

import json
from importlib.resources import files

from pydantic import BaseModel, ConfigDict

TABLES_FILE = "paper.json"


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class PaperCell(_Frozen):
    """A printed value; ``delta`` as printed beside it; None where the paper prints a dash, or words (``text``)."""

    value: float | None
    text: str = ""
    std: float | None = None
    delta: float | None = None


class PaperRow(_Frozen):
    """A row; ``row`` counts from 1 below the heading."""

    row: int
    name: str
    cells: dict[str, PaperCell]


class PaperTable(_Frozen):
    """A table; ``label`` is its name in the source, ``testbed`` and ``text`` collect figures of the running text."""

    table: str
    label: str
    note: str
    rows: tuple[PaperRow, ...]

    def __getitem__(self, name: str) -> PaperRow:
        """The row of a method, variant or setting."""
        return next(r for r in self.rows if r.name == name)

    def get(self, name: str, column: str) -> PaperCell | None:
        """A cell; None where the paper has no such row or column."""
        row = next((r for r in self.rows if r.name == name), None)
        return None if row is None else row.cells.get(column)


class Paper(_Frozen):
    """All tables of results."""

    source: str
    explanation: str
    tables: tuple[PaperTable, ...]

    def __getitem__(self, table: str) -> PaperTable:
        """A table by its Roman number, or ``testbed``, ``text``."""
        return next(t for t in self.tables if t.table == table)


def read_paper() -> Paper:
    """The values that ship with the package."""
    text = files("relief_ray.report").joinpath(TABLES_FILE).read_text(encoding="utf-8")
    return Paper.model_validate(json.loads(text))
