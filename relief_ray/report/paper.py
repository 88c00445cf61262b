"""Numbers printed in the paper, each with its table (or place in the text) and row; never computed here."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from relief_ray.strategies import DESCRIBED, PRESETS, PROPOSED, method_name
from relief_ray.support.frozen import FrozenConfig

VARIANT_ROWS = {PROPOSED: "V0", "v1": "V1", "v2": "V2", "v3": "V3"}
V0, V1, V2, V3 = VARIANT_ROWS
PAPER_DATA = {"pamap2": "PAMAP2", "mhealth": "MHEALTH"}
TABLES = {"cnn": "I", "moment_lora": "II"}
# Backbone in the headings of Tables III to V.
PREFIX = {"cnn": "B1", "moment_lora": "B2"}


class PaperCell(FrozenConfig):
    """A printed value; ``delta`` as printed beside it; None where the paper prints a dash, or words (``text``)."""

    value: float | None
    text: str = ""
    std: float | None = None
    delta: float | None = None


class PaperRow(FrozenConfig):
    """A row; ``row`` counts from 1 below the heading."""

    row: int
    name: str
    cells: dict[str, PaperCell]


class PaperTable(FrozenConfig):
    """A table; ``label`` is its name in the source, ``testbed`` and ``text`` collect figures of the running text."""

    table: str
    label: str
    note: str
    rows: tuple[PaperRow, ...]

    def get(self, name: str, column: str) -> PaperCell | None:
        """A cell; None where the paper has no such row or column."""
        return next((r.cells.get(column) for r in self.rows if r.name == name), None)


class Paper(FrozenConfig):
    """All tables of results."""

    source: str
    explanation: str
    tables: tuple[PaperTable, ...]

    def __getitem__(self, table: str) -> PaperTable:
        """A table by its Roman number, or ``testbed``, ``text``."""
        return next(t for t in self.tables if t.table == table)


@cache
def read_paper() -> Paper:
    """The values that ship with the package."""
    return Paper.model_validate_json(files("relief_ray.report").joinpath("paper.json").read_bytes())


_BY_TITLE = {preset.title: name for name, preset in DESCRIBED.items()}
# The paper's eleven methods, and the five of Tables IV and V and of Section VII: row of Table I by preset.
PAPER_METHODS = {_BY_TITLE[row.name]: row.name for row in read_paper()["I"].rows}
_COLUMNS_OF_TABLE_4 = {f"{PREFIX['cnn']} {row}": name for name, row in PAPER_METHODS.items()}
REPRESENTATIVE = tuple(
    name for column, name in _COLUMNS_OF_TABLE_4.items() if column in read_paper()["IV"].rows[0].cells
)
# Row of Table I by the method's name in our tables.
PAPER_ROWS = {method_name(PRESETS[name], name): row for name, row in PAPER_METHODS.items()}
# The same for presets that were made to agree with the paper's tables: the row of their class's own preset.
_ROW_OF_CLASS = {type(PRESETS[name]): row for name, row in PAPER_METHODS.items()}
_FITTED_ROWS = {
    method_name(preset.config, name): _ROW_OF_CLASS[type(preset.config)]
    for name, preset in DESCRIBED.items()
    if preset.kind.endswith("FITTED")
}


def paper_row(label: str) -> str:
    """The paper's name of a method, or of the method that a fitted preset is of."""
    return PAPER_ROWS.get(label) or _FITTED_ROWS.get(label, label)
