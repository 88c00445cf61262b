"""Cells of the tables: our mean and spread, the paper's value below, and the deviation where it has a meaning."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isclose

from relief_ray.devices.time import CLOCKS
from relief_ray.plugins.load import is_path
from relief_ray.report.comparison import Comparison, Experiment, MethodResult, Stat
from relief_ray.report.paper import PAPER_DATA, Paper, PaperCell
from relief_ray.report.results import KEY
from relief_ray.report.statistics import Paired, interval_text
from relief_ray.report.tables.columns import ROUNDS_TO_85, Column
from relief_ray.strategies import REFERENCE
from relief_ray.support.table import NONE, Cell, Number, Origin
from relief_ray.support.text import with_title

# The paper's protocol, Section VI-A and Eq. (2): key, value; it does not say how subjects are split.
_PROTOCOL = (
    ("rounds", "200"),
    ("training.epochs", "5"),
    ("training.lr", "0.001"),
    ("training.batch_size", "32"),
    ("data.stride_s", "1"),
    ("training.missing", "zero_input"),
    ("participation", "1"),
    ("data.split", "not said"),
)
# Values under which a deviation from the paper is computed, where the configuration has the key.
SAME = {
    "fleet.preset": "paper",
    "fleet.coupling": "coupled",
    "fleet.counts": "",
    "fleet.owned": "{}",
    "fleet.types": "{}",
    "training.lr": "0.001",
    "training.batch_size": "32",
    "data.window_s": "",
    "data.partition": "subject",
}
_USUAL_FLEET = {"fleet.gap": "55", "data.num_clients": "", "fleet.num_clients": ""}
_SIMULATED = (
    "round_s",
    "speedup",
    "speedup_compute",
    "speedup_total",
    "speedup_paper",
    "link_percent",
    "energy_j",
    "energy_total_j",
    "energy_saved_percent",
    "total_s",
)
_TIMED = (
    *(name for name in _SIMULATED if name != "speedup_paper"),
    "compute_s",
    "wait_s",
    "device_j",
    "f1_at_seconds_percent",
    "f1_at_joules_percent",
)
_BY_ROUND = ("tta85_rounds", "tta95_rounds")
_ORDINALS = {1: "1st", 2: "2nd", 3: "3rd"}


def headings(experiment: Experiment, columns: Sequence[Column], clock: str | None) -> Iterator[str]:
    """Headings of the columns: simulated ones name their clock, numbers of rounds how often F1 was tested."""
    every = experiment.text("evaluation.every")
    for column in columns:
        if column.figure in _TIMED and clock is not None:
            yield f"{column.head}, `{clock}`"
        elif column.figure in _BY_ROUND and every not in ("", "1"):
            yield f"{column.head}, tested every {_ORDINALS.get(int(every), f'{every}th')}"
        else:
            yield column.head


def is_comparable(experiment: Experiment, *, any_fleet: bool = False) -> bool:
    """True where a deviation from the paper has a meaning: its data, devices, learning rate and batch, real windows.

    Tables I to III are of one fleet (gap 55, a client per subject); ``any_fleet``: the row says which (Tables IV, V).
    """
    same = SAME if any_fleet else SAME | _USUAL_FLEET
    return (
        experiment.dataset in PAPER_DATA
        and experiment.is_real
        and not experiment.choice
        and all(experiment.text(key) in (value, "") for key, value in same.items())
    )


def departures(experiment: Experiment) -> list[str]:
    """Settings that leave the paper's protocol: ``rounds 20 (paper: 200)``."""
    here = [(key, value, experiment.text(key)) for key, value in _PROTOCOL if key not in experiment.searched]
    return [f"{key} {ours} (paper: {value})" for key, value, ours in here if ours and ours != value]


def origin_of(experiment: Experiment, comparison: Comparison, label: str, figure: str) -> Origin:
    """Origin of a method's figure."""
    if figure in _SIMULATED:
        if comparison.clock == "measured":
            return "measured"
        return (
            "FITTED"
            if _is_fitted(comparison, label) or _is_target(experiment, comparison, label, figure)
            else ("simulated")
        )
    if not experiment.is_real:
        return "SYNTHETIC"
    if figure.startswith("up_") and (_is_fitted(comparison, label) or _has_fitted_width(experiment, comparison, label)):
        return "FITTED"
    return "measured"


def _is_fitted(comparison: Comparison, label: str) -> bool:
    """True for a method whose settings were chosen to agree with the paper's tables."""
    method = comparison.row(label)
    return method is not None and method.method.is_fitted


def _is_target(experiment: Experiment, comparison: Comparison, label: str, figure: str) -> bool:
    """True for FedAvg's joules on PAMAP2, to which the clocks were fitted, and for methods that do the same work."""
    fitted = experiment.runs[0].is_fitted
    at_target = (
        experiment.dataset == "pamap2" and figure.startswith("energy") and _has_fedavgs_joules(comparison, label)
    )
    clock = CLOCKS.get(comparison.clock)
    return fitted and at_target and clock is not None and clock.is_fitted


def _has_fedavgs_joules(comparison: Comparison, label: str) -> bool:
    """True where a round costs what FedAvg's does, to the last digits, wherever both ran."""
    mine, whole = (
        comparison.table[comparison.table["method"] == name].set_index(KEY)["energy_j"].to_dict()
        for name in (label, REFERENCE)
    )
    shared = mine.keys() & whole.keys()
    return label == REFERENCE or (bool(shared) and all(isclose(mine[k] or 0, whole[k] or 0) for k in shared))


def _has_fitted_width(experiment: Experiment, comparison: Comparison, label: str) -> bool:
    """True where the whole model is sent on PAMAP2: Backbone 1's width was chosen to give FedAvg's 4.81 MiB there."""
    mine, whole = stat_of(comparison, label, "up_mib"), stat_of(comparison, REFERENCE, "up_mib")
    is_whole = mine is not None and whole is not None and mine.mean == whole.mean
    return experiment.backbone == "cnn" and experiment.dataset == "pamap2" and (label == REFERENCE or is_whole)


def stat_of(comparison: Comparison, label: str, figure: str) -> Stat | None:
    """Statistic of a method; None where it was not run or lacks the figure."""
    method = comparison.row(label)
    return None if method is None else method.stats.get(figure)


def printed(
    experiment: Experiment, paper: Paper, table: str, row: str, column: Column, prefix: str = ""
) -> PaperCell | None:
    """The paper's cell; None for a figure that it does not print of these data. ``prefix``: a backbone's, ``B1 ``."""
    if not column.is_printed_of(experiment.dataset):
        return None
    return paper[table].get(row, prefix + column.paper.format(data=experiment.paper_data))


def second_line(experiment: Experiment) -> str:
    """Explanation of the cells' second line, for the heading; empty where there is none: not the paper's data."""
    if not experiment.is_on_papers_data:
        return ""
    change = ", ours minus it" if is_comparable(experiment) else ""
    return f"second line: paper, {experiment.paper_data}{change}"


def name_of(method: MethodResult) -> str:
    """The method, starred where clients are tested on models of their own."""
    return f"{method.label}{'*' if method.personalised else ''}"


def names_line(comparison: Comparison) -> str:
    """Sentence with what stands behind the names: a preset's title, or a user's method's import path; or empty.

    A variant has the title of its preset, which says nothing new where it is the preset's name.
    """
    known = {run.label: run.run for run in comparison.runs}
    texts = {label: run.strategy if is_path(run.strategy) else run.method.title for label, run in known.items()}
    parts = [f"`{label}`: {text}" for label, text in texts.items() if with_title(_base(label), text) != text]
    return f"Names: {'; '.join(parts)}" if parts else ""


def _base(label: str) -> str:
    """``relief`` of the variant ``relief (fill=time)``."""
    return label.partition(" (")[0]


def number_text(stat: Stat | None, column: Column, num_runs: int, *, tight: bool = False) -> str:
    """``73.6 ± 8.1``; ``12 (3/4)`` where only 3 of 4 runs have the figure; ``-`` where none has.

    A spread whose digits are all 0 is left out. ``tight``, for `compare`: ``73.6±8.1``, where the column asks for it.
    """
    if stat is None:
        return NONE
    std = None if stat.std is None else round(stat.std * column.scale, column.decimals)
    has_spread = std is not None and (column.spread if tight else std != 0)
    spread = f"{'±' if tight else ' ± '}{std:.{column.decimals}f}" if has_spread else ""
    part = "" if stat.num == num_runs else f" ({stat.num}/{num_runs})"
    return f"{column.rounded(stat.mean)}{spread}{part}"


def figure_cell(
    stat: Stat | None,
    column: Column,
    *,
    origin: Origin,
    paper: PaperCell | None = None,
    comparable: bool = False,
    num_runs: int = 1,
) -> Cell:
    """Our figure with the paper's below; ``-`` where it is undefined or was never reached."""
    theirs = value_of(paper)
    numbers: dict[str, Number] = {"paper": theirs, "paper_std": None if paper is None else paper.std, "origin": origin}
    if stat is None:
        return Cell(text=NONE, below=_paper_line(paper, column), origin=origin, numbers={"n": 0, **numbers})
    mean, std = stat.mean * column.scale, None if stat.std is None else stat.std * column.scale
    deviation = mean - theirs if comparable and theirs is not None and origin != "FITTED" else None
    numbers = {"mean": mean, "std": std, "n": stat.num, **numbers, "deviation": deviation}
    change = "" if deviation is None else f"{deviation:+.{column.decimals}f}"
    text = number_text(stat, column, num_runs)
    return Cell(text=text, below=_paper_line(paper, column, change), origin=origin, numbers=numbers)


def method_cell(
    experiment: Experiment,
    comparison: Comparison,
    method: MethodResult,
    column: Column,
    *,
    paper: PaperCell | None = None,
    comparable: bool = False,
) -> Cell:
    """``figure_cell`` of a method that was run."""
    origin = origin_of(experiment, comparison, method.label, column.figure)
    stat = method.stats.get(column.figure)
    return figure_cell(stat, column, origin=origin, paper=paper, comparable=comparable, num_runs=method.num_runs)


def _paper_line(cell: PaperCell | None, column: Column, change: str = "") -> str:
    """``92.0 ± 0.38, -1.2``: the paper's value (its spreads have two decimals), and ours minus it."""
    if cell is None:
        return ""
    spread = "" if cell.std is None else f" ± {cell.std:.2f}"
    value = NONE if cell.value is None else f"{cell.value:.{column.decimals}f}" + spread
    return value + (f", {change}" if change else "")


def difference_cell(ours: Paired | None, origin: Origin, theirs: float | None = None) -> Cell:
    """A paired difference in points with its interval, the paper's printed one below."""
    mean, low, high = (None, None, None) if ours is None else (ours.mean, ours.low, ours.high)
    numbers: dict[str, Number] = {
        "mean": mean,
        "low": low,
        "high": high,
        "n": ours.num_pairs if ours else 0,
        "paper": theirs,
        "origin": origin,
    }
    below = "" if theirs is None else f"{theirs:+.1f}"
    return Cell(text=interval_text(ours), below=below, origin=origin, numbers=numbers)


def recorded(comparison: Comparison | None, columns: Sequence[Column]) -> tuple[Column, ...]:
    """The columns without those that no run has a figure for; a target that none reached is a result and stays."""
    if comparison is None:
        return tuple(columns)
    kept = {name for method in comparison.rows for name in method.stats} | {"", ROUNDS_TO_85.figure}
    return tuple(column for column in columns if column.figure in kept)


def value_of(cell: PaperCell | None) -> float | None:
    """The printed value."""
    return None if cell is None else cell.value


def gap(statuses: Sequence[str], below: str = "") -> Cell:
    """Empty place with its reason: the statuses of the runs that should have filled it."""
    text = ", ".join(dict.fromkeys(statuses)) or "not run"
    return Cell(text=text, below=below, tone="gap", numbers={"n": 0, "status": text})


def gaps(experiment: Experiment, label: str, papers: Sequence[tuple[Column, PaperCell | None]]) -> Iterator[Cell]:
    """The cells of a method without finished runs: the reason, then the paper's values alone."""
    yield gap(open_statuses(experiment, label))
    for column, cell in papers:
        yield Cell(text="", below=_paper_line(cell, column), tone="gap", numbers={"n": 0, "paper": value_of(cell)})


def open_statuses(experiment: Experiment, label: str) -> list[str]:
    """The statuses of a method's runs that are not done."""
    return [s.status for s in experiment.items if s.label == label and s.status != "done"]


def runs_cell(method: MethodResult, experiment: Experiment) -> Cell:
    """Number of runs behind a row, of how many that were planned; runs of other code are marked."""
    other, absent = experiment.of_other_code(method.label), len(open_statuses(experiment, method.label))
    planned = method.num_runs + absent
    text = f"{method.num_runs} of {planned}" if absent else str(method.num_runs)
    below = f"{other} by other code" if other else ""
    numbers: dict[str, Number] = {"n": method.num_runs, "planned": planned, "other_code": other}
    return Cell(text=text, below=below, tone="warn" if absent or other else "", numbers=numbers)
