"""Finished cells as data frames for users, and paired differences of methods.

The rows hold what `relief-ray report --commit` keeps: last metrics and a row per round. Training losses and real
seconds of single rounds, like the groups that each client trained, are in run folders alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from relief_ray.records.cells import figure_named
from relief_ray.records.metrics import extra_columns
from relief_ray.records.schema import Metrics
from relief_ray.report.comparison import by_setting, paired_gain, pairs, renamed
from relief_ray.report.results import MIB, round_table, run_table
from relief_ray.report.runs import Inventory, take_inventory
from relief_ray.report.statistics import Paired, holm
from relief_ray.strategies import REFERENCE, by_registry
from relief_ray.support.errors import UserError, nearest

if TYPE_CHECKING:
    from pandas import DataFrame

# Columns that every row has, for tables without rows: first which run it is and its scores, which a notebook shows of
# a wide frame.
_NAMES, _COSTS = ("cell", "method"), ("time_s", "energy_j", "fleet_up_mib", "fleet_down_mib")
_SCORED = (
    *_NAMES,
    "fold",
    "seed",
    "f1_percent",
    "f1_rare_percent",
    "f1_own_sensors_percent",
    "f1_own_subjects_percent",
)
_REST = (
    "speedup",
    "link_percent",
    *_COSTS,
    "rounds",
    "setting",
    "is_bound",
    "rotation",
    "replicate",
    "data_origin",
    "clock",
    "program",
)
_CELL_COLUMNS = (*_SCORED, *_REST)
_ROUND_COLUMNS = (*_NAMES, "round", "f1_percent", "f1_rare_percent", "loss", *_COSTS, "wall_s", "setting")
_GAIN_FIGURES = ("mean", "low", "high", "p", "p_holm", "smallest_found")
GAIN_COLUMNS = ("method", *_GAIN_FIGURES, "pairs", "unit")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Cells:
    """All finished cells: ``results.run_table`` and ``round_table`` with the columns ``cell`` and ``setting``.

    ``setting`` names in words what a cell shares with those that it can be compared with.
    """

    runs: DataFrame
    rounds: DataFrame
    columns: tuple[str, ...] = _CELL_COLUMNS
    """Of ``frame``: with the sensors that a model was tested with alone, and registered metrics."""
    metrics: tuple[str, ...] = ()
    """Names of users' metrics that a cell has."""

    @property
    def frame(self) -> DataFrame:
        """A row per cell; costs are the whole fleet's sums, ``setting`` says what sets it apart from the others."""
        last = self.rounds.groupby("run")[["time_s", "energy_j", "bytes_up", "bytes_down"]].last()
        known = self.runs.drop(columns="energy_j", errors="ignore")
        return _briefly(_with_mib(known.join(last, on="run")).reindex(columns=list(self.columns)))

    @property
    def round_frame(self) -> DataFrame:
        """``round_frame`` of all cells."""
        return _briefly(round_frame(self.rounds))


def _briefly(table: DataFrame) -> DataFrame:
    return table.assign(setting=table["setting"].map(brief_settings(table["setting"].unique())))


def brief_settings(titles: Iterable[str]) -> dict[str, str]:
    """By title of a setting what sets it apart from the others, of nothing the data: ``gap 2``, ``DSA excerpt``."""
    parts = {title: title.split(", ") for title in titles}
    shared = frozenset[str]().union(*parts.values()).intersection(*parts.values())
    return {title: ", ".join(p for p in each if p not in shared) or each[0] for title, each in parts.items()}


def round_frame(rounds: DataFrame) -> DataFrame:
    """A row per cell and round; metrics of one's own and a method's diagnostics have a column each."""
    more = (name for name in rounds.columns if name not in _ROUND_COLUMNS and ("." in name or "_percent" in name))
    return _with_mib(rounds).reindex(columns=[*_ROUND_COLUMNS, *more])


def _with_mib(table: DataFrame) -> DataFrame:
    return table.assign(fleet_up_mib=table["bytes_up"] / MIB, fleet_down_mib=table["bytes_down"] / MIB)


def read_cells(paths: Iterable[Path]) -> Cells:
    """The finished cells of committed results, or of folders of `relief-ray grid` or `run`.

    A run that lies in several of them counts once, the first.

    Raises:
        UserError: a path holds none of these.
    """
    return cells_of(take_inventory(paths, None))


def cells_of(inventory: Inventory) -> Cells:
    """The finished cells of an inventory, by its names; of committed results also those without a test score."""
    import pandas as pd

    done = {s.name: s for s in inventory.items if s.loaded is not None and (s.loaded.committed or s.status == "done")}
    parts, titles, last = [], list[str](), list[Metrics]()
    for comparison in by_setting(replace(inventory, items=tuple(done.values()))):
        runs = [renamed(s.label, s.loaded) for s in comparison.items if s.loaded is not None]
        names = {number: s.name for number, s in enumerate(comparison.items)}
        rounds = round_table(runs)
        titles.append(
            f"{comparison.title}, setting {len(titles) + 1}" * (comparison.title in titles) or comparison.title
        )

        last += [run.tested for run in runs]
        tables = (run_table(runs, rounds), rounds)
        parts.append([table.assign(cell=table["run"].map(names), setting=titles[-1]) for table in tables])
    if not parts:
        runs_of = pd.DataFrame(columns=["run", "strategy", *(name for name in _CELL_COLUMNS if name not in _COSTS)])
        return Cells(runs=runs_of, rounds=pd.DataFrame(columns=["run", *_ROUND_COLUMNS, "bytes_up", "bytes_down"]))
    places = {name: number for number, name in enumerate(done)}
    runs_of, rounds_of = (
        table.assign(run=table["cell"].map(places)).sort_values("run", kind="stable", ignore_index=True)
        for table in map(pd.concat, zip(*parts, strict=True))
    )
    extra = dict.fromkeys(name for one in last for name in extra_columns(one))
    sensors = dict.fromkeys(f"f1_{m}_percent" for one in last for m in one.f1_by_modality)
    own = dict.fromkeys(name for one in last for name in one.scores)
    columns = (*_SCORED, *extra, *sensors, *_REST)
    return Cells(runs=runs_of, rounds=rounds_of, columns=columns, metrics=tuple(own))


def pairs_of(cells: Cells, label: str, other: str, figure: str) -> DataFrame:
    """``comparison.pairs`` of two methods of one setting.

    Raises:
        UserError: several settings hold them, no cell is of one of the methods, or the figure is unknown.
    """
    runs, chosen = cells.runs, figure_named(figure, "figure", cells.metrics)
    used, known = runs[runs["method"].isin([label, other])], list(runs["method"].unique())
    settings = used["setting"].unique()
    if len(settings) > 1:
        raise UserError(
            f"{len(settings)} settings hold these methods: {'; '.join(settings)}; name one: --setting TEXT, or choose "
            "its cells"
        )
    for name in (label, other):
        if name not in known:
            raise UserError(
                f"no finished run of {name!r}{nearest(name, known)}; expected one of {', '.join(known) or 'none'}"
            )
    return pairs(used, cells.rounds, label, other, chosen)


def gain(cells: Cells, label: str, other: str = REFERENCE, figure: str = "f1") -> Paired | None:
    """``label`` minus ``other`` in points with its 95 % interval and sign-flip test; None where no pair has the figure.

    ``figure``: what is compared, by the names of `relief-ray plan-study --figure`.

    Raises:
        UserError: as ``pairs_of``.
    """
    return paired_gain(pairs_of(cells, label, other, figure))


def gain_frame(cells: Cells, other: str = REFERENCE, figure: str = "f1") -> DataFrame:
    """``gain`` of every method over ``other``, a row each; ``p_holm`` corrects ``p`` for the methods but bounds.

    Raises:
        UserError: as ``pairs_of``.
    """
    import pandas as pd

    bounds = dict(zip(cells.runs["method"], cells.runs["is_bound"], strict=True))
    others = (label for label in by_registry(bounds) if label != other)
    found = {label: result for label in others if (result := gain(cells, label, other, figure))}
    tested = [label for label in found if not bounds[label]]
    corrected = dict(zip(tested, holm([found[label].p for label in tested]), strict=True))
    rows = (
        (
            label,
            d.mean,
            d.low,
            d.high,
            d.p,
            corrected.get(label),
            d.smallest_found,
            d.num_pairs,
            d.unit,
        )
        for label, d in found.items()
    )
    # Without the types, columns of few pairs hold None.
    return pd.DataFrame(rows, columns=list(GAIN_COLUMNS)).astype(dict.fromkeys(_GAIN_FIGURES, float))
