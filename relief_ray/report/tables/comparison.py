"""A comparison as headings and cells: scores, costs and everything else, the paper's printed cells beside some."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from relief_ray.report.comparison import FEDAVG, Comparison, Row, Stat
from relief_ray.report.paper import PaperCell, beside, read_paper
from relief_ray.report.runs import fact
from relief_ray.report.statistics import Paired

NONE = "-"
# What the paper printed, not we.
DAGGER = " †"
Table = tuple[list[str], list[list[str]]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Field:
    """A column: ``printed`` are the paper's figures (keys of ``beside``) with their headings, shown behind ours."""

    head: str
    figure: str
    decimals: int
    spread: bool = False
    scale: float = 1.0
    printed: tuple[tuple[str, str], ...] = ()


F1 = Field(
    head="F1 %", figure="f1_canonical_percent", decimals=1, spread=True,
    printed=(("PAMAP2", "PAMAP2"), ("MHEALTH", "MHEALTH")),
)  # fmt: skip
RARE = Field(head="rare F1 %", figure="f1_rare_percent", decimals=1, spread=True, printed=(("rare", "rare"),))
UPLOADS = {
    "cnn": Field(head="up MiB", figure="up_mib", decimals=2, printed=(("MB", "MB"),)),
    "moment_lora": Field(head="up KiB", figure="up_mib", decimals=0, scale=1024.0, printed=(("KB", "KB"),)),
}
COSTS = (
    Field(head="round s", figure="round_s", decimals=2),
    Field(head="speedup", figure="speedup", decimals=2, printed=(("speedup", "speedup"),)),
    Field(head="to 85 %", figure="tta85_rounds", decimals=0, printed=(("rounds", "rounds"),)),
    Field(head="95 % FedAvg", figure="tta95_rounds", decimals=0),
    Field(head="J/round", figure="energy_j", decimals=0, printed=(("J", "J"),)),
)
WALL = Field(head="wall s", figure="wall_s", decimals=2)
WIDE = (
    Field(head="F1 % at best validation", figure="f1_best_percent", decimals=1),
    Field(head="last-10 F1 %", figure="f1_last10_percent", decimals=1),
    Field(head="speedup with bootstrap", figure="speedup_total", decimals=2),
    Field(head="J in total", figure="energy_total_j", decimals=0),
    Field(head="J saved %", figure="energy_saved_percent", decimals=1),
    Field(head="up saved %", figure="up_saved_percent", decimals=1),
    Field(head="up max MiB", figure="up_max_mib", decimals=2),
    Field(head="trained %", figure="trained_percent", decimals=1),
    Field(head="s to 95 % of FedAvg", figure="tta95_s", decimals=1),
    Field(head="J to it", figure="tta95_j", decimals=0),
    Field(head="free slots", figure="free_slots", decimals=2),
    Field(head="of them a choice", figure="chosen_slots", decimals=2),
)
# Left out where the validation part was not looked at.
IF_KNOWN = ("f1_best_percent",)


def number(stat: Stat | None, decimals: int, spread: bool, num_runs: int, scale: float = 1.0) -> str:
    """``73.6±8.1``; ``12 (3/4)`` where only 3 of 4 runs have the figure; ``-`` where none has."""
    if stat is None:
        return NONE
    shown = f"{scale * stat.mean + 0.0:.{decimals}f}"
    shown += f"±{scale * stat.std:.{decimals}f}" if spread and stat.std is not None else ""
    return shown if stat.num == num_runs else f"{shown} ({stat.num}/{num_runs})"


def change(paired: Paired | None) -> str:
    """``+1.2 [-0.4, +2.8]``: a mean paired difference with its 95 % interval."""
    if paired is None:
        return NONE
    if paired.low is None or paired.high is None:
        return f"{paired.mean:+.1f} (1 subject)"
    return f"{paired.mean:+.1f} [{paired.low:+.1f}, {paired.high:+.1f}]"


def name_of(row: Row) -> str:
    """The method, starred where clients are tested on models of their own."""
    return f"{row.label}{'*' if row.personalised else ''}"


def scores_table(comparison: Comparison) -> Table:
    """F1 of the canonical model and of clients' own (starred: then it is the headline), and by what was seen."""
    columns = [names(comparison), *_cells(comparison, F1)]
    own = Field(head="F1 own %", figure="f1_fleet_percent", decimals=1, spread=True)
    if any(row.personalised for row in comparison.rows):
        (head, *found), *_ = _cells(comparison, own)
        starred = zip(found, comparison.rows, strict=True)
        columns.insert(2, [head, *(cell + "*" if row.personalised else cell for cell, row in starred)])
    columns.append([f"vs {FEDAVG} [95 %]", *(change(row.f1) for row in comparison.rows)])
    for field in (RARE, *_modalities(comparison)):
        columns += _cells(comparison, field)
    return _turned(columns)


def names(comparison: Comparison) -> list[str]:
    """The first column."""
    return ["method", *(name_of(row) for row in comparison.rows)]


def _modalities(comparison: Comparison) -> Iterator[Field]:
    """Each sensor alone, in the data's order."""
    found = dict.fromkeys(m for run in comparison.summaries for m in run.last.f1_by_modality)
    yield from (Field(head=f"{m} %", figure=f"f1_{m}_percent", decimals=1) for m in found)


def costs_table(comparison: Comparison) -> Table:
    """Seconds, joules, bytes and rounds to a target."""
    fields = (*COSTS, UPLOADS.get(_backbone(comparison), UPLOADS["cnn"]), WALL)
    columns = [names(comparison)]
    for field in fields:
        columns += _cells(comparison, field)
    return _turned(columns)


def wide_table(comparison: Comparison) -> Table:
    """Everything that stands in neither ``scores_table`` nor ``costs_table``."""
    shown = [f for f in WIDE if f.figure not in IF_KNOWN or any(f.figure in r.stats for r in comparison.rows)]
    columns = [names(comparison)]
    if any(row.personalised for row in comparison.rows):
        columns.append([f"F1 % vs {FEDAVG} [95 %]", *(change(row.canonical) for row in comparison.rows)])
    columns.append([f"rare F1 vs {FEDAVG} [95 %]", *(change(row.rare) for row in comparison.rows)])
    for field in shown:
        columns += _cells(comparison, field)
    return _turned(columns)


def _cells(comparison: Comparison, field: Field) -> list[list[str]]:
    """The column, and the paper's behind it where it printed something for one of the methods."""
    rows = comparison.rows
    ours = [number(r.stats.get(field.figure), field.decimals, field.spread, r.num_runs, field.scale) for r in rows]
    columns = [[field.head, *ours]]
    theirs = [beside(read_paper(), row.label, _backbone(comparison)) for row in rows] if field.printed else []
    for key, head in field.printed:
        if any(key in cells for cells in theirs):
            columns.append([head + DAGGER, *(printed(cells.get(key), field.decimals) for cells in theirs)])
    return columns


def printed(cell: PaperCell | None, decimals: int) -> str:
    """The paper's value; ``-`` where it prints none."""
    return NONE if cell is None or cell.value is None else f"{cell.value:.{decimals}f}"


def legend(comparison: Comparison) -> list[str]:
    """What headings are short for."""
    targets = "`to 85 %`, `95 % FedAvg`: rounds until the headline F1 is 85 %, or 95 % of FedAvg's last"
    if not any(beside(read_paper(), row.label, _backbone(comparison)) for row in comparison.rows):
        return [targets]
    return [
        targets,
        "† printed in the paper (F1 % on PAMAP2 and MHEALTH; rare: PAMAP2's rarest sensors; rounds to 85 %): for "
        "orientation only, with the paper's data, splits and 200 rounds; it does not say whether personalised methods "
        "were tested as one model or as the clients' own",
    ]


def _backbone(comparison: Comparison) -> str:
    return str(fact(comparison.runs[0].run, "backbone.name") or "cnn")


def _turned(columns: Sequence[Sequence[str]]) -> Table:
    headings, *rows = (list(line) for line in zip(*columns, strict=True))
    return headings, rows


def fitted(table: Table, width: int) -> list[Table]:
    """The table as the fewest that are at most ``width`` wide, evenly; the paper's columns stay beside ours."""
    first, *rest = [list(column) for column in zip(table[0], *table[1], strict=True)]
    units = [list(unit) for _, unit in groupby(rest, key=_Unit())]
    fewest = len(_packed(first, units, width))
    narrow = next(w for w in range(width + 1) if len(_packed(first, units, w)) <= fewest)
    return [_turned(columns) for columns in _packed(first, units, narrow)]


def _packed(first: list[str], units: Sequence[list[list[str]]], width: int, gap: int = 2) -> list[list[list[str]]]:
    """The columns of as many tables as it takes, each begun by ``first``."""
    parts = [[first]]
    for unit in units:
        room = width - sum(_width(c) + gap for c in parts[-1]) + gap
        if len(parts[-1]) > 1 and sum(_width(c) + gap for c in unit) > room:
            parts.append([first])
        parts[-1] += unit
    return parts


class _Unit:
    """Numbers columns so that the paper's have the number of ours before them."""

    def __init__(self) -> None:
        self.number = 0

    def __call__(self, column: Sequence[str]) -> int:
        self.number += not column[0].endswith(DAGGER)
        return self.number


def _width(column: Sequence[str]) -> int:
    return max(len(cell) for cell in column)
