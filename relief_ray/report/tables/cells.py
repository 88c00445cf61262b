"""One table cell: our mean and spread, the paper's value under it, the deviation where both mean the same thing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isclose

from relief_ray.report.comparison import Comparison, Row, Stat
from relief_ray.report.document import Entry, Number, Origin
from relief_ray.report.experiments import SAME, USUAL_FLEET, Experiment
from relief_ray.report.paper import PAPER_DATA, TABLE_PRESETS, Paper, PaperCell
from relief_ray.report.tables.comparison import NONE

# The paper's protocol, Section VI-A and Eq. (2): key, value; it does not say how subjects are split.
PROTOCOL = (
    ("rounds", "200"), ("training.epochs", "5"), ("training.lr", "0.001"), ("training.batch_size", "32"),
    ("data.stride_s", "1"), ("training.missing", "zero_input"), ("participation", "1"),
    ("data.split", "not said"),
)  # fmt: skip
SIMULATED = ("round_s", "speedup", "speedup_total", "energy_j", "energy_total_j", "energy_saved_percent", "total_s")
FITTED_JOULES = ("flop_proportional", "split_naive", "split_reuse")


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """A column: its heading, our figure, decimals, the paper's column (``{data}`` is the data set), and the scale."""

    head: str
    figure: str
    decimals: int
    paper: str = ""
    scale: float = 1.0


def is_comparable(experiment: Experiment, *, any_fleet: bool = False) -> bool:
    """Whether a deviation from the paper means anything: its data, devices, learning rate and batch, real windows.

    Tables I to III are of one fleet (gap 55, a client per subject); ``any_fleet``: the row says which (Tables IV, V).
    """
    same = SAME if any_fleet else SAME | USUAL_FLEET
    return (
        experiment.dataset in PAPER_DATA
        and experiment.is_real
        and not experiment.choice
        and all(experiment.text(key) in (value, "") for key, value in same.items())
    )


def departures(experiment: Experiment) -> list[str]:
    """In what an experiment leaves the paper's protocol: ``rounds 20 (paper: 200)``."""
    found = []
    for key, value in PROTOCOL:
        here = experiment.text(key)
        if here and here != value and key not in experiment.searched:
            found.append(f"{key} {here} (paper: {value})")
    return found


def origin_of(experiment: Experiment, comparison: Comparison, label: str, figure: str) -> Origin:
    """Where a figure comes from."""
    if figure in SIMULATED:
        if comparison.clock == "measured":
            return "measured"
        return "FITTED" if label.endswith(TABLE_PRESETS) or _is_target(experiment, comparison, label, figure) else (
            "simulated"
        )  # fmt: skip
    if not experiment.is_real:
        return "SYNTHETIC"
    if figure.startswith("up_") and (label.endswith(TABLE_PRESETS) or _has_fitted_width(experiment, comparison, label)):
        return "FITTED"
    return "measured"


def _is_target(experiment: Experiment, comparison: Comparison, label: str, figure: str) -> bool:
    """FedAvg's joules on PAMAP2 are what the clocks were fitted to; who does FedAvg's work inherits them."""
    fitted = experiment.runs[0].run.calibration.get("origin") == "FITTED"
    at_target = (
        experiment.dataset == "pamap2" and figure.startswith("energy") and _has_fedavgs_joules(comparison, label)
    )
    return fitted and at_target and comparison.clock in FITTED_JOULES


def _has_fedavgs_joules(comparison: Comparison, label: str) -> bool:
    """Whether a round costs what FedAvg's does, to the last digits, wherever both ran."""
    mine, whole = (
        {s.replicate: s.clocks[comparison.clock].energy_j for s in comparison.summaries if s.label == name}
        for name in (label, "fedavg")
    )
    shared = mine.keys() & whole.keys()
    return label == "fedavg" or (bool(shared) and all(isclose(mine[k] or 0, whole[k] or 0) for k in shared))


def _has_fitted_width(experiment: Experiment, comparison: Comparison, label: str) -> bool:
    """Backbone 1 is as wide as FedAvg's 4.81 MiB on PAMAP2 ask for; whoever sends the whole model inherits that."""
    mine, whole = stat_of(comparison, label, "up_mib"), stat_of(comparison, "fedavg", "up_mib")
    is_whole = mine is not None and whole is not None and mine.mean == whole.mean
    return experiment.backbone == "cnn" and experiment.dataset == "pamap2" and (label == "fedavg" or is_whole)


def stat_of(comparison: Comparison, label: str, figure: str) -> Stat | None:
    """A method's figure; None where it was not run or has none."""
    row = comparison.row(label)
    return None if row is None else row.stats.get(figure)


def printed(experiment: Experiment, paper: Paper, table: str, row: str, column: Column) -> PaperCell | None:
    """The paper's cell, of PAMAP2 where our data set is not among the paper's."""
    return paper[table].get(row, column.paper.format(data=paper_data(experiment))) if column.paper else None


def paper_data(experiment: Experiment) -> str:
    """The paper's data set that stands beside ours."""
    return PAPER_DATA.get(experiment.dataset, "PAMAP2")


def second_line(experiment: Experiment) -> str:
    """What the second line of a cell is, for the heading."""
    change = ", ours minus it" if is_comparable(experiment) else ""
    return f"second line: paper, {paper_data(experiment)}{change}"


def shown(value: float, std: float | None, decimals: int) -> str:
    """``73.6 ± 8.1``; the spread is left out where all its digits are 0."""
    spread = "" if std is None or not round(std, decimals) else f" ± {std:.{decimals}f}"
    return f"{value + 0.0:.{decimals}f}{spread}"


def entry(
    stat: Stat | None,
    column: Column,
    *,
    origin: Origin,
    paper: PaperCell | None = None,
    comparable: bool = False,
    num_runs: int = 1,
) -> Entry:
    """Our figure with the paper's below; ``-`` where it is undefined or was never reached."""
    theirs = value_of(paper)
    numbers: dict[str, Number] = {"paper": theirs, "paper_std": None if paper is None else paper.std, "origin": origin}
    if stat is None:
        return Entry(text=NONE, below=paper_line(paper, column), origin=origin, numbers={"n": 0, **numbers})
    mean, std = stat.mean * column.scale, None if stat.std is None else stat.std * column.scale
    text = shown(mean, std, column.decimals) + ("" if stat.num == num_runs else f" ({stat.num}/{num_runs})")
    deviates = comparable and theirs is not None and origin != "FITTED"
    deviation = mean - theirs if deviates and theirs is not None else None
    numbers = {"mean": mean, "std": std, "n": stat.num, **numbers, "deviation": deviation}
    change = "" if deviation is None else f"{deviation:+.{column.decimals}f}"
    return Entry(text=text, below=paper_line(paper, column, change), origin=origin, numbers=numbers)


def paper_line(cell: PaperCell | None, column: Column, change: str = "") -> str:
    """``92.0 ± 0.38, -1.2``: the paper's value (its spreads have two decimals), and ours minus it."""
    if cell is None:
        return ""
    spread = "" if cell.std is None else f" ± {cell.std:.2f}"
    value = NONE if cell.value is None else f"{cell.value:.{column.decimals}f}" + spread
    return value + (f", {change}" if change else "")


def value_of(cell: PaperCell | None) -> float | None:
    """The printed value."""
    return None if cell is None else cell.value


def gap(states: Sequence[str], below: str = "") -> Entry:
    """A hole, and why it is there: the states of the cells that should have filled it."""
    text = ", ".join(dict.fromkeys(states)) or "not run"
    return Entry(text=text, below=below, tone="gap", numbers={"n": 0, "state": text})


def open_states(experiment: Experiment, label: str) -> list[str]:
    """The states of a method's cells that are not done."""
    return [s.state for s in experiment.slots if s.label == label and s.state != "done"]


def runs_entry(row: Row, experiment: Experiment) -> Entry:
    """How many runs stand behind a row, of how many that were planned; other code is marked."""
    other, absent = experiment.of_other_code(row.label), len(open_states(experiment, row.label))
    planned = row.num_runs + absent
    text = f"{row.num_runs} of {planned}" if absent else str(row.num_runs)
    below = f"{other} by other code" if other else ""
    numbers: dict[str, Number] = {"n": row.num_runs, "planned": planned, "other_code": other}
    return Entry(text=text, below=below, tone="warn" if absent or other else "", numbers=numbers)
