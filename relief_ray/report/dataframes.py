"""Finished cells as flat rows for pandas or another table program, and paired differences of methods.

The rows hold what `relief-ray report --commit` keeps: last metrics and a row per round. The groups that each client
trained are in run folders alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue

from relief_ray.errors import UserError, nearest
from relief_ray.records.committed import CommittedCell, RoundRow, condense, read_committed
from relief_ray.records.metrics import extra_columns
from relief_ray.report.comparison import flat_setting, paired_gain, run_differences
from relief_ray.report.experiments import Experiment, differences
from relief_ray.report.inventory import GridItem, searched_keys, take_inventory, variant_names
from relief_ray.report.runs import Repetition, Replicate, is_committed, repetition_of, replicate_of
from relief_ray.report.statistics import Paired
from relief_ray.report.summary import MIB
from relief_ray.strategies import REFERENCE

FlatRow = dict[str, str | int | float | bool | None]
# Columns that every row has, for tables without rows.
_NAMES, _COSTS = ("cell", "setting", "method"), ("time_s", "energy_j", "up_mib", "down_mib")
CELL_COLUMNS = (
    *_NAMES, "is_bound", "fold", "rotation", "seed", "rounds", "f1_percent", "f1_rare_percent", *_COSTS, "data",
    "clock", "program",
)  # fmt: skip
ROUND_COLUMNS = (*_NAMES, "round", "f1_percent", *_COSTS)


@dataclass(frozen=True, kw_only=True, slots=True)
class FinishedCell:
    """A finished cell; ``setting`` names in words what it shares with cells that it can be compared with."""

    name: str
    setting: str
    label: str
    record: CommittedCell

    @property
    def replicate(self) -> Replicate:
        """(fold, rotation of device types over subjects, seed)."""
        return replicate_of(self.record.config)

    @property
    def repetition(self) -> Repetition:
        """The replicate that it belongs to, in all folds."""
        return repetition_of(self.record.config)

    @property
    def f1(self) -> float | None:
        """The headline F1: of the clients' own models where they have such."""
        return None if self.record.metrics is None else self.record.metrics.headline


def read_cells(paths: Iterable[Path]) -> tuple[FinishedCell, ...]:
    """The finished cells of committed results, or of folders of `relief-ray grid` or `run`.

    A name that comes twice counts once, the first.

    Raises:
        UserError: a path holds none of these.
    """
    records: dict[str, CommittedCell] = {}
    for path in map(Path, paths):
        for name, record in _read(path).items():
            records.setdefault(name, record)
    return name_settings(records)


def _read(path: Path) -> Mapping[str, CommittedCell]:
    if is_committed(path):
        return read_committed(path).cells
    items = [(s.name, s.loaded) for s in take_inventory([path], keep=False).items if s.status == "done"]
    return {name: condense(loaded.run, tuple(loaded.rounds)) for name, loaded in items if loaded is not None}


def name_settings(records: Mapping[str, CommittedCell]) -> tuple[FinishedCell, ...]:
    """The cells with their settings in words; a method with several sets of fields names those that differ."""
    searched = searched_keys(r.config for r in records.values())
    titles = _titles(list(records.values()), searched)
    labels = variant_names([(r.method.name, r.config) for r in records.values()], [r.method for r in records.values()])
    pairs = zip(records.items(), labels, strict=True)
    return tuple(
        FinishedCell(name=name, setting=titles[repr(_setting(record, searched))], label=label, record=record)
        for (name, record), label in pairs
    )


def _setting(record: CommittedCell, searched: Sequence[str]) -> dict[str, JsonValue]:
    return flat_setting(record.config, searched) | {"data origin": record.data_origin, "engine": record.engine}


def _titles(records: Sequence[CommittedCell], searched: Sequence[str]) -> dict[str, str]:
    """Title of every setting, no two alike."""
    settings, titles = [_setting(r, searched) for r in records], dict[str, str]()
    for record, mine in zip(records, settings, strict=True):
        if repr(mine) in titles:
            continue
        item = GridItem(name="", label="", config=record.config, status="done")
        title = Experiment(items=(item,), differs=differences(mine, settings)).title
        title = title if record.data_origin == "real" else f"{record.data_origin} data: {title}"
        titles[repr(mine)] = f"{title}, setting {len(titles) + 1}" if title in titles.values() else title
    return titles


def cell_rows(cells: Iterable[FinishedCell]) -> list[FlatRow]:
    """One row per cell: method, setting, and its state after the last round; costs are the whole fleet's sums."""
    return [_row(cell) for cell in cells]


def _row(cell: FinishedCell) -> FlatRow:
    record, (fold, rotation, seed) = cell.record, cell.replicate
    last, metrics = record.rounds[-1], record.metrics
    f1 = next((r.f1 for r in reversed(record.rounds) if r.f1 is not None), None)
    return {
        **_names(cell),
        "is_bound": record.method.is_bound,
        "fold": fold,
        "rotation": rotation,
        "seed": seed,
        "rounds": last.round,
        "f1_percent": _percent(f1),
        "f1_rare_percent": _percent(None if metrics is None else metrics.f1_rare),
        **extra_columns(metrics),
        "time_s": last.time_s,
        "energy_j": last.energy_j,
        "up_mib": last.bytes_up / MIB,
        "down_mib": last.bytes_down / MIB,
        "data": record.data_origin,
        "clock": record.planning_model,
        "program": record.source_digest[:8],
    }


def round_rows(cells: Iterable[FinishedCell]) -> list[FlatRow]:
    """One row per cell and round, 0 (bootstrap) included; costs are sums so far, F1 is None where it was not tested.

    A method's diagnostics have a column each, ``warmth.head.1`` for row ``head.1`` of table ``warmth``, in all rows:
    None where a round has no such figure.
    """
    cells = tuple(cells)
    columns = dict.fromkeys(name for cell in cells for r in cell.record.rounds for name in _diagnostics(r))
    return [
        {
            **_names(cell),
            "round": r.round,
            "f1_percent": _percent(r.f1),
            "time_s": r.time_s,
            "energy_j": r.energy_j,
            "up_mib": r.bytes_up / MIB,
            "down_mib": r.bytes_down / MIB,
            **dict.fromkeys(columns),
            **_diagnostics(r),
        }
        for cell in cells
        for r in cell.record.rounds
    ]


def _diagnostics(row: RoundRow) -> dict[str, float]:
    return {f"{table}.{key}": value for table, values in row.diagnostics.items() for key, value in values.items()}


def _names(cell: FinishedCell) -> FlatRow:
    return {"cell": cell.name, "setting": cell.setting, "method": cell.label}


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def run_gains(cells: Sequence[FinishedCell], label: str, other: str = REFERENCE) -> dict[Replicate, float]:
    """``label`` minus ``other`` in points of F1 for each paired run: (fold, rotation, seed) that both methods have.

    Raises:
        UserError: the cells are of several settings, or no cell is of one of the methods.
    """
    settings = {cell.setting for cell in cells}
    if len(settings) > 1:
        one, two, *_ = dict.fromkeys(cell.setting for cell in cells)
        raise UserError(f"{len(settings)} settings, e.g. {one!r} and {two!r}; choose the cells of one `setting`")
    known = dict.fromkeys(cell.label for cell in cells)
    for name in (label, other):
        if name not in known:
            raise UserError(
                f"no finished run of {name!r}{nearest(name, known)}; expected one of {', '.join(known) or 'none'}"
            )
    gains = run_differences(_once(cells), label, other, lambda cell: cell.f1)
    return {key: 100 * value for key, value in gains.items()}


def _once(cells: Sequence[FinishedCell]) -> list[FinishedCell]:
    """The first cell of every method, fold and seed."""
    return list({(cell.label, cell.replicate): cell for cell in reversed(cells)}.values())


def gain(cells: Sequence[FinishedCell], label: str, other: str = REFERENCE) -> Paired | None:
    """``run_gains`` as one figure with its 95 % interval and sign-flip test; None where no replicate is shared."""
    run_gains(cells, label, other)
    return paired_gain(_once(cells), label, other, lambda cell: cell.f1)
