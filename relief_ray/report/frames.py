"""Finished cells as flat rows for pandas or another table program, and paired differences of methods.

The rows hold what `relief-ray report --commit` keeps: last metrics and a row per round. Training losses and real
seconds of single rounds, like the groups that each client trained, are in run folders alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import JsonValue

from relief_ray.records.cells import Figure, figure_named
from relief_ray.records.committed import CommittedCell, RoundRow, condense
from relief_ray.records.metrics import extra_columns
from relief_ray.records.schema import RoundRecord
from relief_ray.report.budgets import score_at
from relief_ray.report.comparison import flat_setting, paired_gain, run_differences
from relief_ray.report.experiments import Experiment, differences
from relief_ray.report.inventory import GridItem, Inventory, searched_keys, take_inventory, variant_names
from relief_ray.report.results import MIB, RunSummary, Values, summarise_run, values_of
from relief_ray.report.runs import (
    Repetition,
    Replicate,
    config_value,
    expanded,
    repetition_of,
    replicate_of,
)
from relief_ray.report.statistics import Paired, holm
from relief_ray.report.testing import figure_of
from relief_ray.strategies import REFERENCE, by_registry
from relief_ray.support.errors import UserError, nearest

FlatRow = dict[str, str | int | float | bool | None]
# Columns that every row has, for tables without rows.
_NAMES, _COSTS = ("cell", "setting", "method"), ("time_s", "energy_j", "fleet_up_mib", "fleet_down_mib")
# Figures of the report's comparison, by its names.
_COMPARED = ("f1_own_sensors_percent", "f1_own_subjects_percent", "speedup", "link_percent")
CELL_COLUMNS = (
    *_NAMES, "is_bound", "fold", "rotation", "seed", "replicate", "rounds", "f1_percent", "f1_rare_percent",
    *_COMPARED, *_COSTS, "data_origin", "clock", "program",
)  # fmt: skip
ROUND_COLUMNS = (*_NAMES, "round", "f1_percent", "f1_rare_percent", "loss", *_COSTS, "wall_s")
GAIN_FIGURES = ("mean", "low", "high", "p", "p_holm", "smallest_found")
GAIN_COLUMNS = ("method", *GAIN_FIGURES, "pairs", "unit", "more_aggregations")


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """Figures of each round that only a run's folder keeps; empty for committed results.

    Attributes:
        loss: mean training loss by round, where a client trained.
        wall_s: real seconds by round.
    """

    loss: Mapping[int, float] = field(default_factory=dict)
    wall_s: Mapping[int, float] = field(default_factory=dict)


def measured(rounds: Iterable[RoundRecord]) -> Measured:
    """Losses and real seconds of a run folder's rounds."""
    kept = [(r.round, r.loss, r.wall_s) for r in rounds]
    return Measured(
        loss={number: loss for number, loss, _ in kept if loss is not None},
        wall_s={number: wall_s for number, _, wall_s in kept},
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class FinishedCell:
    """A finished cell; ``setting`` names in words what it shares with cells that it can be compared with."""

    name: str
    setting: str
    label: str
    record: CommittedCell
    measured: Measured = field(default_factory=Measured)

    @property
    def replicate(self) -> Replicate:
        """(fold, rotation of device types over subjects, seed)."""
        return replicate_of(self.record.config)

    @property
    def repetition(self) -> Repetition:
        """The replicate that it belongs to, in all folds."""
        return repetition_of(self.record.config)

    def summary(self) -> RunSummary | None:
        """Figures as a comparison takes them; None where no round was evaluated."""
        loaded = expanded(self.name, self.record)
        return None if all(r.metrics is None for r in loaded.trained) else summarise_run(loaded)


def read_cells(paths: Iterable[Path]) -> tuple[FinishedCell, ...]:
    """The finished cells of committed results, or of folders of `relief-ray grid` or `run`.

    A run that lies in several of them counts once, the first.

    Raises:
        UserError: a path holds none of these.
    """
    return inventory_cells(take_inventory(paths, keep=False))


def inventory_cells(inventory: Inventory) -> tuple[FinishedCell, ...]:
    """The finished cells of an inventory, by its names; of committed results also those without a test score."""
    records: dict[str, CommittedCell] = {}
    kept: dict[str, Measured] = {}
    for name, loaded, status in ((s.name, s.loaded, s.status) for s in inventory.items):
        if loaded is not None and loaded.committed is not None:
            records[name] = loaded.committed
        elif loaded is not None and status == "done":
            rounds = tuple(loaded.rounds)
            records[name], kept[name] = condense(loaded.run, rounds), measured(rounds)
    return name_settings(records, kept)


def name_settings(
    records: Mapping[str, CommittedCell], kept: Mapping[str, Measured] | None = None
) -> tuple[FinishedCell, ...]:
    """The cells with their settings in words; a method with several sets of fields names those that differ.

    ``kept``: what run folders keep beside the records, by the same names.
    """
    known = kept or {}
    searched = searched_keys(r.config for r in records.values())
    titles = _titles(list(records.values()), searched)
    labels = variant_names([(r.method.name, r.config) for r in records.values()], [r.method for r in records.values()])
    pairs = zip(records.items(), labels, strict=True)
    return tuple(
        FinishedCell(
            name=name,
            setting=titles[repr(_setting(record, searched))],
            label=label,
            record=record,
            measured=known.get(name, Measured()),
        )
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
    """One row per cell: method, setting, and its state after the last round; costs are the whole fleet's sums.

    A sensor that the model was tested with alone has a column, ``f1_acc_percent``, in all rows.
    """
    cells = tuple(cells)
    tested = {cell.name: made for cell in cells if (made := cell.summary()) is not None}
    fedavg = {
        (cell.setting, cell.replicate): tested[cell.name]
        for cell in cells
        if cell.label == REFERENCE and cell.name in tested
    }
    sensors = dict.fromkeys(m for summary in tested.values() for m in summary.last.f1_by_modality)
    columns = (*_COMPARED, *(f"f1_{sensor}_percent" for sensor in sensors))
    rows = []
    for cell in cells:
        values = _compared(cell, tested.get(cell.name), fedavg.get((cell.setting, cell.replicate)))
        rows.append(_row(cell, {name: values.get(name) for name in columns}))
    return rows


def _compared(cell: FinishedCell, summary: RunSummary | None, fedavg: RunSummary | None) -> Values:
    """The comparison's figures of a run, by the clock that planned it."""
    if summary is None:
        return {}
    return values_of(expanded(cell.name, cell.record), summary, cell.record.planning_model, fedavg)


def _row(cell: FinishedCell, compared: Mapping[str, float | None]) -> FlatRow:
    record, (fold, rotation, seed) = cell.record, cell.replicate
    last, metrics = record.rounds[-1], record.metrics
    f1 = next((r.f1 for r in reversed(record.rounds) if r.f1 is not None), None)
    replicate = config_value(record.config, "replicate")
    return {
        **_names(cell),
        "is_bound": record.method.is_bound,
        "fold": fold,
        "rotation": rotation,
        "seed": seed,
        "replicate": replicate if isinstance(replicate, int) else None,
        "rounds": last.round,
        "f1_percent": _percent(f1),
        "f1_rare_percent": _percent(None if metrics is None else metrics.f1_rare),
        **compared,
        **extra_columns(metrics),
        "time_s": last.time_s,
        "energy_j": last.energy_j,
        "fleet_up_mib": last.bytes_up / MIB,
        "fleet_down_mib": last.bytes_down / MIB,
        "data_origin": record.data_origin,
        "clock": record.planning_model,
        "program": record.source_digest[:8],
    }


def round_rows(cells: Iterable[FinishedCell]) -> list[FlatRow]:
    """One row per cell and round, 0 (bootstrap) included; costs are sums so far, F1 is None where it was not tested.

    ``loss`` and ``wall_s``, the real seconds of the round, are None in committed results, which do not keep them.
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
            "f1_rare_percent": _percent(_rare(cell).get(r.round)),
            "loss": cell.measured.loss.get(r.round),
            "time_s": r.time_s,
            "energy_j": r.energy_j,
            "fleet_up_mib": r.bytes_up / MIB,
            "fleet_down_mib": r.bytes_down / MIB,
            "wall_s": cell.measured.wall_s.get(r.round),
            **dict.fromkeys(columns),
            **_diagnostics(r),
        }
        for cell in cells
        for r in cell.record.rounds
    ]


def _rare(cell: FinishedCell) -> Mapping[int, float]:
    """F1 with the rare sensors alone, a share, by round."""
    return {} if cell.record.means is None else cell.record.means.rare


def _diagnostics(row: RoundRow) -> dict[str, float]:
    return {f"{table}.{key}": value for table, values in row.diagnostics.items() for key, value in values.items()}


def _names(cell: FinishedCell) -> FlatRow:
    return {"cell": cell.name, "setting": cell.setting, "method": cell.label}


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def run_gains(
    cells: Sequence[FinishedCell], label: str, other: str = REFERENCE, figure: str = "f1"
) -> dict[Replicate, float]:
    """``label`` minus ``other`` in points for each paired run: (fold, rotation, seed) that both methods have.

    ``figure``: what is compared, by the names of `relief-ray plan-study --figure`.

    Raises:
        UserError: the cells are of several settings, no cell is of one of the methods, or the figure is unknown.
    """
    score = _score(cells, label, other, figure)
    gains = run_differences(_once(cells), label, other, score)
    return {key: 100 * value for key, value in gains.items()}


def _score(
    cells: Sequence[FinishedCell], label: str, other: str, figure: str
) -> Callable[[FinishedCell], float | None]:
    """The figure of a cell of either method, a share; figures at equal cost are those of its pair.

    Raises:
        UserError: as ``run_gains``.
    """
    chosen = figure_named(figure, "figure")
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
    mine, theirs = ({c.replicate: c for c in _once(cells) if c.label == name} for name in (label, other))
    pairs = {key: cell_scores(mine[key], theirs[key], chosen) for key in mine.keys() & theirs.keys()}

    def score(cell: FinishedCell) -> float | None:
        pair = pairs.get(cell.replicate)
        return None if pair is None else pair[0 if cell.label == label else 1]

    return score


def cell_scores(one: FinishedCell, two: FinishedCell, figure: Figure) -> tuple[float, float] | None:
    """A figure of both cells of a pair, as shares; None where one of them lacks it."""
    if figure in ("f1_at_seconds", "f1_at_joules"):
        cost = "time_s" if figure == "f1_at_seconds" else "energy_j"
        budget = min(float(getattr(c.record.rounds[-1], cost)) for c in (one, two))
        a, b = (score_at(_curve(c, cost), budget) for c in (one, two))
    else:
        a, b = (None if c.record.metrics is None else figure_of(c.record.metrics, figure) for c in (one, two))
    return None if a is None or b is None else (a, b)


def _curve(cell: FinishedCell, cost: str) -> list[tuple[float, float]]:
    """(cost so far, F1) of the evaluated rounds."""
    return [(float(getattr(r, cost)), r.f1) for r in cell.record.rounds if r.round >= 1 and r.f1 is not None]


def _once(cells: Sequence[FinishedCell]) -> list[FinishedCell]:
    """The first cell of every method, fold and seed."""
    return list({(cell.label, cell.replicate): cell for cell in reversed(cells)}.values())


def gain(cells: Sequence[FinishedCell], label: str, other: str = REFERENCE, figure: str = "f1") -> Paired | None:
    """``run_gains`` as one figure with its 95 % interval and sign-flip test; None where no pair of runs has it.

    Raises:
        UserError: as ``run_gains``.
    """
    return paired_gain(_once(cells), label, other, _score(cells, label, other, figure))


def gain_rows(cells: Sequence[FinishedCell], other: str = REFERENCE, figure: str = "f1") -> list[FlatRow]:
    """``gain`` of every method over ``other``, a row each; ``p_holm`` corrects ``p`` for the methods but bounds.

    ``more_aggregations``: how many the method had more than ``other`` at its last round, where a bootstrap is one.

    Raises:
        UserError: as ``run_gains``.
    """
    bounds = {cell.label for cell in cells if cell.record.method.is_bound}
    labels = by_registry(dict.fromkeys(cell.label for cell in cells if cell.label != other))
    paired = {label: result for label in labels if (result := gain(cells, label, other, figure)) is not None}
    tested = [label for label in paired if label not in bounds]
    corrected = dict(zip(tested, holm([paired[label].p for label in tested]), strict=True))
    done = {cell.label: len(cell.record.rounds) for cell in cells}
    rows = (
        (label, d.mean, d.low, d.high, d.p, corrected.get(label), d.smallest_found, d.num_pairs, d.unit,
         done[label] - done[other])
        for label, d in paired.items()
    )  # fmt: skip
    return [dict(zip(GAIN_COLUMNS, row, strict=True)) for row in rows]
